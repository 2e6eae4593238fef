"""fusebert gives what transformers gives: every family, head, mask and length, in every precision."""

import numpy as np
import pytest
import stock
from conftest import PRECISIONS

import fusebert

pytestmark = pytest.mark.usefixtures("isa")

WORST_ERROR = {"fp32": 1e-4}
WORST_COSINE = {"bf16": 0.999, "int8": 0.99, "int8-bf16": 0.99}
FAMILIES = ("bert", "roberta", "distilbert", "electra", "xlm-roberta", "camembert")


def assert_close(got: np.ndarray, want: np.ndarray, precision: str) -> None:
    if precision == "fp32":
        assert stock.error(got, want) <= WORST_ERROR["fp32"]
    else:
        assert stock.cosine(got, want).min() >= WORST_COSINE[precision]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}

    def get(family: str, head: str = "none", **more):
        key = (family, head, str(more))
        if key not in made:
            folder = stock.make(tmp_path_factory.mktemp("model"), family, head, **more)
            made[key] = (folder, stock.load(folder, head))
        return made[key]

    return get


def random_ids(batch: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, 211, (batch, length))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_odd_sizes_in_every_family(models, family, precision):
    folder, model = models(family, sizes=stock.ODD)
    ids = random_ids(3, 37)
    mask = stock.masks(3, 37, "right", seed=3)
    got = fusebert.load(folder, precision).run(ids, mask)["last_hidden_state"]
    want = stock.run(model, ids, mask)["last_hidden_state"]
    assert_close(got, want, precision)  # at hidden positions too, which nobody knows the readers of


@pytest.mark.parametrize("kind", ["none", "right", "left", "holes"])
@pytest.mark.parametrize(
    ("batch", "length"), [(1, 1), (2, 2), (64, 3), (5, 64), (64, 40), (2, 200), (1, 512), (3, 512)]
)
def test_lengths_batches_and_masks(models, batch, length, kind):
    folder, model = models("bert")
    ids, mask = random_ids(batch, length, seed=length), stock.masks(batch, length, kind, seed=batch)
    kinds = np.random.default_rng(9).integers(0, 2, ids.shape)
    want = stock.run(model, ids, mask, kinds)["last_hidden_state"]
    for precision in PRECISIONS:
        got = fusebert.load(folder, precision).run(ids, mask, kinds)["last_hidden_state"]
        assert_close(got[mask == 1], want[mask == 1], precision)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", stock.HEADS)
def test_heads(models, family, head):
    folder, model = models(family, head)
    ids = random_ids(4, 21)
    mask = stock.masks(4, 21, "holes", seed=5)
    mask[:, 0] = 1
    ids[1, 12:], mask[1] = 1, 1  # RoBERTa counts positions by the padding id, not by the mask
    want = stock.run(model, ids, mask)
    ours = fusebert.load(folder, padding="compute")
    got = ours.run(ids, mask)
    assert got.keys() == {name for name in want if name != "hidden_states"}
    for name, value in want.items():
        assert got[name].shape == value.shape
        assert stock.error(got[name], value) <= WORST_ERROR["fp32"], name


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("head", ["sequence", "masked"])
def test_heads_in_every_precision(models, head, precision):
    folder, model = models("bert", head)
    ids = random_ids(6, 30)
    want = stock.run(model, ids)["logits"]
    got = fusebert.load(folder, precision).run(ids)["logits"]
    tolerance = {"fp32": 1e-4, "bf16": 0.03, "int8": 0.15, "int8-bf16": 0.15}[precision]
    assert stock.error(got, want) <= tolerance


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ("gelu", "gelu_erf"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("quick_gelu", "gelu_quick"),
        ("relu", "relu"),
    ],
)
def test_activations_and_epsilons(models, config, activation):
    folder, model = models("bert", hidden_act=config, layer_norm_eps=1e-3)
    ids = random_ids(2, 19)
    ours = fusebert.load(folder)
    assert ours.network.encoder.blocks[1].body.activation == activation
    want = stock.run(model, ids)["last_hidden_state"]
    assert stock.error(ours.run(ids)["last_hidden_state"], want) <= 1e-5


def test_roberta_counts_positions_not_columns(models):
    folder, model = models("roberta", max_position_embeddings=20)
    ids = random_ids(2, 20)
    ids[:, 10:] = 1
    mask = (ids != 1).astype(np.int64)
    want = stock.run(model, ids, mask)["last_hidden_state"]
    got = fusebert.load(folder).run(ids, mask)["last_hidden_state"]
    assert stock.error(got[mask == 1], want[mask == 1]) <= 1e-5
    with pytest.raises(fusebert.FusebertError, match="positions for 18"):
        fusebert.load(folder).run(random_ids(1, 19))


def test_hidden_states_of_every_layer(models):
    folder, model = models("bert")
    ids, mask = random_ids(3, 15), stock.masks(3, 15, "left", seed=1)
    want = stock.run(model, ids, mask, output_hidden_states=True)["hidden_states"]
    got = fusebert.load(folder, padding="compute").run(ids, mask, output_hidden_states=True)["hidden_states"]
    assert len(got) == len(want) == 4
    for ours, theirs in zip(got, want, strict=True):
        assert stock.error(ours, theirs) <= 1e-5


def test_general_masks(models):
    import torch

    folder, model = models("bert")
    ids = random_ids(3, 18)
    random = np.random.default_rng(2)
    square = (random.random((3, 18, 18)) < 0.5).astype(np.int64)
    square[:, np.arange(18), np.arange(18)] = 1
    additive = np.where(square[:, None] == 1, 0, np.finfo(np.float32).min).astype(np.float32)
    soft = random.normal(0, 2, (3, 4, 18, 18)).astype(np.float32)
    ours = fusebert.load(folder)
    want = stock.run(model, ids, additive)["last_hidden_state"]
    assert stock.error(ours.run(ids, square)["last_hidden_state"], want) <= 1e-5
    assert stock.error(ours.run(ids, additive)["last_hidden_state"], want) <= 1e-5
    assert stock.error(ours.run(ids, square[:, None].astype(bool))["last_hidden_state"], want) <= 1e-5
    with torch.no_grad():  # a bias per head, through the encoder itself
        embedded = model.embeddings(torch.from_numpy(ids))
        want = model.encoder(embedded, torch.from_numpy(soft))[0].numpy()
    assert stock.error(ours.run(ids, soft)["last_hidden_state"], want) <= 1e-5
    lengths = np.array([18, 5, 1])
    rows = (np.arange(18) < lengths[:, None]).astype(np.int64)
    assert np.array_equal(ours.run(ids, lengths)["last_hidden_state"], ours.run(ids, rows)["last_hidden_state"])


def test_a_real_model(minilm):
    from transformers import AutoTokenizer

    texts = ["A man is playing a guitar.", "The stock market fell sharply on Monday, and then it rose again.", "No."]
    encoded = AutoTokenizer.from_pretrained(minilm)(texts, padding=True, return_tensors="np")
    want = stock.run(stock.load(minilm), **encoded)
    visible = encoded["attention_mask"] == 1
    for precision in PRECISIONS:
        model = fusebert.load(minilm, precision)
        got = model.run(encoded["input_ids"], encoded["attention_mask"], encoded["token_type_ids"])
        assert_close(got["last_hidden_state"][visible], want["last_hidden_state"][visible], precision)
        assert stock.cosine(got["pooler_output"], want["pooler_output"]).min() > 0.99
        pooled = (want["last_hidden_state"] * visible[..., None]).sum(1) / visible.sum(1)[:, None]
        assert stock.cosine(model.encode(texts), pooled).min() > (0.99999 if precision == "fp32" else 0.99)
