"""Tensor bundles: slices put together, numbers mapped and not read, broken tables refused in bounded time. Bundles that
TensorFlow wrote are read in test_tensorflow.py."""

import os
import resource

import numpy as np
import pytest

from fusebert.errors import FusebertError
from fusebert.formats.protobuf.wire import _encoded
from fusebert.formats.tensorflow import bundle as tf_bundle
from fusebert.formats.tensorflow.bundle import Bundle


def slices(*bounds, shape=(4, 2)):
    entry = tf_bundle.kinds()["Entry"](dtype=1, size=0)
    for size in shape:
        entry.shape.dim.add(size=size)
    for bound in bounds:
        added = entry.slices.add()
        for extent in bound:
            added.extent.add(**dict(zip(("start", "length"), extent, strict=False)))
    return entry


def part(rows, columns=2, offset=0):
    entry = tf_bundle.kinds()["Entry"](dtype=1, size=4 * rows * columns, offset=offset)
    for size in (rows, columns):
        entry.shape.dim.add(size=size)
    return entry


def write_bundle(folder, entries, data):
    """A bundle of one block; keys that are tuples are slices."""
    header = tf_bundle.kinds()["Header"](num_shards=1).SerializeToString()
    keyed = {k.encode() if isinstance(k, str) else tf_bundle._slice_key(*k): e for k, e in entries.items()}
    stored = {b"": header} | {key: keyed[key].SerializeToString() for key in sorted(keyed)}
    (folder / "v.index").write_bytes(table(block(stored.items())))
    (folder / "v.data-00000-of-00001").write_bytes(data)
    return Bundle(folder / "v")


def block(items, restarts=0):
    entries = b"".join(b"\0" + _encoded(len(k)) + _encoded(len(v)) + k + v for k, v in items)
    return entries + bytes(4 * min(restarts, 9)) + restarts.to_bytes(4, "little") + bytes(5)


def table(*blocks, handles=None):
    starts = np.cumsum([0, *map(len, blocks)]).tolist()
    handles = handles or [(start, len(b) - 5) for start, b in zip(starts, blocks, strict=False)]
    index = block([(bytes([i]), _encoded(a) + _encoded(n)) for i, (a, n) in enumerate(handles)])
    footer = b"\0\0" + _encoded(starts[-1]) + _encoded(len(index) - 5)
    return b"".join(blocks) + index + footer.ljust(40, b"\0") + tf_bundle.MAGIC.to_bytes(8, "little")


TOP, BOTTOM = ((0, 3), (0, -1)), ((3, 1), (0, -1))


def test_slices_are_put_together_if_they_cover_the_tensor_exactly(tmp_path):
    numbers = np.arange(8, dtype=np.float32)
    whole = slices([(3, 1), ()], [(0, 3), ()])
    entries = {"k": whole, (b"k", TOP): part(3), (b"k", BOTTOM): part(1, offset=24)}
    assert np.array_equal(write_bundle(tmp_path, entries, numbers.tobytes())["k"].read(), numbers.reshape(4, 2))
    for change, sentence in [
        ({"k": slices([(0, 3), ()])}, "end at 3 of 4"),
        ({"k": slices([(0, 3), ()], [(0, 3), ()])}, "do not cover"),
        ({"k": slices([(0, 3), ()], [(3, 2), ()])}, "from 3 to 5 of an axis of 4"),
        ({"k": slices([(0, 3), ()], [(3, 1), (0, 1)])}, "do not cover"),
        ({"k": slices([(0, 2), ()], [(2, 2), ()])}, "slice at 0 that is not in the index"),
        ({"k": slices([()])}, "2 axes and a slice of 1"),
        ({"k": slices([], shape=())}, "do not cover"),
        ({"k": slices([(0, 0), ()], [(0, 3), ()], [(3, 1), ()])}, "from 0 to 0"),
        ({(b"k", TOP): part(2, 3)}, "another shape or type"),
        ({(b"k", TOP): part(4)}, "another shape or type"),
        ({(b"k", BOTTOM): part(1, offset=32)}, "beyond the end"),
        ({(b"k", BOTTOM): part(1, offset=-8)}, "beyond the end"),
    ]:
        with pytest.raises(FusebertError, match=sentence):
            write_bundle(tmp_path, entries | change, numbers.tobytes())["k"].read()
    with pytest.raises(FusebertError, match="on top of each other"):
        write_bundle(tmp_path, entries | {(b"k", BOTTOM): part(1)}, numbers.tobytes()[:24])["k"].read()


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 300, 8191, 8192, 1 << 20, 1 << 40, -(1 << 62)])
def test_keys_of_slices_sort_as_their_numbers(number):
    here, above = tf_bundle._ordered(number), tf_bundle._ordered(number + 1)
    assert here < above
    assert len(here) == (number if number >= 0 else ~number).bit_length() // 7 + 1


def test_bad_blocks_of_an_index_are_refused(tmp_path):
    good = block([(b"a", b""), (b"b", b"")])
    long = [(b"k" * 4097, b"")]
    for content, sentence in [
        (table(block([], restarts=9999)), "restart points"),
        (table(good, handles=[(0, 12)] * 2), "on top of each other"),
        (table(good, handles=[(0, 1 << 60)]), "beyond the end"),
        (table(good, good), "keys are not in order"),
        (table(block(long)), "beyond its block"),
        (table(good[:-5] + b"\1" + bytes(4)), "compressed"),
        (table(good)[:-8], "not the index"),
    ]:
        (tmp_path / "v.index").write_bytes(content)
        with pytest.raises(FusebertError, match=sentence):
            Bundle(tmp_path / "v")


def test_an_index_whose_keys_are_much_longer_than_itself_is_refused(tmp_path):
    first = b"\0" + _encoded(4000) + b"\0" + b"k" * 4000
    more = b"".join(_encoded(3996) + b"\4\0" + i.to_bytes(4, "big") for i in range(0x6C000000, 0x6C010000))
    (tmp_path / "v.index").write_bytes(table(first + more + bytes(9)))
    with pytest.raises(FusebertError, match="longer than any are"):
        Bundle(tmp_path / "v")


def test_weights_are_mapped_and_not_read(tmp_path):
    size = 1 << 33
    entry = tf_bundle.kinds()["Entry"](dtype=1, size=size, offset=3)  # after a string, anything begins anywhere
    entry.shape.dim.add(size=size // 4)
    write_bundle(tmp_path, {"huge": entry}, b"abcx")
    os.truncate(tmp_path / "v.data-00000-of-00001", size + 3)  # a file with a hole costs nothing
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    array = Bundle(tmp_path / "v")["huge"].read()
    assert (array.shape, array[0], array[-1]) == ((size // 4,), np.frombuffer(b"x\0\0\0", "f")[0], 0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # KB
