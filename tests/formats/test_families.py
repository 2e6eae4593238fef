"""Every family of checkpoints: what is read means in NumPy what transformers computes, and so does the engine."""

import json
import math

import families
import numpy as np
import pytest
import stock
from checkpoints import edit_config, edit_tensors, make_checkpoint
from safetensors.numpy import save_file

import fusebert
from fusebert import FusebertError, UnsupportedError
from fusebert.formats import huggingface

# transformers' DeBERTa scripts functions with torch.jit as it is imported, which newer versions of torch deprecate
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
WORST_COSINE = {"bf16": 0.999, "int8": 0.99, "int8-bf16": 0.99}
HEADS = [(case, head) for case, given in families.CASES.items() for head in given.heads]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}

    def get(case: str, head: str = "none", odd: bool = False):
        key = case, head, odd
        if key not in made:
            made[key] = families.make(tmp_path_factory.mktemp("model"), case, head, odd)
        return made[key]

    return get


def inputs(batch: int, length: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    ids = np.random.default_rng(length).integers(5, 97, (batch, length))
    return ids, stock.masks(batch, length, kind, seed=length)


@pytest.mark.parametrize(("case", "head"), HEADS)
def test_what_is_read_means_what_transformers_computes(models, case, head):
    folder, model = models(case, head)
    ids, mask = inputs(3, 41, "right")
    network = huggingface.read(folder)
    got, want = families.compute(network, ids, mask), stock.run(model, ids, mask)
    assert set(got) <= set(want)
    for name, value in got.items():
        visible = mask == 1 if value.shape[:2] == mask.shape else slice(None)
        assert stock.error(value[visible], want[name][visible]) < 2e-5, name


@pytest.mark.parametrize("kind", ["left", "holes"])
@pytest.mark.parametrize("length", [1, 7, 129, 600])
@pytest.mark.parametrize("case", families.CASES)
def test_lengths_left_padding_and_holes(models, case, length, kind):
    folder, model = models(case, families.CASES[case].heads[0])
    if families.CASES[case].heads[0] != "none":
        pytest.skip("the bare model of this case is another case's")
    ids, mask = inputs(2, length, kind)
    want = stock.run(model, ids, mask)["last_hidden_state"]
    for got in (families.compute(huggingface.read(folder), ids, mask), fusebert.load(folder).run(ids, mask)):
        assert stock.error(got["last_hidden_state"][mask == 1], want[mask == 1]) < 1e-4


@pytest.mark.parametrize(("case", "head"), [(case, head) for case, head in HEADS])
def test_loaded_models_answer_as_transformers_does(models, case, head):
    folder, model = models(case, head)
    ids, mask = inputs(3, 41, "right")
    got, want = fusebert.load(folder).run(ids, mask), stock.run(model, ids, mask)
    assert set(got) == set(want)
    for name, value in got.items():
        visible = mask == 1 if value.shape[:2] == mask.shape else slice(None)
        assert stock.error(value[visible], want[name][visible]) < 1e-4, name


@pytest.mark.parametrize("precision", ["fp32", *WORST_COSINE])
@pytest.mark.parametrize("case", [case for case, given in families.CASES.items() if given.heads[0] == "none"])
def test_odd_sizes_in_every_precision_also_from_an_artifact(models, case, precision, tmp_path):
    folder, model = models(case, odd=True)
    ids, mask = inputs(3, 37, "left")
    loaded = fusebert.load(folder, precision)
    got = loaded.run(ids, mask)["last_hidden_state"]
    want = stock.run(model, ids, mask)["last_hidden_state"]
    if precision == "fp32":
        assert stock.error(got[mask == 1], want[mask == 1]) < 1e-4
    else:
        assert stock.cosine(got[mask == 1], want[mask == 1]).min() > WORST_COSINE[precision]
    loaded.save(tmp_path / "made")
    assert np.array_equal(fusebert.load(tmp_path / "made").run(ids, mask)["last_hidden_state"], got)


@pytest.mark.parametrize(
    ("case", "field", "value"),
    [
        ("deberta-v3", "conv_kernel_size", 3),
        ("deberta-v3", "pos_att_type", ["p2p"]),
        ("deberta-v3", "norm_rel_ebd", "batch_norm"),
        ("mpnet", "relative_attention_num_buckets", 64),
        ("nomic", "rope_parameters", {"rope_theta": 10.0, "rope_type": "yarn"}),
        ("nomic", "rotary_emb_interleaved", True),
        ("gemma", "use_bidirectional_attention", False),
        ("modernbert", "layer_types", ["full_attention"]),
        ("albert", "num_hidden_groups", 9),
        ("eurobert", "num_key_value_heads", 4),
    ],
)
def test_other_mathematics_is_refused_by_its_field(case, field, value, tmp_path):
    folder, _ = families.make(tmp_path, case)
    edit_config(folder, **{field: value})
    with pytest.raises(FusebertError, match=field if "rope" not in field else "yarn"):
        huggingface.read(folder)


def test_a_tensor_that_no_table_names_is_refused_by_its_name(tmp_path):
    folder, _ = families.make(tmp_path, "nomic")
    name = "encoder.layers.1.mlp.experts.weight"
    edit_tensors(folder, lambda tensors: tensors.update({name: np.zeros((2, 2), np.float32)}))
    with pytest.raises(UnsupportedError, match=name):
        huggingface.read(folder)


def test_jinabert_is_told_from_bert_by_its_positions(tmp_path):
    """Not in transformers: names and slopes are checked here, the mathematics with MPNet and ModernBERT."""
    folder = make_checkpoint(tmp_path, "bert", heads=4)
    edit_config(folder, position_embedding_type="alibi", feed_forward_type="geglu")

    def respell(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors.pop("embeddings.position_embeddings.weight")
        names = {".intermediate.dense.weight": ".mlp.gated_layers.weight", ".output.dense": ".mlp.wo"}
        made = {}
        for name, array in tensors.items():
            if "attention" not in name:
                for old, new in names.items():
                    name = name.replace(old, new)
                name = name.replace("output.LayerNorm", "mlp.layernorm")
            made[name] = np.concatenate([array, 2 * array]) if "gated" in name else array
        return {name: array for name, array in made.items() if "intermediate" not in name}

    edit_tensors(folder, respell)
    attention, inner = huggingface.read(folder).encoder.blocks[:2]
    table = attention.body.position.table
    assert table.shape == (4, 39)
    assert np.allclose(table[:, 19 + 3], [-3 * 2.0 ** (-2 * n) for n in (1, 2, 3, 4)])
    assert np.array_equal(inner.body.up.weight, 2 * inner.body.gate.weight)
    assert inner.body.gate.bias is None
    assert inner.body.activation == "gelu_erf"


def jinabert(folder, code: bool):
    """A random JinaBERT v2, and what its formulas make of a padded batch, written out: it is not in transformers."""
    hidden, heads, inner, count = 48, 6, 70, 2
    random = np.random.default_rng(code)
    names = {"embeddings.word_embeddings.weight": (97, hidden), "embeddings.token_type_embeddings.weight": (2, hidden)}
    gated, down, after = (
        ("up_gated_layer", "down_layer", "layer_norm_2") if code else ("gated_layers", "wo", "mlp.layernorm")
    )
    linears = {f"attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")}
    linears |= {"attention.output.dense": (hidden, hidden), f"mlp.{down}": (hidden, inner)}
    norms = ["attention.output.LayerNorm", after]
    norms += ["attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1"] * code
    for layer in range(count):
        place = f"encoder.layer.{layer}."
        names |= {f"{place}{name}.weight": shape for name, shape in linears.items()}
        names |= {f"{place}{name}.bias": shape[:1] for name, shape in linears.items()}
        names |= {f"{place}{name}.{part}": (hidden,) for name in norms for part in ("weight", "bias")}
        names[f"{place}mlp.{gated}.weight"] = (2 * inner, hidden)
    names |= {f"embeddings.LayerNorm.{part}": (hidden,) for part in ("weight", "bias")}
    w = {name: (random.standard_normal(shape) * (1.3 / shape[-1] ** 0.5 if len(shape) == 2 else 0.2)).astype(np.float32)
         for name, shape in names.items()}  # fmt: skip
    w |= {name: array + 1 for name, array in w.items() if "orm" in name and name.endswith("weight")}
    config = {
        "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "hidden_size": hidden,
        "num_hidden_layers": count, "num_attention_heads": heads, "intermediate_size": inner, "vocab_size": 97,
        "max_position_embeddings": 640, "architectures": ["JinaBertModel"], "layer_norm_eps": 1e-12,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(w, folder / "model.safetensors")

    def linear(x, name):
        return x @ w[f"{name}.weight"].T.astype(np.float64) + w.get(f"{name}.bias", 0)

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x):
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))

    def answer(ids, mask):
        batch, length = ids.shape
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
        x = norm(x.astype(np.float64), "embeddings.LayerNorm")
        slopes = np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])  # of six heads
        apart = np.abs(np.arange(length)[:, None] - np.arange(length))
        added = -slopes[:, None, None] * apart + np.where(mask == 1, 0, -1e9)[:, None, None, :]
        for layer in range(count):
            place = f"encoder.layer.{layer}."
            q, k, v = (linear(x, f"{place}attention.self.{name}") for name in ("query", "key", "value"))
            if code:
                q, k = norm(q, f"{place}attention.self.layer_norm_q"), norm(k, f"{place}attention.self.layer_norm_k")
            q, k, v = (side.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) for side in (q, k, v))
            scores = np.exp(q @ k.swapaxes(2, 3) * 8**-0.5 + added)
            context = (scores / scores.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(batch, length, hidden)
            rows = norm(x + linear(context, f"{place}attention.output.dense"), f"{place}attention.output.LayerNorm")
            x = norm(x + rows, f"{place}layer_norm_1") if code else rows
            first, second = np.split(linear(x, f"{place}mlp.{gated}"), 2, -1)
            inside = first * gelu(second) if code else gelu(first) * second
            x = norm(x + linear(inside, f"{place}mlp.{down}"), f"{place}{after}")
        return x

    return answer


@pytest.mark.parametrize("code", [False, True], ids=["texts", "code"])
def test_jinabert_by_its_formulas(code, tmp_path):
    """Every precision, holes, left padding; the same bits alone; from an artifact, too."""
    answer = jinabert(tmp_path, code)
    for kind in ("left", "holes"):
        ids, mask = inputs(2, 37, kind)
        want = answer(ids, mask)
        assert (
            stock.error(fusebert.load(tmp_path).run(ids, mask)["last_hidden_state"][mask == 1], want[mask == 1]) < 1e-4
        )
    network = huggingface.read(tmp_path)
    assert network.encoder.blocks[0].adds_twice == code
    assert stock.error(families.compute(network, ids, mask)["last_hidden_state"][mask == 1], want[mask == 1]) < 1e-5
    for precision, worst in WORST_COSINE.items():
        loaded = fusebert.load(tmp_path, precision)
        got = loaded.run(ids, mask)["last_hidden_state"]
        assert stock.cosine(got[mask == 1], want[mask == 1]).min() > worst, precision
        shown = ids[1][mask[1] == 1][None]
        alone = loaded.rows(shown[0], [0, shown.shape[1]])
        both = loaded.rows(np.concatenate([ids[0], shown[0]]), [0, 37, 37 + shown.shape[1]])
        assert np.array_equal(both[37:], alone)
        loaded.save(tmp_path / precision)
        assert np.array_equal(fusebert.load(tmp_path / precision).run(ids, mask)["last_hidden_state"], got)
