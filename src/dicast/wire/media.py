"""The seam to :mod:`dicast.media`: decodes the media of a request with that module's own limits.

Imported only when a request shows media, since decoding needs optional packages.
"""

from __future__ import annotations

from typing import Any

from dicast import media


class StandardDecoder:
    """Decodes with :func:`dicast.media.decode_image` and :func:`dicast.media.decode_video`."""

    def image(self, data: bytes, name: str) -> Any:
        """Decode one image."""
        return media.decode_image(data, name=name)

    def video(self, data: bytes, name: str) -> Any:
        """Decode one video."""
        return media.decode_video(data, name=name)
