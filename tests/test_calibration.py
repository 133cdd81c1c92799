"""Calibration data: what it does to logits, what it accepts, and that a wrong file is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dicast.calibration import (
    FILE_NAME,
    Calibration,
    ConformalQuantile,
    Isotonic,
    Provenance,
    Temperature,
    Threshold,
    Vector,
)
from dicast.errors import CheckpointError, ConfigError

PROVENANCE = Provenance(("dev.jsonl.gz",), "0" * 64, 1000, "2026-11-30", "temperature", "toy")
FULL = Calibration(
    PROVENANCE,
    temperatures=(
        Temperature("choice", 2, 4, 2.0, 500),
        Temperature("choice", 5, None, 0.5, 300),
        Temperature("noul", 2, 2, 1.5, 200),
    ),
    vectors=(Vector("score", (1.0, 2.0, 1.0), (0.0, -1.0, 0.5), 400),),
    thresholds=(
        Threshold("choice", None, 0.8, 0.05, 0.05, "clopper-pearson", 0.6, 500),
        Threshold("choice", "team", 0.5, 0.05, 0.05, "clopper-pearson", 0.9, 200),
        Threshold("noul", None, None, 0.01, 0.05, "clopper-pearson", 0.0, 50),
    ),
    conformal=(
        ConformalQuantile("choice", None, 2, 4, "lac", 0.7, 0.1, 500),
        ConformalQuantile("choice", None, 5, None, "aps", 0.9, 0.1, 300),
    ),
)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_temperature_is_chosen_by_type_and_option_count() -> None:
    logits = np.array([1.0, 0.0, -2.0], np.float32)
    assert np.array_equal(FULL.apply("choice", logits), logits / 2)
    many = np.arange(7, dtype=np.float32)
    assert np.array_equal(FULL.apply("choice", many), many * 2)
    assert FULL.apply("choice", many).dtype == np.float32


def test_without_a_fitting_entry_logits_pass_unchanged() -> None:
    logits = np.array([0.3, -0.7], np.float32)
    assert Calibration(PROVENANCE).apply("noul", logits) is logits
    assert FULL.apply("score", np.zeros(4, np.float32)).tolist() == [0.0] * 4


def test_vector_scales_and_shifts_each_level() -> None:
    logits = np.array([[1.0, 0.0, -1.0], [4.0, 3.0, 2.0]], np.float32)  # the same answer twice, one shifted
    assert FULL.apply("score", logits).tolist() == [[1.0, -1.0, -0.5]] * 2


def test_isotonic_maps_the_probability_of_true() -> None:
    isotonic = replace(FULL, isotonic=Isotonic((0.2, 0.8), (0.1, 0.6), 100))
    p = np.array([0.01, 0.2, 0.5, 0.8, 0.99])
    logits = np.stack([np.log(p), np.log1p(-p)], -1)
    after = softmax(isotonic.apply("noul", logits))[:, 0]
    assert after == pytest.approx([0.1, 0.1, 0.35, 0.6, 0.6])
    certain = replace(FULL, isotonic=Isotonic((0.5,), (1.0,), 100))
    assert softmax(certain.apply("noul", np.array([5.0, -5.0])))[0] == pytest.approx(1 - 1e-4)


def test_threshold_of_the_question_goes_before_that_of_the_type() -> None:
    probabilities = {"a": 0.6, "b": 0.4}
    assert FULL.accepted("choice", "other", probabilities) is False
    assert FULL.accepted("choice", "team", probabilities) is True
    assert FULL.accepted("choice", "other", [0.1, 0.9]) is True
    assert FULL.accepted("score", "other", [0.1, 0.9]) is None


def test_an_unreachable_promise_accepts_nothing() -> None:
    assert FULL.accepted("noul", "q", [1.0, 0.0]) is False


def test_lac_set_keeps_probable_options_and_is_never_empty() -> None:
    assert FULL.prediction_set("choice", "q", {"a": 0.31, "b": 0.36, "c": 0.33}) == ("b", "c", "a")
    assert FULL.prediction_set("choice", "q", {"a": 0.1, "b": 0.65, "c": 0.25}) == ("b",)
    flat = replace(FULL, conformal=(ConformalQuantile("choice", None, 2, 4, "lac", 0.1, 0.5, 10),))
    assert flat.prediction_set("choice", "q", {"a": 0.4, "b": 0.6}) == ("b",)
    assert FULL.prediction_set("noul", "q", {"true": 0.4, "false": 0.6}) is None


def test_aps_set_keeps_the_most_probable_mass() -> None:
    many = {"a": 0.05, "b": 0.5, "c": 0.3, "d": 0.1, "e": 0.05}
    assert FULL.prediction_set("choice", "q", many) == ("b", "c", "d")


def test_file_round_trip(tmp_path: Path) -> None:
    assert Calibration.load(tmp_path) is None
    calibration = replace(FULL, isotonic=Isotonic((0.2, 0.8), (0.1, 0.6), 100))
    assert calibration.save(tmp_path) == tmp_path / FILE_NAME
    assert Calibration.load(tmp_path) == calibration


WRONG: list[tuple[str, Any]] = [
    ("format", "else"),
    ("version", 2),
    ("surprise", 1),
    ("temperatures", {}),
    ("temperatures", [{"type": "choice", "low": 2, "high": 4, "temperature": 0.0, "n": 5}]),
    ("temperatures", [{"type": "choice", "low": 2, "high": 4, "temperature": float("nan"), "n": 5}]),
    ("temperatures", [{"type": "choice", "low": 2, "high": 4, "temperature": "1", "n": 5}]),
    ("temperatures", [{"type": "choice", "low": 4, "high": 2, "temperature": 1.0, "n": 5}]),
    ("temperatures", [{"type": "choice", "low": 2, "high": 4, "temperature": 1.0}]),
    ("temperatures", [{"type": "choice", "low": 2, "high": 4, "temperature": 1.0, "n": 5, "extra": 0}]),
    ("temperatures", [{"type": "choice", "low": 2, "high": None, "temperature": 1.0, "n": 5}] * 2),
    ("temperatures", [{"type": "rank", "low": 2, "high": 4, "temperature": 1.0, "n": 5}]),
    ("vectors", [{"type": "choice", "scale": [1.0, 1.0], "bias": [0.0, 0.0], "n": 5}]),
    ("vectors", [{"type": "noul", "scale": [1.0], "bias": [0.0, 0.0], "n": 5}]),
    ("isotonic", {"x": [0.5, 0.4], "y": [0.1, 0.2], "n": 5}),
    ("isotonic", {"x": [0.4, 0.5], "y": [0.2, 0.1], "n": 5}),
    ("thresholds", [{"type": "noul", "question": None, "threshold": 2.0}]),
    ("conformal", [{"type": "choice", "score": "raps"}]),
    ("provenance", None),
    ("provenance", {"data": [], "data_sha256": "x", "n": 1, "date": "2026-11-30", "method": "temperature"}),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_file_is_refused_whole(tmp_path: Path, key: str, value: Any) -> None:
    path = FULL.save(tmp_path)
    body = json.loads(path.read_text())
    body[key] = value
    path.write_text(json.dumps(body))
    with pytest.raises(CheckpointError, match="not a valid calibration"):
        Calibration.load(tmp_path)


def test_the_message_names_the_field(tmp_path: Path) -> None:
    body = json.loads(FULL.save(tmp_path).read_text())
    body["temperatures"][1]["temperature"] = 90.0
    with pytest.raises(ConfigError, match=r"temperatures\.1\.temperature: must lie between 0\.05 and 20"):
        Calibration.from_dict(body)


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(CheckpointError):
        Calibration.load(tmp_path)
