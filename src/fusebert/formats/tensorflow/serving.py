"""Serving: a SavedModel -> no more than its signatures need, with its large weights in variables: those that are read
stay, large constants become some, and functions take them as arguments. The objects around them, which Python rebuilds
from a checkpoint of their own, are gone; restoring is done by the graph itself, as TensorFlow 1 does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.formats.tensorflow.edit import NewNode, add_node, prune_functions
from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.messages import message
from fusebert.formats.tensorflow.read import chosen_meta
from fusebert.formats.tensorflow.scope import Edge
from fusebert.formats.tensorflow.types import DTYPES, NUMBERS, Type, dtype_name, shape_of
from fusebert.ops.graph import Weight

_REFERENCES = ("VariableV2", "Variable")
_VARIABLES = ("VarHandleOp", *_REFERENCES)
_WRITERS = ("Assign", "Scatter", "IsVariableInitialized", "RefSwitch")  # what begins so takes a reference
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_COLLECTIONS = ("saved_model_main_op", "legacy_init_op", "saved_model_assets", "asset_filepaths", "table_initializer")
_START = "__saved_model_init_op"
_LARGE = 4096  # bytes of a constant that becomes a variable: TensorFlow copies constants again and again
_VERSION = 2  # of how checkpoints are written


def only_serving(file: TensorFlowFile, weights: Mapping[str, Weight]) -> TensorFlowFile:
    """The file with its served graph only; `weights` are that graph's, those of variables by their handles."""
    made = file.copy()
    metas = made.message.meta_graphs
    chosen = chosen_meta(metas, None, made.file)
    for i in reversed([i for i, one in enumerate(metas) if one is not chosen]):
        del metas[i]
    meta = metas[0]
    meta.ClearField("object_graph_def")
    meta.ClearField("saver_def")
    for i in reversed(range(len(meta.collection_def))):
        if meta.collection_def[i].key not in _COLLECTIONS:
            del meta.collection_def[i]
    _keep_start(meta)
    _keep_reached(meta)
    prune_functions(meta)
    _Arguments(meta).drop_unread()
    _keep_reached(meta)
    return with_variables(made, weights)


def with_variables(file: TensorFlowFile, weights: Mapping[str, Weight]) -> TensorFlowFile:
    """The file with the large weights of its only graph in variables, which are written with it."""
    meta = file.message.meta_graphs[0]
    stored = _Stored(file, meta)
    stored.keep_variables(weights)
    stored.move_constants(_Arguments(meta))
    stored.add_saver()
    return replace(file, variables=stored.weights)


def _keep_start(meta: Any) -> None:
    """What is run when the model is loaded is a signature in TensorFlow 2, and Python heeds it beside objects only;
    loaders of graphs look for it in a collection."""
    for i, entry in enumerate(meta.signature_def):
        if entry.key == _START:
            names = [_node(info.value.name) for info in entry.value.outputs]
            meta.collection_def.add(key=_COLLECTIONS[0]).value.node_list.value.extend(names)
            del meta.signature_def[i]
            return


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
    _remove_nodes(meta.graph_def.node, nodes.keys() - reached)


class _Arguments:
    """What the functions of a graph take, as it changes. Functions that are called in other ways than by a call stay as
    they are."""

    def __init__(self, meta: Any) -> None:
        self._graph = meta.graph_def
        self._functions = {one.signature.name: one for one in meta.graph_def.library.function}
        bodies = [meta.graph_def.node, *(one.node_def for one in self._functions.values())]
        self._calls = [(node, called) for body in bodies for node in body if (called := self.called(node))]
        self._fixed = set(_other_uses(bodies))
        self._unread: dict[str, list[int]] = {}
        self._moved: dict[str, dict[str, Weight]] = {}

    def called(self, node: Any) -> str:
        """The function that a node calls; "" if it calls none."""
        named = (entry.value.func.name for entry in node.attr if entry.key == "f")
        name = next(named, "") if node.op in _CALLS else node.op
        return name if name in self._functions else ""

    def drop_unread(self) -> None:
        """Takes the arguments from functions that nothing in them reads."""
        for name in self._functions:
            self._find_unread(name)
        for node, called in self._calls:
            types = [entry.value.list.type for entry in node.attr if entry.key == "Tin"]
            for place in reversed(self._unread[called]):
                for one in (node.input, *types):
                    del one[place]
        for name, places in self._unread.items():
            for place in reversed(places):
                del self._functions[name].signature.input_arg[place]
            if places:
                _forget_arguments(self._functions[name])

    def _find_unread(self, name: str) -> list[int]:
        if name in self._unread:
            return self._unread[name]
        self._unread[name] = []  # of a function that calls itself
        function = self._functions[name]
        read = {_node(entry.value) for entry in function.ret}
        for node in function.node_def:
            called = self.called(node)
            gone = self._find_unread(called) if called else []
            read |= {_node(text) for place, text in enumerate(node.input) if place not in gone}
        arguments = enumerate(function.signature.input_arg)
        if name not in self._fixed:
            self._unread[name] = [place for place, argument in arguments if argument.name not in read]
        return self._unread[name]

    def move_constants(self, name: str, large: Any) -> dict[str, Weight]:
        """Makes arguments of a function of the large constants in it and in those that it calls; what they are, by
        keys, in the order of the arguments."""
        if name in self._moved or name in self._fixed:
            return self._moved.get(name, {})
        function = self._functions[name]
        taken: dict[str, Weight] = {}
        self._moved[name] = taken
        names: dict[str, str] = {}  # of constants, and of the arguments in their place
        arguments: dict[str, str] = {}
        for node in function.node_def:
            if (weight := large(node)) is not None:
                key = f"{name}/{node.name}"
                names[node.name] = arguments[key] = f"stored_{len(arguments)}"
                taken[key] = weight
            elif called := self.called(node):
                inner = self.move_constants(called, large)
                for key, weight in inner.items():
                    arguments.setdefault(key, f"stored_{len(arguments)}")
                    taken[key] = weight
                add_inputs(node, [arguments[key] for key in inner], inner.values())
        if taken:
            self._rename(function, names)
            for key, argument in arguments.items():
                function.signature.input_arg.add(name=argument, type=NUMBERS[taken[key].dtype])
            _forget_arguments(function)
        return taken

    def _rename(self, function: Any, names: Mapping[str, str]) -> None:
        _remove_nodes(function.node_def, names.keys())
        for node in function.node_def:
            inputs = [names.get(_node(text), text) for text in node.input if text.removeprefix("^") not in names]
            del node.input[:]
            node.input.extend(inputs)
        for entry in function.ret:
            entry.value = names.get(_node(entry.value), entry.value)


class _Stored:
    """The variables of a main graph: `weights` by name in the checkpoint, and how each is read."""

    def __init__(self, file: TensorFlowFile, meta: Any) -> None:
        self._file, self._meta, self._nodes = file, meta, meta.graph_def.node
        self.weights: dict[str, Weight] = {}
        self._handles: dict[str, str] = {}

    def keep_variables(self, weights: Mapping[str, Weight]) -> None:
        """Stores the variables that are there; references become resources."""
        for node in [node for node in self._nodes if node.op in _VARIABLES]:
            weight = weights.get(f"{node.name}:0")
            if weight is None:
                if any(self._writers(node)):  # the graph gives it a value when it is loaded
                    continue
                raise UnsupportedError(f"{self._file.file}: variable {node.name} has no value in the checkpoint")
            if node.op in _REFERENCES:
                self._check_readers(node)
                self._put(node, weight)
            else:
                self._read(f"{node.name}/stored", node.name, weight)

    def _writers(self, variable: Any) -> Iterator[Any]:
        for node in self._nodes:
            if node.op.startswith(_WRITERS) and variable.name in map(_node, node.input):
                yield node

    def _check_readers(self, variable: Any) -> None:
        for node in self._writers(variable):
            raise UnsupportedError(
                f"{self._file.file}: {node.name} ({node.op}) writes to variable {variable.name}, which a compact model "
                "does not allow; optimise without --compact"
            )

    def move_constants(self, arguments: _Arguments) -> None:
        """Stores large constants of the graph and of the functions that it calls."""
        reads: dict[str, str] = {}
        for node in list(self._nodes):
            if (weight := self._large(node)) is not None:
                self._put(node, weight)
            elif called := arguments.called(node):
                inner = arguments.move_constants(called, self._large)
                for key, weight in inner.items():
                    if key not in reads:
                        reads[key] = f"stored/{key}"
                        self._put(self._nodes.add(name=reads[key]), weight)
                add_inputs(node, [reads[key] for key in inner], inner.values())

    def _large(self, node: Any) -> Weight | None:
        """The numbers of a constant, if they are many."""
        tensor = next((entry.value.tensor for entry in node.attr if entry.key == "value"), None)
        if node.op != "Const" or tensor is None or not tensor.HasField("mapped") or tensor.dtype not in DTYPES:
            return None
        data, dtype = self._file.payloads[tensor.mapped], DTYPES[tensor.dtype]
        shape = shape_of(tensor.tensor_shape, node.name)
        if len(data) < _LARGE:
            return None
        return Weight(shape, dtype_name(tensor.dtype), lambda: np.frombuffer(data, dtype).reshape(shape))

    def _put(self, node: Any, weight: Weight) -> None:
        """Turns a node into the reading of a new variable."""
        handle = self._nodes.add(name=f"{node.name}/handle", op="VarHandleOp")
        handle.attr.add(key="dtype").value.type = NUMBERS[weight.dtype]
        handle.attr.add(key="shared_name").value.s = node.name.encode()
        shape = handle.attr.add(key="shape").value.shape
        for size in weight.shape:
            shape.dim.add(size=size)
        shape.SetInParent()
        self._read(node.name, handle.name, weight, node)

    def _read(self, name: str, handle: str, weight: Weight, node: Any = None) -> None:
        node = self._nodes.add(name=name) if node is None else node
        del node.attr[:], node.input[:]
        node.op = "ReadVariableOp"
        node.input.append(handle)
        node.attr.add(key="dtype").value.type = NUMBERS[weight.dtype]
        self.weights[name], self._handles[name] = weight, handle

    def add_saver(self) -> None:
        """Adds the operations that save and restore, and lists the variables for Python."""
        if not self.weights:
            return
        types = [Type(weight.dtype) for weight in self.weights.values()]
        for node in self._saver(list(self.weights), types):
            add_node(self._nodes, node, self._file.payloads)
        saver = self._meta.saver_def
        saver.filename_tensor_name, saver.save_tensor_name = "stored/file:0", "stored/saved:0"
        saver.restore_op_name, saver.max_to_keep, saver.version = "stored/restore", 1, _VERSION
        listed = self._meta.collection_def.add(key="variables").value.bytes_list.value
        for i, (name, handle) in enumerate(self._handles.items()):
            one = message("VariableDef")
            one.variable_name, one.snapshot_name = f"{handle}:0", f"{name}:0"
            one.initializer_name, one.is_resource = f"stored/assign_{i}", True
            listed.append(one.SerializeToString())

    def _saver(self, names: list[str], types: list[Type]) -> Iterator[NewNode]:
        string = Type("string")
        keys = {"names": [name.encode() for name in names], "slices": [b""] * len(names)}
        yield NewNode("Placeholder", "stored/file", (), {"dtype": string})
        for name, values in keys.items():
            yield NewNode("Const", f"stored/{name}", (), {"dtype": string, "value": np.array(values, object)})
        given = ("stored/file", "stored/names", "stored/slices")
        yield NewNode("RestoreV2", "stored/restored", given, {"dtypes": types})
        for i, (name, kind) in enumerate(zip(names, types, strict=True)):
            value = f"stored/restored:{i}" if i else "stored/restored"
            yield NewNode("AssignVariableOp", f"stored/assign_{i}", (self._handles[name], value), {"dtype": kind})
        yield NewNode("NoOp", "stored/restore", tuple(f"^stored/assign_{i}" for i in range(len(names))))
        yield NewNode("SaveV2", "stored/written", (*given, *names), {"dtypes": types})
        yield NewNode("Identity", "stored/saved", ("stored/file", "^stored/written"), {"T": string})


def add_inputs(node: Any, tensors: list[str], weights: Any) -> None:
    """Appends inputs to a call, before the nodes that it only waits for."""
    if not tensors:
        return
    inputs = list(node.input)
    place = sum(not text.startswith("^") for text in inputs)
    del node.input[:]
    node.input.extend([*inputs[:place], *tensors, *inputs[place:]])
    for entry in node.attr:
        if entry.key == "Tin":
            entry.value.list.type.extend(NUMBERS[weight.dtype] for weight in weights)


def _other_uses(bodies: list[Any]) -> Iterator[str]:
    """The functions that attributes name in other ways than a call does."""
    for body in bodies:
        for node in body:
            for entry in node.attr:
                if entry.value.HasField("func") and not (entry.key == "f" and node.op in _CALLS):
                    yield entry.value.func.name
                yield from (func.name for func in entry.value.list.func)


def _forget_arguments(function: Any) -> None:
    """Removes hints, which count arguments."""
    del function.arg_attr[:], function.resource_arg_unique_id[:]
    for i in reversed(range(len(function.attr))):
        if function.attr[i].key == "_input_shapes":
            del function.attr[i]


def _remove_nodes(nodes: Any, names: Any) -> None:
    for i in reversed(range(len(nodes))):
        if nodes[i].name in names:
            del nodes[i]


def _node(text: str) -> str:
    return Edge.of(text.removeprefix("^")).node
