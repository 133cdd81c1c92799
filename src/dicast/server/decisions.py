"""``POST /v1/decisions``: OpenAI's form of the same; questions that cannot be answered while others can are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dicast.errors import CapabilityError, InputError, TokenBudgetError
from dicast.records import Decision
from dicast.server.deciding import unanswerable
from dicast.server.http import Request, Response, json_response
from dicast.server.models import Loaded
from dicast.server.services import Services
from dicast.server.systemone import answer, extra_facts
from dicast.wire import decisions
from dicast.wire.systemone import read_object


async def decisions_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """Answer one Decisions request."""
    body = await services.body(request, take)
    fields = await services.off_loop(body.heavy, lambda: read_object(body.text))
    name = fields.get("model")
    spec = services.models.resolve(name if isinstance(name, str) else None, decisions=True)
    request.facts["model"] = services.models.name_of(spec)
    async with services.models.lease(spec, services.settings.deadline_ms / 1000) as model:
        info = model.info
        decoder = services.decoder_for(info)
        asked = await services.off_loop(
            body.heavy,
            lambda: decisions.parse_request(fields, decoder=decoder, images=info.images),
            media=body.media,
        )
        read_ms = request.milliseconds
        try:
            decision = await _answered(services, request, model, asked, body.heavy)
        except InputError as error:
            raise asked.in_request_terms(error) from None
    settings = services.settings
    extra = extra_facts(services, request, asked.x_dicast, read_ms)
    return json_response(
        decisions.response_body(decision, asked, digits=settings.digits, confidence=settings.confidence, extra=extra)
    )


async def _answered(
    services: Services, request: Request, model: Loaded, asked: decisions.DecisionsRequest, heavy: bool
) -> Decision[Any]:
    """The decision; when some questions stand in the way of the others, once more without them."""
    try:
        return await answer(services, request, model, asked.record, asked.x_dicast, heavy=heavy)
    except (TokenBudgetError, CapabilityError) as error:
        options = asked.x_dicast.encode_options
        refused = await unanswerable(model, asked.record, options, error)
        if not refused or len(refused) == len(asked.record.questions):
            raise
        record = asked.without(refused).record
        return await answer(services, request, model, record, asked.x_dicast, heavy=heavy)
