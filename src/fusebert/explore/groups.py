"""Groups: a flat graph and what was found in it -> the blocks that its nodes are shown in: what is before an encoder,
the mask, the encoder with its layers and their blocks, and what comes after. Where nothing was found, and in a large
block, the names of the nodes say what belongs together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from fusebert.match import Finding, FoundEncoder
from fusebert.ops.graph import Graph, Node

_MOST = 80  # nodes that are shown in one block without being divided by their names
_DEEPEST = 24


@dataclass(frozen=True)
class Group:
    """A block: its `kind` is "part", "encoder", "layer", "attention", "feed-forward", "mask" or "scope"; `parent` is
    the number of the block around it, or -1."""

    label: str
    kind: str
    parent: int = -1


@dataclass
class Grouping:
    """Blocks, and the block that each node of the flat graph is in, -1 for none."""

    groups: list[Group]
    of: list[int]


def group(flat: Graph, finding: Finding) -> Grouping:
    """The blocks of a graph."""
    making = _Making(flat)
    several = len(finding.encoders) > 1
    for number, found in enumerate(finding.encoders, 1):
        making.encoder(found, f" {number}" if several else "")
    rest = [i for i, place in enumerate(making.of) if place < 0]
    making.put(rest, Group("Head", "part") if finding.encoders else None)
    making.divide()
    return Grouping(making.groups, making.of)


@dataclass
class _Making:
    flat: Graph
    groups: list[Group] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.of = [-1] * len(self.flat.nodes)
        self._maker = {tensor: i for i, node in enumerate(self.flat.nodes) for tensor in node.outputs if tensor}
        self._named: dict[tuple[str, str], int] = {}
        for i, node in enumerate(self.flat.nodes):
            self._named[node.function, node.name] = i

    def encoder(self, found: FoundEncoder, number: str) -> None:
        """The blocks of an encoder and of what leads to it."""
        self.put(self._before(found.input), Group(f"Embeddings{number}", "part"))
        if found.mask.added:
            self.put(self._before(found.mask.added), Group(f"Mask{number}", "mask"))
        place = self._add(Group(f"Encoder{number}", "encoder"))
        for count, layer in enumerate(found.layers, 1):
            inside = self._add(Group(f"Layer {count}", "layer", place))
            for block in layer.blocks:
                kind = "attention" if "attention" in block.form else "feed-forward"
                nodes = self._before(block.output) or self._before(self._made_by(block.nodes))
                self.put(nodes, Group(kind.capitalize(), kind, inside))

    def put(self, nodes: Iterable[int], made: Group | None) -> None:
        """Puts nodes into a new block; nothing becomes of a block without nodes."""
        nodes = list(nodes)
        if nodes and made is not None:
            place = self._add(made)
            for i in nodes:
                self.of[i] = place

    def divide(self) -> None:
        """Divides every large block by the names of its nodes."""
        for place in (-1, *range(len(self.groups))):
            inside = [i for i, own in enumerate(self.of) if own == place]
            if len(inside) > _MOST:
                self._divide(inside, place, 0)

    def _divide(self, inside: list[int], place: int, depth: int) -> None:
        """Divides nodes by the next part of their names. A part that all share says nothing."""
        paths = {i: _path(self.flat.nodes[i]) for i in inside}
        while depth < _DEEPEST and len({path[depth : depth + 1] for path in paths.values()}) == 1:
            if not next(iter(paths.values()))[depth:]:
                return
            depth += 1
        parts: dict[str, list[int]] = {}
        for i, path in paths.items():
            if len(path) > depth:
                parts.setdefault(path[depth], []).append(i)
        for label, nodes in parts.items():
            if len(nodes) > 1:
                own = self._add(Group(label, "scope", place))
                for i in nodes:
                    self.of[i] = own
                if len(nodes) > _MOST and depth < _DEEPEST:
                    self._divide(nodes, own, depth + 1)

    def _add(self, made: Group) -> int:
        self.groups.append(made)
        return len(self.groups) - 1

    def _made_by(self, nodes: tuple[Node, ...]) -> str:
        """A tensor of the node that a block ends with, where the block's own is not one of the file's."""
        places = [self._named[key] for node in nodes if (key := (node.function, node.name)) in self._named]
        return self.flat.nodes[max(places)].outputs[0] if places else ""

    def _before(self, tensor: str) -> list[int]:
        """The nodes that a tensor depends on and that are in no block yet."""
        while tensor and tensor not in self._maker and " " in tensor:
            tensor = tensor.rpartition(" ")[0]  # it was laid out otherwise, or multiplied
        waiting, found = [tensor], []
        while waiting:
            i = self._maker.get(waiting.pop())
            if i is not None and self.of[i] == -1:
                self.of[i] = -2  # seen; `put` says where it goes
                found.append(i)
                waiting += self.flat.nodes[i].inputs
        return sorted(found)


def _path(node: Node) -> tuple[str, ...]:
    """The scopes of a node's name, without its own last part."""
    return tuple(filter(None, re.split(r"[/.]", node.name)))[:-1]
