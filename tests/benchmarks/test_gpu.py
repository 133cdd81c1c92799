"""The GPU script runs from end to end on a CPU with a tiny shape, and its check can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu


@pytest.mark.filterwarnings("ignore")
def test_the_script_checks_measures_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "gpu.json"
    assert gpu.main(["--shape", "tiny", "--device", "cpu", "--rounds", "1", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert result["check"]["passed"]
    assert {row["way"] for row in result["rows"]} == {"eager", "batch", "known state"}
    assert result["rows"][0]["tokens_each"] == 346
    assert result["rows"][-1]["times_quicker"] > 0


@pytest.mark.filterwarnings("ignore")
def test_the_check_fails_when_the_head_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Any:
        return [logits + 0.01 for logits in gpu_loops(*arguments)]

    gpu_loops = gpu.loop_logits
    monkeypatch.setattr(gpu, "loop_logits", wrong)
    assert not gpu.check(torch.device("cpu"))["passed"]


def test_flash_has_the_release_s_size() -> None:
    """6,919,565,824 parameters in the decoder layers and the final norm (clef.md, section 0)."""
    with torch.device("meta"):
        model = gpu.build(gpu.FLASH, torch.device("meta"), torch.bfloat16)
    assert gpu.limit_of(model, torch.device("cpu")).parameters == 6_919_565_824
    assert sum(p.numel() for p in model.network.head.parameters()) == 121_762_820
    limit = gpu.Limit(989e12, 4.8e12, 6_919_565_824, 2 * 6_919_565_824)
    assert limit.milliseconds(346) == pytest.approx(4.84, abs=0.01)
    assert limit.milliseconds(1) == pytest.approx(2.88, abs=0.01)
