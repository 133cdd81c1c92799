"""The script behind docs/results: every number with its interval and its flag."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.toys import DATA, toy

import dicast.checkpoints
import dicast.model
from dicast.evaluation import results


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """The script's JSON and page over the samples, with the toy model."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "head.onnx").write_bytes(b"weights")
    monkeypatch.setattr(dicast.model, "load", lambda name: toy())
    monkeypatch.setattr(dicast.checkpoints, "resolve", lambda name: (tmp_path / "weights", "toy", ""))
    manifest = tmp_path / "manifest.json"
    manifest.write_text('{"sources": [{"source": "real_gsm8k_choice"}]}')
    out = tmp_path / "results"
    options = ["--data", str(DATA / "index"), "--out", str(out), "--manifest", str(manifest), "--scale", "0.02"]
    results.main([*options, "--repeats", "20"])
    return json.loads((out / "embedded.json").read_text()), (out / "embedded.md").read_text()


def test_every_set_has_its_flag_and_its_numbers_their_intervals(made: tuple[dict[str, Any], str]) -> None:
    result, _ = made
    flags = {row["set"]: row["train_part"] for row in result["sets"]}
    assert flags == {
        "banking77": "zero-shot",
        "bfcl": "zero-shot",
        "cruxeval": "zero-shot",
        "gsm8k_choice": "seen",
    }
    for row in result["sets"]:
        for part in row["slices"].values():
            assert {"accuracy", "brier", "ece"} <= set(part["metrics"])
            assert all(set(metric) == {"value", "low", "high"} for metric in part["metrics"].values())
        assert row["index"]["requests"] == row["records"] <= 5
        assert row["data_sha256"]


def test_the_page_shows_no_number_without_interval(made: tuple[dict[str, Any], str]) -> None:
    _, page = made
    rows = [line for line in page.splitlines() if " | choice | " in line]
    assert len(rows) == 4
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[1] in ("seen", "zero-shot")
        assert all("[" in cell or cell == "–" for cell in cells[6:])
    assert "| BFCL | zero-shot | 1 of 1694 | case_exact |" in page
    assert "no index of their own" in page


def test_the_file_says_how_it_was_made(made: tuple[dict[str, Any], str]) -> None:
    result, page = made
    facts = result["made"]
    assert len(facts["weights"]["head.onnx"]) == 16
    assert facts["command"].startswith("python -m docs.results --data")
    assert facts["scale"] == 0.02
    assert "a fixed random subset of every set" in page
