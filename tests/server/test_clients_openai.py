"""OpenAI's Python SDK, unchanged, against our server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.serving import Running, running
from tests.server.test_keys import keys_file

from dicast.server.settings import Settings

openai = pytest.importorskip("openai", reason="the openai package is not installed")

REFUND = {"type": "predicate", "name": "refund", "instructions": "The customer wants money back."}
TEAM = {
    "type": "choice",
    "instructions": "Which team?",
    "choices": [{"value": "billing", "description": "Payments"}, {"value": "technical"}, {"value": True}],
}
ANGER = {
    "type": "score",
    "name": "anger",
    "instructions": "How angry?",
    "levels": [{"label": "calm"}, {"label": "angry"}],
}


@pytest.fixture
def client(embedded: Running) -> Iterator["openai.OpenAI"]:
    with openai.OpenAI(base_url=f"{embedded.url}/v1", api_key="local", max_retries=0) as made:
        yield made


def test_every_question_type(client: "openai.OpenAI") -> None:
    decision = client.decisions.create(
        model="gpt-6-luna", input="I was charged twice. Refund me!", questions=[REFUND, TEAM, ANGER]
    )
    refund, team, anger = decision.answers
    assert decision.model == "dicast-embedded"
    assert (refund.type, refund.name, team.name) == ("predicate", "refund", None)
    assert 0 <= refund.probability <= 1
    assert team.choice in ("billing", "technical", True)
    assert [share.value for share in team.probabilities] == ["billing", "technical", True]
    assert anger.probabilities[1].label == "angry"
    assert decision.usage.total_tokens == decision.usage.input_tokens > 0
    assert decision._request_id.startswith("req_")


def test_conversations(client: "openai.OpenAI") -> None:
    decision = client.decisions.create(
        model="dicast-embedded",
        input=[
            {"role": "developer", "content": "You judge tickets."},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "see"}, {"type": "input_json", "data": {"a": 1}}],
            },
            {"type": "function_call", "call_id": "c1", "name": "lookup", "arguments": '{"id": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "found"},
        ],
        questions=[REFUND],
        prompt_cache_options={"mode": "explicit", "ttl": "30m"},
        safety_identifier="u-1",
    )
    assert len(decision.answers) == 1


def test_asynchronous_calls(embedded: Running) -> None:
    async def ask() -> str:
        async with openai.AsyncOpenAI(base_url=f"{embedded.url}/v1", api_key="local") as made:
            decision = await made.decisions.create(model="gpt-6-luna", input="x", questions=[REFUND])
            return decision.answers[0].type

    assert asyncio.run(ask()) == "predicate"


def test_errors_have_code_param_and_class(client: "openai.OpenAI", tmp_path: Path) -> None:
    with pytest.raises(openai.BadRequestError, match="unknown model") as unknown:
        client.decisions.create(model="nothing", input="x", questions=[REFUND])
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.decisions.create(model="gpt-6-luna", input="x", questions=[{**TEAM, "choices": TEAM["choices"] * 2}])
    assert wrong.value.param == "questions[0].choices[3].value"
    path, _ = keys_file(tmp_path, "alice")
    with (
        running(Settings(api_keys_file=path)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong") as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.decisions.create(model="gpt-6-luna", input="x", questions=[REFUND])
    assert refused.value.code == "invalid_api_key"


def test_models(client: "openai.OpenAI") -> None:
    assert [model.id for model in client.models.list()] == ["dicast-embedded", "jev-latest"]
    assert client.models.retrieve("dicast-embedded").owned_by == "dicast"
