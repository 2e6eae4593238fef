"""The walk of docs/tensorflow-patterns.md: its commands run as they are printed, one after the other, and at the end
TensorFlow runs what they made."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import zoo

from fusebert.measure.compare import compare
from fusebert.source import open_tensorflow

pytest.importorskip("tensorflow")
GUIDE = (Path(__file__).parents[2] / "docs" / "tensorflow-patterns.md").read_text()


def function_of(model: Path) -> str:
    graphs = open_tensorflow(model).file
    scopes = graphs.scopes(graphs.meta(0))
    return next(
        scope.function
        for scope in scopes
        if any(name.endswith("layer_._2/output/LayerNorm/batchnorm/add_1") for name in scope.nodes)
    )


def test_the_commands_of_the_guide_run_as_they_are_printed(tmp_path):
    model = zoo.get("tf-bert-sequence").make()
    shutil.copytree(model, tmp_path / "classifier")
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    assert len(blocks) >= 7
    traced = re.compile(r"__inference_serve_\d+")  # the number is another each time a model is exported
    script = traced.sub(function_of(model), "\n".join(f"({block})" if "cd " in block else block for block in blocks))
    script = script.replace("FILE", "factors.txt")
    # a calibrated file is there only once a model has run: eight numbers for each of three layers
    (tmp_path / "factors.txt").write_text("-5 5 -5 5 -5 5 -5 5\n" * 3)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200"}
    ended = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stdout[-1500:] + ended.stderr[-1500:]
    for fact in ("internal nodes  392", "inputs          298", "pattern nodes       393", "constants compared  248"):
        assert fact in ended.stdout, fact
        assert fact in GUIDE
    assert len((tmp_path / "node_def.pbtxt").read_text().splitlines()) == int(
        re.search(r"\((\d+) lines here", GUIDE)[1]
    )
    assert compare(model, tmp_path / "optimised", samples=2, sequence_length=16).same
