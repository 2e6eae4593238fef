"""A SavedModel's Graph and its tensor bundle -> the Graph with the weights of its variables. Nothing is guessed.

What a handle holds is what the graph's own restore operation assigns to it; names count only where there is none. What
arguments of functions are bound to is in the object graph, whose objects are found in the checkpoint as TensorFlow
finds them: by the names that lead to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.bundle import Bundle
from fusebert.formats.tensorflow.types import output_number
from fusebert.ops.graph import Graph, Node, Weight

_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_ASSIGNMENTS = ("Assign", "AssignVariableOp")
_MOST_IDENTITIES = 16  # one after the other

Stored = tuple[str, str]  # a checkpoint key, and the slice of that tensor ("" for all of it)


def bind(graph: Graph, meta: Any, bundle: Bundle | None, path: Path) -> Graph:
    """The graph with a weight for every variable that the checkpoint holds: under its handle in the main graph, and in
    each function that the object graph lists under the argument that it is bound to."""
    weights = dict(graph.weights)
    if bundle is not None:
        weights |= _handles(graph, meta.saver_def, bundle, path)
    graph = replace(graph, weights=weights)
    return replace(graph, functions={**graph.functions, **_bound(graph, meta.object_graph_def, bundle, path)})


def _handles(graph: Graph, saver: Any, bundle: Bundle, path: Path) -> dict[str, Weight]:
    variables = {node.outputs[0]: node for node in graph.nodes if node.op in _VARIABLES}
    found: Mapping[str, Stored] = _restored(graph, saver, path)
    if not found:
        names = bundle.names()
        called = {tensor: _shared_name(node) for tensor, node in variables.items()}
        found = {tensor: (names[name], "") for tensor, name in called.items() if name in names}
    by_name = {_identity(variables[tensor]): stored for tensor, stored in found.items() if tensor in variables}
    held = {}
    for tensor, node in variables.items():
        if (stored := found.get(tensor) or by_name.get(_identity(node))) is not None:
            if stored[0] not in bundle:
                raise FusebertError(f"{path}: variable {node.name} is {stored[0]} in the checkpoint, which has no such")
            held[tensor] = bundle.part(*stored)
            _check(node, held[tensor], path)
    return held


def _shared_name(node: Node) -> str:
    return str(node.attributes.get("shared_name") or node.name)


def _identity(node: Node) -> tuple[str, str]:
    """Handles with the same are the same variable."""
    return str(node.attributes.get("container") or ""), _shared_name(node)


def _check(node: Node, weight: Weight, path: Path) -> None:
    """Refuses numbers that TensorFlow would refuse to assign to the variable."""
    shape, dtype = node.attributes.get("shape"), node.attributes.get("dtype", weight.dtype)
    same = not isinstance(shape, tuple) or (
        len(shape) == len(weight.shape) and all(a in (None, b) for a, b in zip(shape, weight.shape, strict=True))
    )
    if not same or dtype != weight.dtype:
        raise FusebertError(
            f"{path}: variable {node.name} is {dtype} {shape}, but the checkpoint has {weight.dtype} {weight.shape}"
        )


def _restored(graph: Graph, saver: Any, path: Path) -> dict[str, Stored]:
    """What the restore operation assigns to each handle, in the main graph or in the function that it calls."""
    file = saver.filename_tensor_name
    call = next((node for node in graph.nodes if node.name and node.name == saver.restore_op_name), None)
    body = graph.functions.get(str(call.attributes.get("f", ""))) if call else None
    if call is None or body is None:
        return _assigned(graph, file, path)
    given = dict(zip(body.inputs, call.inputs, strict=False))
    inner = next((argument for argument, tensor in given.items() if tensor == file), "")
    return {given[a]: stored for a, stored in _assigned(body, inner, path).items() if a in given}


def _assigned(graph: Graph, file: str, path: Path) -> dict[str, Stored]:
    """Handle -> what RestoreV2 reads from the given file and an assignment puts there."""
    copied = {node.outputs[0]: node.inputs[0] for node in graph.nodes if node.op == "Identity" and node.inputs}

    def source(tensor: str) -> str:
        for _ in range(_MOST_IDENTITIES):
            tensor = copied.get(tensor, tensor)
        return tensor

    read: dict[str, Stored] = {}
    for node in graph.nodes:
        if node.op == "RestoreV2" and len(node.inputs) == 3 and source(node.inputs[0]) == file:
            keys, slices = (_strings(graph.weights.get(tensor)) for tensor in node.inputs[1:])
            stored = list(zip(keys, slices, strict=False))
            read |= {t: stored[i] for t in node.outputs if (i := output_number(t)) < len(stored)}
    found: dict[str, Stored] = {}
    for node in graph.nodes:
        value = read.get(source(node.inputs[1])) if node.op in _ASSIGNMENTS and len(node.inputs) > 1 else None
        if value is not None and found.setdefault(node.inputs[0], value) != value:
            raise FusebertError(f"{path}: node {node.name} ({node.op}) restores {node.inputs[0]} a second time")
    return found


def _strings(weight: Weight | None) -> list[str]:
    if weight is None or weight.dtype != "string" or len(weight.shape) != 1 or weight.shape[0] > 1_000_000:
        return []
    return [bytes(s).decode("utf-8", "surrogateescape") for s in weight.read()]


def _bound(graph: Graph, objects: Any, bundle: Bundle | None, path: Path) -> dict[str, Graph]:
    """The functions that the object graph lists, with weights for the arguments that variables are bound to."""
    bindings = {entry.key: entry.value.bound_inputs for entry in objects.concrete_functions}
    bindings = {name: ids for name, ids in bindings.items() if len(ids) and name in graph.functions}
    if not bindings:
        return {}
    held = _held(graph, objects.nodes, bundle, path)
    functions = {}
    for name, ids in bindings.items():
        body = graph.functions[name]
        if len(ids) > len(body.inputs):
            raise FusebertError(f"{path}: function {name} has {len(body.inputs)} arguments, {len(ids)} of them bound")
        arguments = zip(body.inputs[-len(ids) :], ids, strict=True)
        weights = {argument: held[i] for argument, i in arguments if i in held}
        functions[name] = replace(body, weights={**body.weights, **weights})
    return functions


def _held(graph: Graph, objects: Sequence[Any], bundle: Bundle | None, path: Path) -> dict[int, Weight]:
    """What the variables and constants among the SavedModel's objects hold."""
    stored = bundle.objects.nodes if bundle is not None else ()
    held = {}
    for i, other in _same_objects(objects, stored, path).items():
        if objects[i].HasField("variable") and bundle is not None:
            keys = [a.checkpoint_key for a in stored[other].attributes if a.name == "VARIABLE_VALUE"]
            if keys and keys[0] in bundle:
                held[i] = bundle[keys[0]]
    for i, node in enumerate(objects):
        if node.HasField("constant") and (weight := graph.weights.get(f"{node.constant.operation}:0")):
            held[i] = weight
    return held


def _same_objects(saved: Sequence[Any], stored: Sequence[Any], path: Path) -> dict[int, int]:
    """Which object of the checkpoint an object of the SavedModel is: the one that the same names lead to."""
    same = {0: 0} if len(saved) and len(stored) else {}
    waiting = list(same)
    for i in waiting:  # grows on the way
        children = {child.local_name: child.node_id for child in stored[same[i]].children}
        for child in saved[i].children:
            at, other = child.node_id, children.get(child.local_name)
            if other is None or at in same:
                continue
            if not (0 <= at < len(saved) and 0 <= other < len(stored)):
                raise FusebertError(f"{path}: object {child.local_name} is none of the objects that are there")
            same[at] = other
            waiting.append(at)
    return same
