"""`dicast bench`: latency, throughput and memory of one model on this machine, or its drift from float32.

States are made of common words, so the numbers do not depend on anybody's data; with `--requests` the drift is measured
on one's own. Side-by-side measurements against other implementations are a matter of `make bench`.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dicast.cli.options import DeviceOption, DtypeOption, ModelOption, read_bytes, write_json
from dicast.errors import ConfigError

if TYPE_CHECKING:
    from dicast.model import DecisionModel
    from dicast.records import Record

TEXT = (
    "the customer said that order invoice refund payment server error late broken account password login price plan "
    "and our team will check it again today because nothing works since monday please help"
)
WORDS = TEXT.split()
QUESTIONS: dict[str, Any] = {
    "urgent": {"type": "noul", "instructions": "Is this urgent?"},
    "team": {
        "type": "choice",
        "instructions": "Which team should handle it?",
        "criteria": {"billing": "Payments and refunds", "technical": "Outages and errors", "sales": "Plans"},
    },
    "mood": {"type": "score", "instructions": "How upset is the customer?", "criteria": ["calm", "annoyed", "furious"]},
}
DRIFT_RECORDS = 40


def bench(
    model: ModelOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    quantize: Annotated[str | None, typer.Option("--quantize", help="int8 or int4 weights (Clef models).")] = None,
    words: Annotated[str, typer.Option("--words", help="Lengths of the states, in words.")] = "32,128,512",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Measurements of each length.")] = 10,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Records of the throughput measurement.")] = 32,
    drift: Annotated[bool, typer.Option("--drift", help="Compare the answers to those in float32 instead.")] = False,
    requests: Annotated[
        str | None, typer.Option("--requests", metavar="FILE|-", help="Requests for --drift, one JSON object per line.")
    ] = None,
    as_json: Annotated[
        bool | None, typer.Option("--json/--table", help="JSON or a table.", show_default="a table on a terminal")
    ] = None,
) -> None:
    """Measure speed and memory on this machine, or with --drift what a dtype or quantisation does to the answers."""
    from dicast.model import load

    lengths = _lengths(words)
    if requests is not None and not drift:
        raise ConfigError("--requests belongs to --drift", field="--requests", seen=requests)
    options: dict[str, Any] = {"quantize": quantize} if quantize else {}
    if drift:
        records = _read(requests) if requests else _made(DRIFT_RECORDS)
        facts = measure_drift(model, records, device=device, dtype=dtype, **options)
    else:
        began = time.perf_counter()
        loaded = load(model, device=device, dtype=dtype, **options)
        facts = {"load_seconds": time.perf_counter() - began} | measure(loaded, lengths, rounds, batch)
    if as_json if as_json is not None else not sys.stdout.isatty():
        write_json(facts)
    else:
        print("\n".join(_table(facts)))


def measure(loaded: DecisionModel, lengths: Sequence[int], rounds: int, batch: int) -> dict[str, Any]:
    """Latency by length of the state, throughput and peak memory.

    Args:
        loaded: the model.
        lengths: words of the states.
        rounds: measurements of each length; every one has a state that no cache knows.
        batch: records of the throughput measurement.
    """
    latencies = [_latency(loaded, length, rounds) for length in lengths]
    records = _made(batch)
    began = time.perf_counter()
    decisions = loaded.decide_batch(records)
    seconds = time.perf_counter() - began
    tokens = sum(decision.usage.input_tokens for decision in decisions)
    return {
        "model": loaded.info.name,
        "runtime": loaded.info.runtime,
        "dtype": loaded.info.dtype,
        "device": loaded.info.device,
        **{name: value for name, value in loaded.info.details.items() if isinstance(value, str | int | float)},
        "latency": latencies,
        "batch": {"records": batch, "records_per_second": batch / seconds, "tokens_per_second": tokens / seconds},
        "peak_memory_bytes": peak_memory(loaded.info.device),
    }


def measure_drift(
    model: str | None, records: Sequence[Record], *, device: str, dtype: str, **options: Any
) -> dict[str, Any]:
    """Answers of a form of a model against its float32 form.

    Raises:
        ConfigError: the form asked for is float32 itself.
    """
    from dicast.engine.drift import drift
    from dicast.model import load

    loaded = load(model, device=device, dtype=dtype, **options)
    form = {"dtype": loaded.info.dtype} | options
    if form == {"dtype": "float32"}:
        raise ConfigError("this model runs in float32 already; ask for another --dtype or --quantize", field="--dtype")
    decisions = loaded.decide_batch(records)
    del loaded  # two forms of a large model need not fit together
    exact = load(model, device=device, dtype="float32").decide_batch(records)
    return {"form": form, "records": len(records), **asdict(drift(exact, decisions))}


def peak_memory(device: str) -> int:
    """Most bytes that this process has held: of GPU memory for a CUDA model, else of main memory."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _latency(loaded: DecisionModel, words: int, rounds: int) -> dict[str, Any]:
    loaded.decide(_state(words, -1), QUESTIONS)
    seconds = []
    tokens = 0
    for number in range(rounds):
        began = time.perf_counter()
        tokens = loaded.decide(_state(words, number), QUESTIONS).usage.input_tokens
        seconds.append(time.perf_counter() - began)
    return {
        "words": words,
        "tokens": tokens,
        "p50_ms": 1000 * statistics.median(seconds),
        "p95_ms": 1000 * sorted(seconds)[min(len(seconds) - 1, int(0.95 * len(seconds)))],
    }


def _state(words: int, seed: int) -> str:
    rng = random.Random(f"{words} {seed}")
    return " ".join(rng.choice(WORDS) for _ in range(words))


def _made(count: int) -> list[Record]:
    from dicast.records import Record, as_questions

    questions = as_questions(QUESTIONS)
    return [Record(_state(8 + 4 * (number % 32), 1000 + number), questions) for number in range(count)]


def _read(path: str) -> list[Record]:
    from dicast.wire.systemone import parse_request

    lines = [line for line in read_bytes(path).splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"{path} holds no requests", field="--requests", seen=path)
    return [parse_request(line).record for line in lines]


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1:
        raise ConfigError(
            f"--words must be numbers with commas, such as 32,128, not {text!r}", field="--words", seen=text
        )
    return lengths


def _table(facts: Mapping[str, Any]) -> Iterator[str]:
    for name, value in facts.items():
        if name == "latency":
            yield f"{'words':>8} {'tokens':>8} {'p50 ms':>10} {'p95 ms':>10}"
            for item in value:
                yield f"{item['words']:8} {item['tokens']:8} {item['p50_ms']:10.2f} {item['p95_ms']:10.2f}"
        elif isinstance(value, Mapping):
            yield f"{_words(name)}: " + ", ".join(f"{_words(key)} {_shown(item)}" for key, item in value.items())
        else:
            yield f"{_words(name)}: {_shown(value)}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
