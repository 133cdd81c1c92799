"""The comparisons of `benchmarks.clef` on a checkpoint of about 16 million parameters, for busy machines."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks import clef
from benchmarks.checkpoints import SIXTEEN_MILLION
from benchmarks.measure import Row


def rows(rounds: int) -> Iterator[Row]:
    """The same rows as :func:`benchmarks.clef.rows`."""
    return clef.rows(rounds, SIXTEEN_MILLION)
