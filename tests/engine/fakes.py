"""A model of plain arithmetic: no weights, no torch; it can be made to wait, to fail and to count."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dicast.errors import TokenBudgetError
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Logits, ModelInfo, QuestionEncoding
from dicast.records import Noul, Record

INFO = ModelInfo("fake", "fake", "torch", {}, "float32", "cpu", 1000)


@dataclass(frozen=True)
class FakeEncoding:
    questions: tuple[QuestionEncoding, ...]
    length: int
    text: str
    media_tokens: int = 0
    state_tokens_dropped: int = 0


class FakeModel:
    """Logits are the length of the state and of the question's id; `gate` holds scoring back until it is set."""

    info = INFO

    def __init__(self, *, open_gate: bool = True) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[str]] = []
        if open_gate:
            self.gate.set()

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> FakeEncoding:
        text = str(record.state)
        if len(text) > self.info.max_tokens:
            raise TokenBudgetError("too long", field="state", limit=self.info.max_tokens, seen=len(text))
        questions = tuple(QuestionEncoding(key, q.type, q.options) for key, q in record.questions.items())
        return FakeEncoding(questions, max(len(text), 1), text)

    def score(self, encodings: Sequence[FakeEncoding]) -> list[Logits]:
        self.batches.append([encoding.text for encoding in encodings])
        self.entered.set()
        assert self.gate.wait(20)
        if any("boom" in encoding.text for encoding in encodings):
            raise RuntimeError("out of memory\nat layer 7")
        return [[self._logits(encoding, question) for question in encoding.questions] for encoding in encodings]

    @staticmethod
    def _logits(encoding: FakeEncoding, question: QuestionEncoding) -> np.ndarray:
        if "nan" in encoding.text:
            return np.full(len(question.options), np.nan, np.float32)
        first = float(len(encoding.text) + len(question.id))
        return np.array([first / 10, *range(1, len(question.options))], np.float32)


def record(text: str, *ids: str) -> Record:
    """A record with one noul per id."""
    return Record(text, {key: Noul("Is it so?") for key in ids or ("ok",)})
