"""The official JavaScript clients, unchanged, against our server; `npm ci` in tests/server/node brings them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.server.serving import Running

FOLDER = Path(__file__).with_name("node")


@pytest.fixture(scope="module")
def seen(embedded: Running) -> dict[str, Any]:
    """What the clients saw."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (FOLDER / "node_modules" / "@typesafe-ai").is_dir() or not (FOLDER / "node_modules" / "openai").is_dir():
        pytest.skip(f"the clients are not installed: run npm ci in {FOLDER.name}")
    run = subprocess.run([node, "clients.mjs", embedded.url], cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    shown: dict[str, Any] = json.loads(run.stdout)
    return shown


def test_typesafe(seen: dict[str, Any]) -> None:
    answers = seen["systemOne"]["answers"]
    assert list(answers) == ["refund", "team", "anger"]
    assert answers["team"]["choice"] in ("billing", "technical")
    assert seen["models"] == ["dicast-embedded", "jev-latest"]
    assert (seen["unknownModel"]["name"], seen["unknownModel"]["status"]) == ("BadRequestError", 400)
    assert "dicast-embedded" in seen["unknownModel"]["message"]
    assert seen["nullState"]["name"] == "UnprocessableEntityError"
    assert "state: Field required" in seen["nullState"]["message"]


def test_openai(seen: dict[str, Any]) -> None:
    refund, team, anger = seen["decision"]["answers"]
    assert refund["name"] == "refund"
    assert [share["value"] for share in team["probabilities"]] == ["billing", True]
    assert anger["probabilities"][1]["label"] == "angry"
    assert seen["requestId"].startswith("req_")
    assert seen["openaiModels"] == ["dicast-embedded", "jev-latest"]
    assert seen["badDecision"]["param"] == "questions"
    assert seen["badDecision"]["status"] == 400
