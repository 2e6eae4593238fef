"""Freeze: a SavedModel -> the same with its variables as constants of the graph, and no more than its signatures need.
Functions that took a variable's handle take its numbers instead; the objects around them, which Python rebuilds from
variables, are gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fusebert.errors import UnsupportedError
from fusebert.formats.tensorflow.edit import prune_functions, set_tensor
from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.read import chosen_meta
from fusebert.formats.tensorflow.scope import Edge
from fusebert.formats.tensorflow.types import NUMBERS
from fusebert.ops.graph import Weight

_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_WRITERS = ("Assign", "Scatter", "IsVariableInitialized")  # what begins so takes the variable, not its numbers
_COLLECTIONS = ("saved_model_main_op", "legacy_init_op", "saved_model_assets", "asset_filepaths", "table_initializer")


def freeze(file: TensorFlowFile, weights: Mapping[str, Weight]) -> TensorFlowFile:
    """The file with its served graph frozen; `weights` are that graph's, those of variables by their handles."""
    made = file.copy()
    meta = chosen_meta(made.message.meta_graphs, None, made.file)
    for other in reversed([i for i, one in enumerate(made.message.meta_graphs) if one is not meta]):
        del made.message.meta_graphs[other]
    meta = made.message.meta_graphs[0]
    meta.ClearField("object_graph_def")
    meta.ClearField("saver_def")
    for i in reversed(range(len(meta.collection_def))):
        if meta.collection_def[i].key not in _COLLECTIONS:
            del meta.collection_def[i]
    _keep_reached(meta)
    prune_functions(meta)
    _Freezer(made, meta, weights).run()
    return replace(made, frozen=True)


def _keep_reached(meta: Any) -> None:
    """Removes the nodes of the main graph that no signature and no collection leads to."""
    nodes = {node.name: node for node in meta.graph_def.node}
    named = b"".join(collection.SerializeToString() for collection in meta.collection_def)
    waiting = [name for name in nodes if named and name.encode() in named]
    for entry in meta.signature_def:
        waiting += [_node(info.value.name) for side in (entry.value.inputs, entry.value.outputs) for info in side]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in nodes and name not in reached:
            reached.add(name)
            waiting += map(_node, nodes[name].input)
    for i in reversed(range(len(meta.graph_def.node))):
        if meta.graph_def.node[i].name not in reached:
            del meta.graph_def.node[i]


def _node(text: str) -> str:
    return Edge.of(text.removeprefix("^")).node


@dataclass(frozen=True)
class _Variable:
    """The type of a variable by its number; `handle`: whoever reads it has a handle, not its numbers."""

    dtype: int
    handle: bool


class _Freezer:
    """The graph as it changes. For every function: the variables that it took, by the places of its arguments, and
    which of these arguments nobody in it reads."""

    def __init__(self, file: TensorFlowFile, meta: Any, weights: Mapping[str, Weight]) -> None:
        self._file, self._graph, self._weights = file, meta.graph_def, weights
        self._functions = {one.signature.name: one for one in meta.graph_def.library.function}
        self._taken: dict[str, dict[int, _Variable]] = {}
        self._unread: dict[str, list[int]] = {}

    def run(self) -> None:
        """Freezes the main graph, and every function that it calls."""
        nodes = self._graph.node
        variables = [node for node in nodes if node.op in _VARIABLES]
        held = {}
        for node in variables:
            dtype = next(entry.value.type for entry in node.attr if entry.key == "dtype")
            held[node.name] = _Variable(dtype % 100, node.op == "VarHandleOp")
        self._body(nodes, (), held, "the main graph")
        read = {_node(text) for node in nodes for text in node.input}
        for node in variables:
            if node.name in read:
                self._constant(node)
        for i in reversed(range(len(nodes))):
            if nodes[i].op in _VARIABLES:
                del nodes[i]
            else:
                _remove(nodes[i], "_class")  # a place beside a variable that may be gone

    def _constant(self, node: Any) -> None:
        weight = self._weights.get(f"{node.name}:0")
        if weight is None:
            raise UnsupportedError(f"{self._file.file}: variable {node.name} has no value in the checkpoint")
        node.op = "Const"
        del node.attr[:], node.input[:]
        array = weight.read()
        node.attr.add(key="dtype").value.type = NUMBERS[array.dtype.name]
        set_tensor(node.attr.add(key="value").value.tensor, array, self._file.payloads)

    def _body(self, nodes: Any, returned: Iterable[Any], held: dict[str, _Variable], where: str) -> None:
        """Lets the nodes of a graph, and what it returns, read numbers instead of the variables that are `held`."""
        while new := {node.name: one for node in nodes if node.name not in held and (one := _copied(node, held))}:
            held |= new
        reads = set()
        for node in list(nodes):
            taken = {i: held[name] for i, text in enumerate(node.input) if (name := _node(text)) in held}
            if taken and self._reader(nodes, node, taken, where):
                reads.add(node.name)
        for node in nodes:
            for i, text in enumerate(node.input):
                node.input[i] = _renamed(text, reads)
        for entry in returned:
            if _node(entry.value) in held:
                raise self._stuck(entry.key, "returned", where)
            entry.value = _renamed(entry.value, reads)

    def _reader(self, nodes: Any, node: Any, taken: dict[int, _Variable], where: str) -> bool:
        """Changes one node; tells whether it was a ReadVariableOp, whose output has another name than Identity's."""
        variable = next(iter(taken.values()))
        handles = {place: one for place, one in taken.items() if one.handle}
        read: bool = node.op == "ReadVariableOp"
        if read or (handles and node.op == "Identity"):
            node.op = "Identity"
            for attribute in ("dtype", "T", "_output_shapes"):
                _remove(node, attribute)
            node.attr.add(key="T").value.type = variable.dtype
        elif node.op == "ResourceGather":
            _gather(nodes, node, variable.dtype, "" if where == "the main graph" else ":output:0")
        elif handles and (called := self._called(node)):
            self._call(node, called, handles)
        elif handles or node.op.startswith(_WRITERS):
            raise self._stuck(node.name, node.op, where)
        return read

    def _stuck(self, name: str, what: str, where: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self._file.file}: {name} ({what}) in {where} needs a variable, but a compact model has constants only; "
            "optimise without --compact"
        )

    def _called(self, node: Any) -> str:
        named = (entry.value.func.name for entry in node.attr if entry.key == "f")
        name = next(named, "") if node.op in _CALLS else node.op
        return name if name in self._functions else ""

    def _call(self, node: Any, called: str, taken: dict[int, _Variable]) -> None:
        if self._taken.setdefault(called, taken) != taken:
            raise self._stuck(node.name, f"a second call of {called}", "the graph")
        if called not in self._unread:
            self._function(called, taken)
        types = [entry.value.list.type for entry in node.attr if entry.key == "Tin"]
        for place, variable in taken.items():
            for one in types:
                one[place] = variable.dtype
        for place in reversed(self._unread[called]):
            for one in (node.input, *types):
                del one[place]

    def _function(self, called: str, taken: dict[int, _Variable]) -> None:
        function = self._functions[called]
        arguments = function.signature.input_arg
        held = {arguments[place].name: variable for place, variable in taken.items()}
        self._body(function.node_def, function.ret, held, f"function {called}")
        read = {_node(text) for node in function.node_def for text in node.input}
        self._unread[called] = [place for place in sorted(taken) if arguments[place].name not in read]
        for place, variable in taken.items():
            arguments[place].type = variable.dtype
        for place in reversed(self._unread[called]):
            del arguments[place]
        del function.arg_attr[:], function.resource_arg_unique_id[:]  # hints, which count arguments
        _remove(function, "_input_shapes")


def _copied(node: Any, held: Mapping[str, _Variable]) -> _Variable | None:
    """The variable whose handle a node gives on."""
    variable = held.get(_node(node.input[0])) if node.op == "Identity" and node.input else None
    return variable if variable is not None and variable.handle else None


def _renamed(text: str, reads: set[str]) -> str:
    return text.replace(":value:", ":output:") if _node(text) in reads else text


def _gather(nodes: Any, node: Any, dtype: int, port: str) -> None:
    """Turns ResourceGather into GatherV2."""
    node.op = "GatherV2"
    axis = nodes.add(name=f"{node.name}/axis", op="Const")
    axis.attr.add(key="dtype").value.type = NUMBERS["int32"]
    zero = axis.attr.add(key="value").value.tensor
    zero.dtype = NUMBERS["int32"]
    zero.int_val.append(0)
    node.input.insert(2, f"{axis.name}{port}")
    for attribute in ("dtype", "validate_indices"):
        _remove(node, attribute)
    node.attr.add(key="Tparams").value.type = dtype
    node.attr.add(key="Taxis").value.type = NUMBERS["int32"]


def _remove(message: Any, attribute: str) -> None:
    for i in reversed(range(len(message.attr))):
        if message.attr[i].key == attribute:
            del message.attr[i]
