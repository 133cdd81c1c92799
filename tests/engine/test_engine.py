"""Engine behaviour that must hold for every model; `fakes.FakeModel` makes each situation on purpose."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import CancelledError
from typing import Any

import pytest
from tests.engine.fakes import FakeModel, record

from dicast.engine import BatchLimits, Engine
from dicast.errors import (
    DeadlineExceededError,
    EngineClosedError,
    EngineError,
    OverloadedError,
    RecordError,
    TokenBudgetError,
)
from dicast.model import DecisionModel
from dicast.records import Noul, Record


def test_an_idle_engine_scores_at_once_and_alone() -> None:
    model = FakeModel()
    with Engine(model) as engine:
        decision = engine.decide(record("abc", "x", "yy"))
    assert list(decision) == ["x", "yy"]
    assert decision["x"].logits == pytest.approx({"true": 0.4, "false": 1.0})
    assert decision.usage.input_tokens == 3
    assert model.batches == [["abc"]]


def test_what_waits_is_scored_in_one_batch_by_length() -> None:
    model = FakeModel(open_gate=False)
    with Engine(model, limits=BatchLimits(tokens=1000, records=3, padding=0.2)) as engine:
        first = engine.submit(record("first"))
        assert model.entered.wait(20)
        futures = [engine.submit(record(text)) for text in ("a" * 50, "b" * 9, "c" * 48, "d" * 10)]
        model.gate.set()
        assert len({id(f.result(20)) for f in [first, *futures]}) == 5
    assert [sorted(map(len, batch)) for batch in model.batches] == [[5], [48, 50], [9, 10]]


def test_the_oldest_record_is_never_passed_over() -> None:
    model = FakeModel(open_gate=False)
    with Engine(model, limits=BatchLimits(tokens=100, records=2, padding=0.0)) as engine:
        engine.submit(record("first"))
        assert model.entered.wait(20)
        futures = [engine.submit(record("x" * n)) for n in (3, 70, 70, 70, 70, 3)]
        model.gate.set()
        for future in futures:
            future.result(20)
    assert [len(batch[0]) for batch in model.batches][:2] == [5, 3]


def test_bad_records_fail_when_they_are_submitted() -> None:
    with Engine(FakeModel()) as engine:
        with pytest.raises(TokenBudgetError):
            engine.submit(record("x" * 2000))
        with pytest.raises(RecordError):
            engine.submit(Record("x", {}))
        assert engine.stats().batches == 0


def test_a_failing_record_takes_no_batch_mate_with_it() -> None:
    model = FakeModel(open_gate=False)
    with Engine(model) as engine:
        engine.submit(record("first"))
        assert model.entered.wait(20)
        texts = ["good1", "boom1", "good2", "nan12", "good3"]
        futures = [engine.submit(record(text)) for text in texts]
        model.gate.set()
        for text, future in zip(texts, futures, strict=True):
            if text.startswith("good"):
                assert future.result(20)["ok"].logits["true"] == pytest.approx(0.7)
            else:
                with pytest.raises(EngineError, match=r"out of memory$|must be finite"):
                    future.result(20)
        assert engine.stats().failed == 2


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    model = FakeModel(open_gate=False)
    with Engine(model, queue_records=2) as engine:
        engine.submit(record("first"))
        assert model.entered.wait(20)
        waiting = [engine.submit(record("x")), engine.submit(record("y"))]
        with pytest.raises(OverloadedError) as caught:
            engine.submit(record("z"))
        assert caught.value.retry_after_ms > 0
        waiting[0].cancel()
        engine.submit(record("z"))
        assert engine.stats().refused == 1
        model.gate.set()


def test_tokens_bound_the_queue_too_but_one_record_always_enters() -> None:
    model = FakeModel(open_gate=False)
    with Engine(model, queue_tokens=10) as engine:
        engine.submit(record("first"))
        assert model.entered.wait(20)
        engine.submit(record("x" * 50))
        with pytest.raises(OverloadedError):
            engine.submit(record("y"))
        model.gate.set()


def test_deadlines_pass_while_waiting_and_while_running() -> None:
    model = FakeModel(open_gate=False)
    with Engine(model) as engine:
        running = engine.submit(record("first"), deadline=0.05)
        assert model.entered.wait(20)
        waiting = engine.submit(record("second"), deadline=0.05)
        patient = engine.submit(record("third"), deadline=60)
        for late in (running, waiting):
            with pytest.raises(DeadlineExceededError):
                late.result(20)
        model.gate.set()
        assert patient.result(20)
        assert engine.stats().expired == 2
    assert ["second"] not in model.batches


def test_a_cancelled_record_is_not_scored() -> None:
    model = FakeModel(open_gate=False)
    with Engine(model) as engine:
        engine.submit(record("first"))
        assert model.entered.wait(20)
        future = engine.submit(record("second"))
        assert future.cancel()
        assert engine.stats().queued_records == 0
        assert engine.stats().cancelled == 1
        model.gate.set()
        with pytest.raises(CancelledError):
            future.result(20)
    assert model.batches == [["first"]]


def test_closing_drains_or_drops() -> None:
    for drain in (True, False):
        model = FakeModel(open_gate=False)
        engine = Engine(model)
        first = engine.submit(record("first"))
        assert model.entered.wait(20)
        second = engine.submit(record("second"))
        closer = threading.Thread(target=engine.close, kwargs={"drain": drain})
        closer.start()
        while True:  # the gate may only open once the engine is closing
            try:
                engine.submit(record("late")).cancel()
            except EngineClosedError:
                break
        if not drain:
            with pytest.raises(EngineClosedError):
                second.result(20)
        model.gate.set()
        closer.join(20)
        assert first.result(20)
        if drain:
            assert second.result(20)


def test_isolated_questions_are_scored_under_one_neutral_id() -> None:
    model = FakeModel()
    asked = Record("abc", {"x": Noul("So?"), "longer id": Noul("So?"), "bare": Noul()})
    with Engine(model) as engine:
        decision = engine.decide(asked, isolate=True)
    assert list(decision) == ["x", "longer id", "bare"]
    assert decision["x"].logits == decision["longer id"].logits
    assert decision.usage.input_tokens == 9
    assert DecisionModel(model).decide("abc", asked.questions, isolate=True).answers == decision.answers


def test_a_batch_keeps_order_and_reports_progress_and_errors() -> None:
    seen: list[tuple[int, int]] = []
    records = [record("x" * n) for n in range(1, 40)]
    records[7] = record("boom")
    records[8] = record("x" * 5000)
    with Engine(FakeModel(), queue_records=4) as engine:
        outcomes: list[Any] = engine.decide_batch(
            records, progress=lambda done, total: seen.append((done, total)), errors="return"
        )
        assert isinstance(outcomes[7], EngineError)
        assert isinstance(outcomes[8], TokenBudgetError)
        tokens = [outcome.usage.input_tokens for outcome in outcomes if not isinstance(outcome, Exception)]
        assert tokens == [n for n in range(1, 40) if n not in (8, 9)]
        assert seen == [(n, 39) for n in range(1, 40)]
        with pytest.raises(EngineError):
            engine.decide_batch(records[:8])


def test_threads_and_an_event_loop_share_one_engine() -> None:
    def ask(start: int) -> None:
        for n in range(start, start + 60):
            got = engine.decide(record("x" * (n % 17 + 1)), deadline=30)
            results.append(got.usage.input_tokens == n % 17 + 1)

    async def hammer() -> None:
        tasks = [asyncio.create_task(engine.decide_async(record("y" * (n % 23 + 1)))) for n in range(120)]
        for task in tasks[::3]:
            task.cancel()
        for n, got in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
            results.append(isinstance(got, asyncio.CancelledError) or got.usage.input_tokens == n % 23 + 1)

    results: list[bool] = []
    with Engine(FakeModel()) as engine:
        threads = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        asyncio.run(hammer())
        for thread in threads:
            thread.join(30)
        assert engine.stats().queued_tokens == 0
    assert len(results) == 240
    assert all(results)


def test_nothing_is_kept_of_answered_records() -> None:
    with Engine(FakeModel()) as engine:
        kept = []
        for n in range(200):
            future = engine.submit(record(f"{n}"), deadline=1000)
            assert future.result(20)
            kept.append(weakref.ref(future))
        del future
        assert len(engine._deadlines) < 140
        deadline = time.monotonic() + 20
        while any(reference() is not None for reference in kept[:-1]) and time.monotonic() < deadline:
            gc.collect()
        assert all(reference() is None for reference in kept[:-1])
