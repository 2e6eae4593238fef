"""scripts/release.py refuses what is not ready, changes two files and no more, and puts them back if a step fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = '[project]\nname = "x"\nversion = "0.1.0"\n[tool.x]\nminimum-version = "3"\n'
LOG = "# Changelog\n\n## [0.2.0] - unreleased\n\n### Added\n- Much.\n\n## [0.1.0] - 2026-01-01\n\n- It is there.\n"
FILES = {"pyproject.toml": PROJECT, "CHANGELOG.md": LOG}
WHEELS = [
    f"fusebert-0.2.0-{tag}-manylinux_2_28_{machine}.whl"
    for tag in ("cp311-cp311", "cp312-abi3")
    for machine in ("x86_64", "aarch64")
]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import release

    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "interpreter", lambda minors: f"python3.{min(minors)}")
    return release


def test_the_version_and_the_day_are_written(script: Any) -> None:
    after = script.changed(FILES, "0.2.0", "2026-11-19", ["v0.1.0"])
    assert after["pyproject.toml"] == PROJECT.replace("0.1.0", "0.2.0")
    assert after["CHANGELOG.md"] == LOG.replace("unreleased", "2026-11-19")


@pytest.mark.parametrize(
    ("version", "tags", "log", "said"),
    [
        ("0.2", [], LOG, "three numbers"),
        ("0.2.0", ["v0.2.0"], LOG, "v0.2.0 is a tag already"),
        ("0.2.0", ["v0.10.0"], LOG, "v0.10.0 is a tag already"),
        ("0.3.0", [], LOG, "nothing under"),
        ("0.2.0", [], LOG.replace("- Much.", ""), "nothing under"),
    ],
)
def test_what_is_not_ready_is_refused(script: Any, version: str, tags: list[str], log: str, said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        script.changed({**FILES, "CHANGELOG.md": log}, version, "2026-11-19", tags)


def test_wheels_of_this_machine_are_tried_with_their_pythons(script: Any) -> None:
    names = [*WHEELS, "fusebert-0.2.0.tar.gz"]
    assert script.smoked("0.2.0", names) == [(WHEELS[0], "python3.11"), (WHEELS[2], "python3.12")]
    for missing in names:
        with pytest.raises(SystemExit, match="has not the source and four wheels"):
            script.smoked("0.2.0", [name for name in names if name != missing])


def test_a_step_that_fails_leaves_the_files_as_they_were(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "_STEPS", (("true",), ("false",)))
    after = script.changed(FILES, "0.2.0", "2026-11-19", [])
    with pytest.raises(SystemExit, match="false failed; nothing was released"):
        script.release("0.2.0", FILES, after)
    assert {name: (tmp_path / name).read_text() for name in FILES} == FILES


def test_this_project_can_be_released(script: Any) -> None:
    """Its files have the form that the script expects."""
    files = {name: (ROOT / name).read_text() for name in FILES}
    assert script._VERSION.search(files["pyproject.toml"])
    assert "## [0.2.0] - " in files["CHANGELOG.md"]
