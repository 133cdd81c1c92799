"""Media of a request: finds their bytes, decodes them once, and puts a reference where their placeholder was.

System One names an image by a placeholder that occurs inside strings of the state, the instructions or the criteria.
Our models read media before the state, so the placeholder becomes a reference such as ``image 1`` and the images are
ordered by first mention. Top-level ``images`` and ``videos`` lists come first and are referred to by position.

    {"state": "Compare A with B", "assets": {"A": {"format": "png", "data_base64": "..."}, "B": {"part": "asset-0"}}}
    ->  state "Compare image 1 with image 2", images [A, B]

Decoding itself, with all its limits, is :mod:`dicast.media`'s; this module knows only the wire's forms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from dicast.media.limits import MAX_IMAGES, MAX_VIDEOS, PixelBudget, check_count, pixels_of
from dicast.records import JSON
from dicast.wire.errors import Loc, invalid, over_limit, refused

Kind: TypeAlias = Literal["image", "video"]

MAX_ASSETS = MAX_IMAGES + MAX_VIDEOS
"""Most entries of ``assets``; images and videos also have limits of their own."""
MAX_ASSET_KEY_BYTES = 1024
"""Longest placeholder, in UTF-8 bytes (System One contract)."""


class MediaDecoder(Protocol):
    """Wire forms to what a model reads, with all safety limits; :class:`dicast.media.MediaWorker` is one.

    A source is bytes, a base64 data URL, an http(s) URL, or a mapping that holds base64. Raises MediaError.
    """

    def image(self, source: Any, *, name: str) -> Any:
        """Decode one image; ``name`` is for errors."""

    def video(self, source: Any, *, name: str) -> Any:
        """Decode one video; ``name`` is for errors."""


@dataclass(frozen=True, slots=True)
class Asset:
    """One medium of a request, still encoded.

    Attributes:
        kind: image or video.
        source: bytes, data URL, URL, or a mapping that holds base64.
        loc: where the request names it.
        placeholder: text that stands for it; empty for media that are given by position.
    """

    kind: Kind
    source: Any
    loc: Loc
    placeholder: str = ""

    @property
    def name(self) -> str:
        """How errors call it."""
        return ".".join(str(part) for part in self.loc)


@dataclass(slots=True)
class MediaOrder:
    """Media in the order in which a model will see them."""

    images: list[Asset] = field(default_factory=list)
    videos: list[Asset] = field(default_factory=list)

    def reference(self, asset: Asset) -> str:
        """The text that stands for an asset; the first call decides its place."""
        shown = self.images if asset.kind == "image" else self.videos
        if not any(asset is other for other in shown):
            shown.append(asset)
        place = next(index for index, other in enumerate(shown, 1) if other is asset)
        return f"{asset.kind} {place}"

    def decoded(self, decoder: MediaDecoder) -> tuple[list[Any], list[Any]]:
        """Decode everything.

        Raises:
            MediaError: one of them is unreadable or over a limit.
        """
        check_count(len(self.images), MAX_IMAGES, "images")
        check_count(len(self.videos), MAX_VIDEOS, "videos")
        budget = PixelBudget()
        images, videos = [], []
        for asset in self.images:
            images.append(decoder.image(asset.source, name=asset.name))
            budget.take(pixels_of(images[-1]), asset.name)
        for asset in self.videos:
            videos.append(decoder.video(asset.source, name=asset.name))
            budget.take(pixels_of(videos[-1]), asset.name)
        return images, videos


def read_assets(value: Any, parts: Mapping[str, bytes] | None) -> list[Asset]:
    """Read the ``assets`` object.

    Args:
        value: the object, placeholder -> asset; None when the key is missing.
        parts: multipart parts by name; None for a plain JSON body.

    Raises:
        RequestError: a wrong shape, an unknown or unused part, or data over a limit.
    """
    if value is None:
        _check_parts_used(set(), parts)
        return []
    if not isinstance(value, Mapping):
        raise invalid("must be an object", ("assets",), "dict_type")
    if not value:
        raise invalid("must not be empty; leave the key out when there are no assets", ("assets",), "too_short")
    check_count(len(value), MAX_ASSETS, "assets")
    used: set[str] = set()
    assets = [_asset(placeholder, item, parts, used) for placeholder, item in value.items()]
    _check_parts_used(used, parts)
    return assets


def read_media_list(value: Any, kind: Kind) -> list[Asset]:
    """Read a top-level ``images`` or ``videos`` list of data URLs or ``{content_type, base64}`` objects.

    Raises:
        RequestError: a wrong shape or data over a limit.
    """
    loc: Loc = (f"{kind}s",)
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid("must be an array of data URLs or {content_type, base64} objects", loc, "list_type")
    check_count(len(value), MAX_IMAGES if kind == "image" else MAX_VIDEOS, f"{kind}s")
    return [_listed(item, kind, (*loc, index)) for index, item in enumerate(value)]


class Placeholders:
    """Replaces the placeholders of assets in JSON values and notes the order of first mention.

    Longer placeholders win where one is part of another. Object keys and choice labels are never touched.
    """

    def __init__(self, assets: Sequence[Asset], order: MediaOrder) -> None:
        self._by_text = {asset.placeholder: asset for asset in assets}
        self._order = order
        texts = sorted(self._by_text, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(text) for text in texts))
        self.mentioned: set[str] = set()

    def replace(self, value: JSON) -> JSON:
        """The same JSON value with references in place of placeholders; recursion is bounded by the nesting limit."""
        if isinstance(value, str):
            return self._pattern.sub(self._reference, value)
        if isinstance(value, Mapping):
            return {key: self.replace(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.replace(item) for item in value]
        return value

    def check_all_mentioned(self) -> None:
        """Refuse an asset that no string mentions.

        Raises:
            RequestError: names the placeholder.
        """
        for text in self._by_text:
            if text not in self.mentioned:
                raise refused(
                    "no string of state, instructions or criteria mentions this asset",
                    ("assets", text),
                    code="unused_asset",
                )

    def _reference(self, match: re.Match[str]) -> str:
        self.mentioned.add(match[0])
        return self._order.reference(self._by_text[match[0]])


def _asset(placeholder: str, item: Any, parts: Mapping[str, bytes] | None, used: set[str]) -> Asset:
    loc: Loc = ("assets", placeholder)
    if not placeholder.strip():
        raise refused("a placeholder must not be blank", loc)
    size = len(placeholder.encode("utf-8", "surrogatepass"))
    if size > MAX_ASSET_KEY_BYTES:
        raise over_limit(
            f"a placeholder of {size} bytes is longer than the limit of {MAX_ASSET_KEY_BYTES}",
            ("assets",),
            limit=MAX_ASSET_KEY_BYTES,
            seen=size,
        )
    if not isinstance(item, Mapping):
        raise invalid("must be an object", loc, "dict_type")
    kind = item.get("type", "image")
    if kind not in ("image", "video"):
        raise invalid("type must be image or video", (*loc, "type"), "literal_error")
    return Asset(kind, _asset_source(item, loc, parts, used), loc, placeholder)


def _asset_source(item: Mapping[str, Any], loc: Loc, parts: Mapping[str, bytes] | None, used: set[str]) -> Any:
    """A part's bytes, or the mapping with its base64; a part wins over base64."""
    part = item.get("part")
    if part is not None:
        return _part_bytes(part, (*loc, "part"), parts, used)
    data = item.get("data_base64")
    if data is None:
        raise invalid("needs data_base64, or part in a multipart body", loc, "missing")
    if not isinstance(data, str):
        raise invalid("must be a string", (*loc, "data_base64"), "string_type")
    return {"data_base64": data}


def _part_bytes(part: Any, loc: Loc, parts: Mapping[str, bytes] | None, used: set[str]) -> bytes:
    if not isinstance(part, str):
        raise invalid("must be a string", loc, "string_type")
    if parts is None or part not in parts:
        raise refused(f"the body has no part named {part[:100]!r}", loc, code="unknown_part")
    if part in used:
        raise refused(f"the part {part!r} is used by two assets", loc, code="part_used_twice")
    used.add(part)
    return parts[part]


def _listed(item: Any, kind: Kind, loc: Loc) -> Asset:
    if not isinstance(item, str | Mapping):
        raise invalid("must be a data URL or an object with content_type and base64", loc, "union_type")
    return Asset(kind, dict(item) if isinstance(item, Mapping) else item, loc)


def _check_parts_used(used: set[str], parts: Mapping[str, bytes] | None) -> None:
    for name in parts or ():
        if name not in used:
            raise refused(f"no asset uses the part {name[:100]!r}", ("assets",), code="unused_part")
