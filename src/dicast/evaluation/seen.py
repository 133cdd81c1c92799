"""What a model was trained on: names of data sets and hashes of files, read from the files that training leaves behind.

A number on a data set means little without knowing whether the model has read that set's train part. Knows no models.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from dicast.errors import ConfigError
from dicast.evaluation.data import DataFile
from dicast.training.data import data_hash

Flag = Literal["seen", "zero-shot", "unknown"]
SHA256 = re.compile(r"[0-9a-f]{64}")
RECORDS_OF_TRAINING = ("summary.json", "training.json", "manifest.json", "dicast.json")
"""Files beside a checkpoint that may say what it was trained on."""
LARGE_FILE = 1 << 26


def trained_on(manifest: Path) -> frozenset[str]:
    """Names of the data sets in a training manifest: ``{"sources": [{"source": "real_clinc150"}, ...]}`` or a map.

    Raises:
        ConfigError: the file has no sources.
    """
    try:
        sources = json.loads(manifest.read_text(encoding="utf-8"))["sources"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{manifest} is not a training manifest with sources ({error})", field="manifest") from None
    names = [entry["source"] if isinstance(entry, dict) else str(entry) for entry in sources]
    return frozenset(name.removeprefix("real_") for name in names)


def known_sets(checkpoint: Path) -> frozenset[str] | None:
    """Names of the data sets that the training records beside a checkpoint list; None when none does."""
    for folder in (checkpoint, checkpoint.parent):
        for name in RECORDS_OF_TRAINING:
            path = folder / name
            if path.is_file() and '"sources"' in path.read_text(encoding="utf-8", errors="replace"):
                return trained_on(path)
    return None


def flag(name: str, known: frozenset[str] | None) -> Flag:
    """Whether the model has read the train part of a data set."""
    if known is None:
        return "unknown"
    return "seen" if name in known else "zero-shot"


def training_hashes(checkpoint: Path) -> frozenset[str]:
    """Every SHA-256 that the training records beside a checkpoint mention."""
    found: set[str] = set()
    for folder in (checkpoint, checkpoint.parent):
        for name in RECORDS_OF_TRAINING:
            path = folder / name
            if path.is_file():
                found.update(SHA256.findall(path.read_text(encoding="utf-8", errors="replace")))
    return frozenset(found)


def fingerprint(checkpoint: Path) -> str:
    """16 digits that change when a checkpoint's files do, so that answers of other weights are not taken for its own.

    Files above 64 MiB count by size and time of change, smaller ones by content.
    """
    digest = hashlib.sha256()
    for path in sorted(checkpoint.iterdir()):
        if path.is_file():
            facts = path.stat()
            large = facts.st_size > LARGE_FILE
            mark = str((facts.st_size, facts.st_mtime_ns)) if large else data_hash(path)
            digest.update(f"{path.name} {mark}\n".encode())
    return digest.hexdigest()[:16]


def refuse_training_files(files: Iterable[DataFile], checkpoint: Path) -> None:
    """Refuse to calibrate on files that the checkpoint was trained on.

    Raises:
        ConfigError: names the file.
    """
    known = training_hashes(checkpoint)
    for file in files:
        if data_hash(file.path) in known:
            raise ConfigError(
                "the model was trained on this file; calibrate on data that it has not seen",
                field="data",
                seen=file.path,
            )
