"""Decoding in this process, for callers that trust whoever wrote the request; a server uses a MediaWorker instead.

Takes the wire's forms only: a path is never read. Imported only when a request shows media.
"""

from __future__ import annotations

from typing import Any

from dicast.media import DEFAULT_LIMITS, read_wire_source
from dicast.media.images import decode_image_bytes
from dicast.media.videos import decode_video_bytes


class InProcessDecoder:
    """A MediaDecoder without child processes."""

    def image(self, source: Any, *, name: str) -> Any:
        """Decode one image; raises MediaError."""
        data = read_wire_source(source, name=name, limit=DEFAULT_LIMITS.image_bytes, limits=DEFAULT_LIMITS)
        return decode_image_bytes(data, name=name)

    def video(self, source: Any, *, name: str) -> Any:
        """Decode one video; raises MediaError."""
        data = read_wire_source(source, name=name, limit=DEFAULT_LIMITS.video_bytes, limits=DEFAULT_LIMITS)
        return decode_video_bytes(data, name=name)
