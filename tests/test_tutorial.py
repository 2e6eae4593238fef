"""The first steps of the documents, done as a newcomer does them, with the output that they show; and the commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from serve_process import Served

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "index.md").read_text()
NUMBER = re.compile(r"^-?[\d,]*\.?\d+$")


def words(text):
    """What a terminal shows, without lines and spaces."""
    return re.sub(r"[\u2500-\u257f|]", " ", text).split()


def shown(expected, printed):
    """Whether the words stand in what was printed, in their order; numbers may differ as instruction sets do."""
    left = iter(words(printed))
    return [word for word in words(expected) if not any(alike(word, other) for other in left)]


def alike(word, other):
    if word == other:
        return True
    if not (NUMBER.match(word) and NUMBER.match(other)) or "." not in word:
        return False
    return abs(float(word.replace(",", "")) - float(other.replace(",", ""))) < 0.01


def test_a_newcomer_gets_the_output_shown(tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    blocks = re.findall(r"```sh\n(.*?)```\n(?:```\n(.*?)```)?", PAGE, re.DOTALL)
    assert len(blocks) == 5
    model = blocks[0][0].splitlines()[0]
    for lines, expected in blocks[:3]:
        script = lines if lines.startswith("MODEL=") else f"{model}\n{lines}"
        ran = subprocess.run(["sh", "-ec", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert shown(expected, ran.stdout) == []
    assert (tmp_path / "report.html").is_file()
    serve, curl = (lines.split() for lines, _ in blocks[3:])
    assert serve[:2] == ["fusebert", "serve"]
    server = Served(tmp_path / serve[2], log=tmp_path / "log")
    try:
        asked = blocks[4][0].replace(":8080", f":{server.port}")
        ran = subprocess.run(["sh", "-ec", asked], capture_output=True, text=True, check=True)
        near, far = (float(value) for value in ran.stdout.strip("[]\n").split(","))
        assert near > far + 0.3
    finally:
        assert server.stop() == 0
    assert curl[0] == "curl"


@pytest.mark.parametrize("name", ["commands", "api"])
def test_a_page_of_reference_is_what_the_code_declares(name):
    script = f"import runpy; print(runpy.run_path({str(ROOT / 'scripts' / name)!r} + '.py')['page'](), end='')"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)  # it imports fusebert.torch
    assert ran.returncode == 0, ran.stderr
    page = ran.stdout
    assert (ROOT / "docs" / f"{name}.md").read_text() == page, f"write it anew: python scripts/{name}.py"
