"""Holding out dev examples by family, so that related records never lie on both sides. Knows examples only."""

from __future__ import annotations

import json
from collections.abc import Sequence

from dicast.training.data import Example
from dicast.training.sampling import stable_seed


def family_of(example: Example) -> str:
    """The example's family: given, or the text of its state, so that equal states stay together."""
    return example.family or json.dumps(example.record.state, sort_keys=True, ensure_ascii=False, default=str)


def hold_out(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Split into (train, dev): about `share` of the families go to dev, chosen by a hash of family and seed.

    A family's side depends on nothing but its own name, so that adding data never moves old records across.
    """
    train: list[Example] = []
    dev: list[Example] = []
    for example in examples:
        held = stable_seed("dev", seed, family_of(example)) / 2**63 < share
        (dev if held else train).append(example)
    return train, dev
