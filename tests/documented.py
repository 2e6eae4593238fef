"""The command lines of docs/coming-from.md, and models that have the names which those lines give."""

import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text()


def section(title: str) -> str:
    """What the page says under a title."""
    (text,) = re.findall(rf"^## {re.escape(title)}(?: \(.*?\))?\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return text


def lines(title: str) -> list[str]:
    """The command lines under a title."""
    (block,) = re.findall(r"```sh\n(.*?)```", section(title), re.DOTALL)
    return block.splitlines()


def words(line: str, root: Path, **names: object) -> list[str]:
    """What is typed after `fusebert`: names for $NAME, and /path/to below a folder that is there."""
    for name, value in names.items():
        line = line.replace(f"${name}", str(value))
    assert "$" not in line
    program, *rest = shlex.split(line.replace("/path/to/", f"{root}/"))
    assert program == "fusebert"
    return rest


def table(title: str) -> list[list[str]]:
    """The rows of the table under a title, without code quotes."""
    rows = re.findall(r"^\| (.*) \|$", section(title), re.MULTILINE)[1:]
    return [[cell.strip().replace("`", "") for cell in row.split(" | ")] for row in rows]


def rename(model: Path, to: Path, names: Mapping[str, str]) -> Path:
    """A copy of a SavedModel whose nodes and functions have other names."""
    from google.protobuf import text_format
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    shutil.copytree(model, to, ignore=shutil.ignore_patterns("saved_model.pb", "fingerprint.pb"))
    text = text_format.MessageToString(SavedModel.FromString((model / "saved_model.pb").read_bytes()))
    for old, new in names.items():
        text, count = re.subn(rf'"(\^?){re.escape(old)}(:[^"]*)?"', rf'"\g<1>{new}\g<2>"', text)
        assert count, old
    (to / "saved_model.pb").write_bytes(text_format.Parse(text, SavedModel()).SerializeToString())
    return to


def switch(model: Path) -> None:
    """Puts the modified graph in the place of the original one, as the documents do."""
    (model / "saved_model.pb").rename(model / "original_saved_model.pb")
    (model / "saved_model.pb").symlink_to("modified_saved_model.pb")
