"""Model -> fingerprint of its vector space: weights, precision, tokenizer, and how rows become vectors: pooling, steps,
prompts. Vectors of two models may be mixed exactly if their fingerprints are the same."""

from __future__ import annotations

import hashlib

import numpy as np

from fusebert.engine.model import Model
from fusebert.engine.quantize import convert
from fusebert.formats.files import release
from fusebert.values.network import Sentence

_FORMAT = "float32"  # of the numbers in a vector


def fingerprint(model: Model, pooling: str | None = None) -> str:
    """Sixteen hexadecimal digits; a checkpoint and the artifact made of it in the same precision have the same. A
    `pooling` is one instead of the model's own."""
    made = hashlib.blake2b(digest_size=8)
    network = convert(model.network, model.plan)
    sentence = network.sentence or Sentence()
    activations = [step.activation for step in sentence.steps] if pooling is None else []
    vectors = (pooling or sentence.pooling, sentence.normalize, activations, _FORMAT)
    prompts = sorted(sentence.prompts.items()), sentence.default_prompt
    types = model.plan.precision, sorted({(block.scores, block.bytes) for block in model.plan.blocks})
    made.update(repr((*types, vectors, prompts, network.family, network.encoder.order)).encode())
    for name, array in network.weights():
        made.update(f"{name} {array.dtype} {array.shape}\n".encode())
        made.update(np.ascontiguousarray(array).view(np.uint8).data)
        release(array)
    if model.tokenizer:
        made.update(model.tokenizer.text().encode())
    return made.hexdigest()
