"""Dev metrics while training: small, quick sums over questions. `dicast.evaluation` measures for reports.

Works on one row per labelled question; knows nothing of models or files.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dicast.records import Question
from dicast.training.data import Example
from dicast.training.objectives import PaddedLogits
from dicast.training.targets import Targets

BINS = 10
HIGHER_IS_BETTER = frozenset({"accuracy", "macro_f1", "joint", "reward"})
PROBABILITY_FLOOR = 1e-12


@dataclass(frozen=True, slots=True)
class Row:
    """What one answer was worth.

    Attributes:
        source: the data source.
        record: identifies the record among all dev records.
        nll: -log of the gold option's probability (cross-entropy with a soft label).
        right: whether the most probable option is gold.
        confidence: the highest probability.
        brier: Brier score against the target distribution.
        reward: expected reward.
        gold, guess: names of the classes, for F1.
    """

    source: str
    record: int
    nll: float
    right: bool
    confidence: float
    brier: float
    reward: float
    gold: str
    guess: str


def rows_of(
    padded: PaddedLogits,
    targets: Targets,
    examples: Sequence[Example],
    questions: Sequence[Sequence[Any]],
    *,
    records: Sequence[int],
    partial_credit: float,
) -> list[Row]:
    """One row per labelled question of a batch; arguments are on the CPU."""
    probabilities = padded.probabilities()
    target = targets.distribution(padded.mask, 0.0)
    reward = (probabilities * targets.reward(padded, partial_credit)).sum(-1)
    nll = -(target * probabilities.clamp(min=PROBABILITY_FLOOR).log()).sum(-1)
    brier = ((probabilities - target) ** 2).sum(-1)
    confidence, guess = probabilities.max(-1)
    truth = torch.where(targets.gold >= 0, targets.gold, target.argmax(-1))
    asked = [(example, question) for example, record in zip(examples, questions, strict=True) for question in record]
    rows = []
    for index, (example, question) in enumerate(asked):
        if targets.gold[index] < 0 and not targets.has_soft[index]:
            continue
        source = example.record.questions[question.id]
        options = question.options
        rows.append(
            Row(
                example.source,
                records[int(padded.record[index])],
                float(nll[index]),
                bool(guess[index] == truth[index]),
                float(confidence[index]),
                float(brier[index]),
                float(reward[index]),
                class_name(source, options[int(truth[index])]),
                class_name(source, options[int(guess[index])]),
            )
        )
    return rows


def class_name(question: Question, option: str) -> str:
    """What an option means across records: its description when it is text, else its id."""
    if question.type == "choice":
        description = question.criteria[option] if isinstance(question.criteria, dict) else None
        if isinstance(description, str) and description:
            return description
    return option


def summarise(rows: Iterable[Row]) -> dict[str, float]:
    """Metrics over all rows: loss, accuracy, macro_f1, brier, ece, joint, reward, and questions."""
    table = list(rows)
    if not table:
        return {}
    count = len(table)
    whole: dict[int, bool] = defaultdict(lambda: True)
    for row in table:
        whole[row.record] &= row.right
    return {
        "loss": sum(row.nll for row in table) / count,
        "accuracy": sum(row.right for row in table) / count,
        "macro_f1": macro_f1(table),
        "brier": sum(row.brier for row in table) / count,
        "ece": calibration_error(table),
        "joint": sum(whole.values()) / len(whole),
        "reward": sum(row.reward for row in table) / count,
        "questions": float(count),
    }


def by_source(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Metrics per source."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.source].append(row)
    return {source: summarise(group) for source, group in sorted(groups.items())}


def calibration_error(rows: Sequence[Row], bins: int = BINS) -> float:
    """Expected calibration error of the top option: mean |accuracy - confidence| over equal-width bins, by count."""
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[min(bins - 1, int(row.confidence * bins))].append(row)
    gaps = (abs(sum(row.right - row.confidence for row in group)) for group in groups.values())
    return math.fsum(gaps) / len(rows)


def macro_f1(rows: Sequence[Row]) -> float:
    """Mean F1 over the classes that occur as gold."""
    right: dict[str, int] = defaultdict(int)
    gold: dict[str, int] = defaultdict(int)
    guessed: dict[str, int] = defaultdict(int)
    for row in rows:
        gold[row.gold] += 1
        guessed[row.guess] += 1
        right[row.gold] += row.right
    return sum(2 * right[name] / (gold[name] + guessed[name]) for name in gold) / len(gold)


def better(metric: str, new: float, old: float | None) -> bool:
    """Whether a new value of the metric beats the old one."""
    if old is None:
        return True
    return new > old if metric in HIGHER_IS_BETTER else new < old
