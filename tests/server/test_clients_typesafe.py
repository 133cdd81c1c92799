"""TypeSafe's Python SDK, unchanged, against our server."""

import asyncio
import io
from pathlib import Path

import pytest
from PIL import Image as Picture
from pydantic import BaseModel
from tests.server.serving import Running, running
from tests.server.test_keys import keys_file

from dicast.server.settings import Settings

sdk = pytest.importorskip("typesafe_sdk", reason="the typesafe-sdk package is not installed")

QUESTIONS = {
    "refund": sdk.Noul(instructions="Does the customer want money back?"),
    "team": sdk.Choice(instructions="Which team?", criteria={"billing": "Payments and refunds", "technical": None}),
    "anger": sdk.Score(instructions="How angry?", criteria=["Calm", {"label": "Frustrated"}, "Very angry"]),
}
STATE = {"subject": "Charged twice", "body": "Please refund me today.", "none": None}


def client_of(server: Running, **options: object) -> "sdk.TypeSafeClient":
    return sdk.TypeSafeClient(**{"base_url": server.url, "api_key": "local", "timeout": 30.0, **options})


def test_every_answer_type(embedded: Running) -> None:
    with client_of(embedded) as client:
        response = client.system_one(STATE, QUESTIONS)
    assert response.model == "dicast-embedded"
    assert 0 <= response.nouls["refund"].noul <= 1
    assert response.choices["team"].choice in ("billing", "technical")
    assert sum(response.choices["team"].probabilities.values()) == pytest.approx(1)
    assert response.scores["anger"].legend[1] == {"label": "Frustrated"}
    assert 0 <= response.scores["anger"].score <= 2
    assert response.usage.input_tokens > 0
    assert response.request_id.startswith("req_")


def test_large_bodies_are_compressed_by_the_client_and_read(embedded: Running) -> None:
    with client_of(embedded, compression="zstd") as client:
        large = client.system_one("I was charged twice. " * 100, QUESTIONS)
    with client_of(embedded, compression=False) as client:
        plain = client.system_one("I was charged twice. " * 100, QUESTIONS)
    assert large.answers == plain.answers


def test_asynchronous_calls(embedded: Running) -> None:
    async def ask() -> list[str]:
        async with sdk.AsyncTypeSafeClient(base_url=embedded.url + "/", api_key="local", timeout=30.0) as client:
            answers = await asyncio.gather(*(client.system_one(f"state {i}", QUESTIONS) for i in range(4)))
            listed = await client.models.list()
        return [answer.model for answer in answers] + [model.name for model in listed.models]

    assert asyncio.run(ask()) == ["dicast-embedded"] * 5 + ["jev-latest"]


def test_answers_as_a_type_of_the_caller(embedded: Running) -> None:
    class Triage(sdk.SystemOneResponse):
        refund: sdk.NoulAnswer
        team: sdk.ChoiceAnswer

    with client_of(embedded) as client:
        triage = client.system_one("Refund me.", {k: QUESTIONS[k] for k in ("refund", "team")}, response_model=Triage)
    assert isinstance(triage, BaseModel)
    assert triage.team.choice in ("billing", "technical")


def test_extensions_travel_in_extra_body(embedded: Running) -> None:
    with client_of(embedded) as client:
        alone = client.system_one(STATE, QUESTIONS, extra_body={"x_dicast": {"isolate": True, "entropy": True}})
        assert set(alone.nouls) == {"refund"}


def test_errors_have_the_classes_and_messages_that_callers_expect(embedded: Running) -> None:
    with client_of(embedded) as client:
        with pytest.raises(sdk.TypeSafeBadRequestError, match="dicast-embedded") as unknown:
            client.system_one("x", QUESTIONS, model="nothing")
        assert unknown.value.request_id.startswith("req_")
        with pytest.raises(sdk.TypeSafeUnprocessableEntityError, match=r"questions\.a\.type"):
            client.system_one("x", {"a": {"type": "ranking", "items": [1]}})
        with pytest.raises(sdk.TypeSafeBadRequestError, match="256 options"):
            client.system_one("x", {"a": {"type": "choice", "criteria": {str(i): None for i in range(256)}}})
        with pytest.raises(sdk.TypeSafeBadRequestError, match="box questions are not supported"):
            client.system_one("x", {"a": sdk.Box(instructions="The dog")})
    with client_of(embedded, base_url=embedded.url + "/nowhere/at") as client:
        assert client.system_one("x", QUESTIONS).model


def test_keys(tmp_path: Path) -> None:
    path, keys = keys_file(tmp_path, "alice")
    with running(Settings(api_keys_file=path)) as server:
        with client_of(server, api_key=keys["alice"]) as client:
            assert client.system_one("x", QUESTIONS).model == "arithmetic-1"
        with (
            client_of(server, api_key="wrong") as client,
            pytest.raises(sdk.TypeSafeAuthenticationError, match="not valid"),
        ):
            client.system_one("x", QUESTIONS)


def test_retries_obey_our_hints(tmp_path: Path) -> None:
    path, keys = keys_file(tmp_path, "slow", more="requests_per_minute = 600\nconcurrent = 1\n")
    with (
        running(Settings(api_keys_file=path, requests_per_minute=1)) as server,
        client_of(server, api_key=keys["slow"]) as client,
    ):
        for _ in range(61):
            client.system_one("x", QUESTIONS)
        metrics = server.client.get("/metrics", headers={"authorization": f"Bearer {keys['slow']}"}).text
    assert 'dicast_requests_total{route="systemone",status="200"} 61.0' in metrics


def picture(colour: str) -> "sdk.Image":
    file = io.BytesIO()
    Picture.new("RGB", (300, 280), colour).save(file, "PNG")
    return sdk.Image(file.getvalue())


def test_images_reach_a_model_that_sees() -> None:
    red, blue = picture("red"), picture("blue")
    question = {"same": sdk.Noul(instructions={"q": "The same as this?", "other": blue})}
    with running() as server, client_of(server) as client:
        assert client.system_one(red, question).nouls["same"]
        assert client.system_one("see PHOTO", {"red": sdk.Noul(instructions="Is PHOTO red?")}, assets={"PHOTO": red})
        assert "image 1" in server.model.scored[-1]
        assert "PHOTO" not in server.model.scored[-1]


def test_images_are_refused_clearly_by_a_model_that_does_not(embedded: Running) -> None:
    with client_of(embedded) as client, pytest.raises(sdk.TypeSafeBadRequestError, match="reads text only"):
        client.system_one(picture("red"), QUESTIONS)


def test_the_models_listing(embedded: Running) -> None:
    with client_of(embedded) as client:
        listed = client.models.list().models
    assert [model.name for model in listed] == ["dicast-embedded", "jev-latest"]
    assert all(model.description and model.release_date for model in listed)
