"""The call of a well-known demo of BERT on MRPC: whether two sentences say the same, for its clients."""

from __future__ import annotations

from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.protobuf.schema import messages
from fusebert.serve import calls
from fusebert.serve.front import Asked
from fusebert.serve.grpc import GrpcService, Method
from fusebert.serve.protocols.inputs import read_texts
from fusebert.serve.service import Service

_M = messages("mrpc", "TextPair: 1 text_a bytes, 2 text_b bytes\nYesNo: 1 message bytes, 2 prediction bytes")


async def paraphrase(asked: Asked, message: Any) -> Any:
    """Whether one text says what the other says, by the first model that has two labels."""
    service = next((own for own in asked.server.services.values() if _judges(own)), None)
    if service is None:
        raise FusebertError("paraphrases need a model that classifies pairs as no or yes; none is served")
    try:
        texts = [message.text_a.decode(), message.text_b.decode()]
    except UnicodeDecodeError:
        raise FusebertError("text_a, text_b: a text is not UTF-8") from None
    first, second = read_texts(texts, asked.server.bounds, "texts")
    (ranked,) = await calls.classify(service, [(first, second)], asked.request, raw=True)
    same = ranked[0][0] == service.model.network.labels[1]
    words = b"paraphrase!" if same else b"not paraphrase!"
    return _M["YesNo"](message=words, prediction=b"1" if same else b"0")


def _judges(service: Service) -> bool:
    return service.model.network.head.kind == "sequence" and service.outputs == 2


SERVICE = GrpcService("mrpc.mrpc", [Method("paraphrase", _M["TextPair"], _M["YesNo"], paraphrase)])
