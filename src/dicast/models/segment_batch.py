"""Many encoded records as one batch of distinct segments and index arrays. Numpy only; shared by torch and onnx.

Knows nothing of weights. A segment that several records (or options) share stands in the batch once, so a repeated
schema costs nothing. Segments are grouped into buckets of similar length to keep padding small.

Shapes: B records, Q questions, O options of all questions of a record, N evidence windows, S memory rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dicast.models.base import Logits
from dicast.segments import PARTS, Segment, SegmentEncoding

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

TYPE_CODES: Final = {"noul": 0, "choice": 1, "score": 2}
PART_CODES: Final = {part: code for code, part in enumerate(PARTS)}
NONE: Final = -1
BUCKET_TOKENS: Final = 4096
"""Most padded tokens of one bucket, which bounds the memory of the encoder."""


@dataclass(frozen=True, slots=True)
class SegmentBatch:
    """Index arrays of a batch. Padding points to segment 0 and is marked False in the masks.

    Attributes:
        segments: the distinct segments.
        memory: per record, the segments of its memory in order.
        parts: per record and memory segment, the code of what it holds.
        question: ``[B, Q]`` instruction segment of each question.
        question_mask: ``[B, Q]``.
        types: ``[B, Q]`` noul 0, choice 1, score 2.
        label: ``[B, O]`` segment of each option's text.
        hypothesis: ``[B, O]`` segment of instruction and option.
        option_mask: ``[B, O]``.
        owner: ``[B, O]`` index of the option's question.
        window: ``[B, N]`` evidence segments; N is at least 1.
        window_mask: ``[B, N]``.
        window_owner: ``[B, N]`` the only question that may use the window, or -1 for all.
        peer: ``[B, O]`` number that an option shares with the options of the same text in questions of the same
            template; -1 where there are none, and at padding.
    """

    segments: tuple[Segment, ...]
    memory: tuple[tuple[int, ...], ...]
    parts: tuple[tuple[int, ...], ...]
    question: Ints
    question_mask: Bools
    types: Ints
    label: Ints
    hypothesis: Ints
    option_mask: Bools
    owner: Ints
    window: Ints
    window_mask: Bools
    window_owner: Ints
    peer: Ints


@dataclass(frozen=True, slots=True)
class Bucket:
    """Segments of similar length, padded.

    Attributes:
        members: which segments of the batch, in row order.
        ids: ``[n, L]`` token ids, 0 at padding.
        mask: ``[n, L]`` True for tokens.
        span: ``[n, L]`` True for the tokens whose mean stands for the segment.
    """

    members: tuple[int, ...]
    ids: Ints
    mask: Bools
    span: Bools


def plan_batch(encodings: Sequence[SegmentEncoding]) -> SegmentBatch:
    """Collect distinct segments and index arrays of a batch of at least one record."""
    numbers: dict[Segment, int] = {}
    own = [[numbers.setdefault(segment, len(numbers)) for segment in item.segments] for item in encodings]
    pairs = list(zip(encodings, own, strict=True))
    questions = [[to[q.segment] for q in item.questions] for item, to in pairs]
    labels = [[to[label] for q in item.questions for label in q.labels] for item, to in pairs]
    hypotheses = [[to[part] for q in item.questions for part in q.hypotheses] for item, to in pairs]
    owners = [[k for k, q in enumerate(item.questions) for _ in q.options] for item in encodings]
    evidence = [[w for w in item.windows if w.part == "state"] for item in encodings]
    windows = [[to[w.segment] for w in kept] for kept, to in zip(evidence, own, strict=True)]
    question, question_mask = _padded(questions)
    label, option_mask = _padded(labels)
    window, window_mask = _padded(windows)
    return SegmentBatch(
        segments=tuple(numbers),
        memory=tuple(tuple(to[w.segment] for w in item.windows) for item, to in pairs),
        parts=tuple(tuple(PART_CODES[w.part] for w in item.windows) for item in encodings),
        question=question,
        question_mask=question_mask,
        types=_padded([[TYPE_CODES[q.type] for q in item.questions] for item in encodings])[0],
        label=label,
        hypothesis=_padded(hypotheses)[0],
        option_mask=option_mask,
        owner=_padded(owners)[0],
        window=window,
        window_mask=window_mask,
        window_owner=_padded([[w.owner for w in kept] for kept in evidence])[0],
        peer=_padded([_peers(item) for item in encodings], NONE)[0],
    )


def _peers(encoding: SegmentEncoding) -> list[int]:
    """Per option, the number it shares with its peers, or -1 where no other question has one."""
    keys = [(q.template, label) for q in encoding.questions for label in q.labels]
    count = Counter(keys)
    numbers = {key: number for number, key in enumerate(count)}
    return [numbers[key] if key[0] >= 0 and count[key] > 1 else NONE for key in keys]


def buckets_of(segments: Sequence[Segment], *, most_tokens: int = BUCKET_TOKENS, padding: float = 0.15) -> list[Bucket]:
    """Group segments by length: at most `most_tokens` padded tokens a bucket, about `padding` of them wasted."""
    order = sorted(range(len(segments)), key=lambda number: len(segments[number].tokens), reverse=True)
    groups: list[list[int]] = []
    longest = 0
    for number in order:
        length = len(segments[number].tokens)
        if not groups or length < longest * (1 - padding) - 2 or (len(groups[-1]) + 1) * longest > most_tokens:
            groups.append([])
            longest = length
        groups[-1].append(number)
    return [_bucket(segments, group) for group in groups]


def memory_index(batch: SegmentBatch, offsets: Sequence[int]) -> tuple[Ints, Bools, Ints]:
    """Memory rows of each record, for segments whose rows begin at `offsets`: index, mask and part ``[B, S]``."""
    lengths = [len(segment.tokens) for segment in batch.segments]
    size = max(sum(lengths[number] for number in numbers) for numbers in batch.memory)
    shape = (len(batch.memory), size)
    index, mask, parts = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.zeros(shape, np.int64)
    for row, (numbers, codes) in enumerate(zip(batch.memory, batch.parts, strict=True)):
        at = 0
        for number, code in zip(numbers, codes, strict=True):
            end = at + lengths[number]
            index[row, at:end] = np.arange(offsets[number], offsets[number] + lengths[number])
            parts[row, at:end] = code
            at = end
        mask[row, :at] = True
    return index, mask, parts


def split_logits(encodings: Sequence[SegmentEncoding], logits: npt.NDArray[np.float32]) -> list[Logits]:
    """Cut the rows of ``[B, O]`` into one array per question."""
    found: list[Logits] = []
    for row, encoding in zip(logits, encodings, strict=True):
        ends = np.cumsum([len(question.options) for question in encoding.questions])
        found.append([np.ascontiguousarray(part) for part in np.split(row[: ends[-1]], ends[:-1])])
    return found


def _bucket(segments: Sequence[Segment], group: Sequence[int]) -> Bucket:
    shape = (len(group), len(segments[group[0]].tokens))
    ids, mask, span = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    for row, number in enumerate(group):
        segment = segments[number]
        ids[row, : len(segment.tokens)] = segment.tokens
        mask[row, : len(segment.tokens)] = True
        span[row, segment.start : segment.end] = True
    return Bucket(tuple(group), ids, mask, span)


def _padded(rows: Sequence[Sequence[int]], filler: int = 0) -> tuple[Ints, Bools]:
    shape = (len(rows), max(1, *(len(row) for row in rows)) if rows else 1)
    values, mask = np.full(shape, filler, np.int64), np.zeros(shape, np.bool_)
    for number, row in enumerate(rows):
        values[number, : len(row)] = row
        mask[number, : len(row)] = True
    return values, mask
