"""Served models for the tests of the server."""

import pytest
from checkpoints import make_checkpoint
from serve_process import Served


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        h: make_checkpoint(folder / h, head=h, vocab=True) for h in ("none", "sequence", "token", "question", "masked")
    }


@pytest.fixture(scope="session")
def ranker(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("ranker"), head="sequence", labels=2, vocab=True)


@pytest.fixture(scope="session")
def served(models, ranker, tmp_path_factory):
    """All heads in one server; the one without a head is the default."""
    names = [f"{name}={path}" for name, path in {**models, "ranker": ranker}.items()]
    log = tmp_path_factory.mktemp("log") / "log"
    server = Served(*names, "--max-texts", "64", "--demo-port", "0", log=log)
    yield server
    assert server.stop() == 0, server.log.read_text()
