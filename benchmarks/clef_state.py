"""Only the questions one by one about one 4k-token state, on a checkpoint of about 16 million parameters."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from benchmarks import clef
from benchmarks.checkpoints import SIXTEEN_MILLION
from benchmarks.measure import Row


def rows(rounds: int) -> Iterator[Row]:
    """The first row of :func:`benchmarks.clef.rows`."""
    return islice(clef.rows(rounds, SIXTEEN_MILLION), 1)
