"""The mathematics of a layer: its NumPy meaning, the graph it records, and the native core agree."""

from dataclasses import replace

import numpy as np
import pytest
from encoders import random_encoder

from fusebert.engine import native as engine
from fusebert.errors import FusebertError
from fusebert.ops.vocabulary import Record, evaluate
from fusebert.values.batch import Batch
from fusebert.values.blocks import Encoder, Norm
from fusebert.values.forms import block, reference
from fusebert.values.plan import make_plan


def native(encoder: Encoder, x: np.ndarray, batch: Batch, precision: str = "fp32") -> np.ndarray:
    plan = make_plan(precision, len(encoder.blocks))
    rows = np.ascontiguousarray(x.reshape(-1, encoder.hidden_size), np.float32)
    return engine.EncoderEngine(encoder, plan, engine.pool(2)).run(rows, batch)[0].reshape(x.shape)


@pytest.mark.parametrize("shape", [{}, {"bias": False}, {"transposed": True}, {"heads": 1}, {"hidden": 1, "inner": 1}])
def test_unequal_sizes_epsilons_scales_missing_biases_and_strides(shape, isa):
    encoder = random_encoder(**shape)
    x = np.random.default_rng(1).normal(size=(2, 11, encoder.hidden_size)).astype(np.float32)
    want = reference(encoder, x.astype(np.float64))
    assert np.abs(native(encoder, x, Batch.ragged([11, 11])) - want).max() < 1e-5


def test_the_recorded_graph_means_the_same():
    encoder = random_encoder()
    record = Record()
    tensor = "x"
    for weights in encoder.blocks:
        tensor = block(record, tensor, "mask", weights)
    graph = record.graph(("x", "mask"), (tensor,))
    x = np.random.default_rng(1).normal(size=(2, 6, encoder.hidden_size))
    mask = np.where(np.random.default_rng(2).random((2, 1, 6, 6)) < 0.5, 0, -1e4)
    assert np.array_equal(evaluate(graph, {"x": x, "mask": mask})[tensor], reference(encoder, x, mask))
    words = [node.op for node in graph.nodes]
    assert words.count("linear") == 12
    assert words.count("layer_norm") == 4
    assert [node.op for node in graph.readers("x")] == ["linear", "linear", "linear", "add"]


def test_batches_from_masks():
    mask = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0]])
    skip, first, compute = (Batch.masked(mask, (3, 3), rows) for rows in ("skip", "first", "compute"))
    assert skip.index.tolist() == [0, 1, 4, 5]
    assert skip.offsets.tolist() == [0, 2, 4, 4]
    assert skip.visible is None
    assert first.index.tolist() == [0, 1, 3, 4, 5, 6, 7, 8]
    assert first.visible.tolist() == [1, 1, 0, 1, 1, 0, 0, 0]
    assert compute.index.tolist() == list(range(9))
    rows = np.arange(1.0, 9.0)[:, None]
    assert first.first_rows(rows)[:, 0].tolist() == [1, 3, 6]
    assert first.spread(rows, drop_hidden=True)[..., 0].tolist() == [[1, 2, 0], [0, 4, 5], [0, 0, 0]]
    assert skip.first_rows(rows[:4])[:, 0].tolist() == [1, 0, 0]


@pytest.mark.parametrize("hidden_rows", ["skip", "first", "compute"])
def test_a_mask_that_hides_nothing_is_no_mask(hidden_rows):
    """Batches without padding take a shorter way, to the same rows; so do those without any token."""
    for mask, shape in ((np.ones((2, 3)), (2, 3)), (np.array([3, 3]), (2, 3)), (np.ones((2, 0)), (2, 0))):
        given, plain = Batch.masked(mask, shape, hidden_rows), Batch.masked(None, shape)
        assert given.offsets.tolist() == plain.offsets.tolist() == [i * shape[1] for i in range(3)]
        assert given.index.tolist() == plain.index.tolist() == list(range(2 * shape[1]))
        assert given.visible is None
        rows = np.arange(1.0, 2 * shape[1] + 1)[:, None]
        assert given.first_rows(rows)[:, 0].tolist() == ([1, 4] if shape[1] else [0, 0])


def test_ranges_and_plans_are_checked():
    with pytest.raises(FusebertError, match="8 numbers for a model that needs 16"):
        make_plan("int8", 4, np.zeros(8))
    assert make_plan("int8", 2, [[-1, 1]] * 4).static
    assert not make_plan("int8", 1).static


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_anywhere_shared_blocks_and_a_final_norm(kind, isa):
    """Pre-norm, a norm of the branch, blocks that run twice: no family needs a flag."""
    post_norm = random_encoder(key_size=8, value_size=8)

    def norm(i: int) -> Norm:
        gain, bias = np.random.default_rng(i).normal(1, 0.2, (2, post_norm.hidden_size)).astype(np.float32)
        return Norm(gain, None if kind == "rms" else bias, 1e-5, kind)

    attention, inner = post_norm.blocks[:2]
    blocks = (
        replace(attention, before=norm(0), after=None),
        replace(inner, before=norm(1), branch=norm(2), after=None),
        *post_norm.blocks[2:],
    )
    encoder = Encoder(post_norm.hidden_size, blocks, (0, 1, 2, 1, 0, 3), norm(3))
    x = np.random.default_rng(1).normal(size=(2, 11, encoder.hidden_size)).astype(np.float32)
    want = reference(encoder, x.astype(np.float64))
    assert np.abs(native(encoder, x, Batch.ragged([11, 11])) - want).max() < 2e-5 * np.abs(want).max()
