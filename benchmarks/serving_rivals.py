"""What a user could serve embeddings with instead: each server as its documents show it, behind it ONNX Runtime's
dynamic int8 of the same model. All take texts and answer unit vectors, the mean of the rows.

    python benchmarks/serving_rivals.py NAME '{"model": FOLDER, "port": 8000, ...}'    # started by serving.py
"""

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

MARK = "SERVING_RIVAL"  # the settings, for the processes that a server starts itself
BATCH = 32
OIP = "/v2/models/model/infer"


def one_text(text: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a request to most of them."""
    return "/embed", {"inputs": text}


def one_tensor(text: str) -> tuple[str, dict[str, Any]]:
    """The same to Triton."""
    return OIP, {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [text]}]}


def vector(answer: Any) -> list[float]:
    """The embedding in an answer of any of them, ours included."""
    if isinstance(answer, dict):
        answer = answer["outputs"][0]["data"]
    return answer[0] if isinstance(answer[0], list) else answer


def embedder(settings: dict[str, Any]) -> Callable[[Sequence[str]], Any]:
    """Texts to unit vectors by ONNX Runtime, on one thread that does not spin."""
    import numpy as np
    import onnxruntime
    import tokenizers

    folder = Path(settings["model"])
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "checkpoint" / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(folder / "dynamic.onnx", options, providers=["CPUExecutionProvider"])

    def embed(texts: Sequence[str]) -> Any:
        encoded = tokenizer.encode_batch(list(texts))
        mask = np.array([own.attention_mask for own in encoded], np.int64)
        ids = np.array([own.ids for own in encoded], np.int64)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (rows,) = session.run(None, given)
        means = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return (means / np.linalg.norm(means, axis=1, keepdims=True)).astype(np.float32)

    return embed


def fastapi(settings: dict[str, Any]) -> None:
    """FastAPI: a call of the engine for each request, in its pool of threads; a process for each core."""
    import fastapi
    import uvicorn

    listener = socket.create_server(("127.0.0.1", settings["port"]), backlog=2048)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(settings["workers"] - 1):
        if os.fork() == 0:
            break
    embed, app = embedder(settings), fastapi.FastAPI()

    def answer(body: dict[str, str]) -> Any:
        return embed([body["inputs"]]).tolist()

    app.post("/embed")(answer)
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])


def mosec(settings: dict[str, Any]) -> None:
    """mosec: HTTP and batching in Rust, the engine in Python processes."""
    import mosec

    class Embedder(mosec.Worker):  # type: ignore[misc]
        def __init__(self) -> None:
            self.embed = embedder(settings)

        def forward(self, data: list[dict[str, str]]) -> list[list[list[float]]]:
            return [[row] for row in self.embed([one["inputs"] for one in data]).tolist()]

    mosec.runtime.get_mosec_path = lambda: shutil.which("mosec")  # which looks only where Python's own programs are
    sys.argv = ["mosec", "--address", "127.0.0.1", "--port", str(settings["port"]), "--timeout", "60000"]
    server = mosec.Server()
    server.register_runtime({"/embed": [mosec.Runtime(Embedder, settings["workers"], BATCH, 1, 60, "fork")]})
    server.run()


def litserve(settings: dict[str, Any]) -> None:
    """LitServe, with its batching."""
    import litserve
    from serving_litserve import Api

    api = Api(max_batch_size=BATCH, batch_timeout=0.0, api_path="/embed")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=settings["workers"], timeout=60)
    options: dict[str, Any] = {"num_api_servers": 1, "generate_client_file": False, "log_level": "warning"}
    server.run(host="127.0.0.1", port=settings["port"], **options)


def triton(settings: dict[str, Any]) -> None:
    """Triton's server with dynamic batches and the engine in its Python backend."""
    wheel = find_spec("pytriton")  # which is not imported: only the server in it is wanted
    assert wheel is not None
    assert wheel.origin
    home = Path(wheel.origin).parent
    folder = Path(settings["model"]) / "triton"
    model, backends = folder / "repository" / "model", folder / "backends"
    (model / "1").mkdir(parents=True, exist_ok=True)
    older = str(home.parent / "numpy1")  # Triton's backend does not know NumPy 2
    paths = [older, str(Path(__file__).parent), *(path for path in sys.path if "packages" in path or "serving" in path)]
    (model / "1" / "model.py").write_text(
        f"import sys\n\nsys.path[:0] = {paths}\nimport serving_rivals\n\n"
        "TritonPythonModel = serving_rivals.triton_model()\n"
    )
    (model / "config.pbtxt").write_text(
        f'name: "model" backend: "python" max_batch_size: {BATCH} dynamic_batching {{ }}\n'
        f"instance_group [ {{ count: {settings['workers']} kind: KIND_CPU }} ]\n"
        'input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "embedding" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
    )
    shutil.copytree(home / "tritonserver" / "backends", backends, dirs_exist_ok=True)
    stubs = home / "tritonserver" / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(stubs / "triton_python_backend_stub", backends / "python")
    os.environ["LD_LIBRARY_PATH"] = str(home.parent / "nvidia_pytriton.libs")
    port, program = settings["port"], home / "tritonserver" / "bin" / "tritonserver"
    program.chmod(0o755)
    (backends / "python" / "triton_python_backend_stub").chmod(0o755)
    os.execv(program, [
        str(program), f"--model-repository={folder / 'repository'}", f"--backend-directory={backends}",
        f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false", "--http-address=127.0.0.1",
    ])  # fmt: skip


def triton_model() -> type:
    """The class that Triton's Python backend loads."""
    import triton_python_backend_utils as backend

    class Model:
        def initialize(self, args: Any) -> None:  # noqa: ARG002
            self.embed = embedder(json.loads(os.environ[MARK]))

        def execute(self, requests: list[Any]) -> list[Any]:
            given = [backend.get_input_tensor_by_name(request, "text").as_numpy()[:, 0] for request in requests]
            rows = self.embed([text.decode() for texts in given for text in texts])
            ends = list(accumulate(map(len, given)))
            parts = [rows[end - len(texts) : end] for texts, end in zip(given, ends, strict=True)]
            return [backend.InferenceResponse([backend.Tensor("embedding", part)]) for part in parts]

    return Model


RIVALS: dict[str, tuple[Callable[[dict[str, Any]], None], Callable[[str], tuple[str, dict[str, Any]]]]] = {
    "fastapi": (fastapi, one_text),
    "mosec": (mosec, one_text),
    "litserve": (litserve, one_text),
    "triton": (triton, one_tensor),
}


if __name__ == "__main__":
    os.environ[MARK] = sys.argv[2]
    RIVALS[sys.argv[1]][0](json.loads(sys.argv[2]))
