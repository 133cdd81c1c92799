"""The application: lazy commands, exit codes, help, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dicast._version import __version__
from dicast.cli import app

SRC = Path(app.__file__).parents[2]


def fresh(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    variables = {**os.environ, "PYTHONPATH": str(SRC), **environment}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=variables)
    return run.stdout + run.stderr


def test_the_version_is_printed(dicast_command: Callable[..., Any]) -> None:
    assert dicast_command("--version").out == f"dicast {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments: list[str], dicast_command: Callable[..., Any]) -> None:
    outcome = dicast_command(*arguments)
    assert outcome.code == 0
    assert [name for name in app.COMMANDS if f"\n  {name} " not in outcome.out] == []


@pytest.mark.parametrize("name", app.COMMANDS)
def test_each_command_has_its_module_and_help(name: str, dicast_command: Callable[..., Any]) -> None:
    assert import_module(f"dicast.cli.{name}")
    outcome = dicast_command(name, "--help")
    assert outcome.code == 0
    assert outcome.out.startswith(f"Usage: dicast {name} ")


def test_deciding_imports_neither_torch_nor_other_commands(tmp_path: Path) -> None:
    code = (
        "import sys; from dicast.cli.app import run; run(['decide', '--state', 'x', '--noul', 'a', '-m', './none']);"
        "print(*sys.modules)"
    )
    loaded = set(fresh(code).split())
    assert "dicast.model" in loaded
    assert not {"torch", "transformers", "rich", "dicast.cli.batch", "dicast.cli.train", "uvicorn"} & loaded


def test_completion_knows_commands_and_options() -> None:
    code = "import sys; from dicast.cli.app import run; sys.exit(run([]))"
    shown = fresh(code, _DICAST_COMPLETE="complete_bash", COMP_WORDS="dicast ", COMP_CWORD="1")
    assert set(app.COMMANDS) <= set(shown.split())
    shown = fresh(code, _DICAST_COMPLETE="complete_bash", COMP_WORDS="dicast decide --", COMP_CWORD="2")
    assert {"--noul", "--choice", "--score", "--image", "--model"} <= set(shown.split())


def test_a_bug_is_one_sentence_unless_debugging(
    dicast_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("dicast.model.load", broken)
    words = ["decide", "--state", "x", "--noul", "a"]
    outcome = dicast_command(*words)
    assert outcome.code == 1
    assert outcome.err == "dicast: error: unexpected KeyError: 'oops'; `dicast --debug ...` shows where\n"
    assert "Traceback" in dicast_command("--debug", *words).err
    monkeypatch.setenv("DICAST_DEBUG", "1")
    assert "Traceback" in dicast_command(*words).err


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m dicast.cli.app --help | true; exit "${{PIPESTATUS[0]}}"'
    run = subprocess.run(
        ["bash", "-c", f"sleep 0; {command}"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )
    assert "Traceback" not in run.stderr
    assert "BrokenPipe" not in run.stderr
    assert run.returncode in (0, 1)
