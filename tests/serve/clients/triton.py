"""Speaks to a server with Triton's own clients, over HTTP and gRPC, as their users do: ports and an output file in;
what they returned, as JSON with arrays as lists, out. tests/serve/test_triton.py runs it with build/clients."""

import json
import queue
import sys
from pathlib import Path

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

TEXTS = np.array([["the cat sat"], ["the dog ran on the mat ."]], object)
PAIRS = np.array([["the cat"], ["mat"]], object)
IDS = np.array([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]])


def tensor(kit, name, values, datatype="INT64", **more):
    given = kit.InferInput(name, values.shape, datatype)
    given.set_data_from_numpy(values, **more)
    return given


def refused(call):
    try:
        call()
    except InferenceServerException as error:
        return str(error)
    raise AssertionError("an error was expected")


def arrays(result, *names):
    return {name: result.as_numpy(name).tolist() for name in names}


def speak(kit, url):
    client = kit.InferenceServerClient(url)
    text = tensor(kit, "text", TEXTS, "BYTES")
    ids = tensor(kit, "input_ids", IDS)
    mask = tensor(kit, "attention_mask", (IDS > 0).astype(np.int32), "INT32")
    types = tensor(kit, "token_type_ids", np.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]))
    best = kit.InferRequestedOutput("logits", class_count=2)
    embedding = kit.InferRequestedOutput("embedding")
    answer = client.infer("none", [text], outputs=[embedding], request_id="seven", timeout=10**7, priority=1)
    identity = answer.get_response()["id"] if kit is tritonclient.http else answer.get_response().id
    return {
        "states": [client.is_server_live(), client.is_server_ready(), client.is_model_ready("none")],
        "missing": client.is_model_ready("nothing"),
        "identity": identity,
        "embedding": arrays(answer, "embedding"),
        "all": arrays(client.infer("none", [text]), "embedding", "last_hidden_state", "pooler_output"),
        "pair": arrays(client.infer("sequence", [text, tensor(kit, "text_pair", PAIRS, "BYTES")]), "logits"),
        "tokens": arrays(client.infer("none", [ids, mask, types]), "last_hidden_state", "pooler_output"),
        "question": arrays(client.infer("question", [ids, mask]), "start_logits", "end_logits"),
        "best": [w.decode() for w in client.infer("sequence", [ids], outputs=[best]).as_numpy("logits").ravel()],
        "too late": refused(lambda: client.infer("none", [text], timeout=1)),
        "wrong": [
            refused(lambda: client.infer("nothing", [text])),
            refused(lambda: client.infer("none", [text], model_version="2")),
            refused(lambda: client.infer("none", [mask])),
            refused(lambda: client.infer("none", [tensor(kit, "input_ids", np.zeros((1, 4), np.float32), "FP32")])),
            refused(lambda: client.infer("none", [ids], sequence_id=3)),
            refused(lambda: client.load_model("none")),
        ],
    }


def over_http(port):
    kit = tritonclient.http
    found = speak(kit, f"127.0.0.1:{port}")
    client = kit.InferenceServerClient(f"127.0.0.1:{port}")
    listed = tensor(kit, "text", TEXTS[:, 0], "BYTES", binary_data=False)
    small = {"request_compression_algorithm": "gzip", "response_compression_algorithm": "deflate"}
    plain = client.infer("none", [listed], outputs=[kit.InferRequestedOutput("embedding", binary_data=False)], **small)
    parallel = kit.InferenceServerClient(f"127.0.0.1:{port}", concurrency=3)
    many = [parallel.async_infer("none", [tensor(kit, "text", TEXTS, "BYTES")]) for _ in range(3)]
    return found | {
        "waited": [arrays(one.get_result(), "embedding") for one in many],
        "listed": arrays(plain, "embedding"),
        "server": client.get_server_metadata(),
        "metadata": client.get_model_metadata("none"),
        "config": client.get_model_config("none"),
        "index": client.get_model_repository_index(),
        "statistics": client.get_inference_statistics("none"),
    }


def over_grpc(port):
    kit = tritonclient.grpc
    found = speak(kit, f"127.0.0.1:{port}")
    client = kit.InferenceServerClient(f"127.0.0.1:{port}")
    arrived = queue.Queue()
    client.start_stream(lambda result, error: arrived.put((result, error)))
    text = tensor(kit, "text", TEXTS, "BYTES")
    for model in ("none", "nothing", "none"):
        client.async_stream_infer(model, [text], outputs=[kit.InferRequestedOutput("embedding")])
    answers = [arrived.get(timeout=10) for _ in range(3)]
    client.stop_stream()
    return found | {
        "streamed": [str(error) if error else arrays(result, "embedding") for result, error in answers],
        "server": client.get_server_metadata(as_json=True),
        "metadata": client.get_model_metadata("none", as_json=True),
        "config": client.get_model_config("none", as_json=True)["config"],
        "index": client.get_model_repository_index(as_json=True)["models"],
        "statistics": client.get_inference_statistics("none", as_json=True),
        "messages": describe(),
    }


def describe():
    """The client's own messages: number and type of every field, by the message's short name."""
    from tritonclient.grpc import model_config_pb2, service_pb2

    found = {}

    def walk(message):
        found[message.name] = {field.name: [field.number, field.type] for field in message.fields}
        for inner in message.nested_types:
            walk(inner)

    for file in (service_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR):
        for message in file.message_types_by_name.values():
            walk(message)
    return found


if __name__ == "__main__":
    http, grpc, path = sys.argv[1:]
    Path(path).write_text(json.dumps({"http": over_http(http), "grpc": over_grpc(grpc)}))
