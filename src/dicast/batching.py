"""Encodings to one right-padded batch of plain arrays: ids, masks, and the index arrays that pooling needs.

Knows spans, knows no framework: everything is numpy, and a runtime moves it to its device in a few copies. There is no
loop over tokens; one pass over the spans builds flat index tables.

Shapes: B records, L longest (remaining) length, Q most questions, O most options of a record, T tokens in spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dicast.encoding import ClefEncoding, MediaEncoding, QuestionSpans, Span

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

TYPE_CODES = {"noul": 0, "choice": 1, "score": 2}


@dataclass(frozen=True, slots=True)
class SpanTable:
    """Spans of a batch as bags of flat row numbers, one bag per padded slot (an empty bag is padding).

    Attributes:
        rows: ``[T]`` indices into the flattened ``[B * L]`` positions, bag after bag.
        offsets: ``[B * slots + 1]`` where each bag starts in `rows`; the last entry is T.
    """

    rows: Ints
    offsets: Ints


@dataclass(frozen=True, slots=True)
class Batch:
    """A right-padded batch.

    Attributes:
        ids: ``[B, L]`` token ids, from each record's start position on.
        mask: ``[B, L]`` True on real tokens.
        starts: ``[B]`` position in its whole sequence at which a record's row begins (0 unless a prefix is cached).
        last: ``[B]`` row index of each record's last token.
        questions: question spans, ``B * Q`` slots.
        options: option spans, ``B * O`` slots.
        option_ids: ``[T]`` token ids of the option rows, for lexical means.
        question_mask: ``[B, Q]``; types ``[B, Q]`` codes (noul 0, choice 1, score 2).
        option_mask: ``[B, O]``; owner ``[B, O]`` index of each option's question.
        media: prepared media with the row index of the record and the position of its first token.
    """

    ids: Ints
    mask: Bools
    starts: Ints
    last: Ints
    questions: SpanTable
    options: SpanTable
    option_ids: Ints
    question_mask: Bools
    types: Ints
    option_mask: Bools
    owner: Ints
    media: tuple[tuple[int, int, MediaEncoding], ...]


def collate(encodings: Sequence[ClefEncoding], *, pad_id: int, starts: Sequence[int] | None = None) -> Batch:
    """Pad encodings to one batch.

    Args:
        encodings: at least one.
        pad_id: token id that fills padding.
        starts: per record, how many leading tokens to leave out because their states are cached; at most its
            `prefix_length`, since spans lie behind the prefix.
    """
    begin = np.zeros(len(encodings), np.int64) if starts is None else np.asarray(starts, np.int64)
    lengths = np.array([e.length for e in encodings], np.int64) - begin
    width = int(lengths.max())
    mask = np.arange(width) < lengths[:, None]
    ids = np.full(mask.shape, pad_id, np.int64)
    ids[mask] = np.concatenate([e.ids[start:] for e, start in zip(encodings, begin, strict=True)])

    question_mask, types = _question_arrays(encodings)
    option_mask, owner = _option_arrays(encodings)
    origins = np.arange(len(encodings)) * width - begin
    options = _span_table(
        [[span for q in e.questions for span in q.option_spans] for e in encodings], origins, option_mask.shape[1]
    )
    return Batch(
        ids=ids,
        mask=mask,
        starts=begin,
        last=lengths - 1,
        questions=_span_table([[q.question_span for q in e.questions] for e in encodings], origins, types.shape[1]),
        options=options,
        option_ids=ids.reshape(-1)[options.rows],
        question_mask=question_mask,
        types=types,
        option_mask=option_mask,
        owner=owner,
        media=tuple(_media(encodings)),
    )


def split_options(logits: npt.NDArray[np.float32], questions: Sequence[QuestionSpans]) -> list[npt.NDArray[np.float32]]:
    """One record's padded logits ``[O]`` as one array per question."""
    counts = [len(q.options) for q in questions]
    return np.split(logits[: sum(counts)], np.cumsum(counts)[:-1])


def _question_arrays(encodings: Sequence[ClefEncoding]) -> tuple[Bools, Ints]:
    counts = np.array([len(e.questions) for e in encodings])
    mask = np.arange(counts.max()) < counts[:, None]
    types = np.zeros(mask.shape, np.int64)
    types[mask] = [TYPE_CODES[q.type] for e in encodings for q in e.questions]
    return mask, types


def _option_arrays(encodings: Sequence[ClefEncoding]) -> tuple[Bools, Ints]:
    counts = np.array([sum(len(q.options) for q in e.questions) for e in encodings])
    mask = np.arange(counts.max()) < counts[:, None]
    owner = np.zeros(mask.shape, np.int64)
    owner[mask] = [k for e in encodings for k, q in enumerate(e.questions) for _ in q.options]
    return mask, owner


def _span_table(spans: Sequence[Sequence[Span]], origins: Ints, slots: int) -> SpanTable:
    """Bags of flat rows: record b's position p is row ``origins[b] + p``; each record fills `slots` bags."""
    first = np.zeros((len(spans), slots), np.int64)
    size = np.zeros((len(spans), slots), np.int64)
    for b, record in enumerate(spans):
        bounds = np.array(record, np.int64).reshape(-1, 2)
        first[b, : len(record)] = bounds[:, 0] + origins[b]
        size[b, : len(record)] = bounds[:, 1] - bounds[:, 0]
    offsets = np.concatenate(([0], np.cumsum(size)))
    rows = np.repeat(first.reshape(-1) - offsets[:-1], size.reshape(-1)) + np.arange(offsets[-1])
    return SpanTable(rows, offsets)


def _media(encodings: Sequence[ClefEncoding]) -> Iterator[tuple[int, int, MediaEncoding]]:
    for index, encoding in enumerate(encodings):
        if encoding.media is not None:
            yield index, encoding.media_offset, encoding.media
