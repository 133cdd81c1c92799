"""Fitting a whole calibration: it helps where it should, stays away where it would not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.evaluation.toys import examples, oracle_for

from dicast.calibration import Calibration, Provenance
from dicast.errors import ConfigError
from dicast.evaluation.calibrate import Observation, Promise, fit, observations_of, one_per_family
from dicast.evaluation.harness import PREDICTIONS, predict

PROVENANCE = Provenance(("made/dev",), "a" * 64, 0, "2026-11-30", "", "toy")


def observed(kind: str, options: int, n: int, heat: float, *, seed: int = 0, bend: float = 0.0) -> list[Observation]:
    """Answers whose logits are `heat` times too large (and, for nouls, shifted by `bend`)."""
    random = np.random.default_rng(seed)
    true = random.normal(0, 1.5, (n, options))
    p = np.exp(true) / np.exp(true).sum(1, keepdims=True)
    gold = (p.cumsum(1) > random.random((n, 1))).argmax(1)
    given = true * heat + np.array([bend] + [0.0] * (options - 1))
    return [
        Observation(kind, f"q{number % 2}", given[number], np.eye(options)[gold[number]], f"{kind}{options}-{number}")  # type: ignore[arg-type]
        for number in range(n)
    ]


def test_each_bucket_gets_its_own_temperature() -> None:
    data = observed("choice", 4, 800, 2.0) + observed("choice", 20, 800, 0.6) + observed("noul", 2, 800, 3.0)
    calibration = fit(data, PROVENANCE)
    assert calibration.temperature("choice", 4) == pytest.approx(2.0, rel=0.15)
    assert calibration.temperature("choice", 20) == pytest.approx(0.6, rel=0.15)
    assert calibration.temperature("noul", 2) == pytest.approx(3.0, rel=0.15)
    assert calibration.temperature("score", 3) == 1.0
    report = calibration.provenance.report
    assert report["noul"]["after"]["log_loss"] < report["noul"]["before"]["log_loss"] - 0.05
    assert report["noul"]["after"]["ece"] < 0.05 < report["noul"]["before"]["ece"]
    assert report["noul"]["after"]["accuracy"] == report["noul"]["before"]["accuracy"]
    assert calibration.provenance.n == 2400


def test_every_option_count_is_covered_when_buckets_are_joined() -> None:
    calibration = fit(observed("choice", 3, 300, 2.0) + observed("choice", 7, 60, 2.0), PROVENANCE)
    spans = [(t.low, t.high) for t in calibration.temperatures]
    assert spans == [(2, None)]
    assert calibration.temperatures[0].n == 360


def test_a_calibrated_model_is_left_alone() -> None:
    calibration = fit(observed("choice", 4, 1000, 1.0), PROVENANCE)
    assert calibration.temperatures == ()
    assert "no temperature helps" in calibration.provenance.warnings[0]


def test_too_little_data_is_refused_or_warned_about() -> None:
    with pytest.raises(ConfigError, match="too few labelled questions"):
        fit(observed("noul", 2, 30, 3.0), PROVENANCE)
    calibration = fit(observed("noul", 2, 30, 3.0) + observed("choice", 3, 200, 2.0), PROVENANCE)
    assert "noul: 30 questions are too few" in calibration.provenance.warnings[0]


def test_extreme_temperatures_are_warned_about() -> None:
    warnings = fit(observed("choice", 3, 600, 4.0), PROVENANCE).provenance.warnings
    assert any("extreme temperature" in warning for warning in warnings)


@pytest.mark.parametrize("method", ["isotonic", "vector", "auto"])
def test_a_bent_noul_needs_more_than_a_temperature(method: str) -> None:
    data = observed("noul", 2, 3000, 2.0, bend=1.5)
    rich = fit(data, PROVENANCE, method=method)  # type: ignore[arg-type]
    plain = fit(data, PROVENANCE)
    after, before = rich.provenance.report["noul"]["after"], plain.provenance.report["noul"]["after"]
    assert after["log_loss"] < before["log_loss"] - 0.02
    assert after["ece"] < 0.03
    assert (rich.isotonic is not None) or rich.vectors


def test_vectors_and_maps_wait_for_enough_data() -> None:
    calibration = fit(observed("noul", 2, 400, 2.0, bend=1.5), PROVENANCE, method="isotonic")
    assert calibration.isotonic is None
    assert any("too few for isotonic" in warning for warning in calibration.provenance.warnings)


def test_promises_are_fitted_on_families_that_the_temperatures_have_not_seen() -> None:
    data = observed("choice", 4, 3000, 2.0)
    promise = Promise(target_error=0.3, alpha=0.1, per_question=True)
    calibration = fit(data, PROVENANCE, promise=promise)
    assert sum(t.n for t in calibration.temperatures) + calibration.thresholds[0].n == 3000
    assert {t.question for t in calibration.thresholds} == {None, "q0", "q1"}
    fresh = observed("choice", 4, 20000, 2.0, seed=9)
    accepted = sets = hits = errors = 0
    for o in fresh:
        logits = calibration.apply("choice", o.logits)
        p = np.exp(logits - logits.max())
        by_option = dict(zip("abcd", (p / p.sum()).tolist(), strict=True))
        chosen = calibration.prediction_set("choice", "new", by_option)
        sets += len(chosen or ())
        hits += "abcd"[o.gold] in (chosen or ())
        if calibration.accepted("choice", "new", by_option):
            accepted += 1
            errors += int(p.argmax()) != o.gold
    assert accepted > 2000
    assert errors / accepted <= 0.3
    assert 0.87 < hits / len(fresh) < 0.95
    assert sets < 4 * len(fresh)


def test_a_promise_that_cannot_be_kept_is_stored_as_accepting_nothing() -> None:
    calibration = fit(observed("noul", 2, 900, 1.0), PROVENANCE, promise=Promise(target_error=0.001))
    assert calibration.thresholds[0].threshold is None
    assert calibration.accepted("noul", "q", [1.0, 0.0]) is False
    assert any("nothing is accepted" in warning for warning in calibration.provenance.warnings)


def test_the_result_can_be_stored_and_read(tmp_path: Path) -> None:
    promise = Promise(target_error=0.3, alpha=0.1)
    calibration = fit(observed("noul", 2, 1500, 2.0, bend=1.0), PROVENANCE, method="auto", promise=promise)
    calibration.save(tmp_path)
    assert Calibration.load(tmp_path) == calibration


def test_observations_come_from_predictions(tmp_path: Path) -> None:
    made = list(examples(6))
    rows = [row for _, row in predict(made, oracle_for(made, refused=("r3",)), tmp_path / PREDICTIONS)]
    found = observations_of(rows)
    assert len(found) == 15
    assert np.exp(found[0].logits).sum() == pytest.approx(1.0)
    assert all(o.logits.argmax() == o.gold for o in found)


def test_one_question_of_each_family_is_kept() -> None:
    data = [Observation("noul", f"q{n}", np.zeros(2), np.eye(2)[0], f"f{n % 4}") for n in range(20)]
    chosen = one_per_family(data)
    assert sorted(o.family for o in chosen) == ["f0", "f1", "f2", "f3"]
    assert one_per_family(reversed(data)) != []
    assert {o.question for o in one_per_family(reversed(data))} == {o.question for o in chosen}
