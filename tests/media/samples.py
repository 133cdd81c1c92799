"""Small pictures and videos that the tests make themselves."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image


def gradient(width: int = 48, height: int = 32) -> Image.Image:
    """A picture whose four corners differ, so that a wrong orientation shows."""
    columns, rows = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([columns, rows, 255 - columns], axis=-1).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def data_url(data: bytes, content_type: str = "image/png") -> str:
    return f"data:{content_type};base64,{base64.b64encode(data).decode()}"


def animation(kind: str = "GIF", shades: Sequence[int] = (0, 80, 160, 240, 255), duration: int = 500) -> bytes:
    frames = [Image.new("RGB", (32, 24), (shade, 0, 0)) for shade in shades]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=duration, lossless=True)


def video(
    frames: int = 30,
    *,
    rate: int = 10,
    container: str = "mp4",
    codec: str = "libx264",
    size: tuple[int, int] = (64, 48),
    times: Sequence[int] | None = None,
) -> bytes:
    """An encoded video whose frame i is grey of shade 8 i; `times` are milliseconds for a variable frame rate."""
    import av

    width, height = size
    buffer = io.BytesIO()
    with silent(), av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        if times is not None:
            from fractions import Fraction

            stream.codec_context.time_base = stream.time_base = Fraction(1, 1000)
        for index in range(frames):
            shade = np.full((height, width, 3), index * 8 % 256, np.uint8)
            frame = av.VideoFrame.from_ndarray(shade, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[index], Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return buffer.getvalue()


@contextmanager
def silent() -> Iterator[None]:
    """Keeps what encoders print themselves out of the test's output."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
