"""Fine-tuning without a configuration file: a table of texts and labels, sensible settings. Knows settings only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dicast.checkpoints import kind_of, resolve
from dicast.training.config import Config, config_from

SEGMENTS: dict[str, dict[str, Any]] = {
    "model": {"family": "segments", "train": "all", "head_dropout": 0.1},
    "batch": {"tokens": 30_000, "records": 16},
    "optimizer": {"lr": 5e-5, "head_lr": 2e-4},
    "augment": {"option_subset": 0.3},
}
CLEF: dict[str, dict[str, Any]] = {
    "model": {"family": "clef", "train": "lora", "dtype": "bfloat16", "gradient_checkpointing": True},
    "lora": {"rank": 32},
    "batch": {"tokens": 8192, "records": 16, "micro_batches": 2},
    "optimizer": {"lr": 1e-4, "head_lr": 1e-4},
}
DEV_SHARE = 0.1


def quick_config(
    data: str,
    *,
    start: str = "",
    folder: str = "runs/quick",
    dev: str = "",
    text: str = "text",
    label: str = "label",
    instructions: str = "",
    epochs: float = 4.0,
) -> Config:
    """Settings for fine-tuning a model on one file.

    Args:
        data: CSV table, JSON lines or Parquet.
        start: model to start from; empty: the embedded one.
        folder: folder of the run.
        dev: file of dev examples; empty holds out a tenth of the training families.
        text, label: columns of a CSV table.
        instructions: what the question of a CSV table asks.
        epochs: passes over the data.

    Raises:
        ModelNotFoundError, CheckpointError: no such model.
    """
    place, _, _ = resolve(start or None)
    plain = {name: dict(table) for name, table in (SEGMENTS if kind_of(place) == "segments" else CLEF).items()}
    columns = {"text": text, "label": label} | ({"instructions": instructions} if instructions else {})
    table = {"columns": columns} if ".csv" in Path(data).suffixes else {}
    measured = {"columns": columns | {"labels_file": data}} if table and ".csv" in Path(dev).suffixes else {}
    plain["model"]["start"] = start
    plain["run"] = {"name": Path(folder).name, "folder": folder}
    plain["data"] = {"train": [{"path": data} | table], "group_by": "source"}
    plain["data"] |= {"dev": [{"path": dev} | measured]} if dev else {"dev_share": DEV_SHARE}
    plain["schedule"] = {"epochs": epochs}
    plain["dev"] = {"metric": "loss", "every_steps": 50}
    return config_from(plain)
