"""Types as questions, and decisions as instances of them."""

from __future__ import annotations

import enum
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from dicast.errors import ConfigError
from dicast.records import Choice, ChoiceAnswer, Decision, Noul, NoulAnswer, Score, ScoreAnswer, Usage
from dicast.schemas import Schema, instance_from, questions_from

SRC = Path(__file__).parents[1] / "src"


class Severity(enum.IntEnum):
    """How bad is it?"""

    CRITICAL = 9
    NO_HARM = 0
    MINOR = 5


class Team(enum.Enum):
    BILLING = "billing"
    TECHNICAL = "technical"


class Ticket(BaseModel):
    urgent: bool = Field(description="Is this urgent?")
    team: Team = Field(description="Who should handle it?")
    severity: Severity
    tone: Literal["calm", "angry"]
    stars: Literal[1, 2, 3]
    anger: Annotated[float, Score("How angry?", ["calm", "annoyed", "furious"])]


class Case(BaseModel):
    ticket: Ticket
    spam: Annotated[float, Noul("Is it spam?", {"true": "unasked advertising"})]


def noul(p: float) -> NoulAnswer:
    return NoulAnswer({"true": p, "false": 1 - p}, 1.0)


def choice(**probabilities: float) -> ChoiceAnswer:
    return ChoiceAnswer(probabilities, 1.0)


def score(*probabilities: float) -> ScoreAnswer:
    return ScoreAnswer({str(i): p for i, p in enumerate(probabilities)}, 1.0)


def decision(**answers: Any) -> Decision:
    return Decision(answers, Usage(1))


TICKET = {
    "urgent": noul(0.9),
    "team": choice(billing=0.2, technical=0.8),
    "severity": score(0.1, 0.7, 0.2),
    "tone": choice(calm=0.4, angry=0.6),
    "stars": score(0.0, 0.1, 0.9),
    "anger": score(0.0, 0.5, 0.5),
}


def test_each_field_of_a_model_asks_one_question_in_order() -> None:
    questions = questions_from(Ticket)
    assert list(questions) == ["urgent", "team", "severity", "tone", "stars", "anger"]
    assert questions["urgent"] == Noul("Is this urgent?")
    assert questions["team"] == Choice("Who should handle it?", ["billing", "technical"])
    assert questions["severity"] == Score("How bad is it?", ["no harm", "minor", "critical"])
    assert questions["tone"] == Choice(None, ["calm", "angry"])
    assert questions["stars"] == Score(None, ["1", "2", "3"])
    assert questions["anger"] == Score("How angry?", ["calm", "annoyed", "furious"])


def test_answers_become_an_instance() -> None:
    ticket = instance_from(Ticket, decision(**TICKET))
    assert ticket == Ticket(urgent=True, team=Team.TECHNICAL, severity=Severity.MINOR, tone="angry", stars=3, anger=1.5)
    assert isinstance(ticket.severity, Severity)


def test_a_schema_attaches_the_instance_to_the_decision() -> None:
    schema = Schema(Ticket)
    assert schema.questions == questions_from(Ticket)
    decided = schema.attach(decision(**TICKET))
    assert decided.parsed == instance_from(Ticket, decision(**TICKET))
    assert decided["urgent"] == TICKET["urgent"]


def test_nested_models_ask_under_dotted_ids() -> None:
    questions = questions_from(Case)
    assert next(iter(questions)) == "ticket.urgent"
    assert questions["spam"] == Noul("Is it spam?", {"true": "unasked advertising"})
    answers = {f"ticket.{name}": answer for name, answer in TICKET.items()} | {"spam": noul(0.25)}
    case = instance_from(Case, decision(**answers))
    assert case.spam == 0.25
    assert case.ticket.stars == 3


@pytest.mark.parametrize(
    ("schema", "question", "answer", "value"),
    [
        (bool, Noul(), noul(0.5), True),
        (Annotated[bool, Noul("Is it true?")], Noul("Is it true?"), noul(0.4), False),
        (Literal["a", "b"], Choice(None, ["a", "b"]), choice(a=0.4, b=0.6), "b"),
        (Team, Choice(None, ["billing", "technical"]), choice(billing=0.6, technical=0.4), Team.BILLING),
        (Severity, Score("How bad is it?", ["no harm", "minor", "critical"]), score(0.1, 0.1, 0.8), Severity.CRITICAL),
        (Annotated[str, Choice("Which?", {"a": "first", "b": None})], None, choice(a=0.9, b=0.1), "a"),
        (Annotated[int, Score("How?", ["low", "high"])], None, score(0.2, 0.8), 1),
        (Annotated[float, Score("How?", ["low", "high"])], None, score(0.2, 0.8), 0.8),
    ],
)
def test_a_plain_type_asks_one_question(schema: Any, question: Any, answer: Any, value: Any) -> None:
    asked = questions_from(schema)
    assert list(asked) == ["answer"]
    if question is not None:
        assert asked["answer"] == question
    parsed = instance_from(schema, decision(answer=answer))
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_question_beside_an_enum_gives_criteria_and_the_description_gives_instructions() -> None:
    class Routed(BaseModel):
        team: Annotated[Team, Choice(criteria={"technical": "Outages", "billing": "Payments"})] = Field(
            description="Who should handle it?"
        )
        severity: Annotated[Severity, Score("How bad?", ["fine", "so-so", "awful"])]

    questions = questions_from(Routed)
    assert questions["team"] == Choice("Who should handle it?", {"technical": "Outages", "billing": "Payments"})
    assert questions["severity"] == Score("How bad?", ["fine", "so-so", "awful"])


def test_an_alias_does_not_hide_the_field() -> None:
    class Aliased(BaseModel):
        urgent: bool = Field(alias="isUrgent", description="Is this urgent?")

    assert list(questions_from(Aliased)) == ["urgent"]
    assert instance_from(Aliased, decision(urgent=noul(0.9))).urgent is True


class Unordered(enum.Enum):
    RED = 1
    GREEN = 2


class Empty(BaseModel):
    pass


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (str, "text is not generated"),
        (int, "use Annotated\\[int, Score"),
        (float, "a number is not generated"),
        (list[str], "stands for no question"),
        (Literal["a"] | None, "may be None"),
        (Literal["a", 1], "all be strings or all be ints"),
        (Literal[True, False], "use strings or ints"),
        (Unordered, "make it an IntEnum"),
        (Annotated[str, Noul("?")], "a noul gives a bool or float, not str"),
        (Annotated[Literal["a", "b"], Noul("?")], "ask a choice, not a noul"),
        (Annotated[Literal["a", "b"], Choice("?", ["a", "c"])], "name a, c, the annotation a, b"),
        (Annotated[Severity, Score("?", ["low", "high"])], "have 2 levels, Severity has 3"),
        (Annotated[Severity, Choice("?", ["low", "high"])], "ask a score, not a choice"),
        (Annotated[bool, Noul("?"), Noul("!")], "one question"),
        (Empty, "no fields"),
    ],
)
def test_an_annotation_that_asks_nothing_is_refused(annotation: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        questions_from(annotation)


def test_errors_name_the_field() -> None:
    class Wrong(BaseModel):
        urgent: bool
        name: str

    class Outer(BaseModel):
        inner: Wrong

    with pytest.raises(ConfigError, match=r"^inner\.name: str names no options"):
        questions_from(Outer)


def test_a_missing_or_wrong_answer_is_named() -> None:
    with pytest.raises(ConfigError, match="answer: the decision has no answer"):
        instance_from(bool, decision(other=noul(0.1)))
    with pytest.raises(ConfigError, match="asks a noul, the decision answers a score"):
        instance_from(bool, decision(answer=score(0.1, 0.9)))


def test_the_models_own_validation_is_heard() -> None:
    class Picky(BaseModel):
        sure: Annotated[float, Noul("Is it?")] = Field(gt=0.5)

    with pytest.raises(ConfigError, match="do not make a Picky"):
        instance_from(Picky, decision(sure=noul(0.2)))


def test_schemas_import_no_pydantic() -> None:
    code = "import sys, dicast.schemas as s; s.questions_from(bool); assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(SRC)}, timeout=60)
