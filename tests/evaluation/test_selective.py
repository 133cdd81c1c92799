"""Risk-coverage curves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dicast.evaluation import selective


def test_curve_of_a_hand_made_case() -> None:
    coverage, risk, threshold = selective.risk_coverage([0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0])
    assert coverage.tolist() == [0.25, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([0.0, 1 / 3, 0.5])
    assert threshold.tolist() == [0.9, 0.8, 0.1]


def test_aurc_without_ties_is_the_mean_of_the_prefix_risks() -> None:
    random = np.random.default_rng(1)
    confidence, correct = random.random(200), random.integers(0, 2, 200)
    ordered = 1 - correct[np.argsort(-confidence)]
    prefix = np.cumsum(ordered) / np.arange(1, 201)
    assert selective.aurc(confidence, correct) == pytest.approx(prefix.mean())


def test_a_better_order_has_a_smaller_area() -> None:
    correct = [1, 1, 1, 0]
    assert selective.aurc([0.9, 0.8, 0.7, 0.6], correct) < selective.aurc([0.6, 0.7, 0.8, 0.9], correct)


def test_coverage_at_a_target_error() -> None:
    confidence, correct = [0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1]
    assert selective.coverage_at(confidence, correct, 0.25) == 1.0
    assert selective.coverage_at(confidence, correct, 0.1) == 0.25
    assert selective.coverage_at(confidence, [0, 1, 1, 1], 0.1) == 0.0
    assert math.isnan(selective.coverage_at([], [], 0.1))


def test_weights_are_repetitions() -> None:
    random = np.random.default_rng(2)
    confidence, correct, counts = np.round(random.random(90), 1), random.integers(0, 2, 90), random.integers(0, 3, 90)
    again = np.repeat(np.arange(90), counts)
    weighted = selective.aurc(confidence, correct, counts)
    assert weighted == pytest.approx(selective.aurc(confidence[again], correct[again]))
