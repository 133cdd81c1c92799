"""A record's images and videos through the checkpoint's own processor: placeholder ids and pixel tensors.

Knows transformers' processor and the placeholder text of the Clef prompt; knows nothing of decoding files (see
:mod:`dicast.media`) or of what the backbone does with the tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dicast.encoding import MediaEncoding
from dicast.errors import CheckpointError, MediaError, MissingDependencyError
from dicast.models.qwen import MEDIA_TENSORS
from dicast.records import Record

IMAGE_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO_PLACEHOLDER = "<|vision_start|><|video_pad|><|vision_end|>"


class QwenMediaReader:
    """Prepares the media of records for one checkpoint.

    Args:
        processor: the checkpoint's processor (`Qwen3VLProcessor`).
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, record: Record) -> MediaEncoding:
        """Placeholder ids and pixel tensors of a record's media.

        Raises:
            MediaError: the processor refuses an image or video, e.g. for its aspect ratio.
        """
        text = IMAGE_PLACEHOLDER * len(record.images) + VIDEO_PLACEHOLDER * len(record.videos) + "\n"
        try:
            out = self._processor(
                text=[text],
                images=list(record.images) or None,
                videos=list(record.videos) or None,
                return_tensors="pt",
                **record.media_kwargs,
            )
        except (ValueError, TypeError) as error:
            field = "images" if record.images else "videos"
            raise MediaError(f"the processor refuses the media: {str(error).splitlines()[0]}", field=field) from error
        return MediaEncoding(
            ids=out["input_ids"][0].tolist(),
            token_types=out["mm_token_type_ids"][0].tolist(),
            tensors={name: out[name] for name in MEDIA_TENSORS if name in out},
            key=media_key(record),
        )


def media_key(record: Record) -> str:
    """Content hash of a record's media and processor options."""
    digest = hashlib.sha256()
    for kind, items in (("image", record.images), ("video", record.videos)):
        for item in items:
            pixels = np.ascontiguousarray(np.asarray(item))
            digest.update(f"{kind}{pixels.shape}{pixels.dtype}".encode())
            digest.update(pixels.tobytes())
    digest.update(repr(sorted(record.media_kwargs.items())).encode())
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
