"""Where the bytes of an image or video come from. Knows no formats, decodes nothing.

Two doors, so that a request can never name a file of the server:

* :func:`read_source`, for callers in the same process: bytes, a path, a data URL, a mapping with base64, a file object;
* :func:`read_wire_source`, for what came in over a wire: the same without paths and file objects.

Remote URLs go through :mod:`dicast.media.remote` and only where a :class:`RemotePolicy` allows their host; ``file:``
URLs are always refused.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dicast.errors import MediaError
from dicast.media.limits import MediaLimits, check_bytes, refuse
from dicast.media.remote import RemotePolicy, fetch

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_BASE64_KEYS = ("base64", "data_base64", "data")
_SHOWN_PATH = 200
_URL_KEYS = ("url", "image_url", "video_url")


def read_source(
    source: Any, *, name: str, limit: int, limits: MediaLimits, remote: RemotePolicy | None = None
) -> bytes:
    """Bytes of a source given by code in the same process.

    Args:
        source: bytes, a path (``str`` or ``PathLike``), a data URL, a binary file object, or a mapping as in
            :func:`read_wire_source`.
        name: the asset's name in errors.
        limit: most bytes.
        remote: hosts from which http(s) URLs may be fetched; None refuses all.

    Raises:
        MediaError: unreadable, empty, too large, or a URL that is not allowed.
    """
    if isinstance(source, os.PathLike) or (isinstance(source, str) and not _is_url(source)):
        return _read_file(Path(source), name=name, limit=limit)
    if callable(getattr(source, "read", None)):
        return _bounded(source.read(limit + 1), name=name, limit=limit)
    return read_wire_source(source, name=name, limit=limit, limits=limits, remote=remote)


def read_wire_source(
    source: Any, *, name: str, limit: int, limits: MediaLimits, remote: RemotePolicy | None = None
) -> bytes:
    """Bytes of a source that came in over a wire; the file system is never touched.

    Args:
        source: bytes; a base64 data URL; an http(s) URL if `remote` allows its host; or a mapping with base64 text
            under ``base64`` (beside ``content_type``) or ``data_base64`` (beside ``format``), or with a URL under
            ``url``.

    Raises:
        MediaError: as :func:`read_source`.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return _bounded(bytes(source), name=name, limit=limit)
    if isinstance(source, Mapping):
        for key in _BASE64_KEYS:
            if isinstance(source.get(key), str):
                return _base64(source[key], name=name, limit=limit)
        for key in _URL_KEYS:
            if isinstance(source.get(key), str):
                return read_wire_source(source[key], name=name, limit=limit, limits=limits, remote=remote)
        refuse(name, "must hold base64 text under base64 or data_base64")
    if not isinstance(source, str):
        refuse(name, f"cannot be read from {type(source).__name__}", seen=type(source).__name__)
    return _read_url(source, name=name, limit=limit, limits=limits, remote=remote)


def _read_url(url: str, *, name: str, limit: int, limits: MediaLimits, remote: RemotePolicy | None) -> bytes:
    scheme = url.split(":", 1)[0].lower() if _SCHEME.match(url) else ""
    if scheme == "data":
        return _data_url(url, name=name, limit=limit)
    if scheme in ("http", "https"):
        return _bounded(fetch(url, name=name, limit=limit, limits=limits, policy=remote), name=name, limit=limit)
    if scheme:
        refuse(name, f"{scheme}: URLs are refused; send a base64 data URL", seen=scheme)
    refuse(name, "must be a base64 data URL such as data:image/png;base64,… or {content_type, base64}")


def _is_url(text: str) -> bool:
    """Whether text is a URL rather than a path; a single letter before the colon is a Windows drive."""
    return bool(_SCHEME.match(text))


def _data_url(url: str, *, name: str, limit: int) -> bytes:
    header, comma, body = url.partition(",")
    if not comma:
        refuse(name, "is a data URL without a comma")
    if not header.lower().endswith(";base64"):
        refuse(name, "is a data URL that is not base64; write data:<type>;base64,<data>")
    return _base64(body, name=name, limit=limit)


def _base64(text: str, *, name: str, limit: int) -> bytes:
    if len(text) // 4 * 3 > limit + limit // 16 + 3:  # a sixteenth: room for line breaks
        check_bytes(len(text) // 4 * 3, limit, name)
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        refuse(name, f"is not valid base64: {str(error).lower()}")
    return _bounded(data, name=name, limit=limit)


def _read_file(path: Path, *, name: str, limit: int) -> bytes:
    shown = repr(str(path)[:_SHOWN_PATH])
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            refuse(name, f"{shown} is not a regular file")
        check_bytes(status.st_size, limit, name)
        with path.open("rb") as file:
            return _bounded(file.read(limit + 1), name=name, limit=limit)
    except OSError as error:
        refuse(name, f"cannot read {shown}: {error.strerror or error}")
    except ValueError as error:  # a null byte in a path; MediaError is a ValueError too
        if isinstance(error, MediaError):
            raise
        refuse(name, f"cannot read {shown}: {error}")


def _bounded(data: Any, *, name: str, limit: int) -> bytes:
    if not isinstance(data, bytes):
        refuse(name, f"must be read in binary mode, not as {type(data).__name__}")
    check_bytes(len(data), limit, name)
    return data
