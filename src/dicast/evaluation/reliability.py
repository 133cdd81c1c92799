"""How far probabilities can be trusted: proper scores, calibration errors, their noise floor, reliability tables.

Knows arrays only. Shapes: ``[n]`` per question; `confidence` is the probability of the answer that was given (top-label
calibration; for a noul `binary_reliability` on p(true) says more), `correct` is 0 or 1, `weights` are as in `metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dicast.evaluation.metrics import Floats, Ints, Values, mean

LOG_LOSS_FLOOR = 1e-6
"""Probabilities below this count as this in the log loss, so that a server that rounds to 0 is not infinitely wrong."""
BINS = 15


@dataclass(frozen=True, slots=True)
class Bin:
    """One bin of a reliability diagram.

    Attributes:
        low: smallest confidence seen in the bin.
        high: largest.
        n: questions (weight).
        confidence: mean confidence.
        accuracy: share of right answers.
    """

    low: float
    high: float
    n: float
    confidence: float
    accuracy: float


def log_loss_of(probabilities: Sequence[float] | Floats, gold: int) -> float:
    """-ln p(gold) of one answer, with p at least `LOG_LOSS_FLOOR`, in nats."""
    return -math.log(max(float(probabilities[gold]), LOG_LOSS_FLOOR))


def brier_of(probabilities: Sequence[float] | Floats, gold: int) -> float:
    """Multi-class Brier score of one answer (Brier 1950): sum over options of (p - [gold])^2, in 0..2.

    For a noul this is twice the binary score (p(true) - y)^2.
    """
    p = np.asarray(probabilities, np.float64)
    return float((p * p).sum() - 2.0 * p[gold] + 1.0)


def soft_brier_of(probabilities: Sequence[float] | Floats, shares: Sequence[float] | Floats) -> float:
    """Squared distance between the answer and the raters' shares."""
    return float(((np.asarray(probabilities, np.float64) - np.asarray(shares, np.float64)) ** 2).sum())


def equal_width_bins(confidence: Values, bins: int = BINS) -> Ints:
    """Bin number of every question: bins of equal width over 0..1, each holding its upper edge (Guo et al. 2017)."""
    c = np.asarray(confidence, np.float64)
    return np.clip(np.ceil(c * bins).astype(np.int64) - 1, 0, bins - 1)


def equal_mass_bins(confidence: Values, bins: int = BINS) -> Ints:
    """Bin number of every question: bins of equal count (Nguyen and O'Connor 2015); equal values share a bin."""
    c = np.asarray(confidence, np.float64)
    if c.size == 0:
        return np.zeros(0, np.int64)
    edges = np.quantile(c, np.arange(1, bins) / bins)
    return np.searchsorted(np.unique(edges), c, side="left").astype(np.int64)


def calibration_error(confidence: Values, correct: Values, bins: Ints, weights: Values | None = None) -> float:
    """Expected calibration error (Naeini et al. 2015): mean over questions of |accuracy - confidence| of their bin.

    Args:
        confidence: probability of the given answer.
        correct: 0 or 1.
        bins: from `equal_width_bins` or `equal_mass_bins`.
        weights: how often each question counts.
    """
    total, gap, _ = _bin_sums(confidence, correct, bins, weights)
    return float(np.abs(gap).sum() / total.sum()) if total.sum() > 0 else math.nan


def debiased_calibration_error(confidence: Values, correct: Values, bins: Ints, weights: Values | None = None) -> float:
    """Root of the debiased squared calibration error (Kumar, Liang and Ma 2019, definition 5.2).

    From each bin's squared gap the variance of its accuracy, a (1 - a) / (n - 1), is taken off; bins of one question
    are left out. Negative totals give 0.
    """
    total, gap, hits = _bin_sums(confidence, correct, bins, weights)
    usable = total > 1
    if not usable.any():
        return math.nan
    n, a = total[usable], hits[usable] / total[usable]
    squared = (gap[usable] / n) ** 2 - a * (1 - a) / (n - 1)
    return math.sqrt(max(float((n * squared).sum() / n.sum()), 0.0))


def noise_floor(confidence: Values, bins: Ints, *, repeats: int = 200, seed: int = 0) -> tuple[float, float]:
    """Calibration error that a perfectly calibrated model with these confidences would show by chance.

    Answers are drawn as right with probability `confidence` (consistency resampling, Bröcker and Smith 2007).

    Returns:
        Mean and 95th percentile over the draws.
    """
    c = np.asarray(confidence, np.float64)
    if c.size == 0:
        return math.nan, math.nan
    random = np.random.default_rng(seed)
    count = int(bins.max()) + 1
    sums = np.bincount(bins, c, count)
    errors = [
        np.abs(np.bincount(bins[random.random(c.size) < c], minlength=count) - sums).sum() / c.size
        for _ in range(repeats)
    ]
    return float(np.mean(errors)), float(np.quantile(errors, 0.95))


def reliability_slope(probability: Values, outcome: Values, weights: Values | None = None) -> tuple[float, float]:
    """Slope and intercept of the logistic regression of outcomes on the logit of their probability (Cox 1958).

    1 and 0 when calibrated; a slope below 1 means that the model is too sure. A ridge of 1e-3 towards slope 1 keeps
    separable data finite.

    Args:
        probability: of the outcome, clipped to 1e-6 from both ends.
        outcome: 0 or 1.
        weights: how often each question counts.
    """
    p = np.clip(np.asarray(probability, np.float64), 1e-6, 1 - 1e-6)
    y = np.asarray(outcome, np.float64)
    if y.size < 2:
        return math.nan, math.nan
    w = np.ones(y.size) if weights is None else np.asarray(weights, np.float64)
    design = np.stack([np.log(p / (1 - p)), np.ones(p.size)], axis=1)
    prior, ridge = np.array([1.0, 0.0]), 1e-3
    theta = prior.copy()
    for _ in range(50):
        fitted = 0.5 * (1.0 + np.tanh(0.5 * (design @ theta)))
        gradient = design.T @ (w * (fitted - y)) + ridge * (theta - prior)
        curvature = (design * (w * fitted * (1 - fitted))[:, None]).T @ design + ridge * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        theta -= np.clip(step, -2.0, 2.0)
        if np.abs(step).max() < 1e-9:
            break
    return float(theta[0]), float(theta[1])


def reliability_table(confidence: Values, correct: Values, bins: Ints, weights: Values | None = None) -> list[Bin]:
    """The non-empty bins of a reliability diagram, lowest confidence first."""
    c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    w = np.ones(c.size) if weights is None else np.asarray(weights, np.float64)
    table = []
    for number in np.unique(bins):
        here = (bins == number) & (w > 0)
        if here.any():
            low, high, n = float(c[here].min()), float(c[here].max()), float(w[here].sum())
            table.append(Bin(low, high, n, mean(c[here], w[here]), mean(y[here], w[here])))
    return table


def _bin_sums(confidence: Values, correct: Values, bins: Ints, weights: Values | None) -> tuple[Floats, Floats, Floats]:
    c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    w = np.ones(c.size) if weights is None else np.asarray(weights, np.float64)
    total, gap, hits = (np.bincount(bins, part).astype(np.float64) for part in (w, w * (y - c), w * y))
    return total, gap, hits
