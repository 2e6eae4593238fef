"""Hostile files, made by mutating sound ones: `make fuzz SECONDS=60` runs every target for so many seconds. Whatever a
reader or a verb makes of a file is an answer or a FusebertError; anything else is a finding (fuzz/README.md)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # whose makers write the sound files
