"""From the rows of a slice to named numbers with intervals, and to the tables behind the plots.

The measures of a slice depend on which question types it holds: accuracy, log loss, Brier and calibration for all,
macro-F1 for choices and nouls, AUROC for nouls, ordinal measures for scores. Unanswered questions count as wrong in the
accuracy and are left out of everything else; `answered` says how many there are. Knows arrays only.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from dicast.evaluation import metrics, reliability, selective
from dicast.evaluation.bootstrap import Interval, bootstrap
from dicast.evaluation.metrics import Floats
from dicast.evaluation.scoring import KINDS, MAX_LABELS, Slice

CURVE_POINTS = 200
QUESTIONS_PER_LABEL = 3
"""Labels that come up less often than this on average are answers, not classes: no macro-F1."""


def summarise(part: Slice, *, repeats: int = 1000, seed: int = 0, curves: bool = True) -> dict[str, Any]:
    """Everything that is said about one slice.

    Args:
        part: the slice.
        repeats: bootstrap draws; 0 gives no intervals.
        seed: of draws and of the noise floor.
        curves: whether to add the reliability table and the risk-coverage curve.

    Returns:
        ``n`` (questions), ``n_sampled`` when rows were left out, ``answered`` (share), ``metrics`` (name -> value, low,
        high), ``calibration`` (measures that have no interval of their own) and the tables.
    """
    rows = part.rows
    measured = bootstrap(_Measure(part), rows["family"], repeats=repeats, seed=seed)
    if part.sampled:
        measured = _with_exact_sums(measured, part)
    answered = rows[rows["answered"] == 1]
    summary: dict[str, Any] = {
        "n": part.n,
        "families": int(np.unique(rows["family"]).size),
        "answered": part.sums["answered"] / part.n if part.n else math.nan,
        "metrics": {name: asdict(interval) for name, interval in measured.items()},
        "calibration": _calibration(answered, seed),
    }
    if part.sampled:
        summary["n_sampled"] = int(rows.size)
    if curves and answered.size:
        summary["reliability"] = [asdict(row) for row in _table(answered)]
        summary["risk_coverage"] = _curve(answered)
        summary["confusions"] = [list(item) for item in part.worst_confusions()]
    return summary


class _Measure:
    """All weighted measures of a slice as one function of the weights, with the slow parts done once."""

    def __init__(self, part: Slice) -> None:
        rows = part.rows
        self.correct = rows["correct"]
        self.answered = rows["answered"] == 1
        self.rows = rows[self.answered]
        self.width = reliability.equal_width_bins(self.rows["confidence"])
        self.mass = reliability.equal_mass_bins(self.rows["confidence"])
        self.kinds = {kind: self.rows["kind"] == index for index, kind in enumerate(KINDS)}
        self.true = part.labels.get("true", -2)
        enough = 1 < len(part.labels) <= min(MAX_LABELS, rows.size / QUESTIONS_PER_LABEL)
        self.classes = enough and not self.kinds["score"].any()
        self.soft = ~np.isnan(self.rows["soft_brier"])
        self.judged = self.rows["accepted"] >= 0
        self.sets = ~np.isnan(self.rows["set_size"])

    def __call__(self, every: Floats) -> dict[str, float]:
        rows, w = self.rows, every[self.answered]
        values = {"accuracy": metrics.accuracy(self.correct, every)}
        if self.classes:
            values["macro_f1"] = metrics.macro_f1(rows["gold"], rows["predicted"], w)
        values["log_loss"] = metrics.mean(rows["log_loss"], w)
        values["brier"] = metrics.mean(rows["brier"], w)
        if rows.size:
            values["ece"] = reliability.calibration_error(rows["confidence"], rows["correct"], self.width, w)
            values["ece_mass"] = reliability.calibration_error(rows["confidence"], rows["correct"], self.mass, w)
            values["aurc"] = selective.aurc(rows["confidence"], rows["correct"], w)
            values["coverage_at_5"] = selective.coverage_at(rows["confidence"], rows["correct"], 0.05, w)
        if self.soft.any():
            values["soft_brier"] = metrics.mean(rows["soft_brier"][self.soft], w[self.soft])
        if self.judged.any():
            values |= self._abstention(w)
        if self.sets.any():
            values["set_size"] = metrics.mean(rows["set_size"][self.sets], w[self.sets])
            values["set_coverage"] = metrics.mean(rows["covered"][self.sets], w[self.sets])
        return values | self._nouls(w) | self._scores(w)

    def _abstention(self, w: Floats) -> dict[str, float]:
        accepted = self.rows["accepted"] == 1
        correct = self.rows["correct"][accepted]
        return {
            "accepted": metrics.mean(self.rows["accepted"][self.judged], w[self.judged]),
            "accepted_error": 1.0 - metrics.mean(correct, w[accepted]),
        }

    def _nouls(self, w: Floats) -> dict[str, float]:
        here = self.kinds["noul"]
        if not here.any() or not here.all():
            return {}
        p, y = self.rows["p_true"], (self.rows["gold"] == self.true).astype(np.float64)
        return {"auroc": metrics.auroc(y, p, w), "brier_binary": metrics.mean((p - y) ** 2, w)}

    def _scores(self, w: Floats) -> dict[str, float]:
        here = self.kinds["score"]
        if not here.any() or not here.all():
            return {}
        gold, level, expected = (self.rows[name] for name in ("gold", "predicted", "expected"))
        return {
            "mae": metrics.mean_absolute_error(gold, expected, w),
            "rps": metrics.mean(self.rows["rps"], w),
            "kappa": metrics.quadratic_kappa(gold, level, w),
            "spearman": metrics.spearman(gold, expected, w),
        }


def _with_exact_sums(measured: dict[str, Interval], part: Slice) -> dict[str, Interval]:
    """Means over all rows in place of means over the sample; their intervals move along, wider than needed."""
    count = {"accuracy": float(part.n), "log_loss": part.sums["answered"], "brier": part.sums["answered"]}
    sums = {"accuracy": part.sums["correct"], "log_loss": part.sums["log_loss"], "brier": part.sums["brier"]}
    for name, total in count.items():
        if total > 0:
            sample = measured[name]
            shift = sums[name] / total - sample.value
            measured[name] = Interval(sample.value + shift, sample.low + shift, sample.high + shift)
    return measured


def _calibration(rows: np.ndarray, seed: int) -> dict[str, float]:
    if not rows.size:
        return {}
    bins = reliability.equal_width_bins(rows["confidence"])
    mass = reliability.equal_mass_bins(rows["confidence"])
    floor, floor_high = reliability.noise_floor(rows["confidence"], bins, seed=seed)
    slope, intercept = reliability.reliability_slope(rows["confidence"], rows["correct"])
    return {
        "bins": reliability.BINS,
        "noise_floor": floor,
        "noise_floor_p95": floor_high,
        "debiased_rms": reliability.debiased_calibration_error(rows["confidence"], rows["correct"], mass),
        "slope": slope,
        "intercept": intercept,
        "mean_confidence": metrics.mean(rows["confidence"]),
    }


def _table(rows: np.ndarray) -> list[reliability.Bin]:
    bins = reliability.equal_width_bins(rows["confidence"])
    return reliability.reliability_table(rows["confidence"], rows["correct"], bins)


def _curve(rows: np.ndarray) -> list[list[float]]:
    coverage, risk, threshold = selective.risk_coverage(rows["confidence"], rows["correct"])
    keep = np.unique(np.linspace(0, coverage.size - 1, CURVE_POINTS).round().astype(int))
    points: list[list[float]] = np.stack([coverage[keep], risk[keep], threshold[keep]], axis=1).round(5).tolist()
    return points
