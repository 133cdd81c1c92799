"""Runs with several processes, started as torchrun starts them: by environment variables."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.test_loop import make_config, step_losses

from dicast.errors import ConfigError
from dicast.training.config import Config
from dicast.training.distributed import pick_device, start_world
from dicast.training.run import train

ROOT = Path(__file__).parents[2]
RELEASE = Path(__file__).parents[1] / "golden" / "release"


def run_processes(config: Config, count: int, tmp_path: Path) -> None:
    """Train with `count` gloo processes on this machine."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = (
        "import json, sys; from dicast.training.config import config_from; from dicast.training.run import train; "
        "train(config_from(json.load(open(sys.argv[1]))))"
    )
    common = os.environ | {
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path)],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        results = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for process, (_, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0, errors[-3000:]


def test_two_processes_follow_the_curve_of_one(tmp_path: Path) -> None:
    """Three micro-batches per step do not divide by two, so one process also runs one that does not count."""
    tables: dict[str, Any] = {
        "model": {"family": "tests.training.toy:build", "options": {"dropout": 0.3}},
        "batch": {"tokens": 64, "records": 4, "micro_batches": 3},
        "schedule": {"epochs": 3.0},
    }
    alone = make_config(tmp_path, **tables, run={"folder": str(tmp_path / "one"), "device": "cpu"})
    summary = train(alone)
    run_processes(make_config(tmp_path, **tables), 2, tmp_path)
    one, two = step_losses(tmp_path / "one"), step_losses(tmp_path / "run")
    assert one.keys() == two.keys()
    assert list(two.values()) == pytest.approx(list(one.values()), rel=1e-5)
    shared = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert shared["processes"] == 2
    assert shared["dev"] == pytest.approx(summary["dev"], rel=1e-4)


@pytest.mark.slow
def test_a_sharded_backbone_follows_the_curve_of_one_process(tmp_path: Path) -> None:
    tables: dict[str, Any] = {
        "model": {"family": "clef", "start": str(RELEASE), "train": "lora"},
        "lora": {"rank": 4},
        "batch": {"tokens": 4000, "records": 8, "micro_batches": 2},
        "schedule": {"max_steps": 3},
        "dev": {"every_steps": 100},
        "optimizer": {"lr": 1e-3, "head_lr": 1e-3},
    }
    train(make_config(tmp_path, **tables, run={"folder": str(tmp_path / "one"), "device": "cpu"}))
    config = make_config(tmp_path, **tables, distributed={"strategy": "fsdp2"})
    run_processes(config, 2, tmp_path)
    one, two = step_losses(tmp_path / "one"), step_losses(tmp_path / "run")
    assert list(two.values()) == pytest.approx(list(one.values()), rel=1e-4)
    changed = load_file(tmp_path / "run" / "model" / "model.safetensors")
    for name, value in load_file(tmp_path / "one" / "model" / "model.safetensors").items():
        torch.testing.assert_close(changed[name], value, rtol=1e-3, atol=1e-5)
    run_processes(config, 2, tmp_path)  # goes on from the finished state, which is sharded again
    assert step_losses(tmp_path / "run") == two


def test_sharding_needs_several_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="torchrun"):
        start_world(make_config(tmp_path, distributed={"strategy": "fsdp2"}))


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="cuda:77"):
        pick_device("cuda:77")
