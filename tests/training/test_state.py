import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.test_loop import make_config, step_losses, train

from dicast.errors import CheckpointError
from dicast.training import state
from dicast.training.state import CheckpointStore, save_atomically, write_text_atomically


def test_the_newest_few_stay_and_the_newest_is_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2)
    assert store.latest() is None
    for step in (1, 2, 3):
        store.save(step, {"weights": torch.full((2,), float(step))})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000002", "step-00000003"]
    newest = store.latest()
    assert newest is not None
    assert (newest["step"], newest["weights"].tolist()) == (3, [3.0, 3.0])


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": 1})
    path = store.save(2, {"a": 2}) / "state.pt"
    path.write_bytes(path.read_bytes()[:20])
    newest = store.latest()
    assert newest is not None
    assert newest["step"] == 1
    (tmp_path / "checkpoints" / "step-00000001" / "state.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        store.latest()


def full_disk(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": 1})
    save_atomically({"a": 1}, tmp_path / "best.pt")
    monkeypatch.setattr(state.torch, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        store.save(2, {"a": 2})
    with pytest.raises(OSError, match="No space"):
        save_atomically({"a": 2}, tmp_path / "best.pt")
    assert store.latest() == {"format": 1, "step": 1, "a": 1}
    assert torch.load(tmp_path / "best.pt") == {"a": 1}
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".tmp")]


def test_a_run_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.torch, "save", full_disk)
    config = make_config(tmp_path, checkpoint={"every_steps": 2}, dev={"every_steps": 1000}, schedule={"max_steps": 4})
    from dicast.training import loop

    monkeypatch.setattr("tests.training.toy.ToyTrainable.save", lambda self, folder: folder.mkdir(parents=True))
    monkeypatch.setattr(loop, "save_atomically", full_disk)
    assert train(config)["steps"] == 4
    assert len(step_losses(tmp_path / "run")) == 4
    assert "checkpoint_failed" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_text_files_are_replaced_whole(tmp_path: Path) -> None:
    write_text_atomically("one", tmp_path / "a" / "b.txt")
    write_text_atomically("two", tmp_path / "a" / "b.txt")
    assert [path.read_text() for path in (tmp_path / "a").iterdir()] == ["two"]
