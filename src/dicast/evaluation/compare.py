"""Two models on the same questions: paired differences with intervals, McNemar's test. Reads predictions files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dicast.errors import ConfigError
from dicast.evaluation.bootstrap import mcnemar, paired_difference
from dicast.evaluation.harness import PREDICTIONS, read_predictions
from dicast.evaluation.scoring import family_number, score


@dataclass(frozen=True, slots=True)
class Pair:
    """One question as both models answered it.

    Attributes:
        family: number of its family.
        correct: 0 or 1 for both; 0 for an unanswered question.
        brier: for both; an unanswered question counts as 2, the worst.
    """

    family: int
    correct: tuple[float, float]
    brier: tuple[float, float]


def compare(first: Path, second: Path, *, repeats: int = 1000, seed: int = 0) -> dict[str, Any]:
    """First minus second, over the questions that both folders hold.

    Args:
        first: a folder of `harness.evaluate`.
        second: another.
        repeats: bootstrap draws.
        seed: of the draws.

    Returns:
        ``n``, differences of accuracy and Brier score with intervals over families, and McNemar's exact test on one
        question per family.

    Raises:
        ConfigError: the folders hold different records, or no question in common.
    """
    pairs = list(_pairs(first, second))
    if not pairs:
        raise ConfigError("the two runs have no question in common", field="compare", seen=str(second))
    families = np.array([pair.family for pair in pairs])
    correct = np.array([pair.correct for pair in pairs])
    brier = np.array([pair.brier for pair in pairs])
    _, chosen = np.unique(families, return_index=True)
    only_first, only_second, p_value = mcnemar(correct[chosen, 0], correct[chosen, 1])
    difference = {
        name: asdict(paired_difference(values[:, 0], values[:, 1], families, repeats=repeats, seed=seed))
        for name, values in (("accuracy", correct), ("brier", brier))
    }
    test = {"families": int(chosen.size), "only_first": only_first, "only_second": only_second, "p_value": p_value}
    return {"n": len(pairs), "difference": difference, "mcnemar": test}


def _pairs(first: Path, second: Path) -> Iterator[Pair]:
    lines = zip(read_predictions(first / PREDICTIONS), read_predictions(second / PREDICTIONS), strict=False)
    for one, other in lines:
        if one["hash"] != other["hash"]:
            raise ConfigError("the two runs read different records", field="compare", seen=one["id"])
        for question_id, asked in one["questions"].items():
            rows = [_row(asked), _row(other["questions"][question_id])]
            correct, brier = zip(*rows, strict=True)
            yield Pair(family_number(one["family"]), correct, brier)


def _row(asked: Mapping[str, Any]) -> tuple[float, float]:
    row = score(asked["type"], asked["options"], asked.get("p"), asked["gold"], soft=asked.get("soft"))
    return row["correct"], row["brier"] if row["answered"] else 2.0
