"""The Open Inference Protocol over HTTP with what no stock client sends: wrong names, types and shapes, bytes that do
not add up. The right status, a sentence, and the next request is answered."""

import json
import struct

import numpy as np
import pytest
from serve_process import Served

import fusebert
from fusebert.serve.protocols.tensors import Tensor, pack, rank, read_tensor

GOOD = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the cat"]}
IDS = {"name": "input_ids", "shape": [1, 4], "datatype": "INT64", "data": [2, 5, 6, 3]}
MASK = {"name": "attention_mask", "shape": [1, 4], "datatype": "INT64", "data": [[1, 1, 1, 0]]}
BYTES = {"name": "text", "datatype": "BYTES", "shape": [1]}
RAW = {"name": "input_ids", "shape": [1, 4], "datatype": "INT64"}


def ask(served, *inputs, raw=b"", model="none", headers=None, **more):
    body = json.dumps({"inputs": inputs, **more}).encode()
    named = {"Inference_Header_Content_Length": str(len(body))} if raw else {}
    return served.ask(f"/v2/models/{model}/infer", body + raw, **(named | (headers or {})))


WRONG = {
    "no inputs": ([], "text or input_ids"),
    "an unknown input": ([{**GOOD, "name": "txt"}], "nothing else"),
    "twice": ([GOOD, GOOD], "each once"),
    "mixed": ([GOOD, IDS], "cannot be mixed"),
    "a mask for a text": ([GOOD, MASK], "cannot be mixed"),
    "a pair without its first": ([{**GOOD, "name": "text_pair"}], "text or input_ids"),
    "texts as numbers": ([{**GOOD, "datatype": "INT64", "data": [3]}], "BYTES is expected"),
    "ids as texts": ([{**IDS, "datatype": "BYTES", "data": ["2"] * 4}], "INT64 is expected"),
    "ids as floats": ([{**IDS, "datatype": "FP32"}], "FP32"),
    "fractions": ([{**IDS, "data": [2.5, 5, 6, 3]}], "whole numbers"),
    "truths": ([{**IDS, "data": [True, 5, 6, 3]}], "whole numbers"),
    "a number beyond 64 bits": ([{**IDS, "data": [1 << 64, 5, 6, 3]}], "64 bits"),
    "a number beyond 32 bits": ([{**IDS, "datatype": "INT32", "data": [1 << 32, 5, 6, 3]}], "32 bits"),
    "too few elements": ([{**IDS, "data": [2]}], "1 elements, but its shape has 4"),
    "too many for the shape": ([{**GOOD, "shape": [0]}], "1 elements"),
    "a shape below zero": ([{**GOOD, "shape": [-1]}], "below 0"),
    "an overflowing shape": ([{**IDS, "shape": [1 << 33, 1 << 33]}], "elements"),
    "many dimensions": ([{**IDS, "shape": [1] * 9}], "up to 8"),
    "deep lists": ([{**IDS, "data": [[[[[[[[[[2, 5, 6, 3]]]]]]]]]]}], "nested"),
    "three dimensions": ([{**IDS, "shape": [1, 2, 2]}], r"[sequences, length]"),
    "no length": ([{**IDS, "shape": [1, 0], "data": []}], r"[sequences, length]"),
    "no sequence": ([{**IDS, "shape": [0, 4], "data": []}], "at least one"),
    "a wide text": ([{**GOOD, "shape": [1, 2], "data": ["a", "b"]}], "[texts, 1]"),
    "a text that is none": ([{**GOOD, "data": [None]}], "a text is expected"),
    "other texts than pairs": ([GOOD, {**GOOD, "name": "text_pair", "shape": [2], "data": ["a", "b"]}], "same number"),
    "longer than positions": ([{**IDS, "shape": [1, 21], "data": [5] * 21}], "20 are possible"),
    "an id outside": ([{**IDS, "data": [2, 5, 99999, 3]}], "outside"),
    "a mask of another shape": ([IDS, {**MASK, "shape": [4]}], "shape of input_ids"),
    "a mask with a hole": ([IDS, {**MASK, "data": [1, 0, 1, 1]}], "behind the tokens"),
    "a mask of twos": ([IDS, {**MASK, "data": [2, 0, 0, 0]}], "behind the tokens"),
    "a mask that hides all": ([IDS, {**MASK, "data": [0, 0, 0, 0]}], "0 token ids"),
    "a type outside": ([IDS, {**MASK, "name": "token_type_ids", "data": [0, 0, 9, 0]}], "outside 0 to 1"),
    "no data": ([RAW], "neither data"),
    "bytes that are not there": ([{**RAW, "parameters": {"binary_data_size": 32}}], "binary_data_size"),
    "a size that is no number": ([{**RAW, "parameters": {"binary_data_size": "32"}}], "binary_data_size"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tensors_are_told_apart(served, case):
    inputs, word = WRONG[case]
    status, _, told = ask(served, *inputs)
    assert (status, word in told["error"]) == (422, True), told
    assert ask(served, GOOD)[0] == 200


@pytest.mark.parametrize(
    ("given", "raw", "status"),
    [
        ({"parameters": {"binary_data_size": 16}}, bytes(16), 422),  # two of four
        ({"parameters": {"binary_data_size": 30}}, bytes(30), 422),  # no whole number
        ({"parameters": {"binary_data_size": 32}}, bytes(40), 422),  # more than is used
        ({"parameters": {"binary_data_size": -1}}, bytes(32), 422),
        ({"parameters": {"binary_data_size": 32}, "data": [2, 5, 6, 3]}, bytes(32), 422),
        ({**BYTES, "parameters": {"binary_data_size": 5}}, b"\xff\0\0\0a", 422),  # longer than what is there
        ({**BYTES, "parameters": {"binary_data_size": 5}}, b"\1\0\0\0\xff", 422),  # not UTF-8
        ({**BYTES, "parameters": {"binary_data_size": 2}}, b"\1\0", 422),
        ({"parameters": {"shared_memory_region": "x"}}, b"0", 501),
        ({"parameters": {"binary_data_size": 32}}, struct.pack("<4q", 2, 5, 6, 3), 200),
    ],
)  # fmt: skip
def test_bytes_must_add_up(served, given, raw, status):
    got, _, told = ask(served, {**RAW, **given}, raw=raw)
    assert got == status, told
    assert status == 200 or told["error"]


@pytest.mark.parametrize("size", ["0", "-3", "x", "9" * 30, "100000"])
def test_the_length_of_the_json_is_checked(served, size):
    status, _, told = ask(served, GOOD, headers={"Inference_Header_Content_Length": size})
    assert (status, bool(told["error"])) == (400, True)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"outputs": [{"name": "logits"}]}, 422),
        ({"outputs": [{"name": "embedding"}] * 2}, 422),
        ({"outputs": [{"name": "embedding", "parameters": {"classification": -1}}]}, 422),
        ({"outputs": [{"name": "last_hidden_state", "parameters": {"classification": 2}}]}, 422),
        ({"parameters": {"timeout": "soon"}}, 422),
        ({"parameters": {"priority": -1}}, 422),
        ({"parameters": {"sequence_id": 3}}, 422),
        ({"parameters": {"timeout": 1}}, 504),
        ({"parameters": {"priority": 2, "anything": {"else": 1}}, "outputs": []}, 200),
    ],
)
def test_outputs_and_parameters(served, more, status):
    assert ask(served, GOOD, **more)[0] == status


def test_bodies_that_are_no_request(served):
    for body in (b"", b"[]", b"{", b'{"inputs": 3}', b'{"inputs": [{"name": 3}]}', b"\xff" * 9, b"[" * 5000):
        assert served.ask("/v2/models/none/infer", body)[0] in (400, 422)
    assert ask(served, {**GOOD, "shape": [65], "data": ["a"] * 65})[0] == 413
    assert ask(served, {**GOOD, "data": ["a" * 200_000]})[0] == 413
    assert ask(served, GOOD, model="nothing")[0] == 404
    assert served.ask("/v2/models/none/versions/9")[0] == 404
    assert served.ask("/v2/models/none/versions/1/ready")[2] == {"name": "none", "ready": True}
    assert served.ask("/v2/repository/models/none/load", {"parameters": {"file:1/model": "x"}})[0] == 501


def test_what_is_padded_counts_as_memory(models, tmp_path):
    server = Served(models["none"], "--memory", "2600KiB", "--max-batch-tokens", "64", log=tmp_path / "log")
    rows = [{"name": "last_hidden_state"}]
    try:
        narrow = {**IDS, "shape": [512, 1], "data": [5] * 512}
        wide = {**IDS, "shape": [512, 20], "data": [5] * (512 * 20)}
        short = {**MASK, "shape": [512, 20], "data": ([1] + [0] * 19) * 512}
        assert ask(server, narrow, outputs=rows)[0] == 200
        assert ask(server, wide, short, outputs=[{"name": "embedding"}])[0] == 200
        assert ask(server, wide, short, outputs=rows)[0] == 413  # as many tokens, twenty times the answer
    finally:
        server.stop()


def test_tensors_there_and_back():
    words = Tensor("w", "BYTES", (3,), [b"a", b"", b"\xff\0"])
    assert read_tensor("w", "BYTES", [3], pack(words)).values == words.values
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert pack(Tensor("n", "FP32", (2, 3), numbers)) == numbers.tobytes()
    ranked = rank(Tensor("n", "FP32", (2, 3), numbers), 2, ["x", "y"])
    assert (ranked.shape, ranked.values[0], ranked.values[1]) == ((2, 2), b"2.000000:2", b"1.000000:1:y")
    assert read_tensor("i", "INT64", [2, 2], [[1, 2], [3, 4]]).values.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(fusebert.FusebertError, match="longer"):
        read_tensor("w", "BYTES", [1], b"\xff\xff\xff\xff")
