"""What every runtime offers to the engine: encode a record, score encodings, say what it is.

A model knows nothing of queues, JSON bodies or probabilities. It turns records into encodings (token ids and where the
questions and options lie in them) and encodings into logits, one array of ``[n_options]`` per question, in the option
order of the encoding. No torch in here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from dicast.records import QuestionType, Record

if TYPE_CHECKING:
    from dicast.engine.batches import BatchLimits

Logits: TypeAlias = list[npt.NDArray[np.float32]]
"""Logits of one record: per question, in request order, an array ``[n_options]`` in encoding order."""

Truncation: TypeAlias = Literal["refuse", "state_end"]
ControlTokens: TypeAlias = Literal["text", "parse"]


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How to encode a record.

    Attributes:
        truncation: ``"refuse"`` raises TokenBudgetError when the record does not fit; ``"state_end"`` cuts the end of
            the state and reports how much.
        max_length: most tokens of the whole sequence; None means the model's own limit.
        max_state_tokens: most tokens of the state; None means no limit of its own.
        control_tokens: ``"text"`` encodes control-token strings in user text as ordinary text; ``"parse"`` turns them
            into control tokens, as the reference implementation does.
    """

    truncation: Truncation = "refuse"
    max_length: int | None = None
    max_state_tokens: int | None = None
    control_tokens: ControlTokens = "text"


DEFAULT_OPTIONS = EncodeOptions()


@dataclass(frozen=True, slots=True)
class QuestionEncoding:
    """One question as a model sees it.

    Attributes:
        id: the question's id.
        type: noul, choice or score.
        options: option ids in encoding order (Clef sorts the ids of a choice); logits come in this order.
    """

    id: str
    type: QuestionType
    options: tuple[str, ...]


class Encoding(Protocol):
    """What the engine sees of an encoded record."""

    @property
    def questions(self) -> Sequence[QuestionEncoding]:
        """The questions in request order."""

    @property
    def length(self) -> int:
        """Tokens of the whole record: its cost in a batch."""

    @property
    def media_tokens(self) -> int:
        """How many of the tokens stand for images and videos."""

    @property
    def state_tokens_dropped(self) -> int:
        """How many state tokens were cut off on request."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model is, for people, logs and the models listing.

    Attributes:
        name: the name under which it was loaded, e.g. ``Cloudflare/clef-flash``.
        architecture: e.g. ``clef (qwen3_5 + joint schema head)``.
        runtime: ``torch`` or ``onnx``.
        parameters: parts -> number of parameters, e.g. ``{"backbone": ..., "head": ...}``.
        dtype: dtype of the backbone's weights.
        device: where it runs.
        max_tokens: most tokens of one record.
        images: whether it reads images.
        videos: whether it reads videos.
        revision: hub revision or content hash, if known.
        licence: SPDX identifier of the weights' licence, if known.
        released: release date (ISO 8601), if known.
        details: further facts worth showing (kernels, threads, file sizes).
    """

    name: str
    architecture: str
    runtime: Literal["torch", "onnx"]
    parameters: Mapping[str, int]
    dtype: str
    device: str
    max_tokens: int
    images: bool = False
    videos: bool = False
    revision: str = ""
    licence: str = ""
    released: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


class Model(Protocol):
    """A runtime: encodes records and scores encodings."""

    @property
    def info(self) -> ModelInfo:
        """What this model is."""

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> Encoding:
        """Encode one record.

        Raises:
            TokenBudgetError: the record does not fit.
            CapabilityError: the record shows media that the model cannot read.
        """

    def score(self, encodings: Sequence[Any]) -> list[Logits]:
        """Logits of each encoding, in order."""


class Scored(NamedTuple):
    """Logits of one encoding, and how many of its tokens were not computed again because a cache knew them."""

    logits: Logits
    cached_tokens: int = 0


@runtime_checkable
class Planner(Protocol):
    """A model that reuses work between records, and so wants a say in which of them are scored together."""

    def plan(self, encodings: Sequence[Any], limits: BatchLimits) -> list[list[int]]:
        """Batches of indices into `encodings`; every index is in exactly one."""

    def score_reusing(self, encodings: Sequence[Any]) -> list[Scored]:
        """Logits of the encodings of one batch, in order, and what was reused."""
