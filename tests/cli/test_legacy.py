"""Command lines of earlier tools in today's words, and the page that shows the table of them. tests/walks runs the
documents' own lines."""

import pytest
from documented import table
from typer.main import get_command

from fusebert.cli.call import app
from fusebert.cli.legacy import EARLIER, PROGRAMS, Left, Several, translate


def words(line: str, said: list[str] | None = None) -> str:
    return " ".join(translate(line.split(), (said if said is not None else []).append))


def test_the_page_shows_the_tables_that_the_commands_use():
    programs = {name.removesuffix(".py").replace("_", "-"): now.removeprefix("fusebert ")
                for name, now in table("Programs")}  # fmt: skip
    assert {name: now for name, now in programs.items() if name != now} == PROGRAMS
    shown = {(command, option): now for command, option, now in table("Options")}
    assert shown == {(c, option): told(now) for c, options in EARLIER.items() for option, now in options.items()}


def test_options_that_have_kept_their_names_are_there():
    commands = get_command(app).commands
    for command, options in table("Options that have kept their names"):
        known = {word for one in commands[command].params for word in (*one.opts, *one.secondary_opts)}
        assert set(options.split()) <= known, command


def told(now: int | str | Left | Several) -> str:
    """What the page says of an option."""
    if isinstance(now, int):
        return f"the {('first', 'second')[now]} argument"
    if isinstance(now, Left):
        return f"left out: {now.why}"
    return now if isinstance(now, str) else "may have several values"


@pytest.mark.parametrize(("line", "now"), [
    ("", ""),
    ("--help", "--help"),
    ("bert_model_optimization.py --input a.onnx --output=b.onnx", "optimize a.onnx --out=b.onnx"),
    ("compare --optimized_model b --samples 3 --baseline_model a", "compare a b --samples 3"),
    ("bench -m x -b 1 4 8 --seq-len=128", "bench x -b 1 -b 4 -b 8 --seq-len=128"),
    ("bench -b 1 model.onnx", "bench -b 1 model.onnx"),
    ("bench -b nonsense", "bench -b nonsense"),
    ("bench -b", "bench -b"),
    ("extract_pattern m -s a -b c d -B Const -m 0", "extract-pattern m -s a -b c -b d -B Const -m 0"),
    ("bert_client.py --cycle 128", "load-test --clients 1 --cycle 128"),
    ("run model --input -- --output", "run model --input -- --output"),
    ("optimize a -- --input", "optimize a -- --input"),
])  # fmt: skip
def test_words_of_earlier_tools(line, now):
    assert words(line) == now


def test_what_is_left_out_is_said():
    said = []
    assert words("optimize --input a --model_type bert_tf --gpu_only -o b", said) == "optimize a -o b"
    assert [sentence.partition(":")[0] for sentence in said] == ["--model_type is left out", "--gpu_only is left out"]


def test_underscores_are_dashes(run, tmp_path):
    assert "nothing does not exist" in run("compare", tmp_path / "nothing", tmp_path / "b", "--batch_size", 2, code=2)
    assert "--batch-size" in run("accuracy", "-h")


def test_aggressive_is_a_precision(run, tmp_path):
    said = run("optimize", tmp_path, "-o", tmp_path / "out", "--aggressive", "--precision", "fp32", code=2)
    assert "--aggressive is --precision int8-bf16" in said
