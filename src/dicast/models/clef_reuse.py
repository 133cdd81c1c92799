"""State reuse for Clef: header, media and state are read once and continued by every record that begins with them.

The backbone is causal, so what stands before the schema does not depend on the questions. A snapshot holds what the
decoder carries on (see :mod:`dicast.models.qwen_cache`) and, for the head, the projected memory rows of the prefix: the
head needs nothing else of tokens before the schema. Prefixes are read in chunks that end at multiples of `chunk`
tokens, with a snapshot at every end; so memory is bounded, and a state that grew reuses its beginning.

Which records are read this way: those that share their prefix with another record of the same call, and any record that
is scored alone. Distinct short states in bulk are read in padded batches, without snapshots; but for the header, which
is the same in all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dicast.batching import Batch, collate
from dicast.encoding import ClefEncoding
from dicast.engine.batches import BatchLimits, form_batches
from dicast.engine.prefixes import Node, PrefixTree
from dicast.models.qwen import QwenBackbone
from dicast.models.qwen_cache import LayerState, capture, restore

HEADER = "header"
"""Root of the prefix tree for headers that are read alone; no media has such a key."""
COPY_FACTOR = 16
"""How many prefix tokens may be copied for each token that a batch may compute: copying is that much cheaper."""


@dataclass(frozen=True, slots=True)
class ReuseOptions:
    """How states are reused.

    Attributes:
        bytes: most bytes of snapshots that are kept; 0 keeps none, and then a state is shared only within one call.
        chunk: tokens that are read at once, and distance of the snapshots.
        least: prefixes with fewer tokens are not worth a pass of their own.
        longest: records with more tokens are always read in chunks.
        header: whether short records of different states continue a snapshot of their common header. That saves its
            tokens and costs a copy of the decoder's states for every record.
    """

    bytes: int = 2**30
    chunk: int = 1024
    least: int = 256
    longest: int = 8192
    header: bool = True


CPU_REUSE = ReuseOptions()
ACCELERATOR_REUSE = ReuseOptions(bytes=4 * 2**30, chunk=2048, least=768, longest=16_384, header=False)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one chunk of a prefix leaves behind.

    Attributes:
        layers: the decoder's states.
        memory: ``[n, W]`` memory rows of the chunk's tokens.
    """

    layers: tuple[LayerState, ...]
    memory: Tensor

    @property
    def bytes(self) -> int:
        """Bytes that this snapshot owns."""
        return self.memory.numel() * self.memory.element_size() + sum(layer.bytes for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Shared:
    """What records have in common.

    Attributes:
        root: under which root of the prefix tree it is kept.
        length: its tokens.
    """

    root: str
    length: int


def reuse_for(device: str, size: int | None = None) -> ReuseOptions:
    """Options that suit a device.

    Args:
        device: name of a torch device.
        size: most bytes of snapshots that are kept; None chooses 1 GiB on a CPU, 4 GiB elsewhere.
    """
    options = CPU_REUSE if device.startswith("cpu") else ACCELERATOR_REUSE
    return options if size is None else replace(options, bytes=size)


class StateReuse:
    """Reads prefixes once. Safe to share between threads.

    Args:
        network: backbone and head (:class:`dicast.models.clef.ClefNetwork`).
        options: see :class:`ReuseOptions`.
    """

    def __init__(self, network: Any, options: ReuseOptions) -> None:
        self.network = network
        self.options = options
        self.tree: PrefixTree[Snapshot] = PrefixTree(options.bytes)

    def plan(self, encodings: Sequence[ClefEncoding], limits: BatchLimits) -> list[list[int]]:
        """Batches of indices: records that share a prefix together, the others by length."""
        groups: defaultdict[tuple[str, bytes], list[int]] = defaultdict(list)
        for index, encoding in enumerate(encodings):
            groups[prefix_key(encoding)].append(index)
        batches, rest = [], []
        for group in groups.values():
            if self._is_shared([encodings[index] for index in group], alone=len(encodings) == 1):
                batches += self._split(group, encodings, limits)
            else:
                rest += group
        lengths = [encodings[index].length for index in rest]
        return batches + [[rest[i] for i in batch] for batch in form_batches(lengths, limits)]

    def shared(self, encodings: Sequence[ClefEncoding]) -> Shared | None:
        """What these records, one batch, have in common that is worth reading once."""
        first = encodings[0]
        if len({prefix_key(encoding) for encoding in encodings}) == 1 and self._is_shared(encodings, alone=True):
            return Shared(root_of(first), first.prefix_length)
        return self._header(encodings)

    def logits(self, encodings: Sequence[ClefEncoding], shared: Shared, pad_id: int) -> tuple[Tensor, list[int]]:
        """Padded logits ``[B, O]`` of records that begin alike, and how many tokens of each were not read again."""
        first, length = encodings[0], shared.length
        node = self.tree.find(shared.root, first.ids, length)
        known = node.end
        node = self._read(first, node, length, pad_id)
        snapshots = node.payloads()
        cache = restore(self._config, [snapshot.layers for snapshot in snapshots], len(encodings))
        batch = collate(encodings, pad_id=pad_id, starts=[length] * len(encodings))
        hidden = torch.cat([rows for _, rows in self._walk(batch, cache)], dim=1)
        memory = torch.cat([snapshot.memory for snapshot in snapshots])
        logits: Tensor = self.network.head(self.network.head_inputs(batch, hidden, memory))
        return logits, [known] + [length] * (len(encodings) - 1)

    @property
    def _config(self) -> Any:
        backbone: QwenBackbone = self.network.backbone
        return backbone.text.config

    def _is_shared(self, encodings: Sequence[ClefEncoding], *, alone: bool) -> bool:
        first = encodings[0]
        if first.prefix_length < self.options.least:
            return False
        if len(encodings) > 1 or first.length > self.options.longest or (alone and self.options.bytes > 0):
            return True
        known = self.tree.find(root_of(first), first.ids, first.prefix_length)
        return known.end >= self.options.least

    def _header(self, encodings: Sequence[ClefEncoding]) -> Shared | None:
        length = encodings[0].media_offset
        worth = self.options.header and (len(encodings) > 1 or self.options.bytes > 0)
        short = all(encoding.length <= self.options.chunk and encoding.media is None for encoding in encodings)
        if not (worth and short and length) or len({encoding.ids[:length].tobytes() for encoding in encodings}) > 1:
            return None
        return Shared(HEADER, length)

    def _split(self, group: list[int], encodings: Sequence[ClefEncoding], limits: BatchLimits) -> list[list[int]]:
        """Batches of records that continue one prefix: only what follows it is computed, but the prefix is copied."""
        prefix = encodings[group[0]].prefix_length
        records = max(1, min(limits.records, COPY_FACTOR * limits.tokens // prefix))
        bounds = BatchLimits(limits.tokens, records, limits.padding)
        return [
            [group[i] for i in batch]
            for batch in form_batches([encodings[index].length - prefix for index in group], bounds)
        ]

    def _read(self, encoding: ClefEncoding, node: Node[Snapshot], end: int, pad_id: int) -> Node[Snapshot]:
        """The snapshot behind the first `end` tokens, reading what follows `node`."""
        start = node.end
        if start == end:
            return node
        batch = collate([encoding], pad_id=pad_id, starts=[start])
        cache = restore(self._config, [snapshot.layers for snapshot in node.payloads()])
        for place, hidden in self._walk(batch, cache, until=end):
            _, memory = self.network.head.read(hidden[0])
            tokens = encoding.ids[node.end : place]
            node = self.tree.add(node, tokens, Snapshot(capture(cache, node.end, place), memory))
        return node

    def _walk(self, batch: Batch, cache: Any, until: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Read the rows of a batch chunk by chunk: (position behind the chunk, its hidden states ``[B, n, H]``)."""
        backbone: QwenBackbone = self.network.backbone
        start = int(batch.starts[0])
        end = start + batch.ids.shape[1] if until is None else until
        ids = torch.from_numpy(batch.ids).to(backbone.device)
        embeddings = backbone.embed(ids, batch) if batch.media else None
        positions = backbone.positions(batch) if batch.media else torch.arange(start, end, device=ids.device)[None]
        padded = not batch.mask.all() and until is None
        mask = torch.from_numpy(np.pad(batch.mask, ((0, 0), (start, 0)), constant_values=True)).long().to(ids.device)
        for low, high in _chunks(start, end, self.options.chunk):
            part = slice(low - start, high - start)
            place = positions[..., part]
            yield (
                high,
                backbone.decode(
                    mask[:, :high] if padded else None,
                    ids=ids[:, part] if embeddings is None else None,
                    embeddings=None if embeddings is None else embeddings[:, part],
                    positions=place.expand(len(ids), -1) if embeddings is None else place,
                    cache=cache,
                ),
            )


def prefix_key(encoding: ClefEncoding) -> tuple[str, bytes]:
    """What two records must share to continue one snapshot: media with processor options, and prefix tokens."""
    return root_of(encoding), encoding.ids[: encoding.prefix_length].tobytes()


def root_of(encoding: ClefEncoding) -> str:
    """Root of the prefix tree: token ids say everything about text, but only where media stand."""
    return encoding.media.key if encoding.media else ""


def _chunks(start: int, end: int, chunk: int) -> Iterator[tuple[int, int]]:
    while start < end:
        stop = min(end, (start // chunk + 1) * chunk)
        yield start, stop
        start = stop
