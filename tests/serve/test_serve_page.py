"""The server's page in a browser: the model is tried, what happens is charted, a key is asked for; and clients to which
`/` means something else are still answered."""

import json

import pytest
from browser import browser, page_of, violations
from checkpoints import make_checkpoint
from serve_process import Served


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture
def serve(tmp_path):
    """Starts servers, which end with the test."""
    servers = []

    def start(head, *words):
        model = make_checkpoint(tmp_path / "model", head=head, vocab=True)
        servers.append(Served(model, *words, log=tmp_path / "log"))
        return servers[-1]

    yield start
    for server in servers:
        assert server.stop() == 0


def ask_page(page, text):
    page.locator("#first").fill(text)
    page.get_by_role("button", name="Run").click()
    page.locator(".result").first.wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_embeddings_are_a_heat_map_and_charts_move(chromium, serve, scheme):
    server = serve("none")
    with page_of(chromium, f"http://127.0.0.1:{server.port}/", scheme=scheme) as page:
        ask_page(page, "the cat sat\nthe dog ran")
        table = page.get_by_role("region", name="Similarities")
        assert table.get_by_text("1.000").count() == 2
        assert page.locator(".token").count() > 6
        assert "ms in the model" in page.locator("#took").inner_text()
        page.locator(".chart path[d*=L]").first.wait_for(state="attached")
        page.get_by_label("Protocol").select_option("OpenAI client")
        assert f"http://127.0.0.1:{server.port}/v1" in page.get_by_label("Request", exact=True).inner_text()
        assert violations(page) == []
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(page) == []


@pytest.mark.parametrize("head", ["sequence", "token", "question", "masked"])
def test_every_head_has_its_drawing(chromium, serve, head):
    server = serve(head)
    with page_of(chromium, f"http://127.0.0.1:{server.port}/") as page:
        ask_page(page, "the cat sat")
        if head == "sequence":
            scores = [float(text) for text in page.locator(".score span:last-child").all_inner_texts()]
            answered = server.ask("/predict", {"inputs": "the cat sat"})[2]
            assert scores == [round(one["score"], 4) for one in sorted(answered, key=lambda one: -one["score"])]
        elif head != "masked":
            assert page.locator(".marked").count() == 1
        assert page.locator(".tokens").count() == 1 + (head == "question")  # of the context too
        assert violations(page) == []


def test_a_key_is_asked_for_and_kept_for_the_session(chromium, serve, tmp_path):
    (tmp_path / "key").write_text("secret")
    server = serve("none", "--api-key-file", tmp_path / "key")
    assert server.ask("/page/events")[0] == 401
    started = chromium.new_context()
    page = started.new_page()  # a refused request is an error on the console
    page.goto(f"http://127.0.0.1:{server.port}/")
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    page.get_by_text("This is not the key.").wait_for()
    page.get_by_label("API key").fill("secret")
    page.get_by_role("button", name="Use it").click()
    page.locator("#body").wait_for()
    ask_page(page, "the cat sat")
    page.reload()
    page.locator("#body").wait_for()
    page.locator(".chart").first.wait_for()
    started.close()


def test_clients_that_ask_for_no_page_get_none(serve):
    server = serve("none")
    status, headers, body = server.ask("/")
    assert (status, body) == (200, b"")
    status, headers, body = server.ask("/", accept="text/html,*/*")
    assert status == 200
    assert b"<!doctype html>" in body
    assert "script-src 'self'" in headers["content-security-policy"]
    assert server.ask("/page/explore.html")[0] == 404


def test_no_page_switches_it_off(serve):
    server = serve("none", "--no-page")
    assert server.ask("/", accept="text/html")[2] == b""
    assert server.ask("/page/serve.js")[0] == 404


def test_events_tell_what_was_answered_until_the_client_leaves(serve):
    server = serve("none")
    connection = server.connect()
    connection.request("GET", "/page/events")
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    for _ in range(5):
        server.ask("/embed", {"inputs": ["the cat sat", "the dog"]})
    told = []
    while not any(value["rate"] for value in told):
        line = response.readline()
        if line.startswith(b"data: "):
            told.append(json.loads(line.removeprefix(b"data: ")))
    assert told[-1]["p50"] > 0
    assert told[-1]["ready"] is True
    response.close()
    connection.close()
