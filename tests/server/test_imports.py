"""What the server must not bring: torch, and decoders before anybody sends a picture."""

import os
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"


def test_importing_the_server_imports_neither_torch_nor_decoders() -> None:
    code = "import sys, dicast.server.process, dicast.wire.decisions; print(*sorted(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    shown = run.stdout.split()
    assert "dicast.server.app" in shown
    assert not {"torch", "transformers", "PIL", "av", "onnxruntime", "fastapi", "starlette"} & set(shown)
