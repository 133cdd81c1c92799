from __future__ import annotations

import math

import pytest

from dicast.engine.drift import drift
from dicast.records import ChoiceAnswer, Decision, NoulAnswer, Usage


def decision(**answers: list[float]) -> Decision[None]:
    made = {}
    for key, values in answers.items():
        kind = NoulAnswer if len(values) == 2 else ChoiceAnswer
        names = ("true", "false") if len(values) == 2 else ("a", "b", "c")
        made[key] = kind(probabilities=dict(zip(names, values, strict=True)), confidence=0.0, logits={})
    return Decision(made, Usage(1))


def test_flips_probabilities_and_divergence_are_counted() -> None:
    reference = [decision(x=[0.9, 0.1], y=[0.5, 0.3, 0.2]), decision(x=[0.51, 0.49])]
    other = [decision(x=[0.8, 0.2], y=[0.3, 0.5, 0.2]), decision(x=[0.49, 0.51])]
    found = drift(reference, other)
    assert (found.questions, found.flips, found.clear_flips) == (3, 2, 1)
    assert found.largest == pytest.approx(0.2)
    assert found.mean == pytest.approx((2 * 0.1 + 2 * 0.2 + 2 * 0.02) / 7)
    first = 0.9 * math.log(0.9 / 0.8) + 0.1 * math.log(0.1 / 0.2)
    second = 0.5 * math.log(0.5 / 0.3) + 0.3 * math.log(0.3 / 0.5)
    third = 0.51 * math.log(0.51 / 0.49) + 0.49 * math.log(0.49 / 0.51)
    assert found.divergence == pytest.approx((first + second + third) / 3)


def test_the_same_answers_do_not_drift() -> None:
    same = [decision(x=[1.0, 0.0])]
    assert drift(same, same).largest == 0
    assert drift(same, same).divergence == 0


def test_decisions_must_belong_together() -> None:
    with pytest.raises(ValueError, match="no decisions"):
        drift([], [])
    with pytest.raises(ValueError, match="zip"):
        drift([decision(x=[1.0, 0.0])], [])
