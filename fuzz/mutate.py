"""Mutate: a sound file's bytes, a random generator -> other bytes. Bytes may be damaged anywhere; protobuf, JSON,
safetensors and zip files stay well formed while what they say becomes wrong. A mutator is made once for a file and
called for every case, so that a case costs no parsing."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

Mutator = Callable[[Random], bytes]

HUGE = 1 << 40
NUMBERS = (0, 1, 2, 3, 5, 7, 16, 127, 255, 1 << 15, (1 << 31) - 1, 1 << 31, 1 << 32, HUGE, (1 << 63) - 1, 1 << 63)
TEXTS = (
    "",
    "x",
    "a/b",
    "../x",
    "/etc/passwd",
    "\0",
    "\n",
    "x" * 5000,
    "é",
    "\u202e",
    "[UNK]",
    "##",
    "9" * 400,
    "%s{0}",
)
VALUES: tuple[Any, ...] = (
    None, True, False, -1, -0.0, 0.5, 1e30, 1e308, float("inf"), float("nan"), 10**30, [], {}, [[]], [None], {"a": 1},
    *NUMBERS, *TEXTS, "bert", "gelu", "F32", "I8", "s8", "\ud800",
)  # fmt: skip


def damaged(data: bytes) -> Mutator:
    """One to three places flipped, cut off, inserted, taken out, overwritten or copied elsewhere."""

    def mutate(random: Random) -> bytes:
        made = data
        for _ in range(random.randint(1, 3)):
            size = len(made)
            at = random.randrange(min(size, 400) + 1 if random.random() < 0.5 else size + 1)
            other = random.randrange(size + 1)
            match random.randrange(7):
                case 0 if at < size:
                    made = made[:at] + bytes([made[at] ^ 1 << random.randrange(8)]) + made[at + 1 :]
                case 1:
                    made = made[:at]
                case 2:
                    made = made[:at] + random.choice((random.randbytes(random.randint(1, 8)), b"9" * 20)) + made[at:]
                case 3:
                    made = made[:at] + made[at + random.randint(1, 16) :]
                case 4:
                    count = random.choice((1, 2, 4, 8, 64))
                    made = made[:at] + b"\xff" * min(count, size - at) + made[at + count :]
                case 5:
                    made = made[:at] + made[other : other + random.randint(1, 64)] + made[at:]
                case 6:
                    text = random.choice(TEXTS).encode("utf-8", "replace")
                    made = made[:at] + text + made[at + len(text) :]
        return made

    return mutate


# Protobuf


@dataclass(eq=False)
class Field:
    """A field of an encoded message: its bytes, and the fields in it if it may be a message."""

    number: int
    kind: int
    raw: bytes
    content: bytes
    inside: list[Field] = field(default_factory=list)


_LOOKED_INTO = 200_000  # bytes of a field; more are weights
_DEEPEST = 12


def wire(data: bytes) -> Mutator:
    """One to four fields of the message gone, doubled, moved, with another value or another field's; lengths fit."""
    whole = Field(0, 2, data, data, _fields(data, 0) or [])
    places: list[tuple[Field, ...]] = []
    _list_places(whole, (), places)
    if not places:  # it is no message
        return damaged(data)
    alike: dict[tuple[int, int, int], list[Field]] = {}
    for path in places:
        alike.setdefault((path[-1].number, path[-1].kind, len(path)), []).append(path[-1])

    def mutate(random: Random) -> bytes:
        edits: dict[int, bytes] = {}
        touched: set[int] = set()
        for _ in range(random.choice((1, 1, 2, 4))):
            path = random.choice(places)
            chosen = path[-1]
            others = alike[chosen.number, chosen.kind, len(path)]
            edits[id(chosen)] = _edited(chosen, others, random)
            touched.update(map(id, path[:-1]))
        return _encoded(whole, edits, touched, outermost=True)

    return mutate


def _list_places(one: Field, path: tuple[Field, ...], places: list[tuple[Field, ...]]) -> None:
    for inner in one.inside:
        places.append((*path, one, inner))
        _list_places(inner, (*path, one), places)


def _edited(chosen: Field, others: list[Field], random: Random) -> bytes:
    """What stands in the place of a field."""
    match random.randrange(8):
        case 0:
            return b""
        case 1:
            return chosen.raw * random.choice((2, 2, 3, 50))
        case 2:
            return random.choice(others).raw
        case 3:
            return chosen.raw + random.choice(others).raw
        case 4:
            number = random.choice((chosen.number + 1, chosen.number - 1, random.randint(1, 30), 536870911))
            return _field(max(number, 1), chosen.kind, chosen.content)
        case 5 if chosen.kind == 2:
            content = random.choice(others).content
            return _field(chosen.number, 2, content[: random.randrange(len(content) + 1)])
        case _:
            return _other_value(chosen, random)


def _other_value(chosen: Field, random: Random) -> bytes:
    if chosen.kind == 0:
        value = random.choice(NUMBERS) if random.random() < 0.6 else random.randrange(32)
        return _field(chosen.number, 0, varint(-value & (1 << 64) - 1 if random.random() < 0.2 else value))
    if chosen.kind in (1, 5):
        size = len(chosen.content)
        return _field(chosen.number, chosen.kind, random.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * size)
    if random.random() < 0.5:
        return _field(chosen.number, 2, random.choice(TEXTS).encode())
    if random.random() < 0.3:
        return _field(chosen.number, 2, b"".join(varint(random.choice(NUMBERS)) for _ in range(random.randint(1, 40))))
    return _field(chosen.number, 2, damaged(chosen.content)(random))


def fields(data: bytes) -> list[Field]:
    """The fields of a message; none if it is none."""
    return _fields(data, 0) or []


def joined(level: Sequence[Field | None]) -> bytes:
    """The message that these fields are, without those that were taken out."""
    return b"".join(
        _field(one.number, one.kind, joined(one.inside) if one.inside else one.content) for one in level if one
    )


def _fields(data: bytes, depth: int) -> list[Field] | None:
    """The fields that bytes are, or None if they are no message."""
    found, at, end = [], 0, len(data)
    while at < end:
        begin = at
        tag, at = _read_varint(data, at)
        number, kind = tag >> 3, tag & 7
        if at > end or not 0 < number < 1 << 29:
            return None
        if kind == 0:
            content_at = at
            _, at = _read_varint(data, at)
        elif kind == 2:
            length, content_at = _read_varint(data, at)
            at = content_at + length
        elif kind in (1, 5):
            content_at, at = at, at + (8 if kind == 1 else 4)
        else:
            return None
        if at > end:
            return None
        content = data[content_at:at]
        deeper = kind == 2 and depth < _DEEPEST and 1 < len(content) < _LOOKED_INTO
        found.append(
            Field(number, kind, data[begin:at], content, (_fields(content, depth + 1) or []) if deeper else [])
        )
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, len(data) + 1


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, kind: int, content: bytes) -> bytes:
    length = varint(len(content)) if kind == 2 else b""
    return varint(number << 3 | kind) + length + content


def _encoded(one: Field, edits: dict[int, bytes], touched: set[int], outermost: bool = False) -> bytes:
    if id(one) in edits:
        return edits[id(one)]
    if id(one) not in touched:
        return one.raw
    content = b"".join([_encoded(inner, edits, touched) for inner in one.inside])
    return content if outermost else _field(one.number, 2, content)


# JSON


def rewritten(data: bytes, values: tuple[Any, ...] = VALUES) -> Mutator:
    """JSON with one to three of its parts replaced, taken out, doubled or under another's name."""
    whole = json.loads(data)

    def mutate(random: Random) -> bytes:
        return json.dumps(_rewritten(whole, random, values)).encode()

    return mutate


def _rewritten(value: Any, random: Random, values: tuple[Any, ...]) -> Any:
    for _ in range(random.choice((1, 1, 2, 3))):
        places = [()]
        for _ in range(random.randint(1, 8)):  # a way down, which no large list makes long
            inner = _at(value, places[-1])
            if not isinstance(inner, (dict, list)) or not inner:
                break
            key = random.choice(list(inner)) if isinstance(inner, dict) else random.randrange(len(inner))
            places.append((*places[-1], key))
        place = random.choice(places[1:] or places)
        own = _at(value, place)
        match random.randrange(5):
            case 0:
                value = _put(value, place, ...)
            case 1:
                value = _put(value, place, _at(value, random.choice(places)))
            case 2 if isinstance(own, (int, float)):
                value = _put(value, place, random.choice((own + 1, own - 1, -own, own * 2, own * HUGE, float(own))))
            case 3 if isinstance(own, list):
                value = _put(value, place, own * random.choice((2, 100)))
            case _:
                value = _put(value, place, random.choice(values))
    return value


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _put(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """The value with another part at a place; Ellipsis takes it out."""
    if not place:
        return None if new is ... else new
    changed = value.copy()
    if len(place) == 1 and new is ...:
        del changed[place[0]]
    else:
        changed[place[0]] = _put(changed[place[0]], place[1:], new)
    return changed


def safetensors(data: bytes) -> Mutator:
    """A safetensors file whose header says something else."""
    length = int.from_bytes(data[:8], "little")
    head, rest = rewritten(data[8 : 8 + length]), data[8 + length :]

    def mutate(random: Random) -> bytes:
        text = head(random)
        return len(text).to_bytes(8, "little") + text + rest

    return mutate


# Archives


def zipped(data: bytes) -> Mutator:
    """A zip file with one member damaged, as PyTorch's pickles are; checksums fit."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    wrong = {name: damaged(content) for name, content in members.items()}
    names = [name for name in members if name.endswith(".pkl")] * 4 + list(members)

    def mutate(random: Random) -> bytes:
        name, out = random.choice(names), io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            for own, content in members.items():
                archive.writestr(own, wrong[own](random) if own == name else content)
        return out.getvalue()

    return mutate


# Text


def lines(data: bytes) -> Mutator:
    """Text with lines or their words gone, doubled, swapped or of another kind."""
    rows = data.split(b"\n")

    def mutate(random: Random) -> bytes:
        made = rows.copy()
        for _ in range(random.randint(1, 3)):
            at, other = random.randrange(len(made)), random.randrange(len(made))
            match random.randrange(5):
                case 0 if len(made) > 1:
                    del made[at]
                case 1:
                    made.insert(at, made[other])
                case 2:
                    made[at], made[other] = made[other], made[at]
                case _:
                    words = made[at].split(b"\t" if b"\t" in made[at] else b" ")
                    words[random.randrange(len(words))] = random.choice((*_words(), random.choice(words)))
                    made[at] = (b"\t" if b"\t" in made[at] else b" ").join(words)
        return b"\n".join(made)

    return mutate


def _words() -> Iterator[bytes]:
    for word in (*TEXTS, "-1", "1e400", "nan", "inf", '"', ",", "{", "}", "-", "#", "label", "text"):
        yield word.encode("utf-8", "replace")
