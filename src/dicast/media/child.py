"""The decoding process: reads jobs from standard input, writes pixels to standard output, never returns an exception.

Started by :class:`dicast.media.worker.MediaWorker`; see there for why. It limits itself before the first job: memory on
top of what it has after its imports, no core dumps, no files written, few files open.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import IO, Any

from dicast.errors import MediaError, MissingDependencyError
from dicast.media.images import decode_image_bytes
from dicast.media.limits import MIB, MediaLimits
from dicast.media.videos import decode_video_bytes
from dicast.media.worker import read_message, write_message

_OPEN_FILES = 64


def main() -> None:
    """Serve jobs until standard input ends."""
    warnings.simplefilter("ignore")
    jobs, answers = sys.stdin.buffer, _private_stdout()
    _import_decoders()
    write_message(answers, b"{}", b"")
    confined = False
    while True:
        try:
            job, data = read_message(jobs, sys.maxsize)
        except EOFError:
            return
        limits = MediaLimits(**job.pop("limits"))
        if not confined:
            _confine(limits.worker_memory)
            confined = True
        header, pixels = _answer(job, bytes(data), limits)
        write_message(answers, json.dumps(header).encode(), pixels)


def _answer(job: dict[str, Any], data: bytes, limits: MediaLimits) -> tuple[dict[str, Any], bytes]:
    name = str(job["name"])
    try:
        return _decode(job, data, limits, name)
    except MissingDependencyError as error:
        return {"missing": str(error)}, b""
    except MediaError as error:
        return {"error": _plain(error)}, b""
    except MemoryError:
        amount = limits.worker_memory // MIB
        message = f"decoding needs more memory than the limit of {amount} MiB"
        return {"error": {"message": message, "field": name, "limit": amount, "seen": None}}, b""


def _decode(job: dict[str, Any], data: bytes, limits: MediaLimits, name: str) -> tuple[dict[str, Any], bytes]:
    if job["op"] == "image":
        image = decode_image_bytes(data, name=name, limits=limits, frame=job["frame"], max_pixels=job["max_pixels"])
        return {"width": image.width, "height": image.height}, image.tobytes()
    video = decode_video_bytes(
        data, name=name, limits=limits, fps=job["fps"], max_frames=job["max_frames"], max_pixels=job["max_pixels"]
    )
    count, height, width, _ = video.frames.shape
    header = {"frames": count, "height": height, "width": width}
    return {
        **header,
        "timestamps": video.timestamps,
        "fps": video.fps,
        "duration": video.duration,
    }, video.frames.tobytes()


def _plain(error: MediaError) -> dict[str, Any]:
    def simple(value: Any) -> Any:
        return value if isinstance(value, int | float | str | None) else str(value)

    return {
        "message": error.message,
        "field": error.field,
        "limit": simple(error.limit),
        "seen": simple(error.seen),
    }


def _private_stdout() -> IO[bytes]:
    """Standard output for answers only: whatever a C library prints goes nowhere."""
    private = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(private, "wb")


def _import_decoders() -> None:
    """Import what jobs will need, so that it counts as start-up size and not as a job's memory."""
    try:
        from PIL import Image

        Image.init()
        import av  # noqa: F401
    except ImportError:
        return  # the job itself says what is missing


def _confine(memory: int) -> None:
    try:
        import resource
    except ImportError:
        return  # not on Windows, as documented
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
    used = _address_space()
    if used:  # elsewhere than on Linux the limit is not enforced, and setting it may fail
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))


def _address_space() -> int:
    """Bytes of address space in use; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


if __name__ == "__main__":
    main()
