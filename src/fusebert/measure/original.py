"""Original: a model against the graph that it was assembled from, whose every node is computed in NumPy. Few tokens,
since NumPy is slow; no framework is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from fusebert.engine.answers import softmax
from fusebert.engine.model import Model
from fusebert.match import Ending, unround
from fusebert.measure.difference import Difference, difference
from fusebert.measure.inputs import Input, added, fill, sizes_of
from fusebert.measure.kinds import POSITIONS, kind_of
from fusebert.ops.graph import Array, Graph
from fusebert.ops.vocabulary import evaluate
from fusebert.source import GraphSource


def compare_with_graph(source: GraphSource, model: Model) -> list[Difference]:
    """The difference of a model to the graph it was assembled from, whose every node is computed in NumPy, without
    rounding to 8 bits: of the outputs that both have, or else of the encoder's rows. What the graph applies after an
    output is applied to the model's."""
    original, assembled = unround(source.finding.translated).graph, source.assembled
    head = assembled.network.head.kind == model.network.head.kind
    finals = {name: final for name, (_, final) in assembled.outputs.items() if head}
    finals = {name: final for name, final in finals.items() if not (final and name in POSITIONS)}  # of hidden ones, too
    wanted = {name: original.outputs[assembled.outputs[name][0]] for name in finals}
    wanted = wanted or {"encoder": assembled.encoder_output}
    original = replace(original, outputs=tuple(wanted.values()))
    names = assembled.inputs
    pairs: dict[str, tuple[list[Array], list[Array]]] = {}
    for given in _small_inputs(source, model):
        feeds = {tensor: _fed(original, role, tensor, given) for role, tensor in names.items()}
        if assembled.positions in original.inputs:
            declared = original.types[assembled.positions]
            place = Input(assembled.positions, declared.dtype or "int64", sizes_of(declared.shape))
            feeds[assembled.positions] = fill(place, "positions", given["ids"].shape)
        answers = evaluate(original, feeds)
        masked = not {"mask", "padding", "additive"}.isdisjoint(names)
        visible = given["mask"].astype(bool) if masked else np.ones(given["ids"].shape, bool)
        got = model.run(given["ids"], visible, given["types"] if "types" in names else None, not finals)
        for name, tensor in wanted.items():
            value = got["hidden_states"][-1] if name == "encoder" else _FINAL[finals[name]](got[name])
            pairs.setdefault(name, ([], []))[0].append(_rows(name, answers[tensor].reshape(value.shape), visible))
            pairs[name][1].append(_rows(name, value, visible))
    return [
        _difference(name, np.concatenate(a), np.concatenate(b), finals.get(name, "")) for name, (a, b) in pairs.items()
    ]


def _fed(graph: Graph, role: str, tensor: str, given: Mapping[str, Array]) -> Array:
    """What an input with a role gets."""
    declared = graph.types[tensor]
    if role == "additive":
        return added(given["mask"], Input(tensor, declared.dtype or "float32", sizes_of(declared.shape)))
    return given[role].astype(declared.dtype or "int64")


_FINAL: Mapping[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "softmax": softmax,
    "log_softmax": lambda x: np.log(softmax(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def _difference(name: str, a: Array, b: Array, final: str) -> Difference:
    """Of an output that has a model's own name for it."""
    ending = Ending(final, linear=True) if final else None
    return difference(name, a, b, kind_of(name, a, a.shape[-1], name in POSITIONS, ending, None))


def _small_inputs(source: GraphSource, model: Model) -> list[dict[str, Array]]:
    """Few tokens, since NumPy is slow, with padding right, and in holes where the graph does not just count positions;
    of the sizes that the graph declares or insists on, if any."""
    random = np.random.default_rng(0)
    assembled, finding = source.assembled, source.finding
    declared = finding.translated.types[assembled.inputs["ids"]].shape or (None, None)
    fixed = [finding.raised.fixed_sizes.get(place, size) for place, size in enumerate(declared)]
    batches = []
    for usual in ((1, 4), (3, min(9, model.network.embeddings.longest))):
        shape = tuple(n if isinstance(n, int) else m for n, m in zip(fixed, usual, strict=True))
        ids = random.integers(0, len(model.network.embeddings.word), shape)
        mask = np.ones_like(ids)
        if shape[1] > 1:
            mask[1::2, -(shape[1] // 2) :] = 0
            mask[2::2, 1::3] = assembled.counts_positions
        batches.append({"ids": ids, "mask": mask, "padding": 1 - mask, "types": random.integers(0, 2, shape)})
    return batches


def _rows(name: str, value: Array, visible: Array) -> Array:
    """An output as rows `[rows, width]`: those of visible tokens, or one per sequence."""
    if name in POSITIONS:
        return value[visible][:, None]
    return value[visible] if value.ndim == 3 else value
