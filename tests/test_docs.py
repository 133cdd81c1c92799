"""What the README and the examples promise: their code runs, their commands and links exist."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

from dicast.cli.app import COMMANDS, run

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*_decision.py"))


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_the_readme_starts_with_two_commands_that_make_knows() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    promised = re.findall(r"^\$ make ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert promised[:2] == ["demo", "test"]
    assert set(promised) <= set(targets)


def test_the_readmes_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = blocks(ROOT / "README.md", "python")
    assert len(first.splitlines()) <= 12
    exec(compile(first, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert re.match(r"0\.\d+ (payments|technical) \{'payments': ", shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_docs_exist(page: Path) -> None:
    words = re.findall(r"^\$ dicast ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(words) <= set(COMMANDS)


def test_the_readmes_quick_decision_runs(capfd: pytest.CaptureFixture[str]) -> None:
    console = "\n".join(blocks(ROOT / "README.md", "console")).replace("\\\n", " ")
    line = next(line for line in console.splitlines() if line.startswith("$ dicast decide --state"))
    assert run([*shlex.split(line)[2:], "--table"]) == 0
    assert capfd.readouterr().out.startswith("refund  Do they want money back?")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_run(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out
