"""Find: Graph -> Finding. Translates and lifts the graph, matches blocks, chains them into encoders, and says of each
what it is, where it sits and who reads it; and what came nearest to a further one, and where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from fusebert.errors import border
from fusebert.match.chains import chained, is_attention, layers_of, needed, same_mask, same_operator, with_distances
from fusebert.match.consumers import consumers_of
from fusebert.match.findings import (
    Finding,
    FoundEncoder,
    Layer,
    Lifted,
    Mask,
    Match,
    Miss,
    Provenance,
    Refused,
    RuleRow,
    label,
)
from fusebert.match.lift import lift
from fusebert.match.lift.shapes import numbers_read
from fusebert.match.mask import Masks
from fusebert.match.misses import left_over, nearest, unpaired
from fusebert.match.patterns import FORMS, FREQUENCIES, NORMS
from fusebert.match.probe import Probe, make_probes
from fusebert.match.quantized import Unrounded, unround
from fusebert.match.recognise import recognise
from fusebert.match.rotations import rotated
from fusebert.match.search import find_blocks
from fusebert.match.translate import translate_with_rows
from fusebert.match.trials import Trials
from fusebert.ops.graph import Graph, Node
from fusebert.values import limits


@border
def find(graph: Graph) -> Finding:
    """Every encoder in a graph."""
    with limits.patience(len(graph.nodes) + sum(len(body.nodes) for body in graph.functions.values())):
        return _every(graph)


def _every(graph: Graph) -> Finding:
    translated, rows = translate_with_rows(graph)
    unrounded = unround(translated)
    look = partial(_find, translated, unrounded, [*rows, *unrounded.rows])
    finding = look({}, None)
    if (longest := finding.raised.longest) is not None:
        finding = look({}, longest)
    single = _of_one_sequence(translated)
    if single and (finding.misses or single.intersection(found.mask.tensor for found in finding.encoders)):
        other = look({0: 1}, longest)
        return other if _layers(other) >= _layers(finding) else finding
    sizes = finding.raised.fixed_sizes
    if not sizes or finding.raised.contradictions:
        return finding
    other = look(sizes, longest)
    return other if not finding.encoders or _layers(other) > _layers(finding) else finding


def _of_one_sequence(graph: Graph) -> set[str]:
    """The inputs that are declared for one sequence where others are for any number, as an exporter leaves them."""
    shapes = {name: declared.shape for name in graph.inputs if (declared := graph.types.get(name)) and declared.shape}
    batches = {name: shape[0] for name, shape in shapes.items() if len(shape) == 2}
    free = any(not isinstance(size, int) for size in batches.values())
    return {name for name, size in batches.items() if size == 1 and free}


def _layers(finding: Finding) -> int:
    return sum(len(found.layers) for found in finding.encoders)


def find_elsewhere(graph: Graph, reached: Finding) -> dict[str, Finding]:
    """What is found in each library function that no output of the graph needs and no such function calls, such as
    training copies and other entry points of a SavedModel; only where there are encoders. Functions whose variables
    are not known are skipped, since they are parts of others."""
    done = {function for function, _ in reached.translated.facts.get("calls", {}).values()}
    called = {node.attributes.get("f") for function in graph.functions.values() for node in function.nodes}
    findings = {}
    for name, function in graph.functions.items():
        if name in done or name in called or not any(argument in function.weights for argument in function.inputs):
            continue
        finding = find(replace(function, functions=graph.functions, facts=graph.facts))
        if finding.encoders:
            findings[name] = finding
    return findings


def _find(
    translated: Graph,
    unrounded: Unrounded,
    before: list[RuleRow],
    fixed_sizes: Mapping[int, int],
    longest: int | None,
) -> Finding:
    """What is found with probes of sizes that the graph takes: `fixed_sizes` by dimension, `longest` tokens at most."""
    raised, lifted, lifts = _raise(unrounded.graph, make_probes(translated, fixed_sizes, longest))
    fixed = {**raised.fixed_sizes, **fixed_sizes}
    contradictions = {} if fixed_sizes else raised.contradictions  # which supposed sizes may have led to
    raised = replace(raised, fixed_sizes=fixed, contradictions=contradictions, quantized=unrounded.nodes)
    raised, lengths = rotated(raised)
    blocks, misses = find_blocks(raised.graph, raised.kept)
    layers = layers_of(blocks)
    blocks = needed(blocks, layers)
    lone = unpaired(raised.graph, blocks, layers, misses)
    misses |= lone
    rows = [*before, *lifts, *_searches(raised.graph, blocks, misses)]
    trials = Trials(raised)
    masks = Masks(raised, trials, bool(lengths))
    encoders: dict[tuple[tuple[str, str], ...], FoundEncoder] = {}
    refused: list[Miss] = []
    unmatched = dict(misses)
    operators = translated.facts["operators"]
    wholes = (part for whole in chained(layers) for part in same_operator(whole, operators))
    for chain in (part for whole in wholes for part in same_mask(whole, masks)):
        added, nodes = chain[0].bindings["mask"], chain[0].nodes
        read = masks.read(added, chain[0].bindings["heads"])
        if isinstance(read, Refused):
            rows.append(RuleRow("match", "mask", (read.node,), "", read.reason))
            where, form = _maker(raised.graph, read.node), chain[0].blocks[0].form
            refused.append(Miss(len(nodes), "a padding mask", read.reason, where, nodes[0].function, form))
            unmatched |= {layer.output: refused[-1] for layer in chain}
            continue
        mask = read[0]
        chain = [with_distances(layer, masks) for layer in chain]
        rows.append(RuleRow("match", "mask", (added or chain[0].output,), mask.kind))
        found = replace(
            _encoder(raised, trials, chain, mask),
            operator=operators.get(chain[0].output),
            longest=_longest(chain, lengths),
        )
        key = tuple((node.function, node.name) for layer in chain for node in layer.nodes)
        if found.function and key in encoders:  # a function that is called from several places
            found = replace(encoders[key], others=(*encoders[key].others, found))
        encoders[key if found.function else (*key, ("output", found.output))] = found
    every = tuple(encoders.values())
    near = left_over(raised, every, unmatched, lone) if every else nearest(raised, list(misses.values()))
    return Finding(every, tuple(refused or near), tuple(rows), raised, translated, lifted, unmatched)


def _raise(graph: Graph, probes: tuple[Probe, Probe]) -> tuple[Lifted, Graph, list[RuleRow]]:
    """A graph of primitive operations in the vocabulary of `ops`, the graph between lift and recognise, and a row for
    every rule that applied or refused."""
    lifted, lifts = lift(graph, probes)
    raised, rows = recognise(lifted.graph, lifted.dims, lifted.kept)
    return replace(lifted, graph=raised), lifted.graph, [*lifts, *rows]


def _searches(graph: Graph, blocks: Mapping[str, Match], misses: Mapping[str, Miss]) -> Iterator[RuleRow]:
    """A row for every node that ends a block, or that a form was tried at."""
    for node in graph.nodes:
        if (block := blocks.get(node.outputs[0])) is not None:
            names = tuple(dict.fromkeys(map(label, block.nodes)))
            what = f"reads {block.bindings['x']}, makes {block.output}"
            yield RuleRow("match", block.form, names, "block", what)
        elif (miss := misses.get(node.outputs[0])) is not None:
            yield RuleRow("match", miss.form, (label(node),), "", str(miss))


def _maker(graph: Graph, tensor: str) -> str:
    """The node that makes a tensor, by its name; the tensor where it has none."""
    return next((label(node) for node in graph.nodes if tensor in node.outputs), tensor)


def _encoder(raised: Lifted, trials: Trials, chain: list[Layer], mask: Mask) -> FoundEncoder:
    origins = tuple(_provenance(raised, layer) for layer in chain)
    final = _final(raised.graph, chain[-1])
    output = final.outputs[0] if final else chain[-1].output
    inside = {id(node) for layer in chain for node in layer.nodes} | {id(final)}
    taps, inner = _taps(raised.graph, chain, inside)
    return FoundEncoder(
        layers=tuple(chain),
        hidden=origins[0]["attention.query.weight"].shape[1],
        mask=mask,
        input=chain[0].bindings["x"],
        output=output,
        taps=taps,
        inner_taps=inner,
        readers=consumers_of(raised, trials, (output, *taps), mask, inside),
        function=chain[0].nodes[0].function,
        weights=origins,
        final=final,
    )


def _longest(chain: list[Layer], lengths: Mapping[str, int]) -> int | None:
    """So many tokens as all that depends on positions in layers is known for; None if that is any number."""
    attentions = [block for layer in chain for block in layer.blocks if is_attention(block)]
    known = [block.distances.longest for block in attentions]
    known += [lengths.get(block.bindings[FREQUENCIES]) for block in attentions]
    return min((length for length in known if length is not None), default=None)


def _final(graph: Graph, last: Layer) -> Node | None:
    """The norm that the last of the layers that end with a sum is followed by, if nothing else reads that sum."""
    if FORMS[last.blocks[-1].form].after is not None or last.output in graph.outputs:
        return None
    readers = [node for node in graph.nodes if last.output in node.inputs]
    return readers[0] if len(readers) == 1 and readers[0].op in NORMS else None


def _provenance(raised: Lifted, layer: Layer) -> dict[str, Provenance]:
    """Where each weight of a layer comes from, by the name it has in the forms of its blocks."""
    named = {key: name for key, name in layer.bindings.items() if isinstance(name, str) and "." in key}
    return {key: raised.origin(name) for key, name in named.items() if name in raised.graph.weights}


def _taps(graph: Graph, chain: list[Layer], inside: set[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tensors inside the encoder that something outside reads: outputs of layers, and others."""
    made = {name for layer in chain for node in layer.nodes for name in node.outputs}
    between = {layer.output for layer in chain[:-1]}
    outside: list[Node] = [node for node in graph.nodes if id(node) not in inside]
    read = dict.fromkeys(name for node in outside for name in numbers_read(node) if name in made)
    read |= dict.fromkeys(name for name in graph.outputs if name in made)
    read.pop(chain[-1].output, None)
    return tuple(n for n in read if n in between), tuple(n for n in read if n not in between)
