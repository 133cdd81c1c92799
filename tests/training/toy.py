"""A decision model of a few hundred weights for tests of the loop: hashed bags of words, no tokenizer, no backbone."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dicast.models.base import QuestionEncoding
from dicast.training.config import Config, OptimizerConfig
from dicast.training.data import Example
from dicast.training.objectives import PaddedLogits
from dicast.training.trainable import parameter_groups

BUCKETS = 64
TYPES = {"noul": 0, "choice": 1, "score": 2}


@dataclass
class ToyBatch:
    questions: list[list[QuestionEncoding]]
    state: Tensor  # [R, BUCKETS]
    option: Tensor  # [N, O, BUCKETS]
    mask: Tensor  # [N, O]
    types: Tensor  # [N]
    record: Tensor  # [N]

    def to(self, device: Any) -> ToyBatch:
        tensors = (value.to(device) for value in (self.state, self.option, self.mask, self.types, self.record))
        return ToyBatch(self.questions, *tensors)


class Toy(nn.Module):
    def __init__(self, dropout: float, buckets: int = BUCKETS) -> None:
        super().__init__()
        self.backbone = nn.Linear(buckets, 16)
        self.head = nn.Bilinear(16, buckets, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, batch: ToyBatch) -> PaddedLogits:
        hidden = self.dropout(self.backbone(batch.state))[batch.record]  # [N, 16]
        spread = hidden[:, None, :].expand(*batch.mask.shape, 16).contiguous()
        return PaddedLogits(self.head(spread, batch.option)[..., 0], batch.mask, batch.types, batch.record)


class ToyTrainable:
    batch_cost = "padded"

    def __init__(self, dropout: float = 0.0, buckets: int = BUCKETS) -> None:
        self.module = Toy(dropout, buckets)
        self._buckets = buckets

    def length(self, example: Example) -> int:
        return len(str(example.record.state).split()) + 1

    def collate(self, examples: Sequence[Example]) -> ToyBatch:
        questions = [
            [QuestionEncoding(name, asked.type, asked.options) for name, asked in example.record.questions.items()]
            for example in examples
        ]
        asked = [(row, one) for row, record in enumerate(questions) for one in record]
        width = max(len(one.options) for _, one in asked)
        option = torch.zeros(len(asked), width, self._buckets)
        mask = torch.zeros(len(asked), width, dtype=torch.bool)
        for index, (row, one) in enumerate(asked):
            question = examples[row].record.questions[one.id]
            for column, name in enumerate(one.options):
                text = question.criteria.get(name) if isinstance(question.criteria, dict) else None
                option[index, column] = bag(f"{question.instructions} {name} {text or ''}", self._buckets)
                mask[index, column] = True
        return ToyBatch(
            questions,
            torch.stack([bag(str(example.record.state), self._buckets) for example in examples]),
            option,
            mask,
            torch.tensor([TYPES[one.type] for _, one in asked]),
            torch.tensor([row for row, _ in asked]),
        )

    def forward_batch(self, batch: ToyBatch) -> PaddedLogits:
        return self.module(batch)

    def parameter_groups(self, config: OptimizerConfig) -> list[dict[str, Any]]:
        return parameter_groups(self.module.named_parameters(), config, is_head=lambda name: name.startswith("head"))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.module.state_dict(), folder / "toy.pt")


def bag(text: str, buckets: int = BUCKETS) -> Tensor:
    vector = torch.zeros(buckets)
    for word in text.lower().replace("_", " ").split():
        vector[zlib.crc32(word.encode()) % buckets] += 1.0
    return vector


def build(config: Config) -> ToyTrainable:
    """A toy with the options dropout, buckets and state (a file of weights to start from)."""
    options = config.model.options
    toy = ToyTrainable(float(options.get("dropout", 0.0)), int(options.get("buckets", BUCKETS)))
    if "state" in options:
        toy.module.load_state_dict(torch.load(options["state"], weights_only=True))
    return toy


def build_slowly(config: Config) -> ToyTrainable:
    """A toy that takes its time, so that a test can kill it in the middle."""
    model = ToyTrainable(0.3)
    quick = model.forward_batch

    def forward(batch: ToyBatch) -> PaddedLogits:
        time.sleep(float(config.model.options["seconds"]))
        return quick(batch)

    model.forward_batch = forward  # type: ignore[method-assign]
    return model
