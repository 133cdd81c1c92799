"""`dicast bench` measures and compares; how quick anything is, is no matter of a test."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.fakes import FakeModel, record

from dicast.cli import bench
from dicast.errors import ConfigError
from dicast.model import DecisionModel


def test_latency_throughput_and_memory_are_reported() -> None:
    facts = bench.measure(DecisionModel(FakeModel()), [2, 5], rounds=3, batch=4)
    assert [item["words"] for item in facts["latency"]] == [2, 5]
    assert all(0 < item["p50_ms"] <= item["p95_ms"] for item in facts["latency"])
    assert facts["batch"]["records"] == 4
    assert facts["peak_memory_bytes"] > 2**20
    assert any("p50 ms" in line for line in bench._table(facts))


def test_drift_compares_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def load(name: Any, **options: Any) -> DecisionModel:
        asked.append(options)
        return DecisionModel(FakeModel())

    monkeypatch.setattr("dicast.model.load", load)
    facts = bench.measure_drift(None, [record("abc")], device="cpu", dtype="auto", quantize="int8")
    assert (facts["questions"], facts["flips"], facts["largest"]) == (1, 0, 0.0)
    assert [options["dtype"] for options in asked] == ["auto", "float32"]
    assert "quantize" not in asked[1]
    with pytest.raises(ConfigError, match="runs in float32 already"):
        bench.measure_drift(None, [record("abc")], device="cpu", dtype="auto")


@pytest.mark.parametrize("words", ["", "a", "3,", "0"])
def test_lengths_must_be_numbers(words: str) -> None:
    with pytest.raises(ConfigError, match="--words"):
        bench._lengths(words)
