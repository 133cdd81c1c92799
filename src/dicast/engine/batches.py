"""Which records are scored together: by token budget and by how much padding that costs. Pure arithmetic on lengths.

A padded batch costs `records x longest` tokens whatever is in it, so records of like length go together: sorted by
length, a batch ends where the next record would break the budget or make the share of padding too large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dicast.models.base import ModelInfo


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one batch; a record that breaks the token bound alone is a batch of its own.

    Attributes:
        tokens: most tokens, padding included.
        records: most records.
        padding: largest share of padding, from 0 (equal lengths only) to 1.
    """

    tokens: int = 16_384
    records: int = 64
    padding: float = 0.15


CPU_LIMITS = BatchLimits(tokens=4_096, records=32, padding=0.10)
"""A CPU is busy with a few hundred tokens already, so a larger batch only costs memory and padding."""
ACCELERATOR_LIMITS = BatchLimits(tokens=32_768, records=128, padding=0.25)


def limits_for(info: ModelInfo) -> BatchLimits:
    """Limits that suit the device of a model."""
    return CPU_LIMITS if info.device.startswith("cpu") else ACCELERATOR_LIMITS


def form_batches(lengths: Sequence[int], limits: BatchLimits) -> list[list[int]]:
    """Batches of indices into `lengths`, longest records first, so that a batch that needs too much memory fails early.

    Every index is in exactly one batch; records of equal length keep their order.
    """
    batches: list[list[int]] = []
    total = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and _fits(len(batches[-1]) + 1, lengths[batches[-1][0]], total + lengths[index], limits):
            batches[-1].append(index)
            total += lengths[index]
        else:
            batches.append([index])
            total = lengths[index]
    return batches


def padding_share(lengths: Sequence[int]) -> float:
    """Share of padding in one batch of records with these lengths."""
    return 1.0 - sum(lengths) / (len(lengths) * max(lengths))


def _fits(records: int, longest: int, total: int, limits: BatchLimits) -> bool:
    cost = records * longest
    return records <= limits.records and cost <= limits.tokens and cost - total <= limits.padding * cost
