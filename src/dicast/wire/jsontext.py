"""Strict JSON text: what RFC 8259 allows and nothing more, with bounds that hold before any recursion or allocation.

Python's reader accepts NaN and Infinity, keeps the last of two equal keys, turns 1e999 into infinity and recurses as
deep as the text nests. All of these are refused here, with a :class:`RequestError` (422, ``json_invalid``). Knows no
field names.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from dicast.errors import InputError
from dicast.records import MAX_NESTING
from dicast.wire.errors import RequestError

MAX_TEXT_NESTING = MAX_NESTING + 8
"""Deepest nesting of a whole body: the contract's limit for a state plus the containers around it."""
MAX_VALUES = 500_000
"""Most values of a whole body; more can fit no token budget and would cost a hundred times their text in memory."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_STRUCTURE = bytes(byte for byte in range(256) if byte not in b"[]{},")


def read_json(text: bytes | bytearray | memoryview) -> Any:
    """Read one JSON value.

    Raises: RequestError: not UTF-8, not JSON, a key given twice in one object, NaN or an infinite number, nested deeper
            than :data:`MAX_TEXT_NESTING`, or more than :data:`MAX_VALUES` values.
    """
    data = bytes(text)
    try:
        decoded = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_json(f"the body is not valid UTF-8 at byte {error.start}") from None
    if decoded.startswith("\ufeff"):
        raise _not_json("the body begins with a byte order mark (BOM), which JSON does not have")
    _check_structure(data)
    try:
        return _DECODER.decode(decoded)
    except json.JSONDecodeError as error:
        raise _not_json(f"JSON decode error at character {error.pos}: {error.msg}") from None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise _not_json(f"JSON decode error: {error}") from None


def write_json(value: Any) -> bytes:
    """One JSON value as compact UTF-8; NaN and infinite numbers are a bug of the caller and raise ValueError."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def _check_structure(data: bytes) -> None:
    """Bound depth and number of values with a scan that does not recurse."""
    containers = data.count(b"[") + data.count(b"{")
    if containers <= MAX_TEXT_NESTING and data.count(b",") + containers <= MAX_VALUES:
        return
    structure = _STRING.sub(b"", data).translate(None, _NOT_STRUCTURE)
    values = structure.count(b",") + structure.count(b"[") + structure.count(b"{")
    if values > MAX_VALUES:
        raise _too_big(f"the body holds more than {MAX_VALUES} JSON values", MAX_VALUES, values)
    depth = deepest = 0
    for byte in structure.translate(None, b","):
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    if deepest > MAX_TEXT_NESTING:
        raise _too_big(f"the body is nested deeper than {MAX_NESTING} levels", MAX_NESTING, deepest)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _not_json(f"the key {key[:100]!r} is given twice in one object", issue="duplicate_key")
            seen.add(key)
    return built


def _constant(name: str) -> NoReturn:
    raise _not_json(f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _not_json(f"the number {text[:40]} is too large")
    return value


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # more digits than Python converts
        raise _not_json(f"the number {text[:40]}... has {len(text)} characters, which is too many") from None


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int)


def _not_json(message: str, issue: str = "json_invalid") -> RequestError:
    return RequestError(message, issue=issue, code="invalid_json")


def _too_big(message: str, limit: int, seen: int) -> RequestError:
    return RequestError(message, status=400, code="limit_exceeded", shape="text", limit=limit, seen=seen)
