"""Which examples travel together: the order of the data and its micro-batches, as a pure function of the seed.

Nothing is stored between steps: step k is found again from (seed, k), so that a resumed run sees the same data.
Knows lengths and source names; knows nothing of tokens, tensors or processes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from dicast.errors import ConfigError
from dicast.training.config import BatchConfig, ScheduleConfig

WINDOW = 40
"""Examples are sorted by length within windows of this many full micro-batches: little padding, still shuffled."""


@dataclass(frozen=True)
class Source:
    """Examples `first` to `first + count - 1` belong to the source and are drawn `weight` times per epoch."""

    name: str
    first: int
    count: int
    weight: float = 1.0
    cap: int = 0

    @property
    def per_epoch(self) -> int:
        """How many examples of the source one epoch shows."""
        wanted = round(self.weight * self.count)
        return min(wanted, self.cap) if self.cap else wanted


@dataclass(frozen=True)
class Step:
    """One optimizer step: example indices of each of its micro-batches, over all processes."""

    number: int
    epoch: int
    micro_batches: tuple[tuple[int, ...], ...]


class Plan:
    """All steps of a run.

    Args:
        sources: where the examples come from.
        lengths: tokens of every example.
        batch, schedule: the configuration.
        seed: the run's seed.
        group_by: "source" keeps micro-batches to one source.
        cost: "padded" counts records x longest, "sum" counts what is there.

    Raises:
        ConfigError: no training data.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        lengths: Sequence[int],
        batch: BatchConfig,
        schedule: ScheduleConfig,
        *,
        seed: int,
        group_by: Literal["none", "source"] = "none",
        cost: Literal["padded", "sum"] = "padded",
    ) -> None:
        if sum(source.per_epoch for source in sources) == 0:
            raise ConfigError("there are no training examples", field="data.train")
        self._sources = sources
        self._lengths = lengths
        self._batch = batch
        self._seed = seed
        self._group_by = group_by
        self._cost = cost
        self.total = schedule.max_steps or self._steps_of(schedule.epochs)

    def steps(self, start: int = 0) -> Iterator[Step]:
        """The steps from number `start` (0-based) to the last."""
        number = epoch = 0
        while number < self.total:
            batches = self._epoch(epoch)
            size = self._batch.micro_batches
            for first in range(0, len(batches), size):
                if number >= self.total:
                    return
                if number >= start:
                    yield Step(number, epoch, tuple(batches[first : first + size]))
                number += 1
            epoch += 1

    def _steps_of(self, epochs: float) -> int:
        if epochs <= 0.0:
            raise ConfigError("must be above 0 when max_steps is not given", field="schedule.epochs", seen=epochs)
        whole, part = int(epochs), epochs - int(epochs)
        counts = [-(-len(self._epoch(epoch)) // self._batch.micro_batches) for epoch in range(whole + (part > 0.0))]
        return max(1, sum(counts[:whole]) + (round(part * counts[-1]) if part > 0.0 else 0))

    def _epoch(self, epoch: int) -> list[tuple[int, ...]]:
        rng = random.Random(stable_seed(self._seed, "epoch", epoch))
        drawn = [draw(source, epoch, self._seed) for source in self._sources]
        groups = drawn if self._group_by == "source" else [[index for part in drawn for index in part]]
        batches: list[tuple[int, ...]] = []
        for group in groups:
            rng.shuffle(group)
            batches += self._cut(group)
        rng.shuffle(batches)
        return batches

    def _cut(self, order: list[int]) -> list[tuple[int, ...]]:
        batches: list[tuple[int, ...]] = []
        window = WINDOW * self._batch.records
        for first in range(0, len(order), window):
            current: list[int] = []
            cost = 0
            for index in sorted(order[first : first + window], key=self._lengths.__getitem__):
                length = self._lengths[index]
                cost = length * (len(current) + 1) if self._cost == "padded" else cost + length
                if current and (cost > self._batch.tokens or len(current) >= self._batch.records):
                    batches.append(tuple(current))
                    current, cost = [], length
                current.append(index)
            if current:
                batches.append(tuple(current))
        return batches


def draw(source: Source, epoch: int, seed: int) -> list[int]:
    """Examples of a source in one epoch: the next `per_epoch` of an endless row of permutations.

    So every example is seen equally often over the run, whatever the weight or the cap.
    """
    wanted, first = source.per_epoch, epoch * source.per_epoch
    taken: list[int] = []
    while len(taken) < wanted:
        round_number, offset = divmod(first + len(taken), source.count)
        order = list(range(source.first, source.first + source.count))
        random.Random(stable_seed(seed, source.name, round_number)).shuffle(order)
        taken += order[offset : offset + wanted - len(taken)]
    return taken


def dev_batches(
    lengths: Sequence[int], batch: BatchConfig, cost: Literal["padded", "sum"] = "padded"
) -> list[tuple[int, ...]]:
    """Examples in micro-batches by length, for measuring; every example once."""
    plan = Plan([Source("dev", 0, len(lengths))], lengths, batch, ScheduleConfig(max_steps=1), seed=0, cost=cost)
    return plan._epoch(0)


def stable_seed(*parts: object) -> int:
    """A 63-bit seed that depends on the parts only, the same in every process and Python version."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
