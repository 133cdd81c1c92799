"""Running two independent benchmarks against a server of ours: `jevbench` and `sys1bench`, both from PyPI.

They are separate programs and stay so: this module starts `dicast serve` when no URL is given, starts the benchmark as
a subprocess with the right arguments, and reads back the file that it wrote. Neither is a dependency of Dicast.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from dicast.errors import ConfigError, MissingDependencyError

Benchmark = Literal["jevbench", "sys1bench"]
START_TIMEOUT_S = 120.0
SAID_LINES = 40


def run_external(
    benchmark: Benchmark,
    model: str | None,
    out: Path,
    *,
    served: str = "jev-latest",
    suite: str = "",
    concurrency: int = 2,
    limit: int = 0,
) -> dict[str, Any]:
    """Run one of the benchmarks.

    Args:
        benchmark: which.
        model: base URL of a server, or a checkpoint that is served for this run; None for the embedded model.
        out: folder for the benchmark's own files.
        served: model name sent with each request.
        suite: jevbench: suite name (default ``jevbench-mini``); sys1bench: suites to run (default ``all``).
        concurrency: requests at once.
        limit: sys1bench: items per suite; 0 leaves its default.

    Returns:
        Version, seconds, the last lines that it wrote (its own table), and for jevbench the report that it saved.

    Raises:
        MissingDependencyError: the benchmark is not installed.
        ConfigError: the server did not start, or the benchmark failed.
    """
    if importlib.util.find_spec(benchmark) is None:
        raise MissingDependencyError(f"{benchmark} is not installed: pip install {benchmark}")
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with _server(model, out) as url:
        make = jevbench_command if benchmark == "jevbench" else sys1bench_command
        command = make(url, out, served=served, suite=suite, concurrency=concurrency, limit=limit)
        started = time.monotonic()
        log = out / f"{benchmark}.log"
        with log.open("w", encoding="utf-8") as lines:
            code = subprocess.run(command, cwd=out, stdout=lines, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        raise ConfigError(f"{benchmark} ended with exit code {code}; see {log}", field="external", seen=code)
    report = out / "jevbench.json"
    found = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else None
    seconds = time.monotonic() - started
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()[-SAID_LINES:]
    return {"benchmark": benchmark, "version": version(benchmark), "seconds": seconds, "said": said, "report": found}


def jevbench_command(url: str, out: Path, *, served: str, suite: str, concurrency: int, limit: int) -> list[str]:
    """Coherence without gold labels: negation, paraphrase, clones, conjunction bounds, batch isolation."""
    return [
        *(sys.executable, "-m", "jevbench", "eval", "--url", f"{url}/v1/systemone", "--model", served),
        *("--suite", suite or "jevbench-mini", "--concurrency", str(concurrency), "--out", str(out / "jevbench.json")),
    ]


def sys1bench_command(url: str, out: Path, *, served: str, suite: str, concurrency: int, limit: int) -> list[str]:
    """Calibration, framing, selective prediction, ordinal fidelity, interference on generated, policy-labelled data."""
    config = out / "sys1bench.yaml"
    settings = {
        "adapter": "jev_typesafe",
        "model_id": served,
        "url": f"{url}/v1/systemone",
        "api_key": "local",
        "allow_alias": True,
        "deployment": "local",
        "timeout_s": 120,
        "max_retries": 3,
    }
    config.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()), encoding="utf-8")
    code = "import sys; from sys1bench.cli import app; sys.argv[0] = 'sys1bench'; app()"
    command = [sys.executable, "-c", code, "suite", suite or "all", str(out / "sys1bench"), "--config", str(config)]
    return [*command, "--concurrency", str(concurrency), *(["--n", str(limit)] if limit else [])]


@contextmanager
def _server(model: str | None, out: Path) -> Iterator[str]:
    """The given URL, or that of a server started for the time of the run."""
    if model and model.startswith(("http://", "https://")):
        yield model.rstrip("/").removesuffix("/systemone").removesuffix("/v1")
        return
    port = _free_port()
    path = out / "server.log"
    with path.open("w", encoding="utf-8") as log:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        server = subprocess.Popen(serve_command(model, port), stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            url = f"http://127.0.0.1:{port}"
            if not _answers(url, server):
                raise ConfigError(f"the server did not start; see {path}", field="external", seen=server.poll())
            yield url
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def serve_command(model: str | None, port: int) -> list[str]:
    """Serve a checkpoint on this machine only."""
    command = [sys.executable, "-m", "dicast.cli.app", "serve", "--host", "127.0.0.1", "--port", str(port)]
    return [*command, *(["--model", model] if model else [])]


def _answers(url: str, server: subprocess.Popen[bytes]) -> bool:
    """Whether the server answers before it ends or time is up."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.2)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
