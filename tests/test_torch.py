"""The PyTorch front door: fused models answer as stock ones, and stay the models they were.

Most of it also runs under transformers 4: test_torch_legacy.py."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import stock
import torch
import transformers
from torch import nn

import fusebert.torch
from fusebert import FusebertError, UnsupportedError
from fusebert.engine.quantize import smooth, smooth_encoder
from fusebert.formats import huggingface
from fusebert.torch import packing, settings
from fusebert.torch.encoder import Fused, quick_output

fusebert.torch.disable()  # other tests load stock models in this process

pytestmark = pytest.mark.usefixtures("one_torch_thread")
V4 = transformers.__version__.startswith("4.")
FAMILIES = tuple(stock.NAMES)
PRECISIONS = ("fp32", "bf16", "int8", "int8-bf16")
COSINE = {"bf16": 0.999, "int8": 0.99, "int8-bf16": 0.99}


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    monkeypatch.setattr(settings, "_defaults", settings.Settings())
    yield
    fusebert.torch.disable()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def get(family: str = "bert", head: str = "none", **more) -> Path:
        key = (family, head, str(more))
        if key not in made:
            made[key] = stock.make(tmp_path_factory.mktemp("model"), family, head, **more)
        return made[key]

    return get


@pytest.fixture
def pair(folders):
    """A stock model and another, fused."""

    def get(family="bert", head="none", attention="eager", sizes=None, precision=None, padding=None, **config):
        folder = folders(family, head, sizes=sizes, **config)
        ours = fusebert.torch.optimize(stock.load(folder, head, attention), precision, padding)
        return stock.load(folder, head, attention), ours

    return get


def fused(model: nn.Module) -> list[Fused]:
    return [module for module in model.modules() if isinstance(module, Fused)]


def ids(batch: int = 3, length: int = 21, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(5, 211, (batch, length))


def visible_rows(value: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return value[mask == 1]


def assert_agree(got: dict, want: dict, tolerance: float = 1e-4) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert len(got[name]) == len(value), name
        assert not len(value) or stock.error(np.stack(got[name]), np.stack(value)) <= tolerance, name


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_with_every_padding_at_odd_sizes(pair, family, attention):
    if V4 and family == "electra" and attention == "sdpa":
        pytest.skip("transformers 4 has no sdpa attention for ELECTRA")
    theirs, ours = pair(family, attention=attention, sizes=stock.ODD)
    for kind in ("none", "right", "left", "holes"):
        mask = stock.masks(3, 37, kind, seed=3)
        assert_agree(stock.run(ours, ids(3, 37), mask), stock.run(theirs, ids(3, 37), mask))
    more = {"output_hidden_states": True}
    assert_agree(stock.run(ours, ids(), **more), stock.run(theirs, ids(), **more))  # no mask
    assert len(stock.run(ours, ids(), **more)["hidden_states"]) == 3


@pytest.mark.parametrize("head", stock.HEADS)
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_heads_under_padding(pair, family, head):
    theirs, ours = pair(family, head)
    for kind in ("right", "left", "holes"):
        mask = stock.masks(4, 21, kind, seed=5)
        got, want = stock.run(ours, ids(4), mask), stock.run(theirs, ids(4), mask)
        if head in ("token", "masked"):  # per-token answers at hidden positions are nobody's
            got, want = ({"logits": visible_rows(out["logits"], mask)} for out in (got, want))
        assert_agree(got, want)


@pytest.mark.parametrize("precision", PRECISIONS[1:])
@pytest.mark.parametrize("family", ["bert", "distilbert", "electra"])
def test_precisions(pair, family, precision):
    theirs, ours = pair(family, sizes=stock.ODD, precision=precision)
    mask = stock.masks(3, 37, "right", seed=3)
    got, want = (stock.run(model, ids(3, 37), mask)["last_hidden_state"] for model in (ours, theirs))
    assert stock.cosine(got, want).min() >= COSINE[precision]
    assert stock.error(got, want) > 1e-6  # it is another precision


def test_a_real_model_in_every_precision(minilm):
    texts = ["A man is playing a guitar.", "The stock market fell sharply on Monday, and then it rose again.", "No."]
    encoded = transformers.AutoTokenizer.from_pretrained(minilm)(texts, padding=True, return_tensors="np")
    want = stock.run(stock.load(minilm), **encoded)["last_hidden_state"]
    for precision in PRECISIONS:
        ours = fusebert.torch.optimize(stock.load(minilm), precision=precision)
        got = stock.run(ours, **encoded)["last_hidden_state"]
        if precision == "fp32":
            assert stock.error(got, want) <= 1e-4
        else:
            assert visible_rows(stock.cosine(got, want), encoded["attention_mask"]).min() >= COSINE[precision]


def test_a_real_classifier_decides_as_before(shared_data):
    """MiniLM fine-tuned on MRPC: the same classes in fp32, and logits near stock's in every precision."""
    folder = shared_data.parent / "models" / "minilm-mrpc"
    if not folder.is_dir():
        pytest.skip(f"there is no {folder}")
    lines = (shared_data / "mrpc_dev.tsv").read_text(encoding="utf-8-sig").splitlines()[1:33]
    pairs = [line.split("\t")[3:] for line in lines]
    encoded = transformers.AutoTokenizer.from_pretrained(folder)(pairs, padding=True, return_tensors="np")
    want = stock.run(stock.load(folder, "sequence"), **encoded)["logits"]
    for precision in PRECISIONS:
        ours = fusebert.torch.optimize(stock.load(folder, "sequence", "sdpa"), precision=precision)
        got = stock.run(ours, **encoded)["logits"]
        assert np.median(np.abs(got - want)) <= {"fp32": 1e-5, "bf16": 0.01}.get(precision, 0.05)
        if precision == "fp32":
            assert stock.error(got, want) <= 1e-4
            assert (got.argmax(1) == want.argmax(1)).all()


def test_int8_is_the_engines_own(minilm):
    """The model's embeddings give the sample for smoothing, so nothing is lost against fusebert.load."""
    encoder = fusebert.torch.optimize(stock.load(minilm), precision="int8").encoder
    value = packing.encoder_of(encoder.fusebert.wiring.weights(), packing.Recipe((12,) * 6, "gelu_erf", 1e-12))
    got = smooth_encoder(value, encoder.fusebert.sample.numpy(), packing.thread_pool(1))
    want = smooth(huggingface.read(minilm)).encoder
    for ours, theirs in zip(got.blocks[::2], want.blocks[::2], strict=True):
        assert np.allclose(ours.body.query.input_scales, theirs.body.query.input_scales, rtol=1e-4)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_masks_of_every_form(pair, attention):
    theirs, ours = pair(attention=attention)
    random = np.random.default_rng(2)
    square = random.random((3, 1, 18, 18)) < 0.5
    square[:, :, np.arange(18), np.arange(18)] = True
    rows = stock.masks(3, 18, "right", seed=1)
    lowest = np.finfo(np.float32).min
    x = ids(3, 18)
    forms = {
        "boolean rows": rows.astype(bool), "float rows": rows.astype(np.float32),
        "general": np.where(square, 0, lowest).astype(np.float32),
        "padding, a row per query": np.where(rows[:, None, None] == 1, 0, lowest).repeat(18, 2).astype(np.float32),
    }  # fmt: skip
    for name, mask in forms.items():
        if V4 and mask.ndim == 4:
            continue  # transformers 4 transforms these once more
        assert_agree(stock.run(ours, x, mask), stock.run(theirs, x, mask)), name
    with torch.no_grad():
        embedded = theirs.embeddings(torch.from_numpy(x))
        direct = {
            "per head": random.normal(0, 2, (3, 4, 18, 18)).astype(np.float32),
            "soft": random.normal(0, 2, (3, 1, 1, 18)).astype(np.float32),
            "infinite": np.where(rows[:, None, None] == 1, 0, -np.inf).astype(np.float32),
            "ten thousand": np.where(rows[:, None, None] == 1, 0, -1e4).astype(np.float32),
            "one for all": np.where(rows[1:2, None, None] == 1, 0, lowest).astype(np.float32),
            "none": None,
        }
        for name, mask in direct.items():
            mask = None if mask is None else torch.from_numpy(mask)
            got, want = (model.encoder(embedded, mask)[0].numpy() for model in (ours, theirs))
            assert stock.error(got, want) <= 1e-5, name
        got = ours.encoder(embedded, torch.from_numpy(rows))[0].numpy()  # 0/1 rows, as DistilBERT has them
    assert stock.error(got, stock.run(theirs, x, rows)["last_hidden_state"]) <= 1e-5


def test_the_mask_is_not_transformed_twice(pair):
    """An additive mask that was shifted once more would leave bf16 scores no resolution."""
    theirs, ours = pair(precision="bf16")
    mask = stock.masks(3, 21, "right", seed=1)
    got, want = (stock.run(model, ids(), mask)["last_hidden_state"] for model in (ours, theirs))
    assert stock.cosine(got, want).min() >= 0.999


def test_padding_by_the_heads_class(pair, folders):
    expected = {"none": "compute", "sequence": "first", "token": "first", "question": "compute", "masked": "first"}
    for head, rows in expected.items():
        assert fused(pair(head=head)[1])[0].fusebert.hidden_rows == rows, head
    mask = stock.masks(3, 21, "right", seed=1)
    _, skipping = pair(padding="skip")
    got = stock.run(skipping, ids(), mask)["last_hidden_state"]
    assert not got[mask == 0].any()
    assert got[mask == 1].all()

    class Mine(transformers.BertForSequenceClassification):
        """Someone's own head may read anything."""

    mine = fusebert.torch.optimize(Mine.from_pretrained(folders("bert", "sequence")))
    assert fused(mine)[0].fusebert.hidden_rows == "compute"
    theirs, ours = pair(head="sequence")  # its hidden states are for someone to read
    more = {"output_hidden_states": True}
    assert_agree(stock.run(ours, ids(), mask, **more), stock.run(theirs, ids(), mask, **more))


def test_shapes_are_not_frozen(pair):
    theirs, ours = pair(attention="sdpa")
    for batch, length in ((2, 9), (5, 30), (1, 1), (1, 512), (3, 4)):
        mask = stock.masks(batch, length, "left", seed=length)
        assert_agree(stock.run(ours, ids(batch, length), mask), stock.run(theirs, ids(batch, length), mask))


def test_the_input_is_not_written_to(pair):
    _, ours = pair()
    with torch.no_grad():
        embedded = ours.embeddings(torch.from_numpy(ids()))
        before = embedded.clone()
        output = ours.encoder(embedded)[0]
    assert torch.equal(embedded, before)
    assert output.data_ptr() != embedded.data_ptr()


def test_weights_are_not_copied_a_third_time(pair):
    gc.collect()
    before = packing.packed_bytes()
    _, ours = pair()
    assert packing.packed_bytes() == before  # nothing until it runs
    for _ in range(3):
        stock.run(ours, ids())
    own = sum(p.numel() * 4 for p in ours.encoder.parameters())
    packed = packing.packed_bytes() - before
    assert 0.9 * own < packed < 1.6 * own  # small matrices are padded to the kernels' tiles
    for module in fused(ours):
        for source in module.fusebert.wiring.sources:
            assert packing._array(source.weight).ctypes.data == source.weight.data_ptr()
    del ours, module, source
    gc.collect()
    assert packing.packed_bytes() == before  # it goes with the model


def test_weights_that_change_are_seen(pair, folders):
    _, ours = pair()
    other = stock.load(folders("bert", seed=7))
    stock.run(ours, ids())
    ours.load_state_dict(other.state_dict())
    assert_agree(stock.run(ours, ids()), stock.run(other, ids()))
    for model in (ours, other):
        model.encoder.layer[1].output.dense.weight.requires_grad_(False).mul_(0.5)
        model.encoder.layer[2].intermediate.dense.weight = nn.Parameter(torch.full((130, 64), 0.01))
        model.encoder.layer[0].output.LayerNorm.bias.data = torch.ones(64)
    assert_agree(stock.run(ours, ids()), stock.run(other, ids()))
    for model in (ours, other):
        model.encoder.layer[1].attention.self.query.weight.data += 0.1  # which torch does not count
    assert_agree(stock.run(ours, ids()), stock.run(other, ids()))
    for model in (ours, other):
        model.encoder.layer[1].output.dense.bias.data += 1
    fusebert.torch.optimize(ours)
    assert_agree(stock.run(ours, ids()), stock.run(other, ids()))
    for model in (ours, other):
        model.encoder.layer = model.encoder.layer[:2]
    assert_agree(stock.run(ours, ids()), stock.run(other, ids()))


def test_weights_put_in_place_past_the_modules_are_seen(pair, folders):
    """torch itself writes into the dicts of modules: functional_call, `to`, quantisation."""
    theirs, ours = pair()
    other = stock.load(folders("bert", seed=7))
    x = torch.from_numpy(ids())
    with torch.no_grad():
        before, want = ours(x)[0], other(x)[0]
        got = torch.func.functional_call(ours, dict(other.state_dict()), (x,))[0]
        assert torch.allclose(got, want, atol=1e-5)
        assert torch.equal(ours(x)[0], before)
        for model in (theirs, ours):
            model.encoder.layer[1].output.dense._parameters["bias"] = nn.Parameter(torch.ones(64))
        assert torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-5)
        wider = nn.Linear(64, 130)
        for model in (theirs, ours):
            model.encoder.layer[2].intermediate._modules["dense"] = wider
        assert torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-5)


def test_a_packed_form_fits_no_more_when_its_first_weight_went(pair):
    """An encoder keeps its packed form, which does not hold that weight: another may come to lie in its place."""
    _, ours = pair()
    query = ours.encoder.layer[0].attention.self.query.weight
    for change in (lambda: fusebert.torch.optimize(ours), lambda: setattr(query, "data", query.detach().clone())):
        stock.run(ours, ids())
        packed = ours.encoder.fusebert.packed
        assert packed.fits(ours.encoder.fusebert.wiring.weights())
        change()
        assert not packed._places


def test_other_modules_around_the_same_weights_are_seen(pair):
    """The weights still fit what was packed, but the epsilon beside them does not."""
    theirs, ours = pair()
    x = torch.from_numpy(ids())
    with torch.no_grad():
        before = ours(x)[0]
        for model in (theirs, ours):
            for part in (part for layer in model.encoder.layer for part in (layer.attention.output, layer.output)):
                norm = nn.LayerNorm(64, eps=0.5)
                norm.weight, norm.bias, part.LayerNorm = part.LayerNorm.weight, part.LayerNorm.bias, norm
        assert torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-5)
        assert not torch.allclose(ours(x)[0], before, atol=1e-3)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_attributes_that_change_are_seen(pair, family):
    """An epsilon, train mode of a module inside and a replaced forward, as changed weights are."""
    theirs, ours = pair(family)
    x = torch.from_numpy(ids())
    encoders = [model.encoder if family == "bert" else model.transformer for model in (theirs, ours)]

    def answers():
        with torch.no_grad(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            return theirs(x)[0], ours(x)[0], [str(one.message) for one in told]

    before = answers()[1]
    for encoder in encoders:
        for norm in (module for module in encoder.modules() if isinstance(module, nn.LayerNorm)):
            norm.eps = 0.5
    want, got, told = answers()
    assert torch.allclose(got, want, atol=1e-5)
    assert not torch.allclose(got, before, atol=1e-3)
    assert not told
    linears = [[module for module in encoder.modules() if isinstance(module, nn.Linear)][-1] for encoder in encoders]
    for linear in linears:
        linear.forward = lambda rows: rows[..., :64]
    want, got, told = answers()
    assert torch.equal(got, want)
    assert "contains a" in told[0]
    for linear in linears:
        del linear.forward
    assert torch.allclose(answers()[1], answers()[0], atol=1e-5)
    kind = type(encoders[1].layer[0])
    original = kind.forward
    try:
        kind.forward = lambda self, rows, *args, **kwargs: original(self, rows * 0, *args, **kwargs)
        want, got, told = answers()
        assert torch.equal(got, want)
        assert not torch.allclose(got, before, atol=1e-3)
    finally:
        kind.forward = original
    next(module for module in encoders[1].layer.modules() if isinstance(module, nn.Dropout)).train()
    assert "train mode" in answers()[2][0]


def _attention(encoder):
    attention = encoder.layer[1].attention
    return getattr(attention, "self", attention)


def _feed_forward(encoder):
    layer = encoder.layer[1]
    return (layer.ffn, "activation") if hasattr(layer, "ffn") else (layer.intermediate, "intermediate_act_fn")


def _narrow_heads(encoder):
    attention = _attention(encoder)
    attention.attention_head_size, attention.scaling = 8, 8**-0.5


def _quick_activation(encoder):
    for layer in encoder.layer:
        module = layer.ffn if hasattr(layer, "ffn") else layer.intermediate
        name = "activation" if hasattr(layer, "ffn") else "intermediate_act_fn"
        setattr(module, name, transformers.activations.QuickGELUActivation())


def _replace_chunk(encoder):
    layer = encoder.layer[1]
    owner, name = (layer.ffn, "ff_chunk") if hasattr(layer, "ffn") else (layer, "feed_forward_chunk")
    original = getattr(owner, name)
    setattr(owner, name, lambda *rows: original(*rows) * 0.5)


def _register_attention(encoder):
    def halved(module, query, key, value, mask, **more):
        return more and (torch.zeros_like(value).transpose(1, 2).contiguous(), None)

    transformers.AttentionInterface.register("halved", halved)
    _attention(encoder).config._attn_implementation = "halved"


CHANGES = {
    "other activation": (_quick_activation, True),
    "one layer's activation": (lambda e: setattr(*_feed_forward(e), nn.ReLU()), False),
    "unknown activation": (lambda e: setattr(*_feed_forward(e), nn.Tanh()), False),
    "scale": (lambda e: setattr(_attention(e), "scaling", 0.5), False),
    "width of heads": (_narrow_heads, False),
    "causal": (lambda e: setattr(_attention(e), "is_causal", True), False),
    "decoder": (lambda e: setattr(_attention(e), "is_decoder", True), False),
    "a method of its own": (_replace_chunk, False),
    "an attention function of the user's": (_register_attention, False),
    "fewer layers": (lambda e: setattr(e, "layer", e.layer[:2]), True),
    "dropout": (lambda e: [setattr(m, "p", 0.9) for m in e.modules() if isinstance(m, nn.Dropout)], True),
}


@pytest.mark.skipif(V4, reason="version 4 computes attention by other names")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_the_encoder_is_what_its_attributes_say_at_each_call(pair, family, change):
    """As transformers' own tests change them; what the operator does not compute is left to the original."""
    theirs, ours = pair(family, attention="sdpa")
    x = torch.from_numpy(ids())
    work, fused_still = CHANGES[change]
    with torch.no_grad():
        ours(x)
        for model in (theirs, ours):
            work(model.encoder if family == "bert" else model.transformer)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got = ours(x)[0]
        assert torch.allclose(got, theirs(x)[0], atol=1e-5)
    assert [str(one.message) for one in told if "runs the original" in str(one.message)] == [] or not fused_still
    assert fused_still or any("runs the original" in str(one.message) for one in told)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_forked_child_may_make_the_first_call(folders, precision):
    """Taking the sample for int8 must not leave OpenMP threads to the parent: in a child torch would wait for them."""
    script = f"""
import os, signal, sys, torch, transformers
import fusebert.torch
torch.set_num_threads(2)
model = fusebert.torch.optimize(transformers.AutoModel.from_pretrained(sys.argv[1]).eval(), precision={precision!r})
child = os.fork()
if child == 0:
    signal.alarm(60)
    with torch.no_grad():
        model(torch.ones(20, 120, dtype=torch.long))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    environment = {**os.environ, "USE_TF": "0"}
    subprocess.run([sys.executable, "-c", script, str(folders("bert"))], check=True, env=environment, timeout=200)


def test_rows_as_they_come(pair):
    """A part of wider rows, and rows that want a gradient where none is kept."""
    theirs, ours = pair()
    wide = torch.randn(3, 21, 100)
    with torch.no_grad():
        for rows in (
            wide[:, :, :64],
            wide[:, ::2, 7:71],
            wide.requires_grad_()[:, :, :64],
            nn.Parameter(wide[..., :64]),
        ):
            assert torch.allclose(ours.encoder(rows)[0], theirs.encoder(rows)[0], atol=1e-5)


def test_outputs_are_what_the_original_class_makes_of_them():
    """They are made without its constructor, which is slow."""
    rows, states = torch.ones(1, 2, 3), (torch.zeros(1, 2, 3),)
    outputs = transformers.modeling_outputs
    for kind in (outputs.BaseModelOutput, outputs.BaseModelOutputWithPastAndCrossAttentions):
        for recorded in (None, states):
            got, want = quick_output(kind, rows, recorded), kind(last_hidden_state=rows, hidden_states=recorded)
            assert type(got) is type(want)
            assert list(got.items()) == list(want.items())
            assert list(vars(got).items()) == list(vars(want).items())
            assert got.to_tuple() == want.to_tuple()
            assert list(pickle.loads(pickle.dumps(got))) == list(want)


def test_a_torch_without_its_private_dict_version_still_sees_a_replaced_module(folders):
    code = f"""
import torch, torch._dynamo, transformers
import torch._C._dynamo.guards as guards
del guards.dict_version
import fusebert.torch
model = transformers.AutoModel.from_pretrained({str(folders("bert"))!r}).eval()
with torch.no_grad():
    model(torch.ones(1, 4, dtype=torch.long))
wiring = model.encoder.fusebert.wiring
assert wiring.intact()
model.encoder.layer[0].output.dense = torch.nn.Linear(1, 1)
assert not wiring.intact()
"""
    environment = {**os.environ, "USE_TF": "0", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_importing_is_enough(folders):
    code = f"""
import sys, torch, transformers
folder = {str(folders("bert", "sequence"))!r}
load = transformers.AutoModelForSequenceClassification.from_pretrained
before = load(folder).eval()
import fusebert.torch
after = load(folder).eval()
with fusebert.torch.disabled():
    inside = load(folder)
fusebert.torch.disable()
late = load(folder)
print([type(m.bert.encoder).__name__ for m in (before, after, inside, late)])
with torch.no_grad():
    x = torch.arange(5, 30).view(1, -1)
    print(float((before(x).logits - after(x).logits).abs().max()) < 1e-5, after.bert.encoder.fusebert.hidden_rows)
"""
    environment = {**os.environ, "USE_TF": "0", "PYTHONWARNINGS": "ignore"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert out.returncode == 0, out.stderr
    names, answer = out.stdout.strip().splitlines()[-2:]
    assert names == "['BertEncoder', 'FusedBertEncoder', 'BertEncoder', 'BertEncoder']"
    assert answer == "True first"


def test_restore(pair):
    theirs, ours = pair("distilbert")
    stock.run(ours, ids())
    assert fusebert.torch.restore(ours) is ours
    assert not fused(ours)
    assert [type(m) for m in ours.modules()] == [type(m) for m in theirs.modules()]
    assert_agree(stock.run(ours, ids()), stock.run(theirs, ids()), 0)


def test_settings_by_configure_config_and_argument(folders):
    fusebert.torch.enable()
    fusebert.torch.configure(precision="bf16", threads=1)
    folder = folders()
    assert fused(stock.load(folder))[0].fusebert.settings == settings.Settings("bf16", threads=1)

    def made(**fields) -> settings.Settings:
        config = transformers.AutoConfig.from_pretrained(folder)
        for name, value in fields.items():
            setattr(config, name, value)
        return fused(transformers.BertModel(config))[0].fusebert.settings

    fusebert.torch.configure(precision="fp32", threads=0)
    assert made().precision == "fp32"
    assert made(use_quantization=True).precision == "int8"
    assert made(use_bfloat16=True).precision == "bf16"
    assert made(use_bfloat16=True, use_quantization=True).precision == "int8-bf16"
    factors = [-8.0, 8.0] * 12
    assert made(use_quantization=True, quantization_factors=factors).ranges == tuple(factors)
    with pytest.raises(FusebertError, match="a model that needs 24"):
        made(use_quantization=True, quantization_factors=[1.0])
    with pytest.raises(FusebertError, match="calibration runs in fp32"):
        made(use_quantization=True, calibrate_quant_factors=True)
    model = fusebert.torch.optimize(stock.load(folder), precision="int8", padding="skip")
    assert fused(model)[0].fusebert.settings == settings.Settings("int8", "skip")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"precision": "int4"}, "precision 'int4'"), ({"bf16": True}, "'bf16' is unknown"), ({"padding": "no"}, "padding"),
     ({"threads": -1}, "threads"), ({"ranges": [1, 2]}, "ranges belong to int8")],
)  # fmt: skip
def test_unknown_settings_are_refused(wrong, message):
    with pytest.raises(FusebertError, match=message):
        fusebert.torch.configure(**wrong)
    with pytest.raises((FusebertError, TypeError)):
        fusebert.torch.optimize(transformers.BertModel(transformers.BertConfig(num_hidden_layers=1)), **wrong)


def test_calibration_and_static_int8(pair, folders):
    theirs, ours = pair(calibrate_quant_factors=True)
    mask = stock.masks(6, 40, "right", seed=2)
    want = stock.run(theirs, ids(6, 40), mask)["last_hidden_state"]
    assert ours.encoder.get_quantization_factors() == []
    got = stock.run(ours, ids(6, 40), mask)["last_hidden_state"]
    assert stock.error(got, want) <= 1e-4
    factors = ours.encoder.get_quantization_factors()
    assert len(factors) == 3 * 8
    assert all(low < high for low, high in zip(factors[::2], factors[1::2], strict=True))
    static = fusebert.torch.optimize(stock.load(folders()), precision="int8", ranges=factors)
    got = stock.run(static, ids(6, 40), mask)["last_hidden_state"]
    assert stock.cosine(got, want).min() >= 0.99


def test_what_is_not_computed_runs_the_original_with_one_warning(pair):
    theirs, ours = pair()
    x = ids()
    with pytest.warns(UserWarning, match="output_attentions is asked for"):
        stock.run(ours, x, output_attentions=True)
    got = stock.run(ours, x, output_attentions=True)  # one warning: a second would be an error here
    assert_agree(got, stock.run(theirs, x, output_attentions=True))
    ours.config.output_attentions = True
    assert len(stock.run(ours, x)["attentions"]) == 3
    ours.config.output_attentions = False
    if V4:
        head_mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
        with pytest.warns(UserWarning, match="head_mask is given"):
            got = stock.run(ours, x, head_mask=head_mask)
        assert_agree(got, stock.run(theirs, x, head_mask=head_mask))
    with torch.no_grad():
        embedded = ours.embeddings(torch.from_numpy(x))
        with pytest.warns(UserWarning, match="encoder_hidden_states is given"):
            got = ours.encoder(embedded, encoder_hidden_states=embedded)[0]
        assert torch.allclose(got, theirs.encoder(embedded)[0], atol=1e-5)
    seen = []
    handle = ours.encoder.layer[1].register_forward_hook(lambda *call: seen.append(call))
    with pytest.warns(UserWarning, match="hooks listen"):
        stock.run(ours, x)
    assert seen
    handle.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_agree(stock.run(ours, x), stock.run(theirs, x))


def test_other_mathematics_is_refused_with_the_reason(folders):
    def config(**fields):
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        return transformers.BertConfig(vocab_size=50, **sizes, **fields)

    with pytest.raises(UnsupportedError, match="it is a decoder"):
        fusebert.torch.optimize(transformers.BertModel(config(is_decoder=True)))
    with pytest.raises(UnsupportedError, match="ReLU6"):
        fusebert.torch.optimize(transformers.BertModel(config(hidden_act="relu6")))
    with pytest.raises(UnsupportedError, match="contains no encoder"):
        fusebert.torch.optimize(nn.Linear(2, 2))
    fusebert.torch.enable()
    with pytest.warns(UserWarning, match="keeps its original encoder: it is a decoder"):
        assert not fused(transformers.BertModel(config(is_decoder=True)))
    mine = fusebert.torch.optimize(stock.load(folders()))

    class Wrapped(nn.Linear):
        """As adapters put in the place of a layer."""

        def forward(self, x):
            return super().forward(x) * 2

    dense = mine.encoder.layer[0].output.dense
    mine.encoder.layer[0].output.dense = Wrapped(dense.in_features, dense.out_features)
    with pytest.warns(UserWarning, match="Wrapped"):
        got = stock.run(mine, ids())
    assert_agree(got, stock.run(fusebert.torch.restore(mine), ids()))


def test_train_mode_runs_the_original_and_eval_has_no_gradient(pair):
    theirs, ours = pair(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    x = torch.from_numpy(ids())
    for model in (ours, theirs):
        model.train()(x).last_hidden_state.sum().backward()
    got, want = (model.encoder.layer[0].output.dense.weight.grad for model in (ours, theirs))
    assert torch.allclose(got, want)
    output = ours.eval()(x).last_hidden_state  # fine without no_grad, as long as nobody asks
    with pytest.raises(RuntimeError, match=r"inference only.*call \.eval\(\) under torch\.no_grad"):
        output.sum().backward()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_modules(folders, kind):
    want = stock.run(stock.load(folders()), ids(), stock.masks(3, 21, "right"))["last_hidden_state"]
    for precision in ("fp32", "bf16", "int8"):
        ours = fusebert.torch.optimize(stock.load(folders()).to(kind), precision=precision)
        with torch.no_grad():
            got = ours(torch.from_numpy(ids()), torch.from_numpy(stock.masks(3, 21, "right"))).last_hidden_state
        assert got.dtype == kind
        assert stock.cosine(got.float().numpy(), want).min() >= COSINE.get(precision, 0.999)


def test_saving_copying_and_pickling(pair, folders, tmp_path):
    theirs, ours = pair(head="sequence", precision="bf16")
    want = stock.run(ours, ids())
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ours.save_pretrained(tmp_path / "saved")
    assert_agree(stock.run(stock.load(tmp_path / "saved", "sequence"), ids()), stock.run(theirs, ids()))
    torch.save(ours, tmp_path / "whole.pt")
    copies = [copy.deepcopy(ours), copy.deepcopy(ours).to("cpu"), pickle.loads(pickle.dumps(ours))]
    copies.append(torch.load(tmp_path / "whole.pt", weights_only=False))
    for other in copies:
        assert fused(other)[0].fusebert.settings.precision == "bf16"
        assert all(np.array_equal(value, want[name]) for name, value in stock.run(other, ids()).items())
        with torch.no_grad():  # and they are models of their own
            other.bert.encoder.layer[0].output.dense.weight.zero_()
        assert stock.error(stock.run(other, ids())["logits"], want["logits"]) > 1e-3
        assert np.array_equal(stock.run(ours, ids())["logits"], want["logits"])


def test_inference_mode_and_empty_batches(pair, folders):
    theirs, ours = pair(attention="sdpa")
    with torch.inference_mode():
        made_here = fusebert.torch.optimize(stock.load(folders()))
        for model in (ours, made_here):
            got = model(torch.from_numpy(ids())).last_hidden_state.numpy()
            assert stock.error(got, stock.run(theirs, ids())["last_hidden_state"]) <= 1e-4
    with torch.no_grad():
        assert ours.encoder(torch.zeros(0, 5, 64))[0].shape == (0, 5, 64)


def test_outputs_as_tuples(pair):
    for family in ("bert", "distilbert"):
        theirs, ours = pair(family)
        with torch.no_grad():
            for more in ({}, {"output_hidden_states": True}):
                got, want = (m(torch.from_numpy(ids()), return_dict=False, **more) for m in (ours, theirs))
                assert [type(part) for part in got] == [type(part) for part in want]
                assert torch.allclose(got[0], want[0], atol=1e-5)


def test_threads_at_the_same_time(pair):
    _, ours = pair("bert")
    want = stock.run(ours, ids())["last_hidden_state"]
    fresh = copy.deepcopy(ours)  # packs while all of them call
    wrong = []

    def call() -> None:
        for _ in range(5):
            if not np.array_equal(stock.run(fresh, ids())["last_hidden_state"], want):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_runs_on_torchs_own_threads_but_not_in_a_forked_child(folders):
    """Others would compete with them: OpenMP's threads spin after every operator. A child has none of them."""
    script = """
import contextlib, os, sys, torch, transformers
import fusebert.torch
torch.set_num_threads(2)
ids = torch.arange(120).view(2, 60)
def nanoseconds():  # that every thread has run
    ran = {}
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has just ended
            ran[task] = int(open(f"/proc/self/task/{task}/schedstat").read().split()[0])
    return ran
def made(**settings):
    return fusebert.torch.optimize(transformers.AutoModel.from_pretrained(sys.argv[1]), **settings)
with torch.no_grad():
    torch.rand(2000, 500) @ torch.rand(500, 500)
    torchs = nanoseconds()
    plain, three = made(), made(threads=3)
    first = plain(ids)[0]  # packs the weights, on threads of its own
    before = nanoseconds()
    assert all(torch.equal(plain(ids)[0], first) for _ in range(200))
    spent = {task: ran - before[task] for task, ran in nanoseconds().items() if task in before and task not in torchs}
    assert sum(spent.values()) < 1e6, spent
    assert torch.equal(three(ids)[0], first) and len(nanoseconds().keys() - before) == 2
    rows = plain.embeddings(ids)
    last = plain.encoder(rows)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(plain.encoder(rows)[0], last) else 1)  # torch itself would wait for ever
    assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script, str(folders("bert"))], check=True, timeout=100)


def test_inside_someones_own_module(folders):
    class Twice(nn.Module):
        """Two encoders, and a mean that does not heed the mask."""

        def __init__(self):
            super().__init__()
            self.first, self.second = stock.load(folders()), stock.load(folders("distilbert"))

        def forward(self, x, mask):
            return self.first(x, mask).last_hidden_state.mean(1), self.second(x, mask).last_hidden_state.mean(1)

    x, mask = torch.from_numpy(ids()), torch.from_numpy(stock.masks(3, 21, "right", seed=4))
    with torch.no_grad():
        model = Twice().eval()
        want = model(x, mask)
        assert len(fused(fusebert.torch.optimize(model))) == 2
        for got, theirs in zip(model(x, mask), want, strict=True):
            assert torch.allclose(got, theirs, atol=1e-5)


@pytest.mark.skipif(V4, reason="this version of sentence-transformers wants transformers 5")
@pytest.mark.filterwarnings("ignore")
def test_sentence_transformers(minilm):
    from sentence_transformers import SentenceTransformer

    texts = ["A man is playing a guitar.", "No.", "The stock market fell sharply on Monday.", "Someone plays music."]
    model = SentenceTransformer(str(minilm), device="cpu")
    want, wanted_tokens = model.encode(texts), model.encode(texts, output_value="token_embeddings")
    fusebert.torch.optimize(model)
    assert fused(model)[0].fusebert.hidden_rows == "first"
    assert np.abs(model.encode(texts) - want).max() < 1e-6
    for got, tokens in zip(model.encode(texts, output_value="token_embeddings"), wanted_tokens, strict=True):
        assert torch.allclose(got, tokens, atol=1e-4)
    fusebert.torch.enable()
    magic = SentenceTransformer(str(minilm), device="cpu")
    assert fused(magic)
    assert np.abs(magic.encode(texts) - want).max() < 1e-6
