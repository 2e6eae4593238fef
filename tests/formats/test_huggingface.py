"""Hugging Face checkpoints: every form that is read gives the same answers, everything else is refused in one sentence
that names the file and the field or tensor, before anything large is made."""

from __future__ import annotations

import json
import os
import pickle
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import FAMILIES, HEADS, edit_config, edit_tensors, make_checkpoint
from safetensors.numpy import load_file, save_file

import fusebert
from fusebert import FusebertError, UnsupportedError

IDS = [[2, 5, 6, 7, 3], [2, 9, 3, 0, 0]]
MASK = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
WORD = "embeddings.word_embeddings.weight"
QUERY = "encoder.layer.1.attention.self.query.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


def run(folder: Path, **options: Any) -> dict[str, np.ndarray]:
    return fusebert.load(folder, threads=1, **options).run(IDS, MASK)


def assert_equal(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def refusal(folder: Path, *parts: str, kind: type[FusebertError] = FusebertError, **options: Any) -> str:
    """The sentence that load refuses a folder with, which names all of `parts`."""
    with pytest.raises(FusebertError) as raised:
        fusebert.load(folder, threads=1, **options)
    assert isinstance(raised.value, kind)
    sentence = str(raised.value)
    assert "\n" not in sentence.strip()
    for part in parts:
        assert part in sentence
    return sentence


@contextmanager
def little_memory(limit: int = 16 << 20) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


# What is read.


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_head_gives_finite_outputs_of_the_right_shape(tmp_path: Path, family: str, head: str) -> None:
    got = run(make_checkpoint(tmp_path, family, head))
    shapes = {
        "none": {"last_hidden_state": (2, 5, 16)},
        "sequence": {"logits": (2, 3)},
        "token": {"logits": (2, 5, 3)},
        "question": {"start_logits": (2, 5), "end_logits": (2, 5)},
        "masked": {"logits": (2, 5, 40)},
    }[head]
    if head == "none" and family in ("bert", "roberta"):
        shapes |= {"pooler_output": (2, 16)}
    assert {name: array.shape for name, array in got.items()} == shapes
    assert all(np.isfinite(array).all() for array in got.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_test_checkpoints_hold_exactly_the_tensors_that_transformers_saves(tmp_path: Path, family: str) -> None:
    import transformers

    for head in HEADS:
        folder = make_checkpoint(tmp_path / head, family, head)
        config = transformers.AutoConfig.from_pretrained(folder)
        transformers_model = getattr(transformers, config.architectures[0])(config)
        transformers_model.save_pretrained(tmp_path / "saved")
        ours, theirs = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "saved"))
        assert {n: a.shape for n, a in ours.items()} == {n: a.shape for n, a in theirs.items()}


def test_a_model_with_and_without_the_prefix_gives_equal_results(folder: Path) -> None:
    want = run(folder)
    edit_tensors(folder, lambda tensors: {f"bert.{name}": array for name, array in tensors.items()})
    assert_equal(run(folder), want)


def test_old_layer_norm_names_gamma_and_beta_give_equal_results(folder: Path) -> None:
    want = run(folder)

    def age(name: str) -> str:
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    edit_tensors(folder, lambda tensors: {age(name): array for name, array in tensors.items()})
    assert any(name.endswith("gamma") for name in load_file(folder / "model.safetensors"))
    assert_equal(run(folder), want)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_half_precision_checkpoint_equals_its_weights_widened_to_float32(
    tmp_path: Path, family: str, dtype: type
) -> None:
    folder = make_checkpoint(tmp_path, family, "masked")
    edit_tensors(folder, lambda tensors: {name: array.astype(dtype) for name, array in tensors.items()})
    got = run(folder)
    edit_tensors(folder, lambda tensors: {name: array.astype(np.float32) for name, array in tensors.items()})
    assert_equal(got, run(folder))


def test_a_float64_checkpoint_equals_its_weights_rounded_to_float32(folder: Path) -> None:
    want = run(folder)
    edit_tensors(folder, lambda tensors: {name: array.astype(np.float64) for name, array in tensors.items()})
    assert_equal(run(folder), want)


def test_a_stored_decoder_is_used_instead_of_the_word_table(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, head="masked")
    tied = run(folder)["logits"]
    decoder = "cls.predictions.decoder.weight"
    edit_tensors(folder, lambda tensors: tensors.update({decoder: tensors[f"bert.{WORD}"] * np.float32(2)}))
    bias = load_file(folder / "model.safetensors")["cls.predictions.bias"]
    np.testing.assert_allclose(run(folder)["logits"][0] - bias, 2 * (tied[0] - bias), rtol=1e-5, atol=1e-5)


def test_the_head_option_leaves_an_unknown_head_away(tmp_path: Path) -> None:
    folder = edit_config(make_checkpoint(tmp_path, head="token"), architectures=["BertForNextSentencePrediction"])
    sentence = refusal(folder, "config.json", "BertForNextSentencePrediction", 'head="none"', kind=UnsupportedError)
    assert "ForSequenceClassification" in sentence
    assert set(run(folder, head="none")) == {"last_hidden_state"}


def test_missing_architectures_mean_the_bare_model(folder: Path) -> None:
    want = run(folder)
    assert_equal(run(edit_config(folder, architectures=...)), want)


# config.json.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "gpt2"),
        ("model_type", None),
        ("model_type", ...),
        ("model_type", ["bert"]),
        ("position_embedding_type", "relative_key"),
        ("position_embedding_type", "relative_key_query"),
        ("position_embedding_type", []),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("quantization_config", {"bits": 4}),
        ("hidden_act", "swish"),
        ("hidden_act", None),
        ("hidden_act", {}),
    ],
)
def test_other_mathematics_is_refused_by_the_name_of_its_field(folder: Path, field: str, value: Any) -> None:
    said = "None" if value is ... else repr(value)
    refusal(edit_config(folder, **{field: value}), "config.json", field, said, kind=UnsupportedError)


@pytest.mark.parametrize("value", [0, -1, "two", 2.0, None, ..., True, [2], 3, 10**9, 10**30])
@pytest.mark.parametrize(
    "field", ["num_attention_heads", "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"]
)
def test_an_absurd_size_is_refused_by_its_field_in_little_memory(folder: Path, field: str, value: Any) -> None:
    edit_config(folder, **{field: value})
    # A whole number that only contradicts the weights may be told by the tensor that shows it.
    named = {"intermediate_size": "intermediate", "vocab_size": "word_embeddings", "hidden_size": "hidden_size"}
    part = named.get(field, field) if value == 3 else field
    if field == "num_attention_heads" and value == 3:
        part = "3 heads"
    with little_memory():
        refusal(folder, "config.json" if value != 3 or field.startswith(("num", "hidden")) else str(folder), part)


@pytest.mark.parametrize("layers", [3, 1 << 24, 10**9])
def test_more_layers_than_the_weights_hold_are_refused_in_little_memory(folder: Path, layers: int) -> None:
    with little_memory():
        refusal(edit_config(folder, num_hidden_layers=layers), "config.json", "num_hidden_layers", str(layers))


@pytest.mark.parametrize("value", [-1e-12, 1, 1e400, float("nan"), "x", [], None])
def test_an_absurd_epsilon_is_refused(folder: Path, value: Any) -> None:
    refusal(edit_config(folder, layer_norm_eps=value), "config.json", "layer_norm_eps")


@pytest.mark.parametrize("value", [-1, 40, None, "x", True, 1.0, 19])
def test_an_absurd_padding_id_is_refused_where_positions_depend_on_it(tmp_path: Path, value: Any) -> None:
    folder = edit_config(make_checkpoint(tmp_path, "roberta"), pad_token_id=value)
    refusal(folder, "position" if value == 19 else "pad_token_id")


@pytest.mark.parametrize("value", ["clustering", 1, [], {}, True])
def test_an_unknown_problem_type_is_refused(tmp_path: Path, value: Any) -> None:
    folder = edit_config(make_checkpoint(tmp_path, head="sequence"), problem_type=value)
    refusal(folder, "config.json", "problem_type", kind=UnsupportedError)


def test_more_labels_than_the_classifier_has_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, head="token")
    edit_config(folder, id2label={str(i): str(i) for i in range(4)})
    refusal(folder, "classifier.weight", "3 x 16", "4 x 16")


def test_an_unknown_head_option_is_refused(folder: Path) -> None:
    refusal(folder, "'pooling'", head="pooling")


@pytest.mark.parametrize(
    "text",
    ["", "{", "no json", "\ud800", "[" * 100_000, '{"a": ' + "9" * 5000 + "}", '["bert"]', '"bert"', "3", "null"],
)
def test_a_config_that_is_not_a_json_object_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode(errors="surrogatepass"))
    refusal(folder, "config.json")


def test_a_folder_without_config_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    refusal(folder, str(folder), "config.json", "fusebert.json")


def test_an_empty_folder_a_missing_one_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    refusal(tmp_path / "empty", str(tmp_path / "empty"))
    refusal(tmp_path / "missing", str(tmp_path / "missing"), "does not exist")
    refusal(tmp_path / "file", str(tmp_path / "file"))


# Tensors.


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refusal(folder, str(folder), "model.safetensors", "pytorch_model.bin")


@pytest.mark.parametrize("name", [WORD, QUERY, "embeddings.LayerNorm.bias", "encoder.layer.0.output.dense.weight"])
def test_a_missing_tensor_is_named(folder: Path, name: str) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop(name) is None)
    refusal(folder, str(folder), name)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (WORD, (40, 15), "40 x 15"),
        (WORD, (0, 16), "0 x 16"),
        (QUERY, (16, 17), "16 x 17"),
        (QUERY, (256,), "256"),
        (QUERY, (1, 16, 16), "1 x 16 x 16"),
        (QUERY, (), "a scalar"),
        ("encoder.layer.0.intermediate.dense.bias", (16,), "16"),
        ("embeddings.LayerNorm.weight", (16, 1), "16 x 1"),
        ("embeddings.position_embeddings.weight", (20, 8), "20 x 8"),
        ("embeddings.position_embeddings.weight", (0, 16), "position"),
    ],
)
def test_a_tensor_of_another_shape_is_named_with_both_shapes(
    folder: Path, name: str, shape: tuple[int, ...], said: str
) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({name: np.zeros(shape, np.float32)}))
    refusal(folder, str(folder), said, *([] if said == "position" else [name]))


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.bool_])
@pytest.mark.parametrize("name", [WORD, QUERY, "embeddings.LayerNorm.weight"])
def test_a_tensor_of_another_type_is_named(folder: Path, name: str, dtype: type) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({name: tensors[name].astype(dtype)}))
    refusal(folder, str(folder), name, "type")


# A tensor and the words that tell where it stands.
PLACES = {
    WORD: "embeddings.word",
    "embeddings.position_embeddings.weight": "embeddings.position",
    "embeddings.token_type_embeddings.weight": "embeddings.kind",
    "embeddings.LayerNorm.weight": "embeddings.norm",
    "embeddings.LayerNorm.bias": "embeddings.norm",
    "embeddings_project.weight": "embeddings.project",
    QUERY: "block 2 query, key, value",
    "encoder.layer.0.attention.self.value.bias": "block 0 query, key, value",
    "encoder.layer.0.attention.output.dense.weight": "block 0 out",
    "encoder.layer.1.attention.output.LayerNorm.weight": "block 2 after",
    "encoder.layer.0.intermediate.dense.weight": "block 1 up",
    "encoder.layer.0.output.dense.bias": "block 1 down",
    "encoder.layer.1.output.LayerNorm.bias": "block 3 after",
    "generator_predictions.dense.weight": "head.0",
    "generator_predictions.LayerNorm.weight": "head.0",
    "generator_lm_head.bias": "head.1",
}


def spoil(folder: Path, name: str, value: float) -> Path:
    """An ELECTRA generator, which has every kind of weight, with one value in the tensor set."""
    make_checkpoint(folder, "electra", "masked")
    stored = name if name.startswith("generator") else f"electra.{name}"

    def put(tensors: dict[str, np.ndarray]) -> None:
        tensors[stored].ravel()[-1] = value

    return edit_tensors(folder, put)


@pytest.mark.parametrize("precision", ["fp32", "int8-bf16"])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("name", PLACES)
def test_a_weight_that_is_not_finite_is_found_when_loading(
    tmp_path: Path, name: str, value: float, precision: str
) -> None:
    refusal(spoil(tmp_path, name, value), PLACES[name], "finite", precision=precision)


@pytest.mark.parametrize("name", [WORD, QUERY, "generator_lm_head.bias"])
def test_a_weight_that_is_not_finite_is_told_with_its_folder(tmp_path: Path, name: str) -> None:
    refusal(spoil(tmp_path, name, np.nan), str(tmp_path))


# Files of tensors.


def header(folder: Path) -> tuple[dict[str, Any], bytes]:
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def put_header(folder: Path, entries: dict[str, Any], data: bytes) -> Path:
    text = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, -1, -1000])
def test_a_truncated_file_is_refused(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refusal(folder, "model.safetensors")


@pytest.mark.parametrize("length", [2**60, 2**63, 2**64 - 1, 2**31, 0])
def test_a_header_length_that_lies_is_refused_in_little_memory(folder: Path, length: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    with little_memory():
        refusal(folder, "model.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [0, 2**40]},
        {"data_offsets": [2**62, 2**62 + 1024]},
        {"data_offsets": [-4, 1020]},
        {"data_offsets": [1024, 0]},
        {"data_offsets": [1.5, 2]},
        {"data_offsets": None},
        {"shape": [16, 2**40]},
        {"shape": [2**32, 2**32]},
        {"shape": [-16, -16]},
        {"shape": "16"},
        {"dtype": "F99"},
        {"dtype": "F64"},
        {"dtype": 3},
    ],
)
def test_an_entry_that_lies_is_refused_in_little_memory(folder: Path, change: dict[str, Any]) -> None:
    entries, data = header(folder)
    entries[QUERY] |= change
    with little_memory():
        refusal(put_header(folder, entries, data), "model.safetensors")


@pytest.mark.parametrize("shape", [[0, 2**40], [0, 2**62], [2**62, 0], [0] * 65, [0, 2**63 - 1]])
def test_an_empty_tensor_with_an_absurd_shape_is_refused_by_name(folder: Path, shape: list[int]) -> None:
    entries, data = header(folder)
    begin, end = entries[QUERY]["data_offsets"]
    entries["filler"] = entries[QUERY] | {"data_offsets": [begin, end]}
    entries[QUERY] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, begin]}
    with little_memory():
        refusal(put_header(folder, entries, data), QUERY)


# Shards.


def split(folder: Path, shards: int = 3) -> dict[str, str]:
    """Replaces model.safetensors by shards and their index; returns the index's weight_map."""
    tensors = load_file(folder / "model.safetensors")
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    places = {name: files[i % shards] for i, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name in places if places[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    put_index(folder, places)
    return places


def put_index(folder: Path, places: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_shards_give_what_one_file_gives(folder: Path) -> None:
    want = run(folder)
    split(folder)
    assert_equal(run(folder), want)


@pytest.mark.parametrize("where", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".", "", "a/"])
def test_a_shard_outside_the_folder_is_refused(folder: Path, where: str) -> None:
    save_file(load_file(folder / "model.safetensors"), folder.parent / "other.safetensors")
    places = split(folder)
    put_index(folder, places | {QUERY: where})
    refusal(folder, "model.safetensors.index.json", repr(where))


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("gone.safetensors", "gone.safetensors"),
        ("nul\0byte", "nul\\x00byte"),
        ("\ud800", "\\ud800"),
        ("x" * 300, "x" * 70),
    ],
)
def test_a_missing_shard_is_named(folder: Path, where: str, shown: str) -> None:
    places = split(folder)
    put_index(folder, places | {QUERY: where})
    refusal(folder, shown)


def test_a_tensor_that_its_shard_lacks_is_named(folder: Path) -> None:
    places = split(folder)
    file = next(file for file in places.values() if file != places[QUERY])
    put_index(folder, places | {QUERY: file})
    refusal(folder, file, QUERY, "model.safetensors.index.json")


@pytest.mark.parametrize("places", [None, [], "x", {QUERY: 3}, {QUERY: None}, {QUERY: ["a"]}, {}])
def test_an_index_that_maps_no_names_to_files_is_refused(folder: Path, places: Any) -> None:
    split(folder)
    put_index(folder, places)
    refusal(folder, QUERY if places == {} else "model.safetensors.index.json")


# Pickles.


def put_pickle(folder: Path, value: Any = None) -> Path:
    """Replaces model.safetensors by pytorch_model.bin."""
    import torch

    tensors = load_file(folder / "model.safetensors")
    value = {name: torch.from_numpy(array) for name, array in tensors.items()} if value is None else value(torch)
    torch.save(value, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def test_a_pickle_gives_what_safetensors_give(folder: Path) -> None:
    want = run(folder)
    assert_equal(run(put_pickle(folder)), want)


def test_a_bfloat16_pickle_gives_what_bfloat16_safetensors_give(folder: Path) -> None:
    import torch

    edit_tensors(folder, lambda tensors: {name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()})
    want = run(folder)
    tensors = load_file(folder / "model.safetensors")
    half = {n: torch.from_numpy(np.asarray(a, np.float32)).to(torch.bfloat16) for n, a in tensors.items()}
    assert_equal(run(put_pickle(folder, lambda _: half)), want)


class _Attack:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("through_torch", [True, False])
def test_a_pickle_with_code_is_refused_and_not_run(folder: Path, tmp_path: Path, through_torch: bool) -> None:
    evidence = tmp_path / "executed"
    if through_torch:
        put_pickle(folder, lambda _: {QUERY: _Attack(evidence)})
    else:
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({QUERY: _Attack(evidence)}))
    refusal(folder, "pytorch_model.bin")
    assert not evidence.exists()


def test_a_pickle_without_torch_says_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_pickle(folder)
    monkeypatch.setitem(sys.modules, "torch", None)
    refusal(folder, "pytorch_model.bin", "install fusebert[torch]", "safetensors")


@pytest.mark.parametrize("data", [b"", b"\x80", b"PK\x03\x04", b"not a pickle", b"\x80\x02}."])
def test_a_broken_pickle_is_refused(folder: Path, data: bytes) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(data)
    refusal(folder, "pytorch_model.bin" if data != b"\x80\x02}." else str(folder))


@pytest.mark.parametrize(
    "value",
    [
        lambda torch: [torch.zeros(2)],
        lambda _: {QUERY: "text"},
        lambda torch: torch.zeros(2),
    ],
    ids=["list", "text", "tensor"],
)
def test_a_pickle_of_something_else_is_refused(folder: Path, value: Callable[[Any], Any]) -> None:
    refusal(put_pickle(folder, value), "pytorch_model.bin")


@pytest.mark.parametrize(
    "value",
    [
        lambda torch: torch.zeros(16, 16).to(torch.float8_e4m3fn),
        lambda torch: torch.eye(16).to_sparse(),
        lambda torch: torch.zeros(16, 16, dtype=torch.int64),
        lambda torch: torch.zeros(16, 16, device="meta"),
        lambda torch: torch.zeros(16, 16, dtype=torch.complex64).conj(),
    ],
    ids=["float8", "sparse", "int64", "meta", "conjugate"],
)
def test_a_pickled_tensor_of_another_kind_is_refused_by_name(folder: Path, value: Callable[[Any], Any]) -> None:
    import torch

    tensors = {n: torch.from_numpy(a) for n, a in load_file(folder / "model.safetensors").items()}
    refusal(put_pickle(folder, lambda torch: tensors | {QUERY: value(torch)}), str(folder), QUERY)


@pytest.mark.parametrize(
    ("family", "head", "tensor"),
    [
        ("bert", "none", "encoder.layer.0.attention.self.query.bias"),
        ("bert", "none", "embeddings.token_type_embeddings.weight"),
        ("roberta", "none", "embeddings.token_type_embeddings.weight"),
        ("bert", "none", "pooler.dense.bias"),
        ("bert", "token", "classifier.bias"),
    ],
)
def test_a_missing_bias_or_table_is_refused_not_taken_for_zero(tmp_path, family, head, tensor):
    folder = make_checkpoint(tmp_path, family, head)
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    name = next(n for n in tensors if n.endswith(tensor))
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(FusebertError, match=tensor.replace(".", r"\.")):
        fusebert.load(folder)


def test_an_untied_decoder_must_be_there(tmp_path):
    folder = make_checkpoint(tmp_path, "bert", "masked")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    from safetensors.numpy import load_file, save_file

    tensors = {n: t for n, t in load_file(folder / "model.safetensors").items() if not n.endswith("decoder.weight")}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(FusebertError, match="decoder"):
        fusebert.load(folder)


def test_labels_of_the_same_name_stay_apart(tmp_path):
    folder = make_checkpoint(tmp_path, "bert", "sequence")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = dict.fromkeys(config["id2label"], "same")
    (folder / "config.json").write_text(json.dumps(config))
    labels = fusebert.load(folder).network.labels
    assert len(set(labels)) == len(labels)
