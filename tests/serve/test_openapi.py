"""The OpenAPI document: complete, and what is made from it ends no request with a fault of the server."""

import re

from serve_process import speak

from fusebert.serve.server import CALLS


def test_every_call_is_in_the_document_with_its_types(served):
    status, _, document = served.ask("/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    shown = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert shown == {(call.method, call.path) for call in CALLS if call.documented} - {("GET", "/openapi.json")}
    operations = [one for item in document["paths"].values() for one in item.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
    assert all(one["summary"] for one in operations)
    schemas = document["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", str(document))) <= set(schemas)
    assert schemas["Embed"]["properties"]["inputs"]["anyOf"][0] == {"type": "string"}
    assert set(schemas["EmbeddingList"]["required"]) == {"object", "data", "model", "usage"}


def test_answers_are_of_the_types_in_the_document(served):
    import msgspec

    answers = {call.path: call.answer for call in CALLS if call.method == "POST"}
    asked = {
        "/embed": {"inputs": "the cat"},
        "/embed_all": {"inputs": ["the cat"]},
        "/embed_sparse": {"inputs": "the cat", "model": "masked"},
        "/predict": {"inputs": "the cat", "model": "sequence"},
        "/similarity": {"inputs": {"source_sentence": "the cat", "sentences": ["the dog"]}},
        "/tag": {"inputs": "the cat", "model": "token"},
        "/answer": {"inputs": {"question": "the cat", "context": "the dog"}, "model": "question"},
        "/tokenize": {"inputs": "the cat"},
        "/decode": {"ids": [5, 6]},
        "/v1/embeddings": {"input": "the cat"},
        "/rerank": {"query": "the cat", "texts": ["the dog"], "model": "ranker"},
        "/vectors": {"text": "the cat"},
    }
    for path, body in asked.items():
        status, _, answer = served.ask(path, body)
        assert status == 200, (path, answer)
        msgspec.convert(answer, answers[path])


def test_tokens_without_special_ones(served):
    tokens = served.ask("/tokenize", {"inputs": "the cat", "add_special_tokens": False})[2][0]
    assert [token["text"] for token in tokens] == ["the", "cat"]


def test_schemathesis_finds_no_fault_of_the_server(served, tmp_path):
    found = speak("fuzz.py", tmp_path / "found.json", f"http://127.0.0.1:{served.port}")
    assert found["code"] == 0, found["said"]
    assert "No issues found" in found["said"] or "passed" in found["said"], found["said"]
    assert served.ask("/embed", {"inputs": "the cat"})[0] == 200


def test_the_documents_page_loads_nothing_else(served):
    status, headers, page = served.ask("/docs")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b'fetch("openapi.json")' in page
    assert not re.findall(rb"(?:https?:)?//\w+\.\w", page)
