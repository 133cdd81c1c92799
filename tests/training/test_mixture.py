# ruff: noqa: E501 - long lines of wording are data here
"""The embedded model's made records: labels that follow from how a record was drawn, balanced, from train parts only."""

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "embedded"))

from mixture import answers, attribute_words, attributes, build

Row = dict[str, Any]


@pytest.fixture(scope="module")
def made() -> list[Row]:
    return attributes.records(random.Random(3), 600)


@pytest.fixture(scope="module")
def compared() -> list[Row]:
    return answers.records(random.Random(3), read, 400)


def read(name: str) -> list[Row]:
    """A few invented rows in the form of each set that `answers` may read."""
    rng = random.Random(name)
    nouns = (
        "otters",
        "kites",
        "tides",
        "lamps",
        "owls",
        "bridges",
        "maps",
        "clocks",
        "trains",
        "pears",
        "tents",
        "bells",
    )

    def text(noun: str) -> str:
        facts = (
            "were known in every village of the valley",
            "are drawn on the old walls",
            "have changed a great deal since",
        )
        return (
            " ".join(f"The {noun} {fact}, said {rng.choice(('Mara', 'Omar', 'Zoe'))}." for fact in facts)
            + " "
            + "So it was told. " * 4
        )

    if name == "rubric_score":
        return [
            {"state": {"instruction": f"User: Tell me about {noun}.\n\nAssistant:", "response": text(noun) + f"Level {level}."},
             "gold": {"quality": level}}
            for noun in nouns for level in (0, 3, 4)
        ]  # fmt: skip
    if name == "gsm8k_choice":
        return [
            {"state": f"How many {noun} are {n} and {n}?", "gold": {"a": "A"},
             "questions": {"a": {"type": "choice", "criteria": {"A": str(2 * n), "B": str(n)}}}}
            for n, noun in enumerate(nouns, 2)
        ]  # fmt: skip
    if name == "sgd":
        return [
            {"state": {"service": {"name": f"{noun}_1"}, "dialogue": [f"User: I would like to book a tour of the {noun} for two people.",
             f"System: There is a tour of the {noun} at nine in the morning, would you like that one?"]}}
            for noun in nouns
        ]  # fmt: skip
    if name == "onestop_english":
        return [
            {"id": f"{name}/train/{noun}:0:{level}", "state": text(noun) + f"Part {level}.", "gold": {"level": level}}
            for noun in nouns for level in (0, 2)
        ]  # fmt: skip
    if name in ("hwu64", "clinc150"):
        return [{"state": f"please show me all the {noun}", "meta": {"label": f"{noun}_query"}} for noun in nouns]
    raise AssertionError(f"{name} must not be read")


def options(question: Row) -> set[Any]:
    """Every answer that a question allows."""
    if question["type"] == "noul":
        return {True, False}
    return set(range(len(question["criteria"]))) if question["type"] == "score" else set(question["criteria"])


def labelled(rows: list[Row]) -> list[tuple[Row, Any]]:
    return [(row["questions"][name], gold) for row in rows for name, gold in row["gold"].items()]


def test_same_seed_same_records(made: list[Row], compared: list[Row]) -> None:
    assert attributes.records(random.Random(3), 600) == made
    assert answers.records(random.Random(3), read, 400) == compared
    assert attributes.records(random.Random(4), 600) != made


def test_labels_are_among_the_options(made: list[Row], compared: list[Row]) -> None:
    for row in made + compared:
        assert 1 <= len(row["questions"]) <= 6
        assert set(row["gold"]) | set(row["soft"]) == set(row["questions"])
        assert not set(row["gold"]) & set(row["soft"])
        for name, gold in row["gold"].items():
            assert gold in options(row["questions"][name])
        for shares in row["soft"].values():
            assert set(shares) == {"true", "false"}
            assert sum(shares.values()) == pytest.approx(1)


def test_every_attribute_has_enough_words() -> None:
    bank = attributes.bank()
    assert len(bank) >= 80
    for item in bank.values():
        assert len(set(item.sentences)) >= 10, item.key
        assert len(set(item.yes + item.no)) >= 6, item.key
        assert len(item.no) >= 2, item.key
        assert set(item.domains) <= set(attribute_words.DOMAINS), item.key
    for pair in attribute_words.CONFLICTS:
        assert len(pair) == 2
        assert pair <= set(bank)


def test_no_sentence_matches_the_guard_of_what_would_be_denied() -> None:
    """Guards are the second check behind the tables: a text that matches is never denied."""
    message = attributes.Message("shop", ["Could I get my money back, or is that asking too much"], set())
    assert attributes.holds(message, "wants_refund") is None
    assert attributes.holds(message, "asks_question") is None


def test_yes_and_no_are_balanced(made: list[Row]) -> None:
    counts = Counter(gold for question, gold in labelled(made) if question["type"] == "noul")
    assert 0.4 < counts[True] / counts.total() < 0.6
    kinds = Counter(question["type"] for question, _ in labelled(made))
    assert 0.65 < kinds["noul"] / kinds.total() < 0.85
    assert kinds["score"] > 10


def message_of(*keys: str, domain: str = "saas") -> attributes.Message:
    """A message with the first sentence of each attribute."""
    message = attributes.Message(domain)
    for key in keys:
        template = attributes.bank()[key].sentences[0]
        assert attributes.add(message, template, (key,)), key
        message.sentences.append(attributes.fill(random.Random(0), template))
    return message


@pytest.mark.parametrize(
    ("keys", "asked", "answer"),
    [
        (("outage",), "outage", True),
        (("outage",), "urgent", True),  # implied
        (("outage",), "bug", None),  # an outage may be called a bug
        (("outage",), "can_wait", None),
        (("double_charged",), "double_charged", True),
        (("double_charged",), "wants_refund", attributes.LIKELY),
        (("double_charged",), "outage", False),
        (("how_to",), "asks_question", True),  # its sentences are questions
        (("feature_request",), "urgent", False),
        (("bug",), "urgent", None),
        (("legal_threat",), "angry", attributes.LIKELY),
        (("polite", "feature_request"), "angry", False),
        (("cancel_subscription",), "leaves", None),
        (("email_address",), "personal_data", True),
    ],
)
def test_what_a_message_decides(keys: tuple[str, ...], asked: str, answer: bool | float | None) -> None:
    assert attributes.holds(message_of(*keys), asked) == answer


@pytest.mark.parametrize(
    ("a", "b"),
    [("urgent", "can_wait"), ("outage", "can_wait"), ("angry", "polite"), ("praise", "bug"), ("resolved", "outage")],
)
def test_contradictions_never_meet(a: str, b: str) -> None:
    message = message_of(a)
    assert not attributes.add(message, attributes.bank()[b].sentences[0], (b,))
    assert b not in message.present


def test_only_public_train_parts_are_read() -> None:
    names: list[str] = []
    answers.records(random.Random(1), lambda name: names.append(name) or read(name), 20)  # type: ignore[func-returns-value]
    assert set(names) == set(answers.SETS)
    assert not set(names) & set(build.HELD_OUT)
    with pytest.raises(ValueError, match="held out"):
        build.read(Path(), "response_preference")


def test_places_of_the_better_answer_are_balanced(compared: list[Row]) -> None:
    second = {"response_b", "answer_2", "second", "reply_b", "candidate_2", "output_b", "b", "B", "2"}
    ties = {"tie", "c", "C", "3", "equal"}
    counts = Counter(
        "tie" if gold in ties else "second" if gold in second else "first"
        for question, gold in labelled(compared) if question["type"] == "choice"
    )  # fmt: skip
    assert 0.07 < counts["tie"] / counts.total() < 0.25
    assert 0.4 < counts["first"] / (counts["first"] + counts["second"]) < 0.6


@pytest.mark.parametrize("fault", sorted(set(answers.FAULTS) - {"wrong"}))
def test_a_fault_changes_the_answer(fault: str) -> None:
    cases = answers.rubric_cases(read("rubric_score"))
    bad = answers.worse(random.Random(2), cases[0], fault, cases[6:])
    assert bad is not None
    assert bad != cases[0].answer


def test_side_questions_follow_the_faults() -> None:
    pair = answers.Pair(
        "Why is the sky blue?", ("Light scatters in the air.", "I cannot answer this question."), 0, ("", "refusal")
    )
    expected = {"a refusal": True, "refuse?": True, "decline": True, "better": False, "preferred": False, "jumbled": False,
                "gibberish": False, "unreadable": False, "repeat": False, "longer": None}  # fmt: skip
    seen = set()
    for seed in range(200):
        for question, gold in answers.side_questions(random.Random(seed), answers.KEYS[0], pair):
            for word, value in expected.items():
                if word in question["instructions"] and "second" in question["instructions"] and value is not None:
                    assert gold is value, question
                    seen.add(word)
    assert len(seen) >= 7
