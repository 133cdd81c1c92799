"""Clef on torch: a Qwen3.5 backbone and the joint schema head behind the `Model` protocol.

The way through: encodings -> padded batch -> backbone -> head -> one float32 array per question. Knows nothing of
queues, caches of states (see :mod:`dicast.engine`) or probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dicast.batching import Batch, SpanTable, collate, split_options
from dicast.encoding import ClefEncoder, ClefEncoding
from dicast.errors import CapabilityError
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Logits, ModelInfo
from dicast.models.head import AttentionForm, HeadInputs, JointSchemaHead
from dicast.models.qwen import QwenBackbone
from dicast.records import Record


class ClefNetwork(nn.Module):
    """Backbone and head: a padded batch to padded logits.

    Args:
        backbone: gives hidden states and lexical rows.
        head: in float32 by default, whatever the backbone's dtype.
    """

    def __init__(self, backbone: QwenBackbone, head: JointSchemaHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, batch: Batch, form: AttentionForm = "auto") -> Tensor:
        """Logits ``[B, O]`` of a batch; padded options carry no meaning."""
        logits: Tensor = self.head(self.head_inputs(batch, self.backbone(batch)), form)
        return logits

    def head_inputs(self, batch: Batch, hidden: Tensor) -> HeadInputs:
        """Pool the spans of hidden states ``[B, L, H]`` for the head."""
        normed, memory = self.head.read(hidden)
        device = normed.device
        return HeadInputs(
            memory=memory,
            memory_mask=_to(batch.mask, device),
            question=span_means(normed, batch.questions),
            question_mask=_to(batch.question_mask, device),
            types=_to(batch.types, device),
            option=span_means(normed, batch.options),
            lexical=self._lexical_means(batch, device),
            option_mask=_to(batch.option_mask, device),
            owner=_to(batch.owner, device),
            summary=normed[torch.arange(len(normed), device=device), _to(batch.last, device)],
        )

    def _lexical_means(self, batch: Batch, device: torch.device) -> Tensor:
        distinct, places = np.unique(batch.option_ids, return_inverse=True)
        rows = self.backbone.lexical_rows(torch.from_numpy(distinct)).to(device, self.head.dtype)
        table = SpanTable(places.astype(np.int64), batch.options.offsets)
        return bag_means(rows, table).view(*batch.owner.shape, -1)


def span_means(rows: Tensor, spans: SpanTable) -> Tensor:
    """Mean over each span of ``rows [B, L, C]``: ``[B, slots, C]``; zero where a slot is padding."""
    return bag_means(rows.reshape(-1, rows.shape[-1]), spans).view(rows.shape[0], -1, rows.shape[-1])


def bag_means(rows: Tensor, spans: SpanTable) -> Tensor:
    """Mean of ``rows [R, C]`` over each bag: ``[bags, C]``; zero for an empty bag."""
    return F.embedding_bag(
        _to(spans.rows, rows.device), rows, _to(spans.offsets, rows.device), mode="mean", include_last_offset=True
    )


def _to(array: Any, device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)


class ClefModel:
    """A Clef checkpoint in memory. Safe to share between threads: nothing is changed after loading.

    Args:
        network: backbone and head, in evaluation mode.
        encoder: the checkpoint's encoder.
        info: what the model is.
        pad_id: token id that fills padding.
        folder: where the checkpoint lies, for saving.
    """

    def __init__(
        self, network: ClefNetwork, encoder: ClefEncoder, info: ModelInfo, *, pad_id: int, folder: Path | None = None
    ) -> None:
        self.network = network
        self.encoder = encoder
        self.info = info
        self.pad_id = pad_id
        self.folder = folder

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> ClefEncoding:
        """Token ids and spans of a record; see :class:`dicast.encoding.ClefEncoder`.

        Raises:
            TokenBudgetError: the record does not fit.
            CapabilityError: the record shows media and the vision tower is not loaded.
        """
        for kind, present, able in (
            ("images", record.images, self.info.images),
            ("videos", record.videos, self.info.videos),
        ):
            if present and not able:
                raise CapabilityError(
                    f"{self.info.name} was loaded without its vision tower and can't read {kind}; "
                    "load it with vision=True",
                    field=kind,
                )
        return self.encoder.encode(record, options)

    @torch.inference_mode()
    def score(self, encodings: Sequence[ClefEncoding]) -> list[Logits]:
        """Logits of encodings, computed in one batch."""
        if not encodings:
            return []
        logits = self.network(self.collate(encodings)).cpu().numpy()
        return [split_options(row, e.questions) for row, e in zip(logits, encodings, strict=True)]

    def collate(self, encodings: Sequence[ClefEncoding], starts: Sequence[int] | None = None) -> Batch:
        """Pad encodings to one batch."""
        return collate(encodings, pad_id=self.pad_id, starts=starts)
