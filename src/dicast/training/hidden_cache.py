"""Hidden states of a frozen backbone, on disk, keyed by what they depend on. Knows files, no models.

    <folder>/<key of the backbone>/<ab>/<key of the record>.safetensors     {"hidden": [L, H]}

A record's key is the hash of its token ids and media; the backbone's key is the hash of its weight files' names, sizes
and times, its dtype and its settings. A second run with the same backbone and data computes nothing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from dicast.encoding import ClefEncoding


class HiddenCache:
    """A folder of hidden states.

    Args:
        folder: where all caches lie.
        backbone: what the hidden states depend on besides the record; see :func:`backbone_key`.

    Attributes:
        hits, misses: how many records were found and not found.
    """

    def __init__(self, folder: Path, backbone: str) -> None:
        self._folder = folder / backbone
        self._full = False
        self.hits = self.misses = 0

    def get(self, encoding: ClefEncoding) -> Tensor | None:
        """Hidden states [L, H] of a record, or None. A damaged file counts as absent."""
        path = self._path(encoding)
        try:
            hidden = load_file(path)["hidden"]
        except (OSError, SafetensorError, KeyError):
            self.misses += 1
            return None
        self.hits += 1
        return hidden

    def put(self, encoding: ClefEncoding, hidden: Tensor) -> None:
        """Keep hidden states [L, H]. When the disk is full, nothing more is kept and training goes on."""
        if self._full:
            return
        path = self._path(encoding)
        temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(save({"hidden": hidden.detach().cpu().contiguous()}))
            temporary.replace(path)
        except OSError:
            self._full = True
            temporary.unlink(missing_ok=True)

    def _path(self, encoding: ClefEncoding) -> Path:
        digest = hashlib.sha256(encoding.ids.tobytes())
        if encoding.media is not None:
            digest.update(encoding.media.key.encode())
        name = digest.hexdigest()
        return self._folder / name[:2] / f"{name}.safetensors"


def backbone_key(folder: Path, **settings: Any) -> str:
    """A name for a backbone: its files and the settings that change its hidden states."""
    files = sorted([*folder.glob("*.safetensors"), folder / "config.json"])
    facts = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if "joint_head" not in file.name
    ]
    text = repr((facts, sorted(settings.items()), torch.__version__))
    return hashlib.sha256(text.encode()).hexdigest()[:24]
