"""Servers in all their dialects, and a local model that refuses a record."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.evaluation.toys import toy

from dicast.errors import ConfigError, RecordError
from dicast.evaluation import backends
from dicast.evaluation.backends import (
    LocalBackend,
    ServerBackend,
    decisions_body,
    read_reply,
    retry_wait,
    systemone_body,
)
from dicast.records import Choice, Noul, Record, Score

RECORD = Record(
    {"subject": "Down"},
    {
        "urgent": Noul("Urgent?", {"true": "today"}),
        "team": Choice("Who?", {"billing": "Payments", "tech": None}),
        "level": Score("How bad?", ["low", {"text": "mid"}, "high"]),
    },
    images=("data:image/png;base64,AAAA",),
)
ANSWERS = {
    "urgent": {"type": "noul", "noul": 0.9},
    "team": {"type": "choice", "choice": "tech", "confidence": 0.5, "probabilities": {"billing": 0.25, "tech": 0.75}},
    "level": {"type": "score", "score": 1.2, "probabilities": {"0": 0.1, "1": 0.6, "2": 0.3}, "legend": {}},
}
BODY = {"model": "served-1", "answers": ANSWERS, "usage": {"input_tokens": 40, "output_tokens": 0}}


def server(handler: Callable[[httpx.Request], httpx.Response], url: str = "http://x", **options: Any) -> ServerBackend:
    return ServerBackend(url, client=httpx.Client(transport=httpx.MockTransport(handler)), **options)


def test_system_one_request_and_reply() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=BODY)

    backend = server(handler, model="m", key="secret")
    (reply,) = backend.answer([RECORD])
    assert seen[0].url == "http://x/v1/systemone"
    assert seen[0].headers["authorization"] == "Bearer secret"
    body = json.loads(seen[0].content)
    assert body["model"] == "m"
    assert body["questions"]["team"] == {
        "type": "choice",
        "instructions": "Who?",
        "criteria": {"billing": "Payments", "tech": None},
    }
    assert body["questions"]["level"]["criteria"] == ["low", {"text": "mid"}, "high"]
    assert body["images"] == ["data:image/png;base64,AAAA"]
    assert set(body) == {"model", "state", "questions", "images"}  # hosted APIs refuse unknown fields
    assert reply.probabilities["urgent"] == {"true": 0.9, "false": pytest.approx(0.1)}
    assert reply.probabilities["level"]["1"] == 0.6
    assert reply.tokens == 40
    assert backend.name == "served-1"


def test_decisions_request_and_reply() -> None:
    answers = [
        {"type": "predicate", "name": "urgent", "probability": 0.9},
        {
            "type": "choice",
            "name": None,
            "probabilities": [{"value": "billing", "probability": 0.25}, {"value": "tech", "probability": 0.75}],
        },
        {"type": "refusal", "name": "level"},
    ]
    seen: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        assert request.url == "http://x/v1/decisions"
        return httpx.Response(200, json={"model": "d", "answers": answers})

    (reply,) = server(handler, api="decisions").answer([RECORD])
    assert seen[0]["input"][0]["content"][0] == {"type": "input_json", "data": {"subject": "Down"}}
    assert seen[0]["questions"][0] == {"name": "urgent", "instructions": "Urgent?\ntrue: today", "type": "predicate"}
    assert seen[0]["questions"][1]["choices"] == [{"value": "billing", "description": "Payments"}, {"value": "tech"}]
    assert seen[0]["questions"][2]["levels"][1] == {"label": '{"text": "mid"}'}
    assert reply.probabilities["team"] == {"billing": 0.25, "tech": 0.75}
    assert "level" not in reply.probabilities
    assert reply.tokens is None


@pytest.mark.parametrize(
    "body",
    [
        {"result": BODY, "success": True, "errors": []},
        {"response": BODY},
        BODY | {"usage": None},
        BODY | {"answers": ANSWERS | {"urgent": {"type": "boolean", "probability": 0.9}}},
        BODY | {"answers": ANSWERS | {"level": {"type": "score", "probabilities": [0.1, 0.6, 0.3], "legend": ["low"]}}},
        BODY | {"answers": ANSWERS | {"box": {"type": "box", "box": {}}}},
    ],
    ids=["result envelope", "response envelope", "no usage", "boolean", "lists", "unknown answer"],
)
def test_dialects_that_are_read(body: dict[str, Any]) -> None:
    (reply,) = server(lambda request: httpx.Response(200, json=body)).answer([RECORD])
    assert reply.error == ""
    assert reply.probabilities["urgent"]["true"] == 0.9
    assert reply.probabilities["level"] == {"0": 0.1, "1": 0.6, "2": 0.3}


def test_rounded_probabilities_are_normalised_and_wrong_ones_refused() -> None:
    rounded = {"answers": ANSWERS | {"team": {"type": "choice", "probabilities": {"billing": 0.33, "tech": 0.68}}}}
    assert sum(read_reply(RECORD, rounded, 1.0).probabilities["team"].values()) == pytest.approx(1.0)
    wrong = {"answers": ANSWERS | {"team": {"type": "choice", "probabilities": {"billing": 0.3, "tech": 0.4}}}}
    with pytest.raises(RecordError, match=r"sum to 0\.700"):
        read_reply(RECORD, wrong, 1.0)


def test_a_bare_choice_is_marked() -> None:
    reply = read_reply(RECORD, {"answers": ANSWERS | {"team": {"type": "choice", "choice": "tech"}}}, 1.0)
    assert reply.probabilities["team"] == {"billing": 0.0, "tech": 1.0}
    assert reply.bare == ("team",)


def test_abstention_of_a_dicast_server_is_read() -> None:
    extra = {
        "answers": {"team": {"accepted": False, "prediction_set": ["tech", "billing"], "entropy": 0.5}, "level": {}}
    }
    reply = read_reply(RECORD, BODY | {"x_dicast": extra}, 1.0)
    assert reply.accepted == {"team": False}
    assert reply.sets == {"team": ["tech", "billing"]}
    assert read_reply(RECORD, BODY | {"x_dicast": {"cache": 1}}, 1.0).accepted == {}


def test_busy_servers_are_asked_again_and_bad_requests_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(backends.time, "sleep", waits.append)
    codes = iter([529, 429, 200])

    def busy(request: httpx.Request) -> httpx.Response:
        return httpx.Response(next(codes), json=BODY, headers={"retry-after-ms": "250"})

    assert server(busy).answer([RECORD])[0].error == ""
    assert waits == [0.25, 0.25]
    calls: list[int] = []

    def bad(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(422, json={"detail": "no"})

    assert server(bad).answer([RECORD])[0].error.startswith("failed: HTTP 422")
    assert len(calls) == 1


def test_a_server_that_is_not_there_is_a_failed_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.time, "sleep", lambda seconds: None)

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    assert server(gone).answer([RECORD, RECORD])[1].error == "failed: no response (ConnectError)"


def test_retry_wait_reads_both_headers() -> None:
    assert retry_wait({"retry-after-ms": "0"}, 5) == 0.0
    assert retry_wait({"retry-after": "1.5"}, 5) == 1.5
    assert retry_wait({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 5) == 5
    assert retry_wait({"retry-after-ms": "-1"}, 5) == 5


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://x/", "http://x/v1/systemone"),
        ("http://x/v1", "http://x/v1/systemone"),
        ("http://x/a/v1/decisions", "http://x/a/v1/decisions"),
    ],
)
def test_base_urls(url: str, endpoint: str) -> None:
    backend = server(lambda request: httpx.Response(200, json=BODY), url)
    assert backend.url == endpoint
    assert backend.api == ("decisions" if url.endswith("decisions") else "systemone")


def test_a_url_needs_a_scheme() -> None:
    with pytest.raises(ConfigError, match="http://"):
        server(lambda request: httpx.Response(200), "localhost:8000")


def test_a_local_model_that_refuses_one_record_answers_the_others() -> None:
    records = [Record(text, {"q": Noul("Is it?")}) for text in ("short", "far too long", "fine")]
    replies = LocalBackend(toy()).answer(records)
    assert [bool(reply.error) for reply in replies] == [False, True, False]
    assert "2000 fit" in replies[1].error
    assert replies[2].probabilities == LocalBackend(toy()).answer(records[2:])[0].probabilities


def test_bodies_leave_out_what_was_not_said() -> None:
    plain = Record("text", {"q": Noul()})
    assert systemone_body(plain) == {"state": "text", "questions": {"q": {"type": "noul"}}}
    assert decisions_body(plain)["questions"] == [{"name": "q", "instructions": "q", "type": "predicate"}]
