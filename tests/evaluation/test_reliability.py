"""Proper scores and calibration errors: known cases, scikit-learn, and the behaviour that gives them their names."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss

from dicast.evaluation import reliability
from dicast.evaluation.reliability import equal_mass_bins, equal_width_bins

random = np.random.default_rng(3)
CONFIDENCE = random.beta(4, 2, 4000)
CALIBRATED = (random.random(4000) < CONFIDENCE).astype(float)
OVERCONFIDENT = (random.random(4000) < CONFIDENCE - 0.15).astype(float)


def test_log_loss_and_brier_are_scikit_learns() -> None:
    p = random.dirichlet([1, 1, 1], 50)
    gold = random.integers(0, 3, 50)
    ours = np.mean([reliability.log_loss_of(row, g) for row, g in zip(p, gold, strict=True)])
    assert ours == pytest.approx(log_loss(gold, p, labels=[0, 1, 2]))
    binary = np.stack([1 - CONFIDENCE[:50], CONFIDENCE[:50]], 1)
    brier = np.mean([reliability.brier_of(row, int(g)) for row, g in zip(binary, CALIBRATED[:50], strict=True)])
    assert brier == pytest.approx(2 * brier_score_loss(CALIBRATED[:50], CONFIDENCE[:50]))


def test_log_loss_of_a_rounded_zero_is_finite() -> None:
    assert reliability.log_loss_of([0.0, 1.0], 0) == pytest.approx(-math.log(1e-6))


def test_soft_brier_is_zero_when_the_shares_are_met() -> None:
    assert reliability.soft_brier_of([0.7, 0.3], [0.7, 0.3]) == 0.0
    assert reliability.soft_brier_of([1.0, 0.0], [0.0, 1.0]) == 2.0


def test_equal_width_bins_hold_their_upper_edge() -> None:
    assert equal_width_bins([0.0, 0.05, 0.1, 0.11, 1.0], 10).tolist() == [0, 0, 0, 1, 9]


def test_equal_mass_bins_are_even_and_keep_ties_together() -> None:
    counts = np.bincount(equal_mass_bins(CONFIDENCE, 10))
    assert counts.tolist() == [400] * 10
    assert len(set(equal_mass_bins([0.5] * 90 + [0.9] * 10, 10)[:90].tolist())) == 1


def test_calibration_error_of_a_hand_made_case() -> None:
    confidence, correct = [0.9, 0.9, 0.6, 0.6], [1, 0, 1, 1]
    error = reliability.calibration_error(confidence, correct, equal_width_bins(confidence, 10))
    assert error == pytest.approx(0.5 * 0.4 + 0.5 * 0.4)


@pytest.mark.parametrize("bins", [equal_width_bins(CONFIDENCE), equal_mass_bins(CONFIDENCE)])
def test_a_calibrated_model_stays_within_the_noise_floor(bins: np.ndarray) -> None:
    middle, high = reliability.noise_floor(CONFIDENCE, bins)
    assert 0.0 < middle < high < 0.03
    assert reliability.calibration_error(CONFIDENCE, CALIBRATED, bins) < high
    assert reliability.calibration_error(CONFIDENCE, OVERCONFIDENT, bins) > 0.13


def test_debiasing_takes_the_noise_out() -> None:
    few = slice(0, 300)
    bins = equal_mass_bins(CONFIDENCE[few])
    plain = reliability.calibration_error(CONFIDENCE[few], CALIBRATED[few], bins)
    assert reliability.debiased_calibration_error(CONFIDENCE[few], CALIBRATED[few], bins) < plain
    bins = equal_mass_bins(CONFIDENCE)
    debiased = reliability.debiased_calibration_error(CONFIDENCE, OVERCONFIDENT, bins)
    assert debiased == pytest.approx(0.15, abs=0.03)


def test_slope_is_that_of_an_unpenalised_logistic_regression() -> None:
    logit = np.log(CONFIDENCE / (1 - CONFIDENCE))
    theirs = LogisticRegression(C=np.inf, tol=1e-9).fit(logit[:, None], OVERCONFIDENT)
    slope, intercept = reliability.reliability_slope(CONFIDENCE, OVERCONFIDENT)
    assert slope == pytest.approx(theirs.coef_[0, 0], abs=1e-3)
    assert intercept == pytest.approx(theirs.intercept_[0], abs=1e-3)


def test_slope_is_one_when_calibrated_and_finite_when_separable() -> None:
    slope, intercept = reliability.reliability_slope(CONFIDENCE, CALIBRATED)
    assert slope == pytest.approx(1.0, abs=0.1)
    assert intercept == pytest.approx(0.0, abs=0.1)
    assert math.isfinite(reliability.reliability_slope([0.4, 0.6], [0, 1])[0])


def test_table_lists_the_bins_that_are_not_empty() -> None:
    table = reliability.reliability_table([0.9, 0.8, 0.3], [1, 0, 1], equal_width_bins([0.9, 0.8, 0.3], 2))
    assert [(row.low, row.high, row.n, row.accuracy) for row in table] == [(0.3, 0.3, 1, 1.0), (0.8, 0.9, 2, 0.5)]
    assert table[1].confidence == pytest.approx(0.85)


def test_weights_are_repetitions() -> None:
    counts = random.integers(0, 3, 4000).astype(float)
    again = np.repeat(np.arange(4000), counts.astype(int))
    bins = equal_width_bins(CONFIDENCE)
    for measure in (reliability.calibration_error, reliability.debiased_calibration_error):
        weighted = measure(CONFIDENCE, CALIBRATED, bins, counts)
        assert weighted == pytest.approx(measure(CONFIDENCE[again], CALIBRATED[again], bins[again]))
