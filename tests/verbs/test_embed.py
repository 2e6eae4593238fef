"""What `embed` writes is what `encode` and `predict` say of each row, in order, and the same bytes however often it was
killed on the way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from checkpoints import WORDS, make_checkpoint

import fusebert
from fusebert.engine.topology import Node
from fusebert.errors import FusebertError
from fusebert.formats import parts
from fusebert.verbs import embed_here
from fusebert.verbs import windows as module
from fusebert.verbs.windows import Place, Settings

TEXTS = [" ".join(WORDS[(i + j) % 7] for j in range(1 + i % 9)) for i in range(130)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {head: make_checkpoint(folder / head, head=head, vocab=True, labels=2) for head in ("none", "sequence")}


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [{"id": f"d{i}", "text": text, "other": "the mat"} for i, text in enumerate(TEXTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"id": "bad", "text": 5}\n')
    return path


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 40)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_has_the_vectors_that_encode_gives(models, data, tmp_path):
    report = fusebert.embed(models["none"], data, tmp_path / "out", Settings(keep=("id",)))
    table = pq.read_table(tmp_path / "out")
    want = fusebert.load(models["none"]).encode(TEXTS)
    assert np.array_equal(np.stack(table["embedding"].to_numpy()), want)
    assert table["row"].to_pylist() == list(range(130))
    assert table["id"].to_pylist() == [f"d{i}" for i in range(130)]
    assert (report.facts["rows"], report.facts["rejected"], report.facts["parts"]) == (131, 1, 4)
    told = [json.loads(line) for line in (tmp_path / "out" / "_rejected.jsonl").read_text().splitlines()]
    assert told == [{"row": 130, "reason": "text is not a string but a int", "id": "bad"}]


def test_one_file_of_numbers_has_a_row_for_every_row(models, data, tmp_path):
    want = fusebert.load(models["none"]).encode(TEXTS)
    for dtype in ("float32", "float16", "int8"):
        fusebert.embed(models["none"], data, tmp_path / f"{dtype}.npy", Settings(dtype=dtype))
        got = np.load(tmp_path / f"{dtype}.npy")
        assert (got.shape, got.dtype) == ((131, want.shape[1]), dtype)
        assert (got[130] == 0).all() if dtype == "int8" else np.isnan(got[130]).all()
        length = np.linalg.norm(got[:130].astype(np.float64), axis=1)
        cosine = (got[:130] * want).sum(1) / length
        assert cosine.min() > 1 - {"float32": 1e-6, "float16": 1e-5, "int8": 1e-3}[dtype]
        assert (tmp_path / f"{dtype}.rejected.jsonl").read_text().count("\n") == 1
    assert not list(tmp_path.glob(".*"))


def test_labels_scores_and_token_vectors(models, data, tmp_path):
    model = fusebert.load(models["sequence"])
    pairs = [(text, "the mat") for text in TEXTS]
    fusebert.embed(model, data, tmp_path / "a.jsonl", Settings(task="classify"))
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == [label.label for label in model.predict(TEXTS)]
    fusebert.embed(model, data, tmp_path / "b.npy", Settings(("text", "other"), task="score"))
    want = [list(label.scores.values())[-1] for label in model.predict(pairs)]
    assert np.allclose(np.load(tmp_path / "b.npy")[:130], want, atol=1e-7)
    fusebert.embed(models["none"], data, tmp_path / "c", Settings(task="tokens"))
    tokens = [np.stack(rows) for rows in pq.read_table(tmp_path / "c")["tokens"].to_pylist()]
    want = fusebert.load(models["none"]).encode_tokens(TEXTS)
    assert all(np.array_equal(got, rows) for got, rows in zip(tokens, want, strict=True))


def test_workers_side_by_side_on_several_nodes_write_the_same_bytes(models, data, tmp_path, monkeypatch):
    fusebert.embed(models["none"], data, tmp_path / "one")
    fusebert.embed(models["none"], data, tmp_path / "three", place=Place(workers=3), threads=3)
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(embed_here, "nodes", lambda: [Node(0, (cores[0],)), Node(1, (cores[-1],))])
    fusebert.embed(models["none"], data, tmp_path / "nodes")
    fusebert.embed(fusebert.load(models["none"]), data, tmp_path / "nodes too", place=Place(workers=5))
    assert (
        files(tmp_path / "one")
        == files(tmp_path / "three")
        == files(tmp_path / "nodes")
        == files(tmp_path / "nodes too")
    )


def test_a_row_on_which_the_model_fails_or_is_not_finite_is_rejected_alone(models, data, tmp_path, monkeypatch):
    model = fusebert.load(models["none"])
    encode, ids = model.encode, [model.tokenizer([text])[0].ids for text in ("the", "the cat")]

    def poisoned(tokens, **options):
        if any(one.ids == ids[0] for one in tokens):
            raise ValueError("it is poison")
        vectors = encode(tokens, **options)
        vectors[[one.ids == ids[1] for one in tokens]] = np.nan
        return vectors

    monkeypatch.setattr(model, "encode", poisoned)
    texts = ["the cat sat", "the", "the dog", "the cat", "the dog ran"]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    report = fusebert.embed(model, tmp_path / "a.txt", tmp_path / "v.npy")
    told = [json.loads(line) for line in (tmp_path / "v.rejected.jsonl").read_text().splitlines()]
    assert told == [
        {"row": 1, "reason": "the model failed on it: it is poison"},
        {"row": 3, "reason": "the model's answer is not a finite number"},
    ]
    got, wanted = np.load(tmp_path / "v.npy"), encode(texts)
    assert np.array_equal(got[[0, 2, 4]], wanted[[0, 2, 4]])
    assert np.isnan(got[[1, 3]]).all()
    assert report.facts["rejected"] == 2
    (tmp_path / "a.txt").write_text("the\nthe\n")
    with pytest.raises(ValueError, match="poison"):  # that is not a matter of rows
        fusebert.embed(model, tmp_path / "a.txt", tmp_path / "w.npy")


def test_killed_at_twenty_moments_it_ends_with_the_same_bytes(models, data, tmp_path):
    data.write_text(data.read_text() * 12)
    program = Path(__file__).parents[1] / "embed_killed.py"
    for name, kills in (("whole", "0"), ("killed", "20")):
        command = [sys.executable, str(program), str(models["none"]), str(data), str(tmp_path / name), kills]
        told = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        )
        assert int(told.stdout) <= int(kills)
    assert int(told.stdout) > 5, "few of the kills hit work that was under way"
    assert files(tmp_path / "killed") == files(tmp_path / "whole")


PEAK = """import resource, sys, fusebert
from fusebert.verbs import windows
windows._ROWS = 200
fusebert.embed(sys.argv[1], sys.argv[2], sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"""


def test_memory_does_not_grow_with_the_input(models, tmp_path):
    """Ten times the rows, each with far more beside its text than is kept: 80 MB in all."""
    peaks = []
    for rows in (4_000, 40_000):
        line = json.dumps({"text": TEXTS[rows % 130], "more": "x" * 2000}) + "\n"
        with (tmp_path / f"{rows}.jsonl").open("w") as file:
            file.writelines(line for _ in range(rows))
        command = [sys.executable, "-c", PEAK, models["none"], tmp_path / f"{rows}.jsonl", tmp_path / f"{rows}.npy"]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) << 10)
    assert peaks[1] - peaks[0] < 24 << 20


def test_a_full_disk_is_told_and_the_same_command_goes_on(models, data, tmp_path, monkeypatch):
    whole = fusebert.embed(models["none"], data, tmp_path / "whole")
    write = parts._write_parquet

    def full(file, part):
        write(file, part)
        if part.number == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setitem(parts._WRITERS, ".parquet", full)
    with pytest.raises(FusebertError, match=r"No space left.*the same command goes on"):
        fusebert.embed(models["none"], data, tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(module, "_ROWS", 40)
    report = fusebert.embed(models["none"], data, tmp_path / "out")
    assert "2 parts were there already." in report.notes
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert fusebert.embed(models["none"], data, tmp_path / "out").facts["rows"] == whole.facts["rows"]


def test_other_work_is_refused_with_the_difference(models, data, tmp_path):
    out = tmp_path / "out"
    fusebert.embed(models["none"], data, out)
    with pytest.raises(FusebertError, match=r'options was .*"float32".*, now .*"float16"'):
        fusebert.embed(models["none"], data, out, Settings(dtype="float16"))
    with pytest.raises(FusebertError, match=r"model was"):
        fusebert.embed(models["none"], data, out, precision="bf16")
    data.write_text(data.read_text().replace("bad", "BAD"))
    with pytest.raises(FusebertError, match=r"input was"):
        fusebert.embed(models["none"], data, out)
    fusebert.embed(models["none"], data, out, overwrite=True)
    assert not fusebert.embed(models["none"], data, out).notes[0].startswith("4 parts")


def test_nothing_of_another_kind_is_harmed(models, data, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "mine.npy").write_text("x")
    for name, overwrite in (("mine", True), ("mine", False), ("mine.npy", False)):
        with pytest.raises(FusebertError, match=r"another kind|exists"):
            fusebert.embed(models["none"], data, tmp_path / name, overwrite=overwrite)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".profile").write_text("mine")
    (tmp_path / "v.rejected.jsonl").write_text("mine")
    for name in ("hidden", "v.npy"):
        with pytest.raises(FusebertError, match=r"another kind|exists"):
            fusebert.embed(models["none"], data, tmp_path / name)
    assert (tmp_path / "hidden" / ".profile").read_text() == "mine"
    assert (tmp_path / "mine.npy").read_text() == "x"


def test_the_command_reads_standard_input_and_prints_json(models, tmp_path):
    command = [
        sys.executable,
        "-m",
        "fusebert",
        "embed",
        str(models["none"]),
        "-",
        "-o",
        str(tmp_path / "v.npy"),
        "--json",
    ]
    done = subprocess.run(command, input="the cat\nthe dog sat\n", capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert (told["rows"], told["rejected"]) == (2, 0)
    assert np.load(tmp_path / "v.npy").shape == (2, 16)


def test_texts_that_are_too_long_are_cut_or_with_strict_rejected(models, tmp_path):
    (tmp_path / "a.txt").write_text("cat\n" + "cat " * 50 + "\n")
    for strict, rejected in ((False, 0), (True, 1)):
        report = fusebert.embed(models["none"], tmp_path / "a.txt", tmp_path / f"{strict}", Settings(strict=strict))
        assert report.facts["rejected"] == rejected


def test_windows_wait_for_answers_to_be_written(models, tmp_path, monkeypatch):
    """At most two windows are under way: one is answered while the next one is read."""
    monkeypatch.setattr(module, "_CHARACTERS", 2000)
    alive, most = 0, 0

    class Counted(list):
        def __init__(self, rows):
            nonlocal alive, most
            super().__init__(rows)
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    cut = module.windows
    monkeypatch.setattr(embed_here, "windows", lambda rows, settings: (Counted(w) for w in cut(rows, settings)))
    (tmp_path / "a.txt").write_text("the cat sat\n" * 3000)
    fusebert.embed(models["none"], tmp_path / "a.txt", tmp_path / "out")
    assert 1 <= most <= 3


def test_what_does_not_fit_the_model_is_refused_before_anything_is_written(models, data, tmp_path):
    with pytest.raises(FusebertError, match="needs a sequence classifier"):
        fusebert.embed(models["none"], data, tmp_path / "out", Settings(task="classify"))
    with pytest.raises(FusebertError, match="dtype 'float8' is unknown"):
        Settings(dtype="float8")
    assert not (tmp_path / "out").exists()
