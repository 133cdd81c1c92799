"""What the routes share: settings, models, keys, limits, budgets, metrics, decoders, threads."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dicast.errors import CapabilityError, DeadlineExceededError
from dicast.models.base import ModelInfo
from dicast.server.bodies import BodyBudget, decompress, read_body, split_multipart
from dicast.server.http import Request
from dicast.server.keys import KeyStore
from dicast.server.limits import CallerLimits
from dicast.server.logs import LOGGER
from dicast.server.metrics import Metrics
from dicast.server.models import ModelRegistry
from dicast.server.settings import Settings
from dicast.wire.assets import MediaDecoder
from dicast.wire.errors import RequestError
from dicast.wire.extensions import Extensions

T = TypeVar("T")

INLINE_BYTES = 16 * 1024
"""Bodies up to this size are read in the event loop: it takes less time than a thread's switch."""
READING_THREADS = 4
MEDIA_THREADS = 4
"""Threads that wait for media decoders: of their own, so that slow files hold up requests with files only."""
SEEING_MODEL = "Cloudflare/clef-flash"
"""A model that reads images, for errors of models that do not."""
_MEDIA_WORDS = re.compile(rb'"(?:assets|images|videos|input_image)"')


@dataclass(slots=True)
class Services:
    """Everything that routes use, made once per server."""

    settings: Settings
    models: ModelRegistry
    keys: KeyStore
    callers: CallerLimits
    budget: BodyBudget
    metrics: Metrics
    decoder: MediaDecoder | None = None
    draining: bool = False
    log: logging.Logger = field(default_factory=lambda: logging.getLogger(LOGGER))
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(READING_THREADS, thread_name_prefix="dicast-read")
    )
    media_threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(MEDIA_THREADS, thread_name_prefix="dicast-media")
    )

    @property
    def ready(self) -> bool:
        """Whether requests would be answered at once."""
        return self.models.ready and not self.draining

    def decoder_for(self, info: ModelInfo) -> MediaDecoder:
        """Decodes media for a model in child processes, or refuses them for a model that cannot see."""
        if not info.images and not info.videos:
            return BlindDecoder(info.name)
        if self.decoder is None:
            self.decoder = self._worker()
        return self.decoder

    def seconds_for(self, request: Request, asked: Extensions) -> float:
        """Time left for a request.

        Raises:
            DeadlineExceededError: none.
        """
        allowed = min(self.settings.deadline_ms, asked.deadline_ms or self.settings.deadline_ms)
        left = allowed - request.milliseconds
        if left <= 0:
            raise DeadlineExceededError(f"not answered within {allowed / 1000:g} seconds")
        return left / 1000

    async def off_loop(self, heavy: bool, function: Callable[[], T], *, media: bool = False) -> T:
        """Run a function here, or in a thread if it is heavy; one that may decode media has threads of its own."""
        if not heavy:
            return function()
        threads = self.media_threads if media else self.threads
        return await asyncio.get_running_loop().run_in_executor(threads, function)

    async def body(self, request: Request, take: Callable[[int], None]) -> Body:
        """Read, decompress and split a request's body.

        Raises:
            RequestError: a wrong content type or encoding, a limit, or a broken body.
            OverloadedError: too many bytes are held already.
            ClientGoneError: the client went away.
        """
        kind = content_type(request)
        raw = await read_body(request, self.settings.max_body, self.settings.read_seconds, take)
        encoding = request.headers.get("content-encoding", "")
        heavy = len(raw) > INLINE_BYTES or bool(encoding)
        data = await self.off_loop(heavy, lambda: decompress(raw, encoding, self.settings.max_body))
        parts: dict[str, bytes] | None = None
        if kind == "multipart/form-data":
            header = request.headers["content-type"]
            data, parts = await self.off_loop(True, lambda: split_multipart(data, header))
        if self.settings.log_bodies:
            request.facts["body"] = data.decode("utf-8", "replace")
        return Body(data, parts)

    async def close(self) -> None:
        """Close models, decoders and threads."""
        await self.models.close()
        close = getattr(self.decoder, "close", None)
        if close is not None:
            await asyncio.to_thread(close)
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.media_threads.shutdown(wait=False, cancel_futures=True)

    def _worker(self) -> MediaDecoder:
        from dicast.media import MediaLimits, MediaWorker, RemotePolicy
        from dicast.media.limits import DECODE_SECONDS

        seconds = self.settings.deadline_ms / 1000
        return MediaWorker(
            self.settings.media_processes,
            MediaLimits(decode_seconds=min(DECODE_SECONDS, seconds)),
            remote=RemotePolicy(self.settings.media_hosts),
            max_waiting_seconds=seconds,
        )


@dataclass(frozen=True, slots=True)
class Body:
    """A body, ready to be read as JSON.

    Attributes:
        text: the JSON text.
        parts: the other parts of a multipart body by name; None for plain JSON.
    """

    text: bytes
    parts: dict[str, bytes] | None = None

    @property
    def heavy(self) -> bool:
        """Whether reading it would hold up the event loop."""
        return len(self.text) > INLINE_BYTES or self.media

    @property
    def media(self) -> bool:
        """Whether it may show images or videos."""
        return self.parts is not None or bool(_MEDIA_WORDS.search(self.text))


@dataclass(frozen=True, slots=True)
class BlindDecoder:
    """Refuses media for a model that reads text only.

    Attributes:
        name: the model's name.
    """

    name: str

    def image(self, source: Any, *, name: str) -> Any:
        """Raises CapabilityError."""
        self._refuse("images", name)

    def video(self, source: Any, *, name: str) -> Any:
        """Raises CapabilityError."""
        self._refuse("videos", name)

    def _refuse(self, what: str, name: str) -> None:
        raise CapabilityError(
            f"{self.name} reads text only and cannot see {what}; use a model that can, such as {SEEING_MODEL}",
            field=name,
        )


def content_type(request: Request, allowed: tuple[str, ...] = ("application/json", "multipart/form-data")) -> str:
    """The media type of a request's body.

    Raises:
        RequestError: 415 none of those allowed; browsers can send other types across origins without asking.
    """
    header = request.headers.get("content-type", "")
    kind = header.partition(";")[0].strip().lower()
    if kind in allowed or (kind.endswith("+json") and "application/json" in allowed):
        return kind
    raise RequestError(
        f"send the body as Content-Type: {' or '.join(allowed)}, not {header[:100]!r}",
        status=415,
        code="unsupported_media_type",
        shape="map",
    )
