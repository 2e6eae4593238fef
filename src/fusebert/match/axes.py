"""Axes: what a dimension is, not only how long. Reshapes and transposes become regroupings of the same axes, so that
two tensors that differ in layout alone are seen to be the same numbers.

Every size is a pair: the graph is looked at with two probe batches of different sizes at once, and a size that is the
same in both belongs to the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

Size = tuple[int, int]
ONE: Size = (1, 1)


class Axis:
    """One dimension that nothing has divided yet; once something does, `parts` says into what. One part is another axis
    that it is the same as."""

    __slots__ = ("parts", "size")

    def __init__(self, size: Size) -> None:
        self.size = size
        self.parts: tuple[Axis, ...] | None = None

    def become(self, parts: tuple[Axis, ...]) -> None:
        """Says what the axis consists of."""
        if (changes := _CHANGES.get()) is not None:
            changes.append((self, self.parts))
        self.parts = parts

    def split(self, first: Size) -> bool:
        """Divides the axis in two, of which at most one may depend on the batch; says whether that can be done."""
        if any(f < 1 or n % f for n, f in zip(self.size, first, strict=True)):
            return False
        rest = self.size[0] // first[0], self.size[1] // first[1]
        if not (fixed(first) or fixed(rest)):
            return False
        self.become((Axis(first), Axis(rest)))
        return True


_CHANGES: ContextVar[list[tuple[Axis, tuple[Axis, ...] | None]] | None] = ContextVar("changes", default=None)


@contextmanager
def undone_if_raised() -> Iterator[None]:
    """What is said of axes in the body is taken back if the body raises."""
    changes: list[tuple[Axis, tuple[Axis, ...] | None]] = []
    token = _CHANGES.set(changes)
    try:
        yield
    except BaseException:
        for axis, parts in reversed(changes):
            axis.parts = parts
        raise
    finally:
        _CHANGES.reset(token)


Group = tuple[Axis, ...]  # the axes that make up one dimension, slowest first; none for a dimension of one


@dataclass(frozen=True)
class View:
    """A tensor as a layout of a value, times a factor."""

    value: str
    dims: tuple[Group, ...]
    factor: float = 1.0


def fixed(size: Size) -> bool:
    """Whether a size belongs to the model and not to the batch."""
    return size[0] == size[1]


def atoms(group: Iterable[Axis]) -> Group:
    """The axes as they have been divided by now."""
    result: list[Axis] = []
    waiting = list(group)[::-1]
    while waiting:
        axis = waiting.pop()
        if axis.parts is None:
            result.append(axis)
        elif len(axis.parts) == 1:
            waiting.append(_taken_for(axis))
        else:
            waiting.extend(reversed(axis.parts))
    return tuple(result)


def _taken_for(axis: Axis) -> Axis:
    """The axis that one is the same as, which all on the way there then know."""
    way = []
    while axis.parts is not None and len(axis.parts) == 1:
        way.append(axis)
        axis = axis.parts[0]
    for passed in way:
        passed.become((axis,))
    return axis


def flat(dims: Iterable[Group]) -> Group:
    """All axes of a layout, in order."""
    return atoms(axis for group in dims for axis in group)


def settled(dims: Iterable[Group]) -> tuple[Group, ...]:
    """A layout in axes that are not divided."""
    return tuple(atoms(group) for group in dims)


def size_of(group: Iterable[Axis]) -> Size:
    """The length of a dimension."""
    first = second = 1
    for axis in group:
        first, second = first * axis.size[0], second * axis.size[1]
    return first, second


def shape_of(dims: Iterable[Group]) -> tuple[Size, ...]:
    """The sizes of a layout."""
    return tuple(size_of(group) for group in dims)


def fresh(shape: Sequence[Size]) -> tuple[Group, ...]:
    """A layout of new axes."""
    return tuple(() if size == ONE else (Axis(size),) for size in shape)


def clone(group: Group) -> Group:
    """New axes of the same sizes."""
    return tuple(Axis(axis.size) for axis in atoms(group))


def regroup(dims: tuple[Group, ...], shape: Sequence[Size]) -> tuple[Group, ...] | None:
    """The same axes as dimensions of other sizes, or None where they do not divide so."""
    waiting = list(reversed(flat(dims)))
    result: list[Group] = []
    if any(min(size) < 1 for size in shape) or any(min(axis.size) < 1 for axis in waiting):
        return None
    for target in shape:
        group: list[Axis] = []
        size = ONE
        while size != target:
            if not waiting:
                return None
            axis = waiting.pop()
            size_with = size[0] * axis.size[0], size[1] * axis.size[1]
            if any(t % n for t, n in zip(target, size_with, strict=True)):
                if any(t % n for t, n in zip(target, size, strict=True)):
                    return None
                if not axis.split((target[0] // size[0], target[1] // size[1])):
                    return None
                waiting.extend(reversed(atoms([axis])))
                continue
            group.append(axis)
            size = size_with
        result.append(tuple(group))
    return None if waiting else tuple(result)


def same(a: Group, b: Group, apart: tuple[Group, Group] = ((), ())) -> bool:
    """Takes two groups to be the same axes, dividing where one is finer; says whether they can be.

    `apart` are all axes of the two tensors: two axes of one tensor are never taken for each other."""
    left, right = list(reversed(atoms(a))), list(reversed(atoms(b)))
    while left and right:
        x, y = left.pop(), right.pop()
        if x is y:
            continue
        if x.size == y.size:
            if x in atoms(apart[1]) or y in atoms(apart[0]):
                return False
            y.become((x,))
        else:
            big, small, stack = (x, y, left) if x.size[0] * x.size[1] > y.size[0] * y.size[1] else (y, x, right)
            if not big.split(small.size):
                return False
            stack.extend(reversed(atoms([big])))
            (right if stack is left else left).append(small)
    return not left and not right
