from collections import Counter

import pytest

from dicast.errors import ConfigError
from dicast.training.config import BatchConfig, ScheduleConfig
from dicast.training.sampling import Plan, Source, dev_batches, draw, stable_seed

LENGTHS = [5 + (index * 37) % 60 for index in range(200)]
BATCH = BatchConfig(tokens=256, records=8, micro_batches=2)


def plan(sources: list[Source] | None = None, schedule: ScheduleConfig | None = None, **changes: object) -> Plan:
    sources = sources or [Source("a", 0, 150), Source("b", 150, 50)]
    return Plan(sources, LENGTHS, BATCH, schedule or ScheduleConfig(epochs=2.0), seed=3, **changes)  # type: ignore[arg-type]


def test_every_example_is_seen_once_per_epoch() -> None:
    steps = list(plan().steps())
    for epoch in (0, 1):
        seen = [i for step in steps if step.epoch == epoch for batch in step.micro_batches for i in batch]
        assert sorted(seen) == list(range(200))
    first, second = ([s.micro_batches for s in steps if s.epoch == epoch] for epoch in (0, 1))
    assert first != second


@pytest.mark.parametrize("cost", ["padded", "sum"])
def test_micro_batches_keep_to_their_budget(cost: str) -> None:
    for step in plan(cost=cost).steps():
        for batch in step.micro_batches:
            lengths = [LENGTHS[index] for index in batch]
            tokens = max(lengths) * len(lengths) if cost == "padded" else sum(lengths)
            assert tokens <= BATCH.tokens
            assert len(batch) <= BATCH.records


def test_an_example_above_the_budget_travels_alone() -> None:
    big = Plan([Source("a", 0, 3)], [10, 999, 10], BATCH, ScheduleConfig(), seed=0)
    assert (1,) in [batch for step in big.steps() for batch in step.micro_batches]


def test_a_later_start_gives_the_same_steps() -> None:
    whole = list(plan().steps())
    assert list(plan().steps(7)) == whole[7:]
    assert [step.number for step in whole] == list(range(plan().total))


def test_grouping_keeps_micro_batches_to_one_source() -> None:
    grouped = [
        {index < 150 for index in batch} for step in plan(group_by="source").steps() for batch in step.micro_batches
    ]
    assert all(len(sides) == 1 for sides in grouped)
    mixed = [{index < 150 for index in batch} for step in plan().steps() for batch in step.micro_batches]
    assert any(len(sides) == 2 for sides in mixed)


def test_weights_and_caps_show_examples_equally_often_over_time() -> None:
    half = Source("a", 0, 30, weight=0.5)
    counts = Counter(index for epoch in range(4) for index in draw(half, epoch, 1))
    assert set(counts.values()) == {2}
    capped = Source("a", 0, 30, cap=12)
    counts = Counter(index for epoch in range(5) for index in draw(capped, epoch, 1))
    assert set(counts.values()) == {2}
    assert Source("a", 0, 30, weight=2.0, cap=40).per_epoch == 40
    assert len(draw(Source("a", 0, 30, weight=2.5), 0, 1)) == 75


def test_steps_are_counted_from_epochs_or_given() -> None:
    whole = plan(schedule=ScheduleConfig(epochs=1.0)).total
    assert plan(schedule=ScheduleConfig(epochs=1.5)).total == pytest.approx(1.5 * whole, abs=1.5)
    assert plan(schedule=ScheduleConfig(max_steps=3)).total == 3
    assert len(list(plan(schedule=ScheduleConfig(max_steps=500)).steps())) == 500
    with pytest.raises(ConfigError, match="above 0"):
        plan(schedule=ScheduleConfig(epochs=0.0))


def test_no_data_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no training examples"):
        plan([Source("a", 0, 10, weight=0.0)])


def test_dev_batches_hold_every_example_once() -> None:
    batches = dev_batches(LENGTHS, BATCH)
    assert sorted(index for batch in batches for index in batch) == list(range(200))


def test_seeds_depend_on_their_parts_only() -> None:
    assert stable_seed("a", 1) == stable_seed("a", 1) == 5566339428396816726
    assert len({stable_seed("a", index) for index in range(1000)}) == 1000
