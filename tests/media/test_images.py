"""decode_image: what a person would see, from every kind of source; everything else refused by name."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.media.samples import animation, data_url, encoded, gradient, video

from dicast.errors import MediaError
from dicast.media import MediaLimits, decode_image

RED, WHITE = (255, 0, 0), (255, 255, 255)


def refused(source: object, **options: object) -> MediaError:
    with pytest.raises(MediaError) as caught:
        decode_image(source, name="images.3", **options)  # type: ignore[arg-type]
    assert caught.value.field.startswith("images.3")
    return caught.value


# Sources


def test_every_source_gives_the_same_pixels(tmp_path: Path) -> None:
    picture = gradient()
    data = encoded(picture)
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    base64_text = data_url(data).partition(",")[2]
    sources = {
        "bytes": data,
        "bytearray": bytearray(data),
        "path": path,
        "text path": str(path),
        "file": io.BytesIO(data),
        "data URL": data_url(data),
        "content_type": {"content_type": "image/png", "base64": base64_text},
        "asset": {"type": "image", "format": "png", "data_base64": base64_text},
        "pillow": picture,
        "array": np.asarray(picture),
    }
    for name, source in sources.items():
        decoded = decode_image(source)
        assert decoded.mode == "RGB", name
        assert np.array_equal(np.asarray(decoded), np.asarray(picture)), name


def test_a_wrong_extension_does_not_matter_when_the_bytes_are_an_image(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(encoded(gradient(), "PNG"))
    assert decode_image(path).size == (48, 32)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_formats(kind: str) -> None:
    assert decode_image(encoded(gradient(), kind)).size == (48, 32)


def test_heic_where_the_plug_in_is_installed() -> None:
    plugin = pytest.importorskip("pillow_heif")
    buffer = io.BytesIO()
    plugin.from_pillow(gradient(64, 64)).save(buffer, quality=90)
    assert decode_image(buffer.getvalue()).size == (64, 64)


def test_heic_without_the_plug_in_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    assert "pip install pillow-heif" in str(refused(b"\0\0\0\x18ftypheic" + bytes(64)))


def test_a_pillow_image_is_never_changed() -> None:
    picture = gradient()
    decode_image(picture).putpixel((0, 0), (1, 2, 3))
    assert picture.getpixel((0, 0)) != (1, 2, 3)


# Modes


def test_exif_orientation_is_applied() -> None:
    picture = gradient()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rows are columns
    decoded = decode_image(encoded(picture, "PNG", exif=exif))
    assert np.array_equal(np.asarray(decoded), np.asarray(picture.transpose(Image.Transpose.ROTATE_270)))


def test_broken_exif_does_not_hide_a_sound_picture() -> None:
    decoded = decode_image(encoded(gradient(), "PNG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"))
    assert decoded.size == (48, 32)


def test_transparent_pixels_show_the_background() -> None:
    picture = Image.new("RGBA", (8, 8), (*RED, 0))
    picture.putpixel((1, 1), (*RED, 255))
    decoded = decode_image(encoded(picture))
    assert decoded.getpixel((0, 0)) == WHITE
    assert decoded.getpixel((1, 1)) == RED
    assert decode_image(encoded(picture), background=(0, 0, 9)).getpixel((0, 0)) == (0, 0, 9)


def test_without_background_alpha_is_dropped_as_the_reference_does() -> None:
    picture = Image.new("RGBA", (8, 8), (*RED, 0))
    assert decode_image(encoded(picture), background=None).getpixel((0, 0)) == RED


def test_palette_with_transparency() -> None:
    picture = Image.new("P", (8, 8), 0)
    picture.putpalette([*RED, 0, 0, 255])
    picture.putpixel((2, 2), 1)
    decoded = decode_image(encoded(picture, "PNG", transparency=0))
    assert decoded.getpixel((0, 0)) == WHITE
    assert decoded.getpixel((2, 2)) == (0, 0, 255)


def test_cmyk() -> None:
    decoded = decode_image(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    red, green, blue = decoded.getpixel((4, 4))
    assert red > 245
    assert green < 10
    assert blue < 10


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_keeps_its_shades(kind: str) -> None:
    deep = Image.fromarray((np.arange(64, dtype=np.uint16).reshape(8, 8) << 10) | 0xFF)
    decoded = np.asarray(decode_image(encoded(deep, kind)))
    assert np.array_equal(decoded[:, :, 0], np.arange(64).reshape(8, 8) * 4)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "YCbCr"])
def test_other_modes(mode: str) -> None:
    picture = Image.new("L", (8, 8), 255).convert(mode)
    decoded = decode_image(encoded(picture, "TIFF" if mode == "YCbCr" else "PNG"))
    assert decoded.getpixel((3, 3)) == WHITE


def test_animated_images_show_the_first_frame_unless_asked() -> None:
    data = animation("GIF")
    assert decode_image(data).getpixel((0, 0))[0] == 0
    assert decode_image(data, frame=3).getpixel((0, 0))[0] == 240
    assert "has no frame 9" in str(refused(data, frame=9))


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.full((4, 6), 7, np.uint8), (7, 7, 7)),
        (np.full((4, 6, 1), 7, np.uint8), (7, 7, 7)),
        (np.full((4, 6, 3), 0x1234, np.uint16), (0x12, 0x12, 0x12)),
        (np.full((4, 6, 3), 0.5, np.float32), (128, 128, 128)),
        (np.full((4, 6), True), WHITE),
        (np.zeros((4, 6, 4), np.uint8), WHITE),
    ],
)
def test_arrays(array: np.ndarray, expected: tuple[int, int, int]) -> None:
    decoded = decode_image(array)
    assert decoded.size == (6, 4)
    assert decoded.getpixel((0, 0)) == expected


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((3, 40, 50), np.uint8), "channels come last"),
        (np.zeros((4, 6, 3), np.int64), "int64"),
        (np.full((4, 6, 3), 255.0), "[0, 1], not [255, 255]"),
        (np.full((4, 6, 3), np.nan), "[0, 1]"),
        (np.zeros((0, 6, 3), np.uint8), "no area"),
        (np.zeros((2, 2, 2, 3), np.uint8), "(2, 2, 2, 3)"),
        (np.array([["a"]]), "<U1"),
    ],
)
def test_arrays_whose_meaning_is_unclear_are_refused(array: np.ndarray, said: str) -> None:
    assert said in str(refused(array))


# Detail for speed


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_max_pixels_scales_down_to_whole_tokens(kind: str) -> None:
    decoded = decode_image(encoded(gradient(640, 480), kind), max_pixels=100_000)
    assert decoded.size == (352, 256)
    assert decode_image(encoded(gradient(), kind), max_pixels=100_000).size == (48, 32)


def test_max_pixels_holds_for_thin_pictures() -> None:
    decoded = decode_image(gradient(2000, 20), max_pixels=10_000)
    assert decoded.width * decoded.height <= 10_000


def test_max_pixels_below_one_token_is_refused() -> None:
    assert "1024" in str(refused(gradient(), max_pixels=100))


# Refusals


def test_empty() -> None:
    error = refused(b"")
    assert "empty (0 bytes)" in str(error)
    assert error.seen == 0


def test_too_many_bytes() -> None:
    error = refused(encoded(gradient()), limits=MediaLimits(image_bytes=100))
    assert error.limit == 100
    assert error.seen > 100


def test_too_many_bytes_in_base64_are_refused_before_decoding() -> None:
    error = refused("data:image/png;base64," + "A" * 10_000, limits=MediaLimits(image_bytes=100))
    assert error.seen == 7500


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims a huge picture."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_a_decompression_bomb_is_refused_from_its_header() -> None:
    error = refused(bomb(50_000, 50_000))
    assert error.seen == 2_500_000_000
    assert error.limit == MediaLimits().image_pixels


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_pixel_limit_in_every_format(kind: str) -> None:
    error = refused(encoded(gradient(), kind), limits=MediaLimits(image_pixels=1000))
    assert (error.limit, error.seen) == (1000, 48 * 32)


def test_ten_thousand_by_one() -> None:
    error = refused(encoded(Image.new("RGB", (10_000, 1))))
    assert (error.limit, error.seen) == (200.0, 10_000.0)
    assert "10000x1" in str(error)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_truncated_files(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    data = encoded(noise, kind)
    assert kind in str(refused(data[: len(data) // 2]))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b"  <svg onload='alert(1)'/>", "SVG"),
        (b"%PDF-1.7\n", "PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "PostScript"),
        (b"PK\x03\x04\0\0", "ZIP"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b"hello", "text"),
        (b"\0\1\2\3\4\5\6\7", "unknown"),
        (b"#EXTM3U\nhttp://192.168.0.1/", "playlist"),
    ],
)
def test_what_is_not_an_accepted_image_is_named(data: bytes, said: str) -> None:
    assert said in str(refused(data))


def test_a_video_among_the_images() -> None:
    assert "is a video (MP4)" in str(refused(video(2)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
@pytest.mark.parametrize(
    ("tail", "said"),
    [
        (b"<script>alert(1)</script>", "script"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'></svg>", "SVG"),
        (b"PK\x05\x06" + bytes(18), "ZIP"),
    ],
)
def test_polyglots(kind: str, tail: bytes, said: str) -> None:
    error = refused(encoded(gradient(), kind) + tail)
    assert said in str(error)
    assert "polyglot" in str(error)


def test_a_pdf_header_inside_an_image() -> None:
    data = encoded(gradient(), "JPEG", comment=b"%PDF-1.4 1 0 obj")
    assert "PDF" in str(refused(data))


def test_plain_trailing_bytes_are_allowed_as_cameras_write_them() -> None:
    assert decode_image(encoded(gradient(), "JPEG") + b"\0" * 100 + b"MotionPhoto_Data").size == (48, 32)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("http://example.org/a.png", "remote URLs are refused"),
        ("https://example.org/a.png", "remote URLs are refused"),
        ("file:///etc/hostname", "file: URLs are refused"),
        ("FILE:///etc/hostname", "file: URLs are refused"),
        ("ftp://example.org/a.png", "ftp: URLs are refused"),
        ("gopher://example.org/", "gopher: URLs are refused"),
        ("data:image/png,abc", "not base64"),
        ("data:image/png;base64", "comma"),
        ("data:image/png;base64,@@@@", "not valid base64"),
        ({"url": "http://169.254.169.254/"}, "remote URLs are refused"),
        ({}, "must hold base64"),
        (7, "int"),
        (io.StringIO("text"), "binary"),
    ],
)
def test_sources_that_are_refused(source: object, said: str) -> None:
    assert said in str(refused(source))


def test_paths_that_are_refused(tmp_path: Path) -> None:
    assert "cannot read" in str(refused(tmp_path / "missing.png"))
    assert "not a regular file" in str(refused(tmp_path))


def test_a_decoder_s_words_come_without_the_objects_of_this_process() -> None:
    from dicast.media.images import reason_of

    assert reason_of(ValueError(f"cannot identify image file {io.BytesIO()!r}")) == "cannot identify image file"
