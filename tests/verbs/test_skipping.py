"""verbs/skipping.py: optimize says what skipping hidden positions would gain where only outputs show them, and compare
holds such outputs to the original there."""

from __future__ import annotations

import re

import zoo

import fusebert
from fusebert.measure.compare import compare


def test_what_only_outputs_show_is_computed_and_the_gain_of_skipping_it_told(tmp_path):
    path = zoo.get("onnx-bert-token").make()
    report = fusebert.optimize(path, tmp_path / "fused.onnx", precision="fp32")
    (note,) = [note for note in report.notes if "--padding skip" in note]
    assert 0 < int(re.search(r"a layer takes (\d+)%", note)[1]) < 100
    assert [row["hidden_positions"] for row in report.data()["encoders"]] == ["compute"]
    found = compare(path, tmp_path / "fused.onnx")
    assert found.same
    assert found.hidden_count
    assert found.hidden


def test_what_is_skipped_on_demand_does_not_count(tmp_path):
    path = zoo.get("onnx-bert-token").make()
    report = fusebert.optimize(path, tmp_path / "fused.onnx", precision="fp32", padding="skip")
    assert not [note for note in report.notes if "--padding skip" in note]
    found = compare(path, tmp_path / "fused.onnx")
    assert found.same
    assert not found.hidden_count
    assert "hidden positions, which do not count, differ" in found.facts["verdict"]


def test_where_a_head_reads_the_rows_there_is_nothing_to_tell(tmp_path):
    report = fusebert.optimize(zoo.get("onnx-bert-sequence").make(), tmp_path / "fused.onnx", precision="fp32")
    assert not [note for note in report.notes if "--padding skip" in note]
