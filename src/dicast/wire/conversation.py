"""The ``input`` of a Decisions request: a text, or items of a conversation, to one state.

A plain text stays a plain text, a single user message with one part becomes that part (so that ``input_json`` gives the
same state as System One), anything else becomes an array of turns in order. Images become references such as ``image
1``.

    [{"role": "user", "content": "Where is my order?"}, {"type": "function_call", "call_id": "c1", "name": "lookup",
    ...}]

Knows the item kinds and their limits; knows nothing of questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dicast.records import JSON
from dicast.wire.assets import Asset, MediaOrder
from dicast.wire.errors import Loc, RequestError
from dicast.wire.jsontext import read_json, write_json

MAX_JSON_LEVELS = 32
"""Deepest nesting of an ``input_json`` part."""
MAX_JSON_VALUES = 10_000
"""Most values in an ``input_json`` part."""
MAX_JSON_BYTES = 256 * 1024
"""Longest ``input_json`` part as compact UTF-8."""

_ROLES = ("user", "developer", "system", "assistant")
_DETAILS = ("low", "high", "auto", "original", None)
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}
_STATUSES = ("in_progress", "completed", "incomplete", None)


def bad(
    message: str, loc: Loc, code: str = "invalid_value", *, limit: int | None = None, seen: int | None = None
) -> RequestError:
    """A 400 whose parameter is written as OpenAI does, ``questions[0].choices[1].value``."""
    return RequestError(
        message, loc=loc, status=400, code=code, shape="map", limit=limit, seen=seen, field=bracketed(loc)
    )


def bracketed(loc: Sequence[str | int]) -> str:
    """``("questions", 0, "name")`` as ``questions[0].name``."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def require(fields: Mapping[str, Any], name: str, loc: Loc, kind: type[str] | type[list[Any]] = str) -> Any:
    """A required field of one type.

    Raises:
        RequestError: missing or of another type.
    """
    value = fields.get(name)
    if value is None:
        raise bad("is required", (*loc, name), "missing_required_parameter")
    if not isinstance(value, kind):
        raise bad(f"must be {'a string' if kind is str else 'an array'}", (*loc, name), "invalid_type")
    return value


def read_input(value: Any, order: MediaOrder) -> JSON:
    """The state behind ``input``.

    Args:
        value: the field's value.
        order: gets the images in the order in which the input shows them.

    Raises:
        RequestError: a wrong shape, an unknown item or part, an output without its call, or a limit.
    """
    if isinstance(value, str):
        return value
    if value is None:
        raise bad("is required", ("input",), "missing_required_parameter")
    if not isinstance(value, list):
        raise bad("must be a string or an array of items", ("input",), "invalid_type")
    if not value:
        raise bad("must hold at least one item", ("input",))
    calls: dict[str, str] = {}
    turns = [_item(item, ("input", index), calls, order) for index, item in enumerate(value)]
    if len(turns) == 1 and turns[0].get("role") == "user":
        return turns[0]["content"]
    return turns


def read_content(value: Any, loc: Loc, order: MediaOrder, parts: Mapping[str, Any]) -> JSON:
    """Text, or parts reduced to one value: a single part is that part, several are an array.

    Args:
        value: a string or an array of parts.
        loc: its path.
        order: gets the images.
        parts: readers of the part types that are allowed here.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise bad("must be a string or a non-empty array of parts", loc, "invalid_type")
    read = []
    for index, part in enumerate(value):
        at = (*loc, index)
        if not isinstance(part, Mapping):
            raise bad("must be an object", at, "invalid_type")
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in parts:
            raise bad(f"type must be one of {', '.join(parts)}, not {str(kind)[:60]!r}", (*at, "type"))
        read.append(parts[kind](part, at, order))
    return read[0] if len(read) == 1 else read


def _text(part: Mapping[str, Any], loc: Loc, order: MediaOrder) -> str:
    _check_breakpoint(part, loc)
    return str(require(part, "text", loc))


def _refusal(part: Mapping[str, Any], loc: Loc, order: MediaOrder) -> str:
    return str(require(part, "refusal", loc))


def _image(part: Mapping[str, Any], loc: Loc, order: MediaOrder) -> str:
    _check_breakpoint(part, loc)
    if part.get("file_id") is not None:
        raise bad("file ids are not supported; send a base64 data URL", (*loc, "file_id"), "unsupported_parameter")
    if part.get("detail") not in _DETAILS:
        raise bad("must be low, high, auto or original", (*loc, "detail"))
    url = require(part, "image_url", loc)
    if not url.startswith(("data:", "http:", "https:")):
        raise bad("must be a base64 data URL or an http(s) URL", (*loc, "image_url"))
    return order.reference(Asset("image", url, (bracketed((*loc, "image_url")),)))


def _json(part: Mapping[str, Any], loc: Loc, order: MediaOrder) -> JSON:
    data = part.get("data")
    objects = isinstance(data, list) and all(isinstance(item, Mapping) for item in data)
    if not isinstance(data, Mapping) and not objects:
        raise bad("must be an object or an array of objects", (*loc, "data"), "invalid_type")
    _check_json_size(data, (*loc, "data"))
    return data


INPUT_PARTS = {"input_text": _text, "input_image": _image, "input_json": _json}
"""Parts of a user message and of question instructions."""
_TEXT_PARTS = {"input_text": _text}
_ASSISTANT_PARTS = {"output_text": _text, "refusal": _refusal}
_OUTPUT_PARTS = {"input_text": _text, "input_image": _image}
_PARTS_OF_ROLE = {"user": INPUT_PARTS, "developer": _TEXT_PARTS, "system": _TEXT_PARTS, "assistant": _ASSISTANT_PARTS}


def _item(item: Any, loc: Loc, calls: dict[str, str], order: MediaOrder) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise bad("must be an object", loc, "invalid_type")
    kind = item.get("type", "message")
    if kind == "message":
        return _message(item, loc, order)
    if item.get("status") not in _STATUSES:
        raise bad("must be in_progress, completed or incomplete", (*loc, "status"))
    if isinstance(kind, str) and kind in _CALLS:
        return _call(kind, item, loc, calls)
    if isinstance(kind, str) and kind in _OUTPUTS:
        return _output(kind, item, loc, calls, order)
    known = ", ".join(("message", *_CALLS, *_OUTPUTS))
    raise bad(f"must be one of {known}, not {str(kind)[:60]!r}", (*loc, "type"))


def _message(item: Mapping[str, Any], loc: Loc, order: MediaOrder) -> dict[str, Any]:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise bad(f"must be one of {', '.join(_ROLES)}, not {str(role)[:60]!r}", (*loc, "role"))
    if item.get("content") is None:
        raise bad("is required", (*loc, "content"), "missing_required_parameter")
    if item.get("phase") not in ("commentary", "final_answer", None):
        raise bad("must be commentary or final_answer", (*loc, "phase"))
    return {"role": role, "content": read_content(item["content"], (*loc, "content"), order, _PARTS_OF_ROLE[role])}


def _call(kind: str, item: Mapping[str, Any], loc: Loc, calls: dict[str, str]) -> dict[str, Any]:
    call_id = require(item, "call_id", loc)
    if call_id in calls:
        raise bad(f"the call id {call_id[:100]!r} is used twice", (*loc, "call_id"))
    calls[call_id] = kind
    sent = _CALLS[kind]
    text = require(item, sent, loc)
    name = require(item, "name", loc)
    return {"type": kind, "call_id": call_id, "name": name, sent: _arguments(text) if sent == "arguments" else text}


def _output(
    kind: str, item: Mapping[str, Any], loc: Loc, calls: Mapping[str, str], order: MediaOrder
) -> dict[str, Any]:
    call_id = require(item, "call_id", loc)
    if calls.get(call_id) != _OUTPUTS[kind]:
        raise bad(f"no {_OUTPUTS[kind]} before it has the call id {call_id[:100]!r}", (*loc, "call_id"))
    if item.get("output") is None:
        raise bad("is required", (*loc, "output"), "missing_required_parameter")
    output = read_content(item["output"], (*loc, "output"), order, _OUTPUT_PARTS)
    return {"type": kind, "call_id": call_id, "output": output}


def _arguments(text: str) -> JSON:
    """Arguments are JSON by convention; text that is not stays text."""
    try:
        return read_json(text.encode("utf-8", "surrogatepass"))
    except RequestError:
        return text


def _check_breakpoint(part: Mapping[str, Any], loc: Loc) -> None:
    mark = part.get("prompt_cache_breakpoint")
    if mark is None:
        return
    if loc[0] != "input":
        raise bad("is not allowed in question instructions", (*loc, "prompt_cache_breakpoint"), "unsupported_parameter")
    if not isinstance(mark, Mapping) or mark.get("mode") != "explicit":
        raise bad("must be an object with mode explicit", (*loc, "prompt_cache_breakpoint"))


def _check_json_size(data: JSON, loc: Loc) -> None:
    pending: list[tuple[Any, int]] = [(data, 1)]
    values = 0
    while pending:
        item, level = pending.pop()
        values += 1
        if not isinstance(item, Mapping | list):
            continue
        if level > MAX_JSON_LEVELS:
            raise _over("levels of nesting", level, MAX_JSON_LEVELS, loc)
        pending.extend((child, level + 1) for child in (item.values() if isinstance(item, Mapping) else item))
    if values > MAX_JSON_VALUES:
        raise _over("values", values, MAX_JSON_VALUES, loc)
    try:
        size = len(write_json(data))
    except UnicodeEncodeError:
        raise bad("text holds a lone surrogate, which is not valid Unicode", loc) from None
    if size > MAX_JSON_BYTES:
        raise _over("bytes", size, MAX_JSON_BYTES, loc)


def _over(what: str, seen: int, limit: int, loc: Loc) -> RequestError:
    return bad(f"{seen} {what} are more than the limit of {limit}", loc, "limit_exceeded", limit=limit, seen=seen)
