"""Toys for the tests of evaluation: a model made of word overlap, a backend that counts, records made on the fly."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dicast.errors import TokenBudgetError
from dicast.evaluation.backends import Reply
from dicast.model import DecisionModel
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Logits, ModelInfo, QuestionEncoding
from dicast.records import Choice, Noul, Record, Score
from dicast.training.data import Example

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True)
class ToyEncoding:
    questions: tuple[QuestionEncoding, ...]
    length: int
    logits: tuple[tuple[float, ...], ...]
    media_tokens: int = 0
    state_tokens_dropped: int = 0


class ToyModel:
    """Logits are a hash of state, question and option: no sense, no order dependence, the same every time."""

    info = ModelInfo("toy", "hash", "onnx", {"head": 3}, "float32", "cpu", 2000)

    def __init__(self, sharpness: float = 3.0) -> None:
        self.sharpness = sharpness

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> ToyEncoding:
        if "too long" in str(record.state):
            raise TokenBudgetError("3000 tokens, but 2000 fit", field="state", limit=2000, seen=3000)
        questions = tuple(QuestionEncoding(name, q.type, q.options) for name, q in record.questions.items())
        rows = []
        for asked, question in zip(questions, record.questions.values(), strict=True):
            seeds = [
                zlib.crc32(f"{record.state}|{question.instructions}|{option}".encode()) for option in asked.options
            ]
            rows.append(tuple(self.sharpness * (seed % 1000 / 500 - 1) for seed in seeds))
        return ToyEncoding(questions, len(str(record.state).split()), tuple(rows))

    def score(self, encodings: Sequence[ToyEncoding]) -> list[Logits]:
        return [[np.array(row, np.float32) for row in encoding.logits] for encoding in encodings]


def toy(sharpness: float = 3.0, **options: Any) -> DecisionModel:
    return DecisionModel(ToyModel(sharpness), **options)


@dataclass
class Oracle:
    """A backend that gives the gold option the probability that the record's id asks for, and counts its calls."""

    gold: dict[str, dict[str, str]] = field(default_factory=dict)
    p: float = 0.8
    name: str = "oracle"
    chunk: int = 7
    asked: int = 0
    refused: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def answer(self, records: Sequence[Record]) -> list[Reply]:
        self.asked += len(records)
        return [self._reply(record) for record in records]

    def _reply(self, record: Record) -> Reply:
        if record.id in self.refused:
            return Reply(error="refused: too long", ms=1.0)
        answers = {}
        for key, question in record.questions.items():
            right = self.gold.get(record.id or "", {}).get(key, question.options[0])
            rest = (1 - self.p) / max(len(question.options) - 1, 1)
            answers[key] = {option: self.p if option == right else rest for option in question.options}
        return Reply(answers, 2.0, 11)


def examples(n: int, *, seed: int = 0) -> Iterator[Example]:
    """Records with one question of each type and random gold; families of two records."""
    random = np.random.default_rng(seed)
    for number in range(n):
        questions = {"yes": Noul("Is it?"), "which": Choice("Which?", ["a", "b", "c"]), "much": Score("How?", [*"lmh"])}
        yes, which, much = (int(random.integers(0, size)) for size in (2, 3, 3))
        gold = {"yes": ("true", "false")[yes], "which": "abc"[which], "much": str(much)}
        record = Record({"case": number}, questions, id=f"r{number}")
        yield Example(record, gold, family=f"f{number // 2}", source="made", meta={"half": number % 2})


def oracle_for(made: Sequence[Example], **options: Any) -> Oracle:
    return Oracle({example.record.id or "": example.gold for example in made}, **options)
