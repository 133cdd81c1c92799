"""The ASGI application: finds the route, checks who asks, answers, turns failures into the combined error body, logs.

Routes are found by the end of their path, so that the application works under any prefix and under ``/v1/v1``. Knows no
process: it can run under any ASGI server; :mod:`dicast.server.process` runs it under uvicorn.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from dicast.errors import DicastError, EngineClosedError, OverloadedError
from dicast.server import pages
from dicast.server.batch import batch_route
from dicast.server.decisions import decisions_route
from dicast.server.http import (
    ClientGoneError,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    error_as_response,
    send_response,
)
from dicast.server.keys import Key, bearer_token
from dicast.server.limits import RateLimitedError
from dicast.server.services import Services
from dicast.server.systemone import systemone_route
from dicast.wire.errors import ErrorResponse, combined, error_response

Handler: TypeAlias = Callable[[Services, Request, Callable[[int], None]], Awaitable[Response]]

CLIENT_GONE = 499
"""Status in logs and metrics of a request whose client went away."""
_FULL_RETRY_MS = 200


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes:
        name: for logs and metrics.
        method: the method it answers; GET routes answer HEAD too.
        handler: what answers it.
        pattern: end of its path.
        open: whether it needs no key.
        work: whether it counts for limits and is refused while draining.
    """

    name: str
    method: str
    handler: Handler
    pattern: re.Pattern[str] = field(compare=False)
    open: bool = False
    work: bool = False


def _route(name: str, method: str, handler: Handler, end: str, *, open: bool = False, work: bool = False) -> Route:
    return Route(name, method, handler, re.compile(rf"(?:/.*)?{end}", re.DOTALL), open, work)


ROUTES = (
    _route("systemone", "POST", systemone_route, "/systemone", work=True),
    _route("decisions", "POST", decisions_route, "/decisions", work=True),
    _route("batch", "POST", batch_route, "/systemone/batch", work=True),
    _route("models", "GET", pages.models_route, "/models"),
    _route("model", "GET", pages.model_route, "/v1/models/.+"),
    _route("health", "GET", pages.health_route, "/health", open=True),
    _route("ready", "GET", pages.ready_route, "/ready", open=True),
    _route("metrics", "GET", pages.metrics_route, "/metrics"),
    _route("openapi", "GET", pages.openapi_route, "/openapi.json", open=True),
    _route("playground", "GET", pages.playground_route, "/", open=True),
)


class App:
    """The application around a server's services.

    Args:
        services: what the routes use.
        on_broken: called with the error when the default model cannot be loaded.
    """

    def __init__(self, services: Services, on_broken: Callable[[Exception], None] | None = None) -> None:
        self.services = services
        self.in_flight = 0
        self._on_broken = on_broken
        self._loading: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI scope."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(Request.of(scope, receive), send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def start(self) -> None:
        """Begin to load the default model; requests wait for it within their deadline."""
        self._loading = asyncio.ensure_future(self._load())

    async def stop(self) -> None:
        """Close everything; requests in flight should be done."""
        self.services.draining = True
        if self._loading is not None:
            self._loading.cancel()
        await self.services.close()

    async def _load(self) -> None:
        try:
            async with self.services.models.lease(self.services.models.default, float("inf")):
                pass
        except Exception as error:  # logged by the registry
            if self._on_broken is not None:
                self._on_broken(error)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, request: Request, send: Send) -> None:
        route, failure = find_route(request.method, request.path)
        name = route.name if route else "none"
        self.services.metrics.began()
        self.in_flight += 1
        status = 500
        try:
            if request.method == "OPTIONS" and self.services.settings.cors_origins:
                status = await self._reply(pages.preflight(request), request, send)
            elif route is None:
                status = await self._reply(error_as_response(failure), request, send)
            else:
                status = await self._serve(route, request, send)
        except ClientGoneError:
            status = CLIENT_GONE
        finally:
            self.in_flight -= 1
            self.services.metrics.ended(name, status, request.milliseconds / 1000)
            self._log(name, status, request)

    async def _serve(self, route: Route, request: Request, send: Send) -> int:
        """Answer a request of a route; every failure before the response has begun becomes an error body."""
        with ExitStack() as held:
            try:
                self._admit(route, request, held)
                take = held.enter_context(self.services.budget.share())
                response = await route.handler(self.services, request, take)
            except ClientGoneError:
                raise
            except Exception as error:
                response = self._failed(error, request)
            return await self._reply(response, request, send)

    def _admit(self, route: Route, request: Request, held: ExitStack) -> None:
        """Let a request in, or say why not."""
        if route.work and self.services.draining:
            raise EngineClosedError("the server is shutting down")
        if route.work and self.in_flight > self.services.settings.max_in_flight:
            raise OverloadedError("too many requests at once", retry_after_ms=_FULL_RETRY_MS)
        key = self._authenticated(route, request)
        request.key = key.name if key else ""
        if route.work:
            caller = f"key:{key.name}" if key else f"address:{request.client}"
            bounds = (key.requests_per_minute, key.concurrent) if key else (None, None)
            held.enter_context(self.services.callers.admitted(caller, *bounds))

    def _authenticated(self, route: Route, request: Request) -> Key | None:
        """The key of a request; None where none is needed.

        Raises:
            AuthenticationError: no key, or a wrong one.
        """
        settings = self.services.settings
        free = route.open or (route.name == "metrics" and settings.public_metrics)
        if free or not self.services.keys.required:
            return None
        token = bearer_token(request.headers)
        if token is None:
            raise AuthenticationError("send an API key as Authorization: Bearer <key>", settings.missing_key_status)
        key = self.services.keys.find(token)
        if key is None:
            raise AuthenticationError("the API key is not valid", 401)
        return key

    def _failed(self, error: Exception, request: Request) -> Response:
        """The response of a failure; what is nobody's fault but ours is logged with its traceback."""
        failure = failure_of(error)
        code = failure.body["error"]["code"]
        request.facts["error"] = code
        if failure.status >= 500 and not isinstance(error, DicastError):
            self.services.log.error("request failed", exc_info=error, extra={"facts": {"request_id": request.id}})
        if failure.status in (401, 403, 429, 503):
            self.services.metrics.refused(code)
        response = error_as_response(failure)
        if failure.status in (408, 413) or self.services.draining:
            response.headers["connection"] = "close"
        return response

    async def _reply(self, response: Response, request: Request, send: Send) -> int:
        pages.add_cors(response, request, self.services.settings.cors_origins)
        await send_response(response, request, send)
        return response.status

    def _log(self, route: str, status: int, request: Request) -> None:
        if route in _QUIET and status < 400:
            return
        facts = {
            "request_id": request.id,
            "route": route,
            "status": status,
            "ms": round(request.milliseconds, 2),
            "client": request.client,
            **({"key": request.key} if request.key else {}),
            **request.facts,
        }
        self.services.log.info("request", extra={"facts": facts})


_QUIET = ("health", "ready", "metrics")
"""Probes and scrapes come every few seconds; only their failures are logged."""


class AuthenticationError(Exception):
    """A request without a key, or with a wrong one.

    Args:
        message: one sentence for people.
        status: 401 or 403.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def failure_of(error: Exception) -> ErrorResponse:
    """The error body of any failure, those of the server's own included."""
    if isinstance(error, AuthenticationError):
        failure = combined(error.status, str(error), kind="authentication_error", code="invalid_api_key")
        return ErrorResponse(failure.status, failure.body, {"www-authenticate": "Bearer"})
    if isinstance(error, RateLimitedError):
        return combined(
            429, str(error), kind="rate_limit_error", code="rate_limit_exceeded", retry_after_ms=error.retry_after_ms
        )
    return error_response(error)


def find_route(method: str, path: str) -> tuple[Route | None, ErrorResponse]:
    """The route of a path, or the 404 or 405 to answer."""
    trimmed = path.rstrip("/") or "/"
    found = [route for route in ROUTES if route.pattern.fullmatch(trimmed)]
    for route in found:
        if method == route.method or (method == "HEAD" and route.method == "GET"):
            return route, _NOT_FOUND
    if not found:
        return None, _NOT_FOUND
    allowed = ", ".join(sorted({route.method for route in found}))
    failure = combined(405, "Method Not Allowed", code="method_not_allowed", detail="Method Not Allowed")
    return None, ErrorResponse(405, failure.body, {"allow": allowed})


_NOT_FOUND = combined(404, "Not Found", code="not_found", detail="Not Found")
