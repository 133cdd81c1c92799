from __future__ import annotations

import pytest
from benchmarks.measure import Time, compare, machine, markdown, row


def test_contenders_take_turns_and_the_first_run_is_not_counted() -> None:
    ran: list[str] = []
    result = compare("s", "n", {"ours": lambda: ran.append("a"), "theirs": lambda: ran.append("b")}, rounds=3)
    assert ran == ["a", "b"] * 4
    assert {name: len(values) for name, values in result.seconds.items()} == {"ours": 3, "theirs": 3}


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    times = {
        "ours": [Time(1, 1), Time(10, 2), Time(1, 1)],
        "theirs": [Time(2, 4), Time(40, 4), Time(3, 4)],
    }
    result = row("s", "n", times, target=2.0, difference=1e-7, tolerance=1e-4, note="why")
    assert result.ratios == {"theirs": 3.0}
    assert result.processor_ratios == {"theirs": 4.0}
    assert result.medians == {"ours": 1, "theirs": 3}
    text = markdown([result], machine())
    assert "| s: n | 1.00 s | theirs 3.00 s | theirs 3.00 (2) | theirs 4.00 | 1.0e-07 logit (1e-04) | 3 |" in text
    assert "- s, n: why" in text


def test_work_in_other_processes_has_no_processor_ratio() -> None:
    result = row("s", "n", {"ours": [Time(1, 0)], "theirs": [Time(2, 0)]})
    assert result.processor_ratios == {}
    assert result.ratios["theirs"] == pytest.approx(2)
