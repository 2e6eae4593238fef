"""The examples run, at tiny sizes."""

import shutil
import subprocess
import sys
from pathlib import Path

import stock

import fusebert

EXAMPLES = Path(__file__).parents[1] / "examples"
PAIR = "The company said profits rose .\tProfits rose , the company said ."


def test_finetune_mrpc(minilm, tmp_path):
    sizes = {"hidden": 32, "heads": 4, "inner": 48, "layers": 1}
    folder = stock.make(tmp_path / "checkpoint", "bert", sizes=sizes, vocab_size=30522)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(minilm / name, folder)
    for name, count in (("train", 8), ("dev", 2)):
        lines = [f"{i % 2}\t{i}\t{i}\t{name} {i} {PAIR}" for i in range(count)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", *lines]))
    files = ["--train", tmp_path / "train.tsv", "--dev", tmp_path / "dev.tsv", "-o", tmp_path / "out"]
    command = [sys.executable, "-W", "ignore", EXAMPLES / "finetune_mrpc.py", folder, *files, "--epochs", "1"]
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "of 2 right" in ended.stdout
    assert (tmp_path / "out" / "model.onnx").is_file()
    assert len(fusebert.load(tmp_path / "out").predict([("one", "two")])) == 1
