"""``POST /v1/systemone``: one record, one decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dicast.records import Decision, Record
from dicast.server.deciding import decide
from dicast.server.http import Request, Response, json_response
from dicast.server.models import Loaded
from dicast.server.services import Services
from dicast.wire import systemone
from dicast.wire.extensions import Extensions


async def systemone_route(services: Services, request: Request, take: Callable[[int], None]) -> Response:
    """Answer one System One request."""
    body = await services.body(request, take)
    fields = await services.off_loop(body.heavy, lambda: systemone.read_object(body.text))
    spec = services.models.resolve(systemone.parse_model(fields))
    request.facts["model"] = services.models.name_of(spec)
    async with services.models.lease(spec, services.settings.deadline_ms / 1000) as model:
        decoder = services.decoder_for(model.info)
        asked = await services.off_loop(
            body.heavy,
            lambda: systemone.parse_request(fields, parts=body.parts, decoder=decoder, strict=services.settings.strict),
            media=body.media,
        )
        read_ms = request.milliseconds
        decision = await answer(services, request, model, asked.record, asked.x_dicast, heavy=body.heavy)
    settings = services.settings
    extra = extra_facts(services, request, asked.x_dicast, read_ms)
    shown = systemone.response_body(
        decision, digits=settings.digits, confidence=settings.confidence, asked=asked.x_dicast, extra=extra
    )
    return json_response(shown)


async def answer(
    services: Services,
    request: Request,
    model: Loaded,
    record: Record,
    asked: Extensions,
    *,
    heavy: bool = False,
    watch: bool = True,
) -> Decision[Any]:
    """Decide one record and count it.

    Args:
        heavy: whether encoding the record would hold up the event loop.
        watch: cancel when the client goes away; False while the body is still being read.
    """
    decision = await decide(
        model,
        record,
        options=asked.encode_options,
        isolate=isolates(services, asked),
        seconds=services.seconds_for(request, asked),
        heavy=heavy,
        request=request if watch else None,
    )
    usage = decision.usage
    kinds = [question.type for question in record.questions.values()]
    services.metrics.answered(model.name, request.key, kinds, usage.input_tokens, usage.cached_tokens)
    facts = request.facts
    facts["model"] = model.name
    facts["questions"] = facts.get("questions", 0) + len(kinds)
    facts["input_tokens"] = facts.get("input_tokens", 0) + usage.input_tokens
    return decision


def isolates(services: Services, asked: Extensions) -> bool:
    """Whether a request's questions are scored alone."""
    return services.settings.isolate if asked.isolate is None else asked.isolate


def extra_facts(services: Services, request: Request, asked: Extensions, read_ms: float) -> Mapping[str, Any]:
    """What ``x_dicast`` reports beyond the decision."""
    facts: dict[str, Any] = {}
    if asked.isolate is not None:
        facts["isolate"] = asked.isolate
    if asked.timings:
        total = request.milliseconds
        facts["timings"] = {
            "read_ms": round(read_ms, 3),
            "decide_ms": round(total - read_ms, 3),
            "total_ms": round(total, 3),
        }
    return facts
