"""The Open Inference Protocol over HTTP: JSON, and tensors as bytes behind it (the binary tensor extension)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from fusebert.errors import FusebertError
from fusebert.serve.front import Asked, StatusError
from fusebert.serve.http import Call, check_depth, decode_json, encode_json
from fusebert.serve.protocols import oip
from fusebert.serve.protocols.tei import health
from fusebert.serve.protocols.tensors import Tensor, pack, read_tensor

_HEADER = "inference-header-content-length"


class InferInput(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class InferOutput(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class Infer(msgspec.Struct):
    inputs: list[InferInput]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[InferOutput] = []


_DECODE = msgspec.json.Decoder(Infer).decode


async def infer(asked: Asked, body: bytes) -> Response:
    """Tensors in, tensors out."""
    service = oip.find(asked.server, asked.path["name"], asked.path.get("version", ""))
    size = _json_size(asked.headers, len(body))
    check_depth(body[:size], asked.server.bounds.depth)
    message: Infer = decode_json(_DECODE, body[:size])
    oip.direct(asked.request, message.parameters)
    tensors = _read_inputs(message.inputs, body, size)
    found = await oip.infer(asked, service, tensors, [output.name for output in message.outputs])
    asks = {output.name: output.parameters for output in message.outputs}
    binary = message.parameters.get("binary_data_output", False)
    shown, raw = [], []
    for computed in found:
        own = asks.get(computed.name, {})
        tensor = oip.classify(service, computed, own.get("classification"))
        described: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if own.get("binary_data", binary):
            raw.append(pack(tensor))
            shown.append(described | {"parameters": {"binary_data_size": len(raw[-1])}})
        else:
            shown.append(described | {"data": _listed(tensor)})
    answer = {"model_name": service.name, "model_version": oip.VERSION, "outputs": shown}
    told = encode_json(answer | ({"id": message.id} if message.id else {}))
    if not raw:
        return Response(told, media_type="application/json")
    return Response(b"".join([told, *raw]), headers={_HEADER: str(len(told))}, media_type="application/octet-stream")


def _json_size(headers: Mapping[bytes, bytes], whole: int) -> int:
    """Bytes of the body that are JSON; tensors follow."""
    given = headers.get(_HEADER.encode())
    if given is None:
        return whole
    if not given.isdigit() or len(given) > 12 or not 0 < int(given) <= whole:
        raise StatusError(400, f"{_HEADER}: the bytes of the JSON are expected, at most {whole}, and at least one")
    return int(given)


def _read_inputs(inputs: Sequence[InferInput], body: bytes, at: int) -> list[Tensor]:
    tensors = []
    for given in inputs:
        content: Any = given.data
        if any(name.startswith("shared_memory") for name in given.parameters):
            raise StatusError(501, oip.UNSHARED)
        if (size := given.parameters.get("binary_data_size")) is not None:
            if content is not None or type(size) is not int or not 0 <= size <= len(body) - at:
                raise FusebertError(
                    f"{given.name:.80}: binary_data_size is not what the body has, or there is data too"
                )
            content, at = body[at : at + size], at + size
        if content is None:
            raise FusebertError(f"{given.name:.80}: it has neither data nor a binary_data_size")
        tensors.append(read_tensor(given.name[:80], given.datatype, given.shape, content))
    if at != len(body):
        raise FusebertError(f"the body has {len(body) - at} bytes more than its inputs say")
    return tensors


def _listed(tensor: Tensor) -> list[Any]:
    """Values in row-major order, as JSON takes them."""
    if tensor.datatype == "BYTES":
        return [value.decode() for value in tensor.values]
    values: list[Any] = tensor.values.ravel().tolist()
    return values


async def metadata(asked: Asked) -> Any:
    """A model's tensors."""
    return oip.metadata(oip.find(asked.server, asked.path["name"], asked.path.get("version", "")))


async def configuration(asked: Asked) -> Any:
    """A model as Triton describes one."""
    service = oip.find(asked.server, asked.path["name"], asked.path.get("version", ""))
    return oip.configuration(service, asked.server.bounds)


async def statistics(asked: Asked) -> Any:
    """What a model has done, or all of them."""
    name = asked.path.get("name")
    chosen = [oip.find(asked.server, name, asked.path.get("version", ""))] if name else asked.server.services.values()
    return {"model_stats": [oip.statistics(asked.server, service) for service in chosen]}


async def model_ready(asked: Asked) -> Any:
    """Whether a model answers."""
    service = oip.find(asked.server, asked.path["name"], asked.path.get("version", ""))
    if asked.server.stopping or not service.healthy:
        raise StatusError(503, f"{service.name} is not ready")
    return {"name": service.name, "ready": True}


async def server_metadata(asked: Asked) -> Any:  # noqa: ARG001
    """What the server is."""
    return oip.server_metadata()


async def live(asked: Asked) -> Any:  # noqa: ARG001
    """The process answers."""
    return {"live": True}


async def index(asked: Asked) -> Any:
    """Every model with its state."""
    return oip.index(asked.server)


async def refuse(asked: Asked) -> Any:  # noqa: ARG001
    """What would change the server from outside."""
    raise StatusError(501, oip.UNCHANGEABLE)


_MODEL = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
CALLS = [
    Call("GET", "/v2", server_metadata),
    Call("GET", "/v2/health/live", live, public=True),
    Call("GET", "/v2/health/ready", health, public=True),
    Call("GET", "/v2/models/stats", statistics),
    Call("POST", "/v2/repository/index", index),
    *(Call("POST", f"/v2/repository/models/{{name}}/{verb}", refuse, documented=False) for verb in ("load", "unload")),
    *(Call("GET", path, metadata) for path in _MODEL),
    *(Call("GET", f"{path}/ready", model_ready) for path in _MODEL),
    *(Call("GET", f"{path}/config", configuration) for path in _MODEL),
    *(Call("GET", f"{path}/stats", statistics) for path in _MODEL),
    *(Call("POST", f"{path}/infer", infer, bytes) for path in _MODEL),
]
