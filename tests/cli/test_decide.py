"""`dicast decide`: requests from files, from standard input and from flags; JSON and tables."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
BODY = {
    "model": "jev-latest",
    "state": "My card was charged twice.",
    "questions": {
        "refund": {"type": "noul", "instructions": "Refund wanted?"},
        "team": {"type": "choice", "criteria": {"billing": "Payments", "technical": None}},
        "mood": {"type": "score", "criteria": ["calm", "angry"]},
    },
}

pytestmark = pytest.mark.usefixtures("toy")


def test_a_request_file_gives_the_response_body(
    dicast_command: Callable[..., Any], request_file: Callable[..., Path]
) -> None:
    outcome = dicast_command("decide", request_file(BODY))
    assert outcome.code == 0
    assert outcome.err == ""
    body = outcome.json
    assert body["model"] == "toy"
    assert list(body["answers"]) == ["refund", "team", "mood"]
    assert body["answers"]["refund"] == {"type": "noul", "noul": 0.7311}
    assert body["answers"]["team"]["choice"] == "billing"
    assert body["answers"]["mood"]["legend"] == {"0": "calm", "1": "angry"}
    assert body["usage"] == {"input_tokens": 5, "output_tokens": 0}


def test_a_request_is_read_from_standard_input(
    dicast_command: Callable[..., Any], request_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = request_file(BODY)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert dicast_command("decide", "-").json == dicast_command("decide", path).json


def test_the_shipped_example_is_answered(dicast_command: Callable[..., Any]) -> None:
    outcome = dicast_command("decide", ROOT / "examples/support_ticket.json", "--table")
    assert outcome.code == 0
    assert outcome.out.startswith("urgent  ")
    assert "payments  (confidence" in outcome.out


def test_a_terminal_gets_a_table_in_colour_and_a_pipe_json(
    dicast_command: Callable[..., Any], request_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = request_file(BODY)
    assert dicast_command("decide", path).out.startswith("{")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert dicast_command("decide", path).out.startswith("\x1b[1mrefund\x1b[0m")
    assert dicast_command("decide", path, "--json").out.startswith("{")
    monkeypatch.setenv("NO_COLOR", "1")
    assert dicast_command("decide", path).out.startswith("refund")


def test_flags_ask_in_the_order_in_which_they_are_typed(dicast_command: Callable[..., Any]) -> None:
    outcome = dicast_command(
        "decide", "--score", "mood=How?:calm,angry", "--state", "--noul", "--noul", "a=Is it?",
        "--choice=team=Who: really?:x, y", "--json", "--noul", "b",
    )  # fmt: skip
    assert outcome.code == 0
    assert list(outcome.json["answers"]) == ["mood", "a", "team", "b"]
    assert list(outcome.json["answers"]["team"]["probabilities"]) == ["x", "y"]


def test_a_state_is_read_from_standard_input(
    dicast_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("drei Wörter hier".encode())))
    assert dicast_command("decide", "--state", "-", "--noul", "a").json["usage"]["input_tokens"] == 3


def test_options_reach_the_model(dicast_command: Callable[..., Any], toy: list[dict[str, Any]]) -> None:
    words = ["decide", "--state", "x", "--choice", "a=?:p,q", "-m", "M", "--device", "cpu", "--dtype", "float32"]
    outcome = dicast_command(*words, "--confidence", "pmax", "--digits", "2")
    assert toy[-1] == {"name": "M", "confidence": "pmax", "device": "cpu", "dtype": "float32"}
    assert outcome.json["answers"]["a"]["confidence"] == 0.73


def test_cutting_the_state_is_an_option_and_is_reported(dicast_command: Callable[..., Any]) -> None:
    outcome = dicast_command("decide", "--state", "word " * 60, "--noul", "a", "--truncation", "state_end")
    assert outcome.code == 0
    assert outcome.json["x_dicast"] == {"truncated": True, "state_tokens_dropped": 11}


def test_questions_can_be_scored_alone(dicast_command: Callable[..., Any], request_file: Callable[..., Path]) -> None:
    together = dicast_command("decide", request_file(BODY)).json
    alone = dicast_command("decide", request_file(BODY), "--isolate").json
    assert alone == dicast_command("decide", request_file(BODY | {"x_dicast": {"isolate": True}})).json
    assert alone["answers"] == together["answers"]
    assert alone["usage"]["input_tokens"] == 3 * together["usage"]["input_tokens"]


def test_image_files_are_shown(dicast_command: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(path)
    outcome = dicast_command("decide", "--state", "x", "--noul", "a", "--image", path, "--image", path, "--table")
    assert outcome.code == 0
    assert outcome.out.splitlines()[0].startswith("image 1  64x64  ")
    assert "2 of them media" in outcome.out
    small = dicast_command("decide", "--state", "x", "--noul", "a", "--image", path, "--max-pixels", "1024", "--json")
    assert small.code == 0


def test_logits_come_back_when_the_request_asks_for_them(
    dicast_command: Callable[..., Any], request_file: Callable[..., Path]
) -> None:
    outcome = dicast_command("decide", request_file(BODY | {"x_dicast": {"logits": True}}))
    assert outcome.json["x_dicast"]["answers"]["mood"]["logits"] == {"0": 0.0, "1": -1.0}
