"""When a step goes wrong: keep what is needed to find out why, and say what to change. Knows examples and settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dicast.errors import DicastError
from dicast.training.config import Config
from dicast.training.data import Example, example_row
from dicast.training.state import save_atomically, write_text_atomically
from dicast.training.weights import Weights


class OutOfMemoryError(DicastError):
    """The device has too little memory for this step."""


def save_bad_batch(folder: Path, step: int, rank: int, examples: Sequence[Example], weights: Weights) -> Path:
    """Write the examples of a step and the weights before it; returns the folder.

    The examples are JSON lines that can be trained on again. Weights that do not fit on the disk are left out.
    """
    place = folder / f"bad-step-{step:08d}-rank-{rank}"
    rows = [json.dumps(example_row(example), ensure_ascii=False, default=str) for example in examples]
    write_text_atomically("".join(row + "\n" for row in rows), place / "batch.jsonl")
    try:
        save_atomically(weights.plain_state(), place / "weights.pt")
    except OSError as error:
        write_text_atomically(f"weights not written: {error}\n", place / "weights.txt")
    return place


def explain_memory(error: Exception, config: Config, records: int) -> OutOfMemoryError:
    """An error that names the settings that matter, those that help most first."""
    advice = [f"batch.tokens (now {config.batch.tokens}; this micro-batch held {records} records)"]
    if not config.model.gradient_checkpointing:
        advice.append("model.gradient_checkpointing = true")
    if config.run.autocast == "none" and config.model.dtype == "float32":
        advice.append('model.dtype = "bfloat16" for a frozen backbone, or run.autocast = "bfloat16"')
    if config.model.train == "all":
        advice.append('model.train = "lora" or "head"')
    if config.model.train == "lora":
        advice.append(f'lora.rank (now {config.lora.rank}), lora.last_layers, or model.train = "qlora"')
    advice.append('model.max_length for long records, or more processes with distributed.strategy = "fsdp2"')
    first = str(error).splitlines()[0] if str(error) else "out of memory"
    return OutOfMemoryError(f"{first}. What to change, most helpful first: " + "; ".join(advice))
