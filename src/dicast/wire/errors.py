"""One error body for both client families: what is wrong with a request, said in either family's shape at once.

TypeSafe's clients read ``detail`` (a list of issues, a map with ``error_type``, or a plain text), OpenAI's read
``error.message``, ``error.type``, ``error.param`` and ``error.code``. Every body here has both. Knows no HTTP
framework: a failure becomes an :class:`ErrorResponse` (status, body, headers) that a server writes and a client library
could read.

    RequestError (an InputError)    a body of the wrong shape, with the exact path as ``loc``
    any other InputError            mapped by type: token budget, media, capability, model name, limits
    EngineError                     503 with a retry hint
    anything else                   500 without details
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dicast.errors import (
    CapabilityError,
    DeadlineExceededError,
    EngineClosedError,
    EngineError,
    InputError,
    MediaError,
    MissingDependencyError,
    ModelNotFoundError,
    OverloadedError,
    RecordError,
    TokenBudgetError,
)

Loc: TypeAlias = tuple[str | int, ...]
DetailShape: TypeAlias = Literal["issues", "map", "text"]

RETRY_AFTER_MS = 500
"""Retry hint where nothing better is known, in milliseconds."""


class RequestError(InputError):
    """A request that a client must change before it can succeed.

    Args:
        message: one sentence for people, without the path.
        loc: path of the offending part, without a leading ``body``; question types may be part of it.
        status: HTTP status, 4xx.
        code: OpenAI's ``error.code``.
        error_type: TypeSafe's ``detail.error_type``.
        issue: TypeSafe's issue type for a 422, e.g. ``missing``.
        shape: which of TypeSafe's three shapes ``detail`` has.
        limit: the limit that was broken, if any.
        seen: the value or size that was seen.
        field: dotted path for people; by default made from ``loc``.
    """

    def __init__(
        self,
        message: str,
        *,
        loc: Loc = (),
        status: int = 422,
        code: str = "validation_error",
        error_type: str = "api_usage_error",
        issue: str = "value_error",
        shape: DetailShape = "issues",
        limit: Any = None,
        seen: Any = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message, field=dotted(loc) if field is None else field, limit=limit, seen=seen)
        self.loc = loc
        self.status = status
        self.code = code
        self.error_type = error_type
        self.issue = issue
        self.shape = shape

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.message, {name: getattr(self, name) for name in _STATE}))


_STATE = ("loc", "status", "code", "error_type", "issue", "shape", "limit", "seen", "field")


def _rebuild(message: str, state: dict[str, Any]) -> RequestError:
    return RequestError(message, **state)


def invalid(message: str, loc: Loc, issue: str = "value_error", *, field: str | None = None) -> RequestError:
    """A part of the wrong shape: 422 with an issue list."""
    return RequestError(message, loc=loc, issue=issue, field=field)


def refused(message: str, loc: Loc = (), *, code: str = "invalid_request", status: int = 400) -> RequestError:
    """A well-formed request that cannot be served: 400 with an ``error_type``."""
    return RequestError(message, loc=loc, status=status, code=code, shape="map")


def over_limit(message: str, loc: Loc, *, limit: Any, seen: Any, field: str | None = None) -> RequestError:
    """A count over one of the contract's limits: 400 with a plain text, as the hosted API answers."""
    return RequestError(
        message, loc=loc, status=400, code="limit_exceeded", shape="text", limit=limit, seen=seen, field=field
    )


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """What a server sends for a failure.

    Attributes:
        status: HTTP status.
        body: JSON object in the combined shape.
        headers: extra headers, such as the retry hints.
    """

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


def error_response(error: BaseException) -> ErrorResponse:
    """The combined error body of any exception; only errors raised on purpose show their text."""
    if isinstance(error, RequestError):
        return _request_error(error)
    if isinstance(error, InputError):
        return _input_error(error)
    if isinstance(error, MissingDependencyError):  # e.g. a video sent to an installation without a decoder
        return combined(400, str(error), code="unsupported", error_type="api_usage_error")
    if isinstance(error, EngineError):
        return _engine_error(error)
    return combined(500, "internal error; the server's log has the details", kind="server_error", code="internal_error")


def combined(
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    code: str,
    error_type: str | None = None,
    param: str | None = None,
    detail: Any = None,
    extra: Mapping[str, Any] | None = None,
    retry_after_ms: int | None = None,
) -> ErrorResponse:
    """Build an error body that both client families read.

    Args:
        status: HTTP status.
        message: sentence for people, path included.
        kind: OpenAI's ``error.type``.
        code: OpenAI's ``error.code``.
        error_type: TypeSafe's ``detail.error_type``; ``kind`` when left out.
        param: OpenAI's ``error.param``.
        detail: TypeSafe's ``detail``; by default the map form.
        extra: facts for programs, sent as ``x_dicast``.
        retry_after_ms: sent as ``retry-after-ms`` and ``Retry-After``.
    """
    body: dict[str, Any] = {
        "error": {"message": message, "type": kind, "param": param, "code": code},
        "detail": {"error_type": error_type or kind, "message": message} if detail is None else detail,
    }
    if extra:
        body["x_dicast"] = dict(extra)
    return ErrorResponse(status, body, {} if retry_after_ms is None else retry_headers(retry_after_ms))


def retry_headers(milliseconds: int) -> dict[str, str]:
    """Both retry hints: ``retry-after-ms``, and ``Retry-After`` in seconds, rounded up."""
    wait = max(int(milliseconds), 1)
    return {"retry-after-ms": str(wait), "retry-after": str(-(-wait // 1000))}


def dotted(loc: Sequence[str | int]) -> str:
    """``("questions", "a", 0)`` as ``questions.a.0``."""
    return ".".join(str(part) for part in loc)


def _request_error(error: RequestError) -> ErrorResponse:
    message = str(error)
    detail: Any = None
    if error.shape == "issues":
        issue: dict[str, Any] = {"loc": ["body", *error.loc], "msg": error.message, "type": error.issue}
        detail = [issue | ({"ctx": _facts(error)} if _facts(error) else {})]
    elif error.shape == "text":
        detail = message
    return combined(
        error.status,
        message,
        kind="authentication_error" if error.error_type == "authentication_error" else "invalid_request_error",
        code=error.code,
        error_type=error.error_type,
        param=error.field or None,
        detail=detail,
        extra=_facts(error),
    )


_INPUT_ERRORS: tuple[tuple[type[InputError], str, str], ...] = (
    (TokenBudgetError, "context_length_exceeded", "max_tokens_exceeded"),
    (MediaError, "invalid_media", "api_usage_error"),
    (CapabilityError, "unsupported", "api_usage_error"),
    (ModelNotFoundError, "model_not_found", "api_usage_error"),
    (InputError, "invalid_request", "api_usage_error"),
)


def _input_error(error: InputError) -> ErrorResponse:
    loc = tuple(error.field.split(".")) if error.field else ()
    if isinstance(error, RecordError):
        make = over_limit(error.message, loc, limit=error.limit, seen=error.seen)
        return _request_error(make if error.limit is not None else invalid(error.message, loc))
    code, error_type = next((code, kind) for tree, code, kind in _INPUT_ERRORS if isinstance(error, tree))
    return combined(400, str(error), code=code, error_type=error_type, param=error.field or None, extra=_facts(error))


def _engine_error(error: EngineError) -> ErrorResponse:
    if isinstance(error, OverloadedError):
        code, kind, wait = "overloaded", "overloaded_error", error.retry_after_ms
    elif isinstance(error, DeadlineExceededError):
        code, kind, wait = "deadline_exceeded", "timeout", RETRY_AFTER_MS
    elif isinstance(error, EngineClosedError):
        code, kind, wait = "shutting_down", "overloaded_error", RETRY_AFTER_MS
    else:
        code, kind, wait = "engine_error", "server_error", RETRY_AFTER_MS
    return combined(503, str(error), kind=kind, code=code, retry_after_ms=wait)


def _facts(error: InputError) -> dict[str, Any]:
    facts = {"limit": error.limit, "seen": error.seen}
    return {name: value for name, value in facts.items() if isinstance(value, int | float | str)}
