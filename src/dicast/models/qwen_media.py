"""A record's images and videos through the checkpoint's own processor: placeholder ids and pixel tensors.

Knows transformers' processor and the placeholder text of the Clef prompt; decodes nothing itself (see
:mod:`dicast.media`) and does not know what the backbone does with the tensors.

Times of video frames: a :class:`dicast.media.Video` with timestamps is shown with its real times and as it was sampled.
A bare array of frames is treated as the reference treats it: 24 frames a second are assumed and two of them sampled,
unless `media_kwargs` say otherwise (``{"do_sample_frames": False}``).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dicast.encoding import MediaEncoding
from dicast.errors import CheckpointError, MediaError, MissingDependencyError, TokenBudgetError
from dicast.media import Geometry, Video, decode_image, decode_video, image_tokens, is_pillow, video_tokens
from dicast.models.qwen import MEDIA_TENSORS
from dicast.records import Record

IMAGE_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO_PLACEHOLDER = "<|vision_start|><|video_pad|><|vision_end|>"
ASSUMED_FPS = 24.0
"""Frames a second of a bare array of frames: what the reference's processor assumes."""
CACHE_BYTES = 256 * 2**20
"""Most bytes of prepared pixels that one reader keeps, so that questions asked one by one prepare a picture once."""
_SAMPLING = ("do_sample_frames", "fps", "num_frames")


class QwenMediaReader:
    """Prepares the media of records for one checkpoint. Safe to share between threads.

    Args:
        processor: the checkpoint's processor (`Qwen3VLProcessor`).
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._geometry = Geometry.of(processor)
        self._cache: OrderedDict[str, MediaEncoding] = OrderedDict()
        self._lock = threading.Lock()
        # Newer processors cap the pixels of each frame unless told otherwise; the reference's do not.
        if getattr(processor.video_processor, "cap_pixels_per_frame", False) is None:
            processor.video_processor.cap_pixels_per_frame = False

    def __call__(self, record: Record, limit: int | None = None) -> MediaEncoding:
        """Placeholder ids and pixel tensors of a record's media.

        Args:
            record: its media may be decoded (Pillow images, arrays, :class:`dicast.media.Video`) or still be anything
                that :func:`dicast.media.decode_image` and :func:`dicast.media.decode_video` take.
            limit: most tokens of the whole record; media that cannot fit are refused before any pixel is prepared.

        Raises:
            MediaError: unreadable, or refused by the processor, e.g. for its aspect ratio.
            TokenBudgetError: the media alone do not fit.
        """
        images = [_shown_image(item, f"images.{index}") for index, item in enumerate(record.images)]
        videos = [self._shown_video(item, f"videos.{index}", record) for index, item in enumerate(record.videos)]
        if limit is not None and not set(record.media_kwargs) - set(_SAMPLING):
            self._check_budget(images, videos, limit)
        key = media_key(images, videos, record.media_kwargs)
        known = self._look_up(key)
        return known if known is not None else self._keep(self._prepare(images, videos, record.media_kwargs, key))

    def _prepare(self, images: list[Any], videos: list[Video], options: Mapping[str, Any], key: str) -> MediaEncoding:
        text = IMAGE_PLACEHOLDER * len(images) + VIDEO_PLACEHOLDER * len(videos) + "\n"
        arguments = dict(options)
        if videos and "video_metadata" not in arguments:
            arguments = {name: value for name, value in arguments.items() if name not in _SAMPLING}
            arguments |= {"do_sample_frames": False, "video_metadata": [_metadata(video) for video in videos]}
        try:
            out = self._processor(
                text=[text],
                images=images or None,
                videos=[video.frames for video in videos] or None,
                return_tensors="pt",
                **arguments,
            )
        except (ValueError, TypeError) as error:
            field = "images" if images else "videos"
            raise MediaError(f"the processor refuses the media: {str(error).splitlines()[0]}", field=field) from error
        return MediaEncoding(
            ids=out["input_ids"][0].tolist(),
            token_types=out["mm_token_type_ids"][0].tolist(),
            tensors={name: out[name] for name in MEDIA_TENSORS if name in out},
            key=key,
        )

    def _shown_video(self, item: Any, name: str, record: Record) -> Video:
        """The frames that are shown, with times; frames without times are sampled as the reference samples them."""
        video = item if isinstance(item, Video) else decode_video(item, name=name)
        if video.timestamps is not None:
            return video if len(video) > 1 else _doubled(video)
        if "video_metadata" in record.media_kwargs:
            return video
        count = len(video)
        indices = list(range(count))
        sampler = self._processor.video_processor
        if record.media_kwargs.get("do_sample_frames", sampler.do_sample_frames):
            options = {key: record.media_kwargs.get(key, getattr(sampler, key)) for key in ("fps", "num_frames")}
            try:
                indices = sampler.sample_frames(metadata=_Assumed(count), **options).tolist()
            except ValueError as error:
                raise MediaError(f"the processor refuses the media: {error}", field=name) from error
        times = tuple(index / ASSUMED_FPS for index in indices)
        return Video(video.frames if len(indices) == count else video.frames[indices], times, ASSUMED_FPS, None)

    def _check_budget(self, images: list[Any], videos: list[Video], limit: int) -> None:
        costs = list(self._costs(images, videos))
        total = sum(cost for _, _, cost in costs)
        if total <= limit:
            return
        name, size, cost = max(costs, key=lambda entry: entry[2])
        raise TokenBudgetError(
            f"images and videos need {total} tokens, of which {size} needs {cost}; maximum is {limit}; "
            "show fewer, or scale them down with max_pixels",
            field=name,
            limit=limit,
            seen=total,
        )

    def _costs(self, images: list[Any], videos: list[Video]) -> Iterator[tuple[str, str, int]]:
        """(name, size in words, tokens) of each asset; time stamps and marks are not counted."""
        for index, image in enumerate(images):
            width, height = image.size if is_pillow(image) else np.shape(image)[1::-1]
            yield f"images.{index}", f"{width}x{height}", image_tokens(height, width, self._geometry)
        for index, video in enumerate(videos):
            width, height = video.size
            cost = video_tokens(len(video), height, width, self._geometry)
            yield f"videos.{index}", f"{len(video)} frames of {width}x{height}", cost

    def _look_up(self, key: str) -> MediaEncoding | None:
        with self._lock:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
            return known

    def _keep(self, encoding: MediaEncoding) -> MediaEncoding:
        with self._lock:
            self._cache[encoding.key] = encoding
            while self._cache and sum(map(_bytes_of, self._cache.values())) > CACHE_BYTES:
                self._cache.popitem(last=False)
        return encoding


def media_key(images: list[Any], videos: list[Video], options: Mapping[str, Any]) -> str:
    """Content hash of pixels, times and processor options."""
    digest = hashlib.sha256()
    for image in images:
        pixels = np.ascontiguousarray(np.asarray(image))
        digest.update(f"image{getattr(image, 'mode', '')}{pixels.shape}{pixels.dtype}".encode())
        digest.update(pixels.data)
    for video in videos:
        frames = np.ascontiguousarray(video.frames)
        digest.update(f"video{frames.shape}{frames.dtype}{video.timestamps}".encode())
        digest.update(frames.data)
    digest.update(repr(sorted(options.items())).encode())
    return digest.hexdigest()


def load_media_reader(folder: Path, **kwargs: Mapping[str, Any]) -> QwenMediaReader:
    """The reader for a checkpoint folder.

    Raises:
        MissingDependencyError: torchvision or Pillow is not installed.
        CheckpointError: the folder has no usable processor.
    """
    from transformers import AutoProcessor

    family: Any = AutoProcessor
    try:
        return QwenMediaReader(family.from_pretrained(folder, trust_remote_code=False, **kwargs))
    except ImportError as error:
        raise MissingDependencyError(
            f"images and videos need more packages (pip install 'dicast[torch]'): {error}"
        ) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} has no usable image and video processor: {error}") from error


class _Assumed:
    """Metadata of a bare array of frames, for the processor's sampling rule."""

    def __init__(self, count: int) -> None:
        self.total_num_frames = count
        self.fps = ASSUMED_FPS


def _shown_image(item: Any, name: str) -> Any:
    """A Pillow image or array as it is, which the processor treats as the reference's does; anything else decoded."""
    return item if is_pillow(item) or isinstance(item, np.ndarray) else decode_image(item, name=name)


def _doubled(video: Video) -> Video:
    """A single frame twice: the processor takes frames in pairs, and pads odd counts in the same way."""
    return Video(np.repeat(video.frames, 2, axis=0), (video.timestamps or (0.0,)) * 2, video.fps, video.duration)


def _metadata(video: Video) -> dict[str, Any]:
    """What the processor needs to write the times: it divides frame numbers by the rate, so seconds at rate 1."""
    times = list(video.timestamps or ())
    width, height = video.size
    return {"total_num_frames": len(times), "fps": 1.0, "frames_indices": times, "width": width, "height": height}


def _bytes_of(encoding: MediaEncoding) -> int:
    return sum(int(tensor.numel()) * int(tensor.element_size()) for tensor in encoding.tensors.values())
