"""Rates and concurrency per caller, with a clock that tests set."""

import pytest

from dicast.server import limits
from dicast.server.limits import CallerLimits, RateLimitedError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def ask(callers: CallerLimits, name: str = "a", **own: int) -> bool:
    try:
        with callers.admitted(name, **own):
            return True
    except RateLimitedError:
        return False


def test_bursts_pass_and_the_mean_rate_holds() -> None:
    clock = Clock()
    callers = CallerLimits(60, 0, clock)
    assert [ask(callers) for _ in range(8)] == [True] * 6 + [False] * 2
    clock.now += 1
    assert [ask(callers) for _ in range(2)] == [True, False]
    clock.now += 3600
    assert [ask(callers) for _ in range(8)] == [True] * 6 + [False] * 2


def test_the_hint_says_when_the_next_request_passes() -> None:
    clock = Clock()
    callers = CallerLimits(6, 0, clock)
    assert ask(callers)
    with pytest.raises(RateLimitedError) as caught, callers.admitted("a"):
        pass
    assert caught.value.retry_after_ms == 10_000
    clock.now += 10
    assert ask(callers)


def test_callers_do_not_share_and_can_have_bounds_of_their_own() -> None:
    callers = CallerLimits(1, 0, Clock())
    assert ask(callers, "a")
    assert not ask(callers, "a")
    assert ask(callers, "b")
    assert [ask(callers, "c", rate=20) for _ in range(3)] == [True, True, False]


def test_requests_at_once_are_counted_while_they_run() -> None:
    callers = CallerLimits(0, 2, Clock())
    with callers.admitted("a"):
        with callers.admitted("a"):
            assert not ask(callers, "a")
            assert ask(callers, "b")
        assert ask(callers, "a")
    with pytest.raises(ZeroDivisionError), callers.admitted("a"):
        raise ZeroDivisionError
    with callers.admitted("a"), callers.admitted("a"):
        pass


def test_silent_callers_are_forgotten_but_not_busy_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CALLERS", 3)
    callers = CallerLimits(1, 0, Clock())
    with callers.admitted("busy"):
        for name in "abcdef":
            assert ask(callers, name)
        assert len(callers._callers) <= 4
        assert not ask(callers, "busy")
