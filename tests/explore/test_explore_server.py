"""The server of explore: whom it answers, and what it says of questions that make no sense."""

import http.client
import json
import threading

import pytest
import zoo

from fusebert.errors import FusebertError
from fusebert.explore import Shown, make_server


@pytest.fixture(scope="module")
def server():
    server = make_server([Shown(zoo.get("tf1-frozen").make()), Shown(zoo.get("onnx-bert-14-eager").make())], 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response, data


def test_pages_have_a_strict_policy(server):
    for path in ("/", "/explore.js", "/style.css"):
        response, data = ask(server, "GET", path)
        assert response.status == 200
        assert data
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_a_page_of_another_site_is_not_answered(server):
    assert ask(server, "GET", "/api/models/0", host="evil.example:80")[0].status == 403
    response, _ = ask(server, "POST", "/api/models/0/pattern", "{}", content_type="text/plain")
    assert response.status == 400


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/api/models/2", "/api/models/x", "/api/models/99999", "/api/models/0/more", "/../pyproject.toml"],
)
def test_what_is_not_there_is_not_found(server, path):
    assert ask(server, "GET", path)[0].status == 404


@pytest.mark.parametrize(
    "body", ["", "[", "[]", '{"seeds": 1}', '{"seeds": [1]}', '{"function": []}', '{"seeds": ["nothing"]}', "[" * 9999]
)
def test_a_body_that_makes_no_sense_gets_a_sentence(server, body):
    response, data = ask(server, "POST", "/api/models/0/recipe", body, content_type="application/json")
    assert response.status == 422
    assert json.loads(data)["error"]


def test_patterns_are_for_tensorflow(server):
    response, data = ask(server, "POST", "/api/models/1/pattern", '{"seeds": ["x"]}', content_type="application/json")
    assert response.status == 422
    assert "ONNX model; patterns are made of TensorFlow models" in json.loads(data)["error"]


def test_a_weight_is_told_by_its_numbers(server):
    model = json.loads(ask(server, "GET", "/api/models/1")[1])
    name = next(one["name"] for one in model["tensors"] if one.get("weight") and len(one["shape"]) == 2)
    told = json.loads(ask(server, "GET", f"/api/models/1/weight?name={name}")[1])
    assert sum(told["bins"]) == told["count"] == told["shape"][0] * told["shape"][1]
    assert told["min"] < told["mean"] < told["max"]
    assert ask(server, "GET", "/api/models/1/weight?name=nothing")[0].status == 422


def test_a_port_that_is_taken_is_told(server):
    with pytest.raises(FusebertError, match="choose another --port"):
        make_server([], server.server_address[1])
