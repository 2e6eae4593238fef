"""Task scores: the files they come from, the numbers, and that every kind of model is scored beside its original."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import stock
import zoo

from fusebert import accuracy, cli
from fusebert.errors import FusebertError
from fusebert.measure.accuracy import class_scores, spearman
from fusebert.measure.tasks import find_task, read_task, read_texts
from fusebert.verbs.optimize import optimize

RANDOM = np.random.default_rng(0)


def sentence(most: int = 9) -> str:
    return " ".join(RANDOM.choice(stock.SPOKEN, RANDOM.integers(1, most)))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {head: stock.make_reader(tmp_path_factory.mktemp(head), head) for head in ("none", "sequence")}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Tasks of 20 texts: classes by number and by name, values of pairs."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [(sentence(), sentence(), i % 3, f"LABEL_{i % 3}", i / 4) for i in range(20)]
    (folder / "classes.tsv").write_text("label\ttext\n" + "".join(f"{c}\t{a}\n" for a, _, c, _, _ in rows))
    (folder / "words.tsv").write_text("".join(f"{a}\t{b}\t{word}\n" for a, b, _, word, _ in rows))
    (folder / "values.tsv").write_text(
        "text\ttext2\tlabel\n" + "".join(f"{a}\t{b}\t{value}\n" for a, b, _, _, value in rows)
    )
    return folder


def by_engine(report, table):
    return {row["engine"]: row for row in report.data()[table]}


# ---- the real thing ----


def test_mrpc_scores_of_a_fine_tuned_model(shared_data):
    model = shared_data.parent / "models" / "minilm-mrpc"
    if not model.is_dir():
        pytest.skip(f"{model} is not there")
    report = accuracy([model], "mrpc", shared_data / "mrpc_dev.tsv", precisions=("fp32", "bf16", "int8"))
    scores, differences = by_engine(report, "scores"), by_engine(report, "difference_to_stock")
    assert (scores["torch"]["correct"], scores["torch"]["total"], scores["torch"]["f1"]) == (329, 408, 86.63)
    assert differences["fusebert fp32"]["flips"] == 0
    assert differences["fusebert fp32"]["max"] <= 1e-4
    for precision in ("fp32", "bf16", "int8"):
        assert abs(scores[f"fusebert {precision}"]["accuracy"] - scores["torch"]["accuracy"]) <= 0.5


def test_stsb_scores_of_an_embedding_model(minilm, shared_data):
    report = accuracy([minilm], "stsb", shared_data / "stsb_dev.tsv", samples=60, precisions=("fp32", "int8"))
    scores, differences = by_engine(report, "scores"), by_engine(report, "difference_to_stock")
    assert report.facts["answers"] == "embeddings"
    assert scores["torch"]["spearman"] == scores["fusebert fp32"]["spearman"] > 80
    assert abs(scores["fusebert int8"]["spearman"] - scores["torch"]["spearman"]) <= 0.5
    assert differences["fusebert int8"]["worst_cosine"] >= 0.995
    assert "flips" not in differences["torch"]


# ---- scores ----


def test_scores_are_what_the_textbook_says():
    right, said = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    assert class_scores(said, right, f1=True) == {"correct": 3, "total": 5, "accuracy": 60.0, "f1": 66.67}
    assert "f1" not in class_scores(said, right, f1=False)
    assert class_scores(said * 0, right * 0, f1=True)["f1"] == 0
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 40, 30])) == pytest.approx(0.8)
    assert spearman(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 2, 3])) == pytest.approx(1)
    assert spearman(np.ones(4), np.arange(4.0)) == 0


# ---- files ----


def test_the_three_known_files_are_recognised(tmp_path):
    mrpc, sst2, stsb = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    mrpc.write_text(f'{header}1\t2\t3\t" one\ttwo\r\n', encoding="utf-8", newline="")
    sst2.write_text("0 bad \u2028 film .\n1 good\n", encoding="utf-8")
    stsb.write_text("main\tf\t2012\t01\t2.5\tone\ttwo\textra\n")
    tasks = [read_task(path) for path in (mrpc, sst2, stsb)]
    assert [task.name for task in tasks] == ["mrpc", "sst2", "stsb"]
    assert [task.kind for task in tasks] == ["classes", "classes", "values"]
    assert [task.texts for task in tasks] == [(('" one', "two"),), ("bad \u2028 film .", "good"), (("one", "two"),)]
    assert [task.labels for task in tasks] == [("1",), ("0", "1"), ("2.5",)]
    glue = tmp_path / "glue"
    glue.write_text("sentence\tlabel\ngood\t1\n")
    assert find_task("sst2", glue).texts == ("good",)


def test_commas_separate_columns_in_csv(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text('text,label\n"good, really",1\nbad,0\n')
    task = read_task(table)
    assert (task.texts, task.labels) == (("good, really", "bad"), ("1", "0"))
    assert read_texts(table).texts == ("good, really", "bad")
    table.write_text('text\n"good, really"\n')
    assert read_texts(table).texts == ("good, really",)
    (tmp_path / "b.csv").write_text("good\tthere\t1\n")
    with pytest.raises(FusebertError, match=r"call it \.tsv"):
        read_task(tmp_path / "b.csv")


def test_own_files_with_and_without_header(files, tmp_path):
    assert read_task(files / "classes.tsv").kind == ""
    assert not read_task(files / "classes.tsv").pairs
    assert read_task(files / "words.tsv").kind == "classes"
    assert read_task(files / "values.tsv").kind == "values"
    assert read_task(files / "values.tsv").pairs
    assert find_task(files / "values.tsv", None) == read_task(files / "values.tsv")
    assert len(read_task(files / "values.tsv").spread(7).texts) == 7
    (tmp_path / "lines").write_text("one text\n\nanother\n")
    assert read_texts(tmp_path / "lines").texts == ("one text", "another")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no texts"),
        (b"text\tlabel\n", "no texts"),
        (b"text\tlabel\nonly\n", "line 2: 1 columns, but there must be 2"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_bad_file_is_one_clear_sentence(tmp_path, content, sentence):
    (tmp_path / "file.tsv").write_bytes(content)
    with pytest.raises(FusebertError, match=sentence):
        read_task(tmp_path / "file.tsv")


def test_a_task_needs_its_file_and_a_model_that_fits(files, folders, tmp_path):
    for task, data, sentence in (
        ("mrpc", None, "give --data"),
        ("cola", files / "values.tsv", "use one of mrpc, sst2, stsb"),
        (tmp_path / "none.tsv", None, "does not exist"),
    ):
        with pytest.raises(FusebertError, match=sentence):
            find_task(task, data)
    for head, task, sentence in (
        ("none", "words.tsv", "needs a classifier"),
        ("none", "classes.tsv", "need pairs"),
        ("sequence", "values.tsv", "values to be ranked"),
    ):
        with pytest.raises(FusebertError, match=sentence):
            accuracy([folders[head]], files / task)
    (tmp_path / "far.tsv").write_text("text\tlabel\nthe cat\t3\n")
    (tmp_path / "unknown.tsv").write_text("text\tlabel\nthe cat\tanimal\n")
    for task, sentence in (("far.tsv", "knows 3 classes, but there is a label 3"), ("unknown.tsv", "LABEL_0, LABEL_1")):
        with pytest.raises(FusebertError, match=sentence):
            accuracy([folders["sequence"]], tmp_path / task)
    for more, sentence in (({"precisions": ["fp8"]}, "fp32, bf16"), ({"pooling": "sum"}, "mean, cls"),
                           ({"tokenizer": tmp_path}, "--tokenizer")):  # fmt: skip
        with pytest.raises(FusebertError, match=sentence):
            accuracy([folders["sequence"]], files / "classes.tsv", **more)


# ---- engines ----


def test_the_command_writes_json_and_csv(folders, files, tmp_path, capsys):
    words = ["accuracy", folders["sequence"], "--task", files / "words.tsv", "--csv", tmp_path / "out.csv", "--json"]
    with pytest.raises(SystemExit):
        cli.main([*map(str, words), "--batch-size", "7", "--samples", "18"])
    report = json.loads(capsys.readouterr().out)
    engines = ["torch", "fusebert fp32", "fusebert bf16", "fusebert int8", "fusebert int8-bf16"]
    assert [row["engine"] for row in report["scores"]] == engines
    assert report["samples"] == report["scores"][0]["total"] == 18
    assert report["scores"][0]["correct"] == report["scores"][1]["correct"]
    assert report["difference_to_stock"][1]["max"] < 1e-4
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["engine"] for row in rows] == engines
    assert {"accuracy", "seconds", "max", "mean", "cosine", "flips", "task"} <= set(rows[0])


def test_batches_do_not_change_the_scores(folders, files):
    results = [accuracy([folders["none"]], files / "values.tsv", precisions=["fp32"], batch_size=n) for n in (3, 32)]
    for engine in ("torch", "fusebert fp32"):
        first, second = (by_engine(report, "scores")[engine] for report in results)
        assert first["spearman"] == pytest.approx(second["spearman"], abs=0.2)


def test_without_torch_fp32_stands_in(folders, files, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    report = accuracy([folders["sequence"]], files / "classes.tsv", precisions=["int8"])
    assert [row["engine"] for row in report.data()["scores"]] == ["fusebert fp32", "fusebert int8"]
    assert "torch, which is missing" in report.notes[0]


def scored(original: Path, optimised: Path, task: Path, tokenizer: Path):
    report = accuracy([original, optimised], task, tokenizer=tokenizer)
    rows, differences = report.data()["scores"], report.data()["difference_to_stock"]
    assert len(rows) == 2
    assert rows[0]["correct"] == rows[1]["correct"]
    assert differences[1]["flips"] == 0
    assert differences[1]["max"] < 1e-3


def test_an_optimised_onnx_model_and_an_artifact_beside_the_original(files, folders, tmp_path):
    original = zoo.get("onnx-bert-sequence").make()
    for out in (tmp_path / "model.onnx", tmp_path / "artifact"):
        optimize(original, out, "fp32", verify=False)
        scored(original, out, files / "classes.tsv", folders["sequence"])


def test_an_optimised_savedmodel_beside_the_original(files, folders, tmp_path):
    pytest.importorskip("tensorflow")
    original = zoo.get("tf-bert-sequence").make()
    optimize(original, tmp_path / "saved", "fp32", verify=False)
    scored(original, tmp_path / "saved", files / "classes.tsv", folders["sequence"])


def test_a_model_that_insists_on_sizes_gets_them(files, folders):
    original = zoo.get("onnx-bert-17-static").make()  # 2 x 6
    report = accuracy([original], files / "values.tsv", samples=5, precisions=["fp32"], tokenizer=folders["none"])
    rows = report.data()["scores"]
    assert [row["total"] for row in rows] == [5, 5]
    assert rows[0]["spearman"] == rows[1]["spearman"]
