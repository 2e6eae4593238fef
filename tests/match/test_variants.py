"""Graphs that nobody tuned the finder for. What is found computes what ONNX Runtime does, for every kind of padding and
for longer texts than the finder looks at; what only looks like BERT is refused, with a reason that is true."""

import math

import pytest
import variants_around  # noqa: F401  (adds its own)
from small import Small, judge
from variants import BAD, GOOD

from fusebert.errors import UnsupportedError
from fusebert.match import FoundEncoder, assemble


def said(found: FoundEncoder) -> dict:
    return {
        "layers": len(found.layers),
        "hidden": found.hidden,
        "heads": found.heads,
        "inner": found.inner,
        "activation": found.activation,
        "epsilon": pytest.approx(found.epsilon, rel=2e-3),
        "scale": pytest.approx(found.scale, rel=1e-3),
        "mask": found.mask.kind,
        "taps": len(found.taps),
        "inner_taps": len(found.inner_taps),
    }


def wanted(small: Small, facts: dict) -> dict:
    sizes = {name: getattr(type(small), name) for name in ("layers", "hidden", "heads", "inner", "epsilon")}
    usual = sizes | {"activation": "gelu_erf", "mask": "rows" if "mask" in small.inputs else "none"}
    usual |= {"scale": 1 / math.sqrt(sizes["hidden"] // sizes["heads"]), "taps": 0, "inner_taps": 0}
    return {name: facts.get(name, value) for name, value in usual.items()}


@pytest.mark.parametrize("name", GOOD)
def test_another_spelling_is_found(name, tmp_path):
    variant, facts = GOOD[name]
    small = variant()
    finding = judge(small, tmp_path)
    assert len(finding.encoders) == facts.get("encoders", 1)
    found = finding.encoders[0]
    if "encoders" not in facts:
        assert not finding.misses
        assert said(found) == wanted(small, facts)
    if "readers" in facts:
        assert set(found.readers) == facts["readers"]
    if "skip" in facts:
        assert found.may_skip == facts["skip"]
    if facts.get("whole", "encoders" not in facts):
        outputs = len(assemble(finding).outputs)
        assert outputs == facts.get("outputs", outputs)
    else:
        with pytest.raises(UnsupportedError):
            assemble(finding)


@pytest.mark.parametrize("name", BAD)
def test_what_only_looks_like_it_is_refused(name, tmp_path):
    variant, reason = BAD[name]
    finding = judge(variant(), tmp_path)
    assert not finding.encoders
    assert finding.misses
    assert reason in " | ".join(map(str, finding.misses))
