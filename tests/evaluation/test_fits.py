"""The fits recover what was put into synthetic data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from dicast.evaluation.fits import fit_isotonic, fit_temperature, fit_vector, log_softmax

random = np.random.default_rng(5)


def answers(logits: np.ndarray) -> np.ndarray:
    """One-hot outcomes drawn from the softmax of the logits."""
    p = np.exp(log_softmax(logits))
    chosen = (p.cumsum(1) > random.random((len(p), 1))).argmax(1)
    return np.eye(p.shape[1])[chosen]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_temperature_is_recovered_over_option_counts(temperature: float) -> None:
    true = [random.normal(0, 2, (1500, count)) for count in (2, 5)]
    groups = [(logits * temperature, answers(logits)) for logits in true]
    assert fit_temperature(groups) == pytest.approx(temperature, rel=0.08)


def test_little_data_stays_near_one() -> None:
    logits = np.array([[4.0, 0.0], [4.0, 0.0]])
    assert 0.7 < fit_temperature([(logits, np.array([[1.0, 0.0], [1.0, 0.0]]))]) < 1.0


def test_temperature_has_bounds() -> None:
    wrong = np.tile([[30.0, 0.0]], (500, 1))
    assert fit_temperature([(wrong, np.tile([[0.0, 1.0]], (500, 1)))]) == pytest.approx(5.0, rel=1e-3)


def test_vector_is_the_optimum_of_its_cost() -> None:
    true = random.normal(0, 1.5, (800, 3))
    target = answers(true)
    given = true * [2.0, 1.0, 0.5] + [0.5, 0.0, -0.5]
    scale, bias = fit_vector(given, target)
    z = given - given.mean(1, keepdims=True)

    def cost(theta: np.ndarray) -> float:
        loss = -(target * log_softmax(z * theta[:3] + theta[3:])).sum()
        return float(loss + 0.5 * ((theta[:3] - 1) ** 2).sum() + 0.5 * (theta[3:] ** 2).sum())

    best = minimize(cost, np.array([1.0, 1, 1, 0, 0, 0]), method="BFGS")
    assert [*scale, *bias] == pytest.approx(best.x.tolist(), abs=2e-3)


def test_isotonic_recovers_a_bent_curve_and_is_monotone() -> None:
    p = random.random(6000)
    x, y = fit_isotonic(p, (random.random(6000) < p**2).astype(float))
    assert all(np.diff(x) > 0)
    assert all(np.diff(y) >= 0)
    assert np.interp([0.3, 0.5, 0.8], x, y) == pytest.approx([0.09, 0.25, 0.64], abs=0.05)


def test_isotonic_of_a_falling_curve_is_flat() -> None:
    p = random.random(500)
    x, y = fit_isotonic(p, (random.random(500) > p).astype(float))
    assert len(x) <= 3
    assert y[0] == pytest.approx(0.5, abs=0.1)


def test_isotonic_pools_equal_probabilities() -> None:
    assert fit_isotonic(np.full(60, 0.4), np.repeat([1.0, 0.0], 30)) == ((pytest.approx(0.4),), (pytest.approx(0.5),))
