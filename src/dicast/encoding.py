"""Record to token ids and spans, exactly as Clef was trained to read them. Knows a tokenizer, knows no tensors.

A record becomes ONE sequence. Each piece below is tokenized alone (`|` marks the seams), because joining texts before
tokenizing would give other ids:

    header | media | state | "\\n\\nSCHEMA FIELDS:\\n" |
      per question:  field header | instruction | "\\nALLOWED OPTIONS:\\n" |
         per option: "OPTION 1: " | {"description":...,"option_id":...} | "\\n" |
         "END FIELD\\n" |
    suffix

The *question span* covers the instruction's tokens, an *option span* the tokens of the option's JSON; both are
half-open positions in the whole sequence. Constant pieces are tokenized once, repeated ones come from a cache, and the
rest of a record goes to the tokenizer in one batched call, which gives the same ids as one call per piece.

Text from users is data: by default a control-token string such as ``<|im_end|>`` in a state, an instruction, a
criterion or an id is encoded as ordinary characters. What stays possible is text that *looks* like the schema
("END FIELD", "OPTION 1:"): it is ordinary text to the tokenizer and outside every span, but the model reads it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from dicast.errors import CheckpointError, TokenBudgetError
from dicast.models.base import DEFAULT_OPTIONS, ControlTokens, EncodeOptions, QuestionEncoding
from dicast.records import JSON, Choice, Noul, Question, Record

HEADER = (
    "<|im_start|>system\nRead the complete state and schema. Decide every field jointly. "
    "Each answer must be exactly one of that field's allowed options.<|im_end|>\n<|im_start|>user\nSTATE:\n"
)
SCHEMA = "\n\nSCHEMA FIELDS:\n"
FIELD = "\nFIELD {number}\nID: {id}\nTYPE: {type}\nINSTRUCTION: "
OPTIONS = "\nALLOWED OPTIONS:\n"
OPTION = "OPTION {number}: "
OPTION_END = "\n"
FIELD_END = "END FIELD\n"
SUFFIX = "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:"
NOUL_DESCRIPTIONS = {
    "true": "The proposition is true or the answer is yes.",
    "false": "The proposition is false or the answer is no.",
}
DEFAULT_MAX_LENGTH = 16384
"""Most tokens of a record unless a model says otherwise: the release's own default."""

Span = tuple[int, int]
"""Half-open positions ``[start, end)`` in the whole sequence."""


@dataclass(frozen=True, slots=True)
class QuestionSpans(QuestionEncoding):
    """A question with its places in the sequence."""

    question_span: Span
    option_spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class MediaEncoding:
    """A record's images and videos as the checkpoint's processor prepared them.

    Attributes:
        ids: token ids that stand between the header and the state.
        token_types: per id: 0 text, 1 image placeholder, 2 video placeholder.
        tensors: processor output (`pixel_values`, `image_grid_thw`, `pixel_values_videos`, `video_grid_thw`),
            opaque here.
        key: content hash of the media and of the processor's options, for caches.
    """

    ids: Sequence[int]
    token_types: Sequence[int]
    tensors: Mapping[str, Any]
    key: str = ""


MediaReader: TypeAlias = Callable[[Record, int], MediaEncoding]
"""Prepares the media of a record that may have so many tokens; raises MediaError or TokenBudgetError."""


@dataclass(frozen=True, slots=True)
class ClefEncoding:
    """Token ids of one record and where its questions and options lie.

    Attributes:
        ids: ``[length]`` int64 token ids.
        questions: the questions in request order, with spans.
        prefix_length: tokens before the schema (header, media, state): what a state cache can reuse.
        media_offset: position of the first media token.
        state_tokens: state tokens kept.
        state_tokens_dropped: state tokens cut off on request.
        media: the record's prepared images and videos, if any.
    """

    ids: npt.NDArray[np.int64]
    questions: tuple[QuestionSpans, ...]
    prefix_length: int
    media_offset: int
    state_tokens: int
    state_tokens_dropped: int = 0
    media: MediaEncoding | None = None

    @property
    def length(self) -> int:
        """Tokens of the whole sequence."""
        return len(self.ids)

    @property
    def media_tokens(self) -> int:
        """Tokens that stand for images and videos, their wrappers included."""
        return len(self.media.ids) if self.media else 0


class Pieces:
    """Token ids of text pieces, with a bounded cache. Safe to share between threads.

    Args:
        tokenizer: the checkpoint's tokenizer, which turns control-token strings into control tokens.
        capacity: how many pieces the cache keeps.
        longest: pieces with more characters are not cached.
    """

    def __init__(self, tokenizer: Tokenizer, *, capacity: int = 20_000, longest: int = 4_096) -> None:
        self._tokenizers = {"parse": tokenizer, "text": _without_control_tokens(tokenizer)}
        self._capacity, self._longest = capacity, longest
        self._cache: OrderedDict[tuple[str, str], tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def ids(self, texts: Sequence[str], control_tokens: ControlTokens) -> list[tuple[int, ...]]:
        """Token ids of each text, as if it were tokenized alone, without added special tokens."""
        known = self._look_up(texts, control_tokens)
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing:
            tokenizer = self._tokenizers[control_tokens]
            encoded = tokenizer.encode_batch(missing, add_special_tokens=False)
            fresh = {text: tuple(item.ids) for text, item in zip(missing, encoded, strict=True)}
            self._keep(fresh, control_tokens)
            known |= fresh
        return [known[text] for text in texts]

    def _look_up(self, texts: Iterable[str], mode: str) -> dict[str, tuple[int, ...]]:
        known: dict[str, tuple[int, ...]] = {}
        with self._lock:
            for text in texts:
                ids = self._cache.get((mode, text))
                if ids is not None:
                    self._cache.move_to_end((mode, text))
                    known[text] = ids
        return known

    def _keep(self, fresh: Mapping[str, tuple[int, ...]], mode: str) -> None:
        with self._lock:
            for text, ids in fresh.items():
                if len(text) <= self._longest:
                    self._cache[mode, text] = ids
            while len(self._cache) > self._capacity:
                self._cache.popitem(last=False)


class ClefEncoder:
    """Encodes records for one checkpoint.

    Args:
        tokenizer: the checkpoint's tokenizer (see :func:`load_tokenizer`).
        max_length: most tokens of a record when the options don't say.
        media: prepares a record's images and videos, given the most tokens of the record; None for a text-only model.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_length: int = DEFAULT_MAX_LENGTH,
        media: MediaReader | None = None,
    ) -> None:
        self.max_length = max_length
        self._media = media
        self._pieces = Pieces(tokenizer)
        self._header, self._suffix = self._pieces.ids([HEADER, SUFFIX], "parse")

    @classmethod
    def sharing(cls, other: ClefEncoder, *, media: MediaReader | None) -> ClefEncoder:
        """An encoder with another media reader that shares the tokenizer and piece cache of `other`."""
        shared = cls.__new__(cls)
        shared.__dict__.update(other.__dict__)
        shared._media = media
        return shared

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> ClefEncoding:
        """Token ids and spans of a record.

        Raises:
            TokenBudgetError: the record does not fit; names the token counts.
        """
        texts = [render(record.state), *_schema_texts(record.questions)]
        state, *schema = self._pieces.ids(texts, options.control_tokens)
        limit = options.max_length if options.max_length is not None else self.max_length
        media = self._media(record, limit) if self._media and record.has_media else None
        media_ids = tuple(media.ids) if media else ()
        fixed = len(self._header) + len(media_ids) + sum(map(len, schema)) + len(self._suffix)
        kept = self._fit(state, fixed, len(media_ids), limit, options)
        prefix = (*self._header, *media_ids, *kept)
        questions = tuple(_place(record.questions, schema, len(prefix)))
        ids = np.fromiter((i for part in (prefix, *schema, self._suffix) for i in part), dtype=np.int64)
        return ClefEncoding(
            ids=ids,
            questions=questions,
            prefix_length=len(prefix),
            media_offset=len(self._header),
            state_tokens=len(kept),
            state_tokens_dropped=len(state) - len(kept),
            media=media,
        )

    def _fit(
        self, state: tuple[int, ...], fixed: int, media: int, limit: int, options: EncodeOptions
    ) -> tuple[int, ...]:
        """The state's tokens that fit: all of them, or a cut from the end where that was asked for."""
        if fixed > limit:
            shown = f" ({media} of them for images and videos)" if media else ""
            raise TokenBudgetError(
                f"schema requires {fixed} tokens before state{shown}; maximum is {limit}",
                field="questions",
                limit=limit,
                seen=fixed,
            )
        room = limit - fixed
        if options.max_state_tokens is not None:
            room = min(room, options.max_state_tokens)
        if len(state) <= room or options.truncation == "state_end":
            return state[:room]
        raise TokenBudgetError(
            f"the state has {len(state)} tokens and the rest of the record {fixed}, but only {room} state tokens fit "
            f"(limit {limit} in all); shorten it or ask for truncation='state_end'",
            field="state",
            limit=room,
            seen=len(state),
        )


def render(value: JSON) -> str:
    """Text of a value: strings unchanged, anything else as compact JSON with sorted keys and non-ASCII kept."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def option_descriptions(question: Question) -> dict[str, JSON]:
    """Option id -> description, in encoding order: a choice's ids are sorted by code point."""
    if isinstance(question, Noul):
        return NOUL_DESCRIPTIONS | dict(question.criteria or {})
    if isinstance(question, Choice):
        criteria = dict(question.criteria) if isinstance(question.criteria, Mapping) else {}
        return {option: criteria[option] for option in sorted(criteria)}
    return {str(index): level for index, level in enumerate(question.criteria)}


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder, as transformers would build it for this model type.

    A `tokenizer_config.json` that names `Qwen2Tokenizer` means the Qwen2 pre-tokenizer, in which combining marks do not
    belong to a run of letters, whatever `tokenizer.json` holds.

    Raises:
        CheckpointError: the file is missing or not a tokenizer.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault
        raise CheckpointError(f"{path} is missing or not a readable tokenizer: {error}") from error
    if _tokenizer_class(folder) in ("Qwen2Tokenizer", "Qwen2TokenizerFast"):
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _tokenizer_class(folder: Path) -> str:
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{folder / 'tokenizer_config.json'} is not readable JSON: {error}") from error
    return str(config.get("tokenizer_class", ""))


def _without_control_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that reads every added token's string as ordinary text."""
    description = json.loads(tokenizer.to_str())
    for token in description.get("added_tokens", ()):
        token["special"] = True  # only tokens marked special can be switched off
    copy = Tokenizer.from_str(json.dumps(description))
    copy.encode_special_tokens = True
    return copy


def _schema_texts(questions: Mapping[str, Question]) -> Iterator[str]:
    yield SCHEMA
    for number, (question_id, question) in enumerate(questions.items(), 1):
        yield FIELD.format(number=number, id=question_id, type=question.type)
        instructions = question.instructions
        yield question_id if instructions is None or instructions == "" else render(instructions)
        yield OPTIONS
        for place, (option, description) in enumerate(option_descriptions(question).items(), 1):
            yield OPTION.format(number=place)
            described = {} if description is None else {"description": description}
            yield render(described | {"option_id": option})
            yield OPTION_END
        yield FIELD_END


def _place(questions: Mapping[str, Question], schema: Sequence[tuple[int, ...]], start: int) -> Iterator[QuestionSpans]:
    """Spans of every question, walking the schema's pieces from position `start`."""
    walk = _Walk(schema, start)
    walk.step()  # SCHEMA
    for question_id, question in questions.items():
        walk.step()  # FIELD
        question_span = walk.step()
        walk.step()  # OPTIONS
        options = tuple(option_descriptions(question))
        spans = []
        for _ in options:
            walk.step()  # OPTION
            spans.append(walk.step())
            walk.step()  # OPTION_END
        walk.step()  # FIELD_END
        yield QuestionSpans(question_id, question.type, options, question_span, tuple(spans))


@dataclass(slots=True)
class _Walk:
    """Walks over pieces and says where each lies."""

    pieces: Sequence[tuple[int, ...]]
    position: int
    index: int = field(default=0)

    def step(self) -> Span:
        start = self.position
        self.position += len(self.pieces[self.index])
        self.index += 1
        return start, self.position
