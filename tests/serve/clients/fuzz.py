"""Requests that schemathesis makes from a server's OpenAPI document, hundreds of them, valid and not -> what it found,
as JSON. Words: URL, FILE."""

import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from schemathesis.cli import schemathesis

url, path = sys.argv[1:]
os.chdir(Path(path).parent)  # it leaves a folder behind
words = ["run", f"{url}/openapi.json", "--checks", "not_a_server_error", "--max-examples", "8", "--seed", "1"]
words += ["--phases", "coverage,fuzzing", "--no-color", "--request-timeout", "20"]
said = io.StringIO()
with redirect_stdout(said):
    try:
        code = schemathesis.main(words, "schemathesis", standalone_mode=False)
    except SystemExit as end:
        code = end.code
Path(path).write_text(json.dumps({"code": code or 0, "said": said.getvalue()}))
