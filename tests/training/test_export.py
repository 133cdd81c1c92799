import json
from pathlib import Path
from typing import Any

import pytest

from dicast.cli.app import run
from dicast.errors import CheckpointError, ConfigError
from dicast.training import export
from dicast.training.card import model_card
from dicast.training.config import config_from

RELEASE = Path(__file__).parents[1] / "golden" / "release"


def summary(**changes: Any) -> dict[str, Any]:
    dev = {
        "accuracy": 0.91234,
        "macro_f1": 0.9,
        "brier": 0.1,
        "ece": 0.03456,
        "joint": 0.8,
        "loss": 0.3,
        "questions": 120.0,
    }
    plain = {
        "name": "tickets", "reason": "finished", "steps": 10, "seconds": 1.5, "device": "cpu", "processes": 1,
        "dev": dev, "dev_by_source": {"s": dev}, "examples": {"train": 7, "dev": 3}, "sources": {"s": 7},
        "data": {"data/s.jsonl": "ab" * 32}, "commit": "", "python": "3.12", "packages": {"torch": "2.9"},
        "config": config_from({"model": {"start": "Cloudflare/clef-flash"}}).to_dict(),
    }  # fmt: skip
    return plain | changes


def test_the_card_says_what_the_summary_says() -> None:
    card = model_card(summary(), licence="Apache-2.0", intended_use="Routing of tickets.")
    for part in (
        "license: Apache-2.0", "base_model: Cloudflare/clef-flash", "# tickets", "Routing of tickets.", "| s | 7 |",
        "0.9123", "0.0346", "| 120 |", "`s.jsonl`: `abababababababab`", "torch 2.9",
    ):  # fmt: skip
        assert part in card


def test_the_card_invents_nothing() -> None:
    card = model_card(summary(dev={}, dev_by_source={}))
    assert "nothing was measured" in card
    assert "license:" not in card
    assert "not stated" in card
    assert "Not measured" in card


def test_a_release_is_copied_and_other_formats_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(RELEASE), str(tmp_path / "out"), "--format", "release"]) == 0
    assert "joint_head.safetensors" in json.loads(capsys.readouterr().out)["files"]
    with pytest.raises(ConfigError, match="exported as release"):
        export.export_folder(RELEASE, tmp_path / "b", format="onnx")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no trained model"):
        export.export_folder(tmp_path / "empty", tmp_path / "c", format="release")


def test_uploading_makes_a_private_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []

    class Hub:
        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> None:
            calls.append((name, private))

        def upload_folder(self, *, repo_id: str, folder_path: Path) -> None:
            calls.append((repo_id, folder_path))

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert export.push(tmp_path, "me/tickets") == "https://huggingface.co/me/tickets"
    assert calls == [("me/tickets", True), ("me/tickets", tmp_path)]
    with pytest.raises(ConfigError, match="owner/name"):
        export.push(tmp_path, "tickets")
