"""Answers against gold labels, one row of numbers per question, kept in bounded memory.

`score` turns one answered question into a row; a `Slice` keeps exact running sums of everything and a uniform sample
of rows (all of them up to its capacity) for the measures that need to sort. One million records need no more memory
than the capacity. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dicast.evaluation.metrics import ranked_probability_score
from dicast.evaluation.reliability import brier_of, log_loss_of, soft_brier_of
from dicast.records import Choice, Question

KINDS = ("noul", "choice", "score")
ROW = np.dtype(
    [
        ("kind", "u1"),
        ("answered", "u1"),
        ("correct", "f8"),
        ("confidence", "f8"),
        ("log_loss", "f8"),
        ("brier", "f8"),
        ("soft_brier", "f8"),
        ("p_true", "f8"),
        ("rps", "f8"),
        ("expected", "f8"),
        ("gold", "i4"),
        ("predicted", "i4"),
        ("accepted", "i1"),
        ("set_size", "f8"),
        ("covered", "f8"),
        ("family", "i8"),
    ]
)
"""One question. `gold` and `predicted` number levels for a score, labels otherwise; `accepted` is -1 when not said."""
SUMMED = ("answered", "correct", "log_loss", "brier")
MAX_LABELS = 5000
"""A slice with more distinct labels than this has no macro-F1: they are not classes but texts."""
POSITIONAL = re.compile(r"option_\d+|[A-Z]|\d+")
"""Keys of a choice that say only where an option stands; its text is the label then."""


def score(
    question_type: str,
    options: Sequence[str],
    probabilities: Sequence[float] | None,
    gold: str | None,
    *,
    soft: Sequence[float] | None = None,
    family: str = "",
    accepted: bool | None = None,
    prediction_set: Sequence[str] | None = None,
) -> dict[str, Any]:
    """One question as a row, without its label numbers.

    Args:
        question_type: noul, choice or score.
        options: option ids in request order.
        probabilities: in the same order; None when the question was not answered.
        gold: the right option; None takes the option with the largest rater share.
        soft: rater shares in option order.
        family: what the question belongs to, for the bootstrap.
        accepted: whether the model's own threshold accepted the answer.
        prediction_set: the model's own set of options.
    """
    index = options.index(gold) if gold is not None else int(np.argmax(soft)) if soft is not None else -1
    row: dict[str, Any] = dict.fromkeys(ROW.names or (), math.nan)
    row |= {"kind": KINDS.index(question_type), "answered": 0, "correct": 0.0, "gold": index, "predicted": -1}
    row |= {"accepted": -1 if accepted is None else int(accepted), "family": family_number(family)}
    if probabilities is None:
        return row
    p = np.asarray(probabilities, np.float64)
    best = int(p.argmax())
    row |= {"answered": 1, "confidence": float(p[best]), "predicted": best, "correct": float(best == index)}
    row |= {"log_loss": log_loss_of(p, index), "brier": brier_of(p, index)}
    if prediction_set is not None:
        row |= {"set_size": float(len(prediction_set)), "covered": float(options[index] in prediction_set)}
    if soft is not None:
        row["soft_brier"] = soft_brier_of(p, soft)
    if question_type == "noul":
        row["p_true"] = float(p[options.index("true")])
    elif question_type == "score":
        row["expected"] = float(p @ np.arange(p.size))
        row["rps"] = ranked_probability_score(p.tolist(), index)
    return row


def label_of(question: Question, option: str) -> str:
    """The class that an option stands for: its text when its key is positional (option_3, B), else its key."""
    if isinstance(question, Choice) and isinstance(question.criteria, Mapping) and POSITIONAL.fullmatch(option):
        text = question.criteria[option]
        return text if isinstance(text, str) else option
    return option


def family_number(family: str) -> int:
    """A stable 63-bit number for a family's name."""
    return int.from_bytes(hashlib.blake2b(family.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 1


class Slice:
    """All questions of one slice.

    Args:
        capacity: rows kept for the measures that need them; a uniform sample beyond that (algorithm R, Vitter 1985).
        seed: of the sample.
    """

    def __init__(self, capacity: int = 100_000, *, seed: int = 0) -> None:
        self.capacity = capacity
        self.n = 0
        self.sums = dict.fromkeys(SUMMED, 0.0)
        self.labels: dict[str, int] = {}
        self.confusion: Counter[tuple[int, int]] = Counter()
        self._rows = np.zeros(min(capacity, 256), ROW)
        self._random = np.random.default_rng(seed)

    @property
    def rows(self) -> np.ndarray:
        """The kept rows, ``[min(n, capacity)]`` of dtype `ROW`."""
        return self._rows[: min(self.n, self.capacity)]

    @property
    def sampled(self) -> bool:
        """Whether rows were left out."""
        return self.n > self.capacity

    def add(self, row: Mapping[str, Any], gold_label: str, predicted_label: str | None) -> None:
        """Count one row."""
        numbered = dict(row)
        if row["kind"] != KINDS.index("score"):
            numbered["gold"] = self._number(gold_label)
            numbered["predicted"] = -1 if predicted_label is None else self._number(predicted_label)
        if row["answered"]:
            self.confusion[(numbered["gold"], numbered["predicted"])] += 1
            if len(self.confusion) > 4 * MAX_LABELS:
                self.confusion = Counter(dict(self.confusion.most_common(2 * MAX_LABELS)))
        for name in SUMMED:
            if not math.isnan(row[name]):
                self.sums[name] += row[name]
        place = self.n if self.n < self.capacity else int(self._random.integers(0, self.n + 1))
        if place < self.capacity:
            self._grow(place)
            self._rows[place] = tuple(numbered[name] for name in ROW.names or ())
        self.n += 1

    def worst_confusions(self, most: int = 15) -> list[tuple[str, str, int]]:
        """The most frequent mistakes: gold label, predicted label, count. Scores show level numbers."""
        names = {number: label for label, number in self.labels.items()}
        wrong = ((pair, count) for pair, count in self.confusion.most_common() if pair[0] != pair[1])
        return [
            (names.get(gold, str(gold)), names.get(predicted, str(predicted)), count)
            for (gold, predicted), count in list(wrong)[:most]
        ]

    def _number(self, label: str) -> int:
        if label in self.labels or len(self.labels) < MAX_LABELS:
            return self.labels.setdefault(label, len(self.labels))
        return MAX_LABELS

    def _grow(self, place: int) -> None:
        if place >= self._rows.size:
            larger = np.zeros(min(self._rows.size * 2, self.capacity), ROW)
            larger[: self._rows.size] = self._rows
            self._rows = larger


class Reservoir:
    """Numbers seen so far: how many, their mean, and percentiles from a uniform sample."""

    def __init__(self, capacity: int = 50_000, *, seed: int = 0) -> None:
        self.n, self.total = 0, 0.0
        self._values = np.zeros(capacity)
        self._random = np.random.default_rng(seed)

    def add(self, value: float) -> None:
        """Count one number."""
        place = self.n if self.n < self._values.size else int(self._random.integers(0, self.n + 1))
        if place < self._values.size:
            self._values[place] = value
        self.n += 1
        self.total += value

    @property
    def values(self) -> np.ndarray:
        """The kept numbers."""
        return self._values[: min(self.n, self._values.size)]

    def summary(self) -> dict[str, float]:
        """Count, mean, median, 95th percentile and largest kept value; empty without numbers."""
        if not self.n:
            return {}
        median, p95, top = (float(value) for value in np.quantile(self.values, [0.5, 0.95, 1.0]))
        return {"n": self.n, "mean": self.total / self.n, "median": median, "p95": p95, "max": top}
