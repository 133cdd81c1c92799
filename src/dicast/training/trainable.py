"""What the loop needs from a model, and how a configuration names one. Knows no architecture.

A family is a builder `build(config: Config) -> Trainable`. Known families are imported only when they are asked for;
any other is written as "package.module:function".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from dicast.errors import ConfigError, InputError
from dicast.training.config import Config, OptimizerConfig
from dicast.training.data import Example
from dicast.training.objectives import PaddedLogits

if TYPE_CHECKING:
    from dicast.training.distributed import World

TYPE_CODES = {"noul": 0, "choice": 1, "score": 2}
FAMILIES = {
    "segments": "dicast.training.segments:build_trainable",
    "clef": "dicast.training.clef:build_trainable",
}


class AskedQuestion(Protocol):
    """The part of a question's encoding that targets need (see `dicast.models.base.QuestionEncoding`)."""

    @property
    def id(self) -> str:
        """Question id."""

    @property
    def type(self) -> str:
        """noul, choice or score."""

    @property
    def options(self) -> tuple[str, ...]:
        """Option ids in the order of the logits."""


class TrainingBatch(Protocol):
    """What `collate` returns."""

    questions: Sequence[Sequence[AskedQuestion]]
    """Per record, its questions in the order of the rows of the logits."""

    def to(self, device: Any) -> Any:
        """The batch with its tensors on the device."""


class Trainable(Protocol):
    """A torch decision model that the loop can train.

    Attributes:
        module: holds every parameter; the loop switches train/eval, saves and restores its trainable weights.
        batch_cost: how a micro-batch's tokens are counted: "padded" (records x longest) or "sum".
    """

    module: nn.Module
    batch_cost: Literal["padded", "sum"]

    def length(self, example: Example) -> int:
        """Tokens of the example, exactly or estimated cheaply; only used to make batches."""

    def collate(self, examples: Sequence[Example]) -> TrainingBatch:
        """Encode and pad on the CPU, without gradients; may run in another thread.

        Raises:
            InputError: an example does not fit the model.
        """

    def forward_batch(self, batch: Any) -> PaddedLogits:
        """Float32 logits of all questions, records in batch order, questions in the order of `batch.questions`."""

    def parameter_groups(self, config: OptimizerConfig) -> list[dict[str, Any]]:
        """Groups for AdamW: each with params, lr, weight_decay and name ("backbone..." or "head...")."""

    def shard(self, world: World) -> None:
        """Shard the backbone over the processes with FSDP2, in place, before anything looks at the parameters.

        Raises:
            CapabilityError: the family cannot be sharded.
        """

    def save(self, folder: Path) -> None:
        """Write the finished model as a checkpoint folder. Every process calls it; only the first one writes."""


@dataclass
class LogitPlaces:
    """Where the logits of every question lie in a model's padded [B, options of the record].

    Attributes:
        place: [N, O] int64 index into the flattened logits; 0 on padding.
        mask: [N, O] bool.
        types: [N] int64.
        record: [N] int64.
    """

    place: Tensor
    mask: Tensor
    types: Tensor
    record: Tensor

    @classmethod
    def of(cls, questions: Sequence[Sequence[AskedQuestion]], columns: int) -> LogitPlaces:
        """Places for records whose options stand one question after the other in rows of `columns` logits."""
        asked = [(record, question) for record, row in enumerate(questions) for question in row]
        starts = [
            record * columns + sum(len(before.options) for before in row[:index])
            for record, row in enumerate(questions)
            for index in range(len(row))
        ]
        counts = torch.tensor([len(question.options) for _, question in asked])
        steps = torch.arange(int(counts.max()))
        mask = steps[None, :] < counts[:, None]
        return cls(
            place=(torch.tensor(starts)[:, None] + steps[None, :]) * mask,
            mask=mask,
            types=torch.tensor([TYPE_CODES[question.type] for _, question in asked]),
            record=torch.tensor([record for record, _ in asked]),
        )

    def to(self, device: Any) -> LogitPlaces:
        """The same on a device."""
        return LogitPlaces(*(value.to(device) for value in vars(self).values()))

    def pick(self, logits: Tensor) -> PaddedLogits:
        """Logits [B, options] as one padded float32 row per question."""
        return PaddedLogits(logits.float().flatten()[self.place], self.mask, self.types, self.record)


@contextmanager
def blamed_on(example: Example) -> Iterator[None]:
    """Put the example's file and line in front of the field of an input error."""
    try:
        yield
    except InputError as error:
        field = f"{example.place}: {error.field}" if example.place and error.field else example.place or error.field
        raise type(error)(error.message, field=field, limit=error.limit, seen=error.seen) from None


def build(config: Config) -> Trainable:
    """Build the model that the configuration names.

    Raises:
        ConfigError: unknown family, or a builder that cannot be imported.
    """
    return family_builder(config.model.family)(config)


def family_builder(family: str) -> Callable[[Config], Trainable]:
    """The builder of a family.

    Raises:
        ConfigError: unknown name, no such module or no such function in it.
    """
    place = FAMILIES.get(family, family)
    module_name, colon, function = place.partition(":")
    if not colon:
        known = ", ".join(FAMILIES)
        raise ConfigError(
            f"unknown family {family!r} (known: {known}, or package.module:function)", field="model.family"
        )
    try:
        builder: Callable[[Config], Trainable] = getattr(importlib.import_module(module_name), function)
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in (module_name, module_name.split(".")[0]):
            raise
        raise ConfigError(f"cannot find {place}: {error}", field="model.family") from None
    return builder


def parameter_groups(
    named: Iterable[tuple[str, Tensor]],
    config: OptimizerConfig,
    *,
    is_head: Callable[[str], bool],
    depth: Callable[[str], int] | None = None,
) -> list[dict[str, Any]]:
    """Split trainable parameters by learning rate and weight decay.

    Args:
        named: names and parameters; frozen ones are left out.
        config: learning rates and decay.
        is_head: whether a name belongs to the head.
        depth: layers above a backbone parameter (0 at the top), for `layer_decay`.
    """
    groups: dict[tuple[str, float, float], list[Tensor]] = {}
    for name, parameter in named:
        if not parameter.requires_grad:
            continue
        head = is_head(name)
        scale = 1.0 if head or depth is None else config.layer_decay ** depth(name)
        rate = (config.head_lr if head else config.lr) * scale
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0
        groups.setdefault(("head" if head else "backbone", rate, decay), []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "weight_decay": decay, "name": part}
        for (part, rate, decay), parameters in groups.items()
    ]
