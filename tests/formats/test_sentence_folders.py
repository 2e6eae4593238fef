"""Folders of sentence-transformers: encode does by itself what SentenceTransformer.encode does."""

import json
from pathlib import Path

import numpy as np
import pytest
import stock

import fusebert
from fusebert import FusebertError, UnsupportedError

TEXTS = ["the cat", "a dog and the house in the garden", "the", "dog " * 700]


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """SentenceTransformers of a small BERT, saved: (pooling, dense layers with activations or without, normalised)."""
    import sentence_transformers.sentence_transformer.modules as modules
    import torch
    from sentence_transformers import SentenceTransformer

    base = stock.make(tmp_path_factory.mktemp("base"), "bert", "none")

    def made(pooling, dense=(), normalize=False, **prompts):
        parts = [modules.Transformer(str(base), max_seq_length=40)]
        parts.append(modules.Pooling(64, pooling))
        width = 64 * (1 if isinstance(pooling, str) else len(pooling))
        for outputs, activation, bias in dense:
            parts.append(modules.Dense(width, outputs, bias, activation or torch.nn.Identity()))
            width = outputs
        model = SentenceTransformer(modules=[*parts, *[modules.Normalize()] * normalize], device="cpu", **prompts)
        folder = tmp_path_factory.mktemp("sentence")
        model.save(str(folder))
        return folder, model

    return made


@pytest.mark.parametrize(
    ("pooling", "dense", "normalize"),
    [
        ("cls", False, False),
        ("mean", True, True),
        ("max", False, True),
        ("mean_sqrt_len_tokens", False, False),
        ("weightedmean", False, False),
        ("lasttoken", False, True),
        (("cls", "mean"), True, False),
    ],
)
def test_encode_is_that_of_sentence_transformers(make, pooling, dense, normalize, tmp_path):
    import torch

    layers = [(90, None, False), (30, torch.nn.Tanh(), True)] if dense else []
    folder, theirs = make(pooling, layers, normalize)
    ours = fusebert.load(folder)
    want = theirs.encode(TEXTS)
    got = ours.encode(TEXTS)
    assert got.shape == want.shape
    assert stock.error(got, want) < 1e-4
    ours.save(tmp_path / "made")
    assert np.array_equal(fusebert.load(tmp_path / "made").encode(TEXTS), got)


def test_prompts(make, tmp_path):
    prompts = {"query": "the cat ", "document": "a house "}
    folder, theirs = make("mean", prompts=prompts, default_prompt_name="query")
    fusebert.load(folder).save(tmp_path / "made")
    for ours in (fusebert.load(folder), fusebert.load(tmp_path / "made")):
        for how in ({}, {"prompt_name": "document"}, {"prompt": "in the garden "}, {"prompt": ""}):
            assert stock.error(ours.encode(TEXTS, **how), theirs.encode(TEXTS, **how)) < 1e-4, how
        with pytest.raises(FusebertError, match="'other' is unknown; use one of document, query"):
            ours.encode(TEXTS, prompt_name="other")


def test_a_pooling_that_is_given_overrides_the_folders(make):
    folder, _ = make("cls", [(30, None, True)], True)
    ours = fusebert.load(folder)
    assert ours.encode(TEXTS, pooling="mean").shape == (4, 64)
    assert np.allclose(np.linalg.norm(ours.encode(TEXTS), axis=1), 1, atol=1e-5)
    assert not np.allclose(np.linalg.norm(ours.encode(TEXTS, normalize=False), axis=1), 1, atol=1e-2)


def test_older_folders_with_the_encoder_in_one_of_its_own(make, tmp_path):
    folder, theirs = make("cls")
    for file in list(folder.iterdir()):
        inside = file.name in ("modules.json", "1_Pooling") or file.name.startswith("config_sentence")
        target = tmp_path / ("" if inside else "0_Transformer")
        target.mkdir(exist_ok=True)
        file.rename(target / file.name)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    flags = {"word_embedding_dimension": 64, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    assert stock.error(fusebert.load(tmp_path).encode(TEXTS), theirs.encode(TEXTS)) < 1e-4


def test_the_head_that_an_encoder_was_trained_with_may_be_gone(make):
    """all-mpnet-base-v2's config.json names a masked-language head that its weights do not have."""
    folder, theirs = make("mean")
    change(folder, "config.json", lambda config: config.update(architectures=["BertForMaskedLM"]))
    assert stock.error(fusebert.load(folder).encode(TEXTS), theirs.encode(TEXTS)) < 1e-4


def change(folder: Path, file: str, edit) -> None:
    values = json.loads((folder / file).read_text())
    edit(values)
    (folder / file).write_text(json.dumps(values))


def test_what_is_not_known_is_named_by_encode(make):
    folder, _ = make("cls")
    change(folder, "modules.json", lambda modules: modules[1].update(type="sentence_transformers.models.CNN"))
    ours = fusebert.load(folder)
    with pytest.raises(UnsupportedError, match="a CNN as module 1 is not supported; give a pooling"):
        ours.encode(TEXTS)
    assert ours.encode(TEXTS, "cls").shape == (4, 64)
    change(folder, "modules.json", lambda modules: modules[1].update(path="../other"))
    with pytest.raises(FusebertError, match="does not name a type and a folder inside"):
        fusebert.load(folder)
    folder, _ = make("cls")
    change(folder, "1_Pooling/config.json", lambda config: config.update(include_prompt=False))
    with pytest.raises(UnsupportedError, match="include_prompt False"):
        fusebert.load(folder).encode(TEXTS)
