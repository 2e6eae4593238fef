"""What is told of sizes before anything is computed: enough for the wide graphs of strangers, never less than what is
made."""

import numpy as np
import pytest

from fusebert.match.budget import result_size
from fusebert.match.lift.shapes import compute, example
from fusebert.ops.graph import Node

WIDE = np.broadcast_to(np.float32(0), (64, 512, 3072))  # takes no memory


@pytest.mark.parametrize(("op", "most"), [("shape", 3), ("size", 1)])
def test_the_shape_of_something_wide_costs_little(op, most):
    assert result_size(Node(op, ("x",), ("y",)), [WIDE]) <= most


@pytest.mark.parametrize(
    ("op", "outputs"), [("dynamic_quantize", 3), ("quantize", 1), ("softmax", 1), ("cast", 1), ("layer_norm", 1)]
)
def test_the_shapes_of_wide_results_are_told_without_making_them(op, outputs):
    given = [WIDE, np.float32(1), np.uint8(0)] if op == "quantize" else [WIDE]
    attributes = {"cast": {"to": "float16"}, "layer_norm": {"epsilon": 1e-5}}.get(op, {})
    made = example(Node(op, ("x",), ("y",), attributes), given)
    assert made is not None
    assert [a.shape for a in made] == [WIDE.shape, (), ()][:outputs]
    assert all(a.size == 1 or not any(a.strides) for a in made)


@pytest.mark.parametrize(
    ("x", "indices", "batch_dims"),
    [
        ((5, 7), (3, 2), 0),
        ((5, 7), (3, 1), 0),
        ((5, 7, 4), (2, 6, 2), 0),
        ((5, 7, 4), (5, 3, 1), 1),
        ((2, 3), (4, 9, 2), 0),
    ],
)
def test_what_is_gathered_by_many_numbers_is_counted(x, indices, batch_dims):
    node = Node("gather_nd", ("x", "i"), ("y",), {"batch_dims": batch_dims})
    given = [np.zeros(x), np.zeros(indices, np.int64)]
    made = compute(node, given)
    assert made is not None
    assert result_size(node, given) == made[0].size
