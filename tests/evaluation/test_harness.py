"""The harness: right numbers, resuming, refusing a foreign folder, slices, bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.evaluation.toys import DATA, Oracle, examples, oracle_for, toy

from dicast.calibration import Calibration, ConformalQuantile, Provenance, Threshold
from dicast.errors import ConfigError
from dicast.evaluation.backends import LocalBackend
from dicast.evaluation.data import find_files, read
from dicast.evaluation.harness import PREDICTIONS, EvalOptions, evaluate, read_predictions
from dicast.training.data import Example

QUICK = EvalOptions(repeats=30)


def test_an_oracle_is_always_right_and_its_confidence_is_measured(tmp_path: Path) -> None:
    made = list(examples(40))
    result = evaluate(made, oracle_for(made), tmp_path, QUICK)
    whole = result["slices"]["all"]
    assert result["records"] == 40
    assert whole["n"] == 120
    assert whole["families"] == 20
    assert whole["metrics"]["accuracy"]["value"] == 1.0
    assert whole["metrics"]["ece"]["value"] == pytest.approx(0.2)
    assert whole["metrics"]["log_loss"]["value"] == pytest.approx(-np.log(0.8))
    assert result["slices"]["type=noul"]["metrics"]["auroc"]["value"] == 1.0
    assert result["slices"]["type=noul"]["metrics"]["brier_binary"]["value"] == pytest.approx(0.04)
    assert result["slices"]["type=score"]["metrics"]["kappa"]["value"] == 1.0
    assert result["slices"]["type=choice"]["metrics"]["macro_f1"]["value"] == 1.0
    assert result["latency_ms"]["median"] == 2.0
    assert result["input_tokens"]["mean"] == 11


def test_a_wrong_oracle_shows_its_mistakes(tmp_path: Path) -> None:
    made = list(examples(12))
    backend = oracle_for([])  # takes the first option for right
    result = evaluate(made, backend, tmp_path, EvalOptions(repeats=10, worst=3))
    assert len(result["worst"]) == 3
    worst = result["worst"][0]
    assert worst["predicted"] != worst["gold"]
    assert json.loads(worst["state"])["case"] in range(12)
    assert result["slices"]["type=choice"]["confusions"]


def test_unanswered_records_count_as_wrong(tmp_path: Path) -> None:
    made = list(examples(10))
    result = evaluate(made, oracle_for(made, refused=("r0", "r5")), tmp_path, QUICK)
    assert result["failed"] == 2
    assert result["errors"] == {"refused: too long": 2}
    assert result["slices"]["all"]["answered"] == pytest.approx(0.8)
    assert result["slices"]["all"]["metrics"]["accuracy"]["value"] == pytest.approx(0.8)


def test_a_stopped_run_goes_on_without_asking_again(tmp_path: Path) -> None:
    made = list(examples(30))
    whole = evaluate(made, oracle_for(made), tmp_path / "whole", QUICK)
    path = tmp_path / "stopped" / PREDICTIONS
    path.parent.mkdir()
    lines = (tmp_path / "whole" / PREDICTIONS).read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:11]) + lines[11][:40])  # the last line was cut off in the middle
    backend = oracle_for(made)
    resumed = evaluate(made, backend, path.parent, QUICK)
    assert backend.asked == 19
    assert resumed == whole
    assert path.read_bytes() == b"".join(lines)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    made = list(examples(4))
    evaluate(made, oracle_for(made), tmp_path, QUICK)
    with pytest.raises(ConfigError, match="holds a run with model = 'oracle'"):
        evaluate(made, oracle_for(made, name="other"), tmp_path, QUICK)
    with pytest.raises(ConfigError, match="holds a run with limit = None"):
        evaluate(made, oracle_for(made), tmp_path, QUICK, facts={"limit": 3})


def test_changed_data_is_refused(tmp_path: Path) -> None:
    evaluate(list(examples(4)), Oracle(), tmp_path, QUICK)
    with pytest.raises(ConfigError, match="belongs to another record"):
        evaluate(list(examples(9))[5:], Oracle(), tmp_path, QUICK)


def test_thresholds_and_sets_of_the_checkpoint_are_measured(tmp_path: Path) -> None:
    calibration = Calibration(
        Provenance((), "0" * 64, 0, "2026-11-30", "test"),
        thresholds=(Threshold("choice", None, 0.8, 0.05, 0.05, "clopper-pearson", 0.5, 100),),
        conformal=(ConformalQuantile("choice", None, 2, None, "lac", 0.8, 0.1, 100),),
    )
    made = list(examples(60))
    result = evaluate(made, LocalBackend(toy(calibration=calibration)), tmp_path, QUICK)
    choices = result["slices"]["type=choice"]["metrics"]
    assert 0 < choices["accepted"]["value"] < 1
    assert 0 < choices["accepted_error"]["value"] < 1
    assert 1 <= choices["set_size"]["value"] <= 3
    assert choices["set_coverage"]["value"] > choices["accuracy"]["value"]
    assert "accepted" not in result["slices"]["type=noul"]["metrics"]


def test_slices(tmp_path: Path) -> None:
    made = list(examples(10))
    slices = ("source", "question", "options", "meta.half")
    result = evaluate(made, oracle_for(made), tmp_path, EvalOptions(slices, repeats=5))
    counts = {name: part["n"] for name, part in result["slices"].items()}
    assert counts["source=made"] == 30
    assert counts["question=which"] == 10
    assert counts["options=2"] == 10
    assert counts["options=3-4"] == 20
    assert counts["meta.half=1"] == 15


def test_real_records_and_soft_labels(tmp_path: Path) -> None:
    files = find_files([str(DATA / "records")], split="dev")
    assert [file.name for file in files] == ["creak", "snips", "vader_sentiment"]
    result = evaluate(read(files), LocalBackend(toy()), tmp_path, EvalOptions(("source",), repeats=10))
    assert result["records"] == 34
    assert result["failed"] == 0
    assert 0 < result["slices"]["type=score"]["metrics"]["soft_brier"]["value"] < 2
    assert result["model"]["architecture"] == "hash"


def test_a_record_without_any_label_is_read_but_not_counted(tmp_path: Path) -> None:
    made = list(examples(3))
    made[1] = Example(made[1].record)
    result = evaluate(made, oracle_for(made), tmp_path, QUICK)
    assert result["records"] == 3
    assert result["slices"]["all"]["n"] == 6


def test_many_records_stay_in_bounded_memory(tmp_path: Path) -> None:
    """Twice the records, no more memory: rows are sampled, predictions are on disk, sums are exact."""

    def peak(records: int) -> tuple[int, float]:
        folder = tmp_path / str(records)
        options = EvalOptions(repeats=0, capacity=100, worst=5)
        tracemalloc.start()
        result = evaluate(examples(records), Oracle(chunk=50), folder, options)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert result["slices"]["all"]["n"] == 3 * records
        assert result["slices"]["all"]["n_sampled"] == 100
        gold = [line["questions"]["yes"]["gold"] == "true" for line in read_predictions(folder / PREDICTIONS)]
        exact = result["slices"]["type=noul"]["metrics"]["accuracy"]["value"]
        assert exact == pytest.approx(np.mean(gold))
        return most, exact

    small, _ = peak(200)
    large, _ = peak(800)
    assert large < small * 1.2
