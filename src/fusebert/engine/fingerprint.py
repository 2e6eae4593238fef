"""Model -> fingerprint of its vector space: weights, precision, pooling and tokenizer. Vectors of two models may be
mixed exactly if their fingerprints are the same."""

from __future__ import annotations

import hashlib

import numpy as np

from fusebert.engine.model import Model
from fusebert.engine.quantize import convert
from fusebert.formats.files import release


def fingerprint(model: Model, pooling: str = "mean") -> str:
    """Sixteen hexadecimal digits; a checkpoint and the artifact made of it in the same precision have the same."""
    made = hashlib.blake2b(digest_size=8)
    network = convert(model.network, model.plan)
    made.update(repr((model.plan.precision, pooling, network.family, network.encoder.order)).encode())
    for name, array in network.weights():
        made.update(f"{name} {array.dtype} {array.shape}\n".encode())
        made.update(np.ascontiguousarray(array).view(np.uint8).data)
        release(array)
    if model.tokenizer:
        made.update(model.tokenizer.text().encode())
    return made.hexdigest()
