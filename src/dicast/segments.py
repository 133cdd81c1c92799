"""A record as separate segments of tokens: what the embedded model reads. No torch, no weights.

The state (in windows), each instruction and each option attend only to themselves; everything that crosses them happens
in the head. So segments can be cached apart, a state may be long, and the order of options cannot matter. Per record:

    windows     evidence: the state in overlapping windows; when the state is empty, the text of an instruction after
                its first line (or its first colon) is the evidence for that question
    references  entries of a catalogue in the state (objects with a "name" that an option or an instruction names):
                they are read, but they define options and are not evidence
    questions   the instruction; the question's id only where there is no instruction
    labels      each option's text alone (what repeats from record to record)
    hypotheses  instruction and option together, for noul, score and short choices; else the same segment as the label

Nothing is cut silently: an instruction or option that is longer than the segment which stands for it is also put into
the memory whole, in windows that belong to its question.

Text is rendered for a model of prose: JSON without quotes and braces, identifiers split into words. The strings of
control tokens are always encoded as ordinary text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from tokenizers import Tokenizer

from dicast.errors import TokenBudgetError
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, QuestionEncoding
from dicast.records import JSON, Noul, Question, Record, Score

WINDOW: Final = 224
"""Most tokens of one window of the state, [CLS] and [SEP] not counted."""
OVERLAP: Final = 32
"""Tokens that two windows share when one piece of the state is longer than a window."""
HYPOTHESIS_OPTIONS: Final = 6
"""A choice with more options than this has no hypotheses: its options are read without the instruction."""
HYPOTHESIS_WHOLE: Final = 48
"""Of an instruction with more tokens than this only the last paragraph goes into the hypotheses, if it says enough."""
PARAGRAPH_TOKENS: Final = 8
"""A last paragraph with fewer tokens says enough only if it names an entry of the state's catalogue."""
HYPOTHESIS_TAIL: Final = 96
"""Most tokens of the instruction in a hypothesis, counted from its end."""
LABEL_TOKENS: Final = 160
"""Most tokens of the segment that stands for an option; a longer option is read whole as windows besides."""
QUESTION_TOKENS: Final = 400
"""Most tokens of the segment that stands for an instruction, which of a longer one holds the beginning and the end;
the whole instruction is then read as windows besides."""
LINKED_TOKENS: Final = 40
"""Most tokens that a catalogue entry adds to an option or hypothesis that names it."""
FAR_TOO_LONG: Final = 4
"""A state with more than this many times as many words as tokens are allowed is refused without counting its tokens."""
MAX_TOKENS: Final = 32768
"""Most tokens of one record over all its segments."""

Part: TypeAlias = Literal["state", "instruction", "reference"]
PARTS: Final[tuple[Part, ...]] = ("state", "instruction", "reference")
Template: TypeAlias = tuple[str, frozenset[int], str]
_NO_OWNER: Final = -1
_NO_TEMPLATE: Final = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """Token ids with [CLS] and [SEP]; `start` and `end` bound the tokens whose mean stands for the segment."""

    tokens: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """One segment of the memory.

    Attributes:
        segment: index into the record's segments.
        part: what it holds.
        owner: index of the only question that may compare its options with it; -1 for every question.
    """

    segment: int
    part: Part
    owner: int = _NO_OWNER


@dataclass(frozen=True, slots=True)
class SegmentQuestion(QuestionEncoding):
    """One question; options are in request order. The id is never tokenized unless there is no instruction.

    Attributes:
        segment: index of the instruction's segment.
        labels: per option, index of the segment of its text.
        hypotheses: per option, index of the segment of instruction and option (or the label's again).
        template: number that questions of the record share which ask the same of different things (which of these
            tools to call, one question per tool); -1 for all others.
    """

    segment: int
    labels: tuple[int, ...]
    hypotheses: tuple[int, ...]
    template: int = _NO_TEMPLATE


@dataclass(frozen=True, slots=True)
class SegmentEncoding:
    """An encoded record.

    Attributes:
        questions: in request order.
        segments: the distinct segments.
        windows: the memory: evidence and references first, then the instructions.
        length: tokens of all distinct segments, and of windows that repeat.
        media_tokens: always 0.
        state_tokens_dropped: how many state tokens were cut off on request.
    """

    questions: tuple[SegmentQuestion, ...]
    segments: tuple[Segment, ...]
    windows: tuple[Window, ...]
    length: int
    media_tokens: int = 0
    state_tokens_dropped: int = 0


class SegmentEncoder:
    """Encodes records with a WordPiece tokenizer.

    Args:
        tokenizer: a fast tokenizer whose [CLS] and [SEP] frame a segment.
        cache: how many tokenized texts to keep.
        max_tokens: most tokens of one record.
    """

    def __init__(self, tokenizer: Tokenizer, *, cache: int = 20_000, max_tokens: int = MAX_TOKENS) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True
        self.max_tokens = max_tokens
        self._cls = _token_id(tokenizer, "[CLS]")
        self._sep = _token_id(tokenizer, "[SEP]")
        self._ids = lru_cache(maxsize=cache)(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids))

    @classmethod
    def from_file(cls, path: Path, **options: Any) -> SegmentEncoder:
        """An encoder with the ``tokenizer.json`` at `path`."""
        return cls(Tokenizer.from_file(str(path)), **options)

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> SegmentEncoding:
        """Segments of one record.

        Raises:
            TokenBudgetError: the record has more tokens than allowed and `options` do not permit cutting the state.
        """
        return _RecordEncoder(self, record).encode(options)

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, without [CLS] and [SEP]; control-token strings are ordinary text."""
        ids: tuple[int, ...] = self._ids(text)
        return ids

    def frame(self, *parts: Sequence[int]) -> Segment:
        """``[CLS] part [SEP] part [SEP]``; the mean is taken over the last part, over [CLS] where that is empty."""
        tokens = [self._cls]
        start = 1
        for part in parts:
            start = len(tokens)
            tokens.extend(part)
            tokens.append(self._sep)
        end = len(tokens) - 1
        return Segment(tuple(tokens), start if start < end else 0, end if start < end else 1)


class _RecordEncoder:
    """The work for one record: distinct segments are collected while questions and windows point to them."""

    def __init__(self, encoder: SegmentEncoder, record: Record) -> None:
        self.encoder = encoder
        self.record = record
        self.segments: dict[Segment, int] = {}
        self.templates: dict[Template, int] = {}
        self.instructions = [instruction_text(name, item) for name, item in record.questions.items()]
        self.catalogue = _Catalogue(record)

    def encode(self, options: EncodeOptions) -> SegmentEncoding:
        limit = min(options.max_length or self.encoder.max_tokens, self.encoder.max_tokens)
        texts = pieces_of(self.catalogue.rest)
        if options.truncation == "refuse" and options.max_state_tokens is None:
            _refuse_too_many_words(texts, limit)
        pieces = [self.encoder.ids(piece) for piece in texts]
        questions = [
            self._question(name, question, text, with_state=any(pieces))
            for (name, question), text in zip(self.record.questions.items(), self.instructions, strict=True)
        ]
        others = [*self._references(), *self._instructions(questions), *self._long_options()]
        pieces, dropped = cut_pieces(pieces, options.max_state_tokens)
        if options.truncation == "state_end":
            pieces, more = fit_pieces(pieces, limit - self._length())
            dropped += more
        windows = [Window(self._add(ids), "state") for ids in windows_of(pieces)]
        if not windows:
            windows = self._instruction_evidence()
        windows += others
        length = self._length() + self._repeated(windows)
        if length > limit:
            raise TokenBudgetError(
                f"the record has {length} tokens and the limit is {limit}", field="state", limit=limit, seen=length
            )
        return SegmentEncoding(tuple(questions), tuple(self.segments), tuple(windows), length, 0, dropped)

    def _length(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments)

    def _repeated(self, windows: Sequence[Window]) -> int:
        """Tokens of windows that stand more than once in the memory: encoded once, but read by the head every time."""
        sizes = [len(segment.tokens) for segment in self.segments]
        numbers = [window.segment for window in windows]
        return sum(sizes[number] for number in numbers) - sum(sizes[number] for number in set(numbers))

    def _add(self, *parts: Sequence[int]) -> int:
        return self.segments.setdefault(self.encoder.frame(*parts), len(self.segments))

    def _instructions(self, questions: Sequence[SegmentQuestion]) -> list[Window]:
        found = []
        for owner, (question, text) in enumerate(zip(questions, self.instructions, strict=True)):
            ids = self.encoder.ids(text)
            parts = windows_of([ids]) if len(ids) > QUESTION_TOKENS else []
            segments = [self._add(part) for part in parts] or [question.segment]
            found += [Window(segment, "instruction", owner) for segment in segments]
        return found

    def _long_options(self) -> list[Window]:
        """Options that are longer than the segment that stands for them, whole."""
        texts = (
            (owner, self.encoder.ids(words(text)))
            for owner, question in enumerate(self.record.questions.values())
            for text in option_texts(question)
        )
        long = ((owner, ids) for owner, ids in texts if len(ids) > LABEL_TOKENS)
        return [Window(self._add(part), "reference", owner) for owner, ids in long for part in windows_of([ids])]

    def _question(self, name: str, question: Question, text: str, *, with_state: bool) -> SegmentQuestion:
        ids = self.encoder.ids(text)
        shown = ids if len(ids) <= QUESTION_TOKENS else ids[: QUESTION_TOKENS // 4] + ids[-QUESTION_TOKENS * 3 // 4 :]
        texts = option_texts(question)
        labels = [self._label(label) for label in texts]
        hypotheses = labels
        if question.type != "choice" or len(texts) <= HYPOTHESIS_OPTIONS:
            named = self.catalogue.named_in(_raw_text(question.instructions))
            asked = self._last_paragraph(text, ids, named is not None) if with_state else ids
            tail = [*asked[-HYPOTHESIS_TAIL:], *self._linked_ids(named)]
            hypotheses = [self._add(tail, self._label_ids(label)) for label in texts]
        template = self._template(question, text, labels)
        return SegmentQuestion(
            name, question.type, question.options, self._add(shown), tuple(labels), tuple(hypotheses), template
        )

    def _template(self, question: Question, text: str, labels: Sequence[int]) -> int:
        """Number of what the question shares with its likes: type, options, instruction without its end or name."""
        named = self.catalogue.name_in(_raw_text(question.instructions))
        shared, paragraph, _ = text.rstrip().rpartition("\n\n")
        if named is not None:
            shared = text.replace(named, "", 1) if named in text else text.replace(words(named), "", 1)
        elif not paragraph:
            return _NO_TEMPLATE
        return self.templates.setdefault((question.type, frozenset(labels), shared), len(self.templates))

    def _last_paragraph(self, text: str, ids: tuple[int, ...], names_entry: bool) -> tuple[int, ...]:
        """The part of a long instruction that tells this question from its neighbours."""
        if len(ids) <= HYPOTHESIS_WHOLE:
            return ids
        last = self.encoder.ids(text.rstrip().rsplit("\n\n", 1)[-1])
        return last if len(last) >= PARAGRAPH_TOKENS or names_entry else ids

    def _label(self, text: str) -> int:
        return self._add(self._label_ids(text))

    def _label_ids(self, text: str) -> tuple[int, ...]:
        ids = self.encoder.ids(words(text))[:LABEL_TOKENS]
        return (*ids, *self._linked_ids(self.catalogue.get(text)))

    def _linked_ids(self, entry: JSON) -> tuple[int, ...]:
        if entry is None:
            return ()
        described = entry.get("description")
        text = described if isinstance(described, str) else plain({k: v for k, v in entry.items() if k != "name"})
        return self.encoder.ids(": " + text)[:LINKED_TOKENS]

    def _instruction_evidence(self) -> list[Window]:
        found = []
        for owner, text in enumerate(self.instructions):
            evidence = text_in_instruction(text)
            for ids in windows_of([self.encoder.ids(evidence)] if evidence else []):
                found.append(Window(self._add(ids), "state", owner))
        return found

    def _references(self) -> list[Window]:
        texts = [plain(entry) for entry in self.catalogue.entries]
        return [Window(self._add(ids), "reference") for text in texts for ids in windows_of([self.encoder.ids(text)])]


class _Catalogue:
    """Objects with a name inside a list of the state, kept apart when an option or an instruction names one of them."""

    def __init__(self, record: Record) -> None:
        self.entries: list[Mapping[str, JSON]] = []
        self.rest = record.state
        self._by_name: dict[str, Mapping[str, JSON]] = {}
        if isinstance(record.state, Mapping):
            instructions = [_raw_text(question.instructions) for question in record.questions.values()]
            asked = {text for question in record.questions.values() for text in option_texts(question)}
            rest = {}
            for key, value in record.state.items():
                names = _names(value)
                if names and any(name in asked or any(_mentions(t, name) for t in instructions) for name in names):
                    self.entries.extend(value)
                    self._by_name.update(zip(names, value, strict=True))
                else:
                    rest[key] = value
            self.rest = rest

    def get(self, name: str) -> Mapping[str, JSON] | None:
        """The entry of that name."""
        return self._by_name.get(name)

    def named_in(self, text: str) -> Mapping[str, JSON] | None:
        """The entry whose name stands last in the text."""
        name = self.name_in(text)
        return None if name is None else self._by_name[name]

    def name_in(self, text: str) -> str | None:
        """The name that stands last in the text; the longer one where two end together."""
        found = [(text.rfind(name) + len(name), len(name), name) for name in self._by_name if _mentions(text, name)]
        return max(found)[2] if found else None


def _names(value: JSON) -> list[str]:
    """Names of a list of named objects; empty for anything else."""
    if not isinstance(value, list | tuple) or not value:
        return []
    names = [item.get("name") if isinstance(item, Mapping) and len(item) > 1 else None for item in value]
    return [name for name in names if isinstance(name, str) and name] if all(names) else []


def _raw_text(instructions: JSON) -> str:
    return instructions if isinstance(instructions, str) else json.dumps(instructions, ensure_ascii=False)


def _mentions(text: str, name: str) -> bool:
    at = text.find(name)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(name) : at + len(name) + 1]
        if not (before.isalnum() or before == "_") and not (after.isalnum() or after == "_"):
            return True
        at = text.find(name, at + 1)
    return False


def instruction_text(question_id: str, question: Question) -> str:
    """The instruction as prose; the question's id in words where there is none."""
    text = plain(question.instructions) if question.instructions is not None else ""
    return text if text.strip() else words(question_id)


def option_texts(question: Question) -> list[str]:
    """One text per option, in request order, as a person would read it."""
    if isinstance(question, Score):
        return [plain(level) for level in question.criteria]
    if isinstance(question, Noul):
        given = question.criteria or {}
        defaults = (("true", "Yes."), ("false", "No."))
        return [plain(given[key]) if given.get(key) is not None else text for key, text in defaults]
    criteria = question.criteria
    pairs = criteria.items() if isinstance(criteria, Mapping) else ((key, None) for key in criteria)
    return [_choice_text(key, value) for key, value in pairs]


_OPAQUE = re.compile(r"(?:option|choice|answer|item|opt|o|c)?[ _-]?(?:\d{1,3}|[A-Za-z])", re.IGNORECASE)


def _choice_text(key: str, description: JSON) -> str:
    """The description, with the key in front where the key says something of its own."""
    text = plain(description) if description is not None else ""
    if not text.strip():
        return key
    if _OPAQUE.fullmatch(key):
        return text
    name = words(key)
    if name.lower() in words(text).lower():
        return text
    return f"{name}: {text}"


def text_in_instruction(text: str) -> str:
    """What an instruction holds beyond its first line, or in one line beyond its first colon; else nothing."""
    first, _, rest = text.strip().partition("\n")
    if not rest.strip():
        first, _, rest = first.partition(": ")
    return rest.strip()


_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_IDENTIFIER = re.compile(r"[\w.]*[A-Za-z0-9]_[A-Za-z0-9][\w.]*")


def words(text: str) -> str:
    """Split identifiers into words: ``getUserToken`` -> ``get User Token`` (only where the text has no space)."""
    if not text or any(character.isspace() for character in text.strip()):
        return split_identifiers(text)
    return _split(text)


def split_identifiers(text: str) -> str:
    """Split the identifiers with an underscore inside a text into words; everything else stays."""
    return _IDENTIFIER.sub(lambda match: _split(match.group()), text) if "_" in text else text


def _split(identifier: str) -> str:
    return _HUMP.sub(" ", identifier.replace("_", " ").replace(".", " ").replace("-", " ")).strip() or identifier


def plain(value: JSON) -> str:
    """A JSON value as compact prose: ``{"plan": "pro", "paid": false}`` -> ``plan: pro; paid: no``."""
    if isinstance(value, str):
        return split_identifiers(value)
    if isinstance(value, Mapping):
        return "; ".join(f"{words(key)}: {_nested(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_nested(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _nested(value: JSON) -> str:
    text = plain(value)
    return f"({text})" if isinstance(value, Mapping | list | tuple) and value else text


def pieces_of(state: JSON) -> list[str]:
    """The state as texts that belong together: paragraphs, entries of an object, items of its lists."""
    if isinstance(state, Mapping):
        pieces: list[str] = []
        for key, value in state.items():
            if isinstance(value, list | tuple) and value:
                first, *others = (_nested(item) for item in value)
                pieces += [f"{words(key)}: {first}", *others]
            elif isinstance(value, str) and "\n" in value:
                pieces += _paragraphs(f"{words(key)}: {split_identifiers(value)}")
            else:
                pieces.append(f"{words(key)}: {_nested(value)}")
        return [f"{piece};" for piece in pieces]
    if isinstance(state, list | tuple):
        return [f"{_nested(item)};" for item in state]
    return _paragraphs(plain(state)) if state is not None else []


def _paragraphs(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def windows_of(pieces: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """Pack pieces into windows of about equal size, at most WINDOW tokens; longer pieces are cut, with an overlap."""
    parts = [part for piece in pieces for part in _cut(piece)]
    total = sum(map(len, parts))
    target = total / max(1, math.ceil(total / WINDOW))
    windows: list[tuple[int, ...]] = []
    current: list[int] = []
    for part in parts:
        if current and (len(current) + len(part) > WINDOW or len(current) >= target):
            windows.append(tuple(current))
            current = []
        current.extend(part)
    return [*windows, tuple(current)] if current else windows


def _cut(piece: Sequence[int]) -> list[Sequence[int]]:
    """One piece in parts of at most WINDOW tokens that share OVERLAP tokens."""
    if len(piece) <= WINDOW:
        return [piece] if piece else []
    starts = range(0, len(piece) - OVERLAP, WINDOW - OVERLAP)
    return [piece[start : start + WINDOW] for start in starts]


Pieces: TypeAlias = list[tuple[int, ...]]


def cut_pieces(pieces: Pieces, keep: int | None) -> tuple[Pieces, int]:
    """The first `keep` tokens of the pieces (None: all) and how many tokens were dropped."""
    total = sum(map(len, pieces))
    if keep is None or total <= keep:
        return pieces, 0
    kept: Pieces = []
    left = keep
    for piece in pieces:
        if left <= 0:
            break
        kept.append(piece[:left])
        left -= len(kept[-1])
    return kept, total - keep


def fit_pieces(pieces: Pieces, room: int) -> tuple[Pieces, int]:
    """Cut the end so that the windows, their frames and overlaps counted, need at most `room` tokens."""

    def needed(keep: int) -> int:
        return sum(len(ids) + 2 for ids in windows_of(cut_pieces(pieces, keep)[0]))

    total = sum(map(len, pieces))
    if needed(total) <= room:
        return pieces, 0
    low, high = 0, total  # needed(low) fits, needed(high) does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needed(middle) <= room else (low, middle)
    return cut_pieces(pieces, low)


def _refuse_too_many_words(texts: Iterable[str], limit: int) -> None:
    """Refuse what is far too long, every word being a token at least, before it is tokenized."""
    words_seen = sum(len(text.split()) for text in texts)
    if words_seen > FAR_TOO_LONG * limit:
        raise TokenBudgetError(
            f"the state has {words_seen} words or more, each a token at least, and the limit is {limit} tokens",
            field="state",
            limit=limit,
            seen=words_seen,
        )


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(number)
