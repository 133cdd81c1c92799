"""What a file is, told from its bytes."""

from __future__ import annotations

import pytest
from tests.media.samples import encoded, gradient, video

from dicast.media import image_size, sniff
from dicast.media.sniff import second_format


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
@pytest.mark.parametrize("size", [(1, 1), (48, 32), (257, 300)])
def test_sizes_are_read_from_headers(kind: str, size: tuple[int, int]) -> None:
    data = encoded(gradient(*size), kind)
    assert sniff(data).format == kind
    assert image_size(data, kind) == size


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 50}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}])
def test_all_kinds_of_webp(options: dict[str, object]) -> None:
    assert image_size(encoded(gradient(), "WEBP", **options), "WEBP") == (48, 32)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_broken_headers_have_no_size(kind: str) -> None:
    data = encoded(gradient(), kind)
    assert image_size(data[:9], kind) is None


@pytest.mark.parametrize(
    ("container", "codec", "name"),
    [("mp4", "libx264", "MP4"), ("webm", "libvpx", "WEBM"), ("matroska", "libx264", "WEBM"), ("avi", "mpeg4", "AVI")],
)
def test_videos(container: str, codec: str, name: str) -> None:
    assert (sniff(video(2, container=container, codec=codec)).format, name) == (name, name)


def test_ordinary_pictures_have_no_second_format() -> None:
    for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"):
        assert second_format(encoded(gradient(), kind)) is None


def test_nothing_is_something_else() -> None:
    assert sniff(b"").kind == "other"
