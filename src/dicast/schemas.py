"""Questions from Python types, and instances of those types from decisions.

    class Ticket(BaseModel):
        urgent: bool = Field(description="Is this urgent?")
        team: Literal["billing", "technical"] = Field(description="Who should handle it?")
        severity: Severity                       # an IntEnum: NONE = 0, MINOR = 1, CRITICAL = 2
        anger: Annotated[float, Score("How angry is the customer?", ["calm", "annoyed", "furious"])]

    ticket = model.decide(state, Ticket).parsed  # Ticket(urgent=True, team="technical", severity=<...>, anger=1.05)

| annotation                          | question | value in the instance                     |
| ----------------------------------- | -------- | ----------------------------------------- |
| bool                                | noul     | whether true is at least as likely        |
| Literal of strings, Enum of strings | choice   | the most probable option                  |
| Literal of ints, IntEnum            | score    | the most probable level                   |
| Annotated[bool, Noul(...)]          | noul     | as bool                                   |
| Annotated[float, Noul(...)]         | noul     | the probability of true                   |
| Annotated[str, Choice(...)]         | choice   | the most probable option                  |
| Annotated[int, Score(...)]          | score    | the most probable level, counted from 0   |
| Annotated[float, Score(...)]        | score    | the expected level                        |
| a nested Pydantic model             | its own, as `outer.inner` | an instance              |

A question in `Annotated[...]` may also stand beside a Literal or an Enum, to give instructions or criteria; its
criteria must then name the same options. Instructions come from the question, else from the field's description, else
from the Enum's docstring. A type that is not a Pydantic model asks one question, under the id `answer`.

Knows records and Python's type annotations; knows nothing of models. Pydantic is not imported here: whoever passes a
Pydantic model has imported it.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

from dicast.errors import ConfigError
from dicast.records import JSON, Answer, Choice, ChoiceAnswer, Decision, Noul, NoulAnswer, Question, Score, ScoreAnswer

SINGLE_QUESTION_ID = "answer"
"""Question id of a type that is not a Pydantic model."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Field:
    """One question and how its answer becomes a Python value."""

    question: Question
    value: Callable[[Answer], Any]


def questions_from(schema: Any) -> dict[str, Question]:
    """Questions that a type asks, one per field.

    Args:
        schema: a Pydantic model, or an annotation as in the table above (then one question, ``answer``).

    Returns:
        question id -> question, in the order of the fields.

    Raises:
        ConfigError: an annotation that stands for no question, or criteria that do not fit the annotation.
    """
    return {question_id: field.question for question_id, field in _fields(schema)}


def instance_from(schema: type[T] | Any, decision: Mapping[str, Answer]) -> T:
    """The value that a decision gives to a type: an instance of the model, or a plain value of the annotation.

    Args:
        schema: what was given to :func:`questions_from`.
        decision: answers under the ids of :func:`questions_from`; further answers are ignored.

    Raises:
        ConfigError: an answer is missing, or the model's own validation refuses the values.
    """
    if _is_model(schema):
        return cast(T, _model_instance(schema, decision, prefix=""))
    (question_id, field), *_ = _fields(schema)
    return cast(T, field.value(_answer(decision, question_id)))


class Schema(Generic[T]):
    """A type and its questions, built once.

    Args:
        schema: as for :func:`questions_from`.

    Raises:
        ConfigError: as :func:`questions_from`.
    """

    def __init__(self, schema: type[T] | Any) -> None:
        self.schema = schema
        self.questions = questions_from(schema)

    def attach(self, decision: Decision[Any]) -> Decision[T]:
        """The decision with an instance of the type as `parsed`."""
        return replace(decision, parsed=instance_from(self.schema, decision))


def _fields(schema: Any, prefix: str = "") -> Iterator[tuple[str, _Field]]:
    if not _is_model(schema):
        yield SINGLE_QUESTION_ID, _field(schema, (), "", SINGLE_QUESTION_ID)
        return
    if not schema.model_fields:
        raise ConfigError(f"{schema.__name__} has no fields, so it asks no questions", field=prefix.rstrip("."))
    for name, info in schema.model_fields.items():
        path = f"{prefix}{name}"
        if _is_model(info.annotation):
            yield from _fields(info.annotation, f"{path}.")
        else:
            yield path, _field(info.annotation, tuple(info.metadata), info.description or "", path)


def _model_instance(schema: Any, decision: Mapping[str, Answer], prefix: str) -> Any:
    values: dict[str, Any] = {}
    for name, info in schema.model_fields.items():
        path = f"{prefix}{name}"
        if _is_model(info.annotation):
            values[name] = _model_instance(info.annotation, decision, f"{path}.")
        else:
            field = _field(info.annotation, tuple(info.metadata), info.description or "", path)
            values[name] = field.value(_answer(decision, path))
    try:
        return schema.model_validate(values, by_name=True, by_alias=False)
    except ValueError as error:
        raise ConfigError(f"the answers do not make a {schema.__name__}: {error}", field=prefix.rstrip(".")) from error


def _field(annotation: Any, metadata: Sequence[Any], description: str, path: str) -> _Field:
    annotation, metadata = _unwrap(annotation, metadata)
    given = [item for item in metadata if isinstance(item, Noul | Choice | Score)]
    if len(given) > 1:
        raise ConfigError("a field asks one question, but its annotation holds several", field=path)
    question = given[0] if given else None
    values = _option_values(annotation, path)
    instructions: JSON = question.instructions if question else None
    if instructions is None:
        instructions = description or _own_docstring(annotation)
    if values is not None:
        return _with_options(annotation, values, question, instructions, path)
    return _plain(annotation, question, instructions, path)


def _unwrap(annotation: Any, metadata: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Take `Annotated` layers off; what they hold comes after the metadata found outside."""
    found = tuple(metadata)
    while get_origin(annotation) is Annotated:
        annotation, *inner = get_args(annotation)
        found += tuple(inner)
    return annotation, found


def _option_values(annotation: Any, path: str) -> dict[JSON, Any] | None:
    """Option (a string or an int) -> Python value, for a Literal or an Enum; None for any other annotation."""
    if get_origin(annotation) is Literal:
        values = {value: value for value in get_args(annotation)}
    elif isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        values = {member.value: member for member in annotation}
    else:
        return None
    if not values:
        raise ConfigError(f"{_name(annotation)} has no options", field=path)
    kinds = {type(value) if isinstance(value, bool) else _base(value) for value in values}
    if kinds not in ({str}, {int}):
        hint = "strings make a choice, ints make a score" if len(kinds) > 1 else "use strings or ints"
        raise ConfigError(f"the values of {_name(annotation)} must all be strings or all be ints: {hint}", field=path)
    if kinds == {int} and isinstance(annotation, type) and not issubclass(annotation, int):
        raise ConfigError(
            f"{_name(annotation)} has ints but no order: make it an IntEnum for a score, or give strings for a choice",
            field=path,
        )
    return values


def _with_options(
    annotation: Any, values: dict[JSON, Any], question: Question | None, instructions: JSON, path: str
) -> _Field:
    if isinstance(next(iter(values)), str):
        return _choice(values, question, instructions, path)
    return _score(annotation, values, question, instructions, path)


def _choice(values: dict[JSON, Any], question: Question | None, instructions: JSON, path: str) -> _Field:
    criteria: Mapping[str, JSON] = dict.fromkeys(values)
    if question is not None:
        if not isinstance(question, Choice):
            raise ConfigError(f"options that are strings ask a choice, not a {question.type}", field=path)
        if set(question.options) != set(values):
            raise ConfigError(
                f"the criteria name {_listed(question.options)}, the annotation {_listed(values)}", field=path
            )
        criteria = cast(Mapping[str, JSON], question.criteria)
    return _Field(Choice(instructions, criteria), lambda answer: values[_as(ChoiceAnswer, answer, path).choice])


def _score(
    annotation: Any, values: dict[JSON, Any], question: Question | None, instructions: JSON, path: str
) -> _Field:
    ordered = [values[key] for key in sorted(values)]
    levels: Sequence[JSON] = [_level(value) for value in ordered]
    if question is not None:
        if not isinstance(question, Score):
            raise ConfigError(f"options that are ints ask a score, not a {question.type}", field=path)
        if len(question.criteria) != len(ordered):
            raise ConfigError(
                f"the criteria have {len(question.criteria)} levels, {_name(annotation)} has {len(ordered)}", field=path
            )
        levels = question.criteria
    return _Field(Score(instructions, levels), lambda answer: ordered[_as(ScoreAnswer, answer, path).level])


def _plain(annotation: Any, question: Question | None, instructions: JSON, path: str) -> _Field:
    """Fields whose type names no options: bool, and what a question in `Annotated` explains."""
    if question is None and annotation is bool:
        question = Noul()
    if question is None:
        raise ConfigError(_unsupported(annotation), field=path)
    reader = _READERS.get((annotation, question.type))
    if reader is None:
        wanted = " or ".join(kind.__name__ for kind, type_ in _READERS if type_ == question.type)
        raise ConfigError(f"a {question.type} gives a {wanted}, not {_name(annotation)}", field=path)
    built = type(question)(instructions, question.criteria)  # type: ignore[arg-type]
    return _Field(built, lambda answer: reader(answer, path))


_READERS: dict[tuple[type, str], Callable[[Answer, str], Any]] = {
    (bool, "noul"): lambda answer, path: _as(NoulAnswer, answer, path).value,
    (float, "noul"): lambda answer, path: _as(NoulAnswer, answer, path).noul,
    (str, "choice"): lambda answer, path: _as(ChoiceAnswer, answer, path).choice,
    (int, "score"): lambda answer, path: _as(ScoreAnswer, answer, path).level,
    (float, "score"): lambda answer, path: _as(ScoreAnswer, answer, path).score,
}

A = TypeVar("A", NoulAnswer, ChoiceAnswer, ScoreAnswer)


def _as(kind: type[A], answer: Answer, path: str) -> A:
    if not isinstance(answer, kind):
        raise ConfigError(f"the type asks a {kind.type}, the decision answers a {answer.type}", field=path)
    return answer


def _answer(decision: Mapping[str, Answer], question_id: str) -> Answer:
    try:
        return decision[question_id]
    except KeyError:
        raise ConfigError("the decision has no answer to this question", field=question_id) from None


def _is_model(annotation: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel)


def _unsupported(annotation: Any) -> str:
    if annotation in (str, int, float):
        kind, question = {
            str: ("text is not generated", 'Annotated[str, Choice("...", ["a", "b"])]'),
            int: ("a number is not generated", 'Annotated[int, Score("...", ["low", "high"])]'),
            float: ("a number is not generated", 'Annotated[float, Score("...", ["low", "high"])]'),
        }[annotation]
        return f"{annotation.__name__} names no options and {kind}: use {question} or a Literal"
    if get_origin(annotation) in (Union, UnionType) and NoneType in get_args(annotation):
        return f"{_name(annotation)} may be None, which is no option: add one that says so, such as 'none'"
    return (
        f"{_name(annotation)} stands for no question: use bool, a Literal, an Enum, a Pydantic model, "
        "or Annotated with a Noul, Choice or Score"
    )


def _own_docstring(annotation: Any) -> str | None:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        text = annotation.__dict__.get("__doc__")
        return " ".join(text.split()) if text else None
    return None


def _base(value: Any) -> type:
    return next((kind for kind in (str, int) if isinstance(value, kind)), type(value))


def _level(value: Any) -> str:
    """Text of a level: an Enum member's name in plain words, or the number itself."""
    return value.name.replace("_", " ").lower() if isinstance(value, enum.Enum) else str(value)


def _name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _listed(options: Iterable[Any]) -> str:
    return ", ".join(str(option) for option in options)
