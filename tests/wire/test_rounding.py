"""Shown probabilities sum to 1 and keep their order."""

import random
from itertools import pairwise

import pytest

from dicast.wire.rounding import shown_number, shown_probabilities


@pytest.mark.parametrize("digits", [2, 4, 6])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 255])
def test_the_shown_sum_is_one_and_the_order_is_kept(count: int, digits: int) -> None:
    random.seed(count * digits)
    for _ in range(50):
        raw = [random.random() ** random.choice([1, 4, 16]) for _ in range(count)]
        exact = [value / sum(raw) for value in raw]
        shown = shown_probabilities(exact, digits)
        unit = 10**digits
        assert sum(round(p * unit) for p in shown) == unit
        assert all(abs(p - q) < 1 / unit for p, q in zip(shown, exact, strict=True))
        pairs = sorted(zip(exact, shown, strict=True))
        assert all(low[1] <= high[1] for low, high in pairwise(pairs))


def test_equals_give_the_spare_unit_to_the_first() -> None:
    assert shown_probabilities([1 / 3, 1 / 3, 1 / 3], 2) == [0.34, 0.33, 0.33]


def test_none_shows_everything() -> None:
    assert shown_probabilities([0.123456789, 0.876543211], None) == [0.123456789, 0.876543211]


def test_numbers_are_cut_to_their_range_and_stay_floats() -> None:
    assert repr(shown_number(1, 4)) == "1.0"
    assert shown_number(1.0000000002, None) == 1.0
    assert shown_number(2.34567, 2, high=9.0) == 2.35
    assert shown_number(-1e-17, 4) == 0.0
