"""Bundles of variables as we write them: what was given comes out of TensorFlow, which checks every byte, and out of
our own reader."""

import numpy as np
import pytest

from fusebert.formats.tensorflow.bundle import Bundle
from fusebert.formats.tensorflow.crc import crc32c
from fusebert.formats.tensorflow.store import write_bundle
from fusebert.ops.graph import Weight


def plainly(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_checksum_of_the_standard():
    assert crc32c(memoryview(b"123456789")) == 0xE3069283


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128, 511, 4099, 70001])
def test_the_checksum_of_any_size_is_that_of_a_plain_loop(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    assert crc32c(memoryview(data)) == plainly(data)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    random = np.random.default_rng(0)
    arrays = {f"encoder/layer_{i}/kernel": random.normal(size=(i + 1, 7)).astype(np.float32) for i in range(200)}
    arrays |= {"bytes": np.arange(-5, 5, dtype=np.int8), "number": np.array(3, np.int64), "\xe4": np.zeros((0, 4))}
    prefix = tmp_path_factory.mktemp("stored") / "variables" / "variables"
    write_bundle(prefix, {name: Weight.of(array) for name, array in arrays.items()})
    return prefix, arrays


def test_our_reader_reads_it(stored):
    prefix, arrays = stored
    bundle = Bundle(prefix)
    assert set(bundle) == set(arrays)
    assert all(np.array_equal(bundle[name].read(), array) for name, array in arrays.items())


def test_tensorflow_reads_it(stored):
    tf = pytest.importorskip("tensorflow")
    prefix, arrays = stored
    reader = tf.train.load_checkpoint(str(prefix))
    for name, array in arrays.items():
        got = reader.get_tensor(name)
        assert got.dtype == array.dtype
        assert np.array_equal(got, array)
