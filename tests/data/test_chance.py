"""Numbers that look drawn: every place once, even, and the same in every process."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from weft.data.chance import below, key_of, shuffled, uniform


@pytest.mark.parametrize("total", [1, 2, 3, 4, 5, 16, 17, 1000, 4097])
def test_a_shuffle_has_every_number_once(total: int) -> None:
    found = shuffled(key_of("order", total), np.arange(total), total)
    assert sorted(found) == list(range(total))


def test_shuffles_differ_by_key_and_stay_by_key() -> None:
    numbers = np.arange(1000)
    first, again, other = (shuffled(key, numbers, 1000) for key in (key_of(1), key_of(1), key_of(2)))
    assert (first == again).all() and (first != other).mean() > 0.9
    # A part of the numbers gives that part of the order: nothing depends on what is asked for together.
    assert (shuffled(key_of(1), numbers[500:510], 1000) == first[500:510]).all()


def test_a_shuffle_mixes() -> None:
    """Neighbours end up anywhere: the rank correlation with the plain order is that of chance."""
    found = shuffled(key_of("mix"), np.arange(100_000), 100_000)
    assert abs(np.corrcoef(np.arange(100_000), found)[0, 1]) < 0.02
    assert np.abs(np.diff(found)).mean() > 20_000


def test_uniform_is_even() -> None:
    counts = np.bincount(below(key_of("even"), np.arange(200_000), 50), minlength=50)
    statistic = ((counts - 4000) ** 2 / 4000).sum()
    assert chi2.sf(statistic, 49) > 1e-4
    numbers = uniform(key_of("unit"), np.arange(1000))
    assert numbers.min() >= 0 and numbers.max() < 1


def test_keys_tell_their_parts_apart() -> None:
    assert len({key_of(1, 2), key_of(12), key_of("1", 2), key_of(1, "2"), key_of(2, 1)}) == 5
