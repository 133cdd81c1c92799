"""The promises hold: error of accepted answers, coverage of conformal sets, on data that is drawn again and again."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import beta

from dicast.calibration import Calibration, ConformalQuantile, Provenance
from dicast.evaluation.abstention import clopper_pearson_upper, conformal_quantile, selective_threshold, true_score

PROVENANCE = Provenance((), "0" * 64, 0, "2026-11-30", "test")


def draw(random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident answers: right with probability confidence - 0.1; a tenth of the confidences are tied."""
    confidence = random.beta(5, 1.5, n)
    confidence[random.random(n) < 0.1] = 0.9
    return confidence, (random.random(n) < confidence - 0.1).astype(float)


def true_errors() -> np.ndarray:
    """Error rate among all accepted questions of the same kind for every threshold of GRID, from a large draw."""
    confidence, correct = draw(np.random.default_rng(99), 400_000)
    place = np.searchsorted(GRID, confidence, side="right") - 1
    accepted = np.cumsum(np.bincount(place, minlength=GRID.size)[::-1])[::-1]
    wrong = np.cumsum(np.bincount(place, 1 - correct, GRID.size)[::-1])[::-1]
    return wrong / np.maximum(accepted, 1)


GRID = np.linspace(0, 1, 501)
ERRORS = true_errors()


def true_error(threshold: float) -> float:
    return float(np.interp(threshold, GRID, ERRORS))


def test_clopper_pearson_is_the_beta_quantile() -> None:
    for errors, n in ((0, 20), (3, 50), (40, 1000)):
        assert clopper_pearson_upper(errors, n, 0.05) == pytest.approx(beta.ppf(0.95, errors + 1, n - errors))
    assert clopper_pearson_upper(5, 5, 0.05) == 1.0


def test_the_promised_error_holds_in_more_than_95_of_100_calibrations() -> None:
    """300 calibrations at delta 0.05: the promise may fail 15 times on average; a wrong method fails far more often."""
    random = np.random.default_rng(11)
    found = [selective_threshold(*draw(random, 1000), 0.25, delta=0.05) for _ in range(300)]
    thresholds = [one.threshold for one in found if one.threshold is not None]
    assert sum(true_error(threshold) > 0.25 for threshold in thresholds) <= 15
    assert np.mean([one.coverage for one in found]) > 0.3  # it promises something useful, not just nothing


def test_the_naive_threshold_breaks_the_promise() -> None:
    """The same simulation with the largest observed coverage, to show that the test above can fail."""
    random = np.random.default_rng(11)
    failures = 0
    for _ in range(100):
        confidence, correct = draw(random, 1000)
        order = np.argsort(-confidence)
        risk = np.cumsum(1 - correct[order]) / np.arange(1, 1001)
        failures += true_error(confidence[order][np.flatnonzero(risk <= 0.25).max()]) > 0.25
    assert failures > 20


def test_everything_is_accepted_when_everything_is_good_enough() -> None:
    found = selective_threshold(np.linspace(0.5, 1, 500), np.ones(500), 0.05)
    assert (found.threshold, found.coverage, found.error) == (0.0, 1.0, 0.0)
    assert found.bound < 0.05


def test_too_few_questions_promise_nothing() -> None:
    found = selective_threshold(np.full(60, 0.99), np.ones(60), 0.05)
    assert found.threshold is None
    assert found.coverage == 0.0


def test_ties_are_accepted_or_refused_together() -> None:
    confidence = np.array([0.9] * 300 + [0.5] * 300)
    correct = np.array([1.0] * 300 + [0.0] * 300)
    found = selective_threshold(confidence, correct, 0.05)
    assert found.threshold is not None
    assert 0.5 < found.threshold <= 0.9
    assert found.coverage == 0.5


def test_conformal_quantile_of_a_hand_made_case() -> None:
    scores = np.arange(1, 20) / 20
    assert conformal_quantile(scores, 0.1) == pytest.approx(18 / 20)
    assert conformal_quantile(scores, 0.04) == 1.0


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_sets_hold_the_right_option_as_often_as_promised(score: str) -> None:
    random = np.random.default_rng(4)
    names = tuple("abcdef")
    covered = []
    for _ in range(60):
        p = random.dirichlet(np.full(6, 0.5), 500)
        gold = np.array([random.choice(6, p=np.sqrt(row) / np.sqrt(row).sum()) for row in p])
        scores = [true_score(score, row, int(g)) for row, g in zip(p[:250], gold[:250], strict=True)]  # type: ignore[arg-type]
        quantile = ConformalQuantile("choice", None, 2, None, score, conformal_quantile(scores, 0.1), 0.1, 250)  # type: ignore[arg-type]
        calibration = Calibration(PROVENANCE, conformal=(quantile,))
        sets = [calibration.prediction_set("choice", "q", dict(zip(names, row, strict=True))) for row in p[250:]]
        covered += [names[g] in (chosen or ()) for g, chosen in zip(gold[250:], sets, strict=True)]
    assert 0.89 < np.mean(covered) < (0.93 if score == "lac" else 0.97)


def test_impossible_promises_are_not_made() -> None:
    assert selective_threshold([0.9] * 100, [1.0] * 100, 0.0).threshold is None
    assert math.isnan(selective_threshold([0.9] * 100, [0.0] * 100, 0.1).bound)
