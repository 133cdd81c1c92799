"""Mutated files: each is decoded or refused by name, never anything else. Seeded and bounded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest
from tests.media.samples import animation, encoded, gradient, video

from dicast.errors import MediaError
from dicast.media import MediaLimits, MediaWorker, decode_image, decode_video

LIMITS = MediaLimits(image_pixels=1_000_000, decode_seconds=5.0)
ROUNDS = 150
T = TypeVar("T")


def mutations(data: bytes, rounds: int, seed: int) -> Iterator[bytes]:
    """Flipped bytes, overwritten runs, cuts, repeats and extreme lengths."""
    draw = np.random.default_rng(seed)
    for _ in range(rounds):
        changed = bytearray(data)
        for _ in range(int(draw.integers(1, 6))):
            place = int(draw.integers(0, len(changed)))
            way = int(draw.integers(0, 5))
            if way == 0:
                changed[place] ^= 1 << int(draw.integers(0, 8))
            elif way == 1:
                changed[place : place + 4] = bytes(draw.integers(0, 256, 4, np.uint8))
            elif way == 2:
                changed[place : place + 4] = b"\xff\xff\xff\xff"
            elif way == 3:
                changed[place:place] = changed[place : place + int(draw.integers(1, 64))]
            elif len(changed) > 64:
                del changed[place : place + int(draw.integers(1, 32))]
        yield bytes(changed)


def outcome(decode: Callable[..., T], data: bytes, **options: Any) -> T | MediaError:
    """What came of one file; anything but a result and a MediaError ends the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata
        try:
            return decode(data, name="asset.7", **options)
        except MediaError as error:
            return error


def check_refusals(outcomes: list[Any]) -> list[Any]:
    """Check all refusals and return the results; some mutations must matter, or the test proves nothing."""
    refusals = [error for error in outcomes if isinstance(error, MediaError)]
    assert refusals
    for error in refusals:
        assert error.field == "asset.7"
        assert "\n" not in str(error)
        assert "crashed" not in str(error)
        assert "nothing readable" not in str(error)
    return [result for result in outcomes if not isinstance(result, MediaError)]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_mutated_images(kind: str) -> None:
    files = mutations(encoded(gradient(), kind), ROUNDS, seed=len(kind))
    for image in check_refusals([outcome(decode_image, data, limits=LIMITS) for data in files]):
        assert image.mode == "RGB"
        assert image.width * image.height <= LIMITS.image_pixels


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_mutated_animations(kind: str) -> None:
    files = mutations(animation(kind), 40, seed=3)
    for clip in check_refusals([outcome(decode_video, data, limits=LIMITS) for data in files]):
        assert len(clip) == len(clip.timestamps) > 0


@pytest.mark.parametrize(
    ("container", "codec"), [("mp4", "libx264"), ("webm", "libvpx"), ("matroska", "libx264"), ("avi", "mpeg4")]
)
def test_mutated_videos_in_the_worker(container: str, codec: str) -> None:
    files = mutations(video(6, container=container, codec=codec), 60, seed=4)
    with MediaWorker(limits=LIMITS) as worker:
        outcomes = [outcome(worker.video, data) for data in files]
    for clip in check_refusals(outcomes):
        assert len(clip) == len(clip.timestamps) > 0
        assert clip.frames.shape[1] * clip.frames.shape[2] <= LIMITS.image_pixels
