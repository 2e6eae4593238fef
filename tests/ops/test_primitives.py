"""Primitive words: what they do to types, edges and masks; and evaluate, which runs them."""

import gc
import weakref

import numpy as np
import pytest

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.ops.graph import Graph, Node, Weight
from fusebert.ops.primitives import MEANING
from fusebert.ops.vocabulary import evaluate

X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
AXIS = np.array([1], np.int64)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    "word", ["neg", "abs", "exp", "erf", "tanh", "sigmoid", "softplus", "relu", "square", "mean", "sum", "softmax"]
)
def test_floats_keep_their_type(word, dtype):
    assert MEANING[word](np.abs(X).astype(dtype) + 1).dtype == dtype


@pytest.mark.parametrize("word", ["add", "sub", "mul", "div", "floordiv", "mod", "pow", "maximum", "minimum"])
def test_whole_numbers_stay_whole(word):
    assert MEANING[word](np.int32([7, 8]), np.int32([2, 3])).dtype == np.int32


@pytest.mark.parametrize("word", ["sum", "prod", "max", "mean"])
def test_reductions_keep_whole_numbers_and_axes(word):
    assert MEANING[word](np.int32([[1, 2], [3, 4]]), AXIS, keepdims=True).shape == (2, 1)
    assert MEANING[word](np.int32([[1, 2], [3, 4]])).dtype == np.int32
    assert np.array_equal(MEANING[word](X, ints()), X)


def test_results_are_arrays():
    assert all(isinstance(MEANING[word](np.float32(2)), np.ndarray) for word in ("neg", "sqrt", "mean", "identity"))
    assert all(isinstance(part, np.ndarray) for part in MEANING["split"](X, axis=2, count=2))


def test_division_of_whole_numbers_goes_towards_zero():
    a, b = ints(7, -7, 7, -7), ints(2, 2, -2, -2)
    assert MEANING["div"](a, b).tolist() == [3, -3, -3, 3]
    assert MEANING["floordiv"](a, b).tolist() == [3, -4, -4, 3]
    assert MEANING["mod"](a, b).tolist() == [1, 1, -1, -1]
    assert MEANING["mod"](a, b, truncate=True).tolist() == [1, -1, 1, -1]


def test_a_zero_copies_a_size_only_where_it_may():
    assert MEANING["reshape"](X, ints(0, -1), zero_copies=True).shape == (2, 12)
    assert MEANING["reshape"](X[:0], ints(3, 0)).shape == (3, 0)


def test_uneven_and_open_splits():
    assert [part.shape[2] for part in MEANING["split"](X, axis=2, count=3)] == [2, 2, 0]
    assert [part.shape[2] for part in MEANING["split"](X, ints(1, -1), axis=2, count=2)] == [1, 3]


def test_strided_slices():
    def cut(**masks):
        return MEANING["strided_slice"](X, ints(0, 1, 1), ints(2, 2, 4), ints(1, 1, 2), **masks)

    assert np.array_equal(cut(), X[0:2, 1:2, 1:4:2])
    assert np.array_equal(cut(begin_mask=4, end_mask=2), X[0:2, 1:, :4:2])
    assert np.array_equal(cut(shrink_axis_mask=2), X[0:2, 1, 1:4:2])
    assert np.array_equal(cut(ellipsis_mask=1, new_axis_mask=2), X[..., None, 1:4:2])


def test_gathering_per_batch():
    indices = ints(2, 0, 1, 1).reshape(2, 2)
    assert np.array_equal(MEANING["gather"](X, indices, axis=1, batch_dims=1)[1], X[1, [1, 1]])
    assert np.array_equal(MEANING["gather_nd"](X, indices[..., None], batch_dims=1)[0], X[0, [2, 0]])


def test_masks_of_fused_attention():
    scores = np.zeros((2, 3, 4, 4), np.float32)

    def hidden(mask):
        additive = np.broadcast_to(MEANING["key_mask"](np.array(mask, np.int32), scores, filter=-7.0), (2, 1, 4, 4))
        assert set(np.unique(additive)) <= {-7.0, 0.0}
        return (additive[:, 0, 1] != 0).astype(int).tolist()

    assert hidden([1, 4]) == [[0, 1, 1, 1], [0, 0, 0, 0]]
    assert hidden([3, 4, 1, 0]) == [[1, 0, 0, 1], [0, 0, 0, 0]]
    assert hidden([[1, 0, 1, 0], [0, 1, 1, 1]]) == [[0, 1, 0, 1], [1, 0, 0, 0]]
    assert hidden([[1], [1]]) == [[0, 0, 0, 0], [0, 0, 0, 0]]
    assert hidden(np.tril(np.ones((2, 4, 4)))) == [[0, 0, 1, 1], [0, 0, 1, 1]]
    with pytest.raises(ValueError, match="a mask of shape"):
        MEANING["key_mask"](np.ones((2, 1, 4, 4)), scores, filter=-7.0)


def graph(*nodes: Node, outputs=("y",), weights=None) -> Graph:
    return Graph(nodes, ("x",), outputs, weights or {})


def test_only_what_is_needed_is_computed():
    nodes = [Node("unheard", ("x",), ("other",)), Node("neg", ("x",), ("y",))]
    assert np.array_equal(evaluate(graph(*nodes), {"x": X})["y"], -X)
    given = evaluate(graph(*nodes, Node("neg", ("other",), ("z",)), outputs=("z",)), {"x": X, "other": X})
    assert np.array_equal(given["z"], -X)


def test_values_are_dropped_when_nobody_needs_them_any_more(monkeypatch):
    alive: list[weakref.ref[np.ndarray]] = []

    class Tracked(np.ndarray):
        pass

    def noted(x):
        gc.collect()
        assert sum(ref() is not None for ref in alive) <= 2
        result = (x + 1).view(Tracked)
        alive.append(weakref.ref(result))
        return result

    monkeypatch.setitem(MEANING, "neg", noted)
    nodes = [Node("neg", (f"t{i - 1}" if i else "x",), (f"t{i}",)) for i in range(9)]
    evaluate(graph(*nodes, outputs=("t8",)), {"x": X})
    assert len(alive) == 9


def test_several_outputs_some_of_them_unread():
    node = Node("split", ("x", "sizes"), ("", "y"), {"axis": 2, "count": 2})
    got = evaluate(graph(node, weights={"sizes": Weight.of(ints(1, 3))}), {"x": X})
    assert np.array_equal(got["y"], X[:, :, 1:])


def test_what_cannot_be_computed_is_named():
    with pytest.raises(UnsupportedError, match=r"node here \(com\.example\.Foo\) has no meaning"):
        evaluate(graph(Node("com.example.Foo", ("x",), ("y",), {}, "here")), {"x": X})
    with pytest.raises(FusebertError, match=r"node here \(add\) needs 'z'"):
        evaluate(graph(Node("add", ("x", "z"), ("y",), {}, "here")), {"x": X})
    with pytest.raises(FusebertError, match=r"node here \(add\) cannot be computed"):
        evaluate(graph(Node("add", ("x", "x2"), ("y",), {}, "here")), {"x": X, "x2": X[:, :2]})
    with pytest.raises(FusebertError, match="outputs need 'y'"):
        evaluate(graph(), {"x": X})
