"""`dicast info`: what a model is, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.conftest import ToyModel

from dicast._version import __version__
from dicast.calibration import Calibration, Provenance, Temperature
from dicast.cli.info import describe, table
from dicast.model import DecisionModel

pytestmark = pytest.mark.usefixtures("toy")


def test_the_facts_as_json(dicast_command: Callable[..., Any]) -> None:
    facts = dicast_command("info").json
    assert facts["name"] == "toy"
    assert facts["parameters"] == {"head": 3, "total": 3}
    assert facts["licence"] == "CC0-1.0"
    assert facts["limits"] == {"tokens": 50, "questions": 1024, "options": 255, "levels": 10, "nesting": 64}
    assert facts["calibration"] is None
    assert facts["versions"]["dicast"] == __version__


def test_the_model_is_an_argument_or_an_option(dicast_command: Callable[..., Any], toy: list[dict[str, Any]]) -> None:
    dicast_command("info", "A")
    dicast_command("info", "--model", "B")
    assert [call["name"] for call in toy] == ["A", "B"]


def test_the_facts_as_a_table(dicast_command: Callable[..., Any]) -> None:
    lines = dicast_command("info", "--table").out.splitlines()
    assert "architecture  toy words" in lines
    assert "limits        tokens 50, questions 1,024, options 255, levels 10, nesting 64" in lines
    assert "videos        no" in lines


def test_a_calibration_is_summed_up() -> None:
    calibration = Calibration(
        Provenance(("held-out.jsonl",), "0" * 64, n=120, date="2026-11-30", method="temperature"),
        temperatures=(Temperature("choice", 3, 5, 1.25, 80),),
    )
    facts = describe(DecisionModel(ToyModel(), calibration))
    assert facts["calibration"]["temperatures"] == {"choice 3-5": 1.25}
    assert facts["calibration"]["questions"] == 120
    assert any("choice 3-5 1.25" in line for line in table(facts))
