"""The Open Inference Protocol, version 2, whatever carries it: a model as named tensors, its metadata, configuration
and statistics as plain values, and the verb `infer`: texts or padded token ids in, the outputs asked for out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from fusebert.engine.sentence import prompted
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array
from fusebert.serve.batcher import BULK, INTERACTIVE
from fusebert.serve.calls import Input, unit
from fusebert.serve.front import Asked, Bounds, Server, StatusError
from fusebert.serve.protocols.inputs import check_count, read_texts
from fusebert.serve.protocols.tensors import Tensor, rank
from fusebert.serve.service import Request, Service, Task, clock
from fusebert.values.batch import LOWEST

VERSION = "1"  # of every model: there is one at a time
EXTENSIONS = ["binary_tensor_data", "classification", "parameters", "schedule_policy"]
EXTENSIONS += ["model_configuration", "statistics", "model_repository"]
UNCHANGEABLE = "models are not loaded or unloaded by requests; start the server with the models that it is to have"
UNSHARED = "shared memory is not supported; send the tensor itself"


@dataclass(frozen=True)
class Spec:
    """An input or output: its shape is `[batch, *dims]`, where -1 is any length."""

    name: str
    datatype: str
    dims: tuple[int, ...]


def list_inputs(service: Service) -> list[Spec]:
    """What a model takes: texts, or token ids with mask and types."""
    ids = [Spec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask", "token_type_ids")]
    texts = [Spec(name, "BYTES", (1,)) for name in ("text", "text_pair")]
    return [*texts, *ids] if service.model.tokenizer else ids


def list_outputs(service: Service) -> list[Spec]:
    """What a model gives: what `Model.run` returns, and the embedding of a model without a head."""
    network, hidden = service.model.network, service.model.network.encoder.hidden_size
    kind = network.head.kind
    if kind == "none":
        width = service.embed.width(hidden)
        outputs = [Spec("embedding", "FP32", (width,)), Spec("last_hidden_state", "FP32", (-1, hidden))]
        return [*outputs, Spec("pooler_output", "FP32", (service.outputs,))] if network.head.steps else outputs
    if kind == "question":
        return [Spec(name, "FP32", (-1,)) for name in ("start_logits", "end_logits")]
    return [Spec("logits", "FP32", (service.outputs,) if kind == "sequence" else (-1, service.outputs))]


def find(server: Server, name: str, number: str = "") -> Service:
    """The model of that name and version."""
    service = server.named(name)
    if number not in ("", VERSION):
        raise StatusError(404, f"{name} has no version {number!r:.20}, only {VERSION}")
    return service


def server_metadata() -> dict[str, Any]:
    """What the server is."""
    return {"name": "fusebert", "version": version("fusebert"), "extensions": EXTENSIONS}


def metadata(service: Service) -> dict[str, Any]:
    """A model's tensors."""

    def shown(specs: list[Spec]) -> list[dict[str, Any]]:
        return [{"name": s.name, "datatype": s.datatype, "shape": [-1, *s.dims]} for s in specs]

    return {"name": service.name, "versions": [VERSION], "platform": "fusebert"} | {
        "inputs": shown(list_inputs(service)), "outputs": shown(list_outputs(service))
    }  # fmt: skip


def configuration(service: Service, bounds: Bounds) -> dict[str, Any]:
    """A model as Triton's ModelConfig describes one. Every input is optional, for texts do without ids and ids without
    texts."""

    def shown(spec: Spec) -> dict[str, Any]:
        kind = "TYPE_STRING" if spec.datatype == "BYTES" else f"TYPE_{spec.datatype}"
        return {"name": spec.name, "data_type": kind, "dims": list(spec.dims)}

    return {
        "name": service.name,
        "platform": "fusebert",
        "backend": "fusebert",
        "max_batch_size": bounds.texts,
        "input": [shown(spec) | {"optional": True} for spec in list_inputs(service)],
        "output": [shown(spec) for spec in list_outputs(service)],
        "dynamic_batching": {"priority_levels": 2},
    }


def statistics(server: Server, service: Service) -> dict[str, Any]:
    """What a model has done so far: requests, and nanoseconds of their stages."""
    totals, counts = server.metrics.totals(service.name), service.batcher.counts
    count = totals["total"][0]
    seconds = {stage: spent for stage, (_, spent) in totals.items()}
    encoding = max(0.0, seconds["total"] - seconds["tokenisation"] - seconds["queue"] - seconds["inference"])

    def duration(spent: float) -> dict[str, int]:
        return {"count": count, "ns": round(spent * 1e9)}

    failed = sum(number for key, number in list(counts.items()) if key[0] in ("refused", "late"))
    return {
        "name": service.name,
        "version": VERSION,
        "last_inference": round(server.metrics.latest.get(service.name, 0) * 1000),
        "inference_count": counts["sequences",],
        "execution_count": counts["batches",],
        "inference_stats": {
            "success": duration(seconds["total"]),
            "fail": {"count": failed, "ns": 0},
            "queue": duration(seconds["queue"]),
            "compute_input": duration(seconds["tokenisation"]),
            "compute_infer": duration(seconds["inference"]),
            "compute_output": duration(encoding),
        },
        "batch_stats": [],
    }


def index(server: Server) -> list[dict[str, str]]:
    """Every model with its state."""
    return [
        {"name": name, "version": VERSION, "state": "READY" if service.healthy else "UNAVAILABLE", "reason": ""}
        for name, service in server.services.items()
    ]


def direct(request: Request, parameters: Mapping[str, Any]) -> None:
    """Takes `timeout` (microseconds) and `priority` (1 is interactive, 2 is bulk) from a request's parameters."""
    if any(name.startswith("sequence_") and value for name, value in parameters.items()):
        raise FusebertError("sequence parameters: the models here keep no state between requests; leave them out")
    numbers = {name: parameters.get(name) or 0 for name in ("timeout", "priority")}
    for name, value in numbers.items():
        if type(value) is not int or value < 0:
            raise FusebertError(f"{name}: a whole number is expected")
    if numbers["timeout"]:
        request.deadline = min(request.deadline, clock() + numbers["timeout"] / 1e6)
    if numbers["priority"]:
        request.lane = INTERACTIVE if numbers["priority"] == 1 else BULK


async def infer(asked: Asked, service: Service, tensors: Sequence[Tensor], wanted: Sequence[str]) -> list[Tensor]:
    """Runs texts or padded token ids, and gives the wanted outputs, or all where none is named. Outputs with a row for
    each token are as long as the ids were, or as the longest text has tokens; behind a sequence's end they are zero, or
    for the places of an answer as low as possible."""
    given = {tensor.name: tensor for tensor in tensors}
    _check_names(service, tensors, given)
    specs = {spec.name: spec for spec in list_outputs(service)}
    names = list(wanted) or list(specs)
    if len(set(names)) != len(names) or not set(names) <= set(specs):
        raise FusebertError(f"outputs: {', '.join(specs)} can be asked for, each once, and nothing else")
    bounds = asked.server.bounds
    if "text" in given:
        inputs, types, width = _texts(service, given, bounds, behind_prompt="embedding" in names)
    else:
        inputs, types, width = _ids(service, given, bounds)
    padded = sum(math.prod(specs[name].dims[1:]) for name in names if -1 in specs[name].dims)
    task = Task(0, 0, inputs=inputs, types=types, extra=4 * len(inputs) * width * padded, want=_want(service, names))
    await service.run(task, asked.request)
    found = await _outputs(service, task, names)
    length = width if "input_ids" in given else max(task.tokens)
    filler = LOWEST if service.model.network.head.kind == "question" else 0  # so that no answer lies behind the end
    arrays = {name: _pad(found[name], length, filler) if -1 in specs[name].dims else found[name] for name in names}
    return [Tensor(name, "FP32", array.shape, array) for name, array in arrays.items()]


def classify(service: Service, tensor: Tensor, count: Any) -> Tensor:
    """The `count` best of an output with their labels, if that is asked for."""
    if not count:
        return tensor
    return rank(tensor, count if type(count) is int else 0, service.model.network.labels)


def _check_names(service: Service, tensors: Sequence[Tensor], given: Mapping[str, Tensor]) -> None:
    known = {spec.name: spec for spec in list_inputs(service)}
    if len(given) != len(tensors) or not set(given) <= set(known):
        raise FusebertError(f"inputs: {', '.join(known)} are taken, each once, and nothing else")
    if ("text" in given) == ("input_ids" in given) or len({known[name].datatype for name in given}) > 1:
        either = " or ".join(name for name in ("text", "input_ids") if name in known)
        raise FusebertError(f"inputs: {either} is expected, with what belongs to it; the two cannot be mixed")
    for tensor in tensors:
        expected = known[tensor.name].datatype
        if (expected == "BYTES") != (tensor.datatype == "BYTES"):
            raise FusebertError(f"{tensor.name}: the datatype {expected} is expected, not {tensor.datatype}")


def _texts(
    service: Service, given: Mapping[str, Tensor], bounds: Bounds, behind_prompt: bool
) -> tuple[list[Input], list[Array], int]:
    columns = [_column(given[name], bounds) for name in ("text", "text_pair") if name in given]
    if behind_prompt:
        columns[0] = prompted(service.model.network.sentence, columns[0])
    if len({len(column) for column in columns}) != 1:
        raise FusebertError("text and text_pair: the same number of texts is expected")
    inputs: list[Any] = list(zip(*columns, strict=True)) if len(columns) == 2 else columns[0]
    longest = max(sum(map(len, texts)) for texts in zip(*columns, strict=True))
    return inputs, [], min(service.longest, longest + 3)


def _column(tensor: Tensor, bounds: Bounds) -> list[str]:
    if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
        raise FusebertError(f"{tensor.name}: the shape [texts, 1] or [texts] is expected, not {list(tensor.shape)}")
    try:
        values = [value.decode() if isinstance(value, bytes) else value for value in tensor.values]
    except UnicodeDecodeError:
        raise FusebertError(f"{tensor.name}: a text is not UTF-8") from None
    return read_texts(values, bounds, tensor.name)


def _ids(service: Service, given: Mapping[str, Tensor], bounds: Bounds) -> tuple[list[Input], list[Array], int]:
    shape = given["input_ids"].shape
    if len(shape) != 2 or not shape[1]:
        raise FusebertError(f"input_ids: the shape [sequences, length] is expected, not {list(shape)}")
    for tensor in given.values():
        if tensor.shape != shape:
            raise FusebertError(f"{tensor.name}: the shape of input_ids, {list(shape)}, is expected")
    count, width = shape
    check_count(range(count), bounds, "input_ids")
    if width > service.model.network.embeddings.longest:
        raise FusebertError(f"input_ids: {width} tokens; {service.model.network.embeddings.longest} are possible")
    arrays = {name: tensor.values.astype(np.int64) for name, tensor in given.items()}
    lengths = np.full(count, width)
    if (mask := arrays.get("attention_mask")) is not None:
        lengths = mask.sum(1)
        if not np.array_equal(mask, np.arange(width) < lengths[:, None]):
            raise FusebertError("attention_mask: ones, then zeros are expected: padding stands behind the tokens")
    types = arrays.get("token_type_ids")
    kinds = service.model.network.embeddings.kind
    if types is not None and (types.min() < 0 or types.max() >= (1 if kinds is None else len(kinds))):
        raise FusebertError(f"token_type_ids: one is outside 0 to {0 if kinds is None else len(kinds) - 1}")
    inputs: list[Input] = [row[:n] for row, n in zip(arrays["input_ids"], lengths, strict=True)]
    return inputs, [] if types is None else [row[:n] for row, n in zip(types, lengths, strict=True)], width


def _want(service: Service, names: Sequence[str]) -> str:
    """What must be computed so that these outputs can be made of it."""
    if service.model.network.head.kind != "none" or names == ["pooler_output"]:
        return "head"
    return "pooled" if names == ["embedding"] else "rows"


async def _outputs(service: Service, task: Task, names: Sequence[str]) -> dict[str, Any]:
    """Outputs by name: arrays, or for those with a row a token one array for each sequence."""
    kind, computed = service.model.network.head.kind, task.outputs
    if kind == "question":
        return {name: [own[:, i] for own in computed] for i, name in enumerate(("start_logits", "end_logits"))}
    if kind != "none":
        return {"logits": np.stack(computed) if kind == "sequence" else computed}
    if task.want != "rows":
        stacked: Array = np.stack(computed)
        return {"embedding": unit(stacked)} if task.want == "pooled" else {"pooler_output": stacked}
    found: dict[str, Any] = {"last_hidden_state": computed}
    if "embedding" in names:
        found["embedding"] = unit(service.embed(np.concatenate(computed), np.cumsum([0, *task.tokens])))
    if "pooler_output" in names:
        firsts = np.stack([rows[0] for rows in computed])
        found["pooler_output"] = await asyncio.to_thread(service.model.head, firsts, np.arange(len(firsts) + 1))
    return found


def _pad(values: Sequence[Array], length: int, filler: float) -> Array:
    padded = np.full((len(values), length, *values[0].shape[1:]), filler, np.float32)
    for row, own in zip(padded, values, strict=True):
        row[: len(own)] = own
    return padded
