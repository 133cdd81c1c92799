"""The Qwen3.5 backbone: token ids and media to final hidden states, and the output-embedding rows asked for.

Knows nothing of questions, spans or the head. Uses transformers for the architecture (Gated DeltaNet and full-attention
layers, vision tower); never runs the vocabulary projection. With `vision=False` the vision tower is not even loaded.

Shapes: B records, L positions, H hidden width.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dicast.batching import Batch
from dicast.encoding import MediaEncoding
from dicast.errors import CheckpointError
from dicast.models.qwen_cache import cache_argument
from dicast.models.qwen_layers import install
from dicast.models.qwen_positions import batch_positions

MODEL_TYPES = ("qwen3_5", "qwen3_5_text")
MEDIA_TENSORS = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")


class QwenBackbone(nn.Module):
    """Final hidden states of a Qwen3.5 model.

    Args:
        model: `Qwen3_5ForConditionalGeneration` (with vision) or `Qwen3_5ForCausalLM` (text only) of transformers.

    Attributes:
        own_delta: whether Gated DeltaNet layers run :mod:`dicast.models.delta` wherever there are no fused kernels.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        inner = model.model
        self.has_vision = hasattr(inner, "visual")
        self.own_delta = install(self.text)

    @property
    def text(self) -> Any:
        """The text decoder, whose output is the final-norm hidden states."""
        return self.model.model.language_model if self.has_vision else self.model.model

    @property
    def hidden_size(self) -> int:
        """Width H of the hidden states."""
        return int(self.text.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the hidden states."""
        kind: torch.dtype = self.text.norm.weight.dtype
        return kind

    def forward(self, batch: Batch) -> Tensor:
        """Hidden states ``[B, L, H]`` after the final norm, at every position of the batch."""
        ids = torch.from_numpy(batch.ids).to(self.device)
        mask = torch.from_numpy(batch.mask).to(self.device).long()
        if not batch.media:
            return self.decode(mask, ids=ids)
        return self.decode(mask, embeddings=self.embed(ids, batch), positions=self.positions(batch))

    def decode(
        self,
        mask: Tensor | None,
        *,
        ids: Tensor | None = None,
        embeddings: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Hidden states ``[B, L, H]`` after the final norm of the tokens that follow what `cache` holds.

        Args:
            mask: ``[B, cached + L]`` int64, 1 on real tokens; None when all are.
            ids: ``[B, L]`` token ids, or
            embeddings: ``[B, L, H]`` input embeddings.
            positions: ``[B, L]`` for text, ``[3, B, L]`` with media; None counts on from the cache.
            cache: transformers' cache, moved on by this call; None reads from the beginning and keeps nothing.
        """
        arguments = {cache_argument(self.text): cache} if cache is not None else {}
        out = self.text(
            input_ids=ids,
            inputs_embeds=embeddings,
            attention_mask=mask,
            position_ids=positions,
            use_cache=cache is not None,
            **arguments,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    def embed(self, ids: Tensor, batch: Batch) -> Tensor:
        """Input embeddings ``[B, L, H]``, with vision features at the places of the media tokens.

        Places come from the encodings, not from token ids: a placeholder token in a user's text stays text.
        """
        rows: Tensor = self.text.get_input_embeddings()(ids)
        rows = rows.clone()
        # Media that lie wholly in a cached prefix need no features.
        shown = [(row, offset - int(batch.starts[row]), media) for row, offset, media in batch.media]
        shown = [(row, start, media) for row, start, media in shown if start + len(media.token_types) > 0]
        features = self.vision_features([media for _, _, media in shown])
        for (row, start, media), (image, video) in zip(shown, features, strict=True):
            types = torch.tensor(media.token_types, device=rows.device)
            cached = max(0, -start)
            part = rows[row, start + cached : start + len(types)]
            for kind, feature in ((1, image), (2, video)):
                if feature is not None:
                    part[types[cached:] == kind] = feature[int((types[:cached] == kind).sum()) :].to(part)
        return rows

    def vision_features(self, media: Sequence[MediaEncoding]) -> list[tuple[Tensor | None, Tensor | None]]:
        """Per entry, the features ``[tokens, H]`` of its images and of its videos; equal entries are computed once."""
        places: dict[str, int] = {}
        distinct: list[MediaEncoding] = []
        order = []
        for entry in media:
            key = entry.key or f"unkeyed {len(distinct)}"
            if key not in places:
                places[key] = len(distinct)
                distinct.append(entry)
            order.append(places[key])
        images = self._tower(distinct, "pixel_values", "image_grid_thw")
        videos = self._tower(distinct, "pixel_values_videos", "video_grid_thw")
        return [(images[place], videos[place]) for place in order]

    def positions(self, batch: Batch) -> Tensor:
        """Rotary positions ``[3, B, L]`` (time, row, column)."""
        merge = int(self.model.model.visual.spatial_merge_size)
        return torch.from_numpy(batch_positions(batch, merge)).to(self.device)

    def _tower(self, media: Sequence[MediaEncoding], pixels: str, grid: str) -> list[Tensor | None]:
        """One pass of the vision tower over one kind of media: per entry its features, or None where it has none."""
        having = [index for index, entry in enumerate(media) if pixels in entry.tensors]
        features: list[Tensor | None] = [None] * len(media)
        if not having:
            return features
        grids = [media[index].tensors[grid] for index in having]
        values = torch.cat([media[index].tensors[pixels] for index in having]).to(self.device)
        out = self.model.model.get_image_features(values, torch.cat(grids).to(self.device), return_dict=True)
        assets = iter(out.pooler_output)
        for index, own in zip(having, grids, strict=True):
            features[index] = torch.cat([next(assets) for _ in range(len(own))])
        return features

    def lexical_rows(self, ids: Tensor) -> Tensor:
        """Rows ``[U, H]`` of the output embedding in float32, for token ids ``[U]``."""
        weight: Tensor = self.model.lm_head.weight
        return weight[ids.to(weight.device)].float()


def load_backbone(
    folder: Path, *, device: torch.device, dtype: torch.dtype, vision: bool, **kwargs: Any
) -> QwenBackbone:
    """Load the backbone of a checkpoint folder straight to its device and dtype.

    Args:
        folder: checkpoint in the release layout.
        device: where the weights go.
        dtype: dtype of the weights.
        vision: whether to load the vision tower.
        **kwargs: passed on to `from_pretrained` (e.g. `attn_implementation`, `quantization_config`).

    Raises:
        CheckpointError: wrong architecture, missing, extra or unreadable weights.
    """
    from transformers import AutoConfig, Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration

    check_files(folder)
    raw = read_config(folder)
    vision = vision and raw["model_type"] == "qwen3_5"
    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    family: Any = Qwen3_5ForConditionalGeneration if vision else Qwen3_5ForCausalLM
    if not vision and hasattr(config, "text_config"):
        config = config.text_config
    try:
        model, loading = family.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            device_map={"": device},
            use_safetensors=True,
            output_loading_info=True,
            **kwargs,
        )
    except Exception as error:  # every library below raises its own kind for a broken file
        raise CheckpointError(f"the weights in {folder} can't be loaded: {_first_line(error)}") from error
    _check_loading(loading, folder)
    _check_output_embedding(model, folder)
    return QwenBackbone(model.eval().requires_grad_(False))


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`.

    Raises:
        CheckpointError: unreadable, or of another architecture.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'config.json'} is missing or not readable JSON: {error}") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in MODEL_TYPES:
        raise CheckpointError(f"{folder} holds a {kind!r} model; supported backbones: {', '.join(MODEL_TYPES)}")
    return dict(config)


def check_files(folder: Path) -> None:
    """Check that every weight file that the index names is there.

    Raises:
        CheckpointError: names the missing files.
    """
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        if not (folder / "model.safetensors").exists():
            raise CheckpointError(
                f"{folder} has neither model.safetensors nor model.safetensors.index.json; only safetensors are read"
            )
        return
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{index} is not a weight index: {error!r}") from error
    missing = [name for name in shards if not (folder / Path(name).name).exists()]
    if missing:
        raise CheckpointError(f"{folder} lacks {len(missing)} of {len(shards)} weight files: {', '.join(missing[:5])}")


def _check_loading(loading: Mapping[str, Any], folder: Path) -> None:
    missing = sorted(loading.get("missing_keys") or ())
    if missing:
        raise CheckpointError(f"{folder} lacks {len(missing)} tensors, first {missing[0]}")
    mismatched = sorted(loading.get("mismatched_keys") or ())
    if mismatched:
        raise CheckpointError(f"{folder} has tensors of another shape, first {mismatched[0]}")
    ignored = re.compile(r"^(model\.)?visual\.|^mtp\.")
    extra = sorted(name for name in loading.get("unexpected_keys") or () if not ignored.match(name))
    if extra:
        raise CheckpointError(f"{folder} has {len(extra)} tensors that its config does not know, first {extra[0]}")


def _check_output_embedding(model: Any, folder: Path) -> None:
    weight = model.lm_head.weight
    if not weight.is_floating_point() or weight.dim() != 2:
        raise CheckpointError(
            f"{folder} has a quantised output embedding (lm_head, {weight.dtype}); the joint schema head reads "
            "its rows, so it must be kept in floating point"
        )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
