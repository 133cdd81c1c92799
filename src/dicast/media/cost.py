"""What media cost in tokens, from sizes alone: no pixels, no Pillow, no torch.

A Qwen vision tower cuts a picture into patches of 16 x 16 pixels and merges 2 x 2 of them into one token, so a picture
is first scaled to multiples of 32 pixels. :func:`smart_resize` and :func:`video_resize` are the scaling rules of the
Qwen2-VL image and Qwen3-VL video processors (clef.md 2.6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a checkpoint's processor turns pixels into tokens; the defaults are those of the Qwen3.5 family.

    Attributes:
        patch: side of a patch, in pixels.
        merge: how many patches a token spans in each direction.
        temporal: how many frames a token spans.
        image_pixels: (fewest, most) pixels of a scaled image.
        video_pixels: (fewest, most) pixels of a scaled video, counted over all its frames.
    """

    patch: int = 16
    merge: int = 2
    temporal: int = 2
    image_pixels: tuple[int, int] = (65_536, 16_777_216)
    video_pixels: tuple[int, int] = (4_096, 25_165_824)

    @property
    def factor(self) -> int:
        """Side of a token, in pixels."""
        return self.patch * self.merge

    @classmethod
    def of(cls, processor: Any) -> Geometry:
        """Read the geometry of a transformers processor that has an image and a video processor."""
        images, videos = processor.image_processor, processor.video_processor
        return cls(
            patch=images.patch_size,
            merge=images.merge_size,
            temporal=videos.temporal_patch_size,
            image_pixels=(images.size["shortest_edge"], images.size["longest_edge"]),
            video_pixels=(videos.size["shortest_edge"], videos.size["longest_edge"]),
        )


QWEN = Geometry()


def smart_resize(height: int, width: int, *, factor: int, least: int, most: int) -> tuple[int, int]:
    """Size (height, width) to which an image is scaled.

    Each side is rounded to a multiple of `factor`; if the area is then above `most`, both original sides are divided by
    ``sqrt(area / most)`` and floored to multiples, if it is below `least`, multiplied by ``sqrt(least / area)`` and
    ceiled.
    """
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    if rows * columns > most:
        shrink = math.sqrt(height * width / most)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif rows * columns < least:
        grow = math.sqrt(least / (height * width))
        rows, columns = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rows, columns


def video_resize(
    frames: int, height: int, width: int, *, factor: int, temporal: int, least: int, most: int
) -> tuple[int, int]:
    """Size (height, width) to which the frames of a video are scaled; the area is counted over all frames."""
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    rows, columns = round(height / factor) * factor, round(width / factor) * factor
    area = round(frames / temporal) * temporal * rows * columns
    if area > most:
        shrink = math.sqrt(frames * height * width / most)
        rows = max(factor, math.floor(height / shrink / factor) * factor)
        columns = max(factor, math.floor(width / shrink / factor) * factor)
    elif area < least:
        grow = math.sqrt(least / (frames * height * width))
        rows, columns = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rows, columns


def image_tokens(height: int, width: int, geometry: Geometry = QWEN) -> int:
    """Tokens that stand for the pixels of one image; its start and end mark are two more."""
    least, most = geometry.image_pixels
    rows, columns = smart_resize(height, width, factor=geometry.factor, least=least, most=most)
    return (rows // geometry.factor) * (columns // geometry.factor)


def video_tokens(frames: int, height: int, width: int, geometry: Geometry = QWEN) -> int:
    """Tokens that stand for the pixels of one video; marks and time stamps come on top, once per pair of frames."""
    least, most = geometry.video_pixels
    rows, columns = video_resize(
        frames, height, width, factor=geometry.factor, temporal=geometry.temporal, least=least, most=most
    )
    pairs = math.ceil(frames / geometry.temporal)
    return pairs * (rows // geometry.factor) * (columns // geometry.factor)
