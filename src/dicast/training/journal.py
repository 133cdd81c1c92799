"""What a run says while it goes: JSON lines, a progress line with ETA, TensorBoard on request. Knows only numbers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from dicast.errors import MissingDependencyError
from dicast.training.state import write_text_atomically


class Journal:
    """Metrics of one run.

    Args:
        folder: the run's folder; metrics go to `metrics.jsonl` in it. None says nothing at all.
        total: steps of the run, for the progress line.
        tensorboard: also write TensorBoard files.
        stream: where progress is shown.

    Raises:
        MissingDependencyError: TensorBoard is asked for but not installed.
    """

    def __init__(
        self, folder: Path | None, total: int, *, tensorboard: bool = False, stream: TextIO | None = None
    ) -> None:
        self._path = folder / "metrics.jsonl" if folder is not None else None
        self._total = total
        self._stream = stream or sys.stderr
        self._started: tuple[float, int] | None = None
        self._board = _board(folder) if tensorboard and folder is not None else None

    def rewind(self, step: int) -> None:
        """Drop the lines after a step, so that a resumed run's file reads as if it had never stopped."""
        if self._path is None or not self._path.exists():
            return
        lines = self._path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _step_of(line) <= step]
        write_text_atomically("".join(line + "\n" for line in kept), self._path)

    def write(self, event: str, step: int, **values: Any) -> None:
        """Append one JSON line."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps({"event": event, "step": step, **values}, ensure_ascii=False) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{event}/{name}", value, step)
            self._board.flush()

    def progress(self, step: int, loss: float, rate: float) -> None:
        """Show how far the run is and when it will end."""
        if self._path is None:
            return
        now = time.monotonic()
        if self._started is None:
            self._started = (now, step)
        began, first = self._started
        left = (now - began) / max(1, step - first) * (self._total - step) if step > first else None
        bar = _bar(step, self._total)
        text = f"{bar} {step}/{self._total}  loss {loss:.4f}  lr {rate:.2e}  left {_clock(left)}"
        live = self._stream.isatty()
        self._stream.write(f"\r{text}\x1b[K" if live else text + "\n")
        if live and step >= self._total:
            self._stream.write("\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """Show one line."""
        if self._path is not None:
            self._stream.write(("\r\x1b[K" if self._stream.isatty() else "") + text + "\n")
            self._stream.flush()


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingDependencyError("log.tensorboard needs tensorboard: pip install tensorboard") from None
    return SummaryWriter(str(folder / "tensorboard"))


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return sys.maxsize  # a line cut off by a kill


def _bar(step: int, total: int, width: int = 20) -> str:
    done = width * step // max(1, total)
    return "█" * done + "░" * (width - done)


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
