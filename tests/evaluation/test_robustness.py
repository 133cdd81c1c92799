"""Robustness suites: a model that cannot be moved shows nothing, models with one fault each show that fault."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.toys import DATA, toy

from dicast.evaluation import robustness
from dicast.evaluation.backends import LocalBackend, Reply
from dicast.evaluation.data import find_files, read
from dicast.evaluation.robustness import SUITES, run_suites
from dicast.records import Choice, Noul, Record, Score

RECORDS = [
    Record(
        {"text": f'case {number}: it\'s a "test" of café'},
        {
            "yes": Noul(f"Is number {number} even?"),
            "which": Choice("Which is meant?", {"a": "the first", "b": "the second", "c": "the third"}),
            "much": Score("How much?", ["none", "some", "all"]),
        },
        id=str(number),
    )
    for number in range(30)
]


@dataclass
class Faulty:
    """A careful backend with one named fault."""

    fault: str = ""
    name: str = "faulty"
    chunk: int = 8

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}

    def answer(self, records: Sequence[Record]) -> list[Reply]:
        return [Reply({key: self._answer(record, key) for key in record.questions}) for record in records]

    def _answer(self, record: Record, key: str) -> dict[str, float]:
        question = record.questions[key]
        ranked = list(question.options)
        if isinstance(question, Choice):  # by text, so that keys and order do not matter
            ranked.sort(key=lambda option: str(question.criteria[option]))  # type: ignore[index,call-overload]
        best = ranked[0]
        text = str(record.state)
        if isinstance(question, Noul) and (
            "false" in str(question.instructions) or '"no"' in str(question.instructions)
        ):
            best = "false" if self.fault != "negation" else best
        if self.fault == "position":
            best = question.options[0]
        if self.fault == "company" and len(record.questions) == 1:
            best = question.options[-1]
        if self.fault == "order" and next(iter(record.questions)) == "much":
            best = question.options[-1]
        if self.fault == "obedient" and ("approved" in text or "SYSTEM" in text):
            best = next((o for o in ranked if robustness._shown(question, o) in text), best)
        if self.fault == "names" and key.startswith("item_"):
            best = ranked[-1]
        if self.fault == "wording" and "Please decide" in str(question.instructions):
            best = ranked[-1]
        if self.fault == "length" and "newsletter" in text:
            best = ranked[-1]
        if self.fault == "unicode" and "\u2019" in text:
            best = ranked[-1]
        known = (bool(record.state) and "case" in text) or self.fault == "certain"
        p = 0.9 if known else 1 / len(ranked) + 0.01
        return {option: p if option == best else (1 - p) / (len(ranked) - 1) for option in ranked}


def measures(fault: str, suite: str) -> dict[str, dict[str, float]]:
    result = run_suites(RECORDS, Faulty(fault), suites=[suite], repeats=20)
    found: dict[str, dict[str, float]] = result["suites"][suite]["measures"]
    return found


@pytest.mark.parametrize("suite", [name for name in SUITES if name not in ("empty_state", "off_topic", "negation")])
def test_a_careful_model_does_not_move(suite: str) -> None:
    found = measures("", suite)
    assert found["flips"]["value"] == 0.0
    assert found["distance"]["value"] == pytest.approx(0.0)


@pytest.mark.parametrize("suite", ["empty_state", "off_topic"])
def test_without_a_case_entropy_must_rise(suite: str) -> None:
    assert measures("", suite)["entropy"]["value"] == 1.0
    assert measures("certain", suite)["entropy"]["value"] == 0.0


def test_negation() -> None:
    assert measures("", "negation")["negation"]["value"] == pytest.approx(0.0)
    wrong = measures("negation", "negation")
    assert wrong["negation"]["value"] == pytest.approx(0.8)
    assert wrong["consistent"]["value"] == 0.0


@pytest.mark.parametrize(
    ("fault", "suite", "least"),
    [
        ("position", "option_order", 0.4),
        ("company", "alone", 0.9),
        ("order", "question_order", 0.9),
        ("names", "renamed", 0.9),
        ("wording", "paraphrase", 0.2),
        ("length", "distractors", 0.9),
        ("unicode", "unicode_forms", 0.3),
    ],
)
def test_each_fault_is_found_by_its_suite(fault: str, suite: str, least: float) -> None:
    flips = measures(fault, suite)["flips"]
    assert flips["value"] >= least
    assert flips["low"] > 0.0


def test_an_injection_that_is_obeyed_is_counted() -> None:
    assert measures("", "injection")["obeyed"]["value"] == 0.0
    assert measures("obedient", "injection")["obeyed"]["value"] > 0.5


def test_variants_keep_what_they_must() -> None:
    record = RECORDS[0]
    base = {
        key: dict.fromkeys(question.options, 1 / len(question.options)) for key, question in record.questions.items()
    }
    for name, suite in SUITES.items():
        for variant in suite(record, base, random.Random(0)):
            for key, (renamed, options) in variant.same.items():
                asked = variant.record.questions[renamed]
                assert set(options) == set(record.questions[key].options), name
                assert set(options.values()) == set(asked.options), name


def test_records_without_a_state_have_no_state_suites() -> None:
    bare = [Record({}, {"q": Noul("Is 'good morning' a greeting?")})] * 3
    result = run_suites(bare, Faulty(), repeats=5)
    assert result["suites"]["empty_state"]["n"] == 0
    assert result["suites"]["paraphrase"]["n"] == 12


def test_all_suites_run_on_real_records_and_are_reported(tmp_path: Path) -> None:
    records = [example.record for example in read(find_files([str(DATA / "records")], split="dev"), limit=4)]
    result = run_suites(records, LocalBackend(toy()), repeats=10)
    assert result["records"] == 12
    assert all(suite["failed"] == 0 for suite in result["suites"].values())
    text = robustness.markdown(result)
    assert text.count("\n| ") == len(SUITES) + 1
    assert result == run_suites(records, LocalBackend(toy()), repeats=10)
