"""The starting policy of RLCD: its log-probabilities, computed once and kept on disk; no second model is held."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from dicast.training.config import Config
from dicast.training.data import Example
from dicast.training.distributed import World
from dicast.training.sampling import dev_batches
from dicast.training.state import save_atomically
from dicast.training.trainable import Trainable

Policy = list[dict[str, dict[str, float]]]
"""Per example: question id -> option id -> log-probability."""


def reference_policy(
    config: Config, model: Trainable, examples: Sequence[Example], folder: Path, world: World
) -> Policy:
    """Log-probabilities of the model as it is now, for all examples; read back if the run has computed them before.

    A resumed run must not compute them again, since its weights have moved; the file is written before the first step.
    """
    path = folder / "reference.pt"
    if path.exists():
        policy: Policy = torch.load(path, map_location="cpu", weights_only=True)
        if len(policy) == len(examples):
            return policy
    found = _compute(config, model, examples, world)
    policy = [found[index] for index in range(len(examples))]
    if world.first:
        save_atomically(policy, path)
    world.barrier()
    return policy


@torch.no_grad()
def _compute(
    config: Config, model: Trainable, examples: Sequence[Example], world: World
) -> dict[int, dict[str, dict[str, float]]]:
    batches = dev_batches([model.length(example) for example in examples], config.batch, model.batch_cost)
    model.module.eval()
    mine: dict[int, dict[str, dict[str, float]]] = {}
    for first in range(0, len(batches), world.size):
        indices = batches[min(first + world.rank, len(batches) - 1)]
        batch = model.collate([examples[index] for index in indices])
        table = model.forward_batch(batch.to(world.device)).log_probabilities().cpu().tolist()
        row = 0
        for index, questions in zip(indices, batch.questions, strict=True):
            mine[index] = {}
            for asked in questions:
                mine[index][asked.id] = dict(zip(asked.options, table[row], strict=False))
                row += 1
    model.module.train()
    return {index: policy for part in world.gather(mine) for index, policy in part.items()}
