"""System One: ``POST /v1/systemone`` bodies to records, decisions to response bodies.

    {"model": "jev-latest",
     "state": "I was charged twice.",
     "questions": {"refund": {"type": "noul", "instructions": "Refund wanted?"},
                   "team":   {"type": "choice", "criteria": {"billing": "Payments", "technical": null}},
                   "anger":  {"type": "score", "criteria": ["Calm", "Frustrated", "Very angry"]}}}

    {"model": "dicast-embedded-0.1",
     "answers": {"refund": {"type": "noul", "noul": 0.9731}, ...},
     "usage": {"input_tokens": 304, "output_tokens": 0}}

The rules of nullability are the contract's: a state is a string, an object or an array; instructions may be missing,
null or structured; a noul's criteria may be missing, null or one-sided; option descriptions may be null, levels may
not. Shapes are refused with 422, limits with 400. Everything that is not in the contract travels under ``x_dicast``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dicast.answers import ConfidenceRule, confidence_of
from dicast.errors import RecordError
from dicast.records import (
    JSON,
    QUESTION_KINDS,
    Answer,
    ChoiceAnswer,
    Decision,
    NoulAnswer,
    Question,
    Record,
    Usage,
    check_limits,
)
from dicast.wire.assets import MediaDecoder, MediaOrder, Placeholders, read_assets, read_media_list
from dicast.wire.errors import Loc, RequestError, invalid, over_limit, refused
from dicast.wire.extensions import KEY, NO_EXTENSIONS, Extensions, parse_extensions
from dicast.wire.jsontext import read_json
from dicast.wire.rounding import shown_number, shown_probabilities

DIGITS: Final = 4
"""Decimals of probabilities, scores and confidences unless asked otherwise."""
KNOWN_FIELDS = ("model", "state", "questions", "assets", "images", "videos", KEY)
"""Top-level fields with a meaning; others are ignored unless the request is read strictly."""


@dataclass(frozen=True, slots=True)
class SystemOneRequest:
    """A request that has been read.

    Attributes:
        record: state, questions and decoded media, within the contract's limits.
        model: model name as sent; None when the request leaves it out.
        x_dicast: what the request asks for beyond the contract.
    """

    record: Record
    model: str | None = None
    x_dicast: Extensions = NO_EXTENSIONS


def parse_request(
    body: bytes | Mapping[str, Any],
    *,
    parts: Mapping[str, bytes] | None = None,
    decoder: MediaDecoder | None = None,
    strict: bool = False,
) -> SystemOneRequest:
    """Read a System One request.

    Args:
        body: the JSON text, or the object when it has been read already.
        parts: the other parts of a multipart body, by name.
        decoder: decodes media; by default :mod:`dicast.media` with its own limits.
        strict: refuse unknown top-level fields.

    Raises:
        RequestError: names the path, and the limit and what was seen where a limit is broken.
        MediaError: an image or video is unreadable or over a limit.
    """
    fields = read_object(body)
    if strict:
        _check_fields(fields)
    model = parse_model(fields)
    state = parse_state(fields)
    questions = parse_questions(fields)
    record = checked(Record(state, questions))
    asked = parse_extensions(fields.get(KEY))
    record = replace(_with_media(record, fields, parts, decoder), media_kwargs=asked.media_kwargs)
    return SystemOneRequest(record, model, asked)


def read_object(body: bytes | Mapping[str, Any]) -> Mapping[str, Any]:
    """The body as an object.

    Raises:
        RequestError: not JSON, or not an object.
    """
    value = body if isinstance(body, Mapping) else read_json(body)
    if not isinstance(value, Mapping):
        raise invalid("the body must be a JSON object", (), "dict_type")
    return value


def parse_model(fields: Mapping[str, Any]) -> str | None:
    """The model name; None when it is missing or null.

    Raises:
        RequestError: not a string.
    """
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise invalid("must be a string", ("model",), "string_type")
    return model


def parse_state(fields: Mapping[str, Any], loc: Loc = ("state",)) -> JSON:
    """The state: a string, an object or an array.

    Raises:
        RequestError: missing, null, a number or a boolean.
    """
    state = fields.get("state")
    if state is None:
        raise invalid("Field required", loc, "missing")
    if not isinstance(state, str | Mapping | list):
        raise invalid("must be a string, an object or an array", loc, "union_type")
    return state


def parse_questions(fields: Mapping[str, Any]) -> dict[str, Question]:
    """The questions by id, in request order.

    Raises:
        RequestError: missing, not an object, empty, or one of them has the wrong shape.
    """
    questions = fields.get("questions")
    if questions is None:
        raise invalid("Field required", ("questions",), "missing")
    if not isinstance(questions, Mapping):
        raise invalid("must be an object of id to question", ("questions",), "dict_type")
    if not questions:
        raise invalid("at least one question is required", ("questions",), "too_short")
    return {question_id: _question(question_id, value) for question_id, value in questions.items()}


def checked(record: Record) -> Record:
    """The record, if it is within the contract's limits.

    Raises:
        RequestError: with the exact path.
    """
    try:
        return check_limits(record)
    except RecordError as error:
        loc = _loc_of(error.field, record)
        if error.limit is not None:
            raise over_limit(error.message, loc, limit=error.limit, seen=error.seen, field=error.field) from None
        raise invalid(error.message, loc, field=error.field) from None


def response_body(
    decision: Decision[Any],
    *,
    digits: int | None = DIGITS,
    confidence: ConfidenceRule | None = None,
    asked: Extensions = NO_EXTENSIONS,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The response body of a decision.

    Shown probabilities sum to 1 in units of the last decimal, and the choice is the most probable option of what is
    shown. Score and confidence come from the unrounded numbers.

    Args:
        decision: the answers.
        digits: decimals; None shows all.
        confidence: rule that replaces the decision's own confidences; None keeps them.
        asked: which of Dicast's own facts to report under ``x_dicast``.
        extra: more facts to report there, e.g. timings.
    """
    body: dict[str, Any] = {
        "model": decision.model,
        "answers": {
            question_id: _answer(answer, digits, confidence) for question_id, answer in decision.answers.items()
        },
        "usage": usage_body(decision.usage),
    }
    facts = _facts(decision, digits, asked) | dict(extra or {})
    if facts:
        body[KEY] = facts
    return body


def usage_body(usage: Usage) -> dict[str, int]:
    """Token counts as System One shows them."""
    return {"input_tokens": int(usage.input_tokens), "output_tokens": int(usage.output_tokens)}


def shown_confidence(answer: Answer, digits: int | None, rule: ConfidenceRule | None) -> float:
    """An answer's confidence, by another rule if one is given."""
    value = answer.confidence
    if rule is not None:
        value = confidence_of(answer.type, list(answer.probabilities.values()), rule)
    return shown_number(value, digits)


def _answer(answer: Answer, digits: int | None, rule: ConfidenceRule | None) -> dict[str, Any]:
    values = shown_probabilities(list(answer.probabilities.values()), digits)
    if isinstance(answer, NoulAnswer):
        return {"type": "noul", "noul": dict(zip(answer.probabilities, values, strict=True))["true"]}
    shown: dict[str, Any]
    if isinstance(answer, ChoiceAnswer):
        shown = {"type": "choice", "choice": answer.choice}
    else:
        shown = {"type": "score", "score": shown_number(answer.score, digits, high=len(values) - 1.0)}
    shown["confidence"] = shown_confidence(answer, digits, rule)
    if not isinstance(answer, ChoiceAnswer):
        shown["legend"] = dict(answer.legend)
    return shown | {"probabilities": dict(zip(answer.probabilities, values, strict=True))}


def _facts(decision: Decision[Any], digits: int | None, asked: Extensions) -> dict[str, Any]:
    """What ``x_dicast`` reports of a decision; a cut state is always reported."""
    facts: dict[str, Any] = {}
    if decision.truncated:
        facts |= {"truncated": True, "state_tokens_dropped": decision.usage.state_tokens_dropped}
    if asked.cache:
        facts["cache"] = {"cached_tokens": decision.usage.cached_tokens}
    answers = {question_id: answer_facts(answer, digits, asked) for question_id, answer in decision.answers.items()}
    if any(answers.values()):
        facts["answers"] = answers
    return facts


def answer_facts(answer: Answer, digits: int | None, asked: Extensions) -> dict[str, Any]:
    """What ``x_dicast`` reports of one answer."""
    facts: dict[str, Any] = {}
    if asked.logits:
        facts["logits"] = dict(answer.logits)
    if asked.entropy:
        facts["entropy"] = shown_number(answer.entropy, digits, high=float("inf"))
    if answer.accepted is not None:
        facts["accepted"] = answer.accepted
    if answer.prediction_set is not None:
        facts["prediction_set"] = list(answer.prediction_set)
    return facts


def _question(question_id: str, value: Any) -> Question:
    loc: Loc = ("questions", question_id)
    if not question_id:
        raise RequestError("a question id must not be empty", loc=("questions",), status=400, shape="text")
    if not isinstance(value, Mapping):
        raise invalid("must be an object", loc, "dict_type")
    kind = value.get("type")
    if kind is None:
        raise invalid("Field required", (*loc, "type"), "missing")
    if kind == "box":
        raise refused(
            "box questions are not supported: no model here finds positions; ask a noul, choice or score instead",
            (*loc, "type"),
            code="unsupported",
        )
    if not isinstance(kind, str) or kind not in QUESTION_KINDS:
        raise invalid(f"must be noul, choice or score, not {str(kind)[:60]!r}", (*loc, "type"), "union_tag_invalid")
    instructions = _content((*loc, kind, "instructions"), value.get("instructions"))
    criteria = _CRITERIA[kind]((*loc, kind, "criteria"), value.get("criteria"))
    try:
        return QUESTION_KINDS[kind](instructions, criteria)
    except RecordError as error:
        rest = error.field.split(".") if error.field else ()
        raise invalid(error.message, (*loc, kind, *rest), field=_people((*loc, kind, *rest))) from None


def _noul_criteria(loc: Loc, criteria: Any) -> Any:
    if criteria is None:
        return None
    if not isinstance(criteria, Mapping):
        raise invalid("must be an object with the optional keys true and false", loc, "dict_type", field=_people(loc))
    return {key: _content((*loc, key), value) for key, value in criteria.items()}


def _choice_criteria(loc: Loc, criteria: Any) -> Any:
    if criteria is None:
        raise invalid("Field required: an object of option to description", loc, "missing", field=_people(loc))
    if not isinstance(criteria, Mapping):
        raise invalid("must be an object of option to description", loc, "dict_type", field=_people(loc))
    if not criteria:
        raise RequestError(
            "must not be empty: a choice needs at least one option",
            loc=loc,
            status=400,
            shape="text",
            code="limit_exceeded",
            limit=1,
            seen=0,
            field=_people(loc),
        )
    return {label: _content((*loc, label), value) for label, value in criteria.items()}


def _score_criteria(loc: Loc, criteria: Any) -> Any:
    if criteria is None:
        raise invalid("Field required: an array of levels, lowest first", loc, "missing", field=_people(loc))
    if not isinstance(criteria, list | tuple):
        raise invalid("must be an array of levels, lowest first", loc, "list_type", field=_people(loc))
    if not criteria:
        raise invalid("must not be empty: a score needs at least one level", loc, "too_short", field=_people(loc))
    for index, level in enumerate(criteria):
        if level is None:
            raise invalid("a level must not be null", (*loc, index), "union_type", field=_people((*loc, index)))
    return [_content((*loc, index), level) for index, level in enumerate(criteria)]


_CRITERIA = {"noul": _noul_criteria, "choice": _choice_criteria, "score": _score_criteria}


def _content(loc: Loc, value: Any) -> Any:
    """Text or structured content, or null."""
    if value is None or isinstance(value, str | Mapping | list | tuple):
        return value
    raise invalid("must be a string, an object, an array or null", loc, "union_type", field=_people(loc))


def _people(loc: Loc) -> str:
    """A question's path without its type, which only the contract's ``loc`` has."""
    return ".".join(str(part) for part in (*loc[:2], *loc[3:]))


def _loc_of(path: str, record: Record) -> Loc:
    """The exact path behind a record's dotted path; question ids may hold dots themselves."""
    for question_id in sorted(record.questions, key=len, reverse=True):
        prefix = f"questions.{question_id}."
        if path.startswith(prefix):
            kind = record.questions[question_id].type
            return ("questions", question_id, kind, *path.removeprefix(prefix).split("."))
    return tuple(path.split(".")) if path else ()


def _check_fields(fields: Mapping[str, Any]) -> None:
    for name in fields:
        if name not in KNOWN_FIELDS:
            raise refused(f"unknown field; known are {', '.join(KNOWN_FIELDS)}", (name,), code="unknown_field")


def _with_media(
    record: Record, fields: Mapping[str, Any], parts: Mapping[str, bytes] | None, decoder: MediaDecoder | None
) -> Record:
    order = MediaOrder(read_media_list(fields.get("images"), "image"), read_media_list(fields.get("videos"), "video"))
    assets = read_assets(fields.get("assets"), parts)
    if assets:
        record = _placed(record, Placeholders(assets, order))
    if not order.images and not order.videos:
        return record
    images, videos = order.decoded(decoder or default_decoder())
    return replace(record, images=images, videos=videos)


def _placed(record: Record, placeholders: Placeholders) -> Record:
    """The record with references in place of placeholders: state first, then each question in order."""
    state = placeholders.replace(record.state)
    questions: dict[str, Question] = {}
    for question_id, question in record.questions.items():
        instructions = placeholders.replace(question.instructions)
        questions[question_id] = replace(
            question, instructions=instructions, criteria=placeholders.replace(question.criteria)
        )
    placeholders.check_all_mentioned()
    return replace(record, state=state, questions=questions)


def default_decoder() -> MediaDecoder:
    """Decodes in this process; imported only when a request shows media."""
    from dicast.wire.media import InProcessDecoder

    return InProcessDecoder()
