"""From a record to a decision over HTTP: deadline, and cancellation when the client goes away. Knows no JSON."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from dicast.errors import DeadlineExceededError, InputError, TokenBudgetError
from dicast.models.base import EncodeOptions
from dicast.records import Decision, Record, with_questions
from dicast.server.http import ClientGoneError, Request
from dicast.server.models import Loaded

MAX_CHECKED = 64
"""Most questions that are looked at one by one to find those that do not fit."""


async def decide(
    model: Loaded,
    record: Record,
    *,
    options: EncodeOptions,
    isolate: bool,
    seconds: float,
    heavy: bool = False,
    request: Request | None = None,
) -> Decision[Any]:
    """Answer a record.

    Args:
        model: a leased model.
        record: what to answer.
        options: how to encode it.
        isolate: score each question alone under a neutral id.
        seconds: time left.
        heavy: whether encoding the record would hold up the event loop.
        request: whose client may go away; None when somebody else watches.

    Raises:
        InputError: the record cannot be answered.
        EngineError: queue full, deadline passed, or closed.
        ClientGoneError: the client went away; the work has been cancelled.
    """
    submit = partial(model.engine.submit, record, options=options, isolate=isolate, deadline=seconds)
    future = await asyncio.to_thread(submit) if heavy else submit()
    answer = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(request.gone()) if request else None
    awaited: set[asyncio.Future[Any]] = {answer, gone} if gone else {answer}
    try:
        await asyncio.wait(awaited, timeout=seconds, return_when="FIRST_COMPLETED")
        if answer.done():
            return replace(answer.result(), model=model.name)
        if gone is not None and gone.done():
            raise ClientGoneError
        raise DeadlineExceededError(f"not answered within {seconds:g} seconds")
    finally:
        answer.cancel()
        if gone is not None:
            gone.cancel()


async def unanswerable(model: Loaded, record: Record, options: EncodeOptions, error: InputError) -> set[str]:
    """Ids of the questions that stand in the way of the others: named by the error, or too long on their own."""
    for question_id in record.questions:
        if error.field.startswith(f"questions.{question_id}."):
            return {question_id}
    if not isinstance(error, TokenBudgetError) or not 1 < len(record.questions) <= MAX_CHECKED:
        return set()
    return await asyncio.to_thread(_too_long, model, record, options)


def _too_long(model: Loaded, record: Record, options: EncodeOptions) -> set[str]:
    found = set()
    for question_id, question in record.questions.items():
        try:
            model.engine.model.model.encode(with_questions(record, {question_id: question}), options)
        except TokenBudgetError:
            found.add(question_id)
    return found
