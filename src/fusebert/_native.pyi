from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray
from typing_extensions import disjoint_base

_Array = NDArray[Any]
_Parts = dict[str, Any]  # by the names of the C ABI's fields (native/fusebert.h); None and a missing key: not there

@disjoint_base
class Pool:
    def __init__(self, threads: int, gomp_parallel: int | None = None) -> None: ...
    @property
    def threads(self) -> int: ...

@disjoint_base
class Encoder:
    def __init__(
        self, hidden: int, blocks: list[_Parts], order: list[int], final: _Parts | None, pool: Pool
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    def run(
        self,
        input: _Array,
        output: _Array,
        offsets: _Array,
        pool: Pool,
        visible: _Array | None = None,
        bias: _Array | None = None,
        taps: list[int] = ...,
        states: list[_Array] = ...,
        profile: _Array | None = None,
        observer: Callable[[int, int, _Array], None] | None = None,
        index: _Array | None = None,
        positions: _Array | None = None,
    ) -> None: ...

@disjoint_base
class Dense:
    def __init__(self, parts: _Parts, pool: Pool, /) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    def run(self, input: _Array, output: _Array, pool: Pool, /) -> None: ...

@disjoint_base
class Embedding:
    def __init__(self, parts: _Parts, /) -> None: ...
    def run(
        self, ids: _Array, positions: _Array | None, token_types: _Array | None, output: _Array, pool: Pool, /
    ) -> None: ...

def quantize(weight: _Array, values: _Array, scales: _Array, pool: Pool, /) -> None: ...
def cores(root: str | None = None) -> int: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def activations() -> list[str]: ...
def steps() -> list[str]: ...
