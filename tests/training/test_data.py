import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dicast.errors import ConfigError, RecordError
from dicast.training.data import csv_rows, data_hash, example_row, option_id, parse_example, read_examples

QUESTIONS = {
    "team": {"type": "choice", "instructions": "Who?", "criteria": {"billing": "Money", "sales": None}},
    "urgent": {"type": "noul"},
    "level": {"type": "score", "criteria": ["low", "middle", "high"]},
}


def row(**changes: Any) -> dict[str, Any]:
    return {"state": "text", "questions": QUESTIONS, "gold": {"team": "billing", "urgent": True, "level": 2}} | changes


@pytest.mark.parametrize("key", ["gold", "expected", "labels", "answers"])
def test_labels_are_read_under_all_their_names(key: str) -> None:
    plain = row()
    plain[key] = plain.pop("gold")
    assert parse_example(plain).gold == {"team": "billing", "urgent": "true", "level": "2"}


@pytest.mark.parametrize(
    ("question", "value", "expected"),
    [
        ("urgent", False, "false"),
        ("urgent", "True", "true"),
        ("level", 1, "1"),
        ("level", 1.0, "1"),
        ("level", "0", "0"),
        ("level", "high", "2"),
        ("team", "sales", "sales"),
    ],
)
def test_a_label_may_be_written_in_several_ways(question: str, value: Any, expected: str) -> None:
    asked = parse_example(row(gold={})).record.questions[question]
    assert option_id(value, asked, field="gold") == expected


@pytest.mark.parametrize(
    ("question", "value"), [("urgent", "maybe"), ("urgent", 1), ("level", 3), ("level", 1.5), ("team", "api")]
)
def test_a_label_that_is_no_option_is_refused(question: str, value: Any) -> None:
    with pytest.raises(RecordError, match="not among the options") as caught:
        parse_example(row(gold={question: value}))
    assert caught.value.field == f"gold.{question}"


def test_soft_labels_are_shares_and_answers_of_a_teacher_become_soft_labels() -> None:
    example = parse_example(row(gold=None, soft={"team": {"billing": 3, "sales": 1}, "level": [1, 1, 2]}))
    assert example.soft == {"team": {"billing": 0.75, "sales": 0.25}, "level": {"0": 0.25, "1": 0.25, "2": 0.5}}
    teacher = {"team": {"type": "choice", "probabilities": {"billing": 0.9, "sales": 0.1}}, "urgent": {"noul": 0.25}}
    example = parse_example(row(gold=None, answers=teacher))
    assert example.soft == {"team": {"billing": 0.9, "sales": 0.1}, "urgent": {"true": 0.25, "false": 0.75}}
    assert example.gold == {}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"soft": {"team": {"billing": -1}}}, "soft.team"),
        ({"soft": {"team": {"billing": 0}}}, "soft"),
        ({"soft": {"nobody": {"a": 1}}}, "soft"),
        ({"rewards": {"team": {"api": 1}}}, "rewards.team"),
        ({"rewards": {"level": [1, 2]}}, "rewards.level"),
        ({"weight": -1}, "weight"),
        ({"weight": True}, "weight"),
        ({"gold": ["billing"]}, "gold"),
        ({"images": "a.png"}, "images"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RecordError) as caught:
        parse_example(row(**changes))
    assert caught.value.field == field


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    text = "\n".join(json.dumps(one) for one in rows) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".zst":
        path.write_bytes(zstandard.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.ndjson"])
def test_json_lines_are_read_packed_or_not(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [row(id=1, weight=2, family="f"), row(id=2)])
    first, second = read_examples(path)
    assert (first.record.id, first.weight, first.family) == ("1", 2.0, "f")
    assert second.place == f"{path}:2"
    assert second.source == "a"


def test_the_folder_names_a_file_that_is_called_train(tmp_path: Path) -> None:
    (tmp_path / "tickets").mkdir()
    (example,) = read_examples(write(tmp_path / "tickets" / "train.jsonl", [row()]))
    assert example.source == "tickets"


def test_a_wrong_row_names_file_and_line_or_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [row(), row(gold={"team": "api"}), row()])
    with pytest.raises(ConfigError) as caught:
        list(read_examples(path))
    assert caught.value.field == f"{path}:2: gold.team"
    problems: list[tuple[str, str]] = []
    assert len(list(read_examples(path, on_problem=lambda place, message: problems.append((place, message))))) == 2
    assert problems[0][0] == f"{path}:2: gold.team"


def test_what_is_no_json_or_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"state": 1}\n{"state"')
    with pytest.raises(ConfigError, match=r"a\.jsonl"):
        list(read_examples(tmp_path / "a.jsonl"))
    with pytest.raises(ConfigError, match="no such data file"):
        list(read_examples(tmp_path / "b.jsonl"))
    (tmp_path / "a.xlsx").write_text("")
    with pytest.raises(ConfigError, match=r"\.jsonl, \.parquet"):
        list(read_examples(tmp_path / "a.xlsx"))


def test_images_are_found_beside_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [row(images=["pictures/a.png", "data:image/png;base64,AA=="])])
    (example,) = read_examples(path)
    assert list(example.record.images) == [str(tmp_path / "pictures" / "a.png"), "data:image/png;base64,AA=="]


def test_a_table_becomes_one_choice_over_all_labels(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,body,team\n1,hello,sales\n2,"a, b",billing\n3,unknown,\n')
    columns = {"text": "body", "label": "team", "question": "who", "instructions": "Who?"}
    first, second, third = read_examples(tmp_path / "a.csv", columns=columns)
    assert first.record.questions["who"].options == ("billing", "sales")
    assert (second.record.state, second.gold) == ("a, b", {"who": "billing"})
    assert third.gold == {}
    with pytest.raises(ConfigError, match="no column 'text'"):
        list(csv_rows(io.StringIO("a,b\n1,2\n")))


def test_a_table_to_measure_on_has_the_options_of_the_one_to_learn_from(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    (tmp_path / "dev.csv").write_text("text,label\nc,y\n")
    (example,) = read_examples(tmp_path / "dev.csv", columns={"labels_file": str(tmp_path / "train.csv")})
    assert example.record.questions["label"].options == ("x", "y")
    with pytest.raises(ConfigError, match="no setting lable"):
        list(read_examples(tmp_path / "dev.csv", columns={"lable": "label"}))


def test_a_row_can_be_written_and_read_again() -> None:
    example = parse_example(row(soft={"team": {"billing": 1, "sales": 1}}, rewards={"level": [0, 1, 2]}, weight=3))
    again = parse_example(json.loads(json.dumps(example_row(example))))
    assert (again.record.questions, again.gold, again.soft, again.rewards, again.weight) == (
        example.record.questions, example.gold, example.soft, example.rewards, 3.0,
    )  # fmt: skip


def test_the_hash_follows_the_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [row()])
    before = data_hash(path)
    assert before == data_hash(path)
    write(path, [row(), row()])
    assert data_hash(path) != before
    assert data_hash("hf:owner/name").startswith("name:")
