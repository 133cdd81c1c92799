"""Two runs on the same records."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evaluation.toys import Oracle, examples, oracle_for

from dicast.errors import ConfigError
from dicast.evaluation.compare import compare
from dicast.evaluation.harness import EvalOptions, evaluate
from dicast.evaluation.report import comparison

QUICK = EvalOptions(repeats=5)


def test_a_better_run_is_better_with_an_interval(tmp_path: Path) -> None:
    made = list(examples(60))
    evaluate(made, oracle_for(made), tmp_path / "good", QUICK)
    evaluate(made, oracle_for(made[:30]), tmp_path / "bad", QUICK)
    found = compare(tmp_path / "good", tmp_path / "bad", repeats=200)
    assert found["n"] == 180
    assert found["difference"]["accuracy"]["low"] > 0.1
    assert found["difference"]["brier"]["high"] < 0.0
    assert found["mcnemar"]["families"] == 30
    assert found["mcnemar"]["only_second"] == 0
    assert found["mcnemar"]["p_value"] < 0.05
    assert "only there 0" in comparison(found | {"with": "bad"})


def test_a_run_compared_with_itself_differs_in_nothing(tmp_path: Path) -> None:
    made = list(examples(10))
    evaluate(made, oracle_for(made), tmp_path, QUICK)
    found = compare(tmp_path, tmp_path, repeats=20)
    assert found["difference"]["accuracy"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert found["mcnemar"]["p_value"] == 1.0


def test_unanswered_questions_count_as_wrong(tmp_path: Path) -> None:
    made = list(examples(10))
    evaluate(made, oracle_for(made), tmp_path / "all", QUICK)
    evaluate(made, oracle_for(made, refused=("r1",)), tmp_path / "most", QUICK)
    found = compare(tmp_path / "all", tmp_path / "most", repeats=20)
    assert found["difference"]["accuracy"]["value"] == pytest.approx(0.1)


def test_other_records_are_refused(tmp_path: Path) -> None:
    evaluate(list(examples(4)), Oracle(), tmp_path / "a", QUICK)
    evaluate(list(examples(8))[4:], Oracle(), tmp_path / "b", QUICK)
    with pytest.raises(ConfigError, match="different records"):
        compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ConfigError, match="no question in common"):
        compare(tmp_path / "a", tmp_path / "c")
