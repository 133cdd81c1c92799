"""Answering only when sure: risk against coverage. Arrays only; guarantees are in `abstention`.

Shapes: ``[n]`` per question; `confidence` orders the questions, `correct` is 0 or 1, `weights` are as in `metrics`.
"""

from __future__ import annotations

import math

import numpy as np

from dicast.evaluation.metrics import Floats, Values


def risk_coverage(confidence: Values, correct: Values, weights: Values | None = None) -> tuple[Floats, Floats, Floats]:
    """The risk-coverage curve (El-Yaniv and Wiener 2010).

    Questions of equal confidence are accepted together, since no threshold can part them.

    Returns:
        Coverage, error rate among the accepted, and threshold, one entry per distinct confidence, surest first.
    """
    c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
    w = np.ones(c.size) if weights is None else np.asarray(weights, np.float64)
    levels, group = np.unique(-c, return_inverse=True)
    accepted = np.cumsum(np.bincount(group, w, levels.size))
    errors = np.cumsum(np.bincount(group, w * (1 - y), levels.size))
    seen = accepted > 0
    total = accepted[-1] if accepted.size else 0.0
    return accepted[seen] / total, errors[seen] / accepted[seen], -levels[seen]


def aurc(confidence: Values, correct: Values, weights: Values | None = None) -> float:
    """Area under the risk-coverage curve: mean risk over all coverages (Geifman and El-Yaniv 2018); lower is better.

    Every question adds the risk of the threshold that just accepts it, so ties need no order.
    """
    coverage, risk, _ = risk_coverage(confidence, correct, weights)
    return float((np.diff(coverage, prepend=0.0) * risk).sum()) if coverage.size else math.nan


def coverage_at(confidence: Values, correct: Values, target_error: float, weights: Values | None = None) -> float:
    """Largest coverage whose observed error rate is at most the target; 0 when there is none.

    An observed rate on these questions, not a promise: see `abstention.selective_threshold` for one.
    """
    coverage, risk, _ = risk_coverage(confidence, correct, weights)
    if not coverage.size:
        return math.nan
    fits = coverage[risk <= target_error]
    return float(fits.max()) if fits.size else 0.0
