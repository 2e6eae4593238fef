"""Lifting: the state of a lift and what every rule needs of it: what is known of a tensor, and how to emit operations,
to lay numbers out, and to leave a node as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import Group, View
from fusebert.match.findings import TRANSPOSE, Lifted, Refused
from fusebert.match.lift.constants import Known
from fusebert.match.lift.shapes import SHAPE_ONLY
from fusebert.match.probe import Probe
from fusebert.ops.graph import Graph, Node, Weight
from fusebert.ops.vocabulary import Numpy


@dataclass
class Lifting(Known):
    """The nodes that make the values, in larger operations, as far as the lift has come."""

    nodes: list[Node] = field(default_factory=list)
    maker: dict[str, Node] = field(default_factory=dict)  # of a value
    laid: dict[str, list[tuple[tuple[Group, ...], str]]] = field(default_factory=dict)  # other layouts of a value
    multiplied: dict[tuple[str, float], str] = field(default_factory=dict)
    fixed_sizes: dict[int, int] = field(default_factory=dict)
    longest: int | None = None
    contradictions: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    @cached_property
    def makers(self) -> dict[str, Node]:
        """The node of the original graph that makes a tensor."""
        return {name: node for node in self.source.nodes for name in node.outputs}

    def emit(
        self,
        word: str,
        inputs: tuple[str, ...],
        output: str,
        dims: tuple[Group, ...],
        node: Node | None = None,
        **attributes: Any,
    ) -> str:
        made = Node(word, inputs, (output,), attributes, node.name if node else "", node.function if node else "")
        self.nodes.append(made)
        self.dims[output], self.maker[output] = dims, made
        if any(name in self.content for name in inputs):
            self.content.add(output)
        return output

    def scaled(self, view: View) -> str:
        """The value a view shows, with its factor."""
        if view.factor == 1:
            return view.value
        key = (view.value, view.factor)
        if key not in self.multiplied:
            name = f"{view.value} x {view.factor:g}"
            made = self.maker.get(view.value)
            if made is not None and made.op == "scores":
                scale = made.attributes["scale"] * view.factor
                self.emit("scores", made.inputs, name, self.dims[view.value], made, scale=scale)
            elif made is not None and made.op == "mask":
                both = (self.scaled(View(tensor, self.dims[tensor], view.factor)) for tensor in made.inputs)
                self.emit("mask", tuple(both), name, self.dims[view.value], made)
            else:
                self.weights[f"factor {view.factor!r}"] = Weight.of(np.array(view.factor, np.float32))
                self.emit("mul", (view.value, f"factor {view.factor!r}"), name, self.dims[view.value])
            self.multiplied[key] = name
        return self.multiplied[key]

    def lay(self, view: View, target: tuple[Group, ...]) -> str:
        """The name of the view's numbers laid out so; rearranged if they are not."""
        source, target = ax.settled(self.dims[view.value]), ax.settled(target)
        if view.value in self.weights:
            return self.lay_weight(view.value, source, target)
        value = self.scaled(view)
        if source == target:
            return value
        laid = self.laid.setdefault(value, [])
        name = next((name for other, name in laid if ax.settled(other) == target), "")  # axes may have become the same
        if not name:
            made = self.maker.get(value)
            name = f"{value} @{len(laid)}"
            turned = len(source) > 1 and target == (*source[:-2], source[-1], source[-2])
            if made is not None and made.op == "scores" and turned:
                self.emit("scores", (made.inputs[1], made.inputs[0]), name, target, made, **made.attributes)
            elif made is not None and made.op == "mask" and turned:
                self._turn_mask(made, name, target)
            elif _splits_heads(source, target):
                self.emit("split_heads", (value,), name, target, made, heads=ax.size_of(target[-3])[0])
            elif _splits_heads(target, source):
                self.emit("merge_heads", (value,), name, target, made)
            else:
                self.emit("arrange", (value,), name, target, made, **_arrangement(source, target))
            laid.append((target, name))
        return name

    def _turn_mask(self, made: Node, name: str, target: tuple[Group, ...]) -> None:
        """Masked scores with queries and keys the other way round."""
        scores, added = made.inputs
        dims = self.dims[added]
        dims = ((),) * max(0, 2 - len(dims)) + dims
        turned = self.lay(View(added, self.dims[added]), (*dims[:-2], dims[-1], dims[-2]))
        self.emit("mask", (self.lay(View(scores, self.dims[scores]), target), turned), name, target, made)

    def lay_weight(self, name: str, source: tuple[Group, ...], target: tuple[Group, ...]) -> str:
        if source == target:
            return name
        weight, how = self.weights[name], _arrangement(source, target)
        shape = tuple(size[0] for size in ax.shape_of(target))
        laid = f"{name} @{len(self.weights)}"
        self.weights[laid] = Weight(shape, weight.dtype, lambda: Numpy().arrange(weight.read(), **how))
        turned = [atom for group in source for atom in group] != [atom for group in target for atom in group]
        self.origins[laid] = self.origin(name).then(TRANSPOSE if turned else None, shape)
        return laid

    def keep(self, node: Node) -> None:
        """A node as it is, on tensors laid out as it expects them."""
        inputs = []
        for name in node.inputs:
            view = self.view(name) if name and name not in self.weights else None
            inputs.append(name if view is None else self.lay(view, view.dims))
        self.nodes.append(Node(node.op, tuple(inputs), node.outputs, node.attributes, node.name, node.function))
        self.kept.update(node.outputs)
        shapes = self.shapes(node)
        for place, name in enumerate(node.outputs):
            self.maker[name] = self.nodes[-1]
            if name in self.arrays:
                self.value(name, self._sizes(self.arrays[name]))
            elif shapes is not None and place < len(shapes):
                self.value(name, shapes[place])

    def see(self, node: Node, view: View, dims: tuple[Group, ...]) -> None:
        """A node that only lays out otherwise: its output is a view."""
        self.views[node.outputs[0]] = View(view.value, dims, view.factor)

    def seen(self, name: str) -> View:
        """How a tensor is laid out; refuses where that is not known."""
        view = self.view(name)
        if view is None:
            raise Refused(f"the layout of {name} is not known")
        return view

    def numbers(self, name: str) -> list[int]:
        """The integers of a small constant; refuses where it is something else."""
        array = self.constant(name)
        if array is None or array.dtype.kind not in "iu":
            raise Refused(f"{name} is not a small constant of integers")
        return [int(n) for n in array.reshape(-1)]

    def dimensions(self, name: str, rank: int) -> list[int]:
        """The dimensions that a constant names, counted from the front."""
        given = self.numbers(name)
        if any(not -rank <= n < rank for n in given):
            raise Refused(f"{name} names dimensions {given} of a tensor that has {rank}")
        return [n % rank for n in given]

    def axis(self, node: Node, rank: int, default: int = 0) -> int:
        """The dimension that a node's attribute names, counted from the front."""
        axis = node.attributes.get("axis", default)
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise Refused(f"axis {axis} is not one of {rank} dimensions")
        return axis % rank

    def result(self) -> Lifted:
        """What the outputs need, as a Graph; outputs are laid out as they were."""
        outputs = []
        for name in self.source.outputs:
            view = self.views.get(name)
            outputs.append(name if view is None or name in self.weights else self.lay(view, view.dims))
        probes: tuple[Probe, Probe] = dict(self.probes[0]), dict(self.probes[1])
        for node in self.nodes:
            if node.op in SHAPE_ONLY and (pair := self.arrays.get(node.outputs[0])) is not None:
                probes[0][node.outputs[0]], probes[1][node.outputs[0]] = pair
        graph = Graph(
            tuple(self.nodes),
            self.source.inputs,
            tuple(outputs),
            self.weights,
            self.source.types,
            {},
            self.source.facts,
        )
        return Lifted(
            graph, self.views, self.origins, self.dims, probes, self.content, self.fixed_sizes, self.longest,
            self.contradictions, self.kept,
        )  # fmt: skip


def _splits_heads(source: tuple[Group, ...], target: tuple[Group, ...]) -> bool:
    """(..., t, (a, d)) to (..., a, t, d); heads may be several axes, and one head is a dimension of size 1."""
    if len(source) < 2 or len(target) != len(source) + 1 or not source[-1]:
        return False
    *lead, tokens, last = source
    count = len(heads := target[-3])
    if not count and len(source) != 3:
        return False
    return target == (*lead, last[:count], tokens, last[count:]) and all(ax.fixed(axis.size) for axis in heads)


def _arrangement(source: tuple[Group, ...], target: tuple[Group, ...]) -> dict[str, Any]:
    """How to get from one layout to another, as the attributes of `arrange`."""
    have = ax.flat(source)
    splits = tuple(
        tuple((axis.size[0] if ax.fixed(axis.size) else -1) for axis in group) if len(group) > 1 else (0,) * len(group)
        for group in source
    )
    if set(have) != set(ax.flat(target)):
        raise Refused("two layouts of one value do not have the same axes")
    order = tuple(have.index(axis) for axis in ax.flat(target))
    return {"splits": splits, "order": order, "merges": tuple(len(group) for group in target)}
