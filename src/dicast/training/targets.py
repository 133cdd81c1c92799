"""From labels to tensors: what is known about the questions of a batch, in the order of its logits.

Knows examples and the option order of encodings; knows nothing of models, losses or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dicast.training.data import Example
from dicast.training.objectives import PaddedLogits, graded_reward, one_hot

if TYPE_CHECKING:
    from dicast.training.trainable import AskedQuestion

UNKNOWN = -1


@dataclass
class Targets:
    """Targets of N questions with at most O options, aligned with :class:`PaddedLogits`.

    Attributes:
        gold: [N] int64 index of the right option, -1 where no gold label is known.
        soft: [N, O] float32 soft labels, rows of zeros where none are known.
        rewards: [N, O] float32 given rewards, rows of zeros where none are given.
        has_soft, has_rewards: [N] bool.
        weight: [N] float32; 0 for questions without any label.
    """

    gold: Tensor
    soft: Tensor
    rewards: Tensor
    has_soft: Tensor
    has_rewards: Tensor
    weight: Tensor

    def to(self, device: torch.device | str) -> Targets:
        """The same targets on a device."""
        return Targets(*(value.to(device) for value in vars(self).values()))

    def distribution(self, mask: Tensor, soft_share: float) -> Tensor:
        """The target distribution, [N, O]: soft labels mixed with gold ones where both are known.

        Args:
            mask: [N, O] real options.
            soft_share: share of the soft label where a gold one is known too.
        """
        hard = one_hot(self.gold, mask)
        share = torch.where(self.gold < 0, 1.0, soft_share)[:, None]
        return torch.where(self.has_soft[:, None], share * self.soft + (1.0 - share) * hard, hard)

    def reward(self, padded: PaddedLogits, partial_credit: float) -> Tensor:
        """Given rewards, else rewards that follow from gold labels, else the soft label itself; [N, O]."""
        graded = graded_reward(self.gold, padded, partial_credit)
        implied = torch.where((self.gold < 0)[:, None], self.soft, graded)
        return torch.where(self.has_rewards[:, None], self.rewards, implied)


def build_targets(
    examples: Sequence[Example],
    questions: Sequence[Sequence[AskedQuestion]],
    *,
    average: str = "questions",
) -> Targets:
    """Targets of a batch, questions in the order of its encodings.

    Args:
        examples: the records of the batch.
        questions: per record, its encoded questions.
        average: "questions" gives every labelled question the example's weight, "records" divides it among them.
    """
    pairs = [(example, asked) for example, record in zip(examples, questions, strict=True) for asked in record]
    width = max((len(asked.options) for _, asked in pairs), default=1)
    shape = (len(pairs), width)
    targets = Targets(
        gold=torch.full(shape[:1], UNKNOWN, dtype=torch.long),
        soft=torch.zeros(shape),
        rewards=torch.zeros(shape),
        has_soft=torch.zeros(shape[0], dtype=torch.bool),
        has_rewards=torch.zeros(shape[0], dtype=torch.bool),
        weight=torch.zeros(shape[0]),
    )
    labelled = {id(example): sum(map(example.labelled, example.record.questions)) for example in examples}
    for row, (example, asked) in enumerate(pairs):
        column = {option: index for index, option in enumerate(asked.options)}
        if asked.id in example.gold:
            targets.gold[row] = column[example.gold[asked.id]]
        targets.has_soft[row] = _fill(targets.soft[row], example.soft.get(asked.id), column)
        targets.has_rewards[row] = _fill(targets.rewards[row], example.rewards.get(asked.id), column)
        if example.labelled(asked.id):
            targets.weight[row] = example.weight / (labelled[id(example)] if average == "records" else 1)
    return targets


def _fill(row: Tensor, numbers: dict[str, float] | None, column: dict[str, int]) -> bool:
    if numbers is None:
        return False
    for option, number in numbers.items():
        row[column[option]] = number
    return True
