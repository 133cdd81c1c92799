from __future__ import annotations

import random

import pytest
from tests.engine.fakes import INFO

from dicast.engine.batches import ACCELERATOR_LIMITS, CPU_LIMITS, BatchLimits, form_batches, limits_for, padding_share


@pytest.mark.parametrize("limits", [CPU_LIMITS, ACCELERATOR_LIMITS, BatchLimits(500, 4, 0.0)])
def test_every_index_is_in_one_batch_and_no_bound_is_broken(limits: BatchLimits) -> None:
    lengths = random.Random(0).choices(range(1, 400), k=300)
    batches = form_batches(lengths, limits)
    assert sorted(index for batch in batches for index in batch) == list(range(300))
    for batch in batches:
        sizes = [lengths[index] for index in batch]
        assert len(batch) <= limits.records
        assert len(batch) * max(sizes) <= limits.tokens
        assert padding_share(sizes) <= limits.padding + 1e-12


def test_a_record_over_the_budget_is_scored_alone() -> None:
    assert form_batches([5, 5_000_000, 5], BatchLimits()) == [[1], [0, 2]]


def test_like_lengths_go_together() -> None:
    assert form_batches([100, 10, 98, 11], BatchLimits(padding=0.1)) == [[0, 2], [3, 1]]


def test_nothing_makes_no_batch() -> None:
    assert form_batches([], BatchLimits()) == []


def test_limits_follow_the_device() -> None:
    assert limits_for(INFO) is CPU_LIMITS
