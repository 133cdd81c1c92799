"""What a checkpoint knows about its own errors: calibration of logits, thresholds for abstention, conformal sets.

A `Calibration` is plain data, stored as ``calibration.json`` beside the weights it was fitted for, and applied in one
place, `dicast.answers.make_decision`: first `apply` on the logits of a question, then softmax, confidence and answer,
then `accepted` and `prediction_set` on the probabilities. Fitting lives in `dicast.evaluation.calibrate` and
`dicast.evaluation.abstention`; this module knows nothing of data, models or torch.

Shapes: logits are ``[..., n_options]`` in encoding order, which for a noul is always ``true, false`` and for a score
the levels, lowest first.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from dicast.errors import CheckpointError, ConfigError
from dicast.records import QuestionType

FILE_NAME = "calibration.json"
FORMAT = "dicast-calibration"
VERSION = 1
MIN_TEMPERATURE = 0.05
MAX_TEMPERATURE = 20.0
ISOTONIC_FLOOR = 1e-4
"""An isotonic map never answers with certainty: probabilities stay this far from 0 and 1."""

SetScore = Literal["lac", "aps"]
Floats = npt.NDArray[np.floating[Any]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divide the logits of questions with ``low`` to ``high`` options by ``temperature`` (Guo et al. 2017).

    Attributes:
        type: question type.
        low: smallest option count of the bucket.
        high: largest option count of the bucket; None for no upper end.
        temperature: above 1 softens, below 1 sharpens; the arg max never changes.
        n: questions it was fitted on.
    """

    type: QuestionType
    low: int
    high: int | None
    temperature: float
    n: int

    def __post_init__(self) -> None:
        _check_type(self.type)
        _check_span(self.low, self.high)
        _check_count(self.n)
        _check_number(self.temperature, "temperature", MIN_TEMPERATURE, MAX_TEMPERATURE)


@dataclass(frozen=True, slots=True)
class Vector:
    """Scale and shift every logit on its own (Guo et al. 2017); only where option positions have a fixed meaning.

    The mean of a question's logits is taken off first, since a common summand of all logits means nothing.

    Attributes:
        type: ``noul`` or ``score``; a choice has no fixed options.
        scale: one positive factor per option.
        bias: one summand per option.
        n: questions it was fitted on.
    """

    type: QuestionType
    scale: tuple[float, ...]
    bias: tuple[float, ...]
    n: int

    def __post_init__(self) -> None:
        _check_type(self.type)
        if self.type == "choice":
            raise ConfigError("must be noul or score: a choice has no fixed options", field="type", seen="choice")
        if len(self.scale) < 2 or len(self.scale) != len(self.bias):
            raise ConfigError("scale and bias must have the same length, at least 2", field="scale")
        for value in self.scale:
            _check_number(value, "scale", 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE)
        for value in self.bias:
            _check_number(value, "bias", -100.0, 100.0)
        _check_count(self.n)


@dataclass(frozen=True, slots=True)
class Isotonic:
    """Monotone map of p(true) of a noul (Zadrozny and Elkan 2002), linear between its knots, flat outside.

    Attributes:
        x: probabilities before, strictly rising.
        y: probabilities after, never falling.
        n: questions it was fitted on.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    n: int

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or not self.x:
            raise ConfigError("x and y must have the same length, at least 1", field="x")
        for value in (*self.x, *self.y):
            _check_number(value, "x, y", 0.0, 1.0)
        if any(b <= a for a, b in zip(self.x, self.x[1:], strict=False)):
            raise ConfigError("knots must rise strictly", field="x")
        if any(b < a for a, b in zip(self.y, self.y[1:], strict=False)):
            raise ConfigError("values must never fall", field="y")
        _check_count(self.n)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Accept an answer when its largest probability is at least ``threshold``.

    With probability ``1 - delta`` over the calibration data, the error rate among accepted answers of exchangeable
    questions is at most ``target_error`` (`dicast.evaluation.abstention`).

    Attributes:
        type: question type.
        question: the id of the one question it holds for; None for every question of the type.
        threshold: smallest accepted top probability; None when no threshold keeps the promise, so nothing is accepted.
        target_error: promised error rate among accepted answers.
        delta: probability with which the promise may fail.
        method: how it was found, e.g. ``clopper-pearson``.
        coverage: share of the calibration questions that it accepts.
        n: calibration questions.
    """

    type: QuestionType
    question: str | None
    threshold: float | None
    target_error: float
    delta: float
    method: str
    coverage: float
    n: int

    def __post_init__(self) -> None:
        _check_type(self.type)
        if self.threshold is not None:
            _check_number(self.threshold, "threshold", 0.0, 1.0)
        _check_number(self.target_error, "target_error", 0.0, 1.0)
        _check_number(self.delta, "delta", 0.0, 1.0)
        _check_number(self.coverage, "coverage", 0.0, 1.0)
        _check_count(self.n)


@dataclass(frozen=True, slots=True)
class ConformalQuantile:
    """Split-conformal prediction sets that hold the right option with probability at least ``1 - alpha``.

    Attributes:
        type: question type.
        question: the id of the one question it holds for; None for every question of the type.
        low: smallest option count of the bucket.
        high: largest option count of the bucket; None for no upper end.
        score: ``lac`` keeps options with ``1 - p <= quantile`` (Sadinle et al. 2019); ``aps`` keeps the most probable
            options until their mass reaches ``quantile`` (Romano et al. 2020, not randomised).
        quantile: the conformal quantile of the score.
        alpha: promised miss rate.
        n: calibration questions.
    """

    type: QuestionType
    question: str | None
    low: int
    high: int | None
    score: SetScore
    quantile: float
    alpha: float
    n: int

    def __post_init__(self) -> None:
        _check_type(self.type)
        _check_span(self.low, self.high)
        if self.score not in get_args(SetScore):
            raise ConfigError("must be lac or aps", field="score", seen=self.score)
        _check_number(self.quantile, "quantile", 0.0, 1.0)
        _check_number(self.alpha, "alpha", 0.0, 1.0)
        _check_count(self.n)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a calibration comes from.

    Attributes:
        data: names of the data files.
        data_sha256: hash of the records' content, as `dicast.evaluation.data.ContentHash` makes it.
        n: questions used.
        date: ISO date of the fit.
        method: ``temperature``, ``vector`` or ``isotonic``, with its settings.
        model: name of the model it was fitted for.
        warnings: what the fit warned about.
        report: cross-validated measures before and after, by question type.
    """

    data: tuple[str, ...]
    data_sha256: str
    n: int
    date: str
    method: str
    model: str = ""
    warnings: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.data_sha256) != 64 or set(self.data_sha256) - set("0123456789abcdef"):
            raise ConfigError("must be 64 hexadecimal digits", field="data_sha256", seen=self.data_sha256[:80])
        try:
            date.fromisoformat(self.date)
        except ValueError:
            raise ConfigError("must be an ISO date", field="date", seen=self.date) from None
        _check_count(self.n)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything that is fitted after training, without touching a weight.

    For each question the first of these that fits is used: the isotonic map (noul), a vector of the right length, the
    temperature of the option-count bucket, or nothing.

    Attributes:
        provenance: data, method and date.
        temperatures: buckets of one type never overlap.
        vectors: at most one per type and option count.
        isotonic: for nouls.
        thresholds: abstention, per question or per type; the one for a question wins.
        conformal: prediction sets, per question or per type; the one for a question wins.
    """

    provenance: Provenance
    temperatures: tuple[Temperature, ...] = ()
    vectors: tuple[Vector, ...] = ()
    isotonic: Isotonic | None = None
    thresholds: tuple[Threshold, ...] = ()
    conformal: tuple[ConformalQuantile, ...] = ()

    def __post_init__(self) -> None:
        _check_overlap([(t.type, t.low, t.high) for t in self.temperatures], "temperatures")
        _check_overlap([((c.type, c.question), c.low, c.high) for c in self.conformal], "conformal")
        _check_overlap([(v.type, len(v.scale), len(v.scale)) for v in self.vectors], "vectors")
        _check_overlap([((t.type, t.question), 1, None) for t in self.thresholds], "thresholds")

    def apply(self, kind: str, logits: Floats) -> Floats:
        """Calibrated logits of one question, or of several of the same type and option count.

        Args:
            kind: question type.
            logits: ``[..., n_options]`` in encoding order.

        Returns:
            The same shape and dtype; softmax of it is the calibrated distribution.
        """
        options = logits.shape[-1]
        if kind == "noul" and self.isotonic is not None:
            return _apply_isotonic(self.isotonic, logits)
        vector = _first(self.vectors, lambda v: v.type == kind and len(v.scale) == options)
        if vector is not None:
            centred = logits - logits.mean(axis=-1, keepdims=True)
            moved: Floats = centred * np.asarray(vector.scale) + np.asarray(vector.bias)
            return moved.astype(logits.dtype)
        temperature = self.temperature(kind, options)
        return logits if temperature == 1.0 else np.asarray(logits / temperature, logits.dtype)

    def temperature(self, kind: str, options: int) -> float:
        """Temperature for a question type and option count; 1 where none was fitted."""
        found = _first(self.temperatures, lambda t: t.type == kind and _in_span(options, t.low, t.high))
        return 1.0 if found is None else found.temperature

    def accepted(
        self, kind: str, question_id: str, probabilities: Mapping[str, float] | Sequence[float]
    ) -> bool | None:
        """Whether an answer passes its stored threshold.

        Args:
            kind: question type.
            question_id: the question's id; a threshold stored for it goes before the type's.
            probabilities: calibrated and unrounded, by option or as a sequence.

        Returns:
            None without a threshold for this question.
        """
        found = _for_question(self.thresholds, kind, question_id)
        if found is None:
            return None
        values = probabilities.values() if isinstance(probabilities, Mapping) else probabilities
        return found.threshold is not None and max(values) >= found.threshold

    def prediction_set(self, kind: str, question_id: str, probabilities: Mapping[str, float]) -> tuple[str, ...] | None:
        """Options of the conformal set, most probable first; never empty.

        Args:
            kind: question type.
            question_id: the question's id; a quantile stored for it goes before the type's.
            probabilities: option -> probability, calibrated and unrounded.

        Returns:
            None without a quantile for this question.
        """
        count = len(probabilities)
        fitting = [c for c in self.conformal if _in_span(count, c.low, c.high)]
        found = _for_question(fitting, kind, question_id)
        if found is None:
            return None
        ranked = sorted(probabilities, key=probabilities.__getitem__, reverse=True)
        scores = conformal_scores(found.score, [probabilities[option] for option in ranked])
        kept = tuple(option for option, score in zip(ranked, scores, strict=True) if score <= found.quantile)
        return kept or (ranked[0],)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``calibration.json`` into a checkpoint folder and return its path."""
        path = Path(folder) / FILE_NAME
        body = {"format": FORMAT, "version": VERSION, **asdict(self)}
        path.write_text(json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Calibration | None:
        """Read the calibration of a checkpoint folder.

        Returns:
            None when the folder has none.

        Raises:
            CheckpointError: the file is not valid; it is never used in part.
        """
        path = Path(folder) / FILE_NAME
        if not path.is_file():
            return None
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, ConfigError) as error:
            raise CheckpointError(f"{path} is not a valid calibration: {error}") from error

    @classmethod
    def from_dict(cls, body: Any) -> Calibration:
        """Build a calibration from plain data.

        Raises:
            ConfigError: names the first wrong field.
        """
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise ConfigError(f"must be {FORMAT}", field="format")
        if body.get("version") != VERSION:
            raise ConfigError("this version is not known", field="version", limit=VERSION, seen=body.get("version"))
        parts = {key: value for key, value in body.items() if key not in ("format", "version")}
        _check_keys(cls, parts, "")
        isotonic = parts.get("isotonic")
        return cls(
            provenance=_build(Provenance, parts.get("provenance"), "provenance"),
            temperatures=_build_all(Temperature, parts, "temperatures"),
            vectors=_build_all(Vector, parts, "vectors"),
            isotonic=None if isotonic is None else _build(Isotonic, isotonic, "isotonic"),
            thresholds=_build_all(Threshold, parts, "thresholds"),
            conformal=_build_all(ConformalQuantile, parts, "conformal"),
        )


def conformal_scores(score: SetScore, ranked: Sequence[float]) -> list[float]:
    """Non-conformity of every option, given the probabilities from most to least probable.

    ``lac``: 1 - p. ``aps``: mass of the options ranked up to and including this one.
    """
    if score == "lac":
        return [1.0 - p for p in ranked]
    return [min(float(mass), 1.0) for mass in np.cumsum(ranked)]


def _apply_isotonic(isotonic: Isotonic, logits: Floats) -> Floats:
    margin = np.asarray(logits[..., 0] - logits[..., 1], np.float64)
    before = 0.5 * (1.0 + np.tanh(0.5 * margin))  # the logistic function, without overflow
    after = np.clip(np.interp(before, isotonic.x, isotonic.y), ISOTONIC_FLOOR, 1.0 - ISOTONIC_FLOOR)
    return np.stack([np.log(after), np.log1p(-after)], axis=-1).astype(logits.dtype)


def _first(items: Iterable[T], fits: Callable[[T], bool]) -> T | None:
    return next((item for item in items if fits(item)), None)


Q = TypeVar("Q", Threshold, ConformalQuantile)


def _for_question(items: Sequence[Q], kind: str, question_id: str) -> Q | None:
    own = _first(items, lambda item: item.type == kind and item.question == question_id)
    return own or _first(items, lambda item: item.type == kind and item.question is None)


def _in_span(count: int, low: int, high: int | None) -> bool:
    return low <= count and (high is None or count <= high)


def _build(cls: type[T], body: Any, path: str) -> T:
    if not isinstance(body, dict):
        raise ConfigError("must be an object", field=path)
    _check_keys(cls, body, path)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in body.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(error.message, field=f"{path}.{error.field}", limit=error.limit, seen=error.seen) from None
    except TypeError as error:
        raise ConfigError(f"has a field missing or of the wrong kind ({error})", field=path) from None


def _build_all(cls: type[T], parts: Mapping[str, Any], name: str) -> tuple[T, ...]:
    items = parts.get(name, [])
    if not isinstance(items, list):
        raise ConfigError("must be an array", field=name)
    return tuple(_build(cls, item, f"{name}.{index}") for index, item in enumerate(items))


def _check_keys(cls: type[Any], body: Mapping[str, Any], path: str) -> None:
    unknown = set(body) - {item.name for item in fields(cls)}
    if unknown:
        raise ConfigError(f"unknown key {min(unknown)!r}", field=path, seen=min(unknown))


def _check_type(kind: str) -> None:
    if kind not in get_args(QuestionType):
        raise ConfigError("must be noul, choice, or score", field="type", seen=kind)


def _check_number(value: Any, name: str, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError("must be a finite number", field=name, seen=value)
    if not low <= value <= high:
        raise ConfigError(f"must lie between {low:g} and {high:g}", field=name, limit=[low, high], seen=value)


def _check_count(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError("must be a whole number, 0 or more", field="n", seen=value)


def _check_span(low: Any, high: Any) -> None:
    for name, value in (("low", low), ("high", high)):
        if value is None and name == "high":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError("must be a whole number, 1 or more", field=name, seen=value)
    if high is not None and high < low:
        raise ConfigError("must not be less than low", field="high", limit=low, seen=high)


def _check_overlap(spans: Sequence[tuple[Any, int, int | None]], name: str) -> None:
    for index, (key, low, high) in enumerate(spans):
        for other_key, other_low, other_high in spans[:index]:
            apart = (high is not None and high < other_low) or (other_high is not None and other_high < low)
            if key == other_key and not apart:
                raise ConfigError("two entries hold for the same questions", field=f"{name}.{index}")
