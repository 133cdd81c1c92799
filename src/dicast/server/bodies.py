"""Request bodies: read within limits, decompressed within limits, split into parts. Knows no routes and no JSON fields.

A body is counted while it arrives, over all requests too, so that many large ones cannot fill the memory; a zstd or
gzip body is decompressed piece by piece and refused as soon as its output passes the limit.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message as Header

import zstandard
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from dicast.errors import OverloadedError
from dicast.server.http import Request
from dicast.wire.errors import RequestError

PIECE = 256 * 1024
"""Bytes that gzip gives at a time."""
ZSTD_PIECE = 256
"""Bytes that zstd takes at a time; they can stand for 8 MiB at most."""
MAX_WINDOW = 32 * 2**20
"""Largest zstd window: memory that a frame's header may ask for."""
MAX_PARTS = 200
"""Most parts of a multipart body."""
REQUEST_PART = "request"
"""Name of the multipart part that holds the JSON."""


class BodyBudget:
    """Bytes of bodies held at once over all requests.

    Args:
        most: how many; a request that would pass it is told to come back.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Gives a function that takes bytes from the budget; all are given back at the end.

        Raises (from that function):
            OverloadedError: the budget is used up.
        """
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.held + count > self.most:
                raise OverloadedError("too many large requests at once", retry_after_ms=500)
            self.held += count
            taken += count

        try:
            yield take
        finally:
            self.held -= taken


async def read_body(request: Request, limit: int, seconds: float, take: Callable[[int], None]) -> bytes:
    """The whole body, still compressed.

    Raises:
        RequestError: 413 longer than the limit, 408 too slow.
        OverloadedError: too many bytes are held already.
        ClientGoneError: the client went away.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large(limit, int(declared))
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.chunks():
                if len(body) + len(chunk) > limit:
                    raise too_large(limit, len(body) + len(chunk))
                take(len(chunk))
                body += chunk
    except TimeoutError:
        raise too_slow(seconds) from None
    return bytes(body)


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """The body behind ``Content-Encoding``.

    Args:
        body: as received.
        encoding: header value; empty or ``identity`` for none.
        limit: most bytes of output.

    Raises:
        RequestError: 415 unknown encoding, 413 more output than the limit, 400 a broken stream.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    pieces = {"gzip": _gunzip, "x-gzip": _gunzip, "zstd": _unzstd}.get(name)
    if pieces is None:
        raise RequestError(
            f"the content encoding {encoding[:60]!r} is not supported; use zstd or gzip",
            status=415,
            code="unsupported_encoding",
            shape="map",
        )
    output = bytearray()
    try:
        for piece in pieces(body):
            output += piece
            if len(output) > limit:
                raise too_large(limit, len(output), "decompressed ")
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise RequestError(
            f"the body is not a complete {name} stream: {error}", status=400, code="invalid_encoding", shape="map"
        ) from None
    return bytes(output)


def too_slow(seconds: float) -> RequestError:
    """The refusal of a body that does not arrive."""
    return RequestError(f"the body did not arrive within {seconds:g} seconds", status=408, code="timeout", shape="map")


def too_large(limit: int, seen: int, what: str = "") -> RequestError:
    """The refusal of a body over the limit."""
    return RequestError(
        f"the {what}body has more than {limit} bytes",
        status=413,
        code="body_too_large",
        shape="map",
        limit=limit,
        seen=seen,
    )


@dataclass(slots=True)
class _Part:
    """A part while it is parsed."""

    data: bytearray = field(default_factory=bytearray)
    headers: Header = field(default_factory=Header)
    header_name: bytearray = field(default_factory=bytearray)
    header_value: bytearray = field(default_factory=bytearray)

    @property
    def name(self) -> str:
        return str(self.headers.get_param("name", "", "content-disposition") or "")


def split_multipart(body: bytes, content_type: str) -> tuple[bytes, dict[str, bytes]]:
    """The JSON part and the other parts by name.

    Raises:
        RequestError: 400 a broken body, no ``request`` part, a part without a name, or a name given twice.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise _bad_multipart("its Content-Type names no boundary")
    parts = _parse(body, boundary)
    by_name: dict[str, bytes] = {}
    for part in parts:
        if not part.name:
            raise _bad_multipart("a part has no name")
        if part.name in by_name:
            raise _bad_multipart(f"the part {part.name[:100]!r} is given twice")
        by_name[part.name] = bytes(part.data)
    if REQUEST_PART not in by_name:
        raise _bad_multipart(f"no part is named {REQUEST_PART!r}")
    return by_name.pop(REQUEST_PART), by_name


def _parse(body: bytes, boundary: bytes) -> list[_Part]:
    parts: list[_Part] = []
    ended = False

    def begin() -> None:
        if len(parts) >= MAX_PARTS:
            raise _bad_multipart(f"more than {MAX_PARTS} parts")
        parts.append(_Part())

    def header_end() -> None:
        part = parts[-1]
        part.headers[part.header_name.decode("latin-1")] = part.header_value.decode("utf-8", "replace")
        part.header_name.clear()
        part.header_value.clear()

    def end() -> None:
        nonlocal ended
        ended = True

    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": begin,
            "on_part_data": lambda data, start, stop: parts[-1].data.extend(data[start:stop]),
            "on_header_field": lambda data, start, stop: parts[-1].header_name.extend(data[start:stop]),
            "on_header_value": lambda data, start, stop: parts[-1].header_value.extend(data[start:stop]),
            "on_header_end": header_end,
            "on_end": end,
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except (MultipartParseError, ValueError) as error:
        raise _bad_multipart(str(error)) from None
    if not ended:
        raise _bad_multipart("it ends before its closing boundary")
    return parts


def _bad_multipart(reason: str) -> RequestError:
    return RequestError(
        f"the multipart body cannot be read: {reason}", status=400, code="invalid_multipart", shape="map"
    )


def _gunzip(body: bytes) -> Iterator[bytes]:
    rest = body
    while rest:
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            piece = stream.decompress(rest, PIECE)
            rest = stream.unconsumed_tail
            if not piece and not rest and not stream.eof:
                raise EOFError("it ends too early")
            yield piece
        rest = stream.unused_data


def _unzstd(body: bytes) -> Iterator[bytes]:
    """A few input bytes at a time: a block of 4 bytes can stand for 128 KiB, and the library has no output bound."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    stream = None
    position = 0
    while position < len(body):
        stream = stream or decompressor.decompressobj()
        piece = body[position : position + ZSTD_PIECE]
        position += len(piece)
        yield stream.decompress(piece)
        if stream.eof:
            position -= len(stream.unused_data)
            stream = None
    if stream is not None:
        raise EOFError("it ends too early")


async def lines(chunks: AsyncIterator[bytes], longest: int) -> AsyncIterator[bytes]:
    """Split arriving bytes at line ends; empty lines are left out.

    Raises:
        RequestError: 413 a line is longer than ``longest`` bytes.
    """
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        *whole, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in whole:
            if line.strip():
                yield bytes(line)
        if len(rest) > longest:
            raise too_large(longest, len(rest), "line in the ")
    if rest.strip():
        yield bytes(rest)
