"""One record or many, without a queue: encode, score in batches, make decisions. What every way in has in common.

A failure stays with the record that caused it: when a batch fails, its halves are tried alone, down to single records.
Knows models only by the protocols of :mod:`dicast.models.base`; knows no threads and no deadlines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dicast.answers import Calibrator, ConfidenceRule, make_decision
from dicast.engine.batches import BatchLimits, form_batches
from dicast.errors import DicastError, EngineError
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Encoding, Model, Planner, QuestionEncoding, Scored
from dicast.records import Decision, Question, Record, with_questions

NEUTRAL_ID = "q"
"""The id under which an isolated question is shown, so that its own id cannot move its answer."""

Outcome: TypeAlias = Scored | Exception


@dataclass(frozen=True, slots=True)
class IsolatedEncoding:
    """Several questions about one state, each encoded alone.

    Attributes:
        questions: the questions under their own ids, in request order.
        parts: per question, the encoding of the record with that question only.
    """

    questions: tuple[QuestionEncoding, ...]
    parts: tuple[Encoding, ...]

    @property
    def length(self) -> int:
        """Tokens of all parts together; the state counts once per question, reused or not."""
        return sum(part.length for part in self.parts)

    @property
    def media_tokens(self) -> int:
        """Media tokens of all parts together."""
        return sum(part.media_tokens for part in self.parts)

    @property
    def state_tokens_dropped(self) -> int:
        """State tokens cut off in the part where most were."""
        return max(part.state_tokens_dropped for part in self.parts)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A record that is ready to be scored.

    Attributes:
        record: as it was asked.
        encoding: what the answers refer to.
        parts: what the model scores: the encoding itself, or one encoding per isolated question.
    """

    record: Record
    encoding: Encoding
    parts: tuple[Encoding, ...]


def prepare(
    model: Model, record: Record, options: EncodeOptions = DEFAULT_OPTIONS, *, isolate: bool = False
) -> Prepared:
    """Encode a record.

    Args:
        model: the runtime.
        record: checked against the limits already.
        options: how to encode it.
        isolate: encode every question alone under a neutral id. A question without instructions is asked by its id, as
            ever.

    Raises:
        TokenBudgetError: the record does not fit.
        CapabilityError: the model can't read its media.
        MediaError: an image or video can't be used.
    """
    if record.has_media:
        record = _with_decoded_media(model, record)
    if not isolate:
        encoding = model.encode(record, options)
        return Prepared(record, encoding, (encoding,))
    parts = tuple(
        model.encode(with_questions(record, {NEUTRAL_ID: _with_instructions(question_id, question)}), options)
        for question_id, question in record.questions.items()
    )
    questions = tuple(
        QuestionEncoding(question_id, part.questions[0].type, part.questions[0].options)
        for question_id, part in zip(record.questions, parts, strict=True)
    )
    return Prepared(record, IsolatedEncoding(questions, parts), parts)


def answer(
    prepared: Prepared,
    outcomes: Sequence[Outcome],
    *,
    calibration: Calibrator | None,
    model: str,
    confidence: ConfidenceRule,
) -> Decision[Any]:
    """The decision of a record from the outcomes of its parts.

    Raises:
        EngineError: the model failed on a part or gave a logit that is not finite.
    """
    scored = [_or_raise(outcome) for outcome in outcomes]
    try:
        return make_decision(
            prepared.record,
            prepared.encoding,
            [logits for part in scored for logits in part.logits],
            calibration=calibration,
            model=model,
            confidence=confidence,
            cached_tokens=sum(part.cached_tokens for part in scored),
        )
    except FloatingPointError as error:
        raise EngineError(f"the model failed on this record: {error}") from error


def score_all(model: Model, encodings: Sequence[Encoding], limits: BatchLimits) -> list[Outcome]:
    """Score any number of encodings in batches; per encoding its logits, or the error that it alone caused."""
    outcomes: list[Outcome] = [EngineError("not scored")] * len(encodings)
    for batch in plan_batches(model, encodings, limits):
        for index, outcome in zip(batch, _score_batch(model, [encodings[i] for i in batch]), strict=True):
            outcomes[index] = outcome
    return outcomes


def _with_decoded_media(model: Model, record: Record) -> Record:
    from dicast.media import shown_record  # here, so that text needs no imaging code

    return shown_record(record, model=model.info.name, images=model.info.images, videos=model.info.videos)


def plan_batches(model: Model, encodings: Sequence[Encoding], limits: BatchLimits) -> list[list[int]]:
    """Batches of indices into `encodings`: by length, unless the model knows better what goes together."""
    if isinstance(model, Planner):
        return model.plan(encodings, limits)
    return form_batches([encoding.length for encoding in encodings], limits)


def _score_batch(model: Model, encodings: Sequence[Encoding]) -> list[Outcome]:
    try:
        return list(_score(model, encodings))
    except Exception as error:  # whatever a runtime raises belongs to the record that causes it
        if len(encodings) == 1:
            return [error]
    half = len(encodings) // 2
    return _score_batch(model, encodings[:half]) + _score_batch(model, encodings[half:])


def _score(model: Model, encodings: Sequence[Encoding]) -> Iterator[Scored]:
    if isinstance(model, Planner):
        yield from model.score_reusing(encodings)
    else:
        yield from (Scored(logits) for logits in model.score(encodings))


def _or_raise(outcome: Outcome) -> Scored:
    if isinstance(outcome, Scored):
        return outcome
    if isinstance(outcome, DicastError):
        raise outcome
    first = (str(outcome).strip().splitlines() or [""])[0]
    raise EngineError(f"the model failed on this record: {type(outcome).__name__}: {first}") from outcome


def _with_instructions(question_id: str, question: Question) -> Question:
    if question.instructions is None or question.instructions == "":
        return replace(question, instructions=question_id)
    return question
