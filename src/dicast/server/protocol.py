"""The HTTP parser under uvicorn, with a bound that it lacks: headers that never end must not fill the memory.

uvicorn's quick parser (httptools, a compiled package) keeps whatever headers arrive; its slow one (h11) stops at 64
KiB.
"""

from __future__ import annotations

import asyncio
from typing import Any

MAX_HEADER_BYTES = 64 * 1024
"""Most bytes of a request's first line and headers that may wait for their end; h11 has the same bound."""


def http_protocol() -> type[asyncio.Protocol] | str:
    """The quick parser with its bound, or uvicorn's name of the slow one where httptools is not installed."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return "h11"

    class BoundedHeaders(HttpToolsProtocol):
        """Closes a connection whose unfinished headers are longer than the bound."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._unfinished: int | None = None

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._unfinished = 0

        def on_headers_complete(self) -> None:
            self._unfinished = None
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._unfinished is None or self.transport.is_closing():
                return
            self._unfinished += len(data)
            if self._unfinished > MAX_HEADER_BYTES:
                self.send_400_response("The request's headers are too long.")

    return BoundedHeaders
