"""optimize on texts that the user gives, instead of random ids; static ranges are judged on them, too."""

import json

import pytest
import stock

import fusebert
from fusebert.errors import FusebertError

WORDS = ["the cat sat", "a dog ran", "what is red", "who are blue", "green is the cat", "b c d e f"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    (folder / "texts.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "task.tsv").write_text("\n".join(f"{text}\t{i % 2}" for i, text in enumerate(WORDS)) + "\n")
    return stock.make_reader(folder / "model", "sequence").parent


@pytest.mark.parametrize("words", [["--data", "texts.txt"], ["--task", "task.tsv"]])
def test_answers_are_compared_on_the_texts_that_are_given(reader, run, tmp_path, words):
    option, file = words
    told = json.loads(run("optimize", reader / "model", "-o", tmp_path / "out", option, reader / file, "--json"))
    assert "on the texts that were given" in " ".join(told["notes"])
    assert told["verdict"] == "same answers within tolerance"
    (row,) = told["differences_in_decisions"]
    assert row["decisions"] == len(WORDS)


def test_texts_need_a_tokenizer(reader, tmp_path):
    bare = stock.make(tmp_path / "bare", "bert", vocab_size=len(stock.WORDS))
    with pytest.raises(FusebertError, match=r"no tokenizer beside it.*--tokenizer"):
        fusebert.optimize(bare, tmp_path / "out", data=reader / "texts.txt")
    assert fusebert.optimize(bare, tmp_path / "out", data=reader / "texts.txt", tokenizer=reader / "model")


def test_calibrate_then_optimize_with_the_ranges(reader, run, tmp_path):
    run("calibrate", reader / "model", "--data", reader / "texts.txt", "-o", tmp_path / "factors.json")
    words = ["--ranges", tmp_path / "factors.json", "--data", reader / "texts.txt"]
    told = run("optimize", reader / "model", "-o", tmp_path / "static", *words)
    assert "same answers within tolerance" in told
    assert "on the texts that were given" in told
