"""Drawing: a Report as HTML without scripts: a page of its own, or a part of a notebook."""

from __future__ import annotations

from fusebert.drawing.page import MARK, fragment, page
from fusebert.drawing.text import text

__all__ = ["MARK", "fragment", "page", "text"]
