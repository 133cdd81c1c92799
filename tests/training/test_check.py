import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dicast.cli.app import run
from dicast.errors import TokenBudgetError
from dicast.training.check import Report, check
from dicast.training.config import config_from
from dicast.training.data import Example
from dicast.training.neardup import jaccard, near_pairs, shingles

TEXT = "the customer writes that the parcel with the blue lamp never arrived at the old address in the town by the sea"


def row(state: str, label: str = "a", **more: Any) -> dict[str, Any]:
    return {"state": state, "questions": {"q": {"type": "choice", "criteria": ["a", "b"]}}, "gold": {"q": label}} | more


def checked(tmp_path: Path, train: list[Any], dev: list[Any] | None = None, count: Any = None) -> Report:
    sources: dict[str, Any] = {}
    for name, rows in (("train", train), ("dev", dev)):
        if rows is not None:
            path = tmp_path / f"{name}.jsonl"
            path.write_text("".join(one if isinstance(one, str) else json.dumps(one) + "\n" for one in rows))
            sources[name] = [{"path": str(path), "name": "s"}]
    return check(config_from({"data": sources}), count)


def test_good_data_passes(tmp_path: Path) -> None:
    report = checked(
        tmp_path, [row(f"text number {i}", "ab"[i % 2]) for i in range(20)], [row("something else")], lambda e: 7
    )
    assert report.ok
    assert not report.warnings
    assert report.facts["examples"] == {"train": 20, "dev": 1}
    assert report.facts["tokens"]["median"] == 7
    assert "the run can start" in report.text()


def test_all_wrong_rows_are_listed_at_once(tmp_path: Path) -> None:
    report = checked(tmp_path, [row("x"), row("y", "c"), row("z"), row("w", "d")])
    assert [error.split(": ")[0].rsplit("/", 1)[-1] for error in report.errors] == ["train.jsonl:2", "train.jsonl:4"]
    assert "label 'c' is not among the options (a, b)" in report.errors[0]


def test_long_lists_are_cut_and_counted(tmp_path: Path) -> None:
    report = checked(tmp_path, [row("x", "c") for _ in range(15)] + [row("y")])
    assert len(report.errors) == 11
    assert "and 5 more" in report.errors[-1]


def test_a_missing_file_and_no_data_are_errors(tmp_path: Path) -> None:
    report = check(config_from({"data": {"train": [{"path": str(tmp_path / "none.jsonl")}]}}), None)
    assert "no such data file" in report.errors[0]
    assert "no training examples" in report.errors[1]


def test_leaks_are_errors_whatever_their_case_and_near_ones_are_warnings(tmp_path: Path) -> None:
    train = [row(TEXT), row("short", family="f")]
    report = checked(tmp_path, train, [row(TEXT.upper() + "!")])
    assert "the same record is in" in report.errors[0]
    report = checked(tmp_path, train, [row(TEXT.replace("blue", "blue"), "a"), row("other", family="f")])
    assert any("family 'f'" in error for error in report.errors)
    report = checked(tmp_path, train, [row(TEXT + " today")])
    assert report.ok
    assert "nearly the state" in report.warnings[0]


def test_contradictions_and_repeats_are_reported(tmp_path: Path) -> None:
    report = checked(tmp_path, [row("x", "a"), row("x", "b"), row("x", "a")])
    assert report.facts["repeated training examples"] == 2
    assert any("another label" in warning for warning in report.warnings)


def test_balance_is_reported(tmp_path: Path) -> None:
    rows = [row(f"number {index}") for index in range(40)] + [row("one b", "b")]
    report = checked(tmp_path, rows)
    assert any("in 40 of 41" in warning for warning in report.warnings)
    assert any("b (1)" in warning for warning in report.warnings)


def test_records_that_do_not_fit_are_named(tmp_path: Path) -> None:
    def count(example: Example) -> int:
        if len(example.record.state) > 5:
            raise TokenBudgetError("too long", field="state", limit=5, seen=len(example.record.state))
        return len(example.record.state)

    report = checked(tmp_path, [row("short"), row("longer than that")], None, count)
    assert report.facts["too long"] == 1
    assert "train.jsonl:2: state: too long" in report.errors[0]


def test_media_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    report = checked(tmp_path, [row("x", images=["good.png"]), row("y", images=["bad.png", "gone.png"])])
    assert report.facts["images and videos"] == 3
    assert len(report.errors) == 2
    assert all("train.jsonl:2" in error for error in report.errors)


def test_the_command_exits_with_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text,label\nhello,a\nbye,b\n")
    start = Path(__file__).parents[1] / "golden" / "release"
    common = ["train", "--data", str(path), "--model", str(start), "--check"]
    assert run(common) == 0
    assert "the run can start" in capsys.readouterr().out
    assert run([*common, "--json", "--set", "model.max_length=20"]) == 2
    assert json.loads(capsys.readouterr().out)["ok"] is False
    assert run([*common, "--set", "optimizer.lrr=1"]) == 2
    assert "did you mean lr" in capsys.readouterr().err
    assert run(["train"]) == 2


def test_near_pairs_finds_what_is_near_and_nothing_else() -> None:
    words = TEXT.split()
    first = [TEXT, " ".join(reversed(words)), "short text"]
    second = [TEXT + " today", "an altogether different sentence about nothing", "Short, text!"]
    assert [(left, right) for left, right, _ in near_pairs(first, second, least=0.8)] == [(0, 0), (2, 2)]
    assert jaccard(shingles("a b c d"), shingles("a b c e")) == pytest.approx(1 / 3)
