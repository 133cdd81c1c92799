"""Requests and responses over raw ASGI: just what these routes need. Knows no routes, no models, no JSON contract.

Without a framework in between, every byte of an error body is ours and a request costs microseconds.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dicast.wire.errors import ErrorResponse
from dicast.wire.jsontext import write_json

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

JSON_TYPE = "application/json"
JSON_LINES_TYPE = "application/x-ndjson"
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class ClientGoneError(Exception):
    """The client has closed the connection; there is nobody to answer."""


@dataclass(slots=True)
class Request:
    """One request.

    Attributes:
        method: upper case.
        path: decoded path, prefix included.
        headers: lower-case name -> value; of equal names the first.
        client: address of the peer.
        receive: ASGI's way to more of the body, or to the news that the client has gone.
        id: id of the request, the client's own if it sent a harmless one.
        key: name of the API key it was sent with.
        started: monotonic time of arrival, in seconds.
        facts: what the log line will say about it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    client: str
    receive: Receive
    id: str
    key: str = ""
    started: float = field(default_factory=time.perf_counter)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, scope: Scope, receive: Receive) -> Request:
        """Read an ASGI ``http`` scope."""
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        client = scope.get("client")
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        return cls(scope["method"], scope["path"], headers, client[0] if client else "", receive, request_id)

    @property
    def milliseconds(self) -> float:
        """Time since arrival."""
        return (time.perf_counter() - self.started) * 1000

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives.

        Raises:
            ClientGoneError: the client went away before the end.
        """
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                return

    async def gone(self) -> None:
        """Return when the client has gone away; call it only after the body has been read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


@dataclass(slots=True)
class Response:
    """One response; the body is bytes, or chunks that are sent as they come."""

    status: int = 200
    body: bytes | AsyncGenerator[bytes, None] = b""
    content_type: str = JSON_TYPE
    headers: dict[str, str] = field(default_factory=dict)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON body."""
    return Response(status, write_json(value), JSON_TYPE, dict(headers or {}))


def error_as_response(error: ErrorResponse) -> Response:
    """An error body of the wire."""
    return json_response(error.body, error.status, error.headers)


async def send_response(response: Response, request: Request, send: Send) -> None:
    """Write a response, with both request-id headers; a HEAD request gets no body."""
    headers = {
        "content-type": response.content_type,
        "x-request-id": request.id,
        "x-typesafe-request-id": request.id,
        **response.headers,
    }
    if isinstance(response.body, bytes):
        headers["content-length"] = str(len(response.body))
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": raw})
    if request.method == "HEAD":
        await send({"type": "http.response.body", "body": b""})
        return
    if isinstance(response.body, bytes):
        await send({"type": "http.response.body", "body": response.body})
        return
    async with aclosing(response.body) as chunks:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
