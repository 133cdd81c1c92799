"""One image from anything: bytes, a path, a data URL, an array, a Pillow image -> upright RGB. Knows no models.

A picture comes out as a person would see it: EXIF orientation applied, transparency on white, palettes, CMYK, grey and
16-bit samples brought to 8-bit RGB, the first frame of an animation. Whatever is unreadable, unsafe or over a limit is
a :class:`MediaError` that names the asset. Pillow is imported when the first image is decoded.
"""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from dicast.errors import MediaError, MissingDependencyError
from dicast.media.limits import DEFAULT_LIMITS, MediaLimits, check_bytes, check_size, refuse
from dicast.media.remote import RemotePolicy
from dicast.media.sniff import image_size, second_format, sniff
from dicast.media.sources import read_source

if TYPE_CHECKING:
    from PIL.Image import Image

WHITE = (255, 255, 255)
_EXIF_ORIENTATION = 0x0112
_DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
_FACTOR = 32


def decode_image(
    source: Any,
    *,
    name: str = "images.0",
    limits: MediaLimits = DEFAULT_LIMITS,
    frame: int = 0,
    max_pixels: int | None = None,
    background: tuple[int, int, int] | None = WHITE,
    remote: RemotePolicy | None = None,
) -> Image:
    """Decode one image.

    Args:
        source: bytes, a path, a base64 data URL, ``{content_type, base64}``, ``{format, data_base64}``, a binary file,
            a Pillow image, or an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of uint8, uint16 or floats in [0, 1].
        name: the asset's name in errors.
        limits: what the image may cost.
        frame: which frame of an animated image, from 0.
        max_pixels: scale down to at most this area (sides become multiples of 32 where they can), trading detail for
            speed.
        background: colour under transparent pixels; None drops the alpha channel as the reference does.
        remote: hosts from which http(s) URLs may be fetched; None refuses all.

    Returns:
        A Pillow image in mode RGB, fully loaded.

    Raises:
        MediaError: unreadable, unsafe or over a limit; names the asset, the limit and what was seen.
        MissingDependencyError: Pillow is not installed.
    """
    if is_pillow(source):
        return _finish(source, name, limits, max_pixels, background)
    if hasattr(source, "__array__"):
        return _finish(_from_array(np.asarray(source), name, limits), name, limits, max_pixels, background)
    data = read_source(source, name=name, limit=limits.image_bytes, limits=limits, remote=remote)
    return decode_image_bytes(data, name=name, limits=limits, frame=frame, max_pixels=max_pixels, background=background)


def decode_image_bytes(
    data: bytes,
    *,
    name: str = "images.0",
    limits: MediaLimits = DEFAULT_LIMITS,
    frame: int = 0,
    max_pixels: int | None = None,
    background: tuple[int, int, int] | None = WHITE,
) -> Image:
    """Decode one encoded image; arguments and errors as :func:`decode_image`."""
    kind = check_image_bytes(data, name=name, limits=limits)
    opened = _open(data, kind, name)
    check_size(*opened.size, limits, name)
    if max_pixels is not None and max_pixels > 0:
        # Lets the JPEG decoder skip detail that would be scaled away; it never goes below the asked size.
        opened.draft("RGB", _fit(opened.size, max_pixels))
    _seek(opened, frame, name, limits)
    try:
        opened.load()
    except MemoryError:
        raise
    except (
        Exception
    ) as error:  # a decoder may raise anything on a hostile file; every case means the same to the caller
        refuse(name, f"cannot be decoded as {kind}: {reason_of(error)}")
    return _finish(opened, name, limits, max_pixels, background)


def check_image_bytes(data: bytes, *, name: str = "images.0", limits: MediaLimits = DEFAULT_LIMITS) -> str:
    """Check an encoded image as far as its first bytes tell, without Pillow, and return its true format.

    Raises:
        MediaError: empty, too large, not an image, also another format (polyglot), or over a limit of pixels or shape.
    """
    check_bytes(len(data), limits.image_bytes, name)
    sniffed = sniff(data)
    if sniffed.kind == "video":
        refuse(name, f"is a video ({sniffed.format}), not an image; send it under videos", seen=sniffed.format)
    if sniffed.kind != "image":
        advice = "; SVG is a program that draws, so send it as PNG" if sniffed.format == "SVG" else ""
        accepted = "PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF"
        refuse(name, f"is not an image of an accepted format but {sniffed.format} (accepted: {accepted}){advice}")
    second = second_format(data)
    if second:
        refuse(name, f"is {sniffed.format} and {second} at once (a polyglot file)", seen=second)
    size = image_size(data, sniffed.format)
    if size is not None:
        check_size(*size, limits, name)
    return sniffed.format


def to_array(image: Image) -> np.ndarray:
    """An RGB image as uint8 (H, W, 3)."""
    return np.asarray(image, dtype=np.uint8)


def pillow() -> Any:
    """The module PIL.Image.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError("images need Pillow: pip install pillow") from error
    return Image


def is_pillow(source: Any) -> bool:
    """Whether a source is a Pillow image, without importing Pillow for sources that are not."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(source).__mro__)


def _open(data: bytes, kind: str, name: str) -> Image:
    module = pillow()
    module.init()
    if kind == "HEIF":
        _register_heif()
    if kind not in module.OPEN:
        plugin = " (pip install pillow-heif)" if kind == "HEIF" else ""
        refuse(name, f"is {kind}, which this installation of Pillow cannot read{plugin}; send PNG or JPEG", seen=kind)
    try:
        opened: Image = module.open(io.BytesIO(data), formats=[kind])
    except MemoryError:
        raise
    except Exception as error:  # as in decode_image_bytes
        refuse(name, f"cannot be opened as {kind}: {reason_of(error)}")
    return opened


def _register_heif() -> None:
    """Let Pillow read HEIC and HEIF, where the plug-in is installed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return
    register_heif_opener()


def _seek(image: Image, frame: int, name: str, limits: MediaLimits) -> None:
    if frame == 0:
        return
    if not 0 <= frame < limits.animation_frames:
        refuse(name, f"frame {frame} is not between 0 and {limits.animation_frames - 1}", seen=frame)
    try:
        image.seek(frame)
    except EOFError:
        refuse(name, f"has no frame {frame}", seen=frame)
    except MemoryError:
        raise
    except Exception as error:  # as in decode_image_bytes
        refuse(name, f"frame {frame} cannot be decoded: {reason_of(error)}")


def _finish(
    image: Image,
    name: str,
    limits: MediaLimits,
    max_pixels: int | None,
    background: tuple[int, int, int] | None,
) -> Image:
    if max_pixels is not None and max_pixels < _FACTOR * _FACTOR:
        refuse(name, f"max_pixels must be at least {_FACTOR * _FACTOR}, not {max_pixels}", seen=max_pixels)
    check_size(*image.size, limits, name)
    try:
        upright = _upright(image)
        rgb = _to_rgb(upright, name, background)
        if max_pixels is not None and rgb.width * rgb.height > max_pixels:
            rgb = rgb.resize(_fit(rgb.size, max_pixels), resample=pillow().Resampling.BICUBIC)
    except (MediaError, MemoryError):
        raise
    except Exception as error:  # as in decode_image_bytes: a lazily loaded image decodes here
        refuse(name, f"cannot be converted to RGB from mode {image.mode}: {reason_of(error)}")
    return rgb


def _upright(image: Image) -> Image:
    from PIL import ImageOps

    try:
        orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # broken camera data: the picture itself is sound, and viewers show it as stored
        return image
    return ImageOps.exif_transpose(image) if orientation in range(2, 9) else image


def _to_rgb(image: Image, name: str, background: tuple[int, int, int] | None) -> Image:
    """Mode RGB, always a copy of its own."""
    if image.mode in _DEEP_MODES:
        samples = np.asarray(image)
        return _grey(_eight_bits(_sixteen_bits(samples, name) if image.mode == "I" else samples, name))
    if background is None or not image.has_transparency_data:
        return image.convert("RGB") if image.mode != "RGB" else image.copy()
    rgba = image.convert("RGBA")
    canvas: Image = pillow().new("RGB", image.size, background)
    canvas.paste(rgba, mask=rgba.getchannel("A"))
    return canvas


def _from_array(array: np.ndarray, name: str, limits: MediaLimits) -> Image:
    shape = array.shape
    if array.ndim == 3 and shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        hint = "; channels come last" if array.ndim == 3 and shape[0] in (1, 3, 4) else ""
        refuse(name, f"an image array has shape (H, W), (H, W, 3) or (H, W, 4), not {shape}{hint}", seen=shape)
    check_size(array.shape[1], array.shape[0], limits, name)
    eight = _eight_bits(array, name)
    return _grey(eight) if eight.ndim == 2 else pillow().fromarray(np.ascontiguousarray(eight))


def _grey(array: np.ndarray) -> Image:
    grey: Image = pillow().fromarray(np.ascontiguousarray(array)).convert("RGB")
    return grey


def _eight_bits(array: np.ndarray, name: str) -> np.ndarray:
    """Samples as uint8: 16-bit ones by their high byte, floats in [0, 1] times 255 and rounded, booleans as black and
    white. Other integers are refused, since nothing says what their white is."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return (array >> 8).astype(np.uint8)
    if not np.issubdtype(array.dtype, np.floating):
        refuse(name, f"samples must be uint8, uint16 or floats in [0, 1], not {array.dtype}", seen=str(array.dtype))
    low, high = float(array.min()), float(array.max())
    if not (low >= 0.0 and high <= 1.0):  # also true for NaN
        refuse(name, f"float samples must lie in [0, 1], not [{low:g}, {high:g}]", limit=1.0, seen=high)
    return np.rint(array * 255.0).astype(np.uint8)


def _sixteen_bits(array: np.ndarray, name: str) -> np.ndarray:
    """Samples of Pillow's 32-bit integer mode, which holds 16-bit pictures, as uint16."""
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > 65_535:
        refuse(name, f"integer samples must lie in [0, 65535], not [{low}, {high}]", limit=65_535, seen=high)
    return array.astype(np.uint16)


def _fit(size: tuple[int, int], max_pixels: int) -> tuple[int, int]:
    """(width, height) of at most `max_pixels` in the same shape; multiples of 32 where both sides have as much."""
    scale = math.sqrt(max_pixels / (size[0] * size[1]))
    width, height = (max(1, int(side * scale)) for side in size)
    if min(width, height) < _FACTOR:
        return width, height
    return width // _FACTOR * _FACTOR, height // _FACTOR * _FACTOR


def reason_of(error: Exception) -> str:
    """A decoder's own words, kept short, on one line and without the objects of this process."""
    said = re.sub(r" *<[\w.]+ object at 0x[0-9a-f]+>", "", getattr(error, "strerror", None) or str(error))
    text = " ".join(str(said).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:159] + "…"
