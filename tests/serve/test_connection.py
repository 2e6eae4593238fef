"""Connections as no library makes them: slow, half-closed, cut off, in crumbs, never fetched, or not HTTP at all. The
server says what is wrong where there is someone to tell, lets go of what they held, and answers the next one."""

import json
import socket
import time

import pytest
from serve_process import Served

TEXT = b'{"inputs": "the cat"}'


def head(size, *more, path=b"/embed"):
    lines = [b"POST %b HTTP/1.1" % path, b"host: x", b"content-length: %d" % size, *more]
    return b"\r\n".join(lines) + b"\r\n\r\n"


@pytest.fixture(scope="module")
def quick(models, tmp_path_factory):
    """A server that waits for nobody."""
    words = ["--max-seconds", "1", "--max-chunks", "100", "--max-headers", "20", "--no-grpc"]
    server = Served(models["none"], *words, log=tmp_path_factory.mktemp("quick") / "log")
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(autouse=True)
def next_one(quick):
    """Whatever happened, nothing is held any more, and the next one is answered."""
    yield
    for _ in range(50):
        if held(quick) == 0:
            break
        time.sleep(0.1)
    assert held(quick) == 0
    assert quick.ask("/embed", {"inputs": "the cat"})[0] == 200


def held(server):
    """Bytes of requests that are not answered yet."""
    return float(server.ask("/metrics")[2].decode().split('fusebert_memory_bytes{model="none"} ')[1].split("\n")[0])


def send(server, *parts, pause=0.0, receive=True):
    """What a server answers to these bytes until it closes: status and body."""
    with socket.create_connection(("127.0.0.1", server.port), 20) as raw:
        try:
            for part in parts:
                raw.sendall(part)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has answered already
        return read(raw) if receive else None


def read(raw):
    got = b""
    try:
        while data := raw.recv(65536):
            got += data
    except ConnectionResetError:
        pass
    if not got:
        return None, b""
    top, _, body = got.partition(b"\r\n\r\n")
    return int(top.split()[1]), body


def test_a_client_that_never_asks_is_told_and_cut_off(quick):
    begun = time.monotonic()
    assert send(quick)[0] == 400
    assert send(quick, b"POST /embed HTTP/1.1\r\nhost: ")[0] == 400
    assert 1 < time.monotonic() - begun < 8


def test_a_slow_sender_is_told_and_cut_off(quick):
    status, body = send(quick, head(len(TEXT)), *(TEXT[i : i + 1] for i in range(8)), pause=0.2)
    assert status == 408
    assert b"not complete after 1 seconds" in body
    crumbs = [b"x-%d: y\r\n" % i for i in range(8)]
    assert send(quick, b"POST /embed HTTP/1.1\r\n", *crumbs, pause=0.2)[0] == 400


def test_half_closed_and_cut_off_clients(quick):
    for sent in (head(len(TEXT)) + TEXT, head(len(TEXT)) + TEXT[:5], head(3)[:20], b""):
        with socket.create_connection(("127.0.0.1", quick.port), 20) as raw:
            raw.sendall(sent)
            raw.shutdown(socket.SHUT_WR)
            assert read(raw)[0] in (None, 200, 400)
        with socket.create_connection(("127.0.0.1", quick.port), 20) as raw:
            raw.sendall(sent)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closing resets


def test_clients_that_leave_in_mid_flight(quick):
    body = json.dumps({"inputs": ["the cat sat on the mat"] * 512}).encode()
    for _ in range(20):
        send(quick, head(len(body)) + body, receive=False)


def test_chunks_are_counted(quick):
    start = b"POST /embed HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    few = b"".join(b"1\r\n%b\r\n" % TEXT[i : i + 1] for i in range(len(TEXT))) + b"0\r\n\r\n"
    assert send(quick, start + few)[0] == 200
    many = b"1\r\n \r\n" * 200
    status, body = send(quick, start + many)
    assert (status, b"chunks" in body) == (400, True)


def test_headers_are_counted_and_measured(quick):
    many = [b"x-%d: y" % i for i in range(30)]
    status, body = send(quick, head(len(TEXT), *many) + TEXT)
    assert (status, b"20 headers" in body) == (400, True)
    assert send(quick, head(len(TEXT), b"x: " + b"y" * 40_000) + TEXT)[0] == 400
    assert send(quick, head(len(TEXT), path=b"/" + b"y" * 40_000) + TEXT)[0] == 400
    assert send(quick, b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 50_000)[0] == 400


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # TLS where none is spoken
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(32),
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 4096,
        head(5, b"transfer-encoding: chunked") + b"0\r\n\r\n",  # two lengths: which one is meant?
        head(5, b"content-length: 7") + TEXT,
        head(-5) + TEXT,
        b"POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /embed HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n",
    ],
)
def test_what_is_not_http_gets_400(quick, sent):
    status, body = send(quick, sent)
    assert (status, "error" in json.loads(body)) == (400, True)


def test_requests_one_behind_the_other_are_answered_in_order(quick):
    first, last = head(len(TEXT)) + TEXT, head(len(TEXT), b"connection: close") + TEXT
    with socket.create_connection(("127.0.0.1", quick.port), 20) as raw:
        raw.sendall(first * 4 + last)
        got = b""
        while data := raw.recv(65536):
            got += data
    assert got.count(b"HTTP/1.1 200") == 5


def test_levels_of_json_are_counted(quick):
    def ask(text):
        return quick.ask("/embed", text)[0]

    assert ask(b'{"inputs": "%b"}' % (b"[{" * 500)) == 200  # inside a text they are nothing
    assert ask(b'{"inputs": "\\"%b"}' % (b"[{" * 500)) == 200
    assert ask(b'{"inputs": %b%b}' % (b"[" * 40, b"]" * 40)) == 400
    assert ask(json.dumps({"inputs": [[2, 5, 3]] * 60}).encode()) == 200
    body = b'{"inputs": [], "x": %b%b}' % (b"[" * 40, b"]" * 40)
    assert quick.ask("/v2/models/none/infer", body)[0] == 400


def test_an_answer_that_nobody_fetches_is_let_go_of(quick):
    body = json.dumps({"inputs": ["the cat sat on the mat " * 3] * 512}).encode()
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", quick.port))
        raw.sendall(head(len(body), path=b"/embed_all") + body)
        time.sleep(0.7)
        assert held(quick) > 1e6  # it counts as long as it lies there
        time.sleep(2.5)
        assert held(quick) == 0


def test_hundreds_of_idle_connections_do_not_keep_others_out(quick):
    idle = [socket.create_connection(("127.0.0.1", quick.port), 20) for _ in range(300)]
    try:
        assert quick.ask("/embed", {"inputs": "the cat"})[0] == 200
    finally:
        for raw in idle:
            raw.close()


def test_an_answer_is_one_packet_and_what_has_no_body_is_sent_too(quick):
    with socket.create_connection(("127.0.0.1", quick.port), 20) as raw:
        for _ in range(3):  # one behind the other, over the same connection
            raw.sendall(head(len(TEXT)) + TEXT)
            said, body = raw.recv(1 << 16).split(b"\r\n\r\n")
            assert said.startswith(b"HTTP/1.1 200")
            assert len(json.loads(body)) == 1
        raw.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
        raw.sendall(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 ")
        raw.sendall(head(len(TEXT), b"expect: 100-continue"))
        assert raw.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.sendall(TEXT)
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
