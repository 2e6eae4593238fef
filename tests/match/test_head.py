"""Which output of a question-answering graph is the start and which the end: told by the outputs' names, by the columns
of one linear map, or by the outputs' order; never by how the name or the origin of a weight is spelled."""

import pytest
from onnx import helper
from small import Small, judge

from fusebert.match import assemble


class Question(Small):
    """Two outputs, each one number per token."""

    names: tuple[str, ...] = ()

    def head(self, x):
        made = [self.axes("Squeeze", score, [-1]) for score in self.scored(x)]
        for name, score in zip(self.names, made, strict=False):
            self.nodes.append(helper.make_node("Identity", [score], [name], name=name))
        self.outputs += [(score, 2) for score in self.names or made]


class OwnWeights(Question):
    """Start's weight is transposed by a node, end's is not."""

    def scored(self, x):
        start = self.op("MatMul", x, self.op("Transpose", self.weight(1, self.hidden), perm=[1, 0]))
        return start, self.op("MatMul", x, self.weight(self.hidden, 1))


class Columns(Question):
    """Columns 9 and 10 of one map of twelve: as text, 10 comes before 9."""

    chosen = (9, 10)

    def scored(self, x):
        both = self.linear(x, self.hidden, 12)
        numbers = [([at], [at + 1]) for at in self.chosen]
        return [self.op("Slice", both, self.const(a), self.const(b), self.const([2])) for a, b in numbers]


class EndFirst(Columns):
    chosen = (10, 9)


class Named(Columns):
    """The names contradict the order, and the columns too."""

    names = ("end_logits", "start_logits")


@pytest.mark.parametrize(("variant", "start"), [(OwnWeights, 0), (Columns, 0), (EndFirst, 1), (Named, 1)])
def test_start_and_end_are_told_apart(variant, start, tmp_path):
    whole = assemble(judge(variant(), tmp_path))
    assert whole.network.head.kind == "question"
    assert whole.outputs == {"start_logits": (start, ""), "end_logits": (1 - start, "")}
