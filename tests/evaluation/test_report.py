"""Reports: complete, self-contained, and safe against texts from records."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.evaluation.toys import examples, oracle_for

from dicast.evaluation import report, svg
from dicast.evaluation.harness import EvalOptions, evaluate
from dicast.records import Choice, Record
from dicast.training.data import Example

HOSTILE = '<script>alert(1)</script> & | "quotes"'


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    made = list(examples(20))
    question = {HOSTILE: Choice(HOSTILE, {"a": HOSTILE, "b": HOSTILE})}
    made.append(Example(Record(HOSTILE, question, id=HOSTILE), {HOSTILE: "b"}, source="made"))
    options = EvalOptions(repeats=20, worst=100)
    return evaluate(made, oracle_for(made[:5]), tmp_path_factory.mktemp("run"), options, facts={"data": ["made:1"]})


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_three_files_are_written(result: dict[str, Any], tmp_path: Path) -> None:
    paths = report.write(result, tmp_path)
    assert [path.name for path in paths] == ["results.json", "results.md", "report.html"]
    back = json.loads(paths[0].read_text())
    assert back["slices"]["all"]["n"] == 61
    assert "data: made:1" in paths[1].read_text()


def test_the_page_loads_nothing_and_runs_nothing(result: dict[str, Any]) -> None:
    page = report.html(result)
    tags = Tags()
    tags.feed(page)
    names = {tag for tag, _ in tags.seen}
    assert not names & {"script", "link", "img", "iframe", "object"}
    assert all(not {"src", "href", "onclick", "onload"} & set(attributes) for _, attributes in tags.seen)
    assert "http" not in page
    assert "&lt;script&gt;" in page
    assert sum(tag == "svg" for tag, _ in tags.seen) == 2 * len(result["slices"]) + 1


def test_every_number_in_the_table_has_its_interval(result: dict[str, Any]) -> None:
    rows = [line for line in report.metric_table(result["slices"]) if line.startswith("| type=noul")]
    assert len(rows) == 1
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells[:3] == ["type=noul", "20", "100.0%"]
    assert all("[" in cell or cell in ("–", "n/a") for cell in cells[3:])


def test_hostile_text_stays_in_its_table_cell(result: dict[str, Any]) -> None:
    rows = [line for line in report.markdown(result).splitlines() if "alert(1)" in line]
    assert rows
    assert all(row.count("|") == 7 for row in rows)


def test_numbers_that_json_cannot_say_become_null() -> None:
    assert report.finite({"a": [math.nan, math.inf, 1.5], "b": (2,)}) == {"a": [None, None, 1.5], "b": [2]}


def test_undefined_values_are_said() -> None:
    nothing = math.nan
    assert report.interval_text(None) == "–"
    assert report.interval_text({"value": nothing, "low": nothing, "high": nothing}) == "n/a"
    assert report.interval_text({"value": 0.5, "low": nothing, "high": nothing}) == "0.500 [no interval]"
    assert report.interval_text({"value": 0.5, "low": 0.25, "high": 0.75}) == "0.500 [0.250, 0.750]"


def test_plots_are_well_formed_and_inside_their_frame() -> None:
    plots = [
        svg.reliability([(0.1, 0.2, 5), (0.9, 0.8, 50)], "a < b"),
        svg.curve([(0.0, 0.0), (0.5, 0.1), (1.0, 0.17)], "t", "x", "y"),
        svg.histogram([(1.0, 10.0, 3), (10.0, 100.0, 1)], "t", "ms"),
    ]
    for plot in plots:
        root = ElementTree.fromstring(plot)
        for shape in root.iter():
            for name, most in (("cx", svg.WIDTH), ("x", svg.WIDTH), ("cy", svg.HEIGHT), ("y", svg.HEIGHT)):
                assert 0 <= float(shape.get(name, "0")) <= most
    assert svg.histogram([], "t", "ms") == ""
