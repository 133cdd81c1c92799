"""Folders are told apart, loaded strictly, written byte-stable, and every fault has its own clear error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.golden_cases import RELEASE

from dicast.checkpoints import fetch, kind_of, load_clef, load_model, resolve, save_clef
from dicast.errors import CheckpointError, ConfigError, ModelNotFoundError
from dicast.records import Noul, Record


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the golden checkpoint to break."""
    return Path(shutil.copytree(RELEASE, tmp_path / "release"))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_saving_writes_the_release_layout_byte_stable(copy: Path, tmp_path: Path) -> None:
    model = load_clef(copy, device="cpu", dtype="float32")
    first, second = tmp_path / "first", tmp_path / "second"
    save_clef(model, first)
    save_clef(load_clef(first, device="cpu", dtype="float32"), second)
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    for name in ("joint_head.safetensors", "joint_head_config.json", "tokenizer.json", "processor_config.json"):
        assert (first / name).read_bytes() == (copy / name).read_bytes(), name
    encoding = model.encode(Record("s", {"q": Noul("?")}))
    again = load_clef(second, device="cpu", dtype="float32")
    np.testing.assert_array_equal(model.score([encoding])[0][0], again.score([encoding])[0][0])


def test_a_chat_model_is_named_as_such(copy: Path) -> None:
    for name in ("joint_head_config.json", "joint_head.safetensors"):
        (copy / name).unlink()
    with pytest.raises(CheckpointError, match=r"no joint schema head .* this is a chat or base model"):
        kind_of(copy)


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        load_model(tmp_path)


def test_an_unknown_format(tmp_path: Path) -> None:
    (tmp_path / "dicast.json").write_text('{"format": "stone tablets"}')
    with pytest.raises(CheckpointError, match="unknown format 'stone tablets'"):
        load_model(tmp_path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 5000)


@pytest.mark.parametrize("damage", [truncate, garbage, Path.unlink])
@pytest.mark.parametrize(
    "name", ["joint_head.safetensors", "model.safetensors", "joint_head_config.json", "config.json"]
)
def test_a_damaged_file_is_named(name: str, damage: Callable[[Path], Any], copy: Path) -> None:
    if damage is truncate and name.endswith(".json"):
        (copy / name).write_text((copy / name).read_text()[:-5])
    else:
        damage(copy / name)
    with pytest.raises(CheckpointError, match="release"):
        load_model(copy, device="cpu", dtype="float32")


def test_missing_shards_are_listed(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks 1 of 2 weight files: model-00002-of-00002\.safetensors"):
        load_model(copy)


def test_a_head_for_another_backbone(copy: Path) -> None:
    edit(copy / "joint_head_config.json", hidden_size=48)
    with pytest.raises(CheckpointError, match=r"made for a backbone of width 48, but the backbone's width is 64"):
        load_model(copy, device="cpu")


def test_a_head_config_with_a_stray_key(copy: Path) -> None:
    edit(copy / "joint_head_config.json", depth=3)
    with pytest.raises(CheckpointError, match="unknown keys \\['depth'\\]"):
        load_model(copy, device="cpu")


def test_missing_and_extra_head_tensors(copy: Path) -> None:
    change_tensors(copy / "joint_head.safetensors", lambda t: t.update({"extra": t.pop("hidden_norm.weight")}))
    with pytest.raises(CheckpointError, match="does not fit its config"):
        load_model(copy, device="cpu")


def test_a_missing_backbone_tensor_is_not_made_up(copy: Path) -> None:
    change_tensors(copy / "model.safetensors", lambda t: t.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"lacks 1 tensors, first lm_head\.weight"):
        load_model(copy, device="cpu")


def test_an_extra_backbone_tensor(copy: Path) -> None:
    change_tensors(copy / "model.safetensors", lambda t: t.update({"surprise.weight": t["lm_head.weight"].clone()}))
    with pytest.raises(CheckpointError, match=r"first surprise\.weight"):
        load_model(copy, device="cpu")


def test_another_architecture(copy: Path) -> None:
    edit(copy / "config.json", model_type="llama")
    with pytest.raises(CheckpointError, match="holds a 'llama' model; supported backbones: qwen3_5"):
        load_model(copy, device="cpu")


def test_pickles_are_not_read(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="only safetensors are read"):
        load_model(copy, device="cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuchmodel", "no model 'nosuchmodel': neither a folder nor a hub name"),
        ("./nosuchfolder", "neither a folder nor a hub name"),
        ("a/b/c", "neither a folder nor a hub name"),
        ("bad name/x y", "is not a hub name"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        resolve(name)


def test_offline_mode_says_that_the_model_is_not_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="Cloudflare/clef-flash@abc is not in the local cache"):
        fetch("Cloudflare/clef-flash", "abc")


def test_what_is_fetched_holds_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}

    def snapshot(repository: str, **arguments: Any) -> str:
        asked.update(repository=repository, **arguments)
        return str(RELEASE)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    folder, name, revision = resolve("Cloudflare/clef-flash@17f0b0a")
    assert (folder, name, revision) == (RELEASE, "Cloudflare/clef-flash", "17f0b0a")
    assert asked["revision"] == "17f0b0a"
    assert not any(
        pattern.endswith((".py", ".bin", ".pt", "*")) for pattern in asked["allow_patterns"] if "." in pattern
    )


def test_half_precision_is_refused_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match="float16 is not used on a CPU"):
        load_model(RELEASE, device="cpu", dtype="float16")


@pytest.mark.parametrize(("field", "value"), [("device", "warp drive"), ("dtype", "int3"), ("head_dtype", "int3")])
def test_unknown_settings(field: str, value: str) -> None:
    with pytest.raises(ConfigError, match=value):
        load_model(RELEASE, **{field: value})


@pytest.mark.parametrize("vision", [True, False])
def test_an_output_embedding_that_the_config_ties_is_the_input_embedding(vision: bool, copy: Path) -> None:
    """As in the small Qwen3.5 backbones; without the tie a missing lm_head is refused (above)."""
    config = json.loads((copy / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (copy / "config.json").write_text(json.dumps(config))
    change_tensors(copy / "model.safetensors", lambda t: t.pop("lm_head.weight"))
    backbone = load_clef(copy, device="cpu", dtype="float32", vision=vision).network.backbone
    ids = torch.arange(5)
    torch.testing.assert_close(backbone.lexical_rows(ids), backbone.text.embed_tokens.weight[ids], rtol=0, atol=0)
