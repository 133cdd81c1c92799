"""Write a trained Clef model in the release layout, file by file, from the files it started with.

The starting checkpoint's shards are copied tensor by tensor with the trained ones put in their place. So names, dtypes,
shards, vision tower and output embedding stay as they were, whatever part of them was loaded for training, and never
more than one shard is in memory. Adapters are merged. Multi-token-prediction layers of a bare backbone are left out, as
in the release.

    config.json, model*.safetensors (and index), joint_head_config.json, joint_head.safetensors, tokenizer, processor

Knows safetensors files and names; knows nothing of training.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dicast.checkpoints import copy_files, save_head
from dicast.errors import CheckpointError
from dicast.training.distributed import is_first_process

if TYPE_CHECKING:
    from dicast.training.clef import ClefTrainable

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LEFT_OUT = "mtp."
"""Prefix of tensors that a decision model never uses."""


class CheckpointFiles:
    """The backbone's tensors in a checkpoint folder, by name.

    Args:
        folder: holds model.safetensors, or shards and their index.

    Raises:
        CheckpointError: no weight files, or an index that does not fit them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shard_of = self._read_index()
        nested = any(name.startswith("model.language_model.") for name in self._shard_of)
        self._prefix = "model.language_model." if nested else "model."

    @property
    def shards(self) -> list[str]:
        """Names of the weight files."""
        return sorted(set(self._shard_of.values()))

    @property
    def sharded(self) -> bool:
        """Whether there is an index."""
        return (self.folder / INDEX).exists()

    def decoder_name(self, name: str) -> str:
        """Full name of a tensor that is called `name` in the text decoder."""
        return self._prefix + name

    def names(self, shard: str | None = None) -> list[str]:
        """Names of all tensors, or of those in one shard."""
        return [name for name, place in self._shard_of.items() if shard in (None, place)]

    def tensor(self, name: str) -> Tensor:
        """One tensor.

        Raises:
            CheckpointError: there is none of that name.
        """
        if name not in self._shard_of:
            raise CheckpointError(f"{self.folder} has no tensor {name}")
        with safe_open(self.folder / self._shard_of[name], "pt") as file:
            value: Tensor = file.get_tensor(name)
            return value

    def _read_index(self) -> dict[str, str]:
        index = self.folder / INDEX
        if index.exists():
            return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        path = self.folder / SINGLE
        if not path.exists():
            raise CheckpointError(f"{self.folder} has neither {SINGLE} nor {INDEX}")
        with safe_open(path, "pt") as file:
            return dict.fromkeys(file.keys(), SINGLE)


def write_release(trainable: ClefTrainable, folder: Path) -> None:
    """Write the trained model; every process calls it, the first one writes. A folder of that name is replaced.

    Raises:
        CheckpointError: a trained tensor has no place in the starting checkpoint.
        OSError: the disk is full; what was there before stays.
    """
    trained = trainable.trained_weights()
    if not is_first_process():
        return
    temporary = folder.with_name(f".tmp-{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        files = CheckpointFiles(trainable.folder)
        write_backbone(files, {files.decoder_name(name): value for name, value in trained.items()}, temporary)
        save_head(trainable.exported_head(), temporary)
        copy_files(trainable.folder, temporary)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_backbone(files: CheckpointFiles, trained: Mapping[str, Tensor], folder: Path) -> None:
    """Copy all shards with trained tensors in place, each in the dtype it had, and the configuration.

    Raises:
        CheckpointError: a trained tensor is not in the files, or has another shape there.
    """
    homeless = sorted(set(trained) - set(files.names()))
    if homeless:
        raise CheckpointError(f"{files.folder} has no place for {len(homeless)} trained tensors, first {homeless[0]}")
    sizes: dict[str, int] = {}
    index: dict[str, str] = {}
    for shard in files.shards:
        tensors = _shard(files, shard, trained)
        if not tensors:
            continue
        save_file(tensors, folder / shard, metadata={"format": "pt"})
        sizes |= {name: value.numel() * value.element_size() for name, value in tensors.items()}
        index |= dict.fromkeys(tensors, shard)
    if files.sharded:
        plain = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": dict(sorted(index.items()))}
        (folder / INDEX).write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
    _write_config(files, folder)


def _shard(files: CheckpointFiles, shard: str, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tied = {"lm_head.weight": files.decoder_name("embed_tokens.weight")} if _tied(files.folder) else {}
    tensors: dict[str, Tensor] = {}
    for name in files.names(shard):
        if name.startswith(LEFT_OUT):
            continue
        value = files.tensor(name)
        new = trained.get(name, trained.get(tied.get(name, "")))
        if new is not None:
            if new.shape != value.shape:
                raise CheckpointError(f"{name} is {list(new.shape)}, but {list(value.shape)} in {files.folder}")
            value = new.to(value.dtype)
        tensors[name] = value.contiguous()
    return tensors


def _tied(folder: Path) -> bool:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return bool(config.get("tie_word_embeddings", config.get("text_config", {}).get("tie_word_embeddings", False)))


def _write_config(files: CheckpointFiles, folder: Path) -> None:
    """Copy config.json unchanged, unless it speaks of layers that were left out."""
    text = (files.folder / "config.json").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text)
    inner = config.get("text_config", config)
    if inner.get("mtp_num_hidden_layers"):
        inner["mtp_num_hidden_layers"] = 0
        text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
