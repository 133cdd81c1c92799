"""Clef as a `Trainable`: a Qwen3.5 backbone, frozen, adapted or trained whole, under a joint schema head in float32.

The dtype boundary is in one place, :meth:`ClefTrainable.forward_batch`: the backbone computes in its own dtype (and
under autocast, if the run asks for it), the head always in float32 outside autocast. `model.start` is a checkpoint in
the release layout, or a bare Qwen3.5 backbone with `model.head = "fresh"`.

Shapes: B records, L positions, H backbone width, N questions of the batch, O options.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dicast import checkpoints
from dicast.batching import Batch
from dicast.checkpoints import resolve
from dicast.encoding import DEFAULT_MAX_LENGTH, ClefEncoder, ClefEncoding, QuestionSpans, load_tokenizer
from dicast.errors import CapabilityError, ConfigError, MissingDependencyError
from dicast.media import decode_image, decode_video
from dicast.models.base import EncodeOptions, ModelInfo
from dicast.models.clef import ClefModel, ClefNetwork
from dicast.models.head import JointSchemaHead
from dicast.models.qwen import load_backbone
from dicast.models.qwen_media import load_media_reader
from dicast.records import Record
from dicast.training import adapters
from dicast.training.config import Config, ModelConfig, OptimizerConfig
from dicast.training.data import Example
from dicast.training.distributed import World, pick_device
from dicast.training.hidden_cache import HiddenCache, backbone_key
from dicast.training.objectives import PaddedLogits
from dicast.training.trainable import LogitPlaces, blamed_on, parameter_groups

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WIDE, WIDTH, NARROW_WIDTH, HEAD_CHANNELS = 3072, 1024, 512, 64


@dataclass
class ClefTrainingBatch:
    """A padded batch with the places of every question's logits.

    Attributes:
        questions: per record, its questions in the order of the rows of the logits.
        encodings: the records' encodings, for the cache of hidden states.
        batch: padded arrays (numpy; the network moves them).
        places: where each question's logits lie.
    """

    questions: list[tuple[QuestionSpans, ...]]
    encodings: list[ClefEncoding]
    batch: Batch
    places: LogitPlaces

    def to(self, device: Any) -> ClefTrainingBatch:
        """The batch with its tensors on a device."""
        return dataclasses.replace(self, places=self.places.to(device))


class ClefTrainable:
    """A Clef model that learns; satisfies :class:`dicast.training.trainable.Trainable`.

    Args:
        model: backbone, head and encoder.
        config: the run.
        folder: the checkpoint that the backbone came from.
        cache: hidden states on disk, for a frozen backbone.
    """

    batch_cost: Literal["padded", "sum"] = "padded"

    def __init__(self, model: ClefModel, config: Config, folder: Path, cache: HiddenCache | None = None) -> None:
        self.model = model
        self.module: nn.Module = model.network
        self.cache = cache
        self.folder = folder
        self._config = config
        settings = config.model
        self._options = EncodeOptions(truncation=settings.truncation, max_length=settings.max_length or None)

    def length(self, example: Example) -> int:
        """Tokens of the record, media included; an example that does not fit is found here, before any training.

        Raises:
            TokenBudgetError: the record is too long.
            MediaError: an image or video is unreadable.
        """
        return self._encode(example).length

    def collate(self, examples: Sequence[Example]) -> ClefTrainingBatch:
        """Encode and pad.

        Raises:
            InputError: an example does not fit the model.
        """
        encodings = [self._encode(example) for example in examples]
        batch = self.model.collate(encodings)
        questions = [encoding.questions for encoding in encodings]
        return ClefTrainingBatch(questions, encodings, batch, LogitPlaces.of(questions, batch.owner.shape[1]))

    def forward_batch(self, batch: ClefTrainingBatch) -> PaddedLogits:
        """Float32 logits [N, O]."""
        network = self.model.network
        hidden = self._hidden(batch)
        with torch.autocast(hidden.device.type, enabled=False):
            logits = network.head(network.head_inputs(batch.batch, hidden.float()))
        return batch.places.pick(logits)

    def parameter_groups(self, config: OptimizerConfig) -> list[dict[str, Any]]:
        """Backbone or adapters with `lr` (falling per layer by `layer_decay`), head with `head_lr`."""
        layers = len(self.model.network.backbone.text.layers)

        def depth(name: str) -> int:
            found = adapters.LAYER.search(name)
            return layers - int(found.group(1)) - 1 if found else layers

        named = self.module.named_parameters()
        return parameter_groups(named, config, is_head=lambda name: name.startswith("head."), depth=depth)

    def shard(self, world: World) -> None:
        """Shard decoder layers and embeddings over all processes; the head stays whole on each of them.

        Sharded weights are gathered layer by layer in the forward and backward pass. Frozen weights may be bfloat16
        beside float32 adapters: FSDP2 needs one dtype among the parameters of a layer that learn, which holds.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        network = self.model.network
        mesh = init_device_mesh(world.device.type, (world.size,))
        for layer in network.backbone.text.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(network.backbone.text, mesh=mesh)
        network.to(world.device)

    def save(self, folder: Path) -> None:
        """Write the release layout with adapters merged; see :mod:`dicast.training.release`."""
        from dicast.training.release import write_release

        write_release(self, folder)

    def exported_head(self) -> JointSchemaHead:
        """A copy of the head in the dtype in which it is stored."""
        head = copy.deepcopy(self.model.network.head)
        return head.to(DTYPES[self._config.export.head_dtype])

    def trained_weights(self) -> dict[str, Tensor]:
        """Decoder weights that differ from the start, by their names in the decoder. Every process must call it."""
        decoder = self.model.network.backbone.text
        if self._config.model.train == "head":
            return {}
        if self._config.model.train in ("lora", "qlora"):
            base = stored_weights(self.folder) if self._config.model.train == "qlora" else None
            return adapters.merged_weights(decoder, base)
        trained = {name: value for name, value in decoder.named_parameters() if value.requires_grad}
        return {name: _whole(value) for name, value in trained.items()}

    def _encode(self, example: Example) -> ClefEncoding:
        with blamed_on(example):
            return self.model.encode(with_media(example.record), self._options)

    def _hidden(self, batch: ClefTrainingBatch) -> Tensor:
        """Final hidden states [B, L, H], from the cache where the backbone is frozen."""
        backbone = self.model.network.backbone
        if self._config.model.train != "head":
            hidden: Tensor = backbone(batch.batch)
            return hidden
        with torch.no_grad():
            if self.cache is None:
                frozen: Tensor = backbone(batch.batch)
                return frozen
            return self._cached(batch, self.cache)

    def _cached(self, batch: ClefTrainingBatch, cache: HiddenCache) -> Tensor:
        found = [cache.get(encoding) for encoding in batch.encodings]
        absent = [encoding for encoding, hidden in zip(batch.encodings, found, strict=True) if hidden is None]
        if absent:
            computed = self.model.network.backbone(self.model.collate(absent))
            fresh = iter([row[: encoding.length] for row, encoding in zip(computed, absent, strict=True)])
            for index, encoding in enumerate(batch.encodings):
                if found[index] is None:
                    found[index] = next(fresh)
                    cache.put(encoding, found[index])  # type: ignore[arg-type]
        device = self.model.network.backbone.device
        rows = [hidden.to(device) for hidden in found if hidden is not None]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def build_trainable(config: Config) -> ClefTrainable:
    """The Clef model that a configuration names, with its trainable parts switched on.

    Raises:
        ConfigError: settings that contradict each other.
        CheckpointError: the starting checkpoint is incomplete or of another kind.
        MissingDependencyError: an extra that the settings need is not installed.
    """
    settings = config.model
    if settings.options:
        raise ConfigError(f"the clef family has no setting {', '.join(settings.options)}", field="model.options")
    if not settings.start:
        raise ConfigError("name a checkpoint folder or hub name", field="model.start")
    name = f"{settings.start}@{settings.revision}" if settings.revision else settings.start
    folder, shown, revision = resolve(name)
    device = pick_device(config.run.device)
    if config.distributed.strategy == "fsdp2":
        device = torch.device("cpu")  # layers go to their devices when they are sharded
    model = _load(folder, shown, revision, settings, device, config.run.seed)
    network = model.network
    network.head.float().requires_grad_(True)
    network.backbone.requires_grad_(False)
    if settings.train in ("lora", "qlora"):
        network.backbone.text.is_loaded_in_4bit = settings.train == "qlora"  # peft asks the module that it adapts
        adapters.add_adapters(network.backbone.text, config.lora)
    elif settings.train == "all":
        network.backbone.text.requires_grad_(True)
    if settings.gradient_checkpointing and settings.train != "head":
        checkpoint_activations(network.backbone.text)
    return ClefTrainable(model, config, folder, _cache(config, folder) if settings.train == "head" else None)


def checkpoint_activations(decoder: Any) -> None:
    """Keep only the input of each decoder layer and compute the rest again in the backward pass."""
    # transformers renamed the method; the old name warns where the new one exists.
    enable = getattr(decoder, "activation_checkpointing_enable", None) or decoder.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def fresh_head(hidden_size: int, *, dropout: float = 0.0) -> JointSchemaHead:
    """A new head for a backbone of width H: W = 1024 from H = 3072 on, else 512; heads of 64 channels, F = 4 W.

    Type embeddings are N(0, 1), attention input projections Xavier-uniform, scales start at 1 and the gate at 0.5; a
    backbone narrower than 512 (a test) gets a head of its own width.
    """
    width = WIDTH if hidden_size >= WIDE else min(NARROW_WIDTH, hidden_size)
    heads = max(1, width // HEAD_CHANNELS)
    return JointSchemaHead(hidden_size, width, 2, 4, heads, 4 * width, dropout)


def with_media(record: Record) -> Record:
    """The record with its images and videos decoded.

    Raises:
        MediaError: unreadable, unsafe or over a limit.
    """
    if not record.has_media:
        return record
    images = [decode_image(source, name=f"images.{index}") for index, source in enumerate(record.images)]
    videos = [decode_video(source, name=f"videos.{index}") for index, source in enumerate(record.videos)]
    return dataclasses.replace(record, images=images, videos=videos)


def stored_weights(folder: Path) -> Callable[[str], Tensor]:
    """A function from a weight's name in the decoder to its full-precision value in the checkpoint's files."""
    from dicast.training.release import CheckpointFiles

    files = CheckpointFiles(folder)
    return lambda name: files.tensor(files.decoder_name(name))


def _load(folder: Path, shown: str, revision: str, settings: ModelConfig, device: torch.device, seed: int) -> ClefModel:
    extra: dict[str, Any] = {"quantization_config": _four_bits(device)} if settings.train == "qlora" else {}
    dtype = DTYPES[settings.dtype]
    has_head = (folder / checkpoints.HEAD_CONFIG).exists()
    if settings.head == "keep" and not has_head:
        raise ConfigError(f'{shown} has no joint schema head; set model.head = "fresh" to make one', field="model.head")
    body = load_backbone(folder, device=device, dtype=dtype, vision=settings.vision, **extra)
    if settings.vision and not body.has_vision:
        raise CapabilityError(f"{shown} has no vision tower", field="model.vision")
    if settings.head == "keep":
        head = checkpoints.load_head(folder, hidden_size=body.hidden_size)
        if settings.head_dropout:
            head = _with_dropout(head, settings.head_dropout)
    else:
        torch.manual_seed(seed)
        head = fresh_head(body.hidden_size, dropout=settings.head_dropout)
    tokenizer = load_tokenizer(folder)
    most = settings.max_length or DEFAULT_MAX_LENGTH
    encoder = ClefEncoder(tokenizer, max_length=most, media=load_media_reader(folder) if body.has_vision else None)
    info = ModelInfo(
        name=shown,
        architecture=f"clef ({body.text.config.model_type} + joint schema head)",
        runtime="torch",
        parameters={},
        dtype=settings.dtype,
        device=str(device),
        max_tokens=most,
        images=body.has_vision,
        videos=body.has_vision,
        revision=revision,
        licence=checkpoints.card_licence(folder),
    )
    network = ClefNetwork(body, head.to(device))
    return ClefModel(network, encoder, info, pad_id=checkpoints.pad_token_id(folder, tokenizer), folder=folder)


def _with_dropout(head: JointSchemaHead, dropout: float) -> JointSchemaHead:
    config = dataclasses.replace(head.config, dropout=dropout)
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    other = JointSchemaHead(**values)
    other.load_state_dict(head.state_dict(), strict=True)
    return other


def _four_bits(device: torch.device) -> Any:
    """NF4 with double quantisation; the small DeltaNet gates, the vision tower and the output embedding stay whole.

    Raises:
        MissingDependencyError: bitsandbytes or CUDA is missing.
    """
    if device.type != "cuda":
        raise MissingDependencyError('qlora needs a CUDA device; here use model.train = "lora"')
    try:
        import_module("bitsandbytes")
    except ImportError:
        raise MissingDependencyError("qlora needs bitsandbytes: pip install bitsandbytes") from None
    import transformers

    settings: Any = transformers.BitsAndBytesConfig
    return settings(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=["lm_head", "visual", "in_proj_a", "in_proj_b"],
    )


def _cache(config: Config, folder: Path) -> HiddenCache:
    place = Path(config.model.cache_folder or Path(config.run.folder) / "hidden")
    key = backbone_key(folder, dtype=config.model.dtype, autocast=config.run.autocast, vision=config.model.vision)
    return HiddenCache(place, key)


def _whole(value: Tensor) -> Tensor:
    whole: Any = value.full_tensor() if hasattr(value, "full_tensor") else value
    dense: Tensor = whole.detach().cpu()
    return dense
