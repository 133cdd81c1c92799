"""Decision Index tasks: the index's own scoring rules on hand-made cases, and a run over small real samples."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.evaluation.toys import DATA, Oracle, toy

from dicast.errors import ConfigError
from dicast.evaluation import index
from dicast.evaluation.backends import LocalBackend
from dicast.evaluation.data import DataFile, read
from dicast.evaluation.index import Case, published, run_index, score_task

TASKS = published()["tasks"]


def oracle(*names: str, **options: object) -> Oracle:
    gold = {}
    for name in names:
        path = DATA / "index" / name / "test.jsonl"
        gold |= {example.record.id or "": example.gold for example in read([DataFile(name, str(path))])}
    return Oracle(gold, **options)  # type: ignore[arg-type]


def test_unanswered_cases_scale_the_native_metric_down() -> None:
    cases = [Case(True, True, "a", "a")] * 6 + [Case(True, False, "a", "b")] * 2 + [Case(False, False, "a", "")] * 2
    scored = score_task(TASKS["cruxeval"], cases, repeats=20)
    assert scored["native"]["value"] == 0.75
    assert scored["coverage"]["value"] == 0.8
    assert scored["raw"]["value"] == pytest.approx(0.6)
    assert scored["skill"]["value"] == pytest.approx((0.6 - 0.3697) / (1 - 0.3697))


def test_tracks_are_corrected_for_chance_one_by_one() -> None:
    cases = [Case(True, True, "1", "1", "4-choice")] * 5 + [Case(True, False, "1", "2", "10-choice")] * 5
    scored = score_task(TASKS["gsm8k_choice"], cases, repeats=20)
    assert scored["raw"]["value"] == 0.5
    assert scored["skill"]["value"] == 0.5  # 1 on the first track, 0 on the second; not (0.5 - 0.175) / (1 - 0.175)


def test_macro_f1_counts_over_option_texts() -> None:
    cases = [Case(True, True, "x", "x"), Case(True, False, "y", "x")]
    scored = score_task(TASKS["banking77"], cases, repeats=5)
    assert scored["raw"]["value"] == pytest.approx((2 / 3 + 0) / 2)


def test_a_bfcl_case_needs_every_field(tmp_path: Path) -> None:
    backend = oracle("bfcl")
    result = run_index(DATA / "index", backend, tmp_path, tasks=["bfcl"], repeats=5)
    assert result["tasks"][0]["raw"]["value"] == 1.0
    several = next(gold for gold in backend.gold.values() if len(gold) > 1)
    field = next(iter(several))
    several[field] = "no" if several[field] == "yes" else "yes"
    wrong = run_index(DATA / "index", backend, tmp_path / "wrong", tasks=["bfcl"], repeats=5)
    assert wrong["tasks"][0]["raw"]["value"] == pytest.approx(5 / 6)


def test_a_run_over_all_samples_says_what_is_missing_and_what_was_seen(tmp_path: Path) -> None:
    known = frozenset({"gsm8k_choice"})
    result = run_index(DATA / "index", LocalBackend(toy()), tmp_path, repeats=10, known=known)
    by_name = {row["task"]: row for row in result["tasks"]}
    assert set(by_name) == {"bfcl", "banking77", "gsm8k_choice", "cruxeval"}
    assert by_name["gsm8k_choice"]["seen"] == "seen"
    assert by_name["bfcl"]["seen"] == "zero-shot"
    assert result["counted"] == 4
    assert {"API-Bank", "CLINC150+OOS", "SGD", "ToolRet"} <= set(result["missing"])
    text = index.markdown(result)
    assert "| Tools | BFCL | 6 of 1694 | case_exact | 100.0% |" in text
    assert "must not be called a Decision Index, which has 38 counted benchmarks" in text
    assert "| 98.5 | 98.8 | 95.8 | 94.5 | 38.1 |" in text


def test_a_second_run_asks_nothing(tmp_path: Path) -> None:
    first, again = oracle("cruxeval"), oracle("cruxeval")
    one = run_index(DATA / "index", first, tmp_path, tasks=["cruxeval"], repeats=5)
    assert run_index(DATA / "index", again, tmp_path, tasks=["cruxeval"], repeats=5) == one
    assert (first.asked, again.asked) == (5, 0)


def test_a_subset_is_said_and_fixed(tmp_path: Path) -> None:
    results = [
        run_index(DATA / "index", LocalBackend(toy()), tmp_path / str(turn), tasks=["gsm8k_choice"], limit=3, repeats=5)
        for turn in range(2)
    ]
    assert results[0] == results[1]
    assert results[0]["tasks"][0]["requests"] == 3
    assert "3 of 2638" in index.markdown(results[0])


def test_unknown_tasks_and_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such task; there are bfcl"):
        run_index(DATA / "index", Oracle(), tmp_path, tasks=["mmlu"])
    with pytest.raises(ConfigError, match="no task of the index found"):
        run_index(tmp_path, Oracle(), tmp_path / "out")


def test_published_rows_are_percentages_of_known_tasks() -> None:
    body = published()
    for row in body["rows"].values():
        assert set(row) <= set(body["tasks"])
        assert all(0 < value <= 100 and math.isfinite(value) for value in row.values())
    assert body["sources"]
