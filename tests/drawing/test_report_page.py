"""Reports as pages: the numbers of the JSON and nothing else, safe to open from disk, for everybody."""

import html
import json
import re
from pathlib import Path

import pytest
from browser import browser, page_of, violations
from checkpoints import make_checkpoint
from golden.answers import GOLDEN

import fusebert
from fusebert.drawing import page, text
from fusebert.report import Report, Table

ONNX = GOLDEN / "onnx/source.onnx"


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture
def made(run, tmp_path):
    """The page and the JSON of one run."""
    path = tmp_path / "report.html"
    printed = run("optimize", ONNX, "-o", tmp_path / "out.onnx", "--report", path, "--json")
    return path, json.loads(printed)


def test_its_numbers_are_those_of_the_json(made):
    path, data = made
    text = path.read_text()
    stored = re.search(r'<pre id="data"[^>]*>(.*?)</pre>', text, re.DOTALL)[1]
    assert json.loads(html.unescape(stored)) == data
    numbers = {value for table in data.values() if isinstance(table, list) for row in table if isinstance(row, dict)
               for value in row.values() if isinstance(value, int | float)}  # fmt: skip
    shown = {float(value) for value in re.findall(r'data-value="([^"]+)"', text)}
    assert shown
    assert shown <= numbers | {0.0}
    elements = sum(row["elements"] for row in data["distribution"])
    assert elements > 100
    assert data["nodes_after"] < data["nodes_before"]


def test_it_has_no_scripts_and_asks_no_network(made, chromium):
    text = made[0].read_text()
    assert "<script" not in text
    assert not re.search(r"""(?:src|href)=["']|url\(|@import""", text)
    context = chromium.new_context(offline=True)
    opened, said = context.new_page(), []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:") else None)
    opened.goto(made[0].as_uri())
    assert "encoder" in opened.locator("svg").first.get_attribute("aria-label").lower()
    assert len(opened.pdf(format="A4")) > 1000
    assert said == []
    context.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_it(made, chromium, width, scheme):
    with page_of(chromium, made[0].as_uri(), width, scheme=scheme) as opened:
        assert violations(opened) == []
        assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_one_that_is_there_is_replaced_and_nothing_else(run, tmp_path):
    words = ("compare", ONNX, ONNX, "--samples", 1, "--sequence-length", 8, "--report")
    path, other = tmp_path / "report.html", tmp_path / "other.html"
    run(*words, path)
    run(*words, path)
    other.write_text("<!doctype html>mine")
    assert "never replaced" in run(*words, other, code=2)
    assert other.read_text() == "<!doctype html>mine"


def test_names_are_text_whatever_they_hold():
    evil = "<script>alert(1)</script>"
    report = Report(evil, {evil: evil}, (Table(evil, (evil,), ((evil,), (float("nan"),))),), (evil,))
    for drawn in (page(report, evil, {evil: evil}), report._repr_html_()):
        assert "<script" not in drawn


def test_notebooks_show_models_reports_and_findings(minilm: Path):
    model = fusebert.load(minilm, precision="int8")
    assert ">int8<" in model._repr_html_()
    finding = fusebert.find(fusebert.read(ONNX))
    assert "1 encoder found" in finding._repr_html_()
    assert "post-norm" not in Report("title", {"fact": 1})._repr_html_()


def test_ranges_are_drawn_by_product_and_layer(run, tmp_path):
    """Of int8, and of what calibrate chose beside what it saw."""
    model = make_checkpoint(tmp_path / "model", vocab=True)
    (tmp_path / "texts.txt").write_text("the cat sat\nthe dog ran on the mat\n")
    factors = ("--data", tmp_path / "texts.txt", "-o", tmp_path / "factors.json")
    for words in (("optimize", model, "-o", tmp_path / "out"), ("calibrate", model, *factors)):
        data = json.loads(run(*words, "--report", tmp_path / "report.html", "--json"))
        drawn = re.findall(r'aria-label="ranges of ([^"]+?): ([^"]+)"', (tmp_path / "report.html").read_text())
        assert len(drawn) == 4
        first = [row for row in data["ranges"] if row["product"] == "qkv"]
        told = "; ".join(f"layer {row['layer']} {text(row['low'])} to {text(row['high'])}" for row in first)
        assert drawn[0] == ("query, key and value", told)
        assert first[0]["low"] < 0 < first[0]["high"]
