"""Importing fusebert is quick and needs no framework."""

import subprocess
import sys

BLOCKED = ("torch", "tensorflow", "onnx", "onnxruntime", "grpc", "ray", "transformers")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_and_a_whole_run_need_no_framework(minilm):
    blocked = f"import sys\nfor name in {BLOCKED!r}: sys.modules[name] = None\n"
    code = "import fusebert\nm = fusebert.load({!r})\nprint(m.encode(['hello']).shape)"
    assert run(blocked + code.format(str(minilm))).strip() == "(1, 384)"


def test_import_is_quick():
    code = "import time; t = time.process_time()\nfrom fusebert import load\nprint(time.process_time() - t)"
    assert min(float(run(code)) for _ in range(3)) < 0.6  # seconds of the processor's time, which others do not take


def test_importing_loads_no_framework_by_itself():
    code = f"import sys; from fusebert import load, optimize; print([n for n in {BLOCKED!r} if n in sys.modules])"
    assert run(code).strip() == "[]"
