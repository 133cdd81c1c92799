"""`dicast calibrate` from the outside: what it writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evaluation.toys import toy

import dicast.model
from dicast.calibration import Calibration
from dicast.training.data import data_hash


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkpoint folder whose model is far too sure of itself."""

    def load(name: Any = None, *, device: str = "auto", dtype: str = "auto", calibrated: bool = True) -> Any:
        assert calibrated is False  # a calibration is never fitted on top of another
        return toy(4.0)

    monkeypatch.setattr(dicast.model, "load", load)
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """400 choices whose right option the toy model's logits say little about."""
    random = np.random.default_rng(0)
    path = tmp_path / "held" / "dev.jsonl"
    path.parent.mkdir()
    question = {"type": "choice", "instructions": "Which?", "criteria": ["a", "b", "c"]}
    lines = [
        {"id": str(n), "state": f"case {n}", "questions": {"q": question}, "gold": {"q": "abc"[random.integers(0, 3)]}}
        for n in range(400)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_calibration_is_written_beside_the_weights(
    dicast_command: Callable[..., Any], checkpoint: Path, data: Path
) -> None:
    outcome = dicast_command("calibrate", "-d", data.parent, "-m", checkpoint, "--miss-rate", "0.2")
    assert outcome.code == 0, outcome.err
    calibration = Calibration.load(checkpoint)
    assert calibration is not None
    assert calibration.temperature("choice", 3) > 2.5
    assert calibration.conformal[0].alpha == 0.2
    assert calibration.provenance.data == ("held/dev",)
    assert calibration.provenance.model == "model"
    assert "extreme temperature" in outcome.out
    assert "written: " in outcome.out


def test_a_dry_run_writes_nothing(dicast_command: Callable[..., Any], checkpoint: Path, data: Path) -> None:
    outcome = dicast_command("calibrate", "-d", data, "-m", checkpoint, "--dry-run", "--target-error", "0.05")
    assert outcome.code == 0, outcome.err
    assert "nothing is accepted" in outcome.out
    assert list(checkpoint.iterdir()) == []


def test_a_missing_target_folder_is_refused_before_the_work(
    dicast_command: Callable[..., Any], checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    outcome = dicast_command("calibrate", "-d", data, "-m", checkpoint, "--out", tmp_path / "nowhere")
    assert outcome.code == 2
    assert outcome.err.strip().endswith("out: no such folder")
    assert outcome.out == ""


def test_training_data_is_refused(dicast_command: Callable[..., Any], checkpoint: Path, data: Path) -> None:
    (checkpoint / "training.json").write_text(json.dumps({"data": {"dev": data_hash(data)}}))
    outcome = dicast_command("calibrate", "-d", data, "-m", checkpoint)
    assert outcome.code == 2
    assert "was trained on this file" in outcome.err


def test_too_little_data_is_refused(dicast_command: Callable[..., Any], checkpoint: Path, data: Path) -> None:
    outcome = dicast_command("calibrate", "-d", data, "-m", checkpoint, "--limit", "20")
    assert outcome.code == 2
    assert "too few labelled questions" in outcome.err
    assert not (checkpoint / "calibration.json").exists()


def test_kept_predictions_are_used_again(
    dicast_command: Callable[..., Any], checkpoint: Path, data: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "raw.jsonl"
    command = ("calibrate", "-d", data, "-m", checkpoint, "--predictions", kept, "--dry-run")
    first = dicast_command(*command)
    size = kept.stat().st_size
    assert dicast_command(*command).out == first.out
    assert kept.stat().st_size == size
