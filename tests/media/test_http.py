"""Images and videos over HTTP to a Clef checkpoint: the reference's answers, and no file that harms the server."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.golden_cases import CASES, FOLDER, RELEASE
from tests.media.samples import animation, data_url, encoded, gradient, video
from tests.media.test_images import bomb
from tests.server.serving import Running, running

from dicast.checkpoints import load_clef
from dicast.engine import Engine
from dicast.server.services import MEDIA_THREADS
from dicast.server.settings import Settings

GOLDEN_NOISE = 1e-3
"""Rounding to 4 decimals and the float32 noise of this checkpoint (5e-4 in a logit)."""
QUESTIONS = {"q": {"type": "noul", "instructions": "Is it red?"}}
PICTURE = encoded(gradient(192, 192))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    model: Any = load_clef(RELEASE, device="cpu", dtype="float32")
    model.gate = threading.Event()  # what `running` opens when it ends
    settings = Settings(media_processes=1)
    with running(settings, models={"release": model}, load=lambda _: Engine(model)) as alive:
        yield alive


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "release", "state": "state", "questions": QUESTIONS, **fields}


def asset(data: bytes, **fields: str) -> dict[str, str]:
    return {"data_base64": base64.b64encode(data).decode(), **fields}


def probabilities(answers: dict[str, Any]) -> np.ndarray:
    return np.concatenate([[a["noul"]] if "noul" in a else list(a["probabilities"].values()) for a in answers.values()])


@pytest.mark.parametrize("name", ["image-1", "image-2", "image-tall"])
def test_golden_images_give_the_reference_s_answers(name: str, server: Running) -> None:
    case = next(case for case in CASES if case["name"] == name)
    images = [data_url((FOLDER / file).read_bytes()) for file in case["media"]["images"]]
    response = server.post(case["request"] | {"model": "release", "images": images})
    assert response.status_code == 200
    shown, expected = response.json(), case["response"]
    assert shown["usage"]["input_tokens"] == expected["usage"]["input_tokens"] == len(case["input_ids"])
    np.testing.assert_allclose(probabilities(shown["answers"]), probabilities(expected["answers"]), atol=GOLDEN_NOISE)


def test_every_way_to_send_an_image_shows_the_same(server: Running) -> None:
    listed = server.post(
        body(state="image 1", images=[{"content_type": "image/png", "base64": asset(PICTURE)["data_base64"]}])
    )
    inline = server.post(body(state="PHOTO", assets={"PHOTO": asset(PICTURE, type="image", format="png")}))
    request = json.dumps(body(state="PHOTO", assets={"PHOTO": {"part": "asset-0"}}))
    parts = {
        "request": (None, request, "application/json"),
        "asset-0": ("asset-0", PICTURE, "image/png"),
    }
    multipart = server.client.post("/v1/systemone", files=parts)
    assert {r.status_code for r in (listed, inline, multipart)} == {200}
    assert listed.json()["answers"] == inline.json()["answers"] == multipart.json()["answers"]
    text = server.post(body(state="image 1"))
    assert listed.json()["usage"]["input_tokens"] == text.json()["usage"]["input_tokens"] + 36 + 3


def test_decisions_show_images_too(server: Running) -> None:
    content = [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": data_url(PICTURE)},
    ]
    question = {"type": "predicate", "name": "q", "instructions": "Is it red?"}
    request = {"model": "release", "input": [{"role": "user", "content": content}], "questions": [question]}
    response = server.post(request, "/v1/decisions")
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("container", "codec"), [("mp4", "libx264"), ("webm", "libvpx"), ("matroska", "libx264"), ("avi", "mpeg4")]
)
def test_videos(container: str, codec: str, server: Running) -> None:
    clip = video(20, rate=10, container=container, codec=codec)
    response = server.post(body(videos=[{"content_type": "video/x", "base64": base64.b64encode(clip).decode()}]))
    assert response.status_code == 200, response.text
    text = server.post(body()).json()["usage"]["input_tokens"]
    assert response.json()["usage"]["input_tokens"] > text + 2 * 6


def test_animations_and_frames_are_videos(server: Running) -> None:
    frames = [data_url(encoded(gradient()))] * 4
    for source in (data_url(animation(), "image/gif"), {"frames": frames, "fps": 2}):
        response = server.post(body(videos=[source]))
        assert response.status_code == 200, response.text


def test_less_detail_for_fewer_tokens(server: Running) -> None:
    image = data_url(PICTURE)
    full = server.post(body(images=[image])).json()["usage"]["input_tokens"]
    small = server.post(body(images=[image], x_dicast={"max_pixels": 4096})).json()["usage"]["input_tokens"]
    assert full - small == 36 - 4


HOSTILE = {
    "empty": b"",
    "text": b"hello",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "pdf": b"%PDF-1.7",
    "truncated": PICTURE[: len(PICTURE) // 2],
    "bomb": bomb(60_000, 60_000),
    "long": encoded(Image.new("RGB", (10_000, 1))),
    "polyglot": PICTURE + b"<script>alert(1)</script>",
    "video": video(2),
    "playlist": b"#EXTM3U\nhttp://169.254.169.254/latest/meta-data/",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_image_is_a_4xx_that_names_the_asset(kind: str, server: Running) -> None:
    response = server.post(body(state="PHOTO", assets={"PHOTO": asset(HOSTILE[kind])}))
    assert 400 <= response.status_code < 500
    assert "PHOTO" in response.text
    listed = server.post(body(images=[data_url(PICTURE), data_url(HOSTILE[kind])]))
    assert 400 <= listed.status_code < 500
    assert "images.1" in listed.text or "images[1]" in listed.text or '"images",1' in listed.text
    assert server.post(body()).status_code == 200


@pytest.mark.parametrize("kind", ["empty", "text", "svg", "playlist"])
def test_a_hostile_video_is_a_4xx(kind: str, server: Running) -> None:
    response = server.post(body(videos=[data_url(HOSTILE[kind], "video/mp4")]))
    assert 400 <= response.status_code < 500
    assert "videos" in response.text


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "/etc/passwd", "http://127.0.0.1:1/a.png", "http://169.254.169.254/", "ftp://a/b"]
)
def test_nothing_is_read_or_fetched_for_a_request(url: str, server: Running) -> None:
    response = server.post(body(images=[url]))
    assert 400 <= response.status_code < 500
    assert "root:" not in response.text


def test_an_image_that_does_not_fit_is_refused_with_the_numbers(server: Running) -> None:
    images = [data_url(PICTURE)] * 10
    assert server.post(body(images=images)).status_code == 200
    encoder: Any = server.model.encoder  # type: ignore[attr-defined]
    previous, encoder.max_length = encoder.max_length, 300
    try:
        refused = server.post(body(images=images))
    finally:
        encoder.max_length = previous
    assert refused.status_code == 400
    assert "images.0: images and videos need 360 tokens, of which 192x192 needs 36; maximum is 300" in refused.text


def test_a_stalled_decoder_holds_up_requests_with_files_only(server: Running) -> None:
    assert server.post(body(images=[data_url(PICTURE)])).status_code == 200
    decoder: Any = server.app.services.decoder
    process = decoder._children[0]._process
    os.kill(process.pid, signal.SIGSTOP)
    stalled = [
        threading.Thread(target=server.post, args=(body(images=[data_url(PICTURE)]),)) for _ in range(2 * MEDIA_THREADS)
    ]
    try:
        for thread in stalled:
            thread.start()
        server.until(lambda: decoder._idle.empty())
        long = "word " * 5000  # read in a thread, since it is long
        assert server.post(body(state=long, x_dicast={"truncation": "state_end"})).status_code == 200
        assert all(thread.is_alive() for thread in stalled)
    finally:
        os.kill(process.pid, signal.SIGCONT)
        for thread in stalled:
            thread.join()
    assert server.post(body(images=[data_url(PICTURE)])).status_code == 200
