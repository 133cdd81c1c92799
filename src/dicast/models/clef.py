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
from dicast.engine.batches import BatchLimits, form_batches
from dicast.errors import CapabilityError
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Logits, ModelInfo, Scored
from dicast.models.clef_reuse import ReuseOptions, StateReuse
from dicast.models.graphs import ShortRecords
from dicast.models.head import AttentionForm, HeadInputs, JointSchemaHead
from dicast.models.qwen import QwenBackbone
from dicast.records import Record


class ClefNetwork(nn.Module):
    """Backbone and head: a padded batch to padded logits.

    Args:
        backbone: gives hidden states and lexical rows.
        head: in float32 by default, whatever the backbone's dtype.

    Set `short` to read single short text records through CUDA graphs.
    """

    def __init__(self, backbone: QwenBackbone, head: JointSchemaHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.short: ShortRecords | None = None

    def forward(self, batch: Batch, form: AttentionForm = "auto") -> Tensor:
        """Logits ``[B, O]`` of a batch; padded options carry no meaning."""
        logits: Tensor = self.head(self.head_inputs(batch, self._hidden(batch)), form)
        return logits

    def _hidden(self, batch: Batch) -> Tensor:
        if self.short and not batch.media and self.short.fits(*batch.ids.shape):
            return self.short.hidden(_to(batch.ids, self.backbone.device))
        hidden: Tensor = self.backbone(batch)
        return hidden

    def head_inputs(self, batch: Batch, hidden: Tensor, prefix: Tensor | None = None) -> HeadInputs:
        """Pool the spans of hidden states ``[B, L, H]`` for the head.

        Args:
            batch: where the spans lie.
            hidden: final hidden states of the batch's rows.
            prefix: ``[P, W]`` memory rows of a prefix that every record continues.
        """
        normed, memory = self.head.read(hidden)
        device = normed.device
        mask = _to(batch.mask, device)
        if prefix is not None:
            memory = torch.cat((prefix.expand(len(memory), -1, -1), memory), dim=1)
            mask = F.pad(mask, (len(prefix), 0), value=True)
        return HeadInputs(
            memory=memory,
            memory_mask=mask,
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
        reuse: how states are reused between records; None never does. Leave it off while weights change.
    """

    def __init__(
        self,
        network: ClefNetwork,
        encoder: ClefEncoder,
        info: ModelInfo,
        *,
        pad_id: int,
        folder: Path | None = None,
        reuse: ReuseOptions | None = None,
    ) -> None:
        self.network = network
        self.encoder = encoder
        self.info = info
        self.pad_id = pad_id
        self.folder = folder
        self.reuse = StateReuse(network, reuse) if reuse else None

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
        """Logits of encodings, computed in one batch, with nothing reused."""
        if not encodings:
            return []
        return _split(self.network(self.collate(encodings)), encodings)

    def plan(self, encodings: Sequence[ClefEncoding], limits: BatchLimits) -> list[list[int]]:
        """Batches of indices into `encodings`."""
        if self.reuse:
            return self.reuse.plan(encodings, limits)
        return form_batches([encoding.length for encoding in encodings], limits)

    @torch.inference_mode()
    def score_reusing(self, encodings: Sequence[ClefEncoding]) -> list[Scored]:
        """Logits of encodings, computed in one batch, continuing a snapshot where they share a prefix."""
        shared = self.reuse.shared(encodings) if self.reuse and encodings else None
        if not (self.reuse and shared):
            return [Scored(logits) for logits in self.score(encodings)]
        logits, cached = self.reuse.logits(encodings, shared, self.pad_id)
        return [Scored(*pair) for pair in zip(_split(logits, encodings), cached, strict=True)]

    def collate(self, encodings: Sequence[ClefEncoding], starts: Sequence[int] | None = None) -> Batch:
        """Pad encodings to one batch."""
        return collate(encodings, pad_id=self.pad_id, starts=starts)


def _split(logits: Tensor, encodings: Sequence[ClefEncoding]) -> list[Logits]:
    """Padded logits ``[B, O]`` as arrays per record and question."""
    rows = logits.cpu().numpy()
    return [split_options(row, e.questions) for row, e in zip(rows, encodings, strict=True)]
