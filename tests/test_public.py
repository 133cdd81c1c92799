"""The public surface: its names, what importing it costs, and the one place of the version."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dicast
from dicast._version import __version__

ROOT = Path(__file__).parents[1]

PUBLIC = {
    "load", "DecisionModel", "ModelInfo", "EncodeOptions", "Calibration", "Engine", "__version__",
    "Record", "Question", "Noul", "Choice", "Score",
    "Decision", "Answer", "NoulAnswer", "ChoiceAnswer", "ScoreAnswer", "Usage",
    "DicastError", "InputError", "RecordError", "TokenBudgetError", "MediaError", "CapabilityError", "ConfigError",
    "ModelNotFoundError", "CheckpointError", "MissingDependencyError", "EngineError", "OverloadedError",
    "DeadlineExceededError", "EngineClosedError",
}  # fmt: skip


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment).stdout


def test_the_public_names_are_these() -> None:
    assert set(dicast.__all__) == PUBLIC
    assert len(dicast.__all__) == len(PUBLIC)
    assert set(dir(dicast)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(dicast, name) is not None


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nouls'"):
        dicast.Nouls  # noqa: B018


def test_importing_dicast_imports_nothing_heavy() -> None:
    loaded = python("import sys, dicast; print(*{name.split('.')[0] for name in sys.modules})").split()
    assert not {"torch", "transformers", "numpy", "pydantic", "onnxruntime", "tokenizers", "typer"} & set(loaded)


def test_the_light_modules_import_no_torch() -> None:
    modules = "records, errors, answers, encoding, calibration, schemas, model, checkpoints, wire.systemone, cli.app"
    code = "".join(f"import dicast.{name}\n" for name in modules.split(", "))
    loaded = python(code + "import sys; print(*{name.split('.')[0] for name in sys.modules})").split()
    assert not {"torch", "transformers", "torchvision"} & set(loaded)


def test_the_version_has_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/dicast/_version.py"
    assert dicast.__version__ == __version__


def test_the_package_is_typed() -> None:
    assert (ROOT / "src/dicast/py.typed").is_file()
