"""`dicast.scale.data`: every record comes out once, with a decision or with what is wrong with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.engine.fakes import FakeEncoding, FakeModel
from tests.scale.ray_runs import CASES_USED

import dicast.model
from dicast.errors import ConfigError, MissingDependencyError
from dicast.model import DecisionModel
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions
from dicast.records import Noul, Record
from dicast.scale.data import Decider, request_dataset

pyarrow = pytest.importorskip("pyarrow", reason="Ray's data library is not installed: pip install 'dicast[ray]'")

QUESTIONS = {"ok": {"type": "noul", "instructions": "Is it so?"}}


class BuggyModel(FakeModel):
    """Fails in a way that nobody foresaw, while it encodes."""

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> FakeEncoding:
        if record.state == "bug":
            raise KeyError("unforeseen")
        return super().encode(record, options)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, Mapping[str, Any]]]:
    """The calls of `dicast.load`, which gives the fake model."""
    calls: list[tuple[str | None, Mapping[str, Any]]] = []

    def load(model: str | None, **options: Any) -> DecisionModel:
        calls.append((model, options))
        return DecisionModel(BuggyModel())

    monkeypatch.setattr(dicast.model, "load", load)
    return calls


def decider(*, questions: Mapping[str, Noul] | None = None, digits: int | None = 4) -> Decider:
    return Decider("fake", column="request", questions=questions, queue=16, digits=digits, load_options={"dtype": "x"})


def request(state: Any, **fields: Any) -> str:
    return json.dumps({"state": state, "questions": QUESTIONS, **fields})


def decided(cells: list[Any], **options: Any) -> list[tuple[Any, Any]]:
    """Decision and error of each cell, as objects."""
    engine = decider(**options)
    table = engine(pyarrow.table({"request": cells}))
    engine.engine.close()
    columns = (table["decision"].to_pylist(), table["error"].to_pylist())
    return [tuple(None if text is None else json.loads(text) for text in row) for row in zip(*columns, strict=True)]


def test_a_row_keeps_its_columns_and_gains_two(loads: Any) -> None:
    table = pyarrow.table({"id": [7, None, 9], "request": [request("a"), "{", request("ccc")]})
    result = decider()(table)
    assert result.select(["id", "request"]).equals(table)
    assert result.column_names == ["id", "request", "decision", "error"]
    assert [cell is None for cell in result["decision"].to_pylist()] == [False, True, False]
    assert [cell is None for cell in result["error"].to_pylist()] == [True, False, True]


def test_the_added_columns_have_a_type_when_they_are_all_null(loads: Any) -> None:
    good = decider()(pyarrow.table({"request": [request("a")]}))
    bad = decider()(pyarrow.table({"request": ["{"]}))
    assert good.schema == bad.schema
    assert decider()(pyarrow.table({"request": pyarrow.array([], pyarrow.string())})).schema == good.schema


def test_the_model_is_loaded_once(loads: Any) -> None:
    engine = decider()
    for _ in range(3):
        engine(pyarrow.table({"request": [request("a")]}))
    assert loads == [("fake", {"dtype": "x"})]


@pytest.mark.parametrize(
    ("cell", "code", "words"),
    [
        ("{", "invalid_json", "JSON decode error"),
        (None, "validation_error", "request: must be text, not NoneType"),
        ('{"state": "a"}', "validation_error", "questions: Field required"),
        (request("a", model="gpt-4"), "model_not_found", "unknown model 'gpt-4'; fake is loaded"),
        (request("a" * 1001), "context_length_exceeded", "too long"),
        (request("boom"), "engine_error", "out of memory"),
        (request("nan"), "engine_error", "must be finite"),
        (request("bug"), "internal_error", "internal error"),
    ],
)
def test_a_bad_record_fails_alone(loads: Any, cell: Any, code: str, words: str) -> None:
    (first, none), (nothing, failure), (last, _) = decided([request("a"), cell, request("ccc")])
    assert none is None
    assert nothing is None
    assert failure["error"]["code"] == code
    assert words in failure["error"]["message"]
    assert first["answers"]["ok"]["noul"] < last["answers"]["ok"]["noul"]


def test_an_unforeseen_failure_is_logged_with_its_cause(loads: Any, caplog: pytest.LogCaptureFixture) -> None:
    decided([request("bug")])
    assert [type(entry.exc_info[1]) for entry in caplog.records if entry.exc_info] == [KeyError]


def test_a_nested_record_is_refused_before_arrow_can_change_it(loads: Any) -> None:
    """Two states with different keys would share all keys in one column, which the model would read as nulls."""
    table = pyarrow.table({"request": [{"state": {"a": 1}}, {"state": {"b": 2}}]})
    assert table["request"].to_pylist()[0] == {"state": {"a": 1, "b": None}}
    errors = [json.loads(text) for text in decider()(table)["error"].to_pylist()]
    assert all("must be text, not dict" in error["error"]["message"] for error in errors)


@pytest.mark.parametrize("name", [None, "fake", "jev-latest", "clef-flash", "typesafe/jev-1.13"])
def test_an_alias_means_the_loaded_model(loads: Any, name: str | None) -> None:
    assert decided([request("a", model=name)])[0][0]["model"] == "fake"


def test_each_request_has_its_own_extensions(loads: Any) -> None:
    (plain, _), (asked, _) = decided([request("a"), request("a", x_dicast={"logits": True, "isolate": True})])
    assert "x_dicast" not in plain
    assert set(asked["x_dicast"]["answers"]["ok"]["logits"]) == {"true", "false"}


def test_given_questions_a_cell_is_a_state(loads: Any) -> None:
    rows = decided(["a", request("a"), None], questions={"ok": Noul("?"), "other": Noul("?")})
    assert [row is not None and set(row["answers"]) for row, _ in rows] == [{"ok", "other"}, {"ok", "other"}, False]


def test_digits(loads: Any) -> None:
    (row, _), *_ = decided([request("a")], digits=2)
    assert row["answers"]["ok"]["noul"] == round(row["answers"]["ok"]["noul"], 2)
    (row, _), *_ = decided([request("a")], digits=None)
    assert row["answers"]["ok"]["noul"] != round(row["answers"]["ok"]["noul"], 6)


@pytest.mark.parametrize(("columns", "field"), [(["text"], "column"), (["request", "error"], "dataset")])
def test_columns_that_cannot_be_used_end_the_run(loads: Any, columns: list[str], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decider()(pyarrow.table({name: [request("a")] for name in columns}))
    assert caught.value.field == field


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'dicast\[ray\]'"):
        request_dataset([])


@pytest.mark.ray
def test_a_dataset_is_decided_by_an_actor(ray_run: Callable[[str], Any]) -> None:
    """The answers are the reference's; rows find their way home by their columns, whatever their order."""
    result = ray_run("offline")
    assert result["refused"] == ["column", "questions.ok.criteria"]
    rows = {row["index"]: row for row in result["rows"]}
    assert len(result["rows"]) == len(rows) == len(CASES_USED) + 1
    last = rows.pop(len(CASES_USED))
    assert last["decision"] is None
    assert "Field required" in last["error"]
    for index, case in enumerate(CASES_USED):
        assert json.loads(rows[index]["request"]) == {**case["request"], "model": "release"}
        assert rows[index]["error"] is None
        body = json.loads(rows[index]["decision"])
        assert body["usage"] == case["response"]["usage"]
        for question_id, answer in case["response"]["answers"].items():
            assert numbers(body["answers"][question_id]) == pytest.approx(numbers(answer), abs=1e-3)


def numbers(answer: Mapping[str, Any]) -> dict[str, float]:
    """Probabilities of an answer by option."""
    return dict(answer["probabilities"]) if "probabilities" in answer else {"true": answer["noul"]}
