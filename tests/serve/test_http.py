"""The server over HTTP, as clients meet it: answers with the bits of the model alone, protocols, hostile requests."""

import base64
import gzip
import json
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from checkpoints import make_checkpoint
from serve_process import Served

import fusebert
from fusebert.cli.app import read_bytes
from fusebert.cli.serve import read_names
from fusebert.engine.fingerprint import fingerprint
from fusebert.serve import server

TEXTS = ["the cat sat", "the dog ran on the mat .", "unable", "cats , dogs !", "the " * 30]


@pytest.fixture(scope="module")
def model(models):
    return fusebert.load(models["none"], threads=1)


def test_answers_under_load_have_the_bits_of_the_model_alone(served, model):
    alone = model.encode(TEXTS).tolist()

    def ask(i):
        many = [TEXTS[(i + k) % len(TEXTS)] for k in range(1 + i % 3)]
        return [alone[TEXTS.index(t)] for t in many], served.ask("/embed", {"inputs": many})[2]

    with ThreadPoolExecutor(8) as clients:
        for want, got in clients.map(ask, range(80)):
            assert got == want


def test_answers_tell_their_times_and_the_vector_space(served, model):
    status, headers, _ = served.ask("/embed", {"inputs": "the cat"})
    assert status == 200
    assert float(headers["x-total-time"]) >= float(headers["x-inference-time"]) > 0
    assert headers["x-compute-tokens"] == "4"
    info = served.ask("/info")[2]
    assert headers["x-fingerprint"] == info["fingerprint"] == fingerprint(model)


def test_an_artifact_has_the_fingerprint_of_its_checkpoint_and_other_spaces_have_others(models, tmp_path):
    made = fusebert.load(models["none"], "int8", threads=1)
    made.save(tmp_path / "artifact")
    own = fingerprint(made)
    assert fingerprint(fusebert.load(tmp_path / "artifact", threads=1)) == own
    others = [fingerprint(made, "cls"), fingerprint(fusebert.load(models["none"], threads=1))]
    assert len({own, *others}) == 3


def test_the_routes_of_text_embeddings_inference(served, models, model):
    ids = served.ask("/tokenize", {"inputs": "the cats"})[2][0]
    assert [(t["text"], t["special"]) for t in ids][:2] == [("[CLS]", True), ("the", False)]
    numbers = [t["id"] for t in ids]
    assert served.ask("/decode", {"ids": numbers})[2] == ["the cats"]
    assert served.ask("/embed", {"inputs": [numbers]})[2] == model.encode(["the cats"]).tolist()
    short = served.ask("/embed", {"inputs": "the cat", "dimensions": 4})[2]
    assert np.linalg.norm(short) == pytest.approx(1)
    assert len(short[0]) == 4
    rows = served.ask("/embed_all", {"inputs": "the cats"})[2][0]
    assert np.array_equal(np.array(rows, np.float32), model.run([numbers])["last_hidden_state"][0])
    cosines = served.ask("/similarity", {"inputs": {"source_sentence": "cat", "sentences": ["cat", "dog"]}})[2]
    assert cosines[0] == pytest.approx(1)
    assert served.ask("/embed", {"inputs": "the " * 40, "truncate": False})[0] == 422
    classifier = fusebert.load(models["sequence"], threads=1)
    want = classifier.predict([("the cat", "the dog")])[0]
    got = served.ask("/predict", {"inputs": ["the cat", "the dog"], "model": "sequence"})[2]
    assert (got[0]["label"], got[0]["score"]) == (want.label, want.score)
    assert len(served.ask("/predict", {"inputs": [["a"], ["a", "b"]], "model": "sequence"})[2]) == 2
    words = served.ask("/embed_sparse", {"inputs": "the cat", "model": "masked"})[2][0]
    logits = fusebert.load(models["masked"], threads=1).run([[2, 5, 6, 3]])["logits"][0]
    assert {w["index"]: w["value"] for w in words} == {
        i: float(v) for i, v in enumerate(np.log1p(np.maximum(logits.max(0), 0))) if v
    }


def test_tokenize_and_tag_take_texts_only(served):
    """/tokenize left token ids out, and answered []."""
    for path in ("/tokenize", "/tag"):
        status, _, told = served.ask(path, {"inputs": [5, 6]})
        assert (status, told["error"]) == (422, "inputs: texts are expected, not token ids")


def test_a_folders_prompts_are_put_before_texts(models, tmp_path):
    """As Model.encode does it, in every protocol; and they are part of the vector space."""
    folder, plain = tmp_path / "prompted", fusebert.load(models["none"], threads=1)
    shutil.copytree(models["none"], folder)
    modules = [{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}]
    modules += [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    width = plain.network.encoder.hidden_size
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    prompts = {"query": "the dog ", "document": "red "}
    settings = {"prompts": prompts, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    server = Served(folder, log=tmp_path / "log")
    try:
        want = plain.encode(["the dog the cat"]).tolist()
        assert server.ask("/embed", {"inputs": "the cat"})[2] == want
        assert server.ask("/v1/embeddings", {"input": "the cat"})[2]["data"][0]["embedding"] == want[0]
        assert server.ask("/vectors", {"text": "the cat"})[2]["vector"] == want[0]
        inputs = [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the cat"]}]
        asked = {"inputs": inputs, "outputs": [{"name": "embedding"}]}
        assert server.ask("/v2/models/prompted/infer", asked)[2]["outputs"][0]["data"] == want[0]
        documents = server.ask("/embed", {"inputs": "the cat", "prompt_name": "document"})[2]
        assert documents == plain.encode(["red the cat"]).tolist()
        ids = plain.tokenizer(["the cat"])[0].ids
        assert server.ask("/embed", {"inputs": [ids]})[2] == plain.encode(["the cat"]).tolist()
        status, _, told = server.ask("/embed", {"inputs": "the cat", "prompt_name": "other"})
        assert status == 422
        assert "'other' is unknown; use one of query, document" in told["error"]
        info = server.ask("/info")[2]
        assert (info["prompts"], info["default_prompt"]) == (prompts, "query")
        assert info["fingerprint"] == fingerprint(fusebert.load(folder)) != fingerprint(plain)
    finally:
        assert server.stop() == 0


def test_entities_and_answers_come_with_their_places(served, models):
    tags = served.ask("/tag", {"inputs": "the cat sat", "grouped": False, "model": "token"})[2]
    want = fusebert.load(models["token"], threads=1).predict(["the cat sat"])[0]
    assert [(t["start"], t["end"], t["label"]) for t in tags] == [(s.start, s.end, s.label) for s in want]
    asked = {"question": "the cat", "context": "the dog ran"}
    got = served.ask("/answer", {"inputs": asked, "model": "question"})[2]
    span = fusebert.load(models["question"], threads=1).predict([("the cat", "the dog ran")])[0]
    assert (got["answer"], got["start"], got["score"]) == (span.text, span.start, span.score)


def test_openais_embeddings_as_base64_and_from_token_ids(served, model):
    asked = {"input": "the cat", "encoding_format": "base64"}
    raw = served.ask("/v1/embeddings", asked)[2]["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(base64.b64decode(raw), "<f4"), model.encode(["the cat"])[0])
    given = served.ask("/v1/embeddings", {"input": [[2, 5, 6, 3], [2, 5, 3]]})[2]
    assert given["data"][0]["embedding"] == model.encode(["the cat"])[0].tolist()
    assert given["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_rerank_in_both_shapes_and_weaviate(served, tmp_path, model):
    assert served.ask("/rerank", {"query": "a", "texts": ["b"], "model": "sequence"})[0] == 422  # it has three labels
    texts = ["the cat", "the dog ran", "mat"]
    ranker = fusebert.load(make_checkpoint(tmp_path, head="sequence", labels=2, vocab=True), threads=1)
    wanted = [label.scores["label 1"] for label in ranker.predict([("a cat", text) for text in texts])]
    order = sorted(range(3), key=lambda i: -wanted[i])
    got = served.ask("/rerank", {"query": "a cat", "texts": texts, "model": "ranker", "return_text": True})[2]
    assert got == [{"index": i, "score": pytest.approx(wanted[i]), "text": texts[i]} for i in order]
    documents = [texts[0], {"text": texts[1]}, texts[2]]
    asked = {"query": "a cat", "documents": documents, "top_n": 2, "model": "ranker"}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        results = served.ask(path, asked)[2]["results"]
        assert results == [{"index": i, "relevance_score": pytest.approx(wanted[i])} for i in order[:2]]
    status, _, got = served.ask("/vectors", {"text": "the cat"})
    assert (status, got["dim"], got["vector"]) == (200, 16, model.encode(["the cat"])[0].tolist())
    assert [served.ask(f"/.well-known/{w}")[0] for w in ("ready", "live")] == [204, 204]
    assert served.ask("/meta")[2]["hidden_size"] == 16


HOSTILE = {
    "no JSON": (b"{", 400), "empty": (b"", 400), "invalid UTF-8": (b'{"inputs": "\xff"}', 400),
    "deep": (b'{"inputs": ' + b"[" * 100_000, 400), "NaN": (b'{"inputs": NaN}', 400),
    "no inputs": ({"other": 1}, 422), "a number": ({"inputs": 3}, 422), "an empty list": ({"inputs": []}, 422),
    "mixed": ({"inputs": ["a", 3]}, 422), "too many": ({"inputs": ["a"] * 65}, 413),
    "long": ({"inputs": "a" * 200_000}, 413), "an unknown id": ({"inputs": [[1, 99999]]}, 422),
    "a negative id": ({"inputs": [[-1]]}, 422), "a huge id": ({"inputs": [[10**30]]}, 422),
    "too many ids": ({"inputs": [[1] * 21]}, 422), "dimensions": ({"inputs": "a", "dimensions": 0}, 422),
    "a huge body": (b" " * (9 << 20), 413),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_bodies_get_an_error_and_the_next_request_an_answer(served, case):
    body, status = HOSTILE[case]
    try:
        got = served.ask("/embed", body)
    except (BrokenPipeError, ConnectionResetError):
        assert case == "a huge body"  # it is refused before it is sent
    else:
        assert got[0] == status, got
        assert got[2]["error"]
    assert served.ask("/embed", {"inputs": "the cat"})[0] == 200


def test_lone_surrogates_and_odd_texts_never_end_in_a_500(served):
    for text in (b'"\\ud800"', b'"\\u0000"', b'""', '"\u200d\u0301"'.encode()):
        assert served.ask("/embed", b'{"inputs": ' + text + b"}")[0] in (200, 400, 422)


def test_unknown_paths_methods_lanes_and_timeouts_are_told(served):
    assert served.ask("/nothing")[0] == 404
    assert served.ask("/embed")[0] == 405
    assert served.ask("/embed", {"inputs": "a"}, x_lane="fast")[0] == 422
    assert served.ask("/embed", {"inputs": "a"}, x_timeout_ms="soon")[0] == 422
    assert served.ask("/embed", {"inputs": "a"}, x_timeout_ms="0")[0] == 504
    assert served.ask("/embed", {"inputs": "a"}, x_lane="bulk", x_timeout_ms="10000")[0] == 200


def test_compressed_bodies_are_read_and_bounded(served):
    body = gzip.compress(b'{"inputs": "the cat"}')
    assert served.ask("/embed", body, Content_Encoding="gzip")[0] == 200
    assert served.ask("/embed", body[:-9], Content_Encoding="gzip")[0] == 400
    bomb = gzip.compress(b" " * (64 << 20))
    assert served.ask("/embed", bomb, Content_Encoding="gzip")[0] == 413
    assert served.ask("/embed", body, Content_Encoding="br")[0] == 415


def test_huge_headers_are_refused(served):
    with socket.create_connection(("127.0.0.1", served.port), 10) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(9000)))
        assert b" 400 " in raw.recv(100)
    assert served.ask("/health")[0] == 200


def test_metrics_tell_what_happened(served):
    served.ask("/embed", {"inputs": "the cat"})
    text = served.ask("/metrics")[2].decode()
    for name in (
        "fusebert_requests_total",
        "fusebert_seconds_bucket",
        "fusebert_tokens_total",
        "fusebert_queue_tokens",
    ):
        assert name in text


def test_a_key_is_needed_where_one_is_set_and_sigterm_answers_what_was_taken_in(models, tmp_path):
    (tmp_path / "key").write_text("secret\n")
    server = Served(models["none"], "--api-key-file", tmp_path / "key", log=tmp_path / "log")
    try:
        assert server.ask("/embed", {"inputs": "a"})[0] == 401
        assert server.ask("/embed", {"inputs": "a"}, Authorization="Bearer wrong")[0] == 401
        assert server.ask("/embed", {"inputs": "a"}, Authorization="Bearer secret")[0] == 200
        assert server.ask("/health")[0] == 200
        stopped = threading.Event()
        codes = []

        def load():
            while not stopped.is_set():
                try:
                    codes.append(server.ask("/embed", {"inputs": ["the cat"] * 64}, Authorization="Bearer secret")[0])
                except OSError:  # it does not listen any more
                    return

        clients = [threading.Thread(target=load) for _ in range(4)]
        for client in clients:
            client.start()
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        stopped.set()
        for client in clients:
            client.join()
        assert set(codes) == {200}
        assert "secret" not in server.log.read_text()
    finally:
        server.stop()


def test_names_and_sizes_on_the_command_line():
    assert read_names(["a=/x/y", "b=z"]).keys() == {"a", "b"}
    assert list(read_names(["/models/my-bert"])) == ["my-bert"]
    assert (read_bytes("1GiB", ""), read_bytes("512 MB", ""), read_bytes("7", "")) == (1 << 30, 512 << 20, 7)
    for wrong in (["a=x", "a=y"], ["a b=x"]):
        with pytest.raises(fusebert.FusebertError):
            read_names(wrong)
    with pytest.raises(fusebert.FusebertError, match="512MiB"):
        read_bytes("much", "--memory")


def test_what_cannot_be_served_ends_with_a_sentence(run, tmp_path):
    assert "not a supported model" in run("serve", tmp_path, "--port", "0", code=2)
    assert "belong together" in run("serve", tmp_path, "--tls-cert", "x", code=2)


def test_a_fault_of_our_own_while_loading_ends_the_server(monkeypatch):
    def fail(*_):
        raise TypeError("a fault of our own")

    monkeypatch.setattr(server, "open_service", fail)
    with pytest.raises(TypeError, match="our own"):
        server.serve(server.Settings({"model": Path("x")}, port=0), lambda _: None)
