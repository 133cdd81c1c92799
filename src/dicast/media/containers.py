"""Frames of a video container through PyAV: times first, without decoding, then only what is to be shown.

A container is read twice. The first pass reads packets: it gives the time of every frame, so that frames can be chosen
and a hopeless file is refused early. The second pass decodes, jumping over groups of frames of which none was chosen.
PyAV is imported when the first container is opened.
"""

from __future__ import annotations

import bisect
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dicast.errors import MediaError, MissingDependencyError
from dicast.media.images import reason_of
from dicast.media.limits import check_size, refuse
from dicast.media.sampling import Plan

DEMUXERS = {"MP4": "mp4", "WEBM": "matroska", "AVI": "avi"}
"""Format of :mod:`dicast.media.sniff` -> the one demuxer that opens it."""
CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mpeg2video", "mjpeg"})
"""Video codecs that are decoded."""
_OPENED_STREAMS = "64"
_TRUNCATED_SHARE = 0.9
_TRUNCATED_SECONDS = 1.0
_JUMP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Index:
    """What the first pass learns.

    Attributes:
        times: of all frames, in seconds, ascending.
        keys: of the frames at which decoding can begin.
        declared: length of the video by its header; None when it does not say.
    """

    times: list[float]
    keys: list[float]
    declared: float | None


def decode_container(data: bytes, kind: str, plan: Plan) -> tuple[list[tuple[float, np.ndarray]], float | None, float]:
    """Sampled frames of a container.

    Args:
        data: the file.
        kind: its true format, a key of :data:`DEMUXERS`.
        plan: what to keep.

    Returns:
        (time in seconds from the start, frame as uint8 (H, W, 3)) of each frame; frames a second of the source, or
        None for a single frame; its length in seconds.

    Raises:
        MediaError: broken, without pictures, of another codec, or over a limit.
        MissingDependencyError: PyAV is not installed.
    """
    av = _pyav()
    try:
        with _opened(av, data, kind) as container:
            index = _read_index(container, _video_stream(container, plan), plan)
        rate, seconds = _rate_and_length(index, plan)
        wanted = [index.times[place] for place in plan.choose(index.times, seconds)]
        with _opened(av, data, kind) as container:
            kept = list(_keep(container, _video_stream(container, plan), wanted, index.keys, plan))
    except (MediaError, MemoryError):
        raise
    except Exception as error:  # a decoder may raise anything on a hostile file; all of it means the same to the caller
        refuse(plan.name, f"cannot be decoded as {kind}: {reason_of(error)}")
    if not kept:
        refuse(plan.name, "has no frame that can be decoded", seen=0)
    return [(max(0.0, moment - index.times[0]), frame) for moment, frame in kept], rate, seconds


def _opened(av: Any, data: bytes, kind: str) -> Any:
    """A container opened by the one demuxer that its bytes call for; references to other files are not followed."""
    options = {"max_streams": _OPENED_STREAMS} | ({"enable_drefs": "0"} if kind == "MP4" else {})
    return av.open(io.BytesIO(data), mode="r", format=DEMUXERS[kind], options=options)


def _video_stream(container: Any, plan: Plan) -> Any:
    count, limit = len(container.streams), plan.limits.streams
    if count > limit:
        refuse(plan.name, f"{count} streams are more than the limit of {limit}", limit=limit, seen=count)
    if not container.streams.video:
        refuse(plan.name, "has no video stream", seen=0)
    stream = container.streams.video[0]
    codec = stream.codec_context
    name = codec.codec.canonical_name
    if name not in CODECS:
        refuse(plan.name, f"codec {name} is not accepted ({', '.join(sorted(CODECS))})", seen=name)
    if codec.width and codec.height:
        check_size(codec.width, codec.height, plan.limits, plan.name)
    codec.thread_count = 1
    return stream


def _read_index(container: Any, stream: Any, plan: Plan) -> _Index:
    ticks: set[int] = set()
    keys: set[int] = set()
    count = 0
    for packet in container.demux(stream):
        if packet.pts is not None and packet.size:
            ticks.add(packet.pts)
            if packet.is_keyframe:
                keys.add(packet.pts)
            count += 1
            plan.check_count(count)
        plan.check_time()
    if not ticks:
        refuse(plan.name, "has no frames", seen=0)
    if stream.frames and count < stream.frames:
        refuse(plan.name, f"breaks off after {count} of {stream.frames} frames", limit=stream.frames, seen=count)
    base = stream.time_base
    return _Index(
        [float(tick * base) for tick in sorted(ticks)],
        [float(tick * base) for tick in sorted(keys)],
        _declared_seconds(container, stream),
    )


def _declared_seconds(container: Any, stream: Any) -> float | None:
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return float(container.duration) / 1e6 if container.duration else None


def _rate_and_length(index: _Index, plan: Plan) -> tuple[float | None, float]:
    """Frames a second and seconds; the last frame is taken to last as long as the others do on average."""
    between = index.times[-1] - index.times[0]
    rate = (len(index.times) - 1) / between if between > 0 else None
    seconds = between + (1.0 / rate if rate else 0.0)
    declared = index.declared
    if declared and seconds < _TRUNCATED_SHARE * declared - _TRUNCATED_SECONDS:
        refuse(plan.name, f"breaks off after {seconds:.1f} of {declared:.1f} seconds", limit=declared, seen=seconds)
    return rate, seconds


def _keep(
    container: Any, stream: Any, wanted: list[float], keys: list[float], plan: Plan
) -> Iterator[tuple[float, np.ndarray]]:
    """Decode and yield (time, frame) for the first frame at or after each wanted time.

    A stream may change its size on the way; all frames are brought to the size of the first.
    """
    tick = float(stream.time_base) / 2
    position = 0
    last: Any = None
    size: tuple[int, int] | None = None
    frames = container.decode(stream)
    while (frame := next(frames, None)) is not None:
        plan.check_time()
        if frame.time is None:
            continue
        size = size or plan.frame_size(frame.width, frame.height, len(wanted))
        last = frame
        if frame.time >= wanted[position] - tick:
            yield float(frame.time), _rgb(frame, size, plan)
            last = None
            while position < len(wanted) and wanted[position] - tick <= frame.time:
                position += 1
            if position == len(wanted):
                return
        key = _key_before(keys, wanted[position] + tick)
        if key is not None and key > frame.time + _JUMP_SECONDS:
            container.seek(round(key / stream.time_base), stream=stream)
            frames = container.decode(stream)
            keys = keys[bisect.bisect_right(keys, key) :]  # no jump is made twice, wherever it led
    if last is not None and size is not None:
        yield float(last.time), _rgb(last, size, plan)


def _key_before(keys: list[float], moment: float) -> float | None:
    """The last frame at or before a moment at which decoding can begin."""
    place = bisect.bisect_right(keys, moment)
    return keys[place - 1] if place else None


def _rgb(frame: Any, size: tuple[int, int], plan: Plan) -> np.ndarray:
    """One frame as uint8 (H, W, 3), scaled to `size` (width, height) and turned upright."""
    check_size(frame.width, frame.height, plan.limits, plan.name)
    array: np.ndarray = frame.to_ndarray(format="rgb24", width=size[0], height=size[1])
    quarters = round((getattr(frame, "rotation", 0) or 0) / 90) % 4
    return np.ascontiguousarray(np.rot90(array, quarters)) if quarters else array


def _pyav() -> Any:
    try:
        import av
    except ImportError as error:
        raise MissingDependencyError("videos need PyAV: pip install 'dicast[torch]'") from error
    return av
