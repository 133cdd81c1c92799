"""Logits become probabilities and answers in one place, by stated rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from dicast.answers import confidence_of, make_decision, softmax
from dicast.models.base import QuestionEncoding
from dicast.records import Choice, ChoiceAnswer, Noul, NoulAnswer, Record, Score, ScoreAnswer


@dataclass(frozen=True)
class Encoded:
    questions: Sequence[QuestionEncoding]
    length: int = 10
    media_tokens: int = 0
    state_tokens_dropped: int = 0


RECORD = Record(
    "s", {"c": Choice("?", {"b": None, "a": None}), "n": Noul("?"), "s": Score("?", ["low", {"x": 1}, "high"])}
)
ENCODED = Encoded(
    [
        QuestionEncoding("c", "choice", ("a", "b")),
        QuestionEncoding("n", "noul", ("true", "false")),
        QuestionEncoding("s", "score", ("0", "1", "2")),
    ]
)
LOGITS = [np.array(v, np.float32) for v in ([0.0, 1.0], [2.0, 0.0], [0.0, 0.0, 1.0])]


def test_answers_come_in_request_order_with_exact_numbers() -> None:
    decision = make_decision(RECORD, ENCODED, LOGITS, model="m")
    choice, noul, score = decision["c"], decision["n"], decision["s"]
    assert isinstance(choice, ChoiceAnswer)
    assert list(choice.probabilities) == ["b", "a"]
    assert choice.choice == "b"
    assert choice.probabilities["b"] == pytest.approx(1 / (1 + np.exp(-1)))
    assert choice.logits == {"b": 1.0, "a": 0.0}
    assert isinstance(noul, NoulAnswer)
    assert noul.noul == pytest.approx(1 / (1 + np.exp(-2)))
    assert isinstance(score, ScoreAnswer)
    assert score.score == pytest.approx((1 + 2 * np.e) / (2 + np.e))
    assert score.legend == {"0": "low", "1": {"x": 1}, "2": "high"}
    assert decision.usage.input_tokens == 10
    assert decision.usage.output_tokens == 0
    assert not decision.truncated


def test_a_tie_goes_to_the_first_option_in_request_order() -> None:
    tied = make_decision(RECORD, ENCODED, [np.zeros(2, np.float32), *LOGITS[1:]])
    answer = tied["c"]
    assert isinstance(answer, ChoiceAnswer)
    assert answer.choice == "b"


class Halving:
    """A calibration that halves logits and accepts nouls only."""

    def apply(self, kind: str, logits: np.ndarray) -> np.ndarray:
        return logits / 2

    def accepted(self, kind: str, question_id: str, probabilities: Sequence[float]) -> bool | None:
        return kind == "noul"

    def prediction_set(self, kind: str, question_id: str, probabilities: Mapping[str, float]) -> tuple[str, ...] | None:
        return tuple(probabilities) if kind == "choice" else None


def test_calibration_acts_before_everything_else_and_leaves_the_logits() -> None:
    decision = make_decision(RECORD, ENCODED, LOGITS, calibration=Halving())
    noul = decision["n"]
    assert isinstance(noul, NoulAnswer)
    assert noul.noul == pytest.approx(1 / (1 + np.exp(-1)))
    assert noul.logits == {"true": 2.0, "false": 0.0}
    assert (noul.accepted, decision["c"].accepted) == (True, False)
    assert decision["c"].prediction_set == ("b", "a")


def test_softmax_is_stable_and_refuses_what_is_not_finite() -> None:
    np.testing.assert_allclose(softmax([1e4, 1e4 - 1]), softmax([1.0, 0.0]), rtol=1e-9)
    with pytest.raises(FloatingPointError, match="must be finite"):
        softmax([np.nan, 0.0])


@pytest.mark.parametrize(
    ("kind", "p", "rule", "value"),
    [
        ("choice", [0.88, 0.12, 0.0], "typesafe", 0.82),
        ("score", [0.0, 0.95, 0.05], "typesafe", 0.925),
        ("score", [0.57, 0.43, 0.0], "typesafe", 0.355),
        ("score", [0.5, 0.0, 0.0, 0.5], "typesafe", 0.0),
        ("choice", [0.25] * 4, "typesafe", 0.0),
        ("choice", [0.7, 0.3], "pmax", 0.7),
        ("choice", [0.7, 0.3], "purity", 0.16),
        ("choice", [0.5, 0.5], "entropy", 0.0),
        ("choice", [1.0, 0.0], "entropy", 1.0),
        ("choice", [1.0], "typesafe", 1.0),
    ],
)
def test_confidence_rules(kind: str, p: list[float], rule: str, value: float) -> None:
    assert confidence_of(kind, p, rule) == pytest.approx(value)  # type: ignore[arg-type]


def test_entropy_in_nats() -> None:
    decision = make_decision(RECORD, ENCODED, [np.zeros(2, np.float32), *LOGITS[1:]])
    assert decision["c"].entropy == pytest.approx(np.log(2))


def test_to_dict_is_plain_and_unrounded() -> None:
    plain = make_decision(RECORD, ENCODED, LOGITS, model="m").to_dict()
    assert plain["model"] == "m"
    assert list(plain["answers"]) == ["c", "n", "s"]
    assert plain["answers"]["c"]["choice"] == "b"
    assert plain["usage"]["input_tokens"] == 10
