"""Numbers as they are shown: probabilities that still sum to 1 after rounding. Plain arithmetic, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

MAX_DIGITS = 12
"""Most decimals that rounding may be asked for; more than float64 can hold is noise."""


def shown_probabilities(probabilities: Sequence[float], digits: int | None) -> list[float]:
    """Round by the largest remainder, so that the shown values sum to exactly 1 in units of the last decimal.

    The order is kept: a more probable option never shows a smaller value, and the first of equals gets the spare unit.

    Args:
        probabilities: ``[n]``, summing to 1 up to float error.
        digits: decimals; None leaves the values as they are.
    """
    if digits is None:
        return [float(p) for p in probabilities]
    whole = 10**digits
    total = sum(probabilities)
    exact = [p / total * whole for p in probabilities]
    units = [int(value) for value in exact]
    spare = whole - sum(units)
    by_remainder = sorted(range(len(exact)), key=lambda index: units[index] - exact[index])
    for index in by_remainder[:spare]:
        units[index] += 1
    return [unit / whole for unit in units]


def shown_number(value: float, digits: int | None, *, low: float = 0.0, high: float = 1.0) -> float:
    """A number cut to its range and rounded; always a float, so that JSON shows 1.0 and not 1."""
    cut = min(max(float(value), low), high)
    return cut if digits is None else round(cut, digits)
