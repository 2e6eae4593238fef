"""errors.py: whatever a file calls its parts, a message is one line of printable text that fits on a screen."""

from __future__ import annotations

import sys

import pytest

import fusebert
from fusebert.errors import DifferentError, FusebertError, InternalError, UnsupportedError, border
from fusebert.measure.inputs import UnknownInputError
from fusebert.ops.graph import Graph


@pytest.mark.parametrize(
    "kind", [FusebertError, UnsupportedError, DifferentError, lambda m: UnknownInputError(m, "ids")]
)
def test_names_are_escaped(kind):
    message = str(kind("node a\nb\x1b[2J\u202ec\udc80 has no input"))
    assert message == "node a\\nb\\x1b[2J\\u202ec\\udc80 has no input"
    message.encode()


def test_long_names_keep_their_ends():
    assert str(FusebertError(f"node {'x' * 3000}y is unknown")) == f"node {'x' * 120}…{'x' * 78}y is unknown"
    assert len(str(FusebertError(f"node {'x' * 1_000_000}y is unknown"))) < 300


def test_a_message_has_a_limit_however_short_its_words_are():
    assert len(str(FusebertError("word " * 1_000_000))) < 4100


def test_what_people_write_stays_as_it_is():
    message = "modèle/été.onnx: 日本 isn’t there; use “fusebert inspect”…"
    assert str(FusebertError(message)) == message


def test_what_comes_out_of_a_border_is_an_answer_an_error_of_ours_or_a_defect_with_a_reference():
    @border
    def verb(error: Exception | None = None) -> int:
        if error is not None:
            raise error
        return 5

    assert verb() == 5
    for known in (FusebertError("x"), OSError("disk"), MemoryError()):
        with pytest.raises(type(known)):
            verb(known)
    with pytest.raises(InternalError, match=r"defect in fusebert.*KeyError: 'ids'") as first:
        verb(KeyError("ids"))
    with pytest.raises(InternalError) as second:
        verb(KeyError("mask"))
    with pytest.raises(InternalError) as other:
        verb(ValueError("ids"))
    assert first.value.reference == second.value.reference != other.value.reference
    assert isinstance(first.value.__cause__, KeyError)
    assert not isinstance(first.value, FusebertError)
    assert str(first.value).isprintable()


def test_arguments_that_a_verb_does_not_take_are_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword"):
        border(lambda: None)(nothing=1)  # type: ignore[call-arg]


def test_public_verbs_are_borders(monkeypatch):
    def broken(*_, **__):
        raise LookupError("deep inside")

    monkeypatch.setattr("fusebert.source.hub.find", broken)
    monkeypatch.setattr(sys.modules["fusebert.match.find"], "translate_with_rows", broken)
    with pytest.raises(InternalError, match="LookupError: deep inside"):
        fusebert.find(Graph((), (), (), {}))
    for verb in (fusebert.open, fusebert.read, fusebert.load, lambda path: fusebert.optimize(path, "out")):
        with pytest.raises(InternalError, match="LookupError: deep inside"):
            verb("model.onnx")


def test_what_is_no_path_is_told_so():
    with pytest.raises(FusebertError, match="path of a model is expected, not a int"):
        fusebert.load(5)  # type: ignore[arg-type]
