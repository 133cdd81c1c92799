"""The segment model as a `Trainable`: encoder, joint schema head and prior learn together on a CPU.

`model.start` is a folder with `dicast.json` (a trained segment model, in torch or ONNX files) or with `bert.json` and
`bert.safetensors` (a pretrained encoder, which gets a fresh head). `model.options` may hold

    freeze_layers = 4              encoder layers that stay as they are, counted from the embeddings, which stay too
    freeze_encoder = true          all that encodes a segment stays as it is: the encoder and the memory projection;
                                   a start in ONNX files then encodes with them, ahead of the steps, which is quicker
                                   and just what the export, which keeps them, will read
    reader = 2                     give a start without a reader one of so many layers
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

import torch
from torch import nn

from dicast.checkpoints import resolve
from dicast.errors import CapabilityError, CheckpointError, ConfigError
from dicast.models.base import EncodeOptions
from dicast.models.head import HeadConfig
from dicast.models.onnx import RUN_TOKENS, onnx_session
from dicast.models.segment_batch import Bucket, SegmentBatch, buckets_of, plan_batch
from dicast.models.segmented import EncodedSegments, SegmentModel, gathered
from dicast.segments import SegmentEncoding, SegmentQuestion
from dicast.training.config import Config, ModelConfig, OptimizerConfig
from dicast.training.data import Example
from dicast.training.distributed import World, is_first_process
from dicast.training.export import export_onnx, require_onnx
from dicast.training.objectives import PaddedLogits
from dicast.training.trainable import LogitPlaces, blamed_on, parameter_groups

ENCODER: Final = "encoder.onnx"
MIDDLE: Final = "middle"
CHARACTERS_PER_TOKEN: Final = 4
SEGMENT_OVERHEAD: Final = 3
"""[CLS], [SEP] and rounding, per segment."""
RANGE_RECORDS: Final = 60
"""How many of the first records are kept to choose ranges of activations for export."""
PRETRAINED: Final = ("bert.", "reader.layers.")
OPTION_KEYS: Final = {"freeze_layers", "freeze_encoder", "reader", "seed", "head"}


@dataclass
class SegmentTrainingBatch:
    """Encodings of a batch, planned, with the places of every question's logits.

    Attributes:
        questions: per record, its questions in the order of the rows of the logits.
        plan: segments and index arrays (numpy; the net moves them).
        places: where each question's logits lie.
        known: the segments and where they begin, where the encoder does not learn and has read them already.
    """

    questions: list[tuple[SegmentQuestion, ...]]
    plan: SegmentBatch
    places: LogitPlaces
    known: tuple[EncodedSegments, list[int]] | None = None

    def to(self, device: Any) -> SegmentTrainingBatch:
        """The batch with its tensors on a device."""
        known = self.known and (EncodedSegments(*(tensor.to(device) for tensor in self.known[0])), self.known[1])
        return dataclasses.replace(self, places=self.places.to(device), known=known)


class SegmentTrainable:
    """A segment model that learns; satisfies :class:`dicast.training.trainable.Trainable`."""

    batch_cost: Literal["padded", "sum"] = "sum"

    def __init__(self, model: SegmentModel, folder: Path, config: Config) -> None:
        self.model = model
        self.module: nn.Module = model.net
        self._folder = folder
        self._export = config.export
        self._options = EncodeOptions(truncation=config.model.truncation)
        self._seen: list[SegmentEncoding] = []
        self.encoder: OnnxEncoder | None = None
        if config.model.options.get("freeze_encoder", False) and (folder / ENCODER).is_file():
            reader = model.net.reader is not None
            self.encoder = OnnxEncoder(folder / ENCODER, max(1, config.run.threads), reader=reader)

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
        if self._export.onnx:
            self._seen += encodings[: RANGE_RECORDS - len(self._seen)]
        plan = plan_batch(encodings)
        places = LogitPlaces.of(questions, plan.label.shape[1])
        return SegmentTrainingBatch(questions, plan, places, self.encoder(plan) if self.encoder else None)

    def forward_batch(self, batch: SegmentTrainingBatch) -> PaddedLogits:
        """Float32 logits [N, O]."""
        return batch.places.pick(self.module(batch.plan, batch.known))

    def parameter_groups(self, config: OptimizerConfig) -> list[dict[str, Any]]:
        """Encoder (falling per layer by `layer_decay`) and reader with `lr`, head and prior with `head_lr`."""
        layers = len(self.model.net.bert.layers)

        def depth(name: str) -> int:
            if name.startswith("reader."):
                return 0
            found = re.search(r"bert\.layers\.(\d+)\.", name)
            return layers - int(found.group(1)) - 1 if found else layers

        named = self.module.named_parameters()
        return parameter_groups(named, config, is_head=lambda name: not name.startswith(PRETRAINED), depth=depth)

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
            export_onnx(
                self.model,
                folder,
                tokenizer=tokenizer,
                weights=self._export.weights,
                ranges=self._ranges(),
                encoder=self._folder if self.encoder else None,
            )

    def _ranges(self) -> list[SegmentEncoding]:
        """The first records that were seen, beside the sample texts: what the exported model will read."""
        from dicast.models.onnx_export import sample_encodings

        return sample_encodings(self.model) + self._seen


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
    if (layers := int(settings.options.get("reader", 0))) and model.net.reader is None:
        model.net.add_reader(layers)
    model.net.requires_grad_(True)
    model.net.head.prior_logit_scale.requires_grad_(False)  # switched off; `prior` replaces it
    if settings.train == "head":
        model.net.bert.requires_grad_(False)
    elif frozen := int(settings.options.get("freeze_layers", 0)):
        model.net.bert.freeze(frozen)
    if settings.options.get("freeze_encoder", False):
        for module in (model.net.bert, model.net.head.hidden_norm, model.net.head.memory_projection):
            module.requires_grad_(False)
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


class OnnxEncoder:
    """Encodes the segments of batches with an encoder that does not learn.

    Args:
        path: its encoder.onnx.
        threads: threads of one run.
        reader: whether states for a reader are needed.

    Raises:
        CapabilityError: they are, and the file does not give them.
    """

    def __init__(self, path: Path, threads: int, *, reader: bool) -> None:
        self._session = onnx_session(path, threads)
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._tokens = RUN_TOKENS * threads
        if reader and MIDDLE not in self._outputs:
            raise CapabilityError(f"{path} has no output for a reader; export it with one, or start from torch weights")

    def __call__(self, plan: SegmentBatch) -> tuple[EncodedSegments, list[int]]:
        """All segments of a batch and the row at which each begins."""
        return gathered(buckets_of(plan.segments, most_tokens=self._tokens), len(plan.segments), self._encode)

    def _encode(self, bucket: Bucket) -> EncodedSegments:
        found = self._session.run(None, {"ids": bucket.ids, "mask": bucket.mask, "span": bucket.span})
        named: dict[str, torch.Tensor] = dict(zip(self._outputs, map(torch.from_numpy, found), strict=True))
        named.setdefault(MIDDLE, named["memory"])
        return EncodedSegments(**{name: named[name] for name in EncodedSegments._fields})


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
