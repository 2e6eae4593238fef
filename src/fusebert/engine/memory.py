"""Memory: a bound in bytes -> how many tokens may run together. It counts what a call takes beside the weights, what it
is given and what it gives: rows before and after the encoder, the buffers of a wave of rows, and for each thread the
keys and values of a head. native/cut.h, wave.cc and attention.cc say what they take; docs/memory.md has a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusebert.engine.tokenizer import Tokens
from fusebert.errors import FusebertError
from fusebert.values.blocks import Attention
from fusebert.values.network import Network

_FLOAT = 4
_WAVE, _WAVE_OF_THREAD = 576, 288  # rows that run through all blocks together at most, unless one sequence is longer
_QUERIES = 48  # rows of scores at a time
_GROWTH = 2  # times: arenas keep what they grew out of until the next call
_TOKEN = 256  # bytes: ids, types and places, as they come and as they are sorted
_THREAD, _CALL = 3 << 20, 4 << 20  # bytes that any thread and any call takes: chunks and large pages begun


@dataclass(frozen=True)
class Room:
    """What calls of a network take on so many threads."""

    hidden: int
    inner: int  # what the widest first product of a block gives
    context: int
    head: int  # keys and values of a head, and what is listed beside them for positions
    outputs: int  # of a head that answers for every token
    threads: int

    @staticmethod
    def of(network: Network, threads: int) -> Room:
        """The sizes of a network's blocks."""
        inner = context = head = 0
        for block in network.encoder.blocks:
            first, second = block.body.products()
            inner = max(
                inner, sum(len(getattr(block.body, name).weight) for name in first if getattr(block.body, name))
            )
            wide = max(getattr(block.body, name).weight.shape[1] for name in second)
            if isinstance(block.body, Attention):
                context = max(context, wide)
                sizes = len(block.body.key.weight) // block.body.key_heads + wide // block.body.heads
                head = max(head, sizes * (3 if block.body.position else 1))
            else:
                inner = max(inner, wide)
        steps = network.head.steps
        own = sum(len(step.linear.weight) for step in steps) if steps and not network.head.pools else 0
        return Room(network.encoder.hidden_size, inner, context, head, own, threads)

    def needed(self, tokens: int, longest: int) -> int:
        """Bytes that a call takes for so many tokens, of which so many are in one sequence."""
        wave = min(tokens, max(_WAVE, _WAVE_OF_THREAD * self.threads, longest))
        floats = wave * (3 * self.hidden + 2 * max(self.inner, self.hidden) + self.context)
        floats += self.threads * longest * (self.head + 16 + 3 * _QUERIES)
        rows = tokens * (5 * self.hidden + 2 * self.outputs)
        return _FLOAT * (_GROWTH * floats + rows) + _TOKEN * tokens + _THREAD * self.threads + _CALL

    def tokens(self, memory: int, longest: int) -> int:
        """The most tokens of a call that stays within a bound. Raises FusebertError if one sequence is too much."""
        if (least := self.needed(longest, longest)) > memory:
            raise FusebertError(
                f"memory: a text of {longest} tokens takes up to {_shown(least)} beside the weights on {self.threads} "
                f"threads, and {_shown(memory)} are allowed; allow more, use fewer threads, or shorten the texts"
            )
        low, high = longest, max(longest, memory // (_FLOAT * self.hidden) + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.needed(middle, longest) <= memory else (low, middle)
        return low


def check_memory(memory: int | None) -> int | None:
    """A bound as it is given."""
    if memory is not None and (not isinstance(memory, int) or isinstance(memory, bool) or memory < 1):
        raise FusebertError(f"memory: a number of bytes is expected, not {memory!r:.40}")
    return memory


def longest_of(tokens: Sequence[Tokens]) -> int:
    """The tokens of the longest text."""
    return max((len(own.ids) for own in tokens), default=1)


def _shown(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
