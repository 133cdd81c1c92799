"""One line of progress that rewrites itself. Knows no records."""

from __future__ import annotations

import time
from typing import IO

from dicast.cli.text import bar

_INTERVAL = 0.2


class Progress:
    """Counts records and shows them with their rate; with a known size of the input also a bar.

    Args:
        size: bytes of the whole input; 0 when unknown.
        stream: a terminal; None shows nothing.
    """

    def __init__(self, size: int, stream: IO[str] | None) -> None:
        self.position = 0
        """Bytes of the input read so far."""
        self.records = 0
        self._size = size
        self._stream = stream
        self._started = time.monotonic()
        self._shown = 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            self._show()
            self._stream.write("\n")

    def add(self, records: int) -> None:
        """Count records that are done."""
        self.records += records
        if self._stream is not None and time.monotonic() - self._shown >= _INTERVAL:
            self._show()

    def line(self) -> str:
        """What is shown."""
        rate = self.records / max(time.monotonic() - self._started, 1e-9)
        counted = f"{self.records} records  {rate:.1f}/s"
        if not self._size:
            return counted
        share = min(self.position / self._size, 1.0)
        return f"{bar(share, 24)} {share:4.0%}  {counted}"

    def _show(self) -> None:
        self._shown = time.monotonic()
        if self._stream is not None:
            self._stream.write(f"\r{self.line()}\x1b[K")
            self._stream.flush()
