"""How far one form of a model is from another: decisions that flip and probabilities that move. No torch, no files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dicast.records import Decision


@dataclass(frozen=True, slots=True)
class Drift:
    """How far answers are from those of a reference.

    Attributes:
        questions: answers that were compared.
        flips: answers whose most probable option is another one.
        clear_flips: flips where the reference was clear: its first option led by at least 0.05.
        mean: mean absolute difference of a probability.
        largest: largest absolute difference of a probability.
        divergence: mean Kullback-Leibler divergence from the reference's distribution, in nats.
    """

    questions: int
    flips: int
    clear_flips: int
    mean: float
    largest: float
    divergence: float


CLEAR_MARGIN = 0.05
"""Lead of the first option from which on a flip counts as clear: below it, rounding alone may turn a decision."""
_LEAST = 1e-12


def drift(reference: Iterable[Decision[Any]], other: Iterable[Decision[Any]]) -> Drift:
    """Compare decisions about the same records.

    Args:
        reference: decisions of the form that counts as exact.
        other: decisions of the form in question, in the same order.

    Raises:
        ValueError: nothing to compare, or the decisions do not belong together.
    """
    pairs = [
        (list(a.probabilities.values()), list(b.probabilities.values()))
        for expected, got in zip(reference, other, strict=True)
        for a, b in zip(expected.answers.values(), got.answers.values(), strict=True)
    ]
    if not pairs:
        raise ValueError("there are no decisions to compare")
    differences = [abs(p - q) for expected, got in pairs for p, q in zip(expected, got, strict=True)]
    flipped = [expected for expected, got in pairs if expected.index(max(expected)) != got.index(max(got))]
    return Drift(
        questions=len(pairs),
        flips=len(flipped),
        clear_flips=sum(_margin(expected) >= CLEAR_MARGIN for expected in flipped),
        mean=sum(differences) / len(differences),
        largest=max(differences),
        divergence=sum(_divergence(*pair) for pair in pairs) / len(pairs),
    )


def _margin(probabilities: list[float]) -> float:
    first, second = sorted([*probabilities, 0.0])[-1:-3:-1]
    return first - second


def _divergence(expected: list[float], got: list[float]) -> float:
    return sum(p * math.log(p / max(q, _LEAST)) for p, q in zip(expected, got, strict=True) if p > 0)
