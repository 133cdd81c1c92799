"""Who may ask how often: requests per minute and at once, per key. Knows no HTTP; tests bring a clock of their own."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from time import monotonic

MAX_CALLERS = 10_000
"""Callers remembered; the one that has been silent longest and has nothing in flight is forgotten first."""
BUSY_RETRY_MS = 250
"""Retry hint for too many requests at once, in milliseconds: about the time of a few answers."""


class RateLimitedError(Exception):
    """A caller asks too often.

    Args:
        message: one sentence for people.
        retry_after_ms: when the next request will be let through, in milliseconds.
    """

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


@dataclass(slots=True)
class _Caller:
    tokens: float
    seen: float
    active: int = 0


class CallerLimits:
    """Token bucket and concurrency bound per caller.

    A bucket holds a tenth of a minute's requests (at least one), so that bursts pass and the mean rate holds.

    Args:
        requests_per_minute: the usual rate; 0 means no bound.
        concurrent: the usual bound on requests at once; 0 means no bound.
        clock: monotonic seconds.
    """

    def __init__(self, requests_per_minute: int, concurrent: int, clock: Callable[[], float] = monotonic) -> None:
        self._rate = requests_per_minute
        self._concurrent = concurrent
        self._clock = clock
        self._callers: OrderedDict[str, _Caller] = OrderedDict()

    @contextmanager
    def admitted(self, caller: str, rate: int | None = None, concurrent: int | None = None) -> Iterator[None]:
        """Count one request of a caller while it runs; ``rate`` and ``concurrent`` replace the usual bounds.

        Raises:
            RateLimitedError: the caller is over one of its bounds.
        """
        rate = self._rate if rate is None else rate
        concurrent = self._concurrent if concurrent is None else concurrent
        if not rate and not concurrent:
            yield
            return
        state = self._caller(caller, rate)
        if concurrent and state.active >= concurrent:
            raise RateLimitedError(f"more than {concurrent} requests at once", BUSY_RETRY_MS)
        if rate:
            self._take(state, rate)
        state.active += 1
        try:
            yield
        finally:
            state.active -= 1

    def _take(self, state: _Caller, rate: int) -> None:
        now = self._clock()
        state.tokens = min(_burst(rate), state.tokens + (now - state.seen) * rate / 60)
        state.seen = now
        if state.tokens < 1:
            wait = (1 - state.tokens) * 60 / rate
            raise RateLimitedError(f"more than {rate} requests per minute", math.ceil(wait * 1000))
        state.tokens -= 1

    def _caller(self, name: str, rate: int) -> _Caller:
        state = self._callers.get(name)
        if state is None:
            state = self._callers[name] = _Caller(_burst(rate), self._clock())
            self._forget()
        self._callers.move_to_end(name)
        return state

    def _forget(self) -> None:
        for name in list(islice(self._callers, max(0, len(self._callers) - MAX_CALLERS))):
            if not self._callers[name].active:
                del self._callers[name]


def _burst(rate: int) -> float:
    return max(1.0, rate / 10)
