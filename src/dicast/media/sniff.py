"""What a file truly is, from its bytes alone: format, size in pixels, and signs of a second format. No decoding.

Names, extensions and declared content types are never believed. An image is opened by the one decoder that this module
names, so that a file cannot pick a decoder of its own; sizes are read here so that a decompression bomb is refused
before any decoder has seen it, and so that the cost in tokens is known without Pillow.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Literal

Kind = Literal["image", "video", "other"]

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
"""Image formats that can be accepted, by Pillow's names. HEIF needs the plug-in pillow-heif."""
VIDEO_FORMATS = ("MP4", "WEBM", "AVI")
"""Video containers that can be accepted; MP4 stands for the QuickTime family, WEBM for Matroska."""

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}
_MARKUP = re.compile(rb"<\s*(svg|html|script|\?php|!doctype\s+html)", re.IGNORECASE)
_ZIP_END = b"PK\x05\x06"
_ZIP_TAIL = 22 + 65_535
_HEAD = 1024
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True, slots=True)
class Sniffed:
    """The true format of a file.

    Attributes:
        format: a name of :data:`IMAGE_FORMATS` or :data:`VIDEO_FORMATS`, or for other files what they seem to be.
        kind: whether it is an acceptable image, an acceptable video, or something else.
    """

    format: str
    kind: Kind


def sniff(data: bytes) -> Sniffed:
    """Tell the format of a file from its first bytes."""
    image = _image_format(data)
    if image:
        return Sniffed(image, "image")
    if data[4:8] == b"ftyp" or data[4:8] in (b"moov", b"mdat", b"wide", b"free", b"skip"):
        return Sniffed("MP4", "video")
    if data[:4] == b"\x1aE\xdf\xa3":
        return Sniffed("WEBM", "video")
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return Sniffed("AVI", "video")
    return Sniffed(_other_format(data), "other")


def image_size(data: bytes, image_format: str) -> tuple[int, int] | None:
    """Read (width, height) from the header, before orientation is applied.

    Returns None where the header is broken or the format's header is not read here (TIFF, AVIF, HEIF).
    """
    readers = {"PNG": _png_size, "JPEG": _jpeg_size, "GIF": _gif_size, "WEBP": _webp_size, "BMP": _bmp_size}
    reader = readers.get(image_format)
    try:
        return reader(data) if reader else None
    except (struct.error, IndexError):
        return None


def second_format(data: bytes) -> str | None:
    """Name a second format that the same bytes would also pass for (a polyglot), or None.

    Looked for: a PDF header near the start, a ZIP directory that ends with the file, and markup that a browser would
    run in front of or behind the picture. Other trailing bytes (motion photos, camera data) are common and allowed.
    """
    if b"%PDF-" in data[:_HEAD]:
        return "PDF"
    tail_start = max(0, len(data) - _ZIP_TAIL)
    end = data.rfind(_ZIP_END, tail_start)
    if (
        end >= 0
        and len(data) - end >= 22
        and end + 22 + int.from_bytes(data[end + 20 : end + 22], "little") == len(data)
    ):
        return "ZIP"
    if _MARKUP.search(data[:_HEAD]) or _MARKUP.search(data[-64 * 1024 :]):
        return "HTML, SVG or script"
    return None


def _image_format(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[:2] == b"BM" and len(data) >= 26 and 12 <= int.from_bytes(data[14:18], "little") <= 124:
        return "BMP"
    if data[:4] in (b"II*\x00", b"MM\x00*"):
        return "TIFF"
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        return "AVIF" if brand in _AVIF_BRANDS else "HEIF" if brand in _HEIF_BRANDS else None
    return None


def _other_format(data: bytes) -> str:
    head = data[:_HEAD].lstrip(b"\xef\xbb\xbf \t\r\n")
    lowered = head.lower()
    if b"<svg" in lowered:
        return "SVG"
    for start, name in ((b"%pdf-", "PDF"), (b"pk", "ZIP"), (b"\x1f\x8b", "gzip"), (b"%!ps", "PostScript")):
        if lowered.startswith(start):
            return name
    if lowered.startswith((b"<!doctype html", b"<html")):
        return "HTML"
    if lowered.startswith(b"#extm3u"):
        return "a playlist (M3U)"
    if lowered.startswith(b"<"):
        return "markup (XML)"
    return "an unknown format" if b"\0" in data[:_HEAD] or not _is_text(head) else "text"


def _is_text(head: bytes) -> bool:
    return bool(head) and all(32 <= byte < 127 or byte in (9, 10, 13) for byte in head[:64])


def _png_size(data: bytes) -> tuple[int, int] | None:
    if data[12:16] != b"IHDR":
        return None
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _gif_size(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack("<HH", data[6:10])
    return width, height


def _bmp_size(data: bytes) -> tuple[int, int]:
    if int.from_bytes(data[14:18], "little") == 12:
        width, height = struct.unpack("<HH", data[18:22])
    else:
        width, height = struct.unpack("<ii", data[18:26])
    return abs(width), abs(height)


def _webp_size(data: bytes) -> tuple[int, int] | None:
    chunk = data[12:16]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    position = 2
    while position + 9 <= len(data):
        if data[position] != 0xFF:
            return None
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:
            position += 2
        elif marker in _START_OF_FRAME:
            height, width = struct.unpack(">HH", data[position + 5 : position + 9])
            return width, height
        elif marker in (0xD9, 0xDA):
            return None
        else:
            position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return None
