"""Runs of `ray_runs.py` in a process of their own, since Ray reads its environment only once, when it is imported."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RUNS = Path(__file__).with_name("ray_runs.py")
TIMEOUT_S = 600
KEY_VARIABLE, KEY = "DICAST_TEST_RAY_KEY", "key-of-the-ray-test"


@pytest.fixture
def ray_run() -> Iterator[Callable[[str], Any]]:
    """Runs a function of `ray_runs.py` on a Ray of this machine and gives back what it returned."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'dicast[ray]'")
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # short: the path of a socket in it has 107 characters at most
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # without one, Ray writes one to the home directory
        KEY_VARIABLE: KEY,
    }

    def run(name: str) -> Any:
        result = Path(folder, "result.json")
        command = [sys.executable, str(RUNS), name, str(result)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(result.read_text(encoding="utf-8"))

    try:
        yield run
    finally:
        shutil.rmtree(folder, ignore_errors=True)
