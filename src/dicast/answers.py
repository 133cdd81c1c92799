"""Logits to probabilities to answers: the one place where calibration is applied and `confidence` is defined.

Knows records and encodings' question facts; knows no tensors of a framework, no JSON bodies, no rounding (that is the
wire's matter: every number here is exact to float64).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dicast.models.base import Encoding, Logits, QuestionEncoding
from dicast.records import (
    Answer,
    ChoiceAnswer,
    Decision,
    NoulAnswer,
    Question,
    QuestionType,
    Record,
    Score,
    ScoreAnswer,
    Usage,
)

Array: TypeAlias = npt.NDArray[np.float64]
ConfidenceRule: TypeAlias = Literal["typesafe", "pmax", "purity", "entropy"]


class Calibrator(Protocol):
    """What an answer needs of a calibration (see :mod:`dicast.calibration`)."""

    def apply(self, kind: str, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.floating]:
        """Calibrated logits of one question."""

    def accepted(self, kind: str, question_id: str, probabilities: Sequence[float]) -> bool | None:
        """Whether the answer passes the stored threshold; None without one."""

    def prediction_set(self, kind: str, question_id: str, probabilities: Mapping[str, float]) -> tuple[str, ...] | None:
        """Options of the conformal set; None without one."""


def softmax(logits: npt.ArrayLike) -> Array:
    """Probabilities ``[n]`` of logits ``[n]``, computed in float64.

    Raises:
        FloatingPointError: a logit is not finite; a model that gives such a logit is broken, and no answer is better
            than a made-up one.
    """
    values = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(values).all():
        raise FloatingPointError(f"logits must be finite, got {values.tolist()}")
    powers = np.exp(values - values.max())
    return np.asarray(powers / powers.sum(), dtype=np.float64)


def confidence_of(kind: QuestionType, probabilities: npt.ArrayLike, rule: ConfidenceRule = "typesafe") -> float:
    """Concentration of a distribution between 0 (uniform) and 1 (certain).

    Args:
        kind: question type; only the ``typesafe`` rule tells scores from the others.
        probabilities: ``[n]``, summing to 1, in level order for scores.
        rule: ``typesafe`` (TypeSafe's adapter library: excess of the mode over uniform for choices, normalised distance
            from the mode for scores), ``pmax`` (Clef's release), ``purity`` (hosted Workers AI) or ``entropy``
            (1 - H/ln n).

    Raises:
        KeyError: the rule is unknown.
    """
    p = np.asarray(probabilities, dtype=np.float64)
    if p.size == 1:
        return 1.0
    value = float(CONFIDENCE_RULES[rule](kind, p))
    return min(max(value, 0.0), 1.0)


def _typesafe(kind: QuestionType, p: Array) -> float:
    n = p.size
    if kind != "score":
        return float((p.max() - 1 / n) / (1 - 1 / n))
    levels = np.arange(n)
    spread_of_uniform = float(np.abs(levels - (n - 1) / 2).mean())
    return 1.0 - float((p * np.abs(levels - int(p.argmax()))).sum()) / spread_of_uniform


def _pmax(kind: QuestionType, p: Array) -> float:
    return float(p.max())


def _purity(kind: QuestionType, p: Array) -> float:
    n = p.size
    return float(((p * p).sum() - 1 / n) / (1 - 1 / n))


def _entropy(kind: QuestionType, p: Array) -> float:
    positive = p[p > 0]
    return 1.0 + float((positive * np.log(positive)).sum()) / math.log(p.size)


CONFIDENCE_RULES: Mapping[str, Callable[[QuestionType, Array], float]] = {
    "typesafe": _typesafe,
    "pmax": _pmax,
    "purity": _purity,
    "entropy": _entropy,
}


def make_decision(
    record: Record,
    encoding: Encoding,
    logits: Logits,
    *,
    calibration: Calibrator | None = None,
    model: str = "",
    confidence: ConfidenceRule = "typesafe",
    cached_tokens: int = 0,
) -> Decision[None]:
    """Answers to one record.

    Args:
        record: the record that was asked.
        encoding: its encoding, which says in which order the logits come.
        logits: per question, ``[n_options]``.
        calibration: applied to the logits before the softmax; None leaves them as they are.
        model: name of the model, copied to the decision.
        confidence: which rule defines `confidence`.
        cached_tokens: how many input tokens were not computed again.
    """
    answers = {
        question.id: _answer(record.questions[question.id], question, values, calibration, confidence)
        for question, values in zip(encoding.questions, logits, strict=True)
    }
    usage = Usage(
        input_tokens=encoding.length,
        media_tokens=encoding.media_tokens,
        cached_tokens=cached_tokens,
        state_tokens_dropped=encoding.state_tokens_dropped,
    )
    return Decision(answers, usage, model)


def _answer(
    question: Question,
    encoded: QuestionEncoding,
    logits: npt.NDArray[np.float32],
    calibration: Calibrator | None,
    rule: ConfidenceRule,
) -> Answer:
    kind = question.type
    calibrated = calibration.apply(kind, logits) if calibration else logits
    by_option = dict(zip(encoded.options, softmax(calibrated).tolist(), strict=True))
    raw = dict(zip(encoded.options, np.asarray(logits, dtype=np.float64).tolist(), strict=True))
    probabilities = {option: by_option[option] for option in question.options}
    values = list(probabilities.values())
    common: dict[str, Any] = {
        "probabilities": probabilities,
        "confidence": confidence_of(kind, values, rule),
        "logits": {option: raw[option] for option in question.options},
        "accepted": calibration.accepted(kind, encoded.id, values) if calibration else None,
        "prediction_set": calibration.prediction_set(kind, encoded.id, probabilities) if calibration else None,
    }
    if isinstance(question, Score):
        legend = {str(index): level for index, level in enumerate(question.criteria)}
        return ScoreAnswer(**common, legend=legend)
    return NoulAnswer(**common) if kind == "noul" else ChoiceAnswer(**common)
