"""Metrics against scikit-learn and SciPy where they have them, and against hand-made cases where they do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import cohen_kappa_score, f1_score, ndcg_score, roc_auc_score

from dicast.evaluation import metrics

random = np.random.default_rng(7)
GOLD = random.integers(0, 5, 300)
PREDICTED = np.where(random.random(300) < 0.6, GOLD, random.integers(0, 6, 300))
COUNTS = random.integers(0, 4, 300).astype(float)
"""How often each question counts; the same as repeating it."""
EXPECTED = np.round(PREDICTED + random.normal(0, 0.7, 300), 1)
REPEATED = np.repeat(np.arange(300), COUNTS.astype(int))


def test_macro_f1_is_scikit_learns() -> None:
    assert metrics.macro_f1(GOLD, PREDICTED) == pytest.approx(f1_score(GOLD, PREDICTED, average="macro"))


def test_macro_f1_counts_labels_that_were_only_predicted() -> None:
    assert metrics.macro_f1([0, 0], [0, 1]) == pytest.approx((2 / 3 + 0) / 2)


def test_conservative_macro_f1_adds_the_unanswered_to_every_class() -> None:
    assert metrics.macro_f1([0, 1], [0, 1], unanswered=2) == pytest.approx(0.5)


def test_labels_share_one_numbering() -> None:
    known: dict[str, int] = {}
    assert metrics.label_numbers(["b", "a"], known).tolist() == [0, 1]
    assert metrics.label_numbers(["a", "c"], known).tolist() == [1, 2]


def test_a_case_counts_only_when_every_question_is_right() -> None:
    assert metrics.case_exact([1, 1, 1, 0, 1], [0, 0, 1, 1, 2]) == pytest.approx(2 / 3)


def test_ndcg_is_scikit_learns_for_binary_relevance() -> None:
    relevance, scores = random.integers(0, 2, 30), random.random(30)
    ours = metrics.ndcg(relevance.tolist(), scores.tolist())
    assert ours == pytest.approx(ndcg_score([relevance], [scores], k=10))
    assert math.isnan(metrics.ndcg([0, 0], [0.1, 0.2]))


def test_ndcg_breaks_ties_by_document_id() -> None:
    assert metrics.ndcg([0, 1], [0.5, 0.5], ["b", "a"]) == 1.0
    assert metrics.ndcg([0, 1], [0.5, 0.5], ["a", "b"]) == pytest.approx(1 / math.log2(3))


def test_skill_is_zero_at_chance_and_clipped() -> None:
    assert metrics.skill(0.2592, 0.2592) == 0.0
    assert metrics.skill(0.1, 0.25) == 0.0
    assert metrics.skill(0.625, 0.25) == pytest.approx(0.5)
    assert metrics.skill(1.0, 0.25) == 1.0


def test_auroc_is_scikit_learns_also_with_ties_and_weights() -> None:
    positive, score = GOLD > 2, np.round(EXPECTED)
    assert metrics.auroc(positive, score) == pytest.approx(roc_auc_score(positive, score))
    weighted = roc_auc_score(positive, score, sample_weight=COUNTS)
    assert metrics.auroc(positive, score, COUNTS) == pytest.approx(weighted)
    assert math.isnan(metrics.auroc([1, 1], [0.2, 0.3]))


def test_quadratic_kappa_is_scikit_learns() -> None:
    theirs = cohen_kappa_score(GOLD, PREDICTED, weights="quadratic")
    assert metrics.quadratic_kappa(GOLD, PREDICTED) == pytest.approx(theirs)
    assert math.isnan(metrics.quadratic_kappa([1, 1], [1, 1]))


def test_spearman_is_scipys() -> None:
    assert metrics.spearman(GOLD, EXPECTED) == pytest.approx(spearmanr(GOLD, EXPECTED).statistic)
    assert math.isnan(metrics.spearman([1, 1], [1, 2]))


def test_ranked_probability_score_counts_distance() -> None:
    assert metrics.ranked_probability_score([1.0, 0.0, 0.0], 0) == 0.0
    assert metrics.ranked_probability_score([1.0, 0.0, 0.0], 1) == 0.5
    assert metrics.ranked_probability_score([1.0, 0.0, 0.0], 2) == 1.0


@pytest.mark.parametrize(
    "measure",
    [
        lambda i, w: metrics.macro_f1(GOLD[i], PREDICTED[i], w),
        lambda i, w: metrics.auroc(GOLD[i] > 2, EXPECTED[i], w),
        lambda i, w: metrics.quadratic_kappa(GOLD[i], PREDICTED[i], w),
        lambda i, w: metrics.spearman(GOLD[i], EXPECTED[i], w),
        lambda i, w: metrics.mean_absolute_error(GOLD[i], EXPECTED[i], w),
    ],
    ids=["macro_f1", "auroc", "quadratic_kappa", "spearman", "mean_absolute_error"],
)
def test_weights_are_repetitions(measure: object) -> None:
    everything = np.arange(300)
    assert measure(everything, COUNTS) == pytest.approx(measure(REPEATED, None))  # type: ignore[operator]


def test_a_metric_of_nothing_is_nan() -> None:
    assert math.isnan(metrics.accuracy([]))
    assert math.isnan(metrics.macro_f1([], []))
