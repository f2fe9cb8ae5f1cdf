"""Numbers that look drawn: every place once, even, and the same in every process."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency

from weft.data import chance
from weft.data.chance import BLOCK, below, key_of, shuffled, shuffled_run, uniform


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


@pytest.mark.parametrize("total", [1, 5, BLOCK, BLOCK + 1, 3 * BLOCK + 7, 1 << 40])
def test_a_run_of_numbers_is_shuffled_as_each_alone(total: int) -> None:
    for first in {0, total // 2, max(0, total - 40), max(0, min(total, BLOCK) - 20)}:
        numbers = np.arange(first, min(total, first + 40))
        for key in (3, 4):
            assert (shuffled_run(key, numbers, total) == shuffled(key, numbers, total)).all()
    assert not len(shuffled_run(3, np.arange(0), total))


def looks_drawn(total: int) -> bool:
    """Whether neither the block that a number is in nor its place there tells where a shuffle puts it.

    Chi-square by its degrees of freedom is 1 for chance. Far below is not chance either: two rounds of the network
    spread the numbers that have one place in their blocks exactly evenly.
    """
    numbers = np.arange(total)
    side = 1 << ((total - 1).bit_length() + 1) // 2
    excess = np.zeros((8, 2))
    for key in range(8):
        places = shuffled(key_of("mix", key), numbers, total)
        for column, known in enumerate((numbers, numbers % side)):
            test = chi2_contingency(np.histogram2d(known, places, bins=16)[0], correction=False)
            excess[key, column] = test.statistic / test.dof
    return bool((np.abs(excess.mean(0) - 1) < 0.25).all())


@pytest.mark.parametrize("total", [1024, 4096, 5000, 16384, 20_000])
def test_a_shuffle_mixes(total: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all its rounds; one or two would not do."""
    assert looks_drawn(total)
    for rounds in (1, 2):
        monkeypatch.setattr(chance, "range", lambda _, rounds=rounds: range(rounds), raising=False)
        assert not looks_drawn(total), rounds


def test_uniform_is_even() -> None:
    counts = np.bincount(below(key_of("even"), np.arange(200_000), 50), minlength=50)
    statistic = ((counts - 4000) ** 2 / 4000).sum()
    assert chi2.sf(statistic, 49) > 1e-4
    numbers = uniform(key_of("unit"), np.arange(1000))
    assert numbers.min() >= 0 and numbers.max() < 1


def test_keys_tell_their_parts_apart() -> None:
    assert len({key_of(1, 2), key_of(12), key_of("1", 2), key_of(1, "2"), key_of(2, 1)}) == 5
