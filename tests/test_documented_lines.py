"""Every command line in the documents is run, in the order of its document, with models and files of the names that it
gives; or it stands in ELSEWHERE with the test that runs it. Only what takes time is cut short."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zoo
from checkpoints import make_checkpoint
from serve_process import Served

import fusebert

ROOT = Path(__file__).parents[1]
OWN = {"coming-from.md", "index.md", "tensorflow-patterns.md"}  # tests/walks, test_tutorial.py, recipes/test_guide.py
DOCUMENTS = [ROOT / "README.md", *(path for path in sorted(ROOT.glob("docs/*.md")) if path.name not in OWN)]
ELSEWHERE = {  # lines that have this: the test that runs them or their like
    r"--on ray|ray://": "tests/verbs/test_embed_on_ray.py",  # needs `make test-ray`
    r"my-mrpc|demo/|DEV": "tests/serve/test_demo.py",  # a model that was trained
    r"^fusebert (serve|explore) (?!.*--json)": "tests/test_tutorial.py",  # until it is interrupted
    r"--find-max": "tests/serve/test_load_test.py",  # minutes
    r"recipe\.pb|^fusebert (extract-pattern|configure-op) MODEL": "tests/recipes/test_guide.py",
    r"--install-completion": "tests/cli/test_words.py",  # changes files of the shell
    r" (MODELS?|BASELINE|FILES|URL)\b|\[": "tests/test_tutorial.py",  # no command but its form: docs/commands.md
}
SHORT = {r"(--run-time) \S+": r"\1 0.05", r"(--duration) \S+": r"\1 0.2s", r"(--cycle) \S+": r"\1 2",
         r"(-s) 128": r"\1 8", r"(--rate) 500$": r"\1 500 --duration 0.2s", r"(--samples) \S+": r"\1 4"}  # fmt: skip
WORDS = ["the cat sat on the mat .", "the dog ran", "a cat ran", "the mat !"]


def lines(document: Path) -> list[str]:
    """The command lines of a document, without their comments."""
    found = re.findall(r"^\s*(?:\.venv/bin/)?(fusebert -?-?[a-z].*)$", document.read_text(), re.MULTILINE)
    return [re.sub(r"\s+# .*", "", line).strip() for line in found]


def elsewhere(line: str) -> str | None:
    return next((test for words, test in ELSEWHERE.items() if re.search(words, line)), None)


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """The models and files that documents name."""
    place = tmp_path_factory.mktemp("desk")
    for name, head, labels in (("my-bert", "none", 3), ("my-model", "none", 3), ("my-classifier", "sequence", 2),
                               ("my-ranker", "sequence", 1)):  # fmt: skip
        make_checkpoint(place / name, head=head, labels=labels, vocab=True, positions=160)
    fusebert.optimize(place / "my-bert", place / "my-bert-int8", verify=False)
    fusebert.optimize(place / "my-classifier", place / "artifact", verify=False)
    fusebert.optimize(place / "my-classifier", place / "model.onnx", "fp32", "onnx", verify=False)
    fusebert.optimize(place / "my-classifier", place / "optimized.onnx", verify=False)
    shutil.copy(zoo.get("onnx-bert-14-eager").make(), place / "bert.onnx")
    shutil.copytree(zoo.get("tf-bert-sequence").make(), place / "saved_model")
    (place / "texts.txt").write_text("\n".join(WORDS))
    (place / "texts.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in WORDS))
    pairs = [f"{i % 2}\t{i}\t{i}\t{WORDS[i % 4]}\t{WORDS[(i + 1) % 4]}" for i in range(6)]
    (place / "dev.tsv").write_text("\n".join(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *pairs]))
    shutil.copy(place / "dev.tsv", place / "my.tsv")
    (place / "pairs.csv").write_text("query,document\nthe cat,the dog ran\nthe mat,the cat sat\n")
    numbers = list(range(len(WORDS)))
    table = pyarrow.table({"text": WORDS, "body": WORDS, "id": numbers, "url": [f"at {i}" for i in numbers]})
    for name in ("documents", "texts"):
        pyarrow.parquet.write_table(table, place / f"{name}.parquet")
    (place / "dump").mkdir()
    with pyarrow.CompressedOutputStream(str(place / "dump" / "1.jsonl.zst"), "zstd") as file:
        file.write((place / "texts.jsonl").read_bytes())
    return place


@pytest.fixture(scope="module")
def server(desk):
    started = Served(desk / "my-bert-int8", log=desk / "log")
    yield started
    assert started.stop() == 0


def remove(path: Path) -> None:
    """What an earlier line wrote under the same name."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if lines(path)], ids=lambda path: path.name)
def test_every_line_runs(document, desk, tmp_path, monkeypatch, run, request):
    shutil.copytree(desk, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for line in lines(document):
        if elsewhere(line):
            continue
        for long, short in SHORT.items():
            line = re.sub(long, short, line)
        if ":8080" in line:
            line = line.replace(":8080", f":{request.getfixturevalue('server').port}")
        command, _, given = line.partition(" < ")
        _, *words = shlex.split(command)
        if "-o" in words:
            remove(Path(words[words.index("-o") + 1]))
        with Path(given or "texts.txt").open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            run(*words)


def test_what_runs_elsewhere_does():
    """There are such lines for every reason, and the tests are there."""
    every = [line for document in DOCUMENTS for line in lines(document)]
    assert len(every) > 80
    for words, test in ELSEWHERE.items():
        assert any(re.search(words, line) for line in every), words
        assert (ROOT / test).is_file()
