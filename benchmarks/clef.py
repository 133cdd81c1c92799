"""The whole Clef model on a random checkpoint of about 100 million parameters, against the reference's `systemone`.

Same folder, same requests, same threads, float32. The reference has no batching interface; beside its one-by-one
`systemone` its own collation is timed as one padded batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from benchmarks.checkpoints import HUNDRED_MILLION, Shape, checkpoint
from benchmarks.measure import Row, Time, compare, row, timed
from dicast.checkpoints import load_model
from dicast.engine.batches import CPU_LIMITS
from dicast.engine.scoring import score_all
from dicast.model import DecisionModel
from dicast.records import Record, as_questions

T = TypeVar("T")
QUESTIONS: dict[str, Any] = {
    "urgent": {"type": "noul", "instructions": "Is this support request urgent?"},
    "team": {
        "type": "choice",
        "instructions": "Which team should handle this request?",
        "criteria": {"billing": "Payments", "technical": "Outages and errors", "sales": "Plans"},
    },
    "severity": {
        "type": "score",
        "instructions": "How severe?",
        "criteria": ["No impact", "Minor", "Major", "Critical"],
    },
}
ONE_BY_ONE = {f"q{n}": {"type": "noul", "instructions": f"Does the log mention problem number {n}?"} for n in range(8)}
TEXT = "checkout fails for every customer since the last deploy and support has no answer yet"
WORDS = TEXT.split()
LENGTHS = (2, 3, 4, 6, 8, 10, 14, 18, 24, 30, 40, 50, 65, 80, 110, 140)
"""Words of the sixteen states of the mixed batch."""
TOLERANCE = 2e-3
"""Probabilities: the reference rounds to 4 digits, and float32 noise of a deep random network comes on top."""


class Sides:
    """Both implementations on one checkpoint.

    Every measured round has new states, so that nothing of a record is known; what never changes, the header before the
    state, may be.
    """

    def __init__(self, rounds: int, shape: Shape) -> None:
        from clef_finetune._vendor import joint_schema_model as reference

        folder = checkpoint(shape)
        self.rounds = rounds
        self.reference = reference
        self.theirs, self.processor = reference.load_release_model(folder, device="cpu", dtype=torch.float32)
        self.ours = DecisionModel(load_model(folder, device="cpu", dtype="float32", vision=False))
        self.section = f"whole model of {self.ours.info.parameters['backbone'] / 1e6:.0f}M"

    def ask_theirs(self, request: Mapping[str, Any]) -> Any:
        return self.reference.systemone(self.theirs, self.processor, {"model": "clef", **request})

    @torch.inference_mode()
    def batch_theirs(self, requests: list[dict[str, Any]]) -> Any:
        encoded = [self.reference.encode_record(self.processor.tokenizer, r, max_length=16384) for r in requests]
        pad = self.processor.tokenizer.pad_token_id
        return self.theirs(self.reference.collate_records(encoded, pad, torch.device("cpu")))

    def ask_ours(self, request: Mapping[str, Any]) -> Any:
        return self.ours.decide(request["state"], request["questions"])

    def batch_without_padding(self, requests: list[dict[str, Any]]) -> Any:
        """Records of equal lengths only in one batch: what padding costs and gives."""
        model = self.ours.model
        records = [Record(request["state"], as_questions(request["questions"])) for request in requests]
        return score_all(model, [model.encode(record) for record in records], replace(CPU_LIMITS, padding=0.0))

    def forget(self) -> None:
        self.ours.model.reuse.tree.clear()  # type: ignore[attr-defined]

    def difference(self, request: Mapping[str, Any]) -> float:
        """Largest difference of a shown probability."""
        theirs = self.ask_theirs(request)["answers"]
        ours = self.ask_ours(request)
        worst = 0.0
        for key, answer in theirs.items():
            shown = answer.get("probabilities") or {"true": answer["noul"]}
            worst = max(worst, *(abs(ours[key].probabilities[option] - p) for option, p in shown.items()))
        return worst


def text(words: int, seed: int) -> str:
    """A state of so many words."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


def rows(rounds: int, shape: Shape = HUNDRED_MILLION) -> Iterator[Row]:
    """Questions one by one, single records, a mixed batch."""
    sides = Sides(rounds, shape)
    yield _one_by_one(sides)
    for words in (5, 100):
        yield _single(sides, words)
    yield _batch(sides)


def _single(sides: Sides, words: int) -> Row:
    request = {"state": text(words, 0), "questions": QUESTIONS}
    tokens = sides.ask_ours(request).usage.input_tokens
    fresh = _Fresh(lambda seed: {"state": text(words, seed), "questions": QUESTIONS})
    return compare(
        sides.section,
        f"one record of about {tokens} tokens",
        {"dicast": lambda: sides.ask_ours(fresh.next()), "reference": lambda: sides.ask_theirs(fresh.same())},
        rounds=sides.rounds,
        difference=sides.difference(request),
        tolerance=TOLERANCE,
        unit="probability",
        note="a new state in every round; ours knows the header before it from earlier rounds",
    )


def _batch(sides: Sides) -> Row:
    def batch(seed: int) -> list[dict[str, Any]]:
        return [
            {"state": text(words, 1000 * seed + words), "questions": {"urgent": QUESTIONS["urgent"]}}
            for words in LENGTHS
        ]

    requests = batch(0)
    decided = sides.ours.decide_batch(requests)
    lengths = [decision.usage.input_tokens for decision in decided]
    fresh = _Fresh(batch)
    return compare(
        sides.section,
        f"16 records of about {min(lengths)} to {max(lengths)} tokens",
        {
            "dicast": lambda: sides.ours.decide_batch(fresh.next()),
            "dicast without any padding": lambda: sides.batch_without_padding(fresh.same()),
            "reference one by one": lambda: [sides.ask_theirs(request) for request in fresh.same()],
            "reference in one padded batch": lambda: sides.batch_theirs(fresh.same()),
        },
        rounds=sides.rounds,
        target=2.0,
        difference=max(sides.difference(request) for request in requests[::5]),
        tolerance=TOLERANCE,
        unit="probability",
        note="new states in every round; ours knows the header before them from earlier rounds",
    )


class _Fresh(Generic[T]):
    """Requests that were never asked before, the same ones for every contender of a round."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._seed = 0

    def next(self) -> T:
        """The requests of the next round."""
        self._seed += 1
        return self.same()

    def same(self) -> T:
        """The requests of this round."""
        return self._make(self._seed)


def _one_by_one(sides: Sides) -> Row:
    """Eight questions, each in its own call, about one long state."""
    state = text(1450, 1)
    requests = [{"state": state, "questions": {key: question}} for key, question in ONE_BY_ONE.items()]
    tokens = sides.ask_ours(requests[0]).usage.input_tokens
    difference = sides.difference(requests[0])
    times: dict[str, list[Time]] = {"dicast": [], "reference": []}
    for number in range(sides.rounds):
        sides.forget()
        times["dicast"].append(timed(lambda: [sides.ask_ours(request) for request in requests]))
        one = requests[number % len(requests)]
        times["reference"].append(timed(lambda one=one: sides.ask_theirs(one)).times(len(requests)))
    return row(
        sides.section,
        f"8 questions one by one about one state, {tokens} tokens each",
        times,
        target=5.0,
        difference=difference,
        tolerance=TOLERANCE,
        unit="probability",
        note="ours reads the state once per round and then continues its snapshot; of the reference, which keeps "
        "nothing, one of the eight calls is timed per round and counted eight times",
    )
