"""Records, questions, decisions and answers: plain data and its validation. No tensors, no tokens, no JSON bodies.

A record is one *state* with an ordered map of typed *questions*, plus optional images and videos:

    Record(
        state={"subject": "Checkout down", "plan": "enterprise"},
        questions={
            "urgent": Noul("Is this urgent?"),
            "team": Choice("Who should handle it?", {"billing": "Payments", "technical": "Outages"}),
            "severity": Score("How bad is it?", ["none", "minor", "critical"]),
        },
    )

A decision holds one answer per question, in the order in which the questions were asked. Shapes are checked when a
question is built; limits are checked by :func:`check_limits`, so that a caller with other limits can use its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from dicast.errors import RecordError

JSON: TypeAlias = Any
"""A JSON value: str, int, float, bool, None, list or dict with string keys."""

QuestionType: TypeAlias = Literal["noul", "choice", "score"]

MAX_QUESTIONS = 1024
"""Most questions in one record. The hosted APIs answer 400 in one request; the token budget is the real bound."""
MAX_OPTIONS = 255
"""Most options of one choice question (System One contract)."""
MAX_LEVELS = 10
"""Most levels of one score question (System One contract)."""
MAX_QUESTION_ID_BYTES = 1024
"""Longest question id, in UTF-8 bytes."""
MAX_NESTING = 64
"""Deepest nesting of containers in a JSON state, instruction or criterion."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Noul:
    """A yes/no question: is the proposition true?

    Args:
        instructions: the question, as text or structured JSON. Without it the question's id is shown to the model.
        criteria: what ``"true"`` and ``"false"`` mean; either key may be left out.

    Raises:
        RecordError: the criteria are not a mapping, or have another key.
    """

    instructions: JSON = None
    criteria: Mapping[str, JSON] | None = None
    type: ClassVar[QuestionType] = "noul"

    def __post_init__(self) -> None:
        if self.criteria is None:
            return
        if not isinstance(self.criteria, Mapping):
            raise RecordError(
                f"a noul's criteria must be an object with the keys true and false, not {_kind(self.criteria)}",
                field="criteria",
            )
        criteria = {_noul_key(key): value for key, value in self.criteria.items()}
        object.__setattr__(self, "criteria", criteria)

    @property
    def options(self) -> tuple[str, ...]:
        """Option ids in request order: always ``("true", "false")``."""
        return ("true", "false")


@dataclass(frozen=True, slots=True)
class Choice:
    """A question with named options, exactly one of which is right.

    Args:
        instructions: the question, as text or structured JSON.
        criteria: option id -> description (text, JSON or None); a sequence of ids stands for ids without description.

    Raises:
        RecordError: no option, an option id twice, or criteria that are neither a mapping nor a sequence of strings.
    """

    instructions: JSON = None
    criteria: Mapping[str, JSON] | Sequence[str] = field(default_factory=dict)
    type: ClassVar[QuestionType] = "choice"

    def __post_init__(self) -> None:
        object.__setattr__(self, "criteria", _choice_criteria(self.criteria))

    @property
    def options(self) -> tuple[str, ...]:
        """Option ids in request order."""
        return tuple(self.criteria)


@dataclass(frozen=True, slots=True)
class Score:
    """A question with ordered levels, lowest first.

    Args:
        instructions: the question, as text or structured JSON.
        criteria: one description per level, text or JSON; None leaves a level without description (the wire
            contract refuses that).

    Raises:
        RecordError: no level, or criteria that are not a sequence.
    """

    instructions: JSON = None
    criteria: Sequence[JSON] = ()
    type: ClassVar[QuestionType] = "score"

    def __post_init__(self) -> None:
        if isinstance(self.criteria, (str, bytes)) or not isinstance(self.criteria, Sequence):
            raise RecordError(
                f"a score's criteria must be an array of levels, lowest first, not {_kind(self.criteria)}",
                field="criteria",
            )
        if not self.criteria:
            raise RecordError("criteria must not be empty: a score needs at least one level", field="criteria")
        object.__setattr__(self, "criteria", tuple(self.criteria))

    @property
    def options(self) -> tuple[str, ...]:
        """Option ids in request order: ``"0"``, ``"1"``, ... one per level."""
        return tuple(str(index) for index in range(len(self.criteria)))


Question: TypeAlias = Noul | Choice | Score
QUESTION_KINDS: Mapping[str, type[Noul] | type[Choice] | type[Score]] = {"noul": Noul, "choice": Choice, "score": Score}


@dataclass(frozen=True, slots=True)
class Record:
    """One state with the questions asked about it.

    Args:
        state: text or any JSON value.
        questions: question id -> question; the order is kept.
        images: decoded images (PIL images) in the order in which they are shown.
        videos: decoded videos (see :mod:`dicast.media`) in the order in which they are shown.
        media_kwargs: extra keyword arguments for the checkpoint's media processor.
        id: for bookkeeping only; never shown to a model.
    """

    state: JSON
    questions: Mapping[str, Question]
    images: Sequence[Any] = ()
    videos: Sequence[Any] = ()
    media_kwargs: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None

    @property
    def has_media(self) -> bool:
        """Whether the record shows any image or video."""
        return bool(self.images) or bool(self.videos)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one record.

    Attributes:
        input_tokens: the whole sequence that was read, media included.
        output_tokens: always 0, since nothing is generated.
        media_tokens: how many of the input tokens stand for images and videos.
        cached_tokens: how many of the input tokens were not computed again.
        state_tokens_dropped: how many state tokens were cut off on request (`truncation="state_end"`).
    """

    input_tokens: int
    output_tokens: int = 0
    media_tokens: int = 0
    cached_tokens: int = 0
    state_tokens_dropped: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What all answers have.

    Attributes:
        probabilities: option id -> probability, in request order; they sum to 1 before rounding.
        confidence: concentration of the distribution between 0 and 1; `dicast.answers` defines the rules.
        logits: option id -> logit before calibration, in request order.
        accepted: whether the answer passes the threshold stored with the checkpoint; None without a threshold.
        prediction_set: options that the conformal set holds; None without one.
    """

    probabilities: Mapping[str, float]
    confidence: float
    logits: Mapping[str, float] = field(default_factory=dict)
    accepted: bool | None = None
    prediction_set: tuple[str, ...] | None = None

    @property
    def entropy(self) -> float:
        """Shannon entropy of the distribution, in nats."""
        return -sum(p * math.log(p) for p in self.probabilities.values() if p > 0.0)


@dataclass(frozen=True, slots=True)
class NoulAnswer(_Answer):
    """Answer to a yes/no question."""

    type: ClassVar[QuestionType] = "noul"

    @property
    def noul(self) -> float:
        """Probability that the proposition is true."""
        return self.probabilities["true"]

    @property
    def value(self) -> bool:
        """Whether true is at least as likely as false."""
        return self.noul >= 0.5


@dataclass(frozen=True, slots=True)
class ChoiceAnswer(_Answer):
    """Answer to a choice question."""

    type: ClassVar[QuestionType] = "choice"

    @property
    def choice(self) -> str:
        """The most probable option; the first in request order on a tie."""
        return max(self.probabilities, key=self.probabilities.__getitem__)

    @property
    def value(self) -> str:
        """The same as :attr:`choice`."""
        return self.choice


@dataclass(frozen=True, slots=True)
class ScoreAnswer(_Answer):
    """Answer to a score question.

    Attributes:
        legend: level number as a string -> the level as it was given.
    """

    legend: Mapping[str, JSON] = field(default_factory=dict)
    type: ClassVar[QuestionType] = "score"

    @property
    def score(self) -> float:
        """Expected level, from 0 to the number of levels minus 1."""
        return sum(index * p for index, p in enumerate(self.probabilities.values()))

    @property
    def level(self) -> int:
        """The most probable level; the lowest on a tie."""
        values = list(self.probabilities.values())
        return values.index(max(values))

    @property
    def value(self) -> float:
        """The same as :attr:`score`."""
        return self.score


Answer: TypeAlias = NoulAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True, slots=True)
class Decision(Mapping[str, Answer], Generic[T]):
    """All answers to one record, a mapping from question id to answer in request order.

    Attributes:
        answers: question id -> answer.
        usage: token counts.
        model: name of the model that answered.
        parsed: an instance of the schema type when the questions were given as one (see :mod:`dicast.schemas`).
    """

    answers: Mapping[str, Answer]
    usage: Usage
    model: str = ""
    parsed: T | None = None

    def __getitem__(self, question_id: str) -> Answer:
        return self.answers[question_id]

    def __iter__(self) -> Any:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def truncated(self) -> bool:
        """Whether part of the state was cut off, which happens only on request."""
        return self.usage.state_tokens_dropped > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data with unrounded numbers; :mod:`dicast.wire.systemone` makes the rounded response body."""
        return {
            "model": self.model,
            "answers": {question_id: _answer_dict(answer) for question_id, answer in self.answers.items()},
            "usage": {name: getattr(self.usage, name) for name in self.usage.__slots__},
        }


def as_question(value: Question | Mapping[str, Any], *, field: str = "") -> Question:
    """Build a question from its System One form; a question object is returned unchanged.

    Args:
        value: ``{"type": ..., "instructions": ..., "criteria": ...}``; unknown keys are ignored, as the API does.
        field: path of the question, put in front of the path in errors.

    Raises:
        RecordError: not an object, unknown type, or criteria of the wrong shape.
    """
    if isinstance(value, Noul | Choice | Score):
        return value
    if not isinstance(value, Mapping):
        raise RecordError(f"a question must be an object, not {_kind(value)}", field=field)
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in QUESTION_KINDS:
        raise RecordError(
            f"type must be noul, choice, or score, not {_short(kind)}", field=_join(field, "type"), seen=_short(kind)
        )
    criteria = value.get("criteria")
    try:
        if kind == "noul":
            return Noul(value.get("instructions"), criteria)
        if criteria is None:
            raise RecordError("criteria must not be empty", field="criteria")
        return QUESTION_KINDS[kind](value.get("instructions"), criteria)
    except RecordError as error:
        raise RecordError(error.message, field=_join(field, error.field), limit=error.limit, seen=error.seen) from None


def as_questions(questions: Mapping[str, Any], *, field: str = "questions") -> dict[str, Question]:
    """Build every question of a map; the order is kept.

    Raises:
        RecordError: not a map, empty, an id that is not a string, or a question of the wrong shape.
    """
    if not isinstance(questions, Mapping):
        raise RecordError(f"questions must be an object of id to question, not {_kind(questions)}", field=field)
    if not questions:
        raise RecordError("at least one question is required", field=field)
    built: dict[str, Question] = {}
    for question_id, value in questions.items():
        if not isinstance(question_id, str):
            raise RecordError(f"a question id must be a string, not {_kind(question_id)}", field=field)
        built[question_id] = as_question(value, field=_join(field, question_id))
    return built


def check_limits(record: Record) -> Record:
    """Check a record against the limits of the System One contract and return it.

    Raises:
        RecordError: names the question, the limit and what was seen.
    """
    if not record.questions:
        raise RecordError("at least one question is required", field="questions")
    _at_most(len(record.questions), MAX_QUESTIONS, "questions", "questions")
    check_json(record.state, field="state")
    for question_id, question in record.questions.items():
        path = _join("questions", question_id)
        if not question_id:
            raise RecordError("a question id must not be empty", field="questions")
        _at_most(
            len(question_id.encode("utf-8", "surrogatepass")), MAX_QUESTION_ID_BYTES, "questions", "bytes in an id"
        )
        if question.type == "choice":
            _at_most(len(question.options), MAX_OPTIONS, f"{path}.criteria", "options")
        elif question.type == "score":
            _at_most(len(question.options), MAX_LEVELS, f"{path}.criteria", "levels")
        check_json(question.instructions, field=f"{path}.instructions")
        check_json(question.criteria, field=f"{path}.criteria")
    return record


def check_json(value: JSON, *, field: str) -> None:
    """Check that a value is JSON: known types, string keys, finite depth, valid Unicode.

    Raises:
        RecordError: names the path of the first part that is not.
    """
    pending: list[tuple[Any, str, int]] = [(value, field, 0)]
    while pending:
        item, path, depth = pending.pop()
        if isinstance(item, str):
            _check_text(item, path)
        elif item is None or isinstance(item, bool | int | float):
            continue
        elif depth >= MAX_NESTING:
            raise RecordError(
                f"nested deeper than {MAX_NESTING} levels", field=path[:200], limit=MAX_NESTING, seen=depth + 1
            )
        elif isinstance(item, Mapping):
            for key, child in item.items():
                if not isinstance(key, str):
                    raise RecordError(f"an object key must be a string, not {_kind(key)}", field=path)
                _check_text(key, path)
                pending.append((child, _join(path, key), depth + 1))
        elif isinstance(item, list | tuple):
            pending.extend((child, f"{path}.{index}", depth + 1) for index, child in enumerate(item))
        else:
            raise RecordError(f"{_kind(item)} is not a JSON value", field=path)


def record_from(state: JSON, questions: Mapping[str, Any], **media: Any) -> Record:
    """Build and check a record from a state and questions in any accepted form."""
    return check_limits(Record(state, as_questions(questions), **media))


def with_questions(record: Record, questions: Mapping[str, Question]) -> Record:
    """The same record with other questions."""
    return replace(record, questions=questions)


def _answer_dict(answer: Answer) -> dict[str, Any]:
    plain: dict[str, Any] = {"type": answer.type}
    if isinstance(answer, NoulAnswer):
        plain["noul"] = answer.noul
    elif isinstance(answer, ChoiceAnswer):
        plain["choice"] = answer.choice
    else:
        plain |= {"score": answer.score, "legend": dict(answer.legend)}
    plain |= {"probabilities": dict(answer.probabilities), "confidence": answer.confidence, "entropy": answer.entropy}
    if answer.accepted is not None:
        plain["accepted"] = answer.accepted
    if answer.prediction_set is not None:
        plain["prediction_set"] = list(answer.prediction_set)
    return plain


def _choice_criteria(criteria: Any) -> dict[str, JSON]:
    if isinstance(criteria, Mapping):
        options = dict(criteria)
    elif isinstance(criteria, (list, tuple)) and all(isinstance(option, str) for option in criteria):
        options = dict.fromkeys(criteria)
        if len(options) < len(criteria):
            twice = next(option for option in options if list(criteria).count(option) > 1)
            raise RecordError(f"option {_short(twice)} is given twice", field="criteria", seen=twice)
    else:
        raise RecordError(
            f"a choice's criteria must be an object of option to description, not {_kind(criteria)}", field="criteria"
        )
    if not options:
        raise RecordError("criteria must not be empty: a choice needs at least one option", field="criteria")
    for option in options:
        if not isinstance(option, str):
            raise RecordError(f"an option must be a string, not {_kind(option)}", field="criteria")
    return options


def _noul_key(key: Any) -> str:
    name = {True: "true", False: "false"}.get(key, key) if isinstance(key, bool) else key
    if name not in ("true", "false"):
        raise RecordError(f"a noul's criteria have the keys true and false only, not {_short(key)}", field="criteria")
    return str(name)


def _check_text(text: str, path: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RecordError(
            f"text holds a lone surrogate at character {error.start}, which is not valid Unicode",
            field=path.encode("utf-8", "replace").decode(),
        ) from None


def _at_most(count: int, limit: int, field: str, what: str) -> None:
    if count > limit:
        raise RecordError(f"{count} {what} are more than the limit of {limit}", field=field, limit=limit, seen=count)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", tuple: "an array", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    for kind, name in names.items():
        if isinstance(value, kind):
            return name
    if isinstance(value, int | float):
        return "a number"
    return type(value).__name__


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name
