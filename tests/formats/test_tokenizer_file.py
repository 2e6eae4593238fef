"""formats/tokenizer.py: a tokenizer.json whose steps may make texts endlessly long is refused before the library, which
would end the process, sees it; ordinary ones are not."""

from __future__ import annotations

import base64
import json

import pytest
from checkpoints import make_checkpoint

from fusebert.engine.tokenizer import Tokenizer
from fusebert.errors import FusebertError

A = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
ANYWHERE = {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "xxx"}
TABLE = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"\0".join([b"ab", b"c" * 40, b""])).decode()
BOMBS = {
    "replacements": ("normalizer", [A] * 12),
    "regular expressions": ("normalizer", [ANYWHERE] * 6),
    "one long replacement": ("normalizer", [{**A, "content": "a" * 2000}]),
    "bytes as characters": ("normalizer", [{"type": "ByteLevel"}] * 30),
    "bytes as characters of words": ("pre_tokenizer", [{"type": "ByteLevel", "add_prefix_space": False}] * 30),
    "a table": ("normalizer", [{"type": "Precompiled", "precompiled_charsmap": TABLE}] * 2),
    "a sequence of sequences": ("normalizer", [{"type": "Sequence", "normalizers": [A] * 6}] * 2),
}
ORDINARY = [
    {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
    {"type": "NFKD"},
    {"type": "StripAccents"},
    {"type": "Lowercase"},
]


def written(folder, name, steps):
    make_checkpoint(folder, layers=1, vocab=True)
    Tokenizer.read(folder, 20).save(folder / "tokenizer.json")
    (folder / "vocab.txt").unlink()
    content = json.loads((folder / "tokenizer.json").read_text())
    content[name] = {"type": "Sequence", name.replace("_", "") + "s": steps}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("case", BOMBS)
def test_a_file_that_makes_texts_endlessly_long_is_refused(tmp_path, case):
    folder = written(tmp_path / "model", *BOMBS[case])
    with pytest.raises(FusebertError, match=r"tokenizer\.json: its (normalizer|pre_tokenizer) may make a text"):
        Tokenizer.read(folder, 20)


def test_ordinary_steps_are_taken(tmp_path):
    tokenizer = Tokenizer.read(written(tmp_path / "model", "normalizer", ORDINARY), 20)
    assert tokenizer(["The  CÀT"])[0].ids
