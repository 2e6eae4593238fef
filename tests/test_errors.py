"""errors.py: whatever a file calls its parts, a message is one line of printable text that fits on a screen."""

from __future__ import annotations

import pytest

from fusebert.errors import DifferentError, FusebertError, UnsupportedError
from fusebert.measure.inputs import UnknownInputError


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
