"""match/distances.py: what is added to scores by distance is told by its numbers; what only looks like it is not."""

import numpy as np
import pytest

from fusebert.match.distances import ANYWHERE, by_distance

LENGTH, HIDDEN = 401, -10000.0


def far(length: int = LENGTH) -> np.ndarray:
    """Key minus query position."""
    return np.arange(length) - np.arange(length)[:, None]


def added(bias: np.ndarray, heads: int = 3) -> np.ndarray:
    """What every head gets: the bias times its number, so that heads differ."""
    return (np.arange(1, heads + 1)[:, None, None] * bias)[None].astype(np.float32)


def seen(length: int = 9) -> np.ndarray:
    return np.random.default_rng(0).random((2, length)) < 0.7


def masked(bias: np.ndarray, shown: np.ndarray) -> np.ndarray:
    return bias + np.where(shown, 0, HIDDEN)[:, None, None]


def test_a_table_that_ends_in_one_number_is_good_for_any_length():
    shown = seen()
    small = masked(added(np.clip(far(9), -20, 20)), shown)
    found = by_distance(added(np.clip(far(), -20, 20)), [(small, shown)])
    assert found.table.shape == (3, 41)
    assert (found.window, found.longest) == (None, None)
    np.testing.assert_array_equal(found.table[1], 2.0 * np.arange(-20, 21))


def test_numbers_that_grow_with_the_distance_are_continued():
    found = by_distance(added(-0.25 * np.abs(far())), [])
    assert found.longest == 8192
    np.testing.assert_allclose(found.table[2], -0.75 * np.abs(np.arange(-8191, 8192)), rtol=1e-6)


@pytest.mark.parametrize("changes", [np.sqrt(np.abs(far())), np.clip(far(), -200, 200)])
def test_other_numbers_are_known_for_what_was_tried(changes):
    found = by_distance(added(changes), [])
    assert found.longest == LENGTH
    assert found.table.shape == (3, 2 * LENGTH - 1)


def test_a_window_hides_what_is_farther():
    shown = seen(40)
    small = masked(np.where(np.abs(far(40)) <= 7, 0, HIDDEN)[None, None], shown)
    found = by_distance(np.where(np.abs(far()) <= 7, 0, -np.inf)[None, None], [(small, shown)])
    assert (found.table, found.window, found.longest) == (None, 7, None)


def test_one_number_for_all_is_nothing():
    assert by_distance(added(np.ones((LENGTH, LENGTH))), []) is ANYWHERE


CAUSAL = np.where(far() > 0, HIDDEN, 0)[None, None]
LOPSIDED = np.where((far() > 7) | (far() < -8), HIDDEN, 0)[None, None]
BY_QUERY = added(np.abs(far()) + np.arange(LENGTH)[:, None] % 2)
ONE_OFF = added(np.clip(far(), -20, 20))
ONE_OFF[0, 1, 300, 7] += 1


@pytest.mark.parametrize("whole", [CAUSAL, LOPSIDED, BY_QUERY, ONE_OFF])
def test_what_differs_from_query_to_query_is_refused(whole):
    assert by_distance(whole, []) is None


@pytest.mark.parametrize("change", [lambda a: a * 1.01, lambda a: a + np.eye(9), lambda a: np.where(a > 3, HIDDEN, a)])
def test_every_trial_must_agree(change):
    whole, shown = added(np.clip(far(), -20, 20)), np.ones((2, 9), bool)
    small = np.repeat(added(np.clip(far(9), -20, 20)), 2, 0)
    assert by_distance(whole, [(small, shown)]) is not None
    assert by_distance(whole, [(change(small), shown)]) is None


def test_what_a_mask_hides_must_be_hidden_from_every_query():
    whole, shown = added(np.clip(far(), -20, 20)), seen()
    small = masked(added(np.clip(far(9), -20, 20)), shown)
    small[0, 0, 3, ~shown[0]] = 0
    assert by_distance(whole, [(small, shown)]) is None
