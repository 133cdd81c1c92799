"""Thresholds and prediction sets that keep a stated promise on new questions of the same kind. Arrays only.

The promises hold when calibration questions and new ones are exchangeable and independent, so give one question per
family, and confidences of a model (and a calibration) that was not fitted on them. They say nothing once the questions
drift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dicast.calibration import SetScore, conformal_scores
from dicast.evaluation.bootstrap import binomial_cdf
from dicast.evaluation.metrics import Floats, Values

LEVELS = 16
"""Coverages that are tried; the failure probability is shared among them."""


@dataclass(frozen=True, slots=True)
class Selective:
    """A threshold and what it did on the calibration questions.

    Attributes:
        threshold: accept when the confidence is at least this; None when no threshold keeps the promise.
        coverage: share of the calibration questions accepted.
        error: error rate among them.
        bound: upper confidence bound of the error rate; at most the target.
        n: calibration questions.
    """

    threshold: float | None
    coverage: float
    error: float
    bound: float
    n: int


def selective_threshold(
    confidence: Values, correct: Values, target_error: float, *, delta: float = 0.05, levels: int = LEVELS
) -> Selective:
    """The lowest tried threshold that keeps the error rate among accepted questions at the target, or below.

    Tries to accept everything above the k-th largest confidence, for a few k fixed before looking. Given that order
    statistic, the questions above it are an independent sample of the accepted ones, so their errors are binomial and
    the Clopper-Pearson bound (1934) at level delta / levels holds; Bonferroni over the levels pays for choosing among
    them, as in selective risk control (Geifman and El-Yaniv 2017).

    Args:
        confidence: ``[n]`` of the given answers.
        correct: ``[n]``, 0 or 1.
        target_error: promised error rate among accepted questions.
        delta: probability that the promise fails, over the draw of the calibration questions.
        levels: how many coverages to try.
    """
    c, wrong = np.asarray(confidence, np.float64), 1.0 - np.asarray(correct, np.float64)
    best = Selective(None, 0.0, math.nan, math.nan, int(c.size))
    found: tuple[int, int] | None = None
    ordered = np.sort(c)[::-1]
    for accepted in _counts(int(c.size), target_error, delta / levels, levels):
        cut = -math.inf if accepted == c.size else float(ordered[accepted])
        above = c > cut
        n, errors = int(above.sum()), int(wrong[above].sum())
        if n == 0 or binomial_cdf(errors, n, target_error) > delta / levels:
            continue
        threshold = 0.0 if accepted == c.size else math.nextafter(cut, math.inf)
        best, found = Selective(threshold, n / c.size, errors / n, math.nan, int(c.size)), (errors, n)
    return replace(best, bound=clopper_pearson_upper(*found, delta / levels)) if found else best


def clopper_pearson_upper(errors: int, n: int, delta: float) -> float:
    """Upper confidence bound of a rate (Clopper and Pearson 1934): the p at which P(X <= errors) = delta."""
    if n == 0 or errors >= n:
        return 1.0
    low, high = errors / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_cdf(errors, n, middle) > delta else (low, middle)
    return high


def conformal_quantile(true_scores: Values, alpha: float) -> float:
    """The split-conformal quantile (Vovk et al. 2005): the ceil((n + 1)(1 - alpha))-th smallest score.

    Args:
        true_scores: non-conformity of the right option of every calibration question, ``[n]``, in 0..1.
        alpha: promised miss rate.

    Returns:
        1, which keeps every option, when there are too few questions.
    """
    scores = np.sort(np.asarray(true_scores, np.float64))
    rank = math.ceil((scores.size + 1) * (1.0 - alpha))
    return float(min(scores[rank - 1], 1.0)) if rank <= scores.size else 1.0


def true_score(score: SetScore, probabilities: Floats, gold: int) -> float:
    """Non-conformity of the right option, ranked as `Calibration.prediction_set` ranks."""
    order = np.argsort(-probabilities, kind="stable")
    ranked = conformal_scores(score, probabilities[order].tolist())
    return ranked[int(np.flatnonzero(order == gold)[0])]


def _counts(n: int, target_error: float, delta: float, levels: int) -> list[int]:
    """Geometric counts of accepted questions, from the fewest that could pass without an error up to all."""
    if not 0.0 < target_error < 1.0 or not 0.0 < delta < 1.0:
        return []
    fewest = math.ceil(math.log(delta) / math.log1p(-target_error))
    if fewest > n:
        return []
    return sorted({round(float(value)) for value in np.geomspace(fewest, n, levels)})
