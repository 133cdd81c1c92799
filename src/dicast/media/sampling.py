"""Which frames of a video are shown, at which size, and until when: arithmetic, no decoding."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dicast.media.limits import MediaLimits, check_size, refuse

DEFAULT_FPS = 2.0
"""Frames sampled from each second of a video."""


def sample_indices(count: int, seconds: float, *, fps: float, least: int, most: int) -> list[int]:
    """Which of `count` frames to show: ``int(seconds * fps)`` of them within the bounds, evenly spread, ends included.

    The rule of the Qwen3-VL video processor, where ``seconds = count / rate``.
    """
    # The small share more keeps a rounding error in `seconds` from costing a frame.
    wanted = min(max(int(seconds * fps * (1 + 1e-6)), least), most, count)
    return [int(index) for index in np.linspace(0, count - 1, wanted).round()]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to keep of one video, and until when."""

    name: str
    limits: MediaLimits
    fps: float
    most: int
    max_pixels: int | None
    deadline: float

    def check_time(self) -> None:
        """Refuse a video that takes too long."""
        if time.monotonic() > self.deadline:
            seconds = self.limits.decode_seconds
            refuse(self.name, f"decoding takes longer than the limit of {seconds:g} seconds", limit=seconds)

    def check_count(self, count: int) -> None:
        """Refuse a video of too many encoded frames."""
        if count > self.limits.source_frames:
            limit = self.limits.source_frames
            refuse(self.name, f"has more frames than the limit of {limit}", limit=limit, seen=count)

    def choose(self, times: Sequence[float], seconds: float) -> list[int]:
        """Indices of the frames to show; refuses a video that is too long."""
        if seconds > self.limits.video_seconds:
            limit = self.limits.video_seconds
            refuse(self.name, f"{seconds:.1f} seconds are more than the limit of {limit:g}", limit=limit, seen=seconds)
        least = min(self.limits.min_frames, self.most)
        return sample_indices(len(times), seconds, fps=self.fps, least=least, most=self.most)

    def frame_size(self, width: int, height: int, count: int) -> tuple[int, int]:
        """(width, height) at which `count` frames are kept."""
        check_size(width, height, self.limits, self.name)
        area = self.limits.video_pixels // max(count, 1)
        if self.max_pixels is not None:
            if self.max_pixels < 1024:
                refuse(self.name, f"max_pixels must be at least 1024, not {self.max_pixels}", seen=self.max_pixels)
            area = min(area, self.max_pixels)
        if width * height <= area:
            return width, height
        scale = math.sqrt(area / (width * height))
        return max(1, int(width * scale)), max(1, int(height * scale))
