"""One video from anything: bytes, a path, a data URL, frames -> some RGB frames and their times. Knows no models.

A container is read twice: once without decoding, which gives the time of every frame and lets a hopeless file be
refused early, and once decoding, which keeps only the frames that were chosen. Frames are chosen as the Qwen3-VL video
processor
does: ``int(seconds * fps)`` of them, at least 4 and at most 768, evenly spread from the first to the last. PyAV is
imported when the first container is opened; animated images are read with Pillow; frames given as such need neither.
"""

from __future__ import annotations

import io
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dicast.errors import MediaError, MissingDependencyError
from dicast.media.containers import decode_container
from dicast.media.images import check_image_bytes, decode_image, pillow, reason_of, to_array
from dicast.media.limits import DEFAULT_LIMITS, MediaLimits, PixelBudget, check_bytes, check_size, pixels_of, refuse
from dicast.media.remote import RemotePolicy
from dicast.media.sampling import DEFAULT_FPS, Plan
from dicast.media.sniff import sniff
from dicast.media.sources import read_source

_ANIMATIONS = ("GIF", "WEBP", "PNG", "AVIF")
_DEFAULT_FRAME_MS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """Frames of a video that a model is shown.

    Attributes:
        frames: uint8 (T, H, W, 3).
        timestamps: time of each frame in seconds from the start of the video, ascending; None when nobody knows them,
            in which case a Clef processor treats the frames as the reference does (24 frames a second, sampled again).
        fps: frames a second of the source; None when unknown.
        duration: length of the source in seconds; None when unknown.
    """

    frames: np.ndarray
    timestamps: tuple[float, ...] | None = None
    fps: float | None = None
    duration: float | None = None

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the frames, in pixels."""
        return int(self.frames.shape[2]), int(self.frames.shape[1])

    @property
    def pixels(self) -> int:
        """Pixels of all frames together."""
        return len(self) * self.size[0] * self.size[1]


def decode_video(
    source: Any,
    *,
    name: str = "videos.0",
    limits: MediaLimits = DEFAULT_LIMITS,
    fps: float = DEFAULT_FPS,
    max_frames: int | None = None,
    max_pixels: int | None = None,
    source_fps: float | None = None,
    timestamps: Sequence[float] | None = None,
    remote: RemotePolicy | None = None,
) -> Video:
    """Decode and sample one video.

    Args:
        source: an encoded video (MP4, QuickTime, WebM, Matroska, AVI) or animated image (GIF, WebP, PNG, AVIF) as
            bytes, a path, a base64 data URL, ``{content_type, base64}`` or a binary file; or frames, which are not
            sampled: an array (T, H, W, 3) of uint8, a list of anything that :func:`decode_image` takes, or ``{"frames":
                [...], "fps": ...}``
            (or ``"timestamps"``); or a :class:`Video`, which is returned unchanged.
        name: the asset's name in errors.
        limits: what the video may cost.
        fps: frames sampled from each second of an encoded video.
        max_frames: most frames sampled; ``limits.max_frames`` when None.
        max_pixels: scale frames down to at most this area each, trading detail for speed.
        source_fps: rate of frames that are given as such.
        timestamps: times in seconds of frames that are given as such.
        remote: hosts from which http(s) URLs may be fetched; None refuses all.

    Raises:
        MediaError: unreadable, unsafe or over a limit; names the asset, the limit and what was seen.
        MissingDependencyError: PyAV (or Pillow, for animated images) is not installed.
    """
    if isinstance(source, Video):
        return source
    if isinstance(source, Mapping) and "frames" in source:
        source_fps, timestamps = source.get("fps", source_fps), source.get("timestamps", timestamps)
        source = source["frames"]
    if hasattr(source, "__array__") or isinstance(source, list | tuple):
        return from_frames(
            source, name=name, limits=limits, fps=source_fps, timestamps=timestamps, max_pixels=max_pixels
        )
    if source_fps is not None or timestamps is not None:
        refuse(name, "source_fps and timestamps belong to frames; an encoded video has its own")
    data = read_source(source, name=name, limit=limits.video_bytes, limits=limits, remote=remote)
    return decode_video_bytes(data, name=name, limits=limits, fps=fps, max_frames=max_frames, max_pixels=max_pixels)


def decode_video_bytes(
    data: bytes,
    *,
    name: str = "videos.0",
    limits: MediaLimits = DEFAULT_LIMITS,
    fps: float = DEFAULT_FPS,
    max_frames: int | None = None,
    max_pixels: int | None = None,
) -> Video:
    """Decode and sample one encoded video or animated image; arguments and errors as :func:`decode_video`."""
    kind = check_video_bytes(data, name=name, limits=limits)
    if not (math.isfinite(fps) and fps > 0):
        refuse(name, f"fps must be a positive number, not {fps}", seen=fps)
    most = limits.max_frames if max_frames is None else min(max_frames, limits.max_frames)
    if most < 1:
        refuse(name, f"max_frames must be at least 1, not {most}", limit=1, seen=most)
    plan = Plan(name, limits, fps, most, max_pixels, time.monotonic() + limits.decode_seconds)
    if kind in _ANIMATIONS:
        return _decode_animation(data, kind, plan)
    kept, rate, seconds = decode_container(data, kind, plan)
    return Video(np.stack([frame for _, frame in kept]), tuple(moment for moment, _ in kept), rate, seconds)


def check_video_bytes(data: bytes, *, name: str = "videos.0", limits: MediaLimits = DEFAULT_LIMITS) -> str:
    """Check an encoded video as far as its first bytes tell and return its true format.

    Raises:
        MediaError: empty, too large, or not a video or animated image of an accepted format.
    """
    check_bytes(len(data), limits.video_bytes, name)
    sniffed = sniff(data)
    if sniffed.kind == "image" and sniffed.format in _ANIMATIONS:
        return check_image_bytes(data, name=name, limits=limits)
    if sniffed.kind != "video":
        hint = "; send it under images" if sniffed.kind == "image" else ""
        refuse(
            name,
            f"is not a video of an accepted format but {sniffed.format}{hint} "
            "(accepted: MP4, QuickTime, WebM, Matroska, AVI, animated GIF, WebP and PNG)",
            seen=sniffed.format,
        )
    return sniffed.format


def from_frames(
    frames: Any,
    *,
    name: str = "videos.0",
    limits: MediaLimits = DEFAULT_LIMITS,
    fps: float | None = None,
    timestamps: Sequence[float] | None = None,
    max_pixels: int | None = None,
) -> Video:
    """A video of frames that are shown as they are.

    Args:
        frames: uint8 (T, H, W, 3), or a list of anything that :func:`decode_image` takes, all of one size.
        fps: rate of the frames; times are then ``index / fps``.
        timestamps: time of each frame in seconds; wins over `fps`. With neither, the times are unknown.

    Raises:
        MediaError: no frames, too many, frames of different sizes, times that do not ascend or are not one per frame.
    """
    count = len(frames) if hasattr(frames, "__len__") else 0
    if count == 0:
        refuse(name, "has no frames", seen=0)
    if count > limits.max_frames:
        refuse(
            name, f"{count} frames are more than the limit of {limits.max_frames}", limit=limits.max_frames, seen=count
        )
    stacked = _stack(frames, name, limits, max_pixels)
    height, width = stacked.shape[1:3]
    check_size(width, height, limits, name)
    if stacked.shape[0] * height * width > limits.video_pixels:
        seen = stacked.shape[0] * height * width
        refuse(
            name,
            f"{count} frames of {width}x{height} = {seen} pixels are more than the limit of {limits.video_pixels}",
            limit=limits.video_pixels,
            seen=seen,
        )
    times = _times(count, fps, timestamps, name)
    return Video(stacked, times, fps, None)


def _stack(frames: Any, name: str, limits: MediaLimits, max_pixels: int | None) -> np.ndarray:
    if hasattr(frames, "__array__"):
        stacked = np.asarray(frames)
        if stacked.ndim != 4 or stacked.shape[3] != 3 or stacked.dtype != np.uint8:
            refuse(name, f"a frame array is uint8 of shape (T, H, W, 3), not {stacked.dtype} of {stacked.shape}")
        if max_pixels is None or stacked.shape[1] * stacked.shape[2] <= max_pixels:
            return stacked
    budget, pictures = PixelBudget(limits.video_pixels), []
    for index, frame in enumerate(frames):
        picture = decode_image(frame, name=f"{name}.frames.{index}", limits=limits, max_pixels=max_pixels)
        budget.take(pixels_of(picture), f"{name}.frames.{index}")
        pictures.append(to_array(picture))
    for index, array in enumerate(pictures):
        if array.shape != pictures[0].shape:
            seen, first = array.shape[1::-1], pictures[0].shape[1::-1]
            refuse(f"{name}.frames.{index}", f"frames must have one size, not {seen} beside {first}", seen=seen)
    return np.stack(pictures)


def _times(count: int, fps: float | None, timestamps: Sequence[float] | None, name: str) -> tuple[float, ...] | None:
    if timestamps is not None:
        try:
            times = tuple(float(value) for value in timestamps)
        except (TypeError, ValueError):
            refuse(f"{name}.timestamps", "must be numbers of seconds")
        if len(times) != count:
            refuse(f"{name}.timestamps", f"{len(times)} times for {count} frames", limit=count, seen=len(times))
        ascending = all(a < b for a, b in itertools.pairwise(times))
        if not ascending or times[0] < 0 or not all(map(math.isfinite, times)):
            refuse(f"{name}.timestamps", "must be ascending numbers of seconds, not below 0")
        return times
    if fps is None:
        return None
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not (math.isfinite(fps) and fps > 0):
        refuse(f"{name}.fps", f"must be a positive number, not {fps!r}", seen=fps)
    return tuple(index / fps for index in range(count))


def _decode_animation(data: bytes, kind: str, plan: Plan) -> Video:
    """An animated image as a video; frames last as long as the file says, 100 ms where it does not."""
    try:
        image = pillow().open(io.BytesIO(data), formats=[kind])
        count = int(getattr(image, "n_frames", 1))
        if count < 2:
            refuse(plan.name, f"is a still image ({kind}), not a video; send it under images", seen=kind)
        if count > plan.limits.animation_frames:
            limit = plan.limits.animation_frames
            refuse(plan.name, f"{count} frames are more than the limit of {limit}", limit=limit, seen=count)
        times, seconds = _animation_times(image, count, plan)
        chosen = plan.choose(times, seconds)
        size = plan.frame_size(image.width, image.height, len(chosen))
        frames = []
        for index in chosen:
            plan.check_time()
            image.seek(index)
            still = decode_image(image.copy(), name=plan.name, limits=plan.limits)
            frames.append(to_array(still if still.size == size else still.resize(size)))
    except (MediaError, MemoryError, MissingDependencyError):
        raise
    except Exception as error:  # as in _decode_container
        refuse(plan.name, f"cannot be decoded as {kind}: {reason_of(error)}")
    return Video(np.stack(frames), tuple(times[index] for index in chosen), count / seconds, seconds)


def _animation_times(image: Any, count: int, plan: Plan) -> tuple[list[float], float]:
    times, clock = [], 0.0
    for index in range(count):
        plan.check_time()
        image.seek(index)
        image.load()
        times.append(clock)
        clock += (image.info.get("duration") or _DEFAULT_FRAME_MS) / 1000.0
    return times, clock
