"""OpenAI's Decisions API: ``POST /v1/decisions`` bodies to records, decisions to response bodies.

    {"model": "gpt-6-luna", "input": "I was charged twice.", "questions": [{"type": "predicate", "name": "refund",
                   "instructions": "The customer wants a refund."}, {"type": "choice", "instructions": "Which team?",
                   "choices": [{"value": "billing"}, {"value": true}]}, {"type": "score", "instructions": "How angry?",
                   "levels": [{"label": "calm"}, {"label": "angry"}]}]}

A predicate is a noul, a choice's values are option ids (a boolean that collides with a string gets an id of its own), a
level's label and description make one criterion. Answers come back by position, probabilities as arrays. A question
that cannot be answered while others can comes back as ``{"type": "refusal"}``. Errors are 400 in OpenAI's words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dicast.answers import ConfidenceRule
from dicast.errors import CapabilityError, InputError, RecordError
from dicast.records import (
    MAX_LEVELS,
    MAX_OPTIONS,
    Answer,
    Choice,
    ChoiceAnswer,
    Decision,
    Noul,
    NoulAnswer,
    Question,
    Record,
    Score,
    check_limits,
)
from dicast.wire.assets import MediaDecoder, MediaOrder
from dicast.wire.conversation import INPUT_PARTS, bad, bracketed, read_content, read_input, require
from dicast.wire.errors import Loc
from dicast.wire.extensions import KEY, NO_EXTENSIONS, Extensions, parse_extensions
from dicast.wire.rounding import shown_number, shown_probabilities
from dicast.wire.systemone import DIGITS, answer_facts, default_decoder, read_object, shown_confidence

MAX_QUESTIONS = 400
"""Most questions in one request (Decisions contract)."""
MIN_OPTIONS = 2
"""Fewest values of a choice and fewest levels of a score (Decisions contract)."""

Value: TypeAlias = str | bool


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as it was asked.

    Attributes:
        key: its id in the record.
        name: its name in the request, echoed in the answer.
        values: option id -> the value (choice) or label (score) that the answer shows; empty for a predicate.
    """

    key: str
    name: str | None
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class DecisionsRequest:
    """A request that has been read.

    Attributes:
        record: state, the questions that can be answered, and decoded media.
        asked: every question in request order.
        model: model name as sent.
        x_dicast: what the request asks for beyond the contract.
    """

    record: Record
    asked: tuple[Asked, ...]
    model: str | None = None
    x_dicast: Extensions = NO_EXTENSIONS

    def without(self, keys: Collection[str]) -> DecisionsRequest:
        """The same request with some questions left to be refused."""
        questions = {key: question for key, question in self.record.questions.items() if key not in keys}
        return replace(self, record=replace(self.record, questions=questions))

    def in_request_terms(self, error: InputError) -> InputError:
        """An error about the record, with the path that the request's sender knows."""
        for index, asked in enumerate(self.asked):
            prefix = f"questions.{asked.key}"
            if error.field == prefix or error.field.startswith(f"{prefix}."):
                path = bracketed(("questions", index)) + error.field.removeprefix(prefix)
                return type(error)(error.message, field=path, limit=error.limit, seen=error.seen)
        if error.field.split(".")[0] == "state":
            path = "input" + error.field.removeprefix("state")
            return type(error)(error.message, field=path, limit=error.limit, seen=error.seen)
        return error


def parse_request(
    body: bytes | Mapping[str, Any], *, decoder: MediaDecoder | None = None, images: bool = True
) -> DecisionsRequest:
    """Read a Decisions request.

    Args:
        body: the JSON text, or the object when it has been read already.
        decoder: decodes images; by default in this process.
        images: whether the model reads images; if not, a question that shows one is left to be refused.

    Raises:
        RequestError: names the parameter, and the limit and what was seen where a limit is broken.
        CapabilityError: the input shows an image, or every question does, and the model cannot read it.
        MediaError: an image is unreadable or over a limit.
    """
    fields = read_object(body)
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise bad("must be a string", ("model",), "invalid_type")
    _check_ignored(fields)
    order = MediaOrder()
    state = read_input(fields.get("input"), order)
    if order.images and not images:
        raise CapabilityError("the model reads text only; it cannot see the image", field="input")
    asked, questions = _questions(fields, order, images)
    request = DecisionsRequest(Record(state, questions), asked, model, parse_extensions(fields.get(KEY)))
    try:
        check_limits(request.record)
    except RecordError as error:
        told = request.in_request_terms(error)
        raise bad(told.message, (told.field,), limit=told.limit, seen=told.seen) from None
    if not order.images:
        return request
    pictures, _ = order.decoded(decoder or default_decoder())
    return replace(request, record=replace(request.record, images=pictures, media_kwargs=request.x_dicast.media_kwargs))


def response_body(
    decision: Decision[Any],
    request: DecisionsRequest,
    *,
    digits: int | None = DIGITS,
    confidence: ConfidenceRule | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The response body of a decision; a question without an answer is refused.

    Args:
        decision: the answers.
        request: what was asked.
        digits: decimals; None shows all.
        confidence: rule that replaces the decision's own confidences; None keeps them.
        extra: more facts to report under ``x_dicast``, e.g. timings.
    """
    answers = [_answer(asked, decision.answers.get(asked.key), digits, confidence) for asked in request.asked]
    body: dict[str, Any] = {"model": decision.model, "answers": answers, "usage": _usage(decision)}
    facts = _facts(decision, request, digits) | dict(extra or {})
    if facts:
        body[KEY] = facts
    return body


def _answer(asked: Asked, answer: Answer | None, digits: int | None, rule: ConfidenceRule | None) -> dict[str, Any]:
    if answer is None:
        return {"type": "refusal", "name": asked.name}
    shown = dict(
        zip(answer.probabilities, shown_probabilities(list(answer.probabilities.values()), digits), strict=True)
    )
    if isinstance(answer, NoulAnswer):
        return {"type": "predicate", "name": asked.name, "probability": shown["true"]}
    confidence = shown_confidence(answer, digits, rule)
    if isinstance(answer, ChoiceAnswer):
        probabilities = [{"value": asked.values[option], "probability": p} for option, p in shown.items()]
        return {
            "type": "choice",
            "name": asked.name,
            "choice": asked.values[answer.choice],
            "confidence": confidence,
            "probabilities": probabilities,
        }
    return {
        "type": "score",
        "name": asked.name,
        "score": shown_number(answer.score, digits, high=len(shown) - 1.0),
        "confidence": confidence,
        "probabilities": [
            {"value": int(level), "label": asked.values[level], "probability": p} for level, p in shown.items()
        ],
    }


def _usage(decision: Decision[Any]) -> dict[str, Any]:
    usage = decision.usage
    return {
        "input_tokens": int(usage.input_tokens),
        "input_tokens_details": {"cached_tokens": int(usage.cached_tokens), "cache_write_tokens": 0},
        "output_tokens": int(usage.output_tokens),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": int(usage.input_tokens + usage.output_tokens),
    }


def _facts(decision: Decision[Any], request: DecisionsRequest, digits: int | None) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if decision.truncated:
        facts |= {"truncated": True, "state_tokens_dropped": decision.usage.state_tokens_dropped}
    answers = [decision.answers.get(asked.key) for asked in request.asked]
    reported = [answer and answer_facts(answer, digits, request.x_dicast) for answer in answers]
    if any(reported):
        facts["answers"] = reported
    return facts


def _questions(
    fields: Mapping[str, Any], order: MediaOrder, images: bool
) -> tuple[tuple[Asked, ...], dict[str, Question]]:
    """Every question as asked, and those that can be answered."""
    listed = require(fields, "questions", (), list)
    if not 1 <= len(listed) <= MAX_QUESTIONS:
        raise bad(
            f"{len(listed)} questions are outside the limits of 1 to {MAX_QUESTIONS}",
            ("questions",),
            "limit_exceeded",
            limit=MAX_QUESTIONS,
            seen=len(listed),
        )
    names = [_name(question, ("questions", index)) for index, question in enumerate(listed)]
    asked: list[Asked] = []
    questions: dict[str, Question] = {}
    for index, (key, fields_of) in enumerate(zip(_keys(names), listed, strict=True)):
        loc: Loc = ("questions", index)
        refused = _shows_image(fields_of) and not images
        question, values = _question(fields_of, loc, MediaOrder() if refused else order)
        asked.append(Asked(key, names[index], values))
        if not refused:
            questions[key] = question
    if not questions:
        raise CapabilityError("the model reads text only; every question shows an image", field="questions")
    return tuple(asked), questions


def _name(question: Any, loc: Loc) -> str | None:
    if not isinstance(question, Mapping):
        raise bad("must be an object", loc, "invalid_type")
    name = question.get("name")
    if name is not None and not isinstance(name, str):
        raise bad("must be a string", (*loc, "name"), "invalid_type")
    return name


def _keys(names: list[str | None]) -> list[str]:
    """Ids for the record: a name that is given once, else the position."""
    counts = Counter(names)
    taken = {name for name, count in counts.items() if name and count == 1}
    keys = []
    for index, name in enumerate(names):
        if name and counts[name] == 1:
            keys.append(name)
            continue
        key = str(index)
        while key in taken:
            key = f"#{key}"
        taken.add(key)
        keys.append(key)
    return keys


def _shows_image(question: Mapping[str, Any]) -> bool:
    parts = question.get("instructions")
    return isinstance(parts, list) and any(
        isinstance(part, Mapping) and part.get("type") == "input_image" for part in parts
    )


def _question(question: Mapping[str, Any], loc: Loc, order: MediaOrder) -> tuple[Question, dict[str, Value]]:
    if question.get("instructions") is None:
        raise bad("is required", (*loc, "instructions"), "missing_required_parameter")
    instructions = read_content(question["instructions"], (*loc, "instructions"), order, INPUT_PARTS)
    kind = question.get("type")
    if kind == "predicate":
        return Noul(instructions), {}
    if kind == "choice":
        descriptions, values = _choices(require(question, "choices", loc, list), (*loc, "choices"))
        return Choice(instructions, descriptions), values
    if kind == "score":
        levels, labels = _levels(require(question, "levels", loc, list), (*loc, "levels"))
        return Score(instructions, levels), labels
    raise bad(f"must be predicate, choice or score, not {str(kind)[:60]!r}", (*loc, "type"))


def _choices(choices: list[Any], loc: Loc) -> tuple[dict[str, str | None], dict[str, Value]]:
    """Option id -> description, and option id -> value."""
    _check_count(len(choices), MAX_OPTIONS, "choices", loc)
    texts = {
        choice["value"] for choice in choices if isinstance(choice, Mapping) and isinstance(choice.get("value"), str)
    }
    descriptions: dict[str, str | None] = {}
    values: dict[str, Value] = {}
    for index, choice in enumerate(choices):
        at = (*loc, index)
        if not isinstance(choice, Mapping):
            raise bad("must be an object", at, "invalid_type")
        value = choice.get("value")
        if value is None:
            raise bad("is required", (*at, "value"), "missing_required_parameter")
        if not isinstance(value, str | bool):
            raise bad("must be a string or a boolean", (*at, "value"), "invalid_type")
        option = _option_id(value, texts)
        if option in values:
            raise bad(f"the value {value!r} is given twice", (*at, "value"))
        values[option] = value
        descriptions[option] = _description(choice, at)
    return descriptions, values


def _option_id(value: Value, texts: Collection[str]) -> str:
    """``true`` and ``"true"`` are different values but would be the same text."""
    if isinstance(value, str):
        return value
    option = "true" if value else "false"
    while option in texts:
        option += " (boolean)"
    return option


def _levels(levels: list[Any], loc: Loc) -> tuple[list[str], dict[str, Value]]:
    """Criteria, and level number -> label."""
    _check_count(len(levels), MAX_LEVELS, "levels", loc)
    criteria: list[str] = []
    labels: dict[str, Value] = {}
    for index, level in enumerate(levels):
        at = (*loc, index)
        if not isinstance(level, Mapping):
            raise bad("must be an object", at, "invalid_type")
        label = require(level, "label", at)
        description = _description(level, at)
        labels[str(index)] = label
        criteria.append(f"{label}: {description}" if description else label)
    return criteria, labels


def _description(fields: Mapping[str, Any], loc: Loc) -> str | None:
    description = fields.get("description")
    if description is not None and not isinstance(description, str):
        raise bad("must be a string", (*loc, "description"), "invalid_type")
    return description


def _check_count(count: int, most: int, what: str, loc: Loc) -> None:
    if not MIN_OPTIONS <= count <= most:
        raise bad(
            f"{count} {what} are outside the limits of {MIN_OPTIONS} to {most}",
            loc,
            "limit_exceeded",
            limit=most if count > most else MIN_OPTIONS,
            seen=count,
        )


def _check_ignored(fields: Mapping[str, Any]) -> None:
    """Fields that a local server has no use for, but whose mistakes it should show."""
    for name in ("prompt_cache_key", "safety_identifier"):
        if fields.get(name) is not None and not isinstance(fields[name], str):
            raise bad("must be a string", (name,), "invalid_type")
    options = fields.get("prompt_cache_options")
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise bad("must be an object", ("prompt_cache_options",), "invalid_type")
    if options.get("mode") not in ("implicit", "explicit", None):
        raise bad("must be implicit or explicit", ("prompt_cache_options", "mode"))
    if options.get("ttl") not in ("30m", None):
        raise bad("must be 30m", ("prompt_cache_options", "ttl"))
