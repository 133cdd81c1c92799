"""Questions are checked for shape when built and for limits before use; errors name field, limit and what was seen."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from dicast.errors import RecordError, TokenBudgetError
from dicast.records import Choice, Noul, Record, Score, as_question, as_questions, check_limits


def refused(questions: Any, state: Any = "s") -> RecordError:
    with pytest.raises(RecordError) as caught:
        check_limits(Record(state, as_questions(questions)))
    return caught.value


def test_dicts_and_builders_are_the_same() -> None:
    built = as_questions(
        {
            "n": {"type": "noul", "instructions": "Urgent?", "criteria": {"true": "yes"}},
            "c": {"type": "choice", "criteria": {"a": None, "b": {"x": 1}}, "ignored": 1},
            "s": {"type": "score", "instructions": ["How", "bad?"], "criteria": ["low", "high"]},
        }
    )
    assert built == {
        "n": Noul("Urgent?", {"true": "yes"}),
        "c": Choice(None, {"a": None, "b": {"x": 1}}),
        "s": Score(["How", "bad?"], ["low", "high"]),
    }
    assert list(built) == ["n", "c", "s"]


def test_a_list_of_labels_stands_for_options_without_description() -> None:
    assert Choice("?", ["b", "a"]).criteria == {"b": None, "a": None}
    assert Choice("?", ["b", "a"]).options == ("b", "a")


@pytest.mark.parametrize(
    ("questions", "field", "message"),
    [
        ({}, "questions", "at least one question is required"),
        ([], "questions", "must be an object"),
        ({"q": 3}, "questions.q", "a question must be an object, not a number"),
        ({"q": {}}, "questions.q.type", "type must be noul, choice, or score, not None"),
        ({"q": {"type": "box"}}, "questions.q.type", "not 'box'"),
        ({"q": {"type": ["noul"]}}, "questions.q.type", "type must be"),
        ({"q": {"type": "choice"}}, "questions.q.criteria", "criteria must not be empty"),
        ({"q": {"type": "choice", "criteria": {}}}, "questions.q.criteria", "criteria must not be empty"),
        ({"q": {"type": "choice", "criteria": "a,b"}}, "questions.q.criteria", "must be an object .* not a string"),
        ({"q": {"type": "choice", "criteria": ["a", "a"]}}, "questions.q.criteria", "'a' is given twice"),
        ({"q": {"type": "score", "criteria": {"0": "low"}}}, "questions.q.criteria", "must be an array .* an object"),
        ({"q": {"type": "score", "criteria": []}}, "questions.q.criteria", "criteria must not be empty"),
        ({"q": {"type": "noul", "criteria": ["yes"]}}, "questions.q.criteria", "must be an object"),
        ({"q": {"type": "noul", "criteria": {"yes": "x"}}}, "questions.q.criteria", "true and false only, not 'yes'"),
        ({"": {"type": "noul"}}, "questions", "must not be empty"),
        ({1: {"type": "noul"}}, "questions", "must be a string, not a number"),
        ({"q": {"type": "noul", "instructions": {1: 2}}}, "questions.q.instructions", "key must be a string"),
        ({"q": {"type": "noul", "instructions": b"x"}}, "questions.q.instructions", "bytes is not a JSON value"),
        (
            {"q": {"type": "noul", "instructions": "\ud800"}},
            "questions.q.instructions",
            "lone surrogate at character 0",
        ),
    ],
)
def test_wrong_shapes(questions: Any, field: str, message: str) -> None:
    error = refused(questions)
    assert error.field == field
    with pytest.raises(RecordError, match=message):
        raise error


@pytest.mark.parametrize(
    ("questions", "field", "limit", "seen"),
    [
        ({"q": {"type": "choice", "criteria": {str(i): None for i in range(256)}}}, "questions.q.criteria", 255, 256),
        ({"q": {"type": "score", "criteria": ["x"] * 11}}, "questions.q.criteria", 10, 11),
        ({str(i): {"type": "noul"} for i in range(1025)}, "questions", 1024, 1025),
        ({"é" * 513: {"type": "noul"}}, "questions", 1024, 1026),
    ],
)
def test_limits(questions: Any, field: str, limit: int, seen: int) -> None:
    error = refused(questions)
    assert (error.field, error.limit, error.seen) == (field, limit, seen)
    assert str(limit) in str(error)
    assert str(seen) in str(error)


def test_the_largest_allowed_schema() -> None:
    questions = {
        "c": Choice("?", [str(i) for i in range(255)]),
        "s": Score("?", ["x"] * 10),
        "one": Choice("?", ["only"]),
    }
    assert check_limits(Record("s", questions)).questions == questions


def test_deep_nesting_is_refused_without_recursion() -> None:
    state: Any = "leaf"
    for _ in range(100_000):
        state = [state]
    error = refused({"q": {"type": "noul"}}, state)
    assert (error.limit, error.seen) == (64, 65)
    while isinstance(state, list) and state:  # unwind: the interpreter would recurse to free it
        state = state.pop()


def test_unusual_option_labels_are_kept_byte_for_byte() -> None:
    labels = ["", "1", "a.b", "e\u0301", "é", "true"]
    assert Choice("?", labels).options == tuple(labels)


@pytest.mark.parametrize("value", [Noul("?"), Choice("?", ["a"]), Score("?", ["a"])])
def test_a_question_object_is_returned_unchanged(value: Any) -> None:
    assert as_question(value) is value


def test_errors_survive_pickling() -> None:
    error = TokenBudgetError("too long", field="state", limit=1, seen=2)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.limit, again.seen) == (TokenBudgetError, "state: too long", 1, 2)
