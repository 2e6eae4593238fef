from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

_Array = NDArray[Any]
_Matrix = tuple[_Array, int, _Array | None]
_Linear = tuple[_Matrix, _Array | None, _Array | None]
_Norm = tuple[_Array | None, _Array | None, float]

class Pool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class Encoder:
    def __init__(self, hidden: int, layers: list[dict[str, Any]], pool: Pool) -> None: ...
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
        hidden_states: list[_Array] = ...,
        profile: _Array | None = None,
        observer: Callable[[int, int, _Array], None] | None = None,
    ) -> None: ...

class Dense:
    def __init__(
        self, linear: _Linear, activation: int, plan: tuple[int, float, float], norm: _Norm | None, pool: Pool
    ) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    def run(self, input: _Array, output: _Array, pool: Pool) -> None: ...

def embed(
    word: _Matrix,
    position: _Matrix,
    kind: _Matrix | None,
    norm: _Norm,
    ids: _Array,
    positions: _Array,
    kinds: _Array | None,
    output: _Array,
    pool: Pool,
) -> None: ...
def quantize(weight: _Matrix, values: _Array, scales: _Array, pool: Pool) -> None: ...
def cores(root: str | None = None) -> int: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def steps() -> list[str]: ...
