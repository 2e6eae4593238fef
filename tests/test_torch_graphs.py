"""The operator in graphs: traced and frozen, compiled, exported; saved and loaded again, at other shapes."""

import subprocess
import sys

import numpy as np
import pytest
import stock
import torch
import transformers
from torch.fx.experimental.proxy_tensor import make_fx

import fusebert.torch
from fusebert.torch import packing

fusebert.torch.disable()  # other tests load stock models in this process

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore"),  # torch's own, about tracing and exporting
]
SIZES = {"hidden": 32, "heads": 4, "inner": 48, "layers": 2}
V4 = transformers.__version__.startswith("4.")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    families = ("bert", "distilbert")
    return {family: stock.make(tmp_path_factory.mktemp(family), family, "sequence", sizes=SIZES) for family in families}


def make(folder, precision=None, attention="sdpa"):
    theirs = stock.load(folder, "sequence", attention)
    return theirs, fusebert.torch.optimize(stock.load(folder, "sequence", attention), precision)


def inputs(batch: int, length: int, padding: str = "right") -> tuple[torch.Tensor, torch.Tensor]:
    ids = np.random.default_rng(length).integers(5, 211, (batch, length))
    return torch.from_numpy(ids), torch.from_numpy(stock.masks(batch, length, padding, seed=2))


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return stock.error(got.detach().numpy(), want.detach().numpy())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_traced_and_frozen(folders, family, precision, attention):
    theirs, ours = make(folders[family], precision, attention)
    with torch.no_grad():
        traced = torch.jit.trace(ours, inputs(2, 16), strict=False)
        frozen = torch.jit.freeze(traced)
        assert "fusebert::encode" in str(frozen.inlined_graph)
        for call in (inputs(2, 16), inputs(5, 9), inputs(1, 30, "none"), inputs(4, 12, "left"), inputs(3, 8, "holes")):
            want, eager = theirs(*call).logits, ours(*call).logits
            for graph in (traced, frozen):
                assert torch.equal(graph(*call)["logits"], eager)
            assert error(eager, want) <= (1e-4 if precision == "fp32" else 0.2)


@pytest.mark.parametrize("family", stock.NAMES)
def test_odd_sizes_of_every_family_in_graphs(family, tmp_path):
    """312 wide, 12 heads of 26: traced and frozen, exported, and (it is slow, so one of them) compiled."""
    theirs, ours = make(stock.make(tmp_path, family, "sequence", sizes={**stock.ODD, "layers": 1}), attention="eager")
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=500)}
    with torch.no_grad():
        graphs = [
            torch.jit.freeze(torch.jit.trace(ours, inputs(2, 16), strict=False)),
            torch.export.export(ours, inputs(3, 16), dynamic_shapes=(sizes, sizes), strict=False).module(),
        ]
        graphs += [torch.compile(ours, dynamic=True, backend="aot_eager")] if family == "roberta" else []
        for call in (inputs(3, 16), inputs(4, 9, "left"), inputs(3, 8, "holes")):
            for graph in graphs:
                assert error(graph(*call)["logits"], theirs(*call).logits) <= 1e-4


def test_a_traced_model_is_saved_and_loaded_elsewhere(folders, tmp_path):
    _, ours = make(folders["bert"])
    call = inputs(3, 12)
    with torch.no_grad():
        want = ours(*call).logits
        torch.jit.save(torch.jit.freeze(torch.jit.trace(ours, inputs(2, 16), strict=False)), tmp_path / "traced.pt")
    torch.save((call, want), tmp_path / "case.pt")
    code = f"""
import torch, fusebert.torch
call, want = torch.load({str(tmp_path / "case.pt")!r})
model = torch.jit.load({str(tmp_path / "traced.pt")!r})
print([torch.equal(model(*call)["logits"], want) for _ in range(2)])
"""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert ended.stdout.strip() == "[True, True]", ended.stderr


def test_int8_of_the_import_traced_before_anything_ran(folders):
    fusebert.torch.enable()
    try:
        config = transformers.AutoConfig.from_pretrained(folders["bert"])
        config.use_quantization = True
        model = transformers.BertForSequenceClassification.from_pretrained(folders["bert"], config=config).eval()
    finally:
        fusebert.torch.disable()
    with torch.no_grad():
        traced = torch.jit.trace(model, inputs(2, 16), strict=False)
        assert model.bert.encoder.fusebert.sample is not None
        assert str(traced.inlined_graph).count("aten::embedding") == 3  # the sample's are not in it
        assert torch.equal(traced(*inputs(3, 9))["logits"], model(*inputs(3, 9)).logits)


def test_a_frozen_graph_and_its_module_take_no_turns_in_packing(folders, monkeypatch):
    _, ours = make(folders["bert"])
    call, packed = inputs(2, 16), []
    pack = packing._pack
    monkeypatch.setattr(packing, "_pack", lambda *arguments: packed.append(1) or pack(*arguments))
    with torch.no_grad():
        frozen = torch.jit.freeze(torch.jit.trace(ours, call, strict=False))
        for _ in range(3):
            assert torch.equal(frozen(*call)["logits"], ours(*call).logits)
    assert len(packed) <= 2


def test_compiled(folders):
    theirs, ours = make(folders["bert"])
    compiled = torch.compile(ours, fullgraph=not V4, dynamic=True, backend="aot_eager")
    for call in (inputs(2, 16), inputs(5, 9), inputs(4, 12, "left"), inputs(3, 8, "holes")):  # no_grad is not needed
        assert error(compiled(*call).logits, theirs(*call).logits) <= 1e-4
    ours.load_state_dict({name: value * 0.9 for name, value in theirs.state_dict().items()})
    with torch.no_grad():
        assert error(compiled(*inputs(5, 9)).logits, ours(*inputs(5, 9)).logits) <= 1e-6
        assert error(ours(*inputs(5, 9)).logits, theirs(*inputs(5, 9)).logits) > 1e-3


def test_compiled_by_inductor(folders):
    if V4:
        pytest.skip("one run of the slow compiler is enough")
    theirs, ours = make(folders["bert"])
    with torch.no_grad():
        compiled = torch.compile(ours.bert.encoder, fullgraph=True)
        rows = torch.randn(2, 8, 32)
        assert error(compiled(rows)[0], theirs.bert.encoder(rows)[0]) <= 1e-4


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_exported(folders, family, tmp_path):
    theirs, ours = make(folders[family])
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=500)}
    with torch.no_grad():
        program = torch.export.export(ours, inputs(3, 16), dynamic_shapes=(sizes, sizes), strict=False)
        assert "fusebert.encode" in str(program.graph)
        torch.export.save(program, tmp_path / "program.pt2")
        for loaded in (program, torch.export.load(tmp_path / "program.pt2")):
            for call in (inputs(3, 16), inputs(5, 9), inputs(4, 12, "left"), inputs(3, 8, "holes")):
                assert error(loaded.module()(*call).logits, theirs(*call).logits) <= 1e-4


def test_exported_in_int8_before_anything_ran(folders):
    theirs, ours = make(folders["bert"], "int8")
    with torch.no_grad():
        module = torch.export.export(ours, inputs(3, 16), strict=False).module()
        assert torch.equal(module(*inputs(3, 16)).logits, ours(*inputs(3, 16)).logits)
        assert error(ours(*inputs(3, 16)).logits, theirs(*inputs(3, 16)).logits) <= 0.2


def test_the_operator_by_torchs_own_checks(folders):
    _, ours = make(folders["bert"])
    wiring = ours.bert.encoder.fusebert.wiring
    weights = [weight.detach() for weight in wiring.weights()]
    mask = torch.ones(2, 5, dtype=torch.bool)
    heads, activation, epsilon, *_ = wiring.arguments(ours.bert.encoder.fusebert.settings)
    arguments = (torch.randn(2, 5, 32), mask, weights, None, heads, activation, epsilon)
    for rest in (("fp32", [], "compute", 1, False), ("fp32", [], "skip", 1, True)):
        torch.library.opcheck(torch.ops.fusebert.encode.default, (*arguments, *rest))


def test_a_gradient_through_a_traced_model_is_refused(folders):
    _, ours = make(folders["bert"])
    traced = torch.jit.trace(ours, inputs(2, 16), strict=False)
    with pytest.raises(RuntimeError, match="inference only"):
        traced(*inputs(2, 16))["logits"].sum().backward()


def test_whoever_watches_operators_sees_it(folders):
    """Plain calls pass torch's dispatcher by; profilers and tracers of operators must not miss it."""
    _, ours = make(folders["bert"])
    rows = torch.randn(2, 5, 32)
    with torch.no_grad():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            ours.bert.encoder(rows)
        assert "fusebert::encode" in {event.key for event in seen.key_averages()}
        graph = make_fx(lambda x: ours.bert.encoder(x)[0])(rows)
    assert "fusebert.encode" in graph.code
    assert torch.equal(graph(rows), ours.bert.encoder(rows)[0])
