"""What goes wrong in real runs: kill -9, too little memory, missing packages."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.test_loop import make_config, step_losses

from dicast.errors import MissingDependencyError
from dicast.training import data
from dicast.training.config import config_from
from dicast.training.failures import OutOfMemoryError, explain_memory
from dicast.training.journal import Journal
from dicast.training.run import train

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_killed_process_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 in the middle, twice in one place: the resumed run's losses and weights are those of an unbroken one."""
    model: dict[str, Any] = {"family": "tests.training.toy:build_slowly", "options": {"seconds": 0.0}}
    tables: dict[str, Any] = {"ema": {"decay": 0.9}, "schedule": {"epochs": 10.0}, "dev": {"every_steps": 7}}
    train(make_config(tmp_path, model=model, run={"folder": str(tmp_path / "whole"), "device": "cpu"}, **tables))
    model["options"] = {"seconds": 0.05}
    config = make_config(tmp_path, model=model, checkpoint={"every_steps": 2}, **tables)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    code = "import json, sys; from dicast.training.config import config_from; from dicast.training.run import train; "
    code += "train(config_from(json.load(open(sys.argv[1]))))"
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    checkpoints = tmp_path / "run" / "checkpoints"
    while not list(checkpoints.glob("step-*/state.pt")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = len(step_losses(tmp_path / "run"))
    train(config)
    whole, resumed = step_losses(tmp_path / "whole"), step_losses(tmp_path / "run")
    assert 0 < done < len(whole)
    assert resumed == whole
    first, second = (torch.load(tmp_path / name / "model" / "toy.pt") for name in ("run", "whole"))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_too_little_memory_names_the_settings_that_help() -> None:
    config = config_from({"model": {"train": "all"}, "batch": {"tokens": 9000}})
    text = str(explain_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), config, 12))
    assert text.index("batch.tokens (now 9000") < text.index("gradient_checkpointing") < text.index('"lora"')
    adapted = config_from({"model": {"train": "lora", "gradient_checkpointing": True, "dtype": "bfloat16"}})
    text = str(explain_memory(torch.OutOfMemoryError("x"), adapted, 1))
    assert "lora.last_layers" in text
    assert "gradient_checkpointing" not in text


def test_a_step_without_memory_stops_with_that_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr("tests.training.toy.ToyTrainable.forward_batch", full)
    with pytest.raises(OutOfMemoryError, match=r"batch\.tokens"):
        train(make_config(tmp_path))


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow.parquet", "datasets", "torch.utils.tensorboard", "zstandard"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "a.parquet").write_bytes(b"")
    (tmp_path / "a.jsonl.zst").write_bytes(b"")
    for path, package in (
        (tmp_path / "a.parquet", "pyarrow"),
        ("hf:a/b", "datasets"),
        (tmp_path / "a.jsonl.zst", "zstandard"),
    ):
        with pytest.raises(MissingDependencyError, match=package):
            list(data.read_examples(path))
    with pytest.raises(MissingDependencyError, match="tensorboard"):
        Journal(tmp_path, 1, tensorboard=True)


def test_parquet_rows_may_be_structs_or_json_text(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    questions = {"q": {"type": "choice", "criteria": {"a": "one", "b": "two"}}}
    rows = [
        {"state": "x", "questions": questions, "gold": {"q": "a", "other": None}},
        {"state": "y", "questions": questions, "gold": {"q": "b", "other": None}},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "structs.parquet")
    texts = [{key: value if key == "state" else json.dumps(value) for key, value in row.items()} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(texts), tmp_path / "texts.parquet")
    structs, plain = (list(data.read_examples(tmp_path / f"{name}.parquet")) for name in ("structs", "texts"))
    assert [one.gold for one in structs] == [{"q": "a"}, {"q": "b"}] == [one.gold for one in plain]
    assert structs[0].record.questions == plain[0].record.questions
    assert structs[1].place.endswith("structs.parquet:row 2")
