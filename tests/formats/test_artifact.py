"""Artifacts: what is saved reads back bit for bit, appears whole or not at all, and version 1 is read for ever."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import FAMILIES, HEADS, edit_config, make_checkpoint
from safetensors.numpy import load_file, save_file

import fusebert
from fusebert import FusebertError
from fusebert.formats import artifact
from fusebert.values.precision import PRECISIONS

IDS = [[2, 5, 6, 7, 3], [2, 9, 3, 0, 0], [4, 39, 20, 3, 1]]
MASK = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0]]
GOLDEN = Path(__file__).parents[1] / "golden" / "artifact-v1"
EXPECTED = GOLDEN.with_name("artifact-v1-expected.json")
TEXTS = ["the cat sat on the mat.", ("dogs ran!", "unable")]


def run(model: fusebert.Model) -> dict[str, Any]:
    return model.run(IDS, MASK, output_hidden_states=True)


def assert_equal(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def save(folder: Path, precision: str = "fp32", head: str = "sequence", family: str = "bert", **sizes: Any) -> Path:
    """A saved artifact of a tiny model."""
    checkpoint = make_checkpoint(folder / "checkpoint", family, head, **({"vocab": True} | sizes))
    fusebert.load(checkpoint, precision, threads=1).save(folder / "saved")
    return folder / "saved"


def refusal(folder: Path, run: bool = True) -> str:
    """The sentence that a folder is refused with; nothing if it loads and runs."""
    try:
        model = fusebert.load(folder, threads=1)
        if run:
            model.run(IDS, MASK)
    except FusebertError as error:
        return str(error)
    return ""


def edit_header(folder: Path, *path: Any, value: Any) -> Path:
    """Sets one field of fusebert.json, or takes it out with Ellipsis."""
    values = json.loads((folder / "fusebert.json").read_text())
    place = values
    for name in path[:-1]:
        place = place[name]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    (folder / "fusebert.json").write_text(json.dumps(values))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# Round trips.


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("family", "head"), [("bert", head) for head in HEADS] + [(family, "masked") for family in FAMILIES[1:]]
)
def test_a_saved_model_gives_bit_equal_outputs(tmp_path: Path, family: str, head: str, precision: str) -> None:
    model = fusebert.load(make_checkpoint(tmp_path / "model", family, head), precision, threads=1)
    model.save(tmp_path / "saved")
    loaded = fusebert.load(tmp_path / "saved", threads=1)
    assert_equal(run(loaded), run(model))
    assert loaded.plan == model.plan
    assert (loaded.network.labels, loaded.network.problem) == (model.network.labels, model.network.problem)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_saving_what_was_loaded_gives_the_same_bytes(tmp_path: Path, precision: str) -> None:
    saved = save(tmp_path, precision, "masked")
    fusebert.load(saved, threads=1).save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(saved)


@pytest.mark.parametrize("precision", ["int8", "int8-bf16"])
def test_a_static_plan_is_kept(tmp_path: Path, precision: str) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    ranges = np.array([[[-3, 4]] * 4] * 2, np.float32) * np.linspace(0.5, 1, 8, dtype=np.float32).reshape(2, 4, 1)
    model = fusebert.load(checkpoint, precision, threads=1, ranges=ranges)
    model.save(tmp_path / "saved")
    loaded = fusebert.load(tmp_path / "saved", threads=1)
    assert loaded.plan == model.plan
    assert loaded.plan.static
    assert_equal(run(loaded), run(model))


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_act": "relu"},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "quick_gelu"},
        {"layer_norm_eps": 0.1},
        {"problem_type": "multi_label_classification"},
        {"problem_type": "regression"},
        {"id2label": {"0": "none", "1": "日本", "2": '"\\ \ud800'}},
        {"num_attention_heads": 4},
    ],
)
def test_every_setting_of_a_model_is_kept(tmp_path: Path, config: dict[str, Any]) -> None:
    model = fusebert.load(edit_config(make_checkpoint(tmp_path / "model", head="sequence"), **config), threads=1)
    model.save(tmp_path / "saved")
    loaded = fusebert.load(tmp_path / "saved", threads=1)
    assert_equal(run(loaded), run(model))
    assert (loaded.network.labels, loaded.network.problem) == (model.network.labels, model.network.problem)


def test_the_tokenizer_and_its_length_are_kept(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model", vocab=True)
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 6}))
    model = fusebert.load(checkpoint, threads=1)
    model.save(tmp_path / "saved")
    loaded = fusebert.load(tmp_path / "saved", threads=1)
    np.testing.assert_array_equal(loaded.encode(TEXTS), model.encode(TEXTS))
    assert json.loads((tmp_path / "saved" / "fusebert.json").read_text())["max_length"] == 6


def test_a_model_without_tokenizer_saves_none(tmp_path: Path) -> None:
    fusebert.load(make_checkpoint(tmp_path / "model"), threads=1).save(tmp_path / "saved")
    assert sorted(contents(tmp_path / "saved")) == ["fusebert.json", "model.safetensors"]
    with pytest.raises(FusebertError, match="tokenizer"):
        fusebert.load(tmp_path / "saved", threads=1).encode(["the cat"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_decoder_is_stored_once_in_fp32(tmp_path: Path, family: str) -> None:
    saved = save(tmp_path, "fp32", "masked", family)
    stored = load_file(saved / "model.safetensors")
    assert "embeddings.word" in stored
    assert "head.1.weight" not in stored
    assert json.loads((saved / "fusebert.json").read_text())["tied"]["head.1.weight"] == "embeddings.word"


def test_weights_are_stored_in_the_types_of_the_plan(tmp_path: Path) -> None:
    for precision, dtype in {"fp32": "float32", "bf16": "bfloat16", "int8": "int8", "int8-bf16": "int8"}.items():
        stored = load_file(save(tmp_path / precision, precision, "masked") / "model.safetensors")
        assert stored["block.0.query.weight"].dtype.name == dtype
        assert stored["block.3.down.weight"].dtype.name == dtype
        assert stored["embeddings.word"].dtype.name == "float32"


def test_an_artifact_refuses_options_that_are_settled(tmp_path: Path) -> None:
    saved = save(tmp_path, "int8")
    assert fusebert.load(saved, "int8", threads=1).plan.precision == "int8"
    for options in ({"precision": "fp32"}, {"head": "none"}, {"ranges": np.zeros((2, 4, 2))}):
        with pytest.raises(FusebertError, match="saved"):
            fusebert.load(saved, **options)


# Whole or not at all.


def test_an_existing_folder_is_not_overwritten_unasked(tmp_path: Path) -> None:
    saved = save(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(FusebertError, match="exists"):
        fusebert.load(tmp_path / "checkpoint", "int8", threads=1).save(saved)
    assert contents(tmp_path) == before


def test_overwriting_replaces_the_whole_folder(tmp_path: Path) -> None:
    saved = save(tmp_path)
    (saved / "left-over").write_text("old")
    fusebert.load(tmp_path / "checkpoint", "int8", threads=1).save(saved, overwrite=True)
    assert fusebert.load(saved, threads=1).plan.precision == "int8"
    assert sorted(contents(saved)) == ["fusebert.json", "model.safetensors", "tokenizer.json"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint", "saved"]


def test_a_model_may_overwrite_the_artifact_that_it_was_loaded_from(tmp_path: Path) -> None:
    saved = save(tmp_path, "int8")
    before = contents(saved)
    model = fusebert.load(saved, threads=1)
    want = run(model)
    model.save(saved, overwrite=True)
    assert contents(saved) == before
    assert_equal(run(model), want)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("bug"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["write", "tokenizer", "rename"])
def test_a_failure_half_way_leaves_the_old_folder_and_no_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: BaseException, overwrite: bool
) -> None:
    saved = save(tmp_path)
    model = fusebert.load(tmp_path / "checkpoint", "int8", threads=1)
    if not overwrite:
        shutil.rmtree(saved)
    before = contents(tmp_path)
    write = artifact.write

    def fail(*arguments: Any) -> None:
        if where == "write":  # in the middle of it
            write(*arguments)
        raise error

    if where == "write":
        monkeypatch.setattr(artifact, "write", fail)
    elif where == "tokenizer":
        monkeypatch.setattr("fusebert.engine.tokenizer.Tokenizer.save", fail)
    else:
        monkeypatch.setattr("fusebert.formats.write._rename", fail)
    with pytest.raises(FusebertError if isinstance(error, OSError) else type(error)):
        model.save(saved, overwrite=overwrite)
    assert contents(tmp_path) == before
    assert sorted(f.name for f in tmp_path.iterdir()) == ["checkpoint", *(["saved"] if overwrite else [])]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FusebertError, match="file/saved"):
        fusebert.load(tmp_path / "checkpoint", threads=1).save(tmp_path / "file" / "saved")


def test_the_saved_folder_and_its_files_obey_the_umask(tmp_path: Path) -> None:
    saved = save(tmp_path)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").write_text("")
    assert saved.stat().st_mode == (tmp_path / "plain").stat().st_mode
    for file in saved.iterdir():
        assert file.stat().st_mode == (tmp_path / "plain" / "file").stat().st_mode, file.name


# Headers and tensors from outside.


def test_a_newer_version_is_refused_with_advice(tmp_path: Path) -> None:
    saved = edit_header(save(tmp_path), "version", value=artifact.VERSION + 1)
    with pytest.raises(FusebertError, match=r"fusebert.json: version 3 is newer .* update fusebert"):
        fusebert.load(saved)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every field in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, part in inner for place in [(*path, name), *_places(part, (*path, name))]]


JUNK = [..., None, -1, 1 << 62, 1e400, float("nan"), "x", [], {}, True]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_junk_in_any_header_field_is_refused_or_harmless(tmp_path: Path, junk: Any) -> None:
    saved = save(tmp_path, "int8", "masked", "electra", layers=1, vocab=False)
    header = (saved / "fusebert.json").read_text()
    for place in _places(json.loads(header)):
        (saved / "fusebert.json").write_text(header)
        sentence = refusal(edit_header(saved, *place, value=junk))
        assert "\n" not in sentence
        if place == ("format",) or (
            place in (("version",), ("max_length",), ("head",), ("precision",)) and junk is not True
        ):
            assert f"fusebert.json: {place[0]} " in sentence or f"{place[0]}." in sentence


@pytest.mark.parametrize("name", ["format", "version", "max_length", "labels", "problem", "embeddings", "blocks",
                                  "order", "head", "precision", "decoder", "tied"])  # fmt: skip
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    saved = edit_header(save(tmp_path), name, value=...)
    with pytest.raises(FusebertError, match=rf"fusebert.json: {name} "):
        fusebert.load(saved)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_missing_or_reshaped_or_retyped_tensor_is_refused(tmp_path: Path, precision: str) -> None:
    saved = save(tmp_path, precision, "masked", "electra", layers=1, vocab=False)
    tensors = load_file(saved / "model.safetensors")
    optional = {"embeddings.kind", *(name for name in tensors if name.endswith((".bias", ".input_scales")))}
    for name, array in tensors.items():
        for changed in (None, array[:-1], array[None], array[..., :0], array.astype(np.int64)):
            new = {n: np.ascontiguousarray(a) for n, a in (tensors | {name: changed}).items() if a is not None}
            save_file(new, saved / "model.safetensors")
            sentence = refusal(saved)
            assert "\n" not in sentence
            # Fewer positions or token types are a smaller model, not a broken one.
            smaller = name in ("embeddings.kind", "embeddings.position")
            assert sentence or smaller or (changed is None and name in optional), (name, np.shape(changed))


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("precision", ["fp32", "int8-bf16"])
def test_a_stored_value_that_is_not_finite_is_found_when_loading(tmp_path: Path, precision: str, value: float) -> None:
    saved = save(tmp_path, precision, "masked", "electra", layers=1, vocab=False)
    tensors = load_file(saved / "model.safetensors")
    missed = []
    for name in (name for name, array in tensors.items() if array.dtype != np.int8):
        spoiled = tensors[name].copy()
        spoiled.ravel()[0] = value
        save_file(tensors | {name: spoiled}, saved / "model.safetensors")
        missed += [] if refusal(saved, run=False) else [name]
    assert missed == []


# The golden artifact.


def make_golden() -> None:
    """Writes the golden artifact. Done once: a new one would prove nothing about artifacts that people have."""
    scratch = GOLDEN.parent / "scratch"
    checkpoint = make_checkpoint(scratch, "electra", "masked", vocab=True, seed=1)
    fusebert.load(checkpoint, "int8").save(GOLDEN)
    shutil.rmtree(scratch)
    model = fusebert.load(GOLDEN)
    expected = {
        "input_ids": IDS,
        "attention_mask": MASK,
        "logits": model.run(IDS, MASK)["logits"].tolist(),
        "texts": TEXTS,
        "embeddings": model.encode(TEXTS).tolist(),
    }
    EXPECTED.write_text(json.dumps(expected) + "\n")


def test_the_golden_artifact_of_version_1_gives_its_answers_for_ever(isa: str) -> None:
    expected = json.loads(EXPECTED.read_text())
    model = fusebert.load(GOLDEN)
    got = {
        "logits": model.run(expected["input_ids"], expected["attention_mask"])["logits"],
        "embeddings": model.encode([t if isinstance(t, str) else tuple(t) for t in expected["texts"]]),
    }
    for name, array in got.items():
        want = np.array(expected[name], np.float32)
        # Another instruction set may round an input to the 8-bit level beside.
        np.testing.assert_allclose(array, want, rtol=0, atol=0.02 * np.abs(want).max())
    assert artifact.VERSION >= 1
    assert sum(file.stat().st_size for file in GOLDEN.iterdir()) < 100_000


if __name__ == "__main__":
    make_golden()
