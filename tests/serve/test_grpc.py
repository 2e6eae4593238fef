"""The server over gRPC, below what stock clients send: health, reflection, the demo's call, keys, deadlines,
departures, and messages that are wrong. The right code, a sentence, and the next call is answered."""

import asyncio
import gzip
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from serve_process import Served

import fusebert
from fusebert.formats.protobuf.schema import messages
from fusebert.serve import grpc as front
from fusebert.serve.front import Server
from fusebert.serve.protocols import demo, grpc_health, oip_grpc, reflection

INFER = "/inference.GRPCInferenceService/ModelInfer"
HEALTH = "/grpc.health.v1.Health"
CODE = grpc.StatusCode
OIP = oip_grpc.MESSAGES


@pytest.fixture(scope="module")
def channel(served):
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        yield channel


def call(channel, path, message, answer=None, **more):
    method = channel.unary_unary(path, lambda m: m if isinstance(m, bytes) else m.SerializeToString())
    got, said = method.with_call(message, timeout=more.pop("timeout", 20), **more)
    return (answer.FromString(got) if answer else got), dict(said.trailing_metadata())


def fails(channel, path, message, **more):
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, path, message, **more)
    return caught.value.code(), caught.value.details()


def request(texts=(b"the cat",), **more):
    given = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "contents": {"bytes_contents": list(texts)}}
    return OIP["ModelInferRequest"](**{"model_name": "none", "inputs": [given], **more})


def embedding(answer):
    place = [output.name for output in answer.outputs].index("embedding")
    return np.frombuffer(answer.raw_output_contents[place], np.float32).reshape(answer.outputs[place].shape)


def test_typed_contents_are_read_and_answers_tell_times_and_the_vector_space(channel, served, models):
    answer, told = call(channel, INFER, request(), OIP["ModelInferResponse"])
    model = fusebert.load(models["none"], threads=1)
    assert np.array_equal(embedding(answer), model.encode(["the cat"]))
    assert told["x-fingerprint"] == served.ask("/info")[2]["fingerprint"]
    assert float(told["x-total-time"]) >= float(told["x-inference-time"]) > 0
    for kind, field in (("INT64", "int64_contents"), ("INT32", "int_contents")):
        ids = {"name": "input_ids", "datatype": kind, "shape": [1, 4], "contents": {field: [2, 5, 6, 3]}}
        answer, _ = call(channel, INFER, request(inputs=[ids]), OIP["ModelInferResponse"])
        assert np.array_equal(embedding(answer), model.encode(["the cat"]))


def test_many_at_once_get_what_each_gets_alone(channel, models):
    texts = [b"the cat", b"the dog ran", b"mat", b"the " * 15]
    alone = fusebert.load(models["none"], threads=1).encode([text.decode() for text in texts])

    def ask(i):
        return embedding(call(channel, INFER, request([texts[i % 4]]), OIP["ModelInferResponse"])[0])[0]

    with ThreadPoolExecutor(8) as clients:
        for i, got in enumerate(clients.map(ask, range(64))):
            assert np.array_equal(got, alone[i % 4])


RAW = {"name": "input_ids", "datatype": "INT64", "shape": [1, 4]}
IDS = np.array([2, 5, 6, 3]).tobytes()
WRONG = {
    "no protobuf": (b"\xff\xff\xff", CODE.INVALID_ARGUMENT, "not a ModelInferRequest"),
    "a name that is no text": (b"\x0a\x02\xff\xff", CODE.INVALID_ARGUMENT, "not a ModelInferRequest"),
    "empty": (b"", CODE.NOT_FOUND, "no model ''"),
    "no model": (request(model_name="nothing"), CODE.NOT_FOUND, "no model 'nothing'"),
    "no version": (request(model_version="7"), CODE.NOT_FOUND, "version '7'"),
    "no inputs": (request(inputs=[]), CODE.INVALID_ARGUMENT, "text or input_ids"),
    "invalid UTF-8": (request([b"\xff\xfe"]), CODE.INVALID_ARGUMENT, "not UTF-8"),
    "raw and typed": (request(raw_input_contents=[b"\1\0\0\0a"]), CODE.INVALID_ARGUMENT, "raw_input_contents"),
    "raw for others": (request(inputs=[RAW], raw_input_contents=[IDS, IDS]), CODE.INVALID_ARGUMENT, "one for each"),
    "raw of another size": (request(inputs=[RAW], raw_input_contents=[IDS[:9]]), CODE.INVALID_ARGUMENT, "9 bytes"),
    "a wrong type": (request(inputs=[{**RAW, "datatype": "FP16"}]), CODE.INVALID_ARGUMENT, "FP16"),
    "a shape below zero": (request(inputs=[{**RAW, "shape": [-1, -4]}]), CODE.INVALID_ARGUMENT, "below 0"),
    "a huge shape": (request(inputs=[{**RAW, "shape": [1 << 62, 1 << 62]}]), CODE.INVALID_ARGUMENT, "elements"),
    "no contents": (request(inputs=[RAW]), CODE.INVALID_ARGUMENT, "0 elements"),
    "many texts": (request([b"a"] * 65), CODE.INVALID_ARGUMENT, "may have 64"),
    "a long text": (request([b"a" * 200_000]), CODE.INVALID_ARGUMENT, "longer than"),
    "a huge message": (request([b"a" * (9 << 20)]), CODE.RESOURCE_EXHAUSTED, "larger"),
    "an unknown output": (request(outputs=[{"name": "x"}]), CODE.INVALID_ARGUMENT, "can be asked for"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_messages_get_their_code_and_a_sentence(channel, case):
    message, code, word = WRONG[case]
    got, told = fails(channel, INFER, message)
    assert (got, word in told) == (code, True), told
    assert call(channel, INFER, request())[0]


def test_compressed_messages_are_bounded_too(channel):
    small = call(channel, INFER, request(), compression=grpc.Compression.Gzip)
    assert small[0]
    assert len(gzip.compress(bytes(64 << 20))) < 1 << 20
    huge = request([bytes(64 << 20)])
    assert fails(channel, INFER, huge, compression=grpc.Compression.Gzip)[0] == CODE.RESOURCE_EXHAUSTED


def test_deadlines_lanes_and_unknown_methods(channel):
    assert fails(channel, INFER, request(), metadata=[("x-timeout-ms", "0")])[0] == CODE.DEADLINE_EXCEEDED
    assert fails(channel, INFER, request(), metadata=[("x-lane", "fast")])[0] == CODE.INVALID_ARGUMENT
    assert call(channel, INFER, request(), metadata=[("x-lane", "bulk")])[0]
    assert fails(channel, "/inference.GRPCInferenceService/TraceSetting", b"")[0] == CODE.UNIMPLEMENTED
    assert fails(channel, "/inference.GRPCInferenceService/RepositoryModelLoad", b"")[0] == CODE.UNIMPLEMENTED


def test_the_clients_deadline_is_the_requests():
    class Context:
        def add_done_callback(self, _):
            pass

        def invocation_metadata(self):
            return [("x-timeout-ms", "9000")]

        def time_remaining(self):
            return 2.0

        def set_trailing_metadata(self, _):
            pass

    seen = []

    async def work(asked, message):
        seen.append(asked.request.deadline - time.monotonic())
        return message

    empty = OIP["ServerLiveRequest"]
    handler = front.Handler(Server(), "/path", front.Method("Name", empty, empty, work))
    assert asyncio.run(handler.answer(b"", Context())) == b""
    assert 1 < seen[0] <= 2


def test_health_of_the_server_of_models_and_to_those_who_watch(channel):
    kinds = grpc_health.SERVICE.methods[0]
    for name in ("", "none", "inference.GRPCInferenceService"):
        answer, _ = call(channel, f"{HEALTH}/Check", kinds.question(service=name), kinds.answer)
        assert answer.status == 1
    assert fails(channel, f"{HEALTH}/Check", kinds.question(service="nothing"))[0] == CODE.NOT_FOUND
    watch = channel.unary_stream(f"{HEALTH}/Watch", kinds.question.SerializeToString, kinds.answer.FromString)
    for name, status in (("", 1), ("nothing", 3)):
        stream = watch(kinds.question(service=name), timeout=10)
        assert next(stream).status == status
        stream.cancel()


def test_reflection_gives_the_services_and_their_messages(channel):
    for version in ("v1", "v1alpha"):
        types = messages(f"grpc.reflection.{version}", reflection.SCHEMA)
        question, answer = types["ServerReflectionRequest"], types["ServerReflectionResponse"]
        ask = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            question.SerializeToString, answer.FromString,
        )  # fmt: skip
        asked = [
            question(list_services=""),
            question(file_containing_symbol="inference.GRPCInferenceService"),
            question(file_containing_symbol="inference.GRPCInferenceService.ModelInfer"),
            question(file_by_filename="grpc.health.v1.proto"),
            question(file_containing_symbol="nothing"),
            question(all_extension_numbers_of_type="x"),
        ]
        got = list(ask(iter(asked), timeout=10))
        names = {service.name for service in got[0].list_services_response.service}
        assert names >= {
            "inference.GRPCInferenceService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
        }
        files = [one.file_descriptor_response.file_descriptor_proto[0] for one in got[1:4]]
        assert files[0] == files[1]
        file = descriptor_pb2.FileDescriptorProto.FromString(files[0])
        methods = {m.name: (m.input_type, m.client_streaming, m.server_streaming) for m in file.service[0].method}
        assert methods["ModelInfer"] == (".inference.ModelInferRequest", False, False)
        assert methods["ModelStreamInfer"] == (".inference.ModelInferRequest", True, True)
        health = descriptor_pb2.FileDescriptorProto.FromString(files[2]).service[0]
        assert [(m.name, m.client_streaming, m.server_streaming) for m in health.method] == [
            ("Check", False, False), ("Watch", False, True)
        ]  # fmt: skip
        assert [one.error_response.error_code for one in got[4:]] == [5, 12]


def test_the_demos_call(served, ranker):
    model = fusebert.load(ranker, threads=1)
    pairs = [("the cat", "the dog"), ("mat", "the dog ran on"), ("unable", "cats"), ("the", "the")]
    wanted = [model.predict([pair])[0].label for pair in pairs]
    question, answer = demo.SERVICE.methods[0].question, demo.SERVICE.methods[0].answer
    with grpc.insecure_channel(f"127.0.0.1:{served.demo_port}") as channel:
        for (first, second), label in zip(pairs, wanted, strict=True):
            message = question(text_a=first.encode(), text_b=second.encode())
            got, _ = call(channel, "/mrpc.mrpc/paraphrase", message, answer)
            yes = label == "label 1"
            assert (got.prediction, got.message) == ((b"1", b"paraphrase!") if yes else (b"0", b"not paraphrase!"))
        wrong = question(text_a=b"\xff", text_b=b"a")
        assert fails(channel, "/mrpc.mrpc/paraphrase", wrong)[0] == CODE.INVALID_ARGUMENT
        assert fails(channel, INFER, request())[0] == CODE.UNIMPLEMENTED


def test_clients_that_leave_send_nonsense_or_nothing(served, channel):
    method = channel.unary_unary(INFER, request_serializer=lambda m: m.SerializeToString())
    for _ in range(20):
        method.future(request([b"the cat sat on the mat"] * 64)).cancel()
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
        with socket.create_connection(("127.0.0.1", served.grpc_port), 10) as raw:
            raw.sendall(data)
    assert call(channel, INFER, request())[0]


def test_a_key_is_needed_for_all_but_health_and_an_idle_stream_does_not_hold_up_the_end(models, tmp_path):
    (tmp_path / "key").write_text("secret\n")
    released = threading.Event()
    server = Served(models["none"], "--api-key-file", tmp_path / "key", log=tmp_path / "log")
    try:
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            kinds = grpc_health.SERVICE.methods[0]
            assert call(channel, f"{HEALTH}/Check", kinds.question(), kinds.answer)[0].status == 1
            assert call(channel, "/inference.GRPCInferenceService/ServerReady", b"")[0]
            assert fails(channel, INFER, request())[0] == CODE.UNAUTHENTICATED
            wrong, right = [("authorization", "Bearer wrong")], [("authorization", "Bearer secret")]
            assert fails(channel, INFER, request(), metadata=wrong)[0] == CODE.UNAUTHENTICATED
            assert call(channel, INFER, request(), metadata=right)[0]
            watch = channel.unary_stream(f"{HEALTH}/Watch", kinds.question.SerializeToString, kinds.answer.FromString)
            seen = watch(kinds.question(), timeout=20)
            assert next(seen).status == 1
            idle = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            waiting = idle(_one(released), metadata=right, timeout=20)
            assert next(waiting)
            begun = time.monotonic()
            server.process.terminate()
            assert next(seen).status == 2  # a watcher is told
            assert server.process.wait(10) == 0
            assert time.monotonic() - begun < 5
            assert list(waiting) == []
        assert "secret" not in server.log.read_text()
    finally:
        released.set()
        server.stop()


def _one(released):
    """One message, and then none for as long as the test runs."""
    yield request().SerializeToString()
    released.wait(20)


def test_a_port_that_is_taken_ends_with_a_sentence(run, models):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "cannot be listened on" in run("serve", models["none"], "--port", "0", "--grpc-port", port, code=2)
