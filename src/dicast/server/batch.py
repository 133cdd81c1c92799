"""``POST /v1/systemone/batch``: many states, one schema; JSON lines in, JSON lines out, streamed.

    {"model": "jev-latest", "questions": {"refund": {"type": "noul", "instructions": "Refund wanted?"}}}
    {"id": "t-1", "state": "I was charged twice."}
    {"id": "t-2", "state": {"subject": "Hello"}}

    {"index": 0, "id": "t-1", "model": "...", "answers": {...}, "usage": {...}}
    {"index": 1, "id": "t-2", "error": {...}, "detail": {...}}

The first line is a request without a state, every other line a state; answers keep the order of the lines. A bad line
fails alone. The body is read whether or not the client is reading answers yet, so that neither side can wait for the
other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dicast.errors import DicastError
from dicast.records import Question, Record
from dicast.server.bodies import decompress, lines, read_body, too_large, too_slow
from dicast.server.http import JSON_LINES_TYPE, ClientGoneError, Request, Response
from dicast.server.models import Loaded
from dicast.server.services import Services, content_type
from dicast.server.settings import ModelSpec
from dicast.server.systemone import answer
from dicast.wire import systemone
from dicast.wire.errors import error_response, invalid, refused
from dicast.wire.extensions import KEY, Extensions, parse_extensions
from dicast.wire.jsontext import write_json

CONTENT_TYPES = ("application/x-ndjson", "application/jsonl", "application/json-lines", "application/json")
MAX_LINE = 8 * 2**20
"""Longest line, in bytes."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The first line of a batch."""

    questions: Mapping[str, Question]
    asked: Extensions


async def batch_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """Answer one batch."""
    content_type(request, CONTENT_TYPES)
    arrival = Arrival(services, request, take)
    try:
        return await _begin(services, request, arrival)
    except BaseException:
        arrival.stop()
        raise


async def _begin(services: Services, request: Request, arrival: Arrival) -> Response:
    """Read the first line; everything that is wrong with it is an ordinary error response."""
    source = lines(arrival.chunks(), MAX_LINE)
    first = await anext(source, None)
    if first is None:
        raise invalid("the first line must be a request with questions and without a state", (), "missing")
    fields = systemone.read_object(first)
    spec = services.models.resolve(systemone.parse_model(fields))
    if "state" in fields:
        raise refused("the first line of a batch has no state; states follow, one per line", ("state",))
    for name in ("assets", "images", "videos"):
        if fields.get(name) is not None:
            raise refused("a batch takes no media", (name,))
    schema = Schema(systemone.parse_questions(fields), parse_extensions(fields.get(KEY)))
    systemone.checked(Record("", schema.questions))
    request.facts["model"] = services.models.name_of(spec)
    async with services.models.lease(spec, services.settings.deadline_ms / 1000):
        pass  # a model that cannot be loaded is an ordinary error too
    answers = _answers(services, request, spec, schema, arrival, source)
    return Response(200, answers, JSON_LINES_TYPE)


async def _answers(
    services: Services,
    request: Request,
    spec: ModelSpec,
    schema: Schema,
    arrival: Arrival,
    source: AsyncIterator[bytes],
) -> AsyncGenerator[bytes, None]:
    """Answer lines in the order of the states, a window of them at work at once."""
    window: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(services.settings.batch_window)
    feeder: asyncio.Task[None] | None = None
    try:
        async with services.models.lease(spec, services.settings.deadline_ms / 1000) as model:
            feeder = asyncio.ensure_future(_feed(services, request, model, schema, source, window))
            while (task := await window.get()) is not None:
                yield await arrival.unless_gone(task)
            await feeder
    finally:
        arrival.stop()
        if feeder is not None:
            feeder.cancel()
        while not window.empty():
            left = window.get_nowait()
            if left is not None:
                left.cancel()


async def _feed(
    services: Services,
    request: Request,
    model: Loaded,
    schema: Schema,
    source: AsyncIterator[bytes],
    window: asyncio.Queue[asyncio.Task[bytes] | None],
) -> None:
    """Start one task per line; the window holds it back."""
    index = 0
    try:
        async for line in source:
            if index >= services.settings.max_batch_lines:
                limit = services.settings.max_batch_lines
                raise refused(f"a batch has at most {limit} states", code="limit_exceeded")
            await window.put(asyncio.ensure_future(_line(services, request, model, schema, line, index)))
            index += 1
    except DicastError as error:
        await window.put(asyncio.ensure_future(_failed(index, error)))
    finally:
        await window.put(None)


async def _line(services: Services, request: Request, model: Loaded, schema: Schema, line: bytes, index: int) -> bytes:
    shown: dict[str, Any] = {"index": index}
    try:
        fields = systemone.read_object(line)
        if "id" in fields:
            shown["id"] = fields["id"]
        record = systemone.checked(Record(systemone.parse_state(fields), schema.questions))
        decision = await answer(services, request, model, record, schema.asked, heavy=True, watch=False)
        settings = services.settings
        shown |= systemone.response_body(
            decision, digits=settings.digits, confidence=settings.confidence, asked=schema.asked
        )
    except DicastError as error:
        shown |= error_response(error).body
    except Exception:
        services.log.exception("batch line failed", extra={"facts": {"request_id": request.id, "index": index}})
        shown |= error_response(RuntimeError()).body
    return write_json(shown) + b"\n"


async def _failed(index: int, error: BaseException) -> bytes:
    return write_json({"index": index, **error_response(error).body}) + b"\n"


class Arrival:
    """A body that is read ahead, and then the news that the client has gone.

    Args:
        services: whose limits hold.
        request: whose body it is.
        take: takes bytes from the server's budget.
    """

    def __init__(self, services: Services, request: Request, take: Callable[[int], None]) -> None:
        self._services = services
        self._request = request
        self._take = take
        self._chunks: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._gone = asyncio.ensure_future(self._read())

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body; raises what went wrong while it was read."""
        while (chunk := await self._chunks.get()) is not None:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def unless_gone(self, task: asyncio.Task[bytes]) -> bytes:
        """The task's result.

        Raises:
            ClientGoneError: the client went away first.
        """
        await asyncio.wait({task, self._gone}, return_when="FIRST_COMPLETED")
        if task.done():
            return task.result()
        task.cancel()
        raise ClientGoneError

    def stop(self) -> None:
        """Stop listening."""
        self._gone.cancel()

    async def _read(self) -> None:
        """Ends when the client has gone."""
        try:
            async for piece in self._pieces():
                self._chunks.put_nowait(piece)
            self._chunks.put_nowait(None)
        except Exception as error:
            self._chunks.put_nowait(error)
            if isinstance(error, ClientGoneError):
                return
        await self._request.gone()

    async def _pieces(self) -> AsyncIterator[bytes]:
        settings = self._services.settings
        encoding = self._request.headers.get("content-encoding", "")
        if encoding:
            raw = await read_body(self._request, settings.max_body, settings.read_seconds, self._take)
            yield await self._services.off_loop(True, lambda: decompress(raw, encoding, settings.max_body))
            return
        seen = 0
        arriving = self._request.chunks()
        while True:
            try:
                chunk = await asyncio.wait_for(anext(arriving, None), settings.read_seconds)
            except TimeoutError:
                raise too_slow(settings.read_seconds) from None
            if chunk is None:
                return
            seen += len(chunk)
            if seen > settings.max_body:
                raise too_large(settings.max_body, seen)
            self._take(len(chunk))
            yield chunk
