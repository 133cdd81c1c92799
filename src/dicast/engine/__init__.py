"""From records to decisions: batches, isolation of questions and of failures, and the thread-safe :class:`Engine`."""

from __future__ import annotations

from dicast.engine.batches import BatchLimits, form_batches, limits_for
from dicast.engine.engine import Engine, EngineStats

__all__ = ["BatchLimits", "Engine", "EngineStats", "form_batches", "limits_for"]
