"""A decision model made of a few lines, and a way to run the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dicast.model
from dicast.cli.app import run
from dicast.errors import ModelNotFoundError, TokenBudgetError
from dicast.model import DecisionModel
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Logits, ModelInfo, QuestionEncoding
from dicast.records import Record

BUDGET = 50
"""Words that fit the toy model."""


@dataclass(frozen=True, slots=True)
class ToyEncoding:
    questions: tuple[QuestionEncoding, ...]
    length: int
    media_tokens: int
    state_tokens_dropped: int
    fails: bool = False


class ToyModel:
    """Counts words as tokens; the first option of every question gets the largest logit; fails on the state "boom"."""

    info = ModelInfo("toy", "toy words", "onnx", {"head": 3}, "float32", "cpu", BUDGET, images=True, licence="CC0-1.0")

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> ToyEncoding:
        words = len(json.dumps(record.state).split())
        over = max(words - BUDGET, 0)
        if over and options.truncation == "refuse":
            raise TokenBudgetError(f"{words} tokens, but {BUDGET} fit", field="state", limit=BUDGET, seen=words)
        questions = tuple(QuestionEncoding(name, q.type, q.options) for name, q in record.questions.items())
        return ToyEncoding(questions, words - over, len(record.images), over, record.state == "boom")

    def score(self, encodings: Sequence[ToyEncoding]) -> list[Logits]:
        if any(encoding.fails for encoding in encodings):
            raise RuntimeError("the toy broke")
        return [
            [-np.arange(len(question.options), dtype=np.float32) for question in encoding.questions]
            for encoding in encodings
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def dicast_command(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Outcome]:
    """Run `dicast ...` here; what it writes comes back as text."""

    def command(*arguments: str | Path) -> Outcome:
        capfdbinary.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capfdbinary.readouterr()
        return Outcome(code, captured.out.decode("utf-8"), captured.err.decode("utf-8"))

    return command


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """`dicast.load` gives the toy model; the list holds what it was called with."""
    calls: list[dict[str, Any]] = []

    def load(name: str | None = None, *, confidence: Any = "typesafe", **options: Any) -> DecisionModel:
        calls.append({"name": name, "confidence": confidence} | options)
        if name == "missing":
            raise ModelNotFoundError("no model 'missing'", field="model", seen=name)
        return DecisionModel(ToyModel(), confidence=confidence)

    monkeypatch.setattr(dicast.model, "load", load)
    return calls


@pytest.fixture
def request_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a request body, given as bytes or as a value, to a file."""

    def write(body: Any) -> Path:
        path = tmp_path / "request.json"
        path.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
        return path

    return write
