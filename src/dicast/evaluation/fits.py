"""The three fits behind calibration: temperature, vector scaling, isotonic regression. Pure numpy, small and convex.

Shapes: logits and targets ``[n, n_options]``; targets are one-hot or shares that sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dicast.evaluation.metrics import Floats

LOWEST, HIGHEST = 0.2, 5.0
"""Bounds of a fitted temperature."""
PRIOR_WIDTH = 0.5
"""Standard deviation of the Gaussian prior on ln T, centred on 0: the pull towards 1, worth a few questions."""


def log_softmax(logits: Floats) -> Floats:
    """Logarithm of the softmax over the last axis."""
    moved = logits - logits.max(-1, keepdims=True)
    return np.asarray(moved - np.log(np.exp(moved).sum(-1, keepdims=True)), np.float64)


def fit_temperature(groups: Sequence[tuple[Floats, Floats]]) -> float:
    """The temperature with the highest posterior: log loss of all groups plus the prior on ln T (Guo et al. 2017).

    Args:
        groups: (logits, targets) pairs, one per option count.
    """

    def cost(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        losses = (-float((target * log_softmax(logits / temperature)).sum()) for logits, target in groups)
        return sum(losses) + 0.5 * (log_temperature / PRIOR_WIDTH) ** 2

    low, high = math.log(LOWEST), math.log(HIGHEST)
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    cost_left, cost_right = cost(left), cost(right)
    while high - low > 1e-4:  # golden section: the cost has one minimum
        if cost_left < cost_right:
            high, right, cost_right = right, left, cost_left
            left = high - ratio * (high - low)
            cost_left = cost(left)
        else:
            low, left, cost_left = left, right, cost_right
            right = low + ratio * (high - low)
            cost_right = cost(right)
    return math.exp((low + high) / 2)


def fit_vector(logits: Floats, target: Floats, *, ridge: float = 1.0) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Scale and bias per option (Guo et al. 2017) by Newton's method; the cost is convex.

    Args:
        logits: ``[n, K]``; each row's mean is taken off, as `Calibration.apply` does.
        target: ``[n, K]``.
        ridge: pull towards scale 1 and bias 0, in units of one question.

    Returns:
        K scales, kept between 0.2 and 5, and K biases.
    """
    z = logits - logits.mean(-1, keepdims=True)
    k = z.shape[1]
    start = np.concatenate([np.ones(k), np.zeros(k)])
    theta = start.copy()
    for _ in range(50):
        p = np.exp(log_softmax(z * theta[:k] + theta[k:]))
        error = p - target
        gradient = np.concatenate([(error * z).sum(0), error.sum(0)]) + ridge * (theta - start)
        # d2/d(theta_a theta_b) = sum_n f_a f_b (p_a [a = b] - p_a p_b) with f = z for scales and 1 for biases
        features = np.concatenate([z, np.ones_like(z)], axis=1)
        weighted = features * np.concatenate([p, p], axis=1)
        curvature = -weighted.T @ weighted
        same = np.einsum("na,nb,na->ab", features, features, np.concatenate([p, p], axis=1))
        option = np.tile(np.arange(k), 2)
        curvature += np.where(option[:, None] == option[None, :], same, 0.0) + ridge * np.eye(2 * k)
        step = np.linalg.solve(curvature, gradient)
        theta -= np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-8:
            break
    scale, bias = np.clip(theta[:k], LOWEST, HIGHEST), theta[k:]
    return tuple(float(v) for v in scale), tuple(float(v) for v in bias)


def fit_isotonic(p: Floats, y: Floats, *, least: int = 20) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Monotone map from p to the share of y by pooling adjacent violators (Ayer et al. 1955).

    Args:
        p: ``[n]`` in 0..1.
        y: ``[n]``, outcomes or shares.
        least: smallest block; smaller ones are joined to their neighbour, so that the map is not a chain of noise.

    Returns:
        Mean p and smoothed mean y (half a question of each outcome added) of every block, p strictly rising.
    """
    order = np.argsort(p, kind="stable")
    blocks: list[list[float]] = []  # sum of p, sum of y, count
    for x, outcome in zip(p[order].tolist(), y[order].tolist(), strict=True):
        if blocks and (blocks[-1][2] < least or blocks[-1][0] / blocks[-1][2] >= x):
            blocks[-1] = [blocks[-1][0] + x, blocks[-1][1] + outcome, blocks[-1][2] + 1]
        else:
            blocks.append([x, outcome, 1.0])
        while len(blocks) > 1 and blocks[-1][2] >= least and _share(blocks[-2]) >= _share(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    if len(blocks) > 1 and (blocks[-1][2] < least or _share(blocks[-2]) >= _share(blocks[-1])):
        last = blocks.pop()
        blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    while len(blocks) > 1 and _share(blocks[-2]) >= _share(blocks[-1]):
        last = blocks.pop()
        blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    return tuple(block[0] / block[2] for block in blocks), tuple(_share(block) for block in blocks)


def _share(block: Sequence[float]) -> float:
    return (block[1] + 0.5) / (block[2] + 1.0)
