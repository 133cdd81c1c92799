"""Deployment files say things that the server knows: options, probes, ports, no root."""

import inspect
import re
import typing
from pathlib import Path

import pytest

from dicast.cli.serve import serve
from dicast.server.app import find_route

FOLDER = Path(__file__).parents[2] / "deploy"
FILES = ("Dockerfile", "compose.yaml", "dicast.service", "kubernetes.yaml")


def options() -> set[str]:
    """Every option of `dicast serve`."""
    names = set()
    for name, hint in typing.get_type_hints(serve, include_extras=True).items():
        if name != "return":
            declared = [text for text in hint.__metadata__[0].param_decls or () if text.startswith("--")]
            names.update(declared or [f"--{name.replace('_', '-')}"])
    return names


def without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


@pytest.mark.parametrize("name", FILES)
def test_options_exist(name: str) -> None:
    text = without_comments((FOLDER / name).read_text(encoding="utf-8"))
    commands = [line for line in text.splitlines() if "dicast" in line or line.lstrip().startswith(("CMD", "args:"))]
    used = set(re.findall(r"(--[a-z][a-z-]+)", "\n".join(line for line in commands if "pip" not in line)))
    used -= {"--system", "--uid", "--create-home", "--home-dir", "--from", "--start-period"}
    assert used <= options()
    assert used or name == "compose.yaml"


@pytest.mark.parametrize("name", ["Dockerfile", "kubernetes.yaml"])
def test_probes_ask_routes_that_exist(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    paths = re.findall(r"path: (\S+)|127\.0\.0\.1:8000(/\w+)'", text)
    assert paths
    for path in (one or other for one, other in paths):
        route, _ = find_route("GET", path)
        assert route is not None
        assert route.open


def test_nothing_runs_as_root() -> None:
    assert re.search(r"^USER \d{4,}", (FOLDER / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert "runAsNonRoot: true" in (FOLDER / "kubernetes.yaml").read_text(encoding="utf-8")
    assert "DynamicUser=yes" in (FOLDER / "dicast.service").read_text(encoding="utf-8")


def test_there_is_time_to_drain() -> None:
    """Whoever stops the server waits longer than it takes to finish."""
    grace = inspect.signature(serve).parameters["grace"].default
    for name, pattern in (
        ("compose.yaml", r"stop_grace_period: (\d+)s"),
        ("dicast.service", r"TimeoutStopSec=(\d+)"),
        ("kubernetes.yaml", r"terminationGracePeriodSeconds: (\d+)"),
    ):
        found = re.search(pattern, (FOLDER / name).read_text(encoding="utf-8"))
        assert found
        assert int(found[1]) > grace
