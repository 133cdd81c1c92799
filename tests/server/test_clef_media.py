"""A Clef checkpoint behind HTTP: pictures in a multipart body give the answers that they give in Python."""

import io
import json
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("torch", reason="Clef models need torch")

from tests.server.serving import NOUL, SCORE, running

from dicast.server.process import load_engine
from dicast.server.settings import ModelSpec, Settings
from dicast.wire.systemone import parse_request, response_body

RELEASE = Path(__file__).parents[1] / "golden" / "release"


def picture(colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (288, 320), colour).save(file, "PNG")
    return file.getvalue()


def test_pictures_over_http_are_the_pictures_of_python() -> None:
    request = {
        "state": {"before": "A", "after": "B"},
        "questions": {"same": {**NOUL, "instructions": "Does A look like B?"}, "more": SCORE},
        "assets": {"A": {"part": "asset-0"}, "B": {"part": "asset-1"}},
    }
    pictures = {"asset-0": picture("red"), "asset-1": picture("blue")}
    settings = Settings(device="cpu")
    engine = load_engine(ModelSpec("clef", str(RELEASE)), settings)
    record = parse_request(request, parts=pictures).record
    expected = response_body(engine.decide(record))
    parts = {
        "request": (None, json.dumps(request), "application/json"),
        **{name: (name, data, "image/png") for name, data in pictures.items()},
    }
    with running(settings, models={}, load=lambda spec: engine) as server:
        answer = server.client.post("/v1/systemone", files=parts).json()
        assert answer["answers"] == expected["answers"]
        assert answer["usage"] == expected["usage"]
        assert answer["usage"]["input_tokens"] > 180
        swapped = {**parts, "asset-0": parts["asset-1"], "asset-1": parts["asset-0"]}
        assert server.client.post("/v1/systemone", files=swapped).json()["answers"] != answer["answers"]
