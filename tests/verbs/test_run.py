"""`fusebert run`: texts of the command line, of files and of standard input, token ids, JSON lines, and what it says of
texts that were cut; and the fingerprint of a model's vector space."""

import io
import json
import sys

import numpy as np
import pytest
from checkpoints import make_checkpoint

import fusebert
from fusebert.engine.fingerprint import fingerprint


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    heads = ("none", "sequence", "token", "question", "masked")
    return {head: make_checkpoint(tmp_path_factory.mktemp(head), head=head, vocab=True) for head in heads}


@pytest.fixture
def typed(monkeypatch):
    """What comes through standard input, a pipe."""

    def type_(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))

    return type_


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("words", [[], ["-"]])
def test_standard_input_is_read_line_by_line(run, folders, typed, words):
    typed("the cat\nthe dog\n")
    labels = json.loads(run("run", folders["sequence"], *words, "--json"))["labels"]
    assert [row["text"] for row in labels] == ["the cat", "the dog"]
    want = fusebert.load(folders["sequence"]).predict(["the cat", "the dog"])
    assert [row["label"] for row in labels] == [label.label for label in want]


def test_nothing_to_read_and_no_texts_are_told(run, folders, typed, monkeypatch):
    typed("")
    assert "no texts" in run("run", folders["sequence"], code=2)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert "--file FILE" in run("run", folders["sequence"], code=2)
    assert "give one of them" in run("run", folders["sequence"], "the cat", "--file", "x.txt", code=2)
    assert "only files have columns" in run("run", folders["sequence"], "the cat", "--column", "a", code=2)
    assert "x.txt does not exist" in run("run", folders["sequence"], "--file", "x.txt", code=2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "the cat\nthe dog\n"),
        ("a.jsonl", '{"text": "the cat"}\n{"text": "the dog", "more": 1}\n'),
        ("a.csv", 'id,text\n1,"the cat"\n2,the dog\n'),
        ("a.tsv", "id\ttext\n1\tthe cat\n2\tthe dog\n"),
    ],
)
def test_files_of_every_kind(run, folders, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    rows = lines(run("run", folders["none"], "--file", tmp_path / name, "--jsonl"))
    assert [row["text"] for row in rows] == ["the cat", "the dog"]
    want = fusebert.load(folders["none"]).encode(["the cat", "the dog"])
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), want)


def test_columns_pairs_and_rows_that_cannot_be_used(run, folders, tmp_path):
    table = tmp_path / "pairs.csv"
    table.write_text('a,b\nthe cat,"the dog, red"\n')
    (row,) = lines(run("run", folders["question"], "--file", table, "--columns", "a,b", "--jsonl"))
    answer = fusebert.load(folders["question"]).predict([("the cat", "the dog, red")])[0]
    assert row == {"text": ["the cat", "the dog, red"], "answer": answer.text, "start": answer.start,
                   "end": answer.end, "score": answer.score}  # fmt: skip
    assert "no column 'text'; its columns are 'a', 'b'" in run("run", folders["none"], "--file", table, code=2)
    (tmp_path / "bad.jsonl").write_text('{"text": "the cat"}\n{"text": 3}\n')
    said = run("run", folders["none"], "--file", tmp_path / "bad.jsonl", code=2)
    assert "row 2: text is not a string" in said


def test_a_wrong_separator_is_told(run, folders, tmp_path):
    (tmp_path / "tabs.csv").write_text("id\ttext\n1\tthe cat\n")
    assert "call it .tsv" in run("run", folders["none"], "--file", tmp_path / "tabs.csv", code=2)
    (tmp_path / "commas.tsv").write_text("id,text\n1,the cat\n")
    said = run("embed", folders["none"], tmp_path / "commas.tsv", "-o", tmp_path / "out", code=2)
    assert "only in a file that is called .csv" in said
    said = run("accuracy", folders["sequence"], "--data", tmp_path / "commas.tsv", code=2)
    assert "only in a file that is called .csv" in said


def test_json_lines_in_and_out(run, folders, typed):
    typed('{"text": "the cat"}\n{"text": "the [MASK]"}\n')
    first, second = lines(run("run", folders["masked"], "-", "--jsonl"))
    assert first == {"text": "the cat", "words": []}
    assert set(second["words"][0][0]) == {"word", "score"}
    typed('{"text": "the cat"}\n')
    (entities,) = lines(run("run", folders["token"], "--jsonl"))
    assert [span["text"] for span in entities["entities"]] == ["the", "cat"]
    typed('{"text": "the cat"}\nthe dog\n')
    assert "row 2: the line is not JSON" in run("run", folders["token"], "--jsonl", code=2)


def test_token_ids(run, folders, typed, tmp_path):
    want = fusebert.load(folders["none"]).encode(["the cat"])[0]
    tokens = fusebert.load(folders["none"]).tokenizer(["the cat"])[0].ids
    words = " ".join(map(str, tokens))
    for given in (words, words.replace(" ", ", ")):
        (row,) = lines(run("run", folders["none"], given, "--ids", "--jsonl"))
        assert row["input_ids"] == tokens
        assert np.array_equal(np.array(row["embedding"], np.float32), want)
    typed(json.dumps({"input_ids": tokens}) + "\n")
    (row,) = lines(run("run", folders["none"], "--ids", "--jsonl"))
    assert np.array_equal(np.array(row["embedding"], np.float32), want)
    assert "labels" in json.loads(run("run", folders["sequence"], words, "--ids", "--json"))
    for wrong in ("the cat", "", "-5", "1.5"):
        assert "token ids are expected" in run("run", folders["none"], "--ids", "--", wrong, code=2)
    assert "outside" in run("run", folders["none"], "--ids", "99999", code=2)
    assert "positions for" in run("run", folders["none"], "--ids", "5 " * 1000, code=2)
    assert "give texts" in run("run", folders["token"], "--ids", words, code=2)


def test_ids_need_no_tokenizer_and_a_tokenizer_may_be_elsewhere(run, folders, tmp_path):
    bare = make_checkpoint(tmp_path / "bare")
    assert "--tokenizer or --ids" in run("run", bare, "the cat", code=2)
    assert lines(run("run", bare, "2 5 3", "--ids", "--jsonl"))
    got = json.loads(run("run", bare, "the cat", "--tokenizer", folders["none"], "--json"))
    assert len(got["embeddings"]) == 1


def test_cut_texts_are_said(run, folders, typed):
    longest = fusebert.load(folders["none"]).tokenizer.max_length
    notes = json.loads(run("run", folders["none"], "the " * 500, "the cat", "--json"))["notes"]
    assert notes == [f"1 of 2 texts is longer than {longest} tokens; the rest was cut off."]
    assert f"1 of 1 texts is longer than {longest} tokens" in run("run", folders["none"], "the " * 500, "--jsonl")
    assert json.loads(run("run", folders["none"], "the cat", "--json"))["notes"] == []


def test_many_texts_have_no_table_of_similarities(run, folders, typed):
    typed("the cat\n" * 300)
    assert "at most 16" in run("run", folders["none"])
    typed('{"text": "the cat"}\n' * 300)
    assert len(lines(run("run", folders["none"], "--jsonl"))) == 300


def test_the_fingerprint_is_that_of_the_server(run, folders, tmp_path):
    """Of weights, precision, pooling and prompts; a checkpoint and its artifact are one space."""

    def told(path, *words):
        return json.loads(run("run", path, "--fingerprint", "--json", *words))["fingerprint"]

    own = told(folders["none"])
    model = fusebert.load(folders["none"])
    assert own == fingerprint(model)
    model.save(tmp_path / "artifact")
    assert told(tmp_path / "artifact") == own
    assert told(folders["none"], "--pooling", "mean") == own
    others = {told(folders["none"], "--pooling", "cls"), told(folders["none"], "--precision", "int8"), own}
    assert len(others) == 3
    assert own in run("run", folders["none"], "--fingerprint")
