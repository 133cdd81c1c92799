"""Checkpoints of a run: written whole or not at all, kept few, found again after a kill.

    <run>/checkpoints/step-00000200/state.pt      everything a resumption needs
    <run>/checkpoints/.tmp-...                    a write that did not finish; removed at the next start

A folder is renamed into place only after its files are on disk. A full disk costs the new one, never an old one.
Knows dictionaries of tensors; knows nothing of models or training.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from dicast.errors import CheckpointError

FORMAT = 1


def save_atomically(value: Any, path: Path) -> None:
    """`torch.save` to a file that is either the old one or the whole new one.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    try:
        with temporary.open("wb") as handle:
            torch.save(value, handle)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        # torch's zip writer reports a failed write as RuntimeError; for the caller it is a disk error all the same.
        raise error if isinstance(error, OSError) else OSError(f"writing {path.name} failed: {error}") from error


def write_text_atomically(text: str, path: Path) -> None:
    """Write a text file that is either the old one or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
    with temporary.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        folder: the run's folder.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self._folder = folder / "checkpoints"
        self._keep = max(1, keep)

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Write the checkpoint of a step, then remove old ones.

        Raises:
            OSError: nothing was written; older checkpoints are untouched.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        final = self._folder / f"step-{step:08d}"
        temporary = self._folder / f".tmp-{os.getpid()}-{step}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            save_atomically({"format": FORMAT, "step": step, **state}, temporary / "state.pt")
            shutil.rmtree(final, ignore_errors=True)
            temporary.replace(final)
            _sync_folder(self._folder)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for old in self._steps()[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def latest(self) -> dict[str, Any] | None:
        """The newest readable checkpoint, or None. A damaged one is passed over for the one before it.

        Raises:
            CheckpointError: there are checkpoints, but none can be read.
        """
        folders = self._steps()
        failures: list[str] = []
        for folder in reversed(folders):
            try:
                state: dict[str, Any] = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
            except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
                failures.append(f"{folder.name}: {error}")
                continue
            if state.get("format") != FORMAT:
                raise CheckpointError(f"{folder} has format {state.get('format')}, this version reads {FORMAT}")
            return state
        if folders:
            raise CheckpointError(f"no checkpoint in {self._folder} can be read: {'; '.join(failures)}")
        return None

    def clear(self) -> None:
        """Remove all checkpoints."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _steps(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; not every platform can open a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
