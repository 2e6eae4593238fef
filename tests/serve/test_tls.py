"""TLS on both ports: stock clients that trust the certificate are answered, and nobody in plain text is."""

import http.client
import json
import shutil
import ssl
import subprocess
from contextlib import closing

import grpc
import pytest
from serve_process import Served


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    """A key and a certificate of its own for localhost."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is missing")
    folder = tmp_path_factory.mktemp("tls")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run(["openssl", *words.split(), *names, *files], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def test_both_ports_speak_tls_only(models, identity, tmp_path):
    certificate, key = identity
    server = Served(models["none"], "--tls-cert", certificate, "--tls-key", key, log=tmp_path / "log")
    try:
        trusted = ssl.create_default_context(cafile=str(certificate))
        with closing(http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=trusted)) as connection:
            connection.request("POST", "/embed", json.dumps({"inputs": "the cat"}))
            assert connection.getresponse().status == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            server.ask("/health")
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=20) == b"\x08\x01"  # SERVING
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=5)
    finally:
        assert server.stop() == 0
