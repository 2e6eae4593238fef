"""Files from outside, damaged at random: loading and using them works or raises FusebertError. Nothing else is raised,
nothing crashes or hangs, and no file of a few kilobytes costs more than 200 MB."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import make_checkpoint
from costs import little_memory, no_hang
from damage import damage, replaced
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import fusebert
from fusebert import FusebertError

SECONDS = 1800  # generous: only what would never end is ended
PATIENT = settings(max_examples=150, deadline=None, derandomize=True)
TEXTS = ["the cat sat on the mat!", ("unable", "dogs ran.")]


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    with no_hang(SECONDS):
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound folders by name, every file that fusebert reads in at least one of them."""
    home = tmp_path_factory.mktemp("sound")
    plain = make_checkpoint(home / "checkpoint", head="sequence", layers=1, vocab=True)
    settings_file = {"do_lower_case": True, "model_max_length": 12, "mask_token": {"content": "[MASK]"}}
    (plain / "tokenizer_config.json").write_text(json.dumps(settings_file))
    (plain / "sentence_bert_config.json").write_text('{"max_seq_length": 10}')

    sharded = home / "sharded"
    shutil.copytree(plain, sharded)
    tensors = load_file(plain / "model.safetensors")
    places = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, sharded / file)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (sharded / "model.safetensors").unlink()

    make_checkpoint(home / "roberta", "roberta", "masked", layers=1, vocab=True)
    electra = make_checkpoint(home / "electra", "electra", "masked", layers=1, vocab=True)
    fusebert.load(electra, "int8", threads=1).save(home / "artifact")

    import torch

    pickled = home / "pickled"
    shutil.copytree(plain, pickled)
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    return {folder.name: folder for folder in home.iterdir()}


def use(folder: Path, precision: str | None = None) -> None:
    """Loads a folder and runs ids and texts through it; errors other than FusebertError get out."""
    with little_memory(), np.errstate(all="ignore"):  # weights may be huge, and then so are sums of them
        try:
            model = fusebert.load(folder, precision, threads=1)
            model.run([[2, 5, 3], [2, 3, 0]], [[1, 1, 1], [1, 1, 0]])
            model.encode(TEXTS)
            model.predict(TEXTS)
        except FusebertError as error:
            sentence = str(error)
        else:
            return
        assert sentence


FILES = [
    ("checkpoint", "config.json"),
    ("checkpoint", "model.safetensors"),
    ("checkpoint", "vocab.txt"),
    ("checkpoint", "tokenizer_config.json"),
    ("sharded", "model.safetensors.index.json"),
    ("sharded", "model-1.safetensors"),
    ("pickled", "pytorch_model.bin"),
    ("roberta", "config.json"),
    ("artifact", "fusebert.json"),
    ("artifact", "model.safetensors"),
    ("artifact", "tokenizer.json"),
]


def test_the_sound_folders_are_sound(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        model = fusebert.load(folder, threads=1)
        assert model.encode(TEXTS).shape == (2, 16)
        assert len(model.predict(TEXTS)) == 2


@pytest.mark.parametrize(("name", "file"), FILES)
def test_a_file_with_damaged_bytes_is_refused_or_used(folders: dict[str, Path], name: str, file: str) -> None:
    path = folders[name] / file

    @PATIENT
    @given(data=damage(path.read_bytes()), precision=st.sampled_from((None, None, "int8")))
    def attack(data: bytes, precision: str | None) -> None:
        with replaced(path, data):
            use(folders[name], precision)

    attack()


# Well-formed JSON with wrong values.

NUMBERS = st.sampled_from((-1, 0, 1, 2, 3, 16, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30, -0.0, 0.5, 1e30, 1e308))
TEXT = st.sampled_from(("", "x", "bert", "[UNK]", "gelu", "s8", "F32", "I8", "../x", "\0", "\ud800", "WordPiece"))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXT | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, part in inner for place in [(*path, name), *_places(part, (*path, name))]]


def _put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = value.copy()
    if path[0] == len(changed):  # one more element of a list
        changed.append(new)
    else:
        changed[path[0]] = _put(changed[path[0]], path[1:], new)
    return changed


@st.composite
def rewritten(draw: st.DrawFn, values: Any) -> Any:
    """The JSON value with one or two of its parts replaced."""
    for _ in range(draw(st.integers(1, 2))):
        places = _places(values)
        if not places:
            return values
        values = _put(values, draw(st.sampled_from(places)), draw(VALUES))
    return values


JSON = [*(file for file in FILES if file[1].endswith(".json")), ("checkpoint", "sentence_bert_config.json")]


@pytest.mark.parametrize(("name", "file"), JSON)
def test_a_file_with_wrong_values_is_refused_or_used(folders: dict[str, Path], name: str, file: str) -> None:
    path = folders[name] / file

    @PATIENT
    @given(values=rewritten(json.loads(path.read_text())), precision=st.sampled_from((None, None, "int8")))
    def attack(values: Any, precision: str | None) -> None:
        with replaced(path, json.dumps(values).encode()):
            use(folders[name], precision)

    attack()


CONFIG = ["model_type", "architectures", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
          "intermediate_size", "hidden_act", "layer_norm_eps", "id2label", "num_labels", "problem_type", "pad_token_id",
          "position_embedding_type", "is_decoder", "add_cross_attention", "is_encoder_decoder", "quantization_config",
          "max_position_embeddings", "type_vocab_size"]  # fmt: skip


@PATIENT
@given(changes=st.dictionaries(st.sampled_from(CONFIG), VALUES, min_size=1, max_size=2))
def test_a_config_with_any_values_in_known_fields_is_refused_or_used(
    folders: dict[str, Path], changes: dict[str, Any]
) -> None:
    path = folders["checkpoint"] / "config.json"
    with replaced(path, json.dumps(json.loads(path.read_text()) | changes).encode()):
        use(folders["checkpoint"])


@pytest.mark.parametrize("name", ["checkpoint", "artifact"])
def test_a_safetensors_header_with_wrong_values_is_refused_or_used(folders: dict[str, Path], name: str) -> None:
    path = folders[name] / "model.safetensors"
    stored = path.read_bytes()
    length = int.from_bytes(stored[:8], "little")
    entries = json.loads(stored[8 : 8 + length])

    @PATIENT
    @given(values=rewritten(entries))
    def attack(values: Any) -> None:
        text = json.dumps(values).encode()
        with replaced(path, len(text).to_bytes(8, "little") + text + stored[8 + length :]):
            use(folders[name])

    attack()


@PATIENT
@given(
    texts=st.lists(st.text(max_size=30) | st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=3),
    name=st.sampled_from(("checkpoint", "artifact")),
)
def test_any_text_is_encoded_or_refused(folders: dict[str, Path], texts: list[Any], name: str) -> None:
    model = fusebert.load(folders[name], threads=1)
    assert model.encode(texts).shape == (len(texts), 16)
    assert len(model.predict(texts)) == len(texts)
