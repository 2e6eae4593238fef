"""Mapped files: what was read of them need not stay in memory."""

import numpy as np
from memory import resident

from fusebert.formats.files import map_file, release


def test_a_mapped_array_gives_its_memory_back_and_can_be_read_again(tmp_path):
    numbers = np.arange(4 << 20, dtype=np.float32)
    numbers.tofile(tmp_path / "numbers")
    mapped = np.memmap(tmp_path / "numbers", np.float32, "r").reshape(1024, -1).T[::2]
    whole = np.frombuffer(map_file(tmp_path / "numbers"), np.float32)
    for array in (mapped, whole):
        array.sum()
        before = resident()
        release(array)
        assert resident() < before - (12 << 20)
    assert (whole == numbers).all()


def test_what_was_written_into_an_array_is_never_given_back(tmp_path):
    np.zeros(4096, np.float32).tofile(tmp_path / "numbers")
    for array in (np.memmap(tmp_path / "numbers", np.float32, "c"), np.zeros(4096, np.float32)):
        array[:] = 1
        release(array)
        assert (array == 1).all()
