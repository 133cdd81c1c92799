"""A record's media, in whatever form they were given, brought into the form in which models take them. Knows records.

The one place between the Python API, the command line and data files on one side and the models on the other; requests
that came over a wire are decoded earlier, by a :class:`dicast.media.MediaWorker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dicast.errors import CapabilityError
from dicast.media.images import decode_image, is_pillow
from dicast.media.limits import DEFAULT_LIMITS, MediaLimits, PixelBudget, check_count, pixels_of, refuse
from dicast.media.videos import decode_video
from dicast.records import Record

SEEING_MODEL = "Cloudflare/clef-flash"
"""A model that reads images and videos, for the errors of models that do not."""


def shown_record(
    record: Record, *, model: str, images: bool, videos: bool, limits: MediaLimits = DEFAULT_LIMITS
) -> Record:
    """The same record with decoded media; a record without media is returned unchanged.

    Args:
        record: its images and videos are anything that :func:`decode_image` and :func:`decode_video` take. Of its
            `media_kwargs`, ``max_pixels`` (most pixels of an image or a video frame) is applied here and taken out.
        model: name of the model that is to read it, for errors.
        images: whether the model reads images.
        videos: whether the model reads videos.
        limits: what media may cost.

    Raises:
        CapabilityError: the model cannot read what the record shows; names one that can.
        MediaError: an image or video is unreadable, unsafe or over a limit.
    """
    if not record.has_media:
        return record
    _check_able(model, "images", record.images, images)
    _check_able(model, "videos", record.videos, videos)
    _check_list("images", record.images, limits.images)
    _check_list("videos", record.videos, limits.videos)
    options = dict(record.media_kwargs)
    most = _max_pixels(options.pop("max_pixels", None))
    budget = PixelBudget(limits.record_pixels)
    images_shown = []
    for index, item in enumerate(record.images):
        image = _image(item, f"images.{index}", limits, most)
        budget.take(pixels_of(image), f"images.{index}")
        images_shown.append(image)
    videos_shown = []
    for index, item in enumerate(record.videos):
        video = decode_video(item, name=f"videos.{index}", limits=limits, max_pixels=most)
        budget.take(pixels_of(video), f"videos.{index}")
        videos_shown.append(video)
    return replace(record, images=tuple(images_shown), videos=tuple(videos_shown), media_kwargs=options)


def _check_able(model: str, field: str, items: Sequence[Any], able: bool) -> None:
    if items and not able:
        raise CapabilityError(
            f"{model} does not read {field}; use a model that does, such as {SEEING_MODEL}", field=field
        )


def _check_list(field: str, items: Any, limit: int) -> None:
    if isinstance(items, str | bytes) or not isinstance(items, Sequence):
        refuse(field, f"must be a list of {field}, not {type(items).__name__}")
    check_count(len(items), limit, field)


def _max_pixels(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        refuse("media_kwargs.max_pixels", f"must be a whole number of pixels, not {value!r}", seen=str(value))
    return value


def _image(item: Any, name: str, limits: MediaLimits, max_pixels: int | None) -> Any:
    """A picture that is ready already is not copied."""
    if max_pixels is None and is_pillow(item) and item.mode == "RGB" and not item.getexif():
        return item
    return decode_image(item, name=name, limits=limits, max_pixels=max_pixels)
