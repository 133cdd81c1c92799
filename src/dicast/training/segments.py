"""The segment model as a `Trainable`: encoder, joint schema head and prior learn together on a CPU.

`model.start` is a folder with `dicast.json` (a trained segment model, in torch or ONNX files) or with `bert.json` and
`bert.safetensors` (a pretrained encoder, which gets a fresh head). `model.options` may hold

    freeze_layers = 4              encoder layers that stay as they are, counted from the embeddings, which stay too
    seed = 0                       seed of the fresh head; the run's seed when left out
    head = {width = 256, ...}      shape of the fresh head: width, routing_layers, layers, heads, feedforward

Shapes: B records, Q questions, N questions of the batch, O options.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from torch import nn

from dicast.checkpoints import resolve
from dicast.errors import CapabilityError, CheckpointError, ConfigError
from dicast.models.base import EncodeOptions
from dicast.models.head import HeadConfig
from dicast.models.segment_batch import SegmentBatch, plan_batch
from dicast.models.segmented import SegmentModel
from dicast.segments import Segment, SegmentQuestion
from dicast.training.config import Config, ModelConfig, OptimizerConfig
from dicast.training.data import Example
from dicast.training.distributed import World, is_first_process
from dicast.training.export import export_onnx, require_onnx
from dicast.training.objectives import PaddedLogits
from dicast.training.trainable import LogitPlaces, blamed_on, parameter_groups

CHARACTERS_PER_TOKEN: Final = 4
SEGMENT_OVERHEAD: Final = 3
"""[CLS], [SEP] and rounding, per segment."""
RANGE_SEGMENTS: Final = 600
SEGMENTS_OF_A_RECORD: Final = 12
"""How many segments of the first records, and of one record, are kept to choose ranges of activations for export."""
OPTION_KEYS: Final = {"freeze_layers", "seed", "head"}


@dataclass
class SegmentTrainingBatch:
    """Encodings of a batch, planned, with the places of every question's logits.

    Attributes:
        questions: per record, its questions in the order of the rows of the logits.
        plan: segments and index arrays (numpy; the net moves them).
        places: where each question's logits lie.
    """

    questions: list[tuple[SegmentQuestion, ...]]
    plan: SegmentBatch
    places: LogitPlaces

    def to(self, device: Any) -> SegmentTrainingBatch:
        """The batch with its tensors on a device."""
        return dataclasses.replace(self, places=self.places.to(device))


class SegmentTrainable:
    """A segment model that learns; satisfies :class:`dicast.training.trainable.Trainable`."""

    batch_cost: Literal["padded", "sum"] = "sum"

    def __init__(self, model: SegmentModel, folder: Path, config: Config) -> None:
        self.model = model
        self.module: nn.Module = model.net
        self._folder = folder
        self._export = config.export
        self._options = EncodeOptions(truncation=config.model.truncation)
        self._seen: dict[Segment, None] = {}

    def length(self, example: Example) -> int:
        """An estimate from the number of characters; segments that records share are counted each time."""
        record = example.record
        options = [_characters(question.criteria) for question in record.questions.values()]
        characters = len(str(record.state)) + sum(options)
        characters += sum(len(str(question.instructions)) for question in record.questions.values())
        segments = 1 + sum(1 + len(question.options) for question in record.questions.values())
        return characters // CHARACTERS_PER_TOKEN + SEGMENT_OVERHEAD * segments

    def collate(self, examples: Sequence[Example]) -> SegmentTrainingBatch:
        """Encode and plan.

        Raises:
            TokenBudgetError: a record is too long.
            CapabilityError: a record shows images or videos.
        """
        questions, encodings = [], []
        for example in examples:
            with blamed_on(example):
                if example.record.has_media:
                    raise CapabilityError("the segment model reads no images or videos", field="images")
                encodings.append(self.model.encode(example.record, self._options))
            questions.append(encodings[-1].questions)
            if self._export.onnx and len(self._seen) < RANGE_SEGMENTS:
                self._seen.update(dict.fromkeys(encodings[-1].segments[:SEGMENTS_OF_A_RECORD]))
        plan = plan_batch(encodings)
        return SegmentTrainingBatch(questions, plan, LogitPlaces.of(questions, plan.label.shape[1]))

    def forward_batch(self, batch: SegmentTrainingBatch) -> PaddedLogits:
        """Float32 logits [N, O]."""
        return batch.places.pick(self.module(batch.plan))

    def parameter_groups(self, config: OptimizerConfig) -> list[dict[str, Any]]:
        """Encoder with `lr` (falling per layer by `layer_decay`), head and prior with `head_lr`."""
        layers = len(self.model.net.bert.layers)

        def depth(name: str) -> int:
            found = re.search(r"bert\.layers\.(\d+)\.", name)
            return layers - int(found.group(1)) - 1 if found else layers

        named = self.module.named_parameters()
        return parameter_groups(named, config, is_head=lambda name: not name.startswith("bert."), depth=depth)

    def shard(self, world: World) -> None:
        """Refused: the model is small.

        Raises:
            CapabilityError: always.
        """
        raise CapabilityError("the segments family is not sharded; use replicate", field="distributed.strategy")

    def save(self, folder: Path) -> None:
        """Write ONNX files (if `export.onnx`), `model.safetensors`, `dicast.json` and `tokenizer.json`."""
        if not is_first_process():
            return
        tokenizer = self._folder / "tokenizer.json"
        self.model.save(folder, tokenizer)
        if self._export.onnx:  # its dicast.json says all that the other one says, and more
            export_onnx(self.model, folder, tokenizer=tokenizer, weights=self._export.weights, ranges=self._ranges())

    def _ranges(self) -> list[Segment]:
        """Segments of the first records that were seen, beside the sample texts: what the exported model will read."""
        from dicast.models.onnx_export import sample_segments

        return sample_segments(self.model) + list(self._seen)


def build_trainable(config: Config) -> SegmentTrainable:
    """The segment model that a configuration names, with its trainable parts switched on.

    Raises:
        ConfigError: settings that this family does not have.
        CheckpointError: the starting folder is of another kind.
    """
    settings = config.model
    unknown = sorted(set(settings.options) - OPTION_KEYS)
    if unknown:
        raise ConfigError(f"the segments family has no setting {', '.join(unknown)}", field="model.options")
    if settings.train not in ("all", "head"):
        raise ConfigError("the segments family trains all or head", field="model.train", seen=settings.train)
    if config.export.onnx:
        require_onnx()
    folder, _, _ = resolve(settings.start or None)
    model = _start(folder, settings, int(settings.options.get("seed", config.run.seed)))
    model.net.requires_grad_(True)
    model.net.head.prior_logit_scale.requires_grad_(False)  # switched off; `prior` replaces it
    if settings.train == "head":
        model.net.bert.requires_grad_(False)
    elif frozen := int(settings.options.get("freeze_layers", 0)):
        model.net.bert.freeze(frozen)
    return SegmentTrainable(model, folder, config)


def _start(folder: Path, settings: ModelConfig, seed: int) -> SegmentModel:
    trained = any((folder / name).exists() for name in ("model.safetensors", "encoder.onnx"))
    if trained and settings.head == "keep":
        model = SegmentModel.load(folder)  # ONNX files give their weights back to torch
        _set_dropout(model, settings.head_dropout)
        return model
    if not (folder / "bert.safetensors").exists():
        raise CheckpointError(f"{folder} holds neither a trained segment model nor bert.safetensors to start from")
    shape = settings.options.get("head")
    if shape is None:
        model = SegmentModel.warm_start(folder, seed=seed)
        _set_dropout(model, settings.head_dropout)
        return model
    try:
        width = int(SegmentModel.warm_start(folder, seed=seed).net.bert.config.hidden_size)
        head = HeadConfig(hidden_size=width, dropout=settings.head_dropout, **shape)
    except TypeError as error:
        raise ConfigError(f"not the shape of a head: {error}", field="model.options.head") from None
    return SegmentModel.warm_start(folder, head=head, seed=seed)


def _set_dropout(model: SegmentModel, probability: float) -> None:
    """Give the head's dropout another probability; modules keep it either as nn.Dropout or as a number."""
    for module in model.net.head.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = probability  # type: ignore[assignment]


def _characters(criteria: Any) -> int:
    if criteria is None:
        return 0
    if isinstance(criteria, dict):
        return sum(len(str(key)) + len(str(text or "")) for key, text in criteria.items())
    return sum(len(str(level)) for level in criteria)
