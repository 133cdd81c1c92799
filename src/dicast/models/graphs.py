"""CUDA graphs for single short text records, where launching kernels takes longer than running them.

One graph per bucket of lengths. A record is padded on the right to its bucket and read without a mask: the decoder is
causal, so what stands behind a token cannot reach it, and the head never sees the padded rows. Captured on first use;
weights must not move afterwards. Only CUDA has graphs; elsewhere a replay may be any function of padded ids, which is
how the padding is tested without one.

Shapes: N tokens of the record, L bucket, H hidden width.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Replay: TypeAlias = Callable[[Tensor], Tensor]
"""Padded ids ``[1, L]`` to hidden states ``[1, L, H]``; the result may be overwritten by the next call."""

BUCKETS = (128, 192, 256, 320, 384, 448, 512, 640, 768, 1024)
WARM_UP = 3
"""Runs before a capture, so that libraries choose their kernels and allocate their workspaces outside the graph."""


class ShortRecords:
    """Hidden states of single records up to the longest bucket. Safe to share between threads.

    Args:
        backbone: the backbone (:class:`dicast.models.qwen.QwenBackbone`).
        buckets: lengths, ascending.
        capture: makes the replay for a bucket.
    """

    def __init__(
        self,
        backbone: Any,
        buckets: Sequence[int] = BUCKETS,
        capture: Callable[[Any, int], Replay] | None = None,
    ) -> None:
        self.backbone = backbone
        self.buckets = tuple(buckets)
        self._capture = capture or capture_graph
        self._replays: dict[int, Replay] = {}
        self._lock = threading.Lock()

    def fits(self, records: int, tokens: int) -> bool:
        """Whether a batch of so many records, the longest with so many tokens, is read by a graph."""
        return records == 1 and tokens <= self.buckets[-1]

    def hidden(self, ids: Tensor) -> Tensor:
        """Hidden states ``[1, N, H]`` of one record's ids ``[1, N]``."""
        count = ids.shape[1]
        bucket = self.buckets[bisect_left(self.buckets, count)]
        with self._lock:
            if bucket not in self._replays:
                self._replays[bucket] = self._capture(self.backbone, bucket)
            return self._replays[bucket](F.pad(ids, (0, bucket - count)))[:, :count].clone()


def capture_graph(backbone: Any, bucket: int) -> Replay:
    """Capture the decoder over one bucket.

    Raises:
        RuntimeError: there is no CUDA device, or an operation can't be captured.
    """
    ids = torch.zeros(1, bucket, dtype=torch.long, device=backbone.device)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(WARM_UP):
            backbone.decode(None, ids=ids)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        hidden: Tensor = backbone.decode(None, ids=ids)

    def replay(padded: Tensor) -> Tensor:
        ids.copy_(padded)
        graph.replay()
        return hidden

    return replay
