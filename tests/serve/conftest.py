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
def served(models, tmp_path_factory):
    """All heads in one server; the one without a head is the default."""
    ranker = make_checkpoint(tmp_path_factory.mktemp("ranker"), head="sequence", labels=2, vocab=True)
    names = [f"{name}={path}" for name, path in {**models, "ranker": ranker}.items()]
    server = Served(*names, "--max-texts", "64", log=tmp_path_factory.mktemp("log") / "log")
    yield server
    assert server.stop() == 0, server.log.read_text()
