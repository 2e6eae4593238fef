"""fuzz/: sound files are answered by every target, hostile ones are answered or refused in a sentence, and what was
ever found (tests/attacks) stays mended. `make fuzz` does the same for as long as it is told to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from costs import no_hang
from fuzz import seeds
from fuzz.child import Cases
from fuzz.mutate import fields, joined
from fuzz.shrink import shrink
from fuzz.targets import TARGETS

ATTACKS = Path(__file__).parent / "attacks"
KEPT = sorted(path for path in ATTACKS.rglob("*") if path.is_file())
CASES = 12  # of every target
pytestmark = pytest.mark.filterwarnings("ignore")  # of NumPy: numbers in hostile files may be anything


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    with no_hang(600), np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cases]:
    made = seeds.make(tmp_path_factory.mktemp("seeds") / "all")
    return {target.name: Cases(target, made, tmp_path_factory.mktemp(target.name)) for target in TARGETS}


@pytest.mark.parametrize("name", [target.name for target in TARGETS])
def test_sound_files_are_answered_and_hostile_ones_too_or_refused(cases: dict[str, Cases], name: str) -> None:
    cases[name].check_sound()
    for number in range(CASES):
        assert not cases[name].fault(*cases[name].make(number)), number


@pytest.mark.parametrize("path", KEPT, ids=lambda path: str(path.relative_to(ATTACKS)))
def test_what_was_found_stays_mended(cases: dict[str, Cases], path: Path) -> None:
    target = cases[path.relative_to(ATTACKS).parts[0]]
    assert not target.fault(target.attack_on(path.name), path.read_bytes())


def test_a_message_is_taken_apart_and_put_together_again() -> None:
    for name in ("onnx/source.onnx", "tensorflow/source.pb"):
        data = (Path(__file__).parent / "golden" / name).read_bytes()
        assert joined(fields(data)) == data


def test_shrinking_keeps_what_matters() -> None:
    assert shrink(b'{"a": [1, {"b": "x"}], "c": 2}', lambda data: b'"x"' in data) in (b'"x"', b'{"a": [{"b": "x"}]}')
    data = (Path(__file__).parent / "golden" / "onnx" / "source.onnx").read_bytes()
    assert len(shrink(data[:3000], lambda smaller: b"/model/Shape" in smaller)) < 20
