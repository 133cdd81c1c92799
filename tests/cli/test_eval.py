"""`dicast eval` from the outside: files, tasks, suites, servers, comparison, and what it refuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.toys import DATA, toy

import dicast.checkpoints
import dicast.model

QUICK = ("--repeats", "20", "--no-progress")
CREAK = DATA / "records" / "creak"


@pytest.fixture(autouse=True)
def checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the toy model's weights would be."""
    folder = tmp_path_factory.mktemp("weights")
    (folder / "head.onnx").write_bytes(b"1")

    def load(name: str | None = None, *, device: str = "auto", dtype: str = "auto", calibrated: bool = True) -> Any:
        return toy(1.0 if name == "soft" else 3.0)

    monkeypatch.setattr(dicast.model, "load", load)
    monkeypatch.setattr(dicast.checkpoints, "resolve", lambda name: (folder, "toy", ""))
    return folder


@pytest.fixture
def server_url() -> Iterator[str]:
    """A System One server that always says true, with two decimals."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answers = {key: {"type": "noul", "noul": 0.75} for key in asked["questions"]}
            body = json.dumps({"model": "always-true", "answers": answers, "usage": {"input_tokens": 3}}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_records_are_measured_and_three_reports_written(dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    outcome = dicast_command("eval", "-d", CREAK, "--split", "dev", "-o", tmp_path, "--slice", "question", *QUICK)
    assert outcome.code == 0, outcome.err
    assert "# Evaluation of toy" in outcome.out
    result = json.loads((tmp_path / "results.json").read_text())
    assert result["slices"]["all"]["n"] == 12
    assert "question=true" in result["slices"]
    assert result["run"]["data"][0].startswith("creak:")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_same_command_again_reads_the_predictions_back(dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    command = ("eval", "-d", CREAK, "--split", "dev", "-o", tmp_path, *QUICK)
    first = dicast_command(*command)
    before = (tmp_path / "predictions.jsonl").read_bytes()
    assert dicast_command(*command).out == first.out
    assert (tmp_path / "predictions.jsonl").read_bytes() == before


def test_answers_of_other_weights_are_not_taken_over(
    dicast_command: Callable[..., Any], tmp_path: Path, checkpoint: Path
) -> None:
    command = ("eval", "-d", CREAK, "--split", "dev", "-o", tmp_path, *QUICK)
    assert dicast_command(*command).code == 0
    assert "calibrated = True" in dicast_command(*command, "--uncalibrated").err
    (checkpoint / "head.onnx").write_bytes(b"2")
    outcome = dicast_command(*command)
    assert outcome.code == 2
    assert "holds a run with weights = " in outcome.err


def test_a_server_goes_through_the_same_harness(
    dicast_command: Callable[..., Any], tmp_path: Path, server_url: str
) -> None:
    outcome = dicast_command("eval", "-d", CREAK, "--split", "dev", "-m", server_url, "-o", tmp_path, *QUICK)
    assert outcome.code == 0, outcome.err
    result = json.loads((tmp_path / "results.json").read_text())
    assert result["model"]["name"] == "always-true"
    assert result["failed"] == 0
    assert result["slices"]["all"]["calibration"]["mean_confidence"] == pytest.approx(0.75)


def test_index_tasks_with_seen_flags(dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"sources": ["cruxeval"]}')
    index = DATA / "index"
    outcome = dicast_command("eval", "--index", index, "-o", tmp_path / "out", "--manifest", manifest, *QUICK)
    assert outcome.code == 0, outcome.err
    assert "| Knowledge | CRUXEval | 5 of 570 |" in outcome.out
    rows = {row["task"]: row for row in json.loads((tmp_path / "out" / "index.json").read_text())["tasks"]}
    assert rows["cruxeval"]["seen"] == "seen"
    assert rows["bfcl"]["seen"] == "zero-shot"


def test_robustness_suites(dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    options = ("--robustness", "--suite", "negation", "--suite", "paraphrase", "--limit", "5")
    outcome = dicast_command("eval", "-d", DATA / "records", "--split", "dev", "-o", tmp_path, *options, *QUICK)
    assert outcome.code == 0, outcome.err
    assert list(json.loads((tmp_path / "robustness.json").read_text())["suites"]) == ["negation", "paraphrase"]


def test_two_runs_are_compared(dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    common = ("eval", "-d", DATA / "records", "--split", "dev", *QUICK)
    dicast_command(*common, "-o", tmp_path / "sharp")
    outcome = dicast_command(*common, "-m", "soft", "-o", tmp_path / "soft", "--compare", tmp_path / "sharp")
    assert outcome.code == 0, outcome.err
    assert "McNemar over" in outcome.out
    compared = json.loads((tmp_path / "soft" / "results.json").read_text())["compared"]
    assert compared["difference"]["accuracy"]["value"] == 0.0
    assert compared["difference"]["brier"]["value"] < 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "choose one of --data, --index and --external"),
        (("--data", "x", "--index", "y"), "choose one of"),
        (("--data", "no/such/folder"), "no test records found in no/such/folder"),
        (("--index", str(DATA / "index"), "--task", "mmlu"), "no such task; there are bfcl"),
        (("--data", str(DATA), "--robustness", "--suite", "luck"), "no such suite; there are option_order"),
        (("--external", "jevbench"), "pip install jevbench"),
    ],
)
def test_bad_commands_say_what_is_wrong(
    dicast_command: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    outcome = dicast_command("eval", *arguments, "-o", tmp_path, *QUICK)
    assert outcome.code in (1, 2)
    assert message in outcome.err
