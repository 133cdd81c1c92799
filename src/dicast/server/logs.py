"""Structured logs: one JSON object per line on standard error. Never keys; states only where a setting asks for it."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

LOGGER = "dicast.server"


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time, level, event, the facts given as ``extra={"facts": {...}}``, and an error."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as one line."""
        return json.dumps(_fields(record, self), ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """The same for people: time, level, event and ``name=value`` pairs."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record; an error's traceback follows on lines of its own."""
        fields = _fields(record, self)
        trace = fields.pop("traceback", "")
        head = f"{fields.pop('time')} {fields.pop('level'):7} {fields.pop('event')}"
        rest = " ".join(f"{name}={value}" for name, value in fields.items())
        return f"{head} {rest}".rstrip() + (f"\n{trace}" if trace else "")


def configure(level: str, style: str, stream: TextIO | None = None) -> logging.Logger:
    """Set up the server's logger and return it; uvicorn's warnings go the same way.

    Args:
        level: debug, info, warning or error.
        style: json, text, or auto, which is text on a terminal.
        stream: where to write; standard error by default.
    """
    target = stream or sys.stderr
    text = style == "text" or (style == "auto" and target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    for name, lowest in ((LOGGER, level), ("uvicorn", "warning")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(lowest.upper())
        logger.propagate = False
    return logging.getLogger(LOGGER)


def _fields(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Any]:
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "event": record.getMessage()}
    fields |= getattr(record, "facts", {})
    if record.exc_info:
        fields["traceback"] = formatter.formatException(record.exc_info)
    return fields
