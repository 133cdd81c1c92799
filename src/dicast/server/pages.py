"""Every route that answers no records: models, probes, metrics, the API's description, the playground, CORS."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from dicast._version import __version__
from dicast.models.base import ModelInfo
from dicast.server.http import Request, Response, json_response
from dicast.server.metrics import CONTENT_TYPE
from dicast.server.models import ModelRegistry
from dicast.server.openapi import document
from dicast.server.services import Services
from dicast.server.settings import ModelSpec
from dicast.wire.aliases import LISTED_ALIAS
from dicast.wire.errors import RequestError

OWNER = "dicast"
UNKNOWN_RELEASE = "1970-01-01"
"""Release date of a model that names none; the listing's schema requires a date."""
CORS_SECONDS = "600"
_MODEL_PATH = re.compile(r".*?/v1/models/(?P<name>.+)", re.DOTALL)


async def models_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """``GET /v1/models``: one body that is both families' listing."""
    names = _listed(services.models)
    return json_response(
        {
            "object": "list",
            "data": [_openai_model(name, info) for name, _, info in names],
            "models": [
                {"name": name, "description": text, "release_date": _released(info)} for name, text, info in names
            ],
        }
    )


async def model_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """``GET /v1/models/{name}``: OpenAI's form of one model."""
    match = _MODEL_PATH.fullmatch(request.path)
    name = match["name"] if match else ""
    for listed, _, info in _listed(services.models):
        if listed == name:
            return json_response(_openai_model(name, info))
    raise RequestError(f"unknown model {name[:100]!r}", status=404, code="model_not_found", shape="map")


async def health_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """``GET /health``: the process is alive."""
    return json_response({"status": "ok", "version": __version__})


async def ready_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """``GET /ready``: the default model is loaded and warm, and the server is not shutting down."""
    ready = services.ready
    loaded = [model.name for model in services.models.loaded]
    return json_response({"ready": ready, "loaded": loaded}, 200 if ready else 503)


async def metrics_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """``GET /metrics``: Prometheus."""
    return Response(200, services.metrics.text(), CONTENT_TYPE)


async def openapi_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """``GET /openapi.json``: both contracts, with examples."""
    return json_response(document())


async def playground_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """``GET /``: a page to try the server with; it loads nothing from anywhere."""
    if not services.settings.playground:
        return json_response({"name": "dicast", "version": __version__, "documentation": "openapi.json"})
    page, policy = playground()
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "x-frame-options": "DENY",
        "cache-control": "no-cache",
    }
    return Response(200, page, "text/html; charset=utf-8", headers)


@cache
def playground() -> tuple[bytes, str]:
    """The page and a content security policy that allows its own script and style and nothing else."""
    page = files("dicast.server").joinpath("playground.html").read_text(encoding="utf-8")
    hashes = {tag: " ".join(_hashes(tag, page)) for tag in ("script", "style")}
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page.encode(), policy


def preflight(request: Request) -> Response:
    """Answer to a browser's question whether it may call; `add_cors` says for which origins."""
    asked = request.headers.get("access-control-request-headers", "authorization, content-type")
    headers = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": re.sub(r"[^\w\-, ]", "", asked)[:1000],
        "access-control-max-age": CORS_SECONDS,
    }
    return Response(204, b"", "text/plain", headers)


def add_cors(response: Response, request: Request, origins: Sequence[str]) -> None:
    """Allow the request's origin to read the response, if it is one of ``origins``."""
    origin = request.headers.get("origin")
    if not origins or not origin:
        return
    response.headers["vary"] = "Origin"
    if "*" in origins or origin in origins:
        response.headers["access-control-allow-origin"] = "*" if "*" in origins else origin
        response.headers["access-control-expose-headers"] = "x-request-id, x-typesafe-request-id, retry-after-ms"


def _listed(models: ModelRegistry) -> list[tuple[str, str, ModelInfo | None]]:
    """Name, description and facts of each model, and of the alias that clients use by default."""
    listed = [
        (models.name_of(spec), _description(models.info_of(spec), spec), models.info_of(spec)) for spec in models.specs
    ]
    default = listed[0]
    alias = (LISTED_ALIAS, f"Alias of {default[0]}.", default[2])
    return [*listed, *([] if any(name == LISTED_ALIAS for name, _, _ in listed) else [alias])]


def _description(info: ModelInfo | None, spec: ModelSpec) -> str:
    if info is None:
        return "Loaded when first asked for."
    millions = sum(info.parameters.values()) / 1e6
    size = f"{millions / 1000:.1f}B" if millions >= 1000 else f"{millions:.0f}M"
    reads = "text, images and video" if info.videos else "text and images" if info.images else "text"
    return f"{info.architecture}, {size} parameters, reads {reads}, up to {info.max_tokens} tokens."


def _openai_model(name: str, info: ModelInfo | None) -> dict[str, Any]:
    created = datetime.fromisoformat(_released(info)).replace(tzinfo=UTC)
    return {"id": name, "object": "model", "created": int(created.timestamp()), "owned_by": OWNER}


def _released(info: ModelInfo | None) -> str:
    return (info.released[:10] if info and info.released else "") or UNKNOWN_RELEASE


def _hashes(tag: str, page: str) -> list[str]:
    """CSP hashes of the contents of every inline element of a kind."""
    contents = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in contents]
    return [f"'sha256-{digest}'" for digest in digests]
