"""The examples run, at tiny sizes."""

import os
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import stock

import fusebert

ROOT = Path(__file__).parents[1]
LEGACY = ROOT / "build" / "legacy"
PAIR = "The company said profits rose .\tProfits rose , the company said ."


@pytest.mark.filterwarnings("ignore")  # of the machinery of notebooks
def test_the_notebook_shows_what_it_says(minilm):
    """Every cell runs, models, reports and findings are drawn, and numbers are those that are stored, to two digits."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    stored = nbformat.read(ROOT / "examples" / "similar_texts.ipynb", 4)
    ran = nbclient.NotebookClient(deepcopy(stored), timeout=300, kernel_name="python3").execute()
    shown = [(output, cell) for cell in ran.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("fusebert" in output.get("data", {}).get("text/html", "") for output, _ in shown) == 3
    for before, after in zip(stored.cells, ran.cells, strict=True):
        numbers = [[float(number) for number in re.findall(r"-?\d+\.\d+", str(cell.outputs))]
                   for cell in (before, after) if before.get("outputs")]  # fmt: skip
        if numbers:
            np.testing.assert_allclose(*numbers, atol=0.02)


def assert_named_as_torch_takes_them(folder: Path) -> None:
    """Each input of model.onnx, fed by its name, is what torch takes under that name: all three differ, and matter."""
    random = np.random.default_rng(0)
    names = ("input_ids", "attention_mask", "token_type_ids")
    feeds = dict(zip(names, (random.integers(5, 999, (3, 9)), *random.integers(0, 2, (2, 3, 9))), strict=True))
    feeds["attention_mask"][:, 0] = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    assert {given.name for given in session.get_inputs()} == set(feeds)
    want = stock.run(stock.load(folder, "sequence"), **feeds)["logits"]
    np.testing.assert_allclose(session.run(["logits"], feeds)[0], want, atol=1e-4)


@pytest.mark.parametrize("version", [5, 4])
def test_finetune_mrpc(minilm, tmp_path, version):
    """Transformers 4 also has the classes that write a SavedModel."""
    environment = {**os.environ}
    if version == 4:
        if not (LEGACY / ".installed").exists():
            pytest.skip("build/legacy is missing: run `make build/legacy/.installed`")
        environment |= {"PYTHONPATH": str(LEGACY), "TF_USE_LEGACY_KERAS": "1"}
    sizes = {"hidden": 32, "heads": 4, "inner": 48, "layers": 1}
    folder = stock.make(tmp_path / "checkpoint", "bert", sizes=sizes, vocab_size=30522)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(minilm / name, folder)
    for name, count in (("train", 8), ("dev", 2)):
        lines = [f"{i % 2}\t{i}\t{i}\t{name} {i} {PAIR}" for i in range(count)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", *lines]))
    files = ["--train", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv", "-o", tmp_path / "out"]
    script = ROOT / "examples" / "finetune_mrpc.py"
    command = [sys.executable, "-W", "ignore", script, folder, *files, "--epochs", "1"]
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "of 2 right" in ended.stdout
    written = [tmp_path / "out", tmp_path / "out" / "model.onnx"]
    written += [tmp_path / "out" / "saved_model"] if version == 4 else []
    (want,) = fusebert.load(written[0]).predict([("one", "two")])
    assert_named_as_torch_takes_them(written[0])
    for path in written[1:]:
        (got,) = fusebert.load(path).predict([("one", "two")])
        assert got.scores == pytest.approx(want.scores, abs=1e-4)
