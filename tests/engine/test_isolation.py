"""Isolation and failures on the way without a queue."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.fakes import FakeModel, record

from dicast.engine import BatchLimits, Engine
from dicast.engine.scoring import score_all
from dicast.errors import EngineError
from dicast.model import WINDOW, DecisionModel
from dicast.models.base import Scored
from dicast.records import Record


class ReusingFake(FakeModel):
    """Plans its own batches, and knows four tokens of every record."""

    def plan(self, encodings: Any, limits: BatchLimits) -> list[list[int]]:
        return [[index] for index in range(len(encodings))]

    def score_reusing(self, encodings: Any) -> list[Scored]:
        return [Scored(logits, 4) for logits in self.score(encodings)]


def test_a_model_may_plan_its_own_batches_and_say_what_it_reused() -> None:
    model = ReusingFake()
    decisions = DecisionModel(model).decide_batch([record("abcdef"), record("ghijkl", "a", "b")], isolate=True)
    assert [decision.usage.cached_tokens for decision in decisions] == [4, 8]
    assert model.batches == [["abcdef"], ["ghijkl"], ["ghijkl"]]


def test_the_engine_batches_as_the_model_plans() -> None:
    class Together(ReusingFake):
        def plan(self, encodings: Any, limits: BatchLimits) -> list[list[int]]:
            return [list(range(len(encodings)))]

    model = Together(open_gate=False)
    with Engine(model, limits=BatchLimits(tokens=1, records=1)) as engine:
        engine.submit(record("first"))
        assert model.entered.wait(20)
        futures = [engine.submit(record(text)) for text in ("long state", "s")]
        model.gate.set()
        assert [future.result(20).usage.cached_tokens for future in futures] == [4, 4]
    assert model.batches == [["first"], ["long state", "s"]]


def test_a_fault_in_planning_fails_records_and_not_the_engine() -> None:
    class Broken(ReusingFake):
        def plan(self, encodings: Any, limits: BatchLimits) -> list[list[int]]:
            raise ZeroDivisionError("no plan")

    with Engine(Broken()) as engine:
        for _ in range(2):
            with pytest.raises(EngineError, match="no plan"):
                engine.decide(record("a"))


def test_only_the_record_that_fails_has_an_error() -> None:
    model = FakeModel()
    encodings = [model.encode(record(text)) for text in ("one", "boom", "two", "six", "ten")]
    outcomes = score_all(model, encodings, BatchLimits(padding=0.9))
    assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, True, False, False, False]
    with pytest.raises(EngineError, match=r"the model failed on this record: RuntimeError: out of memory$"):
        DecisionModel(model).decide_batch([record("boom")])


def test_any_number_of_records_is_answered_in_order() -> None:
    count = WINDOW + 3
    decisions = DecisionModel(FakeModel()).decide_batch(
        {"state": "x" * (n % 7 + 1), "questions": Q} for n in range(count)
    )
    assert [decision.usage.input_tokens for decision in decisions] == [n % 7 + 1 for n in range(count)]
    assert DecisionModel(FakeModel()).decide_batch([]) == []


Q = {"q": {"type": "noul", "instructions": "Is it?"}}


def test_logits_of_a_question_without_instructions_are_asked_by_its_id() -> None:
    shown: list[Record] = []

    class Spy(FakeModel):
        def encode(self, record: Record, *options: Any) -> Any:
            shown.append(record)
            return super().encode(record, *options)

    DecisionModel(Spy()).decide("s", {"is it late": {"type": "noul"}}, isolate=True)
    assert list(shown[0].questions) == ["q"]
    assert shown[0].questions["q"].instructions == "is it late"
