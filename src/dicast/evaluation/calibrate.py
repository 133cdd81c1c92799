"""Fitting a `Calibration` on held-out answers: temperatures, vectors, isotonic maps, thresholds, conformal sets.

Knows arrays of logits and gold options, no model and no files. Everything fitted is judged by cross-validation over
families first, and what does not help there is left out. Thresholds and sets are fitted on families that the
temperatures have not seen, so that their promises hold (`abstention`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dicast.calibration import (
    Calibration,
    ConformalQuantile,
    Isotonic,
    Provenance,
    SetScore,
    Temperature,
    Threshold,
    Vector,
)
from dicast.errors import ConfigError
from dicast.evaluation import reliability
from dicast.evaluation.abstention import conformal_quantile, selective_threshold, true_score
from dicast.evaluation.fits import fit_isotonic, fit_temperature, fit_vector, log_softmax
from dicast.evaluation.metrics import Floats, Ints, mean
from dicast.evaluation.scoring import family_number
from dicast.records import QuestionType

Method = Literal["temperature", "vector", "isotonic", "auto"]
BUCKETS: Mapping[str, tuple[tuple[int, int | None], ...]] = {
    "noul": ((2, 2),),
    "choice": ((2, 2), (3, 4), (5, 10), (11, 50), (51, None)),
    "score": ((2, 3), (4, 5), (6, None)),
}
"""Option counts that share a temperature, before small buckets are joined."""
REFUSED_BELOW = 50
MIN_BUCKET = 200
MIN_RICH = 1000
"""Fewest questions for a type to be calibrated, for a bucket of its own, and for a vector or an isotonic map."""
WARN_OUTSIDE = (0.4, 2.5)
FOLDS = 5
NOWHERE = Provenance((), "0" * 64, 0, "2000-01-01", "")
"""Provenance of calibrations that live only inside a fit."""
HELP = 1e-4
"""A fit is kept when it lowers the cross-validated log loss by at least this many nats."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One answered question.

    Attributes:
        type: question type.
        question: its id.
        logits: ``[n_options]`` before calibration, up to a constant.
        target: ``[n_options]``, one-hot or rater shares.
        family: what it belongs to.
    """

    type: QuestionType
    question: str
    logits: Floats
    target: Floats
    family: str

    @property
    def gold(self) -> int:
        """Index of the right option."""
        return int(self.target.argmax())


@dataclass(frozen=True, slots=True)
class Promise:
    """What abstention shall promise.

    Attributes:
        target_error: error rate among accepted answers; None for no thresholds.
        delta: probability that this promise fails.
        alpha: miss rate of conformal sets; None for no sets.
        sets: kind of sets.
        per_question: also thresholds and quantiles for every question id with at least `MIN_BUCKET` questions. Only for
            data of one schema: ids such as ``answer`` mean something else elsewhere.
    """

    target_error: float | None = None
    delta: float = 0.05
    alpha: float | None = None
    sets: SetScore = "lac"
    per_question: bool = False


@dataclass(slots=True)
class _Fit:
    """Parts of a calibration as they are found."""

    temperatures: list[Temperature] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)
    isotonic: Isotonic | None = None
    warnings: list[str] = field(default_factory=list)


def fit(
    observations: Sequence[Observation],
    provenance: Provenance,
    *,
    method: Method = "temperature",
    promise: Promise = Promise(),
) -> Calibration:
    """Fit a calibration.

    Args:
        observations: answered questions that the model was not trained on.
        provenance: where they come from; count, method, warnings and report are filled in here.
        method: ``temperature``; or ``vector`` (noul, score) or ``isotonic`` (noul) where data allow, temperatures
            elsewhere; or ``auto``, which takes per type what has the lowest cross-validated log loss.
        promise: thresholds and sets to fit, on families of their own (a third of them).

    Raises:
        ConfigError: no question type has enough questions.
    """
    wanted = promise.target_error is not None or promise.alpha is not None
    shaping = [o for o in observations if not wanted or _fold(o.family, 3) != 0]
    found = _Fit()
    tables = {kind: _tables(shaping, kind) for kind in BUCKETS}
    for kind, here in tables.items():
        if here and _count(here) < REFUSED_BELOW:
            found.warnings.append(f"{kind}: {_count(here)} questions are too few to calibrate (least {REFUSED_BELOW})")
        elif here:
            _fit_type(kind, here, method, found)
    if all(_count(here) < REFUSED_BELOW for here in tables.values()):
        raise ConfigError(f"too few labelled questions to calibrate (least {REFUSED_BELOW} of a type)", field="data")
    shaped = Calibration(provenance, tuple(found.temperatures), tuple(found.vectors), found.isotonic)
    held = [o for o in observations if wanted and _fold(o.family, 3) == 0]
    thresholds, conformal = _promises(shaped, held, promise, found.warnings)
    report = {kind: _judged(here, method) for kind, here in tables.items()}
    filled = replace(
        provenance,
        n=len(observations),
        method=f"{method}, {FOLDS}-fold cross-validated over families",
        warnings=tuple(found.warnings),
        report={kind: facts for kind, facts in report.items() if facts},
    )
    return replace(shaped, provenance=filled, thresholds=thresholds, conformal=conformal)


def observations_of(predictions: Iterable[Mapping[str, Any]]) -> list[Observation]:
    """Answered questions of a predictions file, with logits taken from the probabilities (equal up to a constant)."""
    found = []
    for prediction in predictions:
        for question_id, asked in prediction["questions"].items():
            if "p" not in asked:
                continue
            p = np.asarray(asked["p"], np.float64)
            if asked["gold"] is None:
                target = np.asarray(asked["soft"], np.float64)
            else:
                target = np.asarray([float(option == asked["gold"]) for option in asked["options"]])
            logits = np.log(np.maximum(p, 1e-30))
            found.append(Observation(asked["type"], question_id, logits, target, prediction["family"]))
    return found


def _fit_type(kind: str, tables: Sequence[_Table], method: Method, found: _Fit) -> None:
    for low, high, part in _buckets(kind, tables):
        n, temperature = _count(part), fit_temperature([(table.logits, table.target) for table in part])
        shown = f"{kind} with {_span(low, high)} options"
        if _held_out(part, "temperature") > _loss(part) - HELP:
            found.warnings.append(f"{shown}: no temperature helps on held-out folds; left as it is")
            continue
        if not WARN_OUTSIDE[0] <= temperature <= WARN_OUTSIDE[1]:
            found.warnings.append(f"{shown}: extreme temperature {temperature:.2f}; look at the data and the model")
        found.temperatures.append(Temperature(part[0].type, low, high, round(temperature, 4), n))
    if method == "temperature" or kind == "choice":
        return
    for table in tables:
        best = _best_rich(table, method)
        if best:
            only = _single([table], best)
            found.isotonic = only.isotonic or found.isotonic
            found.vectors += only.vectors
        elif method != "auto" and _count([table]) < MIN_RICH:
            options, n = table.logits.shape[1], _count([table])
            found.warnings.append(f"{kind} with {options} options: {n} questions are too few for {method}")


@dataclass(frozen=True, slots=True)
class _Table:
    """Questions of one type and option count.

    Attributes:
        type: question type.
        logits: ``[n, n_options]``.
        target: ``[n, n_options]``.
        fold: ``[n]``, the fold of each family.
    """

    type: QuestionType
    logits: Floats
    target: Floats
    fold: Ints

    def rows(self, chosen: npt.NDArray[np.bool_]) -> _Table:
        """Only the chosen rows."""
        return _Table(self.type, self.logits[chosen], self.target[chosen], self.fold[chosen])


def _best_rich(table: _Table, method: Method) -> str:
    """What to use on top of temperatures: ``vector``, ``isotonic`` or nothing."""
    if _count([table]) < MIN_RICH:
        return ""
    names = ["vector", *(["isotonic"] if table.type == "noul" else [])]
    losses = {name: _held_out([table], name) for name in names if method in ("auto", name)}
    best = min(losses, key=losses.__getitem__, default="")
    plain = min(_held_out([table], "temperature"), _loss([table]))
    return best if best and losses[best] < plain - HELP else ""


def _judged(tables: Sequence[_Table], method: Method) -> dict[str, Any]:
    """Cross-validated log loss, Brier and ECE, before and after; each fold is judged by a fit on the others."""
    if _count(tables) < REFUSED_BELOW:
        return {}
    after: list[tuple[Floats, Floats]] = []
    for fold in range(FOLDS):
        found = _Fit()
        rest = _chosen(tables, lambda table, fold=fold: table.fold != fold)  # type: ignore[misc]
        if rest:
            _fit_type(tables[0].type, rest, method, found)
        shaped = Calibration(NOWHERE, tuple(found.temperatures), tuple(found.vectors), found.isotonic)
        judged = _chosen(tables, lambda table, fold=fold: table.fold == fold)  # type: ignore[misc]
        after += [(_softmax(shaped.apply(table.type, table.logits)), table.target) for table in judged]
    before = [(_softmax(table.logits), table.target) for table in tables]
    return {"n": _count(tables), "before": _measures(before), "after": _measures(after)}


def _measures(answers: Sequence[tuple[Floats, Floats]]) -> dict[str, float]:
    right = [p[np.arange(len(p)), target.argmax(1)] for p, target in answers]
    confidence = np.concatenate([p.max(1) for p, _ in answers])
    correct = np.concatenate([p.argmax(1) == target.argmax(1) for p, target in answers]).astype(np.float64)
    squares = np.concatenate([(p * p).sum(1) for p, _ in answers])
    gold = np.concatenate(right)
    bins = reliability.equal_width_bins(confidence)
    return {
        "log_loss": -mean(np.log(np.maximum(gold, reliability.LOG_LOSS_FLOOR))),
        "brier": mean(squares - 2 * gold + 1),
        "ece": reliability.calibration_error(confidence, correct, bins),
        "ece_noise_floor": reliability.noise_floor(confidence, bins, repeats=50)[0],
        "accuracy": mean(correct),
    }


def _held_out(tables: Sequence[_Table], what: str) -> float:
    """Cross-validated log loss of one kind of fit."""
    total, n = 0.0, 0
    for fold in range(FOLDS):
        rest = _chosen(tables, lambda table, fold=fold: table.fold != fold)  # type: ignore[misc]
        judged = _chosen(tables, lambda table, fold=fold: table.fold == fold)  # type: ignore[misc]
        if not judged or not rest:
            continue
        shaped = _single(rest, what)
        total += sum(_nll(shaped.apply(table.type, table.logits), table.target) for table in judged)
        n += _count(judged)
    return total / n if n else float("inf")


def _single(tables: Sequence[_Table], what: str) -> Calibration:
    """A calibration of one part, fitted on questions of one type (and of one option count unless a temperature)."""
    kind, n = tables[0].type, _count(tables)
    if what == "temperature":
        heat = fit_temperature([(table.logits, table.target) for table in tables])
        return Calibration(NOWHERE, (Temperature(kind, 1, None, heat, n),))
    logits, target = tables[0].logits, tables[0].target
    if what == "vector":
        return Calibration(NOWHERE, vectors=(Vector(kind, *fit_vector(logits, target), n),))
    return Calibration(NOWHERE, isotonic=Isotonic(*fit_isotonic(_softmax(logits)[:, 0], target[:, 0]), n))


def _promises(
    shaped: Calibration, held: Sequence[Observation], promise: Promise, warnings: list[str]
) -> tuple[tuple[Threshold, ...], tuple[ConformalQuantile, ...]]:
    thresholds: list[Threshold] = []
    conformal: list[ConformalQuantile] = []
    for kind in BUCKETS:
        here = [o for o in held if o.type == kind]
        ids = sorted({o.question for o in here}) if promise.per_question else []
        parts: list[tuple[str | None, list[Observation]]] = [(None, here)]
        parts += [(name, [o for o in here if o.question == name]) for name in ids]
        for name, part in parts:
            if len(part) < (REFUSED_BELOW if name is None else MIN_BUCKET):
                continue
            answers = [(o, _softmax(shaped.apply(o.type, o.logits))) for o in one_per_family(part)]
            if promise.target_error is not None:
                thresholds.append(_threshold(name, answers, promise, promise.target_error, warnings))
            if promise.alpha is not None:
                conformal += _quantiles(name, answers, promise, promise.alpha)
    return tuple(thresholds), tuple(conformal)


def _threshold(
    name: str | None,
    answers: Sequence[tuple[Observation, Floats]],
    promise: Promise,
    target: float,
    warnings: list[str],
) -> Threshold:
    confidence = [float(p.max()) for _, p in answers]
    correct = [float(p.argmax() == o.gold) for o, p in answers]
    found = selective_threshold(confidence, correct, target, delta=promise.delta)
    kind = answers[0][0].type
    if found.threshold is None:
        warnings.append(f"{kind}{f' {name}' if name else ''}: no threshold promises {target:g}; nothing is accepted")
    method = "clopper-pearson"
    return Threshold(kind, name, found.threshold, target, promise.delta, method, found.coverage, found.n)


def _quantiles(
    name: str | None, answers: Sequence[tuple[Observation, Floats]], promise: Promise, alpha: float
) -> list[ConformalQuantile]:
    kind = answers[0][0].type
    found = []
    for low, high, tables in _buckets(kind, _tables((o for o, _ in answers), kind)):
        counts = {table.logits.shape[1] for table in tables}
        part = [(o, p) for o, p in answers if p.size in counts]
        quantile = conformal_quantile([true_score(promise.sets, p, o.gold) for o, p in part], alpha)
        found.append(ConformalQuantile(kind, name, low, high, promise.sets, quantile, alpha, len(part)))
    return found


def one_per_family(observations: Iterable[Observation]) -> list[Observation]:
    """One question of each family, chosen by a hash, so that the rest are independent."""
    chosen: dict[str, Observation] = {}
    for o in observations:
        other = chosen.get(o.family)
        if other is None or family_number(o.family + "\n" + o.question) < family_number(
            o.family + "\n" + other.question
        ):
            chosen[o.family] = o
    return list(chosen.values())


def _buckets(kind: str, tables: Sequence[_Table]) -> list[tuple[int, int | None, list[_Table]]]:
    """Option-count buckets that hold enough questions; small ones join the next, the last joins the one before."""
    joined: list[tuple[int, int | None, list[_Table]]] = []
    low, waiting = 0, list[_Table]()
    for first, last in BUCKETS[kind]:
        low = low or first
        waiting += [t for t in tables if first <= t.logits.shape[1] and (last is None or t.logits.shape[1] <= last)]
        if _count(waiting) >= MIN_BUCKET:
            joined.append((low, last, waiting))
            low, waiting = 0, []
    end = BUCKETS[kind][-1][1]
    if waiting and joined:
        first, _, before = joined.pop()
        joined.append((first, end, before + waiting))
    elif waiting:
        joined.append((BUCKETS[kind][0][0], end, waiting))
    return joined


def _tables(observations: Iterable[Observation], kind: str) -> list[_Table]:
    """Questions of a type as one table per option count."""
    counts: dict[int, list[Observation]] = {}
    for o in observations:
        if o.type == kind:
            counts.setdefault(o.logits.size, []).append(o)
    return [
        _Table(
            part[0].type,
            np.stack([o.logits for o in part]),
            np.stack([o.target for o in part]),
            np.array([_fold(o.family, FOLDS) for o in part]),
        )
        for _, part in sorted(counts.items())
    ]


def _chosen(tables: Sequence[_Table], choose: Callable[[_Table], npt.NDArray[np.bool_]]) -> list[_Table]:
    """Chosen rows of every table; tables without any are left out."""
    parts = [table.rows(choose(table)) for table in tables]
    return [part for part in parts if len(part.logits)]


def _count(tables: Sequence[_Table]) -> int:
    return sum(len(table.logits) for table in tables)


def _loss(tables: Sequence[_Table]) -> float:
    return sum(_nll(table.logits, table.target) for table in tables) / _count(tables)


def _nll(logits: Any, target: Floats) -> float:
    return -float((target * log_softmax(np.asarray(logits, np.float64))).sum())


def _softmax(logits: Any) -> Floats:
    return np.exp(log_softmax(np.asarray(logits, np.float64)))


def _fold(family: str, folds: int) -> int:
    return family_number(f"{folds} folds\n{family}") % folds


def _span(low: int, high: int | None) -> str:
    return f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"
