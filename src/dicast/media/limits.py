"""Limits of media: how much an image or video may cost before it is refused. No decoding, no files, no sockets.

Every limit has a name, a default and one sentence of reason. A caller with other needs passes its own
:class:`MediaLimits`; nothing else in :mod:`dicast.media` holds a number that a user may want to change. What breaks a
limit is refused by :func:`refuse`, never cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from dicast.errors import MediaError

MIB = 2**20

MAX_IMAGES = 128
"""Most images of one record; the hosted Decisions API takes as many."""
MAX_VIDEOS = 8
"""Most videos of one record."""
MAX_IMAGE_BYTES = 32 * MIB
"""Largest encoded image; the whole System One body may have as much."""
MAX_VIDEO_BYTES = 256 * MIB
"""Largest encoded video."""
MAX_IMAGE_PIXELS = 64 * MIB
"""Largest decoded image: 8,192 x 8,192, four times what a Clef model can use; 192 MiB as RGB."""
MAX_ASPECT_RATIO = 200.0
"""Longest side over shortest side; the Qwen processors refuse more."""
MAX_ANIMATION_FRAMES = 2_000
"""Most frames of an animated image that is shown as a video, or sought through to a later frame."""
MAX_VIDEO_SECONDS = 3_600.0
"""Longest video."""
MAX_SOURCE_FRAMES = 216_000
"""Most encoded frames: an hour at 60 frames a second."""
MAX_STREAMS = 16
"""Most streams (video, sound, subtitles) in one container."""
MIN_VIDEO_FRAMES = 4
"""Fewest frames sampled from a video that has as many; the reference processor's value."""
MAX_VIDEO_FRAMES = 768
"""Most frames sampled from a video; the reference processor's value."""
MAX_VIDEO_PIXELS = 64 * MIB
"""Most pixels kept over all sampled frames: 192 MiB as RGB. Frames beyond it are scaled down, not dropped: a Clef
processor scales a video to 25,165,824 pixels at most anyway."""
MAX_RECORD_PIXELS = 128 * MIB
"""Most decoded pixels of all images and videos of one record: 384 MiB as RGB."""
DECODE_SECONDS = 30.0
"""Longest time for decoding one image or video."""
WORKER_MEMORY = 1024 * MIB
"""Memory that one decoding process may take on top of its start-up size."""
FETCH_SECONDS = 10.0
"""Longest time for fetching one remote image or video, where that is allowed at all."""
MAX_REDIRECTS = 3
"""Most redirects that a fetch follows; each target is checked like the first address."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What one image or video, and all of one record, may cost.

    The fields are the constants of this module; see there for the reasons.
    """

    images: int = MAX_IMAGES
    videos: int = MAX_VIDEOS
    image_bytes: int = MAX_IMAGE_BYTES
    video_bytes: int = MAX_VIDEO_BYTES
    image_pixels: int = MAX_IMAGE_PIXELS
    aspect_ratio: float = MAX_ASPECT_RATIO
    animation_frames: int = MAX_ANIMATION_FRAMES
    video_seconds: float = MAX_VIDEO_SECONDS
    source_frames: int = MAX_SOURCE_FRAMES
    streams: int = MAX_STREAMS
    min_frames: int = MIN_VIDEO_FRAMES
    max_frames: int = MAX_VIDEO_FRAMES
    video_pixels: int = MAX_VIDEO_PIXELS
    record_pixels: int = MAX_RECORD_PIXELS
    decode_seconds: float = DECODE_SECONDS
    worker_memory: int = WORKER_MEMORY
    fetch_seconds: float = FETCH_SECONDS
    redirects: int = MAX_REDIRECTS


DEFAULT_LIMITS = MediaLimits()


def refuse(name: str, message: str, *, limit: Any = None, seen: Any = None) -> NoReturn:
    """Raise a :class:`MediaError` about the asset `name`; `message` is a sentence that continues after the name."""
    raise MediaError(message, field=name, limit=limit, seen=seen)


def check_count(count: int, limit: int, field: str) -> None:
    """Refuse more than `limit` images or videos in one record; `field` is ``images`` or ``videos``."""
    if count > limit:
        refuse(field, f"{count} {field} are more than the limit of {limit}", limit=limit, seen=count)


class PixelBudget:
    """Counts decoded pixels asset by asset, so that many large pictures stop before memory does.

    Args:
        limit: most pixels in all.
    """

    def __init__(self, limit: int = MAX_RECORD_PIXELS) -> None:
        self.limit = limit
        self.used = 0

    def take(self, pixels: int, name: str) -> None:
        """Count an asset's pixels; refuses the asset with which there are too many."""
        self.used += pixels
        if self.used > self.limit:
            refuse(
                name,
                f"brings the pixels to {self.used} in all, more than the limit of {self.limit}; scale them down",
                limit=self.limit,
                seen=self.used,
            )


def pixels_of(asset: Any) -> int:
    """Pixels of a decoded image or of all frames of a decoded video."""
    pixels = getattr(asset, "pixels", None)
    return pixels if isinstance(pixels, int) else asset.width * asset.height


def check_bytes(count: int, limit: int, name: str) -> None:
    """Refuse an encoded file of no bytes or of more than `limit`."""
    if count == 0:
        refuse(name, "is empty (0 bytes)", seen=0)
    if count > limit:
        refuse(name, f"{count} bytes are more than the limit of {limit}", limit=limit, seen=count)


def check_size(width: int, height: int, limits: MediaLimits, name: str) -> None:
    """Refuse an image or frame with no area, too many pixels, or too long a shape."""
    seen = f"{width}x{height}"
    if width < 1 or height < 1:
        refuse(name, f"has no area ({seen} pixels)", seen=seen)
    if width * height > limits.image_pixels:
        refuse(
            name,
            f"{seen} = {width * height} pixels are more than the limit of {limits.image_pixels}",
            limit=limits.image_pixels,
            seen=width * height,
        )
    ratio = max(width, height) / min(width, height)
    if ratio > limits.aspect_ratio:
        refuse(
            name,
            f"{seen} pixels are {ratio:.0f} times as long as wide, more than the limit of {limits.aspect_ratio:g}",
            limit=limits.aspect_ratio,
            seen=ratio,
        )
