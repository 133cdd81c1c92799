"""Every error Dicast raises on purpose.

    DicastError
    ├── InputError (also ValueError)        the caller's data is wrong: HTTP 4xx, exit code 2
    │   ├── RecordError                     a field of a record or question has the wrong shape or breaks a limit
    │   ├── TokenBudgetError                the record does not fit the model's context
    │   ├── MediaError                      an image or video is unreadable, unsafe or over a limit
    │   ├── CapabilityError                 the model cannot do this (images asked of a text model, unknown option)
    │   ├── ConfigError                     a setting, configuration file or data file is wrong
    │   └── ModelNotFoundError              no such model name, folder or revision
    ├── CheckpointError                     a checkpoint folder is incomplete, corrupt or of the wrong kind
    ├── MissingDependencyError (ImportError)  an optional extra is not installed
    └── EngineError
        ├── OverloadedError                 the queue is full; `retry_after_ms` says when to try again
        ├── DeadlineExceededError           the record's deadline passed before it was answered
        └── EngineClosedError               the engine is shutting down

An `InputError` carries the path of the field, the limit and what was seen, so that every surface (Python, command line,
HTTP) can say the same sentence. This module imports nothing of Dicast.
"""

from __future__ import annotations

from typing import Any


class DicastError(Exception):
    """Base of every error raised on purpose by Dicast."""


class InputError(DicastError, ValueError):
    """The caller's data is wrong.

    Args:
        message: one sentence without a trailing full stop, for people.
        field: dotted path of the field, e.g. ``questions.team.criteria``; empty when no field is meant.
        limit: the limit that was broken, if any.
        seen: the value (or its size) that was seen, if it is short enough to show.
    """

    def __init__(self, message: str, *, field: str = "", limit: Any = None, seen: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.limit = limit
        self.seen = seen

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_input_error, (type(self), self.message, self.field, self.limit, self.seen))


def _rebuild_input_error(kind: type[InputError], message: str, field: str, limit: Any, seen: Any) -> InputError:
    return kind(message, field=field, limit=limit, seen=seen)


class RecordError(InputError):
    """A field of a record or question has the wrong shape or breaks a limit."""


class TokenBudgetError(InputError):
    """The record does not fit the model's context; ``limit`` and ``seen`` are token counts."""


class MediaError(InputError):
    """An image or video is unreadable, unsafe or over a limit."""


class CapabilityError(InputError):
    """The loaded model cannot do what was asked."""


class ConfigError(InputError):
    """A setting, configuration file or data file is wrong."""


class ModelNotFoundError(InputError):
    """No such model name, folder or revision."""


class CheckpointError(DicastError):
    """A checkpoint folder is incomplete, corrupt or of the wrong kind."""


class MissingDependencyError(DicastError, ImportError):
    """An optional extra is not installed; the message says which ``pip install`` brings it."""


class EngineError(DicastError):
    """The engine could not answer a record that was itself fine."""


class OverloadedError(EngineError):
    """The queue is full.

    Args:
        message: one sentence for people.
        retry_after_ms: an honest estimate of when the queue will have room, in milliseconds.
    """

    def __init__(self, message: str, *, retry_after_ms: int = 1000) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class DeadlineExceededError(EngineError):
    """The record's deadline passed before it was answered."""


class EngineClosedError(EngineError):
    """The engine is shutting down and takes no new records."""
