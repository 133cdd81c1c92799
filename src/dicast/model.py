"""`DecisionModel`: what `dicast.load` returns. Records in any accepted form go in, decisions come out.

Ties a runtime (`dicast.models`), the engine that batches for it, and the checkpoint's calibration together; holds no
logic of its own beyond that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dicast.answers import Calibrator, ConfidenceRule
from dicast.checkpoints import load_model, resolve
from dicast.engine.batches import limits_for
from dicast.engine.scoring import answer, prepare, score_all
from dicast.models.base import EncodeOptions, Model, ModelInfo, Truncation
from dicast.records import JSON, Decision, Record, as_questions, check_limits

WINDOW = 2048
"""Records that :meth:`DecisionModel.decide_batch` holds encoded at once, and sorts by length."""


class DecisionModel:
    """A loaded decision model. Safe to share between threads.

    Args:
        model: the runtime.
        calibration: applied to logits before the softmax; None leaves them as they are.
        confidence: which rule defines `confidence` (see :func:`dicast.answers.confidence_of`).
    """

    def __init__(
        self, model: Model, calibration: Calibrator | None = None, *, confidence: ConfidenceRule = "typesafe"
    ) -> None:
        self.model = model
        self.calibration = calibration
        self.confidence = confidence

    @property
    def info(self) -> ModelInfo:
        """What this model is."""
        return self.model.info

    def decide(
        self,
        state: JSON,
        questions: Any,
        *,
        images: Sequence[Any] = (),
        videos: Sequence[Any] = (),
        truncation: Truncation = "refuse",
        max_length: int | None = None,
        isolate: bool = False,
        media_kwargs: Mapping[str, Any] | None = None,
    ) -> Decision[Any]:
        """Answer questions about a state.

        Args:
            state: text or any JSON value.
            questions: question id -> :class:`~dicast.records.Noul`, ``Choice``, ``Score`` or the same as a dict in
                System One form; or a Pydantic model, whose fields are the questions.
            images: pictures shown with the state: anything that :func:`dicast.media.decode_image` takes (Pillow images,
                arrays, bytes, paths, data URLs).
            videos: videos shown with the state: anything that :func:`dicast.media.decode_video` takes.
            truncation: ``"refuse"`` (default) or ``"state_end"``, which cuts the end of a state that does not fit and
                says so in ``decision.truncated``.
            max_length: most tokens of the whole record; None means the model's own limit.
            isolate: score every question alone, under a neutral id, so that other questions and their order cannot move
                its answer.
            media_kwargs: ``{"max_pixels": ...}`` scales pictures down, trading detail for speed; anything else goes to
                the checkpoint's media processor.

        Returns:
            One answer per question, in the order in which they were asked.

        Raises:
            RecordError: a question has the wrong shape or breaks a limit.
            TokenBudgetError: the record does not fit.
            CapabilityError: the model can't read the media.
            MediaError: an image or video can't be used.
        """
        schema, built = _questions(questions)
        record = Record(state, built, images, videos, media_kwargs or {})
        options = EncodeOptions(truncation=truncation, max_length=max_length)
        decision = self.decide_batch([record], options=options, isolate=isolate)[0]
        return schema.attach(decision) if schema else decision

    def decide_batch(
        self,
        records: Iterable[Record | Mapping[str, Any]],
        *,
        options: EncodeOptions | None = None,
        isolate: bool = False,
    ) -> list[Decision[Any]]:
        """Answer many records; the same answers as one by one up to rounding, in the same order, but quicker.

        Deadlines, progress and errors per record are the matter of :class:`dicast.engine.Engine`.

        Args:
            records: :class:`~dicast.records.Record` objects or dicts with ``state`` and ``questions``.
            options: how to encode them.
            isolate: as in :meth:`decide`.

        Raises:
            RecordError, TokenBudgetError, CapabilityError, MediaError: as :meth:`decide`.
            EngineError: the model failed on a record.
        """
        checked = [check_limits(as_record(record)) for record in records]
        asked = options or EncodeOptions()
        decisions: list[Decision[Any]] = []
        for start in range(0, len(checked), WINDOW):
            decisions += self._decide(checked[start : start + WINDOW], asked, isolate)
        return decisions

    def _decide(self, records: Sequence[Record], options: EncodeOptions, isolate: bool) -> Iterator[Decision[Any]]:
        prepared = [prepare(self.model, record, options, isolate=isolate) for record in records]
        parts = [part for item in prepared for part in item.parts]
        outcomes = iter(score_all(self.model, parts, limits_for(self.info)))
        for item in prepared:
            yield answer(
                item,
                [next(outcomes) for _ in item.parts],
                calibration=self.calibration,
                model=self.info.name,
                confidence=self.confidence,
            )

    def logits(
        self, record: Record | Mapping[str, Any], *, options: EncodeOptions | None = None
    ) -> dict[str, dict[str, float]]:
        """Logits before calibration: question id -> option id -> logit, options in encoding order.

        Raises:
            RecordError, TokenBudgetError, CapabilityError, MediaError: as :meth:`decide`.
        """
        prepared = prepare(self.model, check_limits(as_record(record)), options or EncodeOptions())
        encoding = prepared.encoding
        values = self.model.score([encoding])[0]
        return {
            question.id: dict(zip(question.options, logits.tolist(), strict=True))
            for question, logits in zip(encoding.questions, values, strict=True)
        }


def load(
    name_or_path: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    calibrated: bool = True,
    confidence: ConfidenceRule = "typesafe",
    **options: Any,
) -> DecisionModel:
    """Load a decision model.

    Args:
        name_or_path: None for the embedded model, a checkpoint folder, or a hub name such as ``Cloudflare/clef-flash``
            (``name@revision`` pins a revision).
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: dtype of the backbone's weights; ``auto`` follows the rules of :mod:`dicast.models.devices`.
        calibrated: whether to apply the checkpoint's `calibration.json`, if it has one.
        confidence: which rule defines `confidence`.
        **options: see :func:`dicast.checkpoints.load_model` (``vision``, ``max_length``, ``threads``, ...).

    Raises:
        ModelNotFoundError: no such folder or hub repository.
        CheckpointError: the folder is incomplete, corrupt or of the wrong kind.
        MissingDependencyError: the model needs an extra that is not installed.
    """
    from dicast.calibration import Calibration

    folder, _, _ = resolve(name_or_path)
    model = load_model(name_or_path, device=device, dtype=dtype, **options)
    return DecisionModel(model, Calibration.load(folder) if calibrated else None, confidence=confidence)


def as_record(value: Record | Mapping[str, Any]) -> Record:
    """A record from its dict form, ``{"state": ..., "questions": ..., "images": [...], ...}``.

    Raises:
        RecordError: the state or the questions are missing, or have the wrong shape.
    """
    from dicast.errors import RecordError

    if isinstance(value, Record):
        return value
    if not isinstance(value, Mapping):
        raise RecordError(f"a record must be an object, not {type(value).__name__}")
    for key in ("state", "questions"):
        if key not in value:
            raise RecordError(f"{key} is required", field=key)
    return Record(
        value["state"],
        as_questions(value["questions"]),
        _listed(value.get("images"), "images"),
        _listed(value.get("videos"), "videos"),
        value.get("media_kwargs") or {},
        value.get("id"),
    )


def _listed(value: Any, field: str) -> tuple[Any, ...]:
    from dicast.errors import RecordError

    if value is not None and not isinstance(value, list | tuple):
        raise RecordError(f"must be an array, not {type(value).__name__}", field=field)
    return tuple(value or ())


def _questions(questions: Any) -> tuple[Any, Mapping[str, Any]]:
    """The schema type, if one was given, and the questions."""
    if isinstance(questions, Mapping):
        return None, as_questions(questions)
    from dicast.schemas import Schema

    schema = Schema(questions)
    return schema, schema.questions
