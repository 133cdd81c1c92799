"""Three-axis rotary positions of records with media: plain arithmetic on token types and grids, no torch.

Text advances all three axes (time, row, column) by one per token. The tokens of an image, or of one pair of video
frames, get the time, row and column of their place in the merged grid, counted from the current position, which then
advances by the longer side of that grid (clef.md 2.6). After the media of a record its text goes on counting from
there, so the positions of everything behind are those of plain text plus one shift per record.

Shapes: B records, L positions, M media tokens of one record.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dicast.batching import Batch
from dicast.encoding import MediaEncoding

Ints = npt.NDArray[np.int64]


def batch_positions(batch: Batch, merge: int) -> Ints:
    """Positions ``[3, B, L]`` of a batch; rows may begin behind a cached prefix (`batch.starts`).

    Args:
        batch: with the media of every record that has any.
        merge: patches that one token spans in each direction.
    """
    width = batch.ids.shape[1]
    positions = np.broadcast_to(batch.starts[:, None] + np.arange(width), (3, *batch.ids.shape)).copy()
    for row, offset, media in batch.media:
        placed = media_positions(media, merge)
        whole = np.arange(batch.starts[row] + width)
        line = np.broadcast_to(whole, (3, len(whole))).copy()
        end = offset + len(media.token_types)
        line[:, offset:end] = (offset + placed)[:, : max(0, len(whole) - offset)]
        line[:, end:] += int(placed.max(initial=-1)) + 1 - len(media.token_types)
        positions[:, row] = line[:, batch.starts[row] :]
    return positions


def media_positions(media: MediaEncoding, merge: int) -> Ints:
    """Positions ``[3, M]`` of a record's media tokens, counted from the first."""
    grids = {1: iter(_grids(media, "image_grid_thw")), 2: iter(_frames(_grids(media, "video_grid_thw")))}
    parts: list[Ints] = []
    at = 0
    for kind, group in itertools.groupby(media.token_types):
        count = sum(1 for _ in group)
        if kind == 0:
            parts.append(np.broadcast_to(at + np.arange(count), (3, count)))
            at += count
        else:
            slices, rows, columns = next(grids[kind])
            shape = (slices, rows // merge, columns // merge)
            parts.append(at + np.indices(shape).reshape(3, -1))
            at += max(shape[1], shape[2])
    return np.concatenate(parts, axis=1).astype(np.int64)


def _grids(media: MediaEncoding, name: str) -> Sequence[Sequence[int]]:
    grid: Any = media.tensors.get(name)
    return [] if grid is None else grid.tolist()


def _frames(grids: Iterable[Sequence[int]]) -> Iterable[Sequence[int]]:
    """A video's grid as one grid per pair of frames: time stamps stand between them."""
    for slices, rows, columns in grids:
        yield from [(1, rows, columns)] * slices
