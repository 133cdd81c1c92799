"""`dicast.scale.serve`: the server's application behind Ray Serve, with several replicas."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.fakes import FakeModel
from tests.scale.ray_runs import CASES_USED, REPLICAS

from dicast.engine import Engine
from dicast.errors import ConfigError, MissingDependencyError
from dicast.scale.serve import NAME, build_app
from dicast.server.app import App
from dicast.server.settings import ModelSpec, Settings


@pytest.mark.ray
def test_replicas_answer_as_the_server_does(ray_run: Callable[[str], Any]) -> None:
    result = ray_run("online")
    assert result["states"] == {"RUNNING": REPLICAS}
    answers = result["answers"]
    expected = CASES_USED[0]["response"]["answers"]
    assert len(answers["good"]) == 4 * REPLICAS
    for status, text in answers["good"]:
        assert status == 200
        shown = json.loads(text)["answers"]
        assert {key: answer["noul"] for key, answer in shown.items()} == pytest.approx(
            {key: answer["noul"] for key, answer in expected.items()}, abs=1e-3
        )
    ((status, text),) = answers["bad"]
    assert (status, json.loads(text)["error"]["message"]) == (422, "questions: Field required")
    assert [status for status, _ in answers["without a key"]] == [401]
    ((status, text),) = answers["batch"]
    assert [json.loads(line)["index"] for line in text.splitlines()] == [0, 1, 2]
    assert [status for status, _ in answers["ready"]] == [200]


class RecordingServe:
    """Stands for `ray.serve`: keeps what it is asked for."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}
        self.builders: list[Callable[[], App]] = []

    def ingress(self, builder: Callable[[], App]) -> Callable[[], RecordingServe]:
        self.builders.append(builder)
        return lambda: self

    def deployment(self, **options: Any) -> Callable[[RecordingServe], RecordingServe]:
        self.options = options
        return lambda deployment: deployment

    def bind(self) -> RecordingServe:
        return self


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> RecordingServe:
    serve = RecordingServe()
    monkeypatch.setattr("dicast.scale.serve.import_ray", lambda name: serve)
    return serve


def test_a_replica_takes_as_many_requests_at_once_as_the_server(recording: RecordingServe) -> None:
    build_app(Settings(max_in_flight=77, grace_seconds=9), replicas=3, num_cpus=2, num_gpus=0.5)
    assert recording.options == {
        "name": NAME,
        "num_replicas": 3,
        "ray_actor_options": {"num_cpus": 2, "num_gpus": 0.5},
        "max_ongoing_requests": 77,
        "graceful_shutdown_timeout_s": 9,
    }


def test_options_of_the_deployment_come_last(recording: RecordingServe) -> None:
    build_app(Settings(), max_ongoing_requests=5, health_check_period_s=1)
    assert recording.options["max_ongoing_requests"] == 5
    assert recording.options["health_check_period_s"] == 1


def test_a_public_address_needs_keys_here_too(recording: RecordingServe) -> None:
    with pytest.raises(ConfigError, match="--host"):
        build_app(Settings(host="0.0.0.0"))
    assert recording.options == {}


def test_a_replica_loads_its_model_before_it_exists_and_only_once(
    recording: RecordingServe, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[ModelSpec] = []

    def load_engine(spec: ModelSpec, settings: Settings) -> Engine:
        loaded.append(spec)
        return Engine(FakeModel())

    monkeypatch.setattr("dicast.server.process.load_engine", load_engine)
    monkeypatch.setattr("dicast.server.logs.configure", lambda level, style: None)
    settings = Settings(models=(ModelSpec("one", "/one"), ModelSpec("two", "/two")))
    build_app(settings)
    app = recording.builders[0]()
    assert loaded == [settings.models[0]]

    async def use() -> None:
        for spec in settings.models:
            async with app.services.models.lease(spec, 10) as model:
                assert model.name == spec.name
        await app.stop()

    asyncio.run(use())
    assert loaded == list(settings.models)


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.serve", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'dicast\[ray\]'"):
        build_app(Settings())
