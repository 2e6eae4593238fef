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


def test_importing_loads_little():
    """What takes long to import is left to the first call that needs it."""
    code = "import sys; before = set(sys.modules)\nimport fusebert\nfrom fusebert import load, optimize\n"
    code += "names = {name.split('.')[0] for name in set(sys.modules) - before}\n"
    code += "print(*sorted(names - sys.stdlib_module_names))"
    assert set(run(code).split()) <= {"fusebert", "numpy", "ml_dtypes"}
