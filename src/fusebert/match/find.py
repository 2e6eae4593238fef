"""Find: Graph -> Finding. Raises the graph, matches layers, chains them into encoders, and tells of each what it is,
where it sits and who reads it; or, if there is none, what came nearest and where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusebert.match.consumers import consumers_of, may_skip
from fusebert.match.lift import lift
from fusebert.match.lift.shapes import numbers_read
from fusebert.match.lift.state import Lifted
from fusebert.match.mask import Mask, Masks
from fusebert.match.probe import make_probes
from fusebert.match.recognise import Row, recognise
from fusebert.match.search import Match, Miss, Search, pattern
from fusebert.match.translate import translate
from fusebert.match.trials import Trials
from fusebert.ops.graph import Graph, Node
from fusebert.ops.primitives import MEANING
from fusebert.ops.vocabulary import VOCABULARY


@dataclass(frozen=True)
class Source:
    """Where a weight comes from: a constant or variable of the graph, and what is done to it on the way."""

    name: str
    how: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FoundEncoder:
    """One encoder in a graph. `input` and `output` are the tensors that go in and come out; `taps` are outputs of inner
    layers that someone else reads, and `inner_taps` other inner tensors; `readers` say what is read of the output."""

    layers: tuple[Match, ...]
    hidden: int
    mask: Mask
    input: str
    output: str
    taps: tuple[str, ...]
    inner_taps: tuple[str, ...]
    readers: tuple[str, ...]
    function: str
    weights: tuple[Mapping[str, Source], ...]
    calls: int = 1  # how often the function it sits in is called

    @property
    def heads(self) -> int:
        """Of the first layer; layers may differ."""
        return int(self.layers[0].bindings["heads"])

    @property
    def inner(self) -> int:
        """The first layer's inner width."""
        return self.weights[0]["ffn_in.weight"].shape[0]

    @property
    def activation(self) -> str:
        """The first layer's activation."""
        return str(self.layers[0].bindings["activation"])

    @property
    def epsilon(self) -> float:
        """The first layer's LayerNorm epsilon."""
        return float(self.layers[0].bindings["output_norm.epsilon"])

    @property
    def scale(self) -> float:
        """What the first layer's scores are multiplied by."""
        return float(self.layers[0].bindings["scale"])

    @property
    def may_skip(self) -> bool:
        """Whether no answer depends on a hidden position, except at that position."""
        return self.mask.kind != "none" and may_skip(self.readers) and not self.inner_taps


@dataclass(frozen=True)
class Finding:
    """What was found in a graph: encoders, the nearest misses, and a row for every rule that did or did not apply.
    `translated` is the graph in primitive words, `raised` in large ones. `unmatched` are the LayerNorms that end no
    layer of an encoder, by what they make, with what stopped the search."""

    encoders: tuple[FoundEncoder, ...]
    misses: tuple[Miss, ...]
    rows: tuple[Row, ...]
    raised: Lifted
    translated: Graph
    unmatched: Mapping[str, Miss]


def find(graph: Graph) -> Finding:
    """Every encoder in a graph."""
    translated = translate(graph)
    finding = _find(translated, {})
    if not finding.encoders and finding.raised.fixed_sizes:
        return _find(translated, finding.raised.fixed_sizes)
    return finding


def _find(translated: Graph, fixed_sizes: Mapping[int, int]) -> Finding:
    raised, rows = raise_words(translated, fixed_sizes)
    search = Search(raised.graph, raised.kept)
    matches: dict[str, Match] = {}
    unmatched: dict[str, Miss] = {}
    for node in raised.graph.nodes:
        if node.op == "layer_norm":
            result = search.match(node.outputs[0])
            if isinstance(result, Match):
                matches[node.outputs[0]] = result
                names = tuple(dict.fromkeys(n.name for n in result.nodes))
                rows.append(Row("layer", names, f"reads {result.bindings['x']}, makes {result.output}"))
            else:
                unmatched[node.outputs[0]] = result
    misses = list(unmatched.values())
    trials = Trials(raised)
    masks = Masks(raised, trials)
    encoders: dict[tuple[tuple[str, str], ...], FoundEncoder] = {}
    for chain in _chains(matches):
        for part in _same_mask(chain, masks):
            mask = masks.read(part[0].bindings["mask"], part[0].bindings["heads"])
            if mask.kind == "refused":
                rows.append(Row("mask", (mask.added,), mask.reason))
                misses.append(Miss(len(pattern().nodes), "a mask", mask.reason, mask.added, part[0].nodes[0].function))
                unmatched |= {match.output: misses[-1] for match in part}
                continue
            found = _found(raised, trials, part, mask)
            key = tuple((node.function, node.name) for match in part for node in match.nodes)
            if found.function and key in encoders:  # a function that is called from several places
                found = replace(encoders[key], calls=encoders[key].calls + 1)
            encoders[key if found.function else (*key, ("output", found.output))] = found
    refused = [miss for miss in misses if miss.expected == "a mask"]
    nearest = refused if encoders else refused or _other_attention(raised.graph) or nearest_of(misses)
    return Finding(tuple(encoders.values()), tuple(nearest), tuple(rows), raised, translated, unmatched)


def raise_words(translated: Graph, fixed_sizes: Mapping[int, int] | None = None) -> tuple[Lifted, list[Row]]:
    """A translated graph in the vocabulary of `ops`, and a row for every word that was put together."""
    lifted = lift(translated, make_probes(translated, fixed_sizes))
    raised, rows = recognise(lifted.graph, lifted.dims, lifted.kept)
    return replace(lifted, graph=raised, fixed_sizes={**lifted.fixed_sizes, **(fixed_sizes or {})}), rows


def _chains(matches: Mapping[str, Match]) -> list[list[Match]]:
    """Layers one after the other, as long as each reads what the one before makes."""
    after = {match.bindings["x"]: match for match in matches.values()}
    chains = []
    for match in matches.values():
        if match.bindings["x"] in matches and after[match.bindings["x"]] is match:
            continue
        chain = [match]
        while (following := after.get(chain[-1].output)) is not None:
            chain.append(following)
        chains.append(chain)
    return chains


def _same_mask(chain: list[Match], masks: Masks) -> list[list[Match]]:
    """The chain, divided where the mask or the width changes."""
    parts: list[list[Match]] = []
    for match in chain:
        mask = masks.read(match.bindings["mask"], match.bindings["heads"])
        if parts and replace(mask, added="") == replace(
            masks.read(parts[-1][0].bindings["mask"], parts[-1][0].bindings["heads"]), added=""
        ):
            parts[-1].append(match)
        else:
            parts.append([match])
    return parts


def _found(raised: Lifted, trials: Trials, chain: list[Match], mask: Mask) -> FoundEncoder:
    weights = raised.graph.weights
    sources = []
    for match in chain:
        named = {}
        for hole, name in match.bindings.items():
            if isinstance(name, str) and name in weights and "." in hole:
                root, how = raised.origins.get(name, (name, ""))
                named[hole] = Source(root, how, weights[name].shape)
        sources.append(named)
    inside = {id(node) for match in chain for node in match.nodes}
    taps, inner = _taps(raised.graph, chain, inside)
    function = chain[0].nodes[0].function
    return FoundEncoder(
        tuple(chain), sources[0]["query.weight"].shape[1], mask, chain[0].bindings["x"], chain[-1].output, taps, inner,
        consumers_of(raised, trials, (chain[-1].output, *taps), mask, inside), function, tuple(sources),
    )  # fmt: skip


def _taps(graph: Graph, chain: list[Match], inside: set[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tensors inside the encoder that something outside reads: outputs of layers, and others."""
    made = {name for match in chain for node in match.nodes for name in node.outputs}
    between = {match.output for match in chain[:-1]}
    read = [name for node in graph.nodes if id(node) not in inside for name in numbers_read(node) if name in made]
    outside = dict.fromkeys([*read, *(name for name in graph.outputs if name in made)])
    outside.pop(chain[-1].output, None)
    return tuple(n for n in outside if n in between), tuple(n for n in outside if n not in between)


def nearest_of(misses: Sequence[Miss]) -> list[Miss]:
    """The searches that came furthest."""
    furthest = max((miss.matched for miss in misses), default=0)
    nearest = [miss for miss in misses if miss.matched == furthest]
    usual = ("merge_heads", "embed")  # of the LayerNorms after attention and after embeddings, which end no layer
    return sorted(nearest, key=lambda miss: miss.found in usual)[:3]


def _other_attention(graph: Graph) -> list[Miss]:
    """What is known to be wrong with the attention that no layer was matched around."""
    maker = {name: node for node in graph.nodes for name in node.outputs}
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    contexts = [node for node in graph.nodes if node.op == "context"]
    strange = next((node for node in graph.nodes if node.op not in VOCABULARY and node.op not in MEANING), None)
    if not contexts and strange is not None:
        what = f"{strange.op}, which is not understood, nor what comes after it"
        return [Miss(0, "attention", what, strange.name, strange.function)]
    weighed = [n for n in graph.nodes if n.op == "softmax" and _is_masked(n, maker)]
    if not contexts and weighed:
        after = (*readers.get(weighed[0].outputs[0], ()), weighed[0])[0]
        wanted = "an average of values, weighed by the softmax of scores"
        return [Miss(1, wanted, after.op, after.name, after.function)]
    if not contexts:
        return [Miss(0, "attention: a softmax of products of two activations", "none in this graph", "")]
    if not any(node.op == "layer_norm" for node in graph.nodes):
        return [Miss(1, "a LayerNorm after attention", "none in this graph", contexts[0].name, contexts[0].function)]
    for node in contexts:
        if _pre_norm(node, maker, readers):
            what = "a pre-LayerNorm layer, which normalises what goes into attention and not the sum after it"
            return [Miss(len(pattern().nodes), "a post-LayerNorm layer", what, node.name, node.function)]
    return []


def _is_masked(softmax: Node, maker: Mapping[str, Node]) -> bool:
    made = maker.get(softmax.inputs[0])
    return made is not None and made.op in ("scores", "mask")


_AFTER = frozenset(("merge_heads", "arrange", "linear", "identity", "add"))


def _pre_norm(context: Node, maker: Mapping[str, Node], readers: Mapping[str, list[Node]]) -> bool:
    tensor = context.inputs[1]
    while (made := maker.get(tensor)) is not None and made.op in ("split_heads", "linear", "arrange", "identity"):
        tensor = made.inputs[0]
    if made is None or made.op != "layer_norm":
        return False
    following = [context]
    for _ in range(4):  # heads are merged, projected and added
        following = [n for node in following for n in readers.get(node.outputs[0], []) if n.op in _AFTER]
        if any(n.op == "add" and made.inputs[0] in n.inputs for n in following):
            return True
    return False
