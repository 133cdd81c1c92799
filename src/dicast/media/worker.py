"""Decoding for strangers: a few child processes of bounded memory and time, so that a hostile file can neither stall
nor crash nor take over the process that asks. Knows no formats.

A child (:mod:`dicast.media.child`) gets bytes over a pipe and returns raw pixels; no pickles cross the pipe, and what
comes back is checked before use. It has no environment to speak of (no keys to steal), may open few files and write
none. A child that takes too long is killed, one that dies is replaced, and in both cases the asset is refused by name.
"""

from __future__ import annotations

import json
import os
import queue
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

import numpy as np

from dicast.errors import EngineClosedError, MediaError, MissingDependencyError, OverloadedError
from dicast.media.images import check_image_bytes, pillow
from dicast.media.limits import DEFAULT_LIMITS, MediaLimits, PixelBudget, check_count, pixels_of, refuse
from dicast.media.remote import RemotePolicy
from dicast.media.sampling import DEFAULT_FPS
from dicast.media.sources import read_wire_source
from dicast.media.videos import Video, check_video_bytes, from_frames

if TYPE_CHECKING:
    from PIL.Image import Image

_LENGTHS = struct.Struct(">II")
_MAX_HEADER = 2**20
_JOBS_PER_CHILD = 200
_START_SECONDS = 30.0
_GRACE_SECONDS = 1.0
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "VIRTUAL_ENV", "LANG")


class MediaWorker:
    """A pool of decoding processes. Its methods block and may be called from many threads.

    Args:
        processes: how many children; each starts when first needed.
        limits: what one asset may cost; ``decode_seconds`` and ``worker_memory`` bound a child.
        remote: hosts from which http(s) URLs may be fetched; None refuses all.
        max_waiting_seconds: how long a call may wait for a free child before :class:`OverloadedError`.

    The memory bound holds where the system enforces ``RLIMIT_AS`` (Linux); the time bound holds everywhere.
    """

    def __init__(
        self,
        processes: int = 1,
        limits: MediaLimits = DEFAULT_LIMITS,
        *,
        remote: RemotePolicy | None = None,
        max_waiting_seconds: float = 60.0,
    ) -> None:
        self.limits = limits
        self.remote = remote
        self.max_waiting_seconds = max_waiting_seconds
        self._closed = False
        self._idle: queue.LifoQueue[_Child] = queue.LifoQueue()
        self._children = [_Child(limits) for _ in range(max(1, processes))]
        for child in self._children:
            self._idle.put(child)

    def __enter__(self) -> MediaWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End all children; later calls raise :class:`EngineClosedError`."""
        self._closed = True
        for child in self._children:
            child.kill()

    def image(self, source: Any, *, name: str = "images.0", max_pixels: int | None = None, frame: int = 0) -> Image:
        """Decode an image that came in over a wire; a path is never read. Arguments, result and errors as
        :func:`dicast.media.decode_image`.

        Raises:
            OverloadedError: no child became free in time.
        """
        data = read_wire_source(
            source, name=name, limit=self.limits.image_bytes, limits=self.limits, remote=self.remote
        )
        check_image_bytes(data, name=name, limits=self.limits)
        module = pillow()
        header, pixels = self._run({"op": "image", "name": name, "max_pixels": max_pixels, "frame": frame}, data, name)
        width, height = _whole(header, "width"), _whole(header, "height")
        if width * height * 3 != len(pixels) or not 0 < width * height <= self.limits.image_pixels:
            refuse(name, "the decoder returned a picture of another size than it said")
        image: Image = module.frombytes("RGB", (width, height), pixels)
        return image

    def video(
        self,
        source: Any,
        *,
        name: str = "videos.0",
        fps: float = DEFAULT_FPS,
        max_frames: int | None = None,
        max_pixels: int | None = None,
    ) -> Video:
        """Decode a video that came in over a wire; a path is never read. Arguments, result and errors as
        :func:`dicast.media.decode_video`; ``{"frames": [...], "fps": ...}`` decodes each frame as an image.

        Raises:
            OverloadedError: no child became free in time.
        """
        if isinstance(source, dict) and "frames" in source:
            return self._frames(source, name, max_pixels)
        data = read_wire_source(
            source, name=name, limit=self.limits.video_bytes, limits=self.limits, remote=self.remote
        )
        check_video_bytes(data, name=name, limits=self.limits)
        job = {"op": "video", "name": name, "fps": fps, "max_frames": max_frames, "max_pixels": max_pixels}
        header, pixels = self._run(job, data, name)
        count, height, width = (_whole(header, key) for key in ("frames", "height", "width"))
        stamps, seconds, rate = header.get("timestamps"), header.get("duration"), header.get("fps")
        sound = count * height * width * 3 == len(pixels) and 0 < count <= self.limits.max_frames
        if not sound or not isinstance(stamps, list) or len(stamps) != count:
            refuse(name, "the decoder returned a video of another size than it said")
        frames = np.frombuffer(pixels, dtype=np.uint8).reshape(count, height, width, 3)
        return Video(
            frames,
            tuple(float(stamp) for stamp in stamps),
            None if rate is None else float(rate),
            None if seconds is None else float(seconds),
        )

    def images(self, sources: Sequence[Any], *, field: str = "images", max_pixels: int | None = None) -> list[Image]:
        """Decode all images of a record; checks their number and their pixels together."""
        check_count(len(sources), self.limits.images, field)
        budget, images = PixelBudget(self.limits.record_pixels), []
        for index, source in enumerate(sources):
            images.append(self.image(source, name=f"{field}.{index}", max_pixels=max_pixels))
            budget.take(pixels_of(images[-1]), f"{field}.{index}")
        return images

    def videos(
        self,
        sources: Sequence[Any],
        *,
        field: str = "videos",
        fps: float = DEFAULT_FPS,
        max_frames: int | None = None,
        max_pixels: int | None = None,
    ) -> list[Video]:
        """Decode all videos of a record; checks their number and their pixels together."""
        check_count(len(sources), self.limits.videos, field)
        budget, videos = PixelBudget(self.limits.record_pixels), []
        for index, source in enumerate(sources):
            name = f"{field}.{index}"
            videos.append(self.video(source, name=name, fps=fps, max_frames=max_frames, max_pixels=max_pixels))
            budget.take(pixels_of(videos[-1]), name)
        return videos

    def _frames(self, source: dict[str, Any], name: str, max_pixels: int | None) -> Video:
        frames = source["frames"]
        if not isinstance(frames, list) or len(frames) > self.limits.max_frames:
            limit = self.limits.max_frames
            refuse(f"{name}.frames", f"must be an array of at most {limit} images", limit=limit)
        budget, images = PixelBudget(self.limits.video_pixels), []
        for index, frame in enumerate(frames):
            images.append(self.image(frame, name=f"{name}.frames.{index}", max_pixels=max_pixels))
            budget.take(pixels_of(images[-1]), f"{name}.frames.{index}")
        return from_frames(
            images, name=name, limits=self.limits, fps=source.get("fps"), timestamps=source.get("timestamps")
        )

    def _run(self, job: dict[str, Any], data: bytes, name: str) -> tuple[dict[str, Any], bytearray]:
        if self._closed:
            raise EngineClosedError("the media worker is closed")
        try:
            child = self._idle.get(timeout=self.max_waiting_seconds)
        except queue.Empty:
            raise OverloadedError("all media decoders are busy", retry_after_ms=1000) from None
        try:
            return child.run(job, data, name)
        finally:
            self._idle.put(child)


class _Child:
    """One decoding process, used by one caller at a time; started when needed, and anew after it has died."""

    def __init__(self, limits: MediaLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs = 0
        self._closed = False

    def run(self, job: dict[str, Any], data: bytes, name: str) -> tuple[dict[str, Any], bytearray]:
        """Send a job and wait for its answer: (header, pixels)."""
        process = self._started(name)
        header = json.dumps({**job, "limits": asdict(self._limits)}).encode()
        with _Alarm(process, self._limits.decode_seconds + _GRACE_SECONDS) as alarm:
            try:
                write_message(_pipe(process.stdin), header, data)
                answer, pixels = read_message(_pipe(process.stdout), self._most_bytes())
            except (OSError, EOFError, ValueError):
                code = _exit_code(process)
                self.kill()
                self._explain(code, alarm.rang, name)
        self._jobs += 1
        return _checked(answer, name), pixels

    def kill(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        """The running process; a new one has said that it is ready, so that starting costs a job no time."""
        if self._process is not None and (self._jobs >= _JOBS_PER_CHILD or self._process.poll() is not None):
            self.kill()
        if self._process is None:
            process = self._process = _start()
            self._jobs = 0
            weakref.finalize(self, _end, process)
            with _Alarm(process, _START_SECONDS):
                try:
                    read_message(_pipe(process.stdout), 0)
                except (OSError, EOFError, ValueError) as error:
                    self.kill()
                    raise OverloadedError(f"the decoder of {name} does not start", retry_after_ms=5000) from error
        return self._process

    def _most_bytes(self) -> int:
        return 3 * max(self._limits.image_pixels, self._limits.video_pixels)

    def _explain(self, code: int | None, late: bool, name: str) -> NoReturn:
        seconds = self._limits.decode_seconds
        if late:
            refuse(name, f"decoding takes longer than the limit of {seconds:g} seconds", limit=seconds)
        if code is None:
            refuse(name, "the decoder returned more than the limits allow, or nothing readable")
        how = f"signal {-code}" if code < 0 else f"status {code}"
        refuse(name, f"the decoder crashed on this file ({how})", seen=how)


def write_message(pipe: IO[bytes], header: bytes, body: bytes) -> None:
    """Write one message: two lengths, header, body."""
    pipe.write(_LENGTHS.pack(len(header), len(body)) + header)
    pipe.write(body)
    pipe.flush()


def read_message(pipe: IO[bytes], most: int) -> tuple[dict[str, Any], bytearray]:
    """Read one message.

    Raises:
        EOFError: the other side is gone.
        ValueError: the message is too large or its header is not a JSON object.
    """
    header_length, body_length = _LENGTHS.unpack(_exactly(pipe, _LENGTHS.size))
    if header_length > _MAX_HEADER or body_length > most:
        raise ValueError("message too large")
    header = json.loads(_exactly(pipe, header_length))
    if not isinstance(header, dict):
        raise ValueError("header is not an object")
    return header, _exactly(pipe, body_length)


def _exactly(pipe: IO[bytes], count: int) -> bytearray:
    """So many bytes, in a buffer that may be written to, as tensors made of it must be."""
    data = bytearray(count)
    view = memoryview(data)
    done = 0
    while done < count:
        got = pipe.readinto(view[done:])  # type: ignore[attr-defined]  # a buffered reader, which IO does not say
        if not got:
            raise EOFError
        done += got
    return data


def _start() -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    environment = {key: os.environ[key] for key in _KEPT_VARIABLES if key in os.environ}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    return subprocess.Popen(
        [sys.executable, "-m", "dicast.media.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        close_fds=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue  # unsent bytes of a job that died


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """How the process ended, if it has or is about to; None if it still runs."""
    try:
        return process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return None


class _Alarm:
    """Kills a process that is not done in time."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self.rang = False
        self._process = process
        self._timer = threading.Timer(seconds, self._ring)
        self._timer.daemon = True

    def __enter__(self) -> _Alarm:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _ring(self) -> None:
        self.rang = True
        self._process.kill()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise OSError("no pipe")
    return pipe


def _checked(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """The answer, or the error that it reports."""
    missing = answer.get("missing")
    if missing is not None:
        raise MissingDependencyError(str(missing))
    error = answer.get("error")
    if error is not None:
        message = error.get("message") if isinstance(error, dict) else error
        field = error.get("field") if isinstance(error, dict) else None
        limit = error.get("limit") if isinstance(error, dict) else None
        seen = error.get("seen") if isinstance(error, dict) else None
        raise MediaError(str(message), field=str(field or name), limit=limit, seen=seen)
    return answer


def _whole(header: dict[str, Any], key: str) -> int:
    value = header.get(key)
    return value if isinstance(value, int) and value > 0 else 0
