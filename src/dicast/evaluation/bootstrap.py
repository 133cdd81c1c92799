"""How sure a measured number is: bootstrap intervals over families of questions, and paired comparisons of two models.

Knows arrays only. Questions of one record (or document, or dialogue) are not independent, so whole families are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dicast.evaluation.metrics import Floats, Values

REPEATS = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """A measured value and its confidence interval.

    Attributes:
        value: on all questions.
        low: lower end; NaN when it cannot be said.
        high: upper end.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(
    measure: Callable[[Floats], Mapping[str, float]],
    families: Values,
    *,
    repeats: int = REPEATS,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Percentile intervals (Efron 1979) of everything that `measure` returns, drawing whole families with replacement.

    Args:
        measure: takes the weight of every question ``[n]`` and returns named numbers.
        families: family of every question ``[n]``; questions of one family are drawn together.
        repeats: number of draws.
        level: confidence level.
        seed: of the draws.
    """
    _, family = np.unique(np.asarray(families), return_inverse=True)
    values = measure(np.ones(family.size))
    random = np.random.default_rng(seed)
    count = int(family.max()) + 1 if family.size else 0
    draws: dict[str, list[float]] = {name: [] for name in values}
    for _ in range(repeats if count > 1 else 0):
        weights = np.bincount(random.integers(0, count, count), minlength=count)[family].astype(np.float64)
        for name, value in measure(weights).items():
            if not math.isnan(value):
                draws[name].append(value)
    return {name: _interval(value, draws[name], level) for name, value in values.items()}


def paired_difference(
    first: Values, second: Values, families: Values, *, repeats: int = REPEATS, level: float = 0.95, seed: int = 0
) -> Interval:
    """Interval of mean(first) - mean(second) over the same questions, by paired bootstrap.

    Args:
        first: a number per question of one model, e.g. `correct` or the Brier score.
        second: the same for the other model.
        families: as in `bootstrap`.
        repeats: number of draws.
        level: confidence level.
        seed: of the draws.
    """
    difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)

    def measure(weights: Floats) -> dict[str, float]:
        return {"difference": float((difference * weights).sum() / weights.sum())}

    return bootstrap(measure, families, repeats=repeats, level=level, seed=seed)["difference"]


def mcnemar(first: Values, second: Values) -> tuple[int, int, float]:
    """Exact McNemar test (1947) of whether two models are right equally often on the same questions.

    Args:
        first: 0 or 1 per question.
        second: 0 or 1 per question.

    Returns:
        Questions that only the first got right, that only the second got right, and the two-sided binomial p-value.
        The test takes questions as independent: use one per family.
    """
    a, b = np.asarray(first, bool), np.asarray(second, bool)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    tail = binomial_cdf(min(only_first, only_second), only_first + only_second, 0.5)
    return only_first, only_second, min(1.0, 2.0 * tail)


def binomial_cdf(k: int, n: int, p: float) -> float:
    """P(X <= k) of a binomial, summed in logarithms; exact to rounding for n up to millions."""
    if k >= n or p <= 0.0:
        return 1.0
    if k < 0 or p >= 1.0:
        return 0.0
    counts = np.arange(k + 1, dtype=np.float64)
    ratios = np.log(n - counts[:-1]) - np.log(counts[1:])
    logs = np.concatenate([[0.0], np.cumsum(ratios)]) + counts * math.log(p) + (n - counts) * math.log1p(-p)
    top = float(logs.max())
    return min(1.0, math.exp(top) * float(np.exp(logs - top).sum()))


def _interval(value: float, draws: list[float], level: float) -> Interval:
    if not draws or math.isnan(value):
        return Interval(value, math.nan, math.nan)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high))
