"""What LitServe serves in serving_rivals.py; a module of its own, for its processes import it by name."""

import json
import os
from typing import Any

import litserve
from serving_rivals import MARK, embedder


class Api(litserve.LitAPI):  # type: ignore[misc]
    """Texts in, unit vectors out."""

    def setup(self, device: str) -> None:  # noqa: ARG002
        """In each of its processes."""
        self.embed = embedder(json.loads(os.environ[MARK]))

    def decode_request(self, request: dict[str, str]) -> str:
        """A request's text."""
        return request["inputs"]

    def batch(self, inputs: list[str]) -> list[str]:
        """As they are."""
        return inputs

    def predict(self, x: str | list[str]) -> Any:
        """Of one text where nothing else waits, or of a batch."""
        return self.embed([x] if isinstance(x, str) else x)

    def unbatch(self, output: Any) -> list[Any]:
        """A row for each request."""
        return list(output)

    def encode_response(self, output: Any) -> list[Any]:
        """As numbers."""
        numbers: list[Any] = output.reshape(1, -1).tolist()
        return numbers
