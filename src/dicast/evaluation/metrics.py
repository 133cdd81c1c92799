"""How right the answers are: pure numpy functions over arrays of answered questions. Knows no records and no models.

Shapes: every function takes one-dimensional arrays ``[n]``, one entry per question unless it says otherwise, and an
optional ``weights [n]`` (how often a question counts), so that a bootstrap only changes the weights. A metric of
nothing is NaN. How well probabilities are calibrated is in `reliability`, answering only when sure in `selective`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Values: TypeAlias = npt.ArrayLike


def mean(values: Values, weights: Values | None = None) -> float:
    """Weighted mean; NaN without any weight."""
    v, w = _pair(values, weights)
    total = float(w.sum())
    return float((v * w).sum()) / total if total > 0 else math.nan


def accuracy(correct: Values, weights: Values | None = None) -> float:
    """Share of right answers. `correct` holds 0 and 1; unanswered questions count as 0 (rule of the Decision Index)."""
    return mean(correct, weights)


def macro_f1(gold: Values, predicted: Values, weights: Values | None = None, *, unanswered: float = 0.0) -> float:
    """Mean F1 over the union of gold and predicted labels, as the Decision Index computes it.

    F1 of a class is 2 TP / (2 TP + FP + FN). The conservative form of the index adds the unanswered questions to every
    class's denominator.

    Args:
        gold: label numbers of the answered questions, whole numbers of at least 0 (see `label_numbers`).
        predicted: label numbers.
        weights: how often each question counts.
        unanswered: number of unanswered questions; 0 gives the plain form.
    """
    g, p = np.asarray(gold, np.int64), np.asarray(predicted, np.int64)
    if g.size == 0:
        return math.nan
    w = np.ones(g.size) if weights is None else np.asarray(weights, np.float64)
    classes = int(max(g.max(), p.max())) + 1
    per_gold = np.bincount(g, w, classes)
    per_predicted = np.bincount(p, w, classes)
    hits = np.bincount(g[g == p], w[g == p], classes)
    present = per_gold + per_predicted > 0
    denominators = (per_gold + per_predicted)[present] + unanswered
    return float((2 * hits[present] / denominators).mean()) if present.any() else math.nan


def label_numbers(labels: Iterable[Hashable], known: dict[Any, int]) -> Ints:
    """Numbers for labels in order of first sight; `known` is extended, so that gold and predicted labels share it."""
    return np.array([known.setdefault(label, len(known)) for label in labels], np.int64)


def case_exact(correct: Values, cases: Values, weights: Values | None = None) -> float:
    """Share of cases whose every question is right.

    Args:
        correct: 0 or 1 per question.
        cases: number of the case that the question belongs to.
        weights: per question; a case takes the weight of its first question.
    """
    c, w = _pair(correct, weights)
    _, first, case = np.unique(np.asarray(cases), return_index=True, return_inverse=True)
    wrong = np.bincount(case, 1.0 - c, first.size)
    return mean(wrong == 0, w[first])


def ndcg(
    relevance: Sequence[float], scores: Sequence[float], ids: Sequence[str] | None = None, *, k: int = 10
) -> float:
    """Normalised discounted cumulative gain at `k` of one query (Järvelin and Kekäläinen 2002), gain = relevance.

    Args:
        relevance: of every candidate, 0 or more.
        scores: the ranking score of every candidate, e.g. p(yes).
        ids: candidates with equal scores are ranked by id (Decision Index); by position without ids.
        k: depth.

    Returns:
        NaN for a query without a relevant candidate.
    """
    names = list(ids) if ids is not None else [f"{index:09d}" for index in range(len(scores))]
    ranked = sorted(range(len(scores)), key=lambda index: (-scores[index], names[index]))
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    gains = np.array([relevance[index] for index in ranked[:k]], np.float64)
    best = np.sort(np.asarray(relevance, np.float64))[::-1][:k]
    ideal = float((best * discounts[: best.size]).sum())
    return float((gains * discounts[: gains.size]).sum()) / ideal if ideal > 0 else math.nan


def skill(raw: float, chance: float) -> float:
    """Chance-corrected skill of the Decision Index: (raw - chance) / (1 - chance), clipped to 0..1."""
    return min(max((raw - chance) / (1.0 - chance), 0.0), 1.0)


def auroc(positive: Values, score: Values, weights: Values | None = None) -> float:
    """Area under the ROC curve: chance that a positive outranks a negative, ties counting half (Mann, Whitney 1947).

    Returns:
        NaN unless both classes are present.
    """
    y, w = _pair(positive, weights)
    _, level = np.unique(np.asarray(score), return_inverse=True)
    positives = np.bincount(level, w * y)
    negatives = np.bincount(level, w * (1 - y))
    below = np.cumsum(negatives) - negatives
    pairs = positives.sum() * negatives.sum()
    return float((positives * (below + 0.5 * negatives)).sum() / pairs) if pairs > 0 else math.nan


def mean_absolute_error(gold: Values, expected: Values, weights: Values | None = None) -> float:
    """Mean distance between the gold level and the expected level, in levels."""
    return mean(np.abs(np.asarray(gold, np.float64) - np.asarray(expected, np.float64)), weights)


def ranked_probability_score(probabilities: Sequence[float], gold: int) -> float:
    """Ranked probability score of one answer (Epstein 1969), divided by levels - 1 so that it lies in 0..1.

    Args:
        probabilities: one per level, lowest first.
        gold: the right level.
    """
    cumulative = np.cumsum(np.asarray(probabilities, np.float64))[:-1]
    target = np.arange(cumulative.size) >= gold
    return float(((cumulative - target) ** 2).mean()) if cumulative.size else 0.0


def quadratic_kappa(gold: Values, predicted: Values, weights: Values | None = None) -> float:
    """Cohen's kappa with quadratic weights (Cohen 1968): 1 - E[(g - p)^2] / E[(g - p)^2 if g and p were independent].

    Returns:
        NaN when both are constant and equal, where kappa is not defined.
    """
    g, w = _pair(gold, weights)
    p = np.asarray(predicted, np.float64)
    observed = mean((g - p) ** 2, w)
    by_chance = mean(g * g, w) - 2 * mean(g, w) * mean(p, w) + mean(p * p, w)
    return 1.0 - observed / by_chance if by_chance > 1e-12 else math.nan


def spearman(gold: Values, expected: Values, weights: Values | None = None) -> float:
    """Spearman's rank correlation, ties with their mean rank; NaN when either side is constant."""
    g, w = _pair(gold, weights)
    a, b = _ranks(g, w), _ranks(np.asarray(expected, np.float64), w)
    a, b = a - mean(a, w), b - mean(b, w)
    scale = math.sqrt(mean(a * a, w) * mean(b * b, w))
    return mean(a * b, w) / scale if scale > 1e-12 else math.nan


def _ranks(values: Floats, weights: Floats) -> Floats:
    _, level = np.unique(values, return_inverse=True)
    counts = np.bincount(level, weights)
    middle = np.cumsum(counts) - counts + (counts + 1) / 2
    return np.asarray(middle[level], np.float64)


def _pair(values: Values, weights: Values | None) -> tuple[Floats, Floats]:
    v = np.asarray(values, np.float64)
    return v, np.ones(v.shape) if weights is None else np.asarray(weights, np.float64)
