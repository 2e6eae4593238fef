"""The bar is for people: on a terminal, on standard error, with and without a known end."""

import io
import sys

import pytest

from fusebert.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("total", [2, None])
def test_a_terminal_sees_the_bar(total, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress("searching", total) as advance:
        advance(1)
    assert "searching" in sys.stderr.getvalue()


@pytest.mark.parametrize(("stream", "show"), [(Terminal, False), (io.StringIO, True)])
def test_nothing_is_drawn_elsewhere(stream, show, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    with progress("searching", None, show) as advance:
        advance(1)
    assert sys.stderr.getvalue() == ""
