"""Clef-Flash's exact shape on one GPU, with random weights: `python -m benchmarks.gpu`. Needs no download.

    --shape flash|tiny     tiny is for trying the script on a CPU
    --device cuda|cpu
    --seconds 420          stop measuring after that long
    --compiled             also compile the decoder layers (adds minutes)
    --out FILE             JSON (default: benchmarks/results/gpu.json)

First the answers are checked on a small shape in float32: batched, padded, reused and chunked against one record at a
time, and the head against the loops of `benchmarks.loop_head`. Then come p50 and p95 at 346, 1k, 4k and 16k tokens with
three questions, throughput in batches of 1, 8 and 32, a cold against a known state, and peak memory, each beside its
limit:

    compute   2 x decoder parameters x tokens / peak FLOP/s
    memory    bytes of the decoder's weights / bandwidth

The time to beat is the larger of both. Peak rates are the makers' for dense bfloat16.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.checkpoints import TINY, Shape, text_config
from benchmarks.loop_head import loop_logits
from dicast.encoding import ClefEncoding, QuestionSpans
from dicast.models.base import Logits, ModelInfo
from dicast.models.clef import ClefModel, ClefNetwork
from dicast.models.clef_reuse import reuse_for
from dicast.models.devices import kernels
from dicast.models.graphs import ShortRecords
from dicast.models.head import JointSchemaHead
from dicast.models.qwen import QwenBackbone

FLASH = Shape(
    hidden=4096,
    layers=32,
    intermediate=12288,
    attention=(16, 4, 256),
    delta=(32, 16, 128),
    width=1024,
    head_heads=16,
    vocabulary=248320,
)
PEAKS = {
    # part of the device's name: (dense bfloat16 FLOP/s, bytes/s)
    "H200": (989e12, 4.8e12),
    "H100": (989e12, 3.35e12),
    "B200": (2250e12, 8.0e12),
    "A100": (312e12, 2.0e12),
}
LENGTHS = {"flash": (346, 1024, 4096, 16384), "tiny": (346, 512)}
BATCHES = {"flash": ((346, 8), (346, 32), (1024, 8), (1024, 32), (4096, 8)), "tiny": ((346, 4),)}
LONG_STATE = {"flash": 16384, "tiny": 512}
SCHEMA = 298
"""Tokens behind the state: three questions as in the release's own example, which has 346 in all."""
TOLERANCE = 2e-3
"""Largest logit difference on the small shape in float32: kernels add up in another order on each path."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What the device could do at best."""

    flops: float | None
    bandwidth: float | None
    parameters: int
    weight_bytes: int

    def milliseconds(self, tokens: int) -> float | None:
        """Least time for so many tokens."""
        if self.flops is None or self.bandwidth is None:
            return None
        return 1000 * max(2 * self.parameters * tokens / self.flops, self.weight_bytes / self.bandwidth)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=("flash", "tiny"), default="flash")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=420)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    until = time.monotonic() + asked.seconds
    device = torch.device(asked.device)
    result: dict[str, Any] = {"device": device_name(device), "torch": torch.__version__, "check": check(device)}
    print(f"check on a small shape in float32: {result['check']}", flush=True)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = build(FLASH if asked.shape == "flash" else TINY, device, dtype)
    limit = limit_of(model, device)
    result |= {"kernels": dict(model.info.details), "parameters": limit.parameters, "shape": asked.shape, "rows": []}
    for row in measure(model, asked.shape, asked.rounds, limit, until, compiled=asked.compiled):
        result["rows"].append(row)
        print(json.dumps(row), flush=True)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if result["check"]["passed"] else 1


def build(shape: Shape, device: torch.device, dtype: torch.dtype) -> ClefModel:
    """A model with random weights, made on the device; its head is float32, as ever."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    config = Qwen3_5TextConfig(**text_config(shape))
    with torch.device(device):
        inner = Qwen3_5ForCausalLM._from_config(config, dtype=dtype, attn_implementation="sdpa")
        head = JointSchemaHead(
            hidden_size=shape.hidden,
            width=shape.width,
            routing_layers=shape.routing_layers,
            layers=shape.field_layers,
            heads=shape.head_heads,
            feedforward=4 * shape.width,
        )
    backbone = QwenBackbone(inner.eval().requires_grad_(False))
    details = kernels(device, config._attn_implementation, own_delta=backbone.own_delta)
    info = ModelInfo("random", "clef", "torch", {}, str(dtype), str(device), 65536, details=details)
    network = ClefNetwork(backbone, head.eval().requires_grad_(False))
    return ClefModel(network, None, info, pad_id=0, reuse=reuse_for(str(device)))  # type: ignore[arg-type]


def record(tokens: int, seed: int, vocabulary: int, prefix_seed: int | None = None) -> ClefEncoding:
    """A record of so many tokens: a random state and three questions with 2, 3 and 4 options."""
    rng = np.random.default_rng(seed)
    prefix = tokens - SCHEMA
    state = np.random.default_rng(seed if prefix_seed is None else prefix_seed).integers(0, vocabulary, prefix)
    ids = np.concatenate((state, rng.integers(0, vocabulary, SCHEMA)))
    questions = []
    at = prefix + 12
    for name, kind, options in (("urgent", "noul", 2), ("team", "choice", 3), ("severity", "score", 4)):
        spans = [(at + 14 + 16 * i, at + 14 + 16 * i + 12) for i in range(options)]
        names = tuple(str(i) for i in range(options))
        questions.append(QuestionSpans(name, kind, names, (at, at + 8), tuple(spans)))  # type: ignore[arg-type]
        at = spans[-1][1] + 12
    return ClefEncoding(ids, tuple(questions), prefix, 0, prefix)


def check(device: torch.device) -> dict[str, Any]:
    """Every way of reading against one record at a time, and the head against loops, in float32."""
    model = build(TINY, device, torch.float32)
    records = [record(tokens, tokens, TINY.vocabulary) for tokens in (320, 346, 700)]
    alone = [model.score([item])[0] for item in records]
    assert model.reuse is not None
    model.reuse = type(model.reuse)(model.network, type(model.reuse.options)(chunk=100, least=1))
    cold = [model.score_reusing([item])[0].logits for item in records]
    warm = [model.score_reusing([item])[0] for item in records]
    ways = {
        "loops": [loop_head(model, item) for item in records],
        "batched": model.score(records),
        "chunked": cold,
        "reused": [item.logits for item in warm],
    }
    worst = {name: _difference(alone, way) for name, way in ways.items()}
    reused = all(item.cached_tokens == entry.prefix_length for item, entry in zip(warm, records, strict=True))
    return {"differences": worst, "tolerance": TOLERANCE, "passed": reused and max(worst.values()) <= TOLERANCE}


def _difference(some: Sequence[Logits], others: Sequence[Logits]) -> float:
    pairs = [pair for a, b in zip(some, others, strict=True) for pair in zip(a, b, strict=True)]
    return max(float(np.abs(a - b).max()) for a, b in pairs)


@torch.inference_mode()
def loop_head(model: ClefModel, item: ClefEncoding) -> list[np.ndarray[Any, Any]]:
    """Logits of a record by the loop head, on the same hidden states."""
    hidden = model.network.backbone(model.collate([item]))[0]
    ids = torch.from_numpy(item.ids).to(hidden.device)
    lexical = model.network.backbone.lexical_rows(ids)
    return [logits.cpu().numpy() for logits in loop_logits(model.network.head, hidden, lexical, item.questions)]


def measure(
    model: ClefModel, shape: str, rounds: int, limit: Limit, until: float, *, compiled: bool
) -> Iterator[dict[str, Any]]:
    """Rows of the result, as long as time lasts."""
    vocabulary = int(model.network.backbone.text.config.vocab_size)
    for tokens in LENGTHS[shape]:
        yield from _row(model, "eager", [record(tokens, tokens, vocabulary)], rounds, limit, until)
    if model.info.device.startswith("cuda"):
        model.network.short = ShortRecords(model.network.backbone)
        for tokens in LENGTHS[shape][:2]:
            yield from _row(model, "cuda graph", [record(tokens, tokens, vocabulary)], rounds, limit, until)
        model.network.short = None
    for tokens, count in BATCHES[shape]:
        batch = [record(tokens, number, vocabulary) for number in range(count)]
        yield from _row(model, "batch", batch, max(3, rounds // 4), limit, until)
    if time.monotonic() < until:
        yield _known_state(model, LONG_STATE[shape], vocabulary, limit)
    if compiled:
        for layer in model.network.backbone.text.layers:
            layer.compile(dynamic=True)
        yield from _row(model, "compiled", [record(346, 1, vocabulary)], rounds, limit, until)


def _row(
    model: ClefModel, way: str, batch: Sequence[ClefEncoding], rounds: int, limit: Limit, until: float
) -> Iterator[dict[str, Any]]:
    if time.monotonic() >= until:
        return
    _reset_memory(model)
    model.score(batch)
    taken = [_milliseconds(model, lambda: model.score(batch)) for _ in range(rounds)]
    tokens = sum(item.length for item in batch)
    median = statistics.median(taken)
    least = limit.milliseconds(tokens)
    yield {
        "way": way,
        "records": len(batch),
        "tokens_each": batch[0].length,
        "p50_ms": round(median, 3),
        "p95_ms": round(sorted(taken)[min(len(taken) - 1, int(0.95 * len(taken)))], 3),
        "limit_ms": None if least is None else round(least, 3),
        "tokens_per_second": round(1000 * tokens / median),
        "records_per_second": round(1000 * len(batch) / median, 2),
        "share_of_peak_flops": None
        if limit.flops is None
        else round(2 * limit.parameters * tokens / (median / 1000) / limit.flops, 3),
        "peak_memory_bytes": _peak_memory(model),
    }


def _known_state(model: ClefModel, tokens: int, vocabulary: int, limit: Limit) -> dict[str, Any]:
    """A long state read cold, and then asked other questions."""
    assert model.reuse is not None
    _reset_memory(model)
    first, *others = [record(tokens, number, vocabulary, prefix_seed=0) for number in range(6)]
    model.score_reusing([record(tokens, 99, vocabulary)])
    model.reuse.tree.clear()
    cold = _milliseconds(model, lambda: model.score_reusing([first]))
    known = [_milliseconds(model, lambda item=item: model.score_reusing([item])) for item in others]
    return {
        "way": "known state",
        "tokens_each": tokens,
        "cold_ms": round(cold, 3),
        "known_p50_ms": round(statistics.median(known), 3),
        "times_quicker": round(cold / statistics.median(known), 2),
        "cold_limit_ms": limit.milliseconds(tokens),
        "snapshot_bytes": model.reuse.tree.bytes,
        "peak_memory_bytes": _peak_memory(model),
    }


def limit_of(model: ClefModel, device: torch.device) -> Limit:
    """Limits of a device for a model; None where the device is not in the table."""
    text = model.network.backbone.text
    weights = [p for name, p in text.named_parameters() if not name.startswith("embed_tokens")]
    rates = next((peak for name, peak in PEAKS.items() if name in device_name(device)), (None, None))
    return Limit(*rates, sum(p.numel() for p in weights), sum(p.numel() * p.element_size() for p in weights))


def device_name(device: torch.device) -> str:
    """Name of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _milliseconds(model: ClefModel, call: Callable[[], Any]) -> float:
    """Time of a call; logits come back to the CPU in it, so nothing is left running."""
    began = time.perf_counter()
    call()
    if model.info.device.startswith("cuda"):
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began)


def _reset_memory(model: ClefModel) -> None:
    if model.info.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()


def _peak_memory(model: ClefModel) -> int | None:
    return torch.cuda.max_memory_allocated() if model.info.device.startswith("cuda") else None


if __name__ == "__main__":
    sys.exit(main())
