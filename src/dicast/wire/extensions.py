"""The one key under which Dicast's own request fields travel: ``x_dicast``. Official clients never send or miss it.

{"x_dicast": {"isolate": true, "truncation": "state_end", "logits": true, "deadline_ms": 2000}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast, get_args

from dicast.models.base import EncodeOptions, Truncation
from dicast.wire.errors import invalid

KEY = "x_dicast"
MAX_DEADLINE_MS = 600_000
"""Longest deadline a request may ask for; a server may allow less."""


@dataclass(frozen=True, slots=True)
class Extensions:
    """What a request asks for beyond the contract.

    Attributes:
        isolate: score each question alone under a neutral id, so that other questions, their order and their ids cannot
            move an answer; None leaves it to the server.
        truncation: what happens to a state that does not fit.
        max_state_tokens: most state tokens; what is over is treated by ``truncation``.
        max_pixels: scale every picture, and every frame of a video, down to so many pixels: less detail, fewer tokens.
        logits: report the logits of every option, before calibration.
        entropy: report the entropy of every answer, in nats.
        timings: report milliseconds spent.
        cache: report how many tokens came from a cache.
        deadline_ms: answer within this time or fail with 503; None means the server's own deadline.
    """

    isolate: bool | None = None
    truncation: Truncation = "refuse"
    max_state_tokens: int | None = None
    max_pixels: int | None = None
    logits: bool = False
    entropy: bool = False
    timings: bool = False
    cache: bool = False
    deadline_ms: int | None = None

    @property
    def encode_options(self) -> EncodeOptions:
        """How the record is to be encoded."""
        return EncodeOptions(truncation=self.truncation, max_state_tokens=self.max_state_tokens)

    @property
    def media_kwargs(self) -> Mapping[str, Any]:
        """The media options of the record."""
        return {} if self.max_pixels is None else {"max_pixels": self.max_pixels}


NO_EXTENSIONS = Extensions()
_FLAGS = ("isolate", "logits", "entropy", "timings", "cache")
_COUNTS = {"max_state_tokens": None, "max_pixels": None, "deadline_ms": MAX_DEADLINE_MS}


def parse_extensions(value: Any) -> Extensions:
    """Read the value of ``x_dicast``; None and a missing key mean no extension.

    Raises:
        RequestError: not an object, an unknown name, or a value of the wrong type.
    """
    if value is None:
        return NO_EXTENSIONS
    if not isinstance(value, Mapping):
        raise invalid("must be an object", (KEY,), "dict_type")
    names = [field.name for field in fields(Extensions)]
    given: dict[str, Any] = {}
    for name, item in value.items():
        if name not in names:
            raise invalid(f"unknown extension; known are {', '.join(names)}", (KEY, name), "extra_forbidden")
        if item is not None:
            given[name] = _checked(name, item)
    return Extensions(**given)


def _checked(name: str, item: Any) -> Any:
    if name in _FLAGS:
        if not isinstance(item, bool):
            raise invalid("must be true or false", (KEY, name), "bool_type")
    elif name == "truncation":
        if item not in get_args(Truncation):
            raise invalid(f"must be one of {', '.join(get_args(Truncation))}", (KEY, name), "literal_error")
        return cast(Truncation, item)
    else:
        limit = _COUNTS[name]
        if isinstance(item, bool) or not isinstance(item, int) or item < 1 or (limit and item > limit):
            bound = f"from 1 to {limit}" if limit else "of at least 1"
            raise invalid(f"must be a whole number {bound}", (KEY, name), "int_type")
    return item
