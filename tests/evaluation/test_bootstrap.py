"""Intervals and paired tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from dicast.evaluation.bootstrap import binomial_cdf, bootstrap, mcnemar, paired_difference
from dicast.evaluation.metrics import mean


def test_interval_of_a_mean_is_the_textbooks() -> None:
    values = np.random.default_rng(0).normal(0, 1, 400)
    interval = bootstrap(lambda w: {"mean": mean(values, w)}, np.arange(400))["mean"]
    standard_error = values.std() / 20
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - 1.96 * standard_error, abs=0.02)
    assert interval.high == pytest.approx(values.mean() + 1.96 * standard_error, abs=0.02)


def test_questions_of_one_family_are_drawn_together() -> None:
    values = np.repeat(np.random.default_rng(0).normal(0, 1, 40), 10)
    alone = bootstrap(lambda w: {"mean": mean(values, w)}, np.arange(400))["mean"]
    together = bootstrap(lambda w: {"mean": mean(values, w)}, np.repeat(np.arange(40), 10))["mean"]
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_one_family_gives_no_interval() -> None:
    interval = bootstrap(lambda w: {"mean": 0.5}, [1, 1, 1])["mean"]
    assert interval.value == 0.5
    assert math.isnan(interval.low)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(0).random(50)
    first, second = (bootstrap(lambda w: {"m": mean(values, w)}, np.arange(50), seed=4) for _ in range(2))
    assert first == second


def test_paired_difference_is_tighter_than_the_models_are() -> None:
    random = np.random.default_rng(0)
    hard = random.random(500)
    first = (hard < 0.72).astype(float)
    second = (hard < 0.68).astype(float)
    interval = paired_difference(first, second, np.arange(500))
    assert interval.low > 0.0
    assert interval.high - interval.low < 0.05


def test_mcnemar_is_the_exact_binomial_test() -> None:
    first = np.array([1] * 50 + [1] * 12 + [0] * 4 + [0] * 30)
    second = np.array([1] * 50 + [0] * 12 + [1] * 4 + [0] * 30)
    assert mcnemar(first, second) == (12, 4, pytest.approx(binomtest(4, 16).pvalue))
    assert mcnemar([1, 0], [1, 0]) == (0, 0, 1.0)


@pytest.mark.parametrize(("k", "n", "p"), [(3, 20, 0.1), (19, 20, 0.9), (0, 5, 0.5), (5000, 100000, 0.0512)])
def test_binomial_cdf_is_scipys(k: int, n: int, p: float) -> None:
    assert binomial_cdf(k, n, p) == pytest.approx(binom.cdf(k, n, p), rel=1e-8)


def test_binomial_cdf_at_its_ends() -> None:
    assert binomial_cdf(-1, 5, 0.5) == 0.0
    assert binomial_cdf(5, 5, 0.5) == 1.0
    assert binomial_cdf(0, 5, 0.0) == 1.0
    assert binomial_cdf(4, 5, 1.0) == 0.0
