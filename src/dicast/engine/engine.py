"""The engine: one queue in front of one model, safe to use from threads and from asyncio.

    with Engine(dicast.load()) as engine:
        future = engine.submit(record, deadline=2.0)     # concurrent.futures.Future[Decision]
        decision = await engine.decide_async(record)     # or future.result() in a thread

A record is checked and encoded in the thread that submits it, so that bad records fail at once and never take a place
in the queue. One worker thread scores. While it is idle a record is scored the moment it arrives; while it is busy
records wait, and the next batch is formed around the one that has waited longest. A record fails alone: by its own
error, its deadline or its cancellation. Knows nothing of HTTP or devices.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dicast.answers import Calibrator, ConfidenceRule
from dicast.engine.batches import BatchLimits, form_batches, limits_for
from dicast.engine.scoring import Prepared, answer, plan_batches, prepare, score_all
from dicast.errors import DeadlineExceededError, DicastError, EngineClosedError, EngineError, OverloadedError
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Model
from dicast.records import Decision, Record, check_limits

if TYPE_CHECKING:
    from dicast.model import DecisionModel

Progress: TypeAlias = bool | Callable[[int, int], None]
"""True shows a bar on standard error; a function is called with how many records are done and how many there are."""

LEAST_RETRY_MS, MOST_RETRY_MS, UNKNOWN_RETRY_MS = 50, 60_000, 1_000
LOOKAHEAD = 256
"""Waiting records, oldest first, among which a batch is formed."""
SPEED_MEMORY = 0.8
"""Weight of the past in the running mean of tokens per second."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What an engine is doing and has done.

    Attributes:
        queued_records, queued_tokens: waiting now.
        running_records: being scored now.
        answered, failed, expired, cancelled, refused: records since the start; `refused` found the queue full.
        batches: batches since the start.
        tokens: input tokens since the start.
        cached_tokens: how many of them were reused.
        tokens_per_second: running mean while scoring; 0 before the first batch.
    """

    queued_records: int = 0
    queued_tokens: int = 0
    running_records: int = 0
    answered: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    refused: int = 0
    batches: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    tokens_per_second: float = 0.0


@dataclass(slots=True)
class _Job:
    """One submitted record. Whoever takes it from the queue, or finds its future still open, owns the outcome."""

    number: int
    prepared: Prepared
    calibration: Calibrator | None
    confidence: ConfidenceRule
    future: Future[Decision[Any]] = field(default_factory=Future)

    @property
    def tokens(self) -> int:
        return self.prepared.encoding.length


@dataclass(slots=True)
class _Counts:
    answered: int = 0
    failed: int = 0
    expired: int = 0
    cancelled: int = 0
    refused: int = 0
    batches: int = 0
    tokens: int = 0
    cached_tokens: int = 0


class Engine:
    """Answers records from many threads and tasks with one model. See the module's header.

    Args:
        model: what `dicast.load` returns, or a bare runtime.
        limits: bounds of a batch; None chooses by device.
        queue_records: most records that wait.
        queue_tokens: most tokens that wait; one record is always let in.
    """

    def __init__(
        self,
        model: DecisionModel | Model,
        *,
        limits: BatchLimits | None = None,
        queue_records: int = 1024,
        queue_tokens: int = 2_000_000,
    ) -> None:
        from dicast.model import DecisionModel

        self.model = model if isinstance(model, DecisionModel) else DecisionModel(model)
        self.limits = limits or limits_for(self.model.info)
        self.queue_records, self.queue_tokens = queue_records, queue_tokens
        self._queue: dict[int, _Job] = {}
        self._queued_tokens = 0
        self._running: list[_Job] = []
        self._deadlines: list[tuple[float, int]] = []
        self._watched: dict[int, _Job] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition(threading.RLock())
        self._closing = False
        self._counts = _Counts()
        self._speed = 0.0
        self._worker = threading.Thread(target=self._work, name="dicast-engine", daemon=True)
        self._watcher: threading.Thread | None = None
        self._worker.start()

    def submit(
        self,
        record: Record,
        *,
        options: EncodeOptions = DEFAULT_OPTIONS,
        isolate: bool = False,
        deadline: float | None = None,
        calibration: Calibrator | Literal["model"] | None = "model",
        confidence: ConfidenceRule | None = None,
    ) -> Future[Decision[Any]]:
        """Queue a record.

        Args:
            record: the record.
            options: how to encode it.
            isolate: score every question alone under a neutral id, all from one reading of the state where the model
                can reuse it.
            deadline: seconds from now after which the answer is no longer wanted.
            calibration: ``"model"`` takes the model's own; None gives raw probabilities.
            confidence: rule that defines `confidence`; None takes the model's own.

        Returns:
            A future of the decision. It raises DeadlineExceededError, EngineClosedError (closed without draining) or
            EngineError (the model failed on this record). It can be cancelled until scoring begins;
            `asyncio.wrap_future` makes it awaitable.

        Raises:
            RecordError, TokenBudgetError, CapabilityError, MediaError: the record is bad.
            OverloadedError: the queue is full.
            EngineClosedError: the engine is closing.
        """
        began = time.monotonic()
        with self._changed:
            self._admit(0)
        prepared = prepare(self.model.model, check_limits(record), options, isolate=isolate)
        job = _Job(
            next(self._numbers),
            prepared,
            self.model.calibration if calibration == "model" else calibration,
            confidence or self.model.confidence,
        )
        self._enqueue(job, None if deadline is None else began + deadline)
        return job.future

    def decide(self, record: Record, **options: Any) -> Decision[Any]:
        """Answer one record; the arguments and errors of :meth:`submit`."""
        return self.submit(record, **options).result()

    async def decide_async(self, record: Record, **options: Any) -> Decision[Any]:
        """Answer one record without blocking the event loop; the arguments and errors of :meth:`submit`.

        Cancelling the task takes the record from the queue.
        """
        future = await asyncio.to_thread(self.submit, record, **options)
        return await asyncio.wrap_future(future)

    def decide_batch(
        self,
        records: Sequence[Record],
        *,
        progress: Progress = False,
        errors: Literal["raise", "return"] = "raise",
        **options: Any,
    ) -> list[Any]:
        """Answer many records, in order; waits for room where the queue is full.

        Args:
            records: the records.
            progress: whether and how to show progress.
            errors: ``"raise"`` raises the first record's error once every record is done; ``"return"`` puts each error
                in the place of its decision.
            **options: as :meth:`submit`.

        Raises:
            DicastError: a record failed and `errors` is ``"raise"``.
        """
        futures: list[Future[Decision[Any]] | DicastError] = []
        with _Meter(len(records), progress) as meter:
            try:
                for record in records:
                    submitted = self._submit_patiently(record, options)
                    futures.append(submitted)
                    meter.watch(submitted)
                outcomes = [_outcome(future) for future in futures]
            except BaseException:  # also an interrupt: what waits must not be scored for nobody
                for future in futures:
                    if isinstance(future, Future):
                        future.cancel()
                raise
        if errors == "raise":
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
        return outcomes

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Stop; safe to call more than once.

        Args:
            drain: answer what waits first; otherwise it fails with EngineClosedError.
            timeout: seconds to wait for the worker; None waits until it is done.
        """
        with self._changed:
            self._closing = True
            dropped = [] if drain else [self._remove(number) for number in list(self._queue)]
            self._changed.notify_all()
        for job in dropped:
            if job.future.set_running_or_notify_cancel():
                self._fail(job, EngineClosedError("the engine was closed before this record was scored"))
        if threading.current_thread() is not self._worker:
            self._worker.join(timeout)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(drain=kind is None)

    def stats(self) -> EngineStats:
        """What the engine is doing and has done."""
        with self._changed:
            counts = self._counts
            return EngineStats(
                queued_records=len(self._queue),
                queued_tokens=self._queued_tokens,
                running_records=len(self._running),
                answered=counts.answered,
                failed=counts.failed,
                expired=counts.expired,
                cancelled=counts.cancelled,
                refused=counts.refused,
                batches=counts.batches,
                tokens=counts.tokens,
                cached_tokens=counts.cached_tokens,
                tokens_per_second=self._speed,
            )

    # The queue. Everything below that touches it holds the lock.

    def _admit(self, tokens: int) -> None:
        if self._closing:
            raise EngineClosedError("the engine is closing and takes no new records")
        full = len(self._queue) >= self.queue_records
        if full or (self._queue and self._queued_tokens + tokens > self.queue_tokens):
            self._counts.refused += 1
            raise OverloadedError(
                f"{len(self._queue)} records with {self._queued_tokens} tokens wait already",
                retry_after_ms=self._retry_after_ms(),
            )

    def _retry_after_ms(self) -> int:
        """When half of what waits will be done at the present speed."""
        if not self._speed:
            return UNKNOWN_RETRY_MS
        estimate = 1000 * self._queued_tokens / 2 / self._speed
        return int(min(max(estimate, LEAST_RETRY_MS), MOST_RETRY_MS))

    def _enqueue(self, job: _Job, until: float | None) -> None:
        with self._changed:
            self._admit(job.tokens)
            self._queue[job.number] = job
            self._queued_tokens += job.tokens
            if until is not None:
                self._watch_deadline(job, until)
            self._changed.notify_all()
        job.future.add_done_callback(lambda future: self._settled(job, future))

    def _remove(self, number: int) -> _Job:
        job = self._queue.pop(number)
        self._queued_tokens -= job.tokens
        return job

    def _settled(self, job: _Job, future: Future[Decision[Any]]) -> None:
        """Nothing is kept of a settled record; a cancelled one leaves the queue at once."""
        with self._changed:
            self._watched.pop(job.number, None)
            if future.cancelled() and job.number in self._queue:
                self._remove(job.number)
                self._counts.cancelled += 1
                self._changed.notify_all()

    def _take(self) -> list[_Job]:
        """The batch around the record that has waited longest."""
        jobs = list(itertools.islice(self._queue.values(), LOOKAHEAD))
        try:
            chosen = next(batch for batch in self._batches(jobs) if 0 in batch)
        except (
            Exception
        ):  # a fault of the model's planning shows again when the oldest record is scored, and is its own
            chosen = [0]
        return [self._remove(jobs[index].number) for index in sorted(chosen)]

    def _batches(self, jobs: Sequence[_Job]) -> list[list[int]]:
        if any(len(job.prepared.parts) > 1 for job in jobs):
            return form_batches([job.tokens for job in jobs], self.limits)
        return plan_batches(self.model.model, [job.prepared.parts[0] for job in jobs], self.limits)

    # The worker.

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    self._changed.notify_all()
                    return
                self._running = [job for job in self._take() if job.future.set_running_or_notify_cancel()]
                self._changed.notify_all()
            if self._running:
                self._score(self._running)
            with self._changed:
                self._running = []
                self._changed.notify_all()

    def _score(self, jobs: Sequence[_Job]) -> None:
        began = time.monotonic()
        try:
            parts = [part for job in jobs for part in job.prepared.parts]
            outcomes = iter(score_all(self.model.model, parts, self.limits))
            for job in jobs:
                self._answer(job, [next(outcomes) for _ in job.prepared.parts])
        except Exception as error:  # a fault of the engine itself must not leave callers waiting
            for job in jobs:
                self._fail(job, EngineError(f"the engine failed: {type(error).__name__}: {error}"))
        self._note_batch(sum(job.tokens for job in jobs), time.monotonic() - began)

    def _answer(self, job: _Job, outcomes: Sequence[Any]) -> None:
        try:
            decision = answer(
                job.prepared,
                outcomes,
                calibration=job.calibration,
                model=self.model.info.name,
                confidence=job.confidence,
            )
        except DicastError as error:
            self._fail(job, error)
            return
        if _finish(job.future.set_result, decision):
            with self._changed:
                self._counts.answered += 1
                self._counts.cached_tokens += decision.usage.cached_tokens

    def _fail(self, job: _Job, error: DicastError) -> None:
        if _finish(job.future.set_exception, error):
            with self._changed:
                self._counts.failed += 1

    def _note_batch(self, tokens: int, seconds: float) -> None:
        speed = tokens / max(seconds, 1e-6)
        with self._changed:
            self._counts.batches += 1
            self._counts.tokens += tokens
            self._speed = SPEED_MEMORY * self._speed + (1 - SPEED_MEMORY) * speed if self._speed else speed

    # Deadlines.

    def _watch_deadline(self, job: _Job, until: float) -> None:
        if len(self._deadlines) > 2 * len(self._watched) + 64:  # most are settled: forget theirs
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._watched]
            heapq.heapify(self._deadlines)
        self._watched[job.number] = job
        heapq.heappush(self._deadlines, (until, job.number))
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="dicast-deadlines", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        """Fails records whose deadline passes, waiting or running, at that moment."""
        while True:
            with self._changed:
                while self._deadlines and self._deadlines[0][1] not in self._watched:
                    heapq.heappop(self._deadlines)
                if self._closing and not self._queue and not self._running:
                    self._watcher = None
                    return
                wait = self._deadlines[0][0] - time.monotonic() if self._deadlines else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                job = self._watched.pop(heapq.heappop(self._deadlines)[1])
                waiting = job.number in self._queue
                if waiting:
                    self._remove(job.number)
                    self._changed.notify_all()
            if not waiting or job.future.set_running_or_notify_cancel():
                self._expire(job)

    def _expire(self, job: _Job) -> None:
        error = DeadlineExceededError("the deadline passed before the record was answered")
        if _finish(job.future.set_exception, error):
            with self._changed:
                self._counts.expired += 1

    def _submit_patiently(self, record: Record, options: Mapping[str, Any]) -> Future[Decision[Any]] | DicastError:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or len(self._queue) < self.queue_records)
            try:
                return self.submit(record, **options)
            except OverloadedError:
                with self._changed:
                    self._changed.wait(0.1)
            except DicastError as error:
                return error


def _finish(settle: Callable[[Any], None], value: Any) -> bool:
    """Settle a future unless somebody else was first."""
    try:
        settle(value)
    except InvalidStateError:
        return False
    return True


def _outcome(future: Future[Decision[Any]] | DicastError) -> Decision[Any] | Exception:
    if isinstance(future, Future):
        return future.exception() or future.result()  # type: ignore[return-value]
    return future


class _Meter:
    """Counts settled records and shows them."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._done = total, 0
        self._lock = threading.Lock()
        self._bar: Any = None
        self._report: Callable[[int, int], None] | None = progress if callable(progress) else None
        if progress is True:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="record")

    def watch(self, future: Future[Any] | DicastError) -> None:
        """Count a record when it is settled; an error is settled already."""
        if isinstance(future, Future):
            future.add_done_callback(lambda _: self._tick())
        else:
            self._tick()

    def _tick(self) -> None:
        with self._lock:
            self._done += 1
            if self._bar is not None:
                self._bar.update()
            if self._report is not None:
                self._report(self._done, self._total)

    def __enter__(self) -> _Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
