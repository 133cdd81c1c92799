import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from dicast.errors import ConfigError
from dicast.training.config import Config, config_from
from dicast.training.loop import TrainingStoppedError, rate_factor
from dicast.training.run import train

TOPICS = {
    "billing": "invoice card refund charge",
    "technical": "crash error login bug",
    "sales": "quote price demo plan",
}


def write_data(path: Path, count: int = 60) -> Path:
    rows = []
    for index in range(count):
        team = list(TOPICS)[index % 3]
        words = TOPICS[team].split()
        rows.append({
            "id": str(index),
            "state": f"{words[index % 4]} {words[(index + 1) % 4]} number{index % 7}",
            "questions": {
                "team": {"type": "choice", "instructions": "Who?", "criteria": {name: name for name in TOPICS}},
                "urgent": {"type": "noul", "instructions": "Urgent?"},
            },
            "gold": {"team": team, "urgent": team == "technical"},
        })  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_config(tmp_path: Path, **tables: dict[str, Any]) -> Config:
    data = tmp_path / "data.jsonl"
    if not data.exists():
        write_data(data)
    plain: dict[str, dict[str, Any]] = {
        "run": {"folder": str(tmp_path / "run"), "device": "cpu"},
        "model": {"family": "tests.training.toy:build"},
        "data": {"train": [{"path": str(data), "name": "tickets"}], "dev_share": 0.2},
        "batch": {"tokens": 64, "records": 8, "micro_batches": 2},
        "optimizer": {"lr": 0.03, "head_lr": 0.03},
        "schedule": {"epochs": 4.0},
        "dev": {"every_steps": 5},
        "log": {"every_steps": 1},
    }
    for name, table in tables.items():
        plain[name] = plain.get(name, {}) | table
    return config_from(plain)


def step_losses(folder: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "step"}


def test_it_learns_and_writes_what_it_did(tmp_path: Path) -> None:
    summary = train(make_config(tmp_path))
    assert summary["reason"] == "finished"
    assert summary["dev"]["accuracy"] > 0.9
    assert (tmp_path / "run" / "model" / "toy.pt").exists()
    stored = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert stored["data"]
    assert stored["packages"]["torch"]
    assert stored["config"]["batch"]["tokens"] == 64
    losses = step_losses(tmp_path / "run")
    assert list(losses) == list(range(1, summary["steps"] + 1))


def test_a_resumed_run_repeats_the_unbroken_one_exactly(tmp_path: Path) -> None:
    tables = {"model": {"family": "tests.training.toy:build", "options": {"dropout": 0.3}}, "ema": {"decay": 0.9}}
    whole = make_config(tmp_path, **tables, run={"folder": str(tmp_path / "whole"), "device": "cpu"})
    total = train(whole)["steps"]
    broken = make_config(tmp_path, **tables, checkpoint={"every_steps": 3})
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 7)
        with pytest.raises(KeyboardInterrupt):
            train(broken)
    assert max(step_losses(tmp_path / "run")) == 7
    assert train(broken)["steps"] == total
    assert step_losses(tmp_path / "run") == step_losses(tmp_path / "whole")
    first, second = (torch.load(tmp_path / name / "model" / "toy.pt") for name in ("run", "whole"))
    assert all(torch.equal(first[key], second[key]) for key in first)


def stop_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    from dicast.training.loop import Trainer

    take = Trainer._take
    done = iter(range(steps + 1))

    def counted(self: Trainer, *arguments: Any) -> float:
        if next(done) == steps:
            raise KeyboardInterrupt
        return take(self, *arguments)

    patch.setattr(Trainer, "_take", counted)


def test_a_folder_of_another_run_is_not_continued(tmp_path: Path) -> None:
    train(make_config(tmp_path))
    with pytest.raises(ConfigError, match=r"optimizer\.lr"):
        train(make_config(tmp_path, optimizer={"lr": 0.5, "head_lr": 0.03}))
    assert train(make_config(tmp_path, optimizer={"lr": 0.01, "head_lr": 0.03}), fresh=True)["reason"] == "finished"


def test_a_loss_that_is_not_finite_stops_with_the_batch_saved(tmp_path: Path) -> None:
    config = make_config(tmp_path, optimizer={"lr": 1e20, "head_lr": 1e20, "clip": 0.0})
    with pytest.raises(TrainingStoppedError, match="batch"):
        train(config)
    (saved,) = (tmp_path / "run").glob("bad-step-*")
    rows = [json.loads(line) for line in (saved / "batch.jsonl").read_text().splitlines()]
    assert rows
    assert {"state", "questions", "gold", "place"} <= set(rows[0])
    assert (saved / "weights.pt").exists()


def test_early_stopping_keeps_the_best_weights(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, dev={"every_steps": 1, "patience": 2, "metric": "loss"}, optimizer={"lr": 2.0, "head_lr": 2.0}
    )
    summary = train(config)
    assert summary["reason"] == "early stop"
    assert summary["dev"]["loss"] == pytest.approx(summary["best"]["value"], rel=1e-5)


def test_rlcd_raises_the_expected_reward_and_reads_its_reference_back(tmp_path: Path) -> None:
    tables = {"schedule": {"max_steps": 4}, "optimizer": {"lr": 0.01, "head_lr": 0.01}}
    before = train(make_config(tmp_path, **tables, run={"folder": str(tmp_path / "sft"), "device": "cpu"}))
    config = make_config(
        tmp_path,
        run={"folder": str(tmp_path / "rl"), "stage": "rlcd", "device": "cpu"},
        model={"family": "tests.training.toy:build"},
        schedule={"max_steps": 40},
        rlcd={"kl": 0.01, "estimator": "exact"},
    )
    after = train(config)
    assert after["dev"]["reward"] > before["dev"]["reward"]
    reference = torch.load(tmp_path / "rl" / "reference.pt", weights_only=True)
    assert len(reference) == after["examples"]["train"]
    assert sum(2.718281828**value for value in reference[0]["team"].values()) == pytest.approx(1.0, abs=1e-4)


def test_rlcd_refuses_augmentation(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="augment"):
        train(make_config(tmp_path, run={"stage": "rlcd", "folder": str(tmp_path)}, augment={"question_order": 0.5}))


def test_the_learning_rate_warms_up_and_falls(tmp_path: Path) -> None:
    schedule = make_config(tmp_path, schedule={"warmup": 0.1, "final": 0.1}).schedule
    rates = [rate_factor(step, 100, schedule) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(rates[10:]))
