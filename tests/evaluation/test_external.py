"""Commands for the independent benchmarks; the benchmarks themselves are not installed for tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dicast.errors import ConfigError, MissingDependencyError
from dicast.evaluation import external


def test_jevbench_command(tmp_path: Path) -> None:
    command = external.jevbench_command("http://h:1", tmp_path, served="m-1", suite="", concurrency=2, limit=0)
    assert command[1:5] == ["-m", "jevbench", "eval", "--url"]
    assert "http://h:1/v1/systemone" in command
    assert command[command.index("--suite") + 1] == "jevbench-mini"


def test_sys1bench_command_writes_its_configuration(tmp_path: Path) -> None:
    command = external.sys1bench_command("http://h:1", tmp_path, served="m-1", suite="A", concurrency=2, limit=50)
    assert command[-4:] == ["--concurrency", "2", "--n", "50"]
    text = (tmp_path / "sys1bench.yaml").read_text()
    assert 'url: "http://h:1/v1/systemone"' in text
    assert 'model_id: "m-1"' in text
    assert "allow_alias: true" in text


def test_a_missing_benchmark_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install sys1bench"):
        external.run_external("sys1bench", "http://h:1", tmp_path)


def test_what_the_benchmark_wrote_is_kept_and_a_failure_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    code = "import sys; open('jevbench.json', 'w').write('[1]'); print('well'); sys.exit('bad' in sys.argv)"

    def command(url: str, out: Path, **options: object) -> list[str]:
        return [sys.executable, "-c", code, "good" if url == "http://good:1" else "bad"]

    monkeypatch.setattr(external, "jevbench_command", command)
    monkeypatch.setattr(external, "version", lambda name: "9.9")
    found = external.run_external("jevbench", "http://good:1/v1", tmp_path)
    assert found["report"] == [1]
    assert (found["said"], found["version"]) == (["well"], "9.9")
    with pytest.raises(ConfigError, match=r"exit code 1; see .*jevbench\.log"):
        external.run_external("jevbench", "http://bad:1", tmp_path)


def test_a_server_that_does_not_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(external, "serve_command", lambda model, port: [sys.executable, "-c", "print('no model')"])
    with pytest.raises(ConfigError, match=r"did not start; see .*server\.log"):
        external.run_external("jevbench", None, tmp_path)
    assert (tmp_path / "server.log").read_text() == "no model\n"
