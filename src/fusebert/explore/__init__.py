"""Explore: models with graphs -> a local page that shows them, plays how they were matched, and makes patterns."""

from __future__ import annotations

from fusebert.explore.model import Shown
from fusebert.explore.server import explore, make_server

__all__ = ["Shown", "explore", "make_server"]
