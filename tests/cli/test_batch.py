"""`dicast batch`: order, errors in their places, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

QUESTIONS = {"a": {"type": "noul", "instructions": "Is it?"}}

pytestmark = pytest.mark.usefixtures("toy")


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    """Five lines: fine, not JSON, blank, over the budget, fine."""
    path = tmp_path / "requests.jsonl"
    lines = [
        json.dumps({"id": "first", "state": "one", "questions": QUESTIONS}),
        "{nonsense",
        "",
        json.dumps({"id": "long", "state": "word " * 60, "questions": QUESTIONS}),
        json.dumps({"id": 5, "state": "five", "questions": QUESTIONS}),
    ]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("chunk", [1, 2, 64])
def test_answers_and_errors_keep_their_places(dicast_command: Callable[..., Any], requests: Path, chunk: int) -> None:
    outcome = dicast_command("batch", requests, "--chunk", chunk)
    assert outcome.code == 2
    assert outcome.err == "dicast: 2 records were refused and 0 failed; their lines in the output say why\n"
    first, nonsense, long, last = outcome.lines
    assert (first["line"], first["id"], first["answers"]["a"]) == (1, "first", {"type": "noul", "noul": 0.7311})
    assert (nonsense["line"], "id" in nonsense) == (2, False)
    assert "JSON decode error" in nonsense["error"]["message"]
    assert (long["line"], long["id"]) == (4, "long")
    message = "state: 61 tokens, but 50 fit"
    assert long["error"] == {"type": "TokenBudgetError", "message": message, "field": "state", "limit": 50, "seen": 61}
    assert (last["line"], last["id"]) == (5, 5)


def test_a_record_that_breaks_the_model_fails_alone(dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps({"state": s, "questions": QUESTIONS}) + "\n" for s in ("a", "boom", "c")))
    outcome = dicast_command("batch", path)
    assert outcome.code == 1
    assert ["error" in line for line in outcome.lines] == [False, True, False]
    assert outcome.lines[1]["error"]["type"] == "EngineError"


def test_lines_may_ask_in_different_ways(dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    long = {"state": "word " * 60, "questions": QUESTIONS | {"b": {"type": "noul"}}}
    ways: list[dict[str, Any]] = [{"truncation": "state_end"}, {}, {"truncation": "state_end", "isolate": True}]
    path.write_text("".join(json.dumps(long | {"x_dicast": way}) + "\n" for way in ways))
    cut, refused, isolated = dicast_command("batch", path).lines
    assert cut["usage"]["input_tokens"] == 50
    assert refused["error"]["limit"] == 50
    assert isolated["usage"]["input_tokens"] == 100


def test_no_bad_line_no_complaint(dicast_command: Callable[..., Any], requests: Path) -> None:
    requests.write_text(requests.read_text().splitlines()[0])
    outcome = dicast_command("batch", requests)
    assert (outcome.code, outcome.err) == (0, "")


def test_shared_questions_serve_lines_that_have_none(dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "questions.json").write_text(json.dumps(QUESTIONS))
    (tmp_path / "states.jsonl").write_text('{"state": "x"}\n{"state": {"y": 1}}\n')
    outcome = dicast_command("batch", tmp_path / "states.jsonl", "--questions", tmp_path / "questions.json")
    assert outcome.code == 0
    assert [list(line["answers"]) for line in outcome.lines] == [["a"], ["a"]]


def test_an_interrupted_run_goes_on_where_it_stopped(
    dicast_command: Callable[..., Any], requests: Path, tmp_path: Path
) -> None:
    output = tmp_path / "answers.jsonl"
    dicast_command("batch", requests, "-o", output)
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    for kept in range(len(lines) + 1):
        for torn in (b"", b'{"line": 99, "answ'):
            output.write_bytes(b"".join(lines[:kept]) + torn)
            dicast_command("batch", requests, "-o", output, "--resume")
            assert output.read_bytes() == whole


def test_resuming_begins_when_there_is_nothing_yet(
    dicast_command: Callable[..., Any], requests: Path, tmp_path: Path
) -> None:
    dicast_command("batch", requests, "-o", tmp_path / "new.jsonl", "--resume")
    assert len((tmp_path / "new.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("{}\n", [], "exists: add --resume"),
        ("hello\n", ["--resume"], "is not an output of `dicast batch`"),
        ('{"line": 1, "id": "other"}\n', ["--resume"], "the output is of another input: line 1"),
        ("{}\n", ["--resume", "--overwrite"], "no --overwrite"),
    ],
)
def test_an_output_that_is_not_ours_is_left_alone(
    content: str,
    options: list[str],
    message: str,
    dicast_command: Callable[..., Any],
    requests: Path,
    tmp_path: Path,
) -> None:
    output = tmp_path / "answers.jsonl"
    output.write_text(content)
    outcome = dicast_command("batch", requests, "-o", output, *options)
    assert outcome.code == 2
    assert message in outcome.err
    assert output.read_text() == content


def test_a_missing_file_is_named(dicast_command: Callable[..., Any]) -> None:
    outcome = dicast_command("batch", "nowhere.jsonl")
    assert outcome.code == 2
    assert outcome.err == "dicast: error: cannot read nowhere.jsonl: no such file or directory\n"


def test_progress_goes_to_standard_error(dicast_command: Callable[..., Any], requests: Path) -> None:
    outcome = dicast_command("batch", requests, "--progress")
    assert "100%  4 records" in outcome.err
    assert len(outcome.lines) == 4
