"""scripts/native_coverage.py adds up what gcov tells: a line that any object ran was run, and only ours are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import native_coverage

    return native_coverage


def report(file: str, **counts: int) -> dict[str, Any]:
    lines = [{"line_number": int(name[1:]), "count": count} for name, count in counts.items()]
    return {"current_working_directory": str(ROOT / "build"), "files": [{"file": file, "lines": lines}]}


def test_a_line_counts_once_and_only_if_it_is_ours(script: Any) -> None:
    kernel = "../native/kernels/simd.h"
    told = [
        report(kernel, n1=0, n2=5, n3=0),
        report(kernel, n1=7, n2=0, n3=0),
        report("/usr/include/c++/12/vector", n1=1),
        report("../tests/native/check.h", n1=1),
        report("../native/hosts/tf_op.cc", n1=0),
    ]
    assert script.counted(told) == {"native/kernels/simd.h": {1: 7, 2: 5, 3: 0}}


def test_shares(script: Any) -> None:
    assert script.share([0, 1, 2, 9]) == 75
    assert script.share([]) == 0
