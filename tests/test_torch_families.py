"""The PyTorch front door for families that are wired whole: every case of tests/families.py answers as stock ones.

Most of it also runs under transformers 4: test_torch_legacy.py."""

import copy
import pickle
import warnings

import families
import numpy as np
import pytest
import stock
import torch
import transformers
from torch import nn

import fusebert.torch
from fusebert import UnsupportedError
from fusebert.torch.encoder import Fused

fusebert.torch.disable()  # other tests load stock models in this process

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),  # what transformers' DeBERTa is made with
]
CASES = [
    name
    for name, case in families.CASES.items()
    if not (name == "albert" and transformers.__version__.startswith("4."))  # whose own inner groups fail
    and hasattr(transformers, f"{case.name}Config")
    and not case.own_names
    and not case.old
    and case.name != "XLMRoberta"
]
SEQUENCE = [name for name in CASES if "sequence" in families.CASES[name].heads]
MASKS = {"none": None, "right": [21, 9, 1], "left": [-21, -9, -2], "holes": [(0, 5, 8, 20), (2, 3), (0, 4)]}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A stock model of a case, made once."""
    made = {}

    def get(case: str, head: str = "none", odd: bool = False) -> nn.Module:
        if (case, head, odd) not in made:
            made[case, head, odd] = families.make(tmp_path_factory.mktemp("model"), case, head, odd)[1]
        return copy.deepcopy(made[case, head, odd])

    return get


def mask_of(kind: str, batch: int = 3, length: int = 21) -> torch.Tensor | None:
    """A 0/1 mask of that kind, or none."""
    if MASKS[kind] is None:
        return None
    mask = torch.zeros(batch, length, dtype=torch.int64)
    for row, shown in zip(mask, MASKS[kind], strict=True):
        if isinstance(shown, tuple):
            row[list(shown)] = 1
        else:
            row[:shown] = 1
            if shown < 0:
                row[:] = 0
                row[shown:] = 1
    return mask


def some_ids(batch: int = 3, length: int = 21) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(5, 97, (batch, length)))


def assert_agree(got, want, mask=None, tolerance: float = 1e-4) -> None:
    """Every output, at the rows that the mask shows."""
    want = {name: value for name, value in want.items() if name != "past_key_values"}  # Gemma's, which has no use here
    assert list(got.keys()) == list(want)
    for name, value in want.items():
        pairs = zip(got[name], value, strict=True) if isinstance(value, tuple) else [(got[name], value)]
        for one, other in pairs:
            rows = mask is not None and other.shape[:2] == mask.shape
            one, other = (one[mask == 1], other[mask == 1]) if rows else (one, other)
            assert stock.error(one.numpy(), other.numpy()) <= tolerance, name


def run(model: nn.Module, mask=None, length: int = 21, **more):
    with torch.no_grad():
        return model(input_ids=some_ids(length=length), attention_mask=mask, **more)


def optimized(model: nn.Module, *arguments) -> nn.Module:
    """The fused copy of a model, which must not fall back to the original."""
    ours = fusebert.torch.optimize(copy.deepcopy(model), *arguments)
    assert any(isinstance(module, Fused) for module in ours.modules())
    return ours


@pytest.fixture(autouse=True)
def _no_fallback():
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="fusebert: .* runs the original")
        yield


@pytest.mark.parametrize("case", CASES)
def test_every_family_with_every_padding(models, case):
    """Eager and sdpa, hidden states too where they are the same in both."""
    model = models(case)
    ours = optimized(model)
    for attention in ("eager", "sdpa"):
        if hasattr(model, "set_attn_implementation") and "eberta" not in case:
            model.set_attn_implementation(attention), ours.set_attn_implementation(attention)
        for kind in MASKS:
            assert_agree(run(ours, mask_of(kind)), run(model, mask_of(kind)), mask_of(kind))
    if not (case.startswith("modernbert") and transformers.__version__.startswith("4.")):
        assert_agree(run(ours, output_hidden_states=True), run(model, output_hidden_states=True))


@pytest.mark.parametrize("case", ["mpnet", "deberta-v3", "modernbert", "albert", "gemma"])
def test_odd_sizes_and_long_texts(models, case):
    """312 wide, heads of 26; 1 and 300 tokens."""
    model = models(case, odd=True)
    for length in (1, 300):
        assert_agree(run(optimized(model), length=length), run(model, length=length))


@pytest.mark.parametrize("case", SEQUENCE)
def test_classifiers(models, case):
    """The class of the head says that hidden rows may be skipped."""
    model = models(case, "sequence")
    ours = optimized(model)
    for kind in MASKS:
        # A hidden first row whose window shows it nothing is what the attention function makes of that.
        if kind != "left" or not case.startswith("modernbert"):
            assert_agree(run(ours, mask_of(kind)), run(model, mask_of(kind)))
    (encoder,) = (module for module in ours.modules() if isinstance(module, Fused))
    assert encoder.fusebert.hidden_rows == "first"


def test_hidden_rows_of_a_bare_deberta(models):
    """They see nothing, hence everything alike, and are computed so where nobody knows who reads them."""
    model = models("deberta-v3")
    for kind in ("right", "left"):
        assert_agree(run(optimized(model), mask_of(kind)), run(model, mask_of(kind)))


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8-bf16"])
@pytest.mark.parametrize("case", ["mpnet", "deberta-v3", "modernbert"])
def test_precisions(models, case, precision):
    """Rows are nearly parallel to those of fp32."""
    model = models(case)
    got, want = (run(m).last_hidden_state.flatten() for m in (optimized(model, precision), model))
    assert torch.nn.functional.cosine_similarity(got, want, dim=0) > {"bf16": 0.999}.get(precision, 0.97)


def test_a_model_stays_what_it_was(models, tmp_path):
    """Its class's name, parameters, config; copies, pickles and saved models."""
    model = models("mpnet")
    ours = optimized(model)
    assert type(ours).__name__ == "MPNetModel"
    assert isinstance(ours, transformers.MPNetModel)
    assert ours.state_dict().keys() == model.state_dict().keys()
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_agree(run(other), run(model))
    ours.save_pretrained(tmp_path)
    assert '"MPNetModel"' in (tmp_path / "config.json").read_text()
    assert type(fusebert.torch.restore(ours)) is transformers.MPNetModel


def test_importing_is_enough(models, tmp_path):
    """Models that transformers makes afterwards are fused, weights and all."""
    model = models("deberta-v3", "sequence")
    model.save_pretrained(tmp_path)
    fusebert.torch.enable()
    try:
        ours = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    finally:
        fusebert.torch.disable()
    assert isinstance(ours.deberta, Fused)
    assert_agree(run(ours), run(model))


@pytest.mark.filterwarnings("ignore")  # torch's own, about tracing and exporting
@pytest.mark.parametrize("case", ["mpnet", "deberta-v3", "modernbert"])
def test_graphs_carry_the_form(models, case, tmp_path):
    """Traced and exported, in a file and back; any batch and length."""
    model = models(case, "sequence")
    ours = optimized(model)
    ids, mask = some_ids(), mask_of("right")
    with torch.no_grad():
        traced = torch.jit.freeze(torch.jit.trace(ours, (ids, mask), strict=False, check_trace=False))
        torch.jit.save(traced, tmp_path / "traced.pt")
        got = torch.jit.load(tmp_path / "traced.pt")(some_ids(2, 30), torch.ones(2, 30, dtype=torch.int64))
        want = model(some_ids(2, 30), torch.ones(2, 30, dtype=torch.int64)).logits
        assert stock.error(got["logits"].numpy(), want.numpy()) < 1e-4
        exported = torch.export.export(ours, (ids, mask))
        torch.export.save(exported, tmp_path / "exported.pt2")
        again = torch.export.load(tmp_path / "exported.pt2").module()(ids, mask)
        assert stock.error(again.logits.numpy(), model(ids, mask).logits.numpy()) < 1e-4


def test_weights_that_change_are_seen(models):
    """In place, and replaced."""
    model = models("modernbert")
    ours = optimized(model)
    run(ours)
    for one in (model, ours):
        with torch.no_grad():
            one.layers[1].mlp.Wi.weight.mul_(1.5)
            one.layers[0].attn.Wo.weight = nn.Parameter(one.layers[0].attn.Wo.weight * 0.5)
    assert_agree(run(ours), run(model))


def test_modules_that_say_otherwise_than_the_config_are_refused(models):
    """Another epsilon, activation, scale or layer is not computed by the config's word."""
    for change in (
        lambda m: setattr(m.layers[1].mlp_norm, "eps", 0.5),
        lambda m: setattr(m.layers[1].mlp, "act", nn.ReLU()),
        lambda m: setattr(m.layers[2], "attn", nn.Identity()),
    ):
        model = models("modernbert")
        change(model)
        with pytest.raises(UnsupportedError):
            fusebert.torch.optimize(model)


def test_what_is_not_computed_runs_the_original_with_one_warning(models):
    """Positions of one's own, and a mask per query."""
    model = models("modernbert")
    ours = optimized(model)
    positions = torch.arange(21)[None] * 2
    with pytest.warns(UserWarning, match="position_ids are given"):
        got = run(ours, position_ids=positions)
    assert_agree(got, run(model, position_ids=positions))


@pytest.mark.skipif(transformers.__version__ >= "5", reason="transformers 5 takes padding away inside its attention")
def test_unpadded_rows_of_modernbert(models):
    """What its own heads hand over where attention is flash_attention_2, which alone cannot run on a CPU."""
    model = models("modernbert", "masked")
    ours = optimized(model)
    for kind in ("right", "left"):
        mask = mask_of(kind)
        ours.config._attn_implementation = "flash_attention_2"
        got = run(ours, mask).logits
        assert stock.error(got[mask == 1].numpy(), run(model, mask).logits[mask == 1].numpy()) < 1e-4
        ids, ends = some_ids()[mask == 1], nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).int()
        with torch.no_grad():
            rows = ours.model(input_ids=ids, cu_seqlens=ends, max_seqlen=21)[0]
        assert stock.error(rows.numpy(), run(model.model, mask)[0][mask == 1].numpy()) < 1e-4


class Own(nn.Module):
    """Somebody's module with an encoder inside."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.tags = encoder, nn.Linear(48, 5)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.tags(self.encoder(input_ids=ids, attention_mask=mask)[0])


def test_inside_someones_own_module(models):
    """Nobody knows who reads what: hidden rows are computed."""
    model = Own(models("deberta-v3")).eval()
    ours = optimized(model)
    with torch.no_grad():
        got, want = (m(some_ids(), mask_of("right")) for m in (ours, model))
    assert stock.error(got.numpy(), want.numpy()) < 1e-4
