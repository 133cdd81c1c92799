"""Training examples: labelled records from JSON lines, Parquet, CSV or a Hugging Face data set.

Knows nothing of tensors, tokens or models. One example is one record with what is known about its answers:

    {"state": ..., "questions": {"team": {...}}, "gold": {"team": "billing"},        # also: expected, labels, answers
     "soft": {"team": {"billing": 0.8, "sales": 0.2}},                               # rater shares or a teacher
     "rewards": {"team": {"billing": 1.0, "sales": 0.3}}, "weight": 2.0, "family": "ticket-17",
     "images": ["data:image/png;base64,..." or a path beside the file], "meta": {}}

Option ids are strings everywhere: "true"/"false" for a noul, the key for a choice, the level index for a score. Every
error names the file and the line.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dicast.errors import ConfigError, InputError, MissingDependencyError, RecordError
from dicast.records import Question, Record, as_questions, check_limits

GOLD_KEYS = ("gold", "expected", "labels", "answers")
JSON_COLUMNS = ("questions", *GOLD_KEYS, "soft", "rewards", "meta", "images", "videos", "media_kwargs")

Shares = dict[str, dict[str, float]]
"""Question id -> option id -> number."""
Problem = Callable[[str, str], None]
"""Called with the place ("file:line") and the message of a row that is wrong."""


@dataclass(slots=True)
class Example:
    """A record and what is known about its answers.

    Attributes:
        record: state and questions; images and videos still as they were given (data URLs or absolute paths).
        gold: question id -> option id. Questions may be unlabelled.
        soft: question id -> option id -> share; shares sum to 1.
        rewards: question id -> option id -> reward, for RLCD.
        weight: how much the example counts.
        family: examples of one family stay in one split; empty: the example is its own family.
        source: name of the data source.
        place: "file:line", for messages.
        meta: for analysis only, never shown to a model.
    """

    record: Record
    gold: dict[str, str] = field(default_factory=dict)
    soft: Shares = field(default_factory=dict)
    rewards: Shares = field(default_factory=dict)
    weight: float = 1.0
    family: str = ""
    source: str = ""
    place: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    def labelled(self, question_id: str) -> bool:
        """Whether anything is known about the answer to the question."""
        return question_id in self.gold or question_id in self.soft or question_id in self.rewards


def read_examples(
    path: str | Path,
    *,
    source: str = "",
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    on_problem: Problem | None = None,
) -> Iterator[Example]:
    """Read labelled records in file order.

    Args:
        path: a .jsonl/.json/.ndjson file (also .gz, .zst), a .parquet file, a .csv file (also .gz), or
            "hf:owner/name" (also "hf:owner/name:config").
        source: name put on the examples; the file name without its endings when empty.
        split: which split of a Hugging Face data set.
        columns: for CSV: {"text": column, "label": column}; see :func:`csv_rows`.
        on_problem: called for a wrong row, which is then left out. Without it the first wrong row raises.

    Raises:
        ConfigError: no such file or unknown ending; or the first wrong row, named by file and line.
        MissingDependencyError: Parquet without pyarrow, zst without zstandard, hf: without datasets.
    """
    text = str(path)
    name = source or _stem(text)
    for place, row in _rows(text, split, columns):
        try:
            example = parse_example(row, base=_folder(text))
        except InputError as error:
            if on_problem is None:
                raise ConfigError(
                    error.message, field=_at(place, error.field), limit=error.limit, seen=error.seen
                ) from None
            on_problem(_at(place, error.field), error.message)
            continue
        example.source, example.place = name, place
        yield example


def parse_example(row: Any, *, base: Path | None = None) -> Example:
    """One row as an :class:`Example`.

    Args:
        row: the decoded JSON object.
        base: folder that relative image and video paths start from.

    Raises:
        RecordError: not an object, a question of the wrong shape, or a label that is not among the options.
    """
    if not isinstance(row, Mapping):
        raise RecordError(f"a row must be a JSON object, not {type(row).__name__}")
    if "state" not in row:
        raise RecordError("a record needs a state", field="state")
    questions = as_questions(row.get("questions") or {})
    record = Record(
        row["state"],
        questions,
        images=_media(row.get("images"), base, "images"),
        videos=_media(row.get("videos"), base, "videos"),
        media_kwargs=dict(row.get("media_kwargs") or {}),
        id=None if row.get("id") is None else str(row["id"]),
    )
    check_limits(record)
    gold, soft = _labels(row, questions)
    return Example(
        record,
        gold,
        soft,
        _numbers(row.get("rewards"), questions, "rewards"),
        _weight(row.get("weight", 1.0)),
        family=str(row.get("family") or ""),
        meta=dict(row.get("meta") or {}),
    )


def option_id(value: Any, question: Question, *, field: str) -> str:
    """A label in any accepted form as the id of one of the question's options.

    Accepts booleans and "true"/"false" in any case for a noul, keys for a choice, and indices (3, 3.0, "3") or the
    text of a level for a score.

    Raises:
        RecordError: the label is not among the options; names the label and the options.
    """
    found = _find_option(value, question)
    if found is None:
        shown = ", ".join(question.options[:12]) + (", ..." if len(question.options) > 12 else "")
        raise RecordError(f"label {value!r} is not among the options ({shown})", field=field, seen=str(value)[:80])
    return found


def data_hash(path: str | Path) -> str:
    """SHA-256 of a file's bytes, for the run summary; for a data set name, the hash of the name."""
    digest = hashlib.sha256()
    file = Path(path)
    if not file.is_file():
        return "name:" + hashlib.sha256(str(path).encode()).hexdigest()
    with file.open("rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def csv_rows(
    lines: IO[str],
    *,
    text: str = "text",
    label: str = "label",
    question: str = "label",
    instructions: str | None = None,
    labels: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Rows of a CSV table of texts and labels as records with one choice question over all labels of the table.

    Args:
        lines: the table, with a header line.
        text: column shown as the state.
        label: column of the right answer.
        question: id of the question.
        instructions: what is asked.
        labels: further options, e.g. the labels of the table that a model learned from.

    Raises:
        ConfigError: a column is missing or the table is empty.
    """
    table = _table(lines, text, label)
    options = sorted({answer for _, answer in table if answer} | set(labels))
    if not options:
        raise ConfigError(f"the column {label!r} holds no label", field="columns")
    criteria = dict.fromkeys(options)
    asked = {"type": "choice", "instructions": instructions or "Which label fits?", "criteria": criteria}
    for state, answer in table:
        yield {"state": state, "questions": {question: asked}, "gold": {question: answer} if answer else {}}


def _table(lines: IO[str], text: str, label: str) -> list[tuple[str, str]]:
    reader = csv.DictReader(lines)
    header = reader.fieldnames or []
    for column in (text, label):
        if column not in header:
            has = ", ".join(header) or "no header"
            raise ConfigError(f"no column {column!r} in the table, which has {has}", field="columns")
    return [(row[text] or "", (row[label] or "").strip()) for row in reader]


def example_row(example: Example) -> dict[str, Any]:
    """The example as a JSON row again, for the file of a batch that went wrong."""
    row: dict[str, Any] = {
        "id": example.record.id,
        "state": example.record.state,
        "questions": {name: question_row(question) for name, question in example.record.questions.items()},
        "gold": example.gold,
    }
    for key in ("soft", "rewards", "meta"):
        if value := getattr(example, key):
            row[key] = value
    for key in ("images", "videos"):
        if sources := getattr(example.record, key):
            row[key] = [source if isinstance(source, str) else type(source).__name__ for source in sources]
    return row | {"weight": example.weight, "source": example.source, "place": example.place}


def question_row(question: Question) -> dict[str, Any]:
    """A question in its System One form."""
    row: dict[str, Any] = {"type": question.type, "instructions": question.instructions}
    if question.criteria is not None:
        row["criteria"] = list(question.criteria) if question.type == "score" else dict(question.criteria)  # type: ignore[arg-type]
    return row


def _labels(row: Mapping[str, Any], questions: Mapping[str, Question]) -> tuple[dict[str, str], Shares]:
    gold: dict[str, str] = {}
    soft: Shares = {}
    for key in GOLD_KEYS:
        labels = row.get(key)
        if labels is None:
            continue
        if not isinstance(labels, Mapping):
            raise RecordError("labels must be an object of question id to label", field=key)
        for question_id, value in labels.items():
            if value is None:
                continue
            question = _asked(question_id, questions, key)
            if isinstance(value, Mapping):  # a whole answer of the API: its probabilities are soft labels
                soft[question_id] = _answer_shares(value, question, f"{key}.{question_id}")
            else:
                gold[question_id] = option_id(value, question, field=f"{key}.{question_id}")
    soft |= {
        question_id: _normal(shares)
        for question_id, shares in _numbers(row.get("soft"), questions, "soft", 0.0).items()
    }
    return gold, soft


def _answer_shares(answer: Mapping[str, Any], question: Question, field: str) -> dict[str, float]:
    if isinstance(answer.get("probabilities"), Mapping):
        return _normal(_option_numbers(answer["probabilities"], question, field, 0.0))
    if question.type == "noul" and isinstance(answer.get("noul"), int | float):
        return {"true": float(answer["noul"]), "false": 1.0 - float(answer["noul"])}
    raise RecordError("an answer used as a label needs probabilities (or noul)", field=field)


def _numbers(value: Any, questions: Mapping[str, Question], key: str, least: float = -math.inf) -> Shares:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise RecordError("must be an object of question id to option numbers", field=key)
    table: Shares = {}
    for question_id, numbers in value.items():
        if numbers is not None:
            question = _asked(question_id, questions, key)
            table[question_id] = _option_numbers(numbers, question, f"{key}.{question_id}", least)
    return table


def _option_numbers(numbers: Any, question: Question, field: str, least: float) -> dict[str, float]:
    if isinstance(numbers, Sequence) and not isinstance(numbers, str):
        if len(numbers) != len(question.options):
            raise RecordError(f"{len(numbers)} numbers for {len(question.options)} options", field=field)
        numbers = dict(zip(question.options, numbers, strict=True))
    if not isinstance(numbers, Mapping):
        raise RecordError("must be an object of option to number", field=field)
    table = {}
    for option, number in numbers.items():
        if (
            isinstance(number, bool)
            or not isinstance(number, int | float)
            or not math.isfinite(number)
            or number < least
        ):
            raise RecordError(
                f"option {option!r} has {number!r}, which is not a number of the allowed kind", field=field
            )
        table[option_id(option, question, field=field)] = float(number)
    return table


def _normal(shares: dict[str, float]) -> dict[str, float]:
    total = sum(shares.values())
    if total <= 0.0:
        raise RecordError("soft labels must have a share above 0", field="soft")
    return {option: share / total for option, share in shares.items()}


def _asked(question_id: Any, questions: Mapping[str, Question], key: str) -> Question:
    if question_id not in questions:
        raise RecordError(f"question {question_id!r} is not asked (asked: {', '.join(questions)})", field=key)
    return questions[question_id]


def _find_option(value: Any, question: Question) -> str | None:
    if question.type == "noul":
        name = str(value).lower() if isinstance(value, bool | str) else ""
        return name if name in question.options else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    name = str(value).lower() if isinstance(value, bool) else str(value)
    if name in question.options:
        return name
    if question.type == "score" and isinstance(value, str):
        levels = [index for index, level in enumerate(question.criteria or ()) if level == value]
        return str(levels[0]) if len(levels) == 1 else None
    return None


def _weight(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise RecordError(f"weight must be a number of at least 0, not {value!r}", field="weight")
    return float(value)


def _media(values: Any, base: Path | None, field: str) -> tuple[Any, ...]:
    if values is None:
        return ()
    if not isinstance(values, list | tuple):
        raise RecordError("must be an array of data URLs or paths", field=field)
    return tuple(_absolute(value, base) for value in values)


def _absolute(value: Any, base: Path | None) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):  # as image columns of data sets are stored
        return value["bytes"]
    if isinstance(value, str) and base is not None and not value.startswith(("data:", "http:", "https:", "/")):
        return str(base / value)
    return value


def _rows(path: str, split: str, columns: Mapping[str, str] | None) -> Iterator[tuple[str, Any]]:
    if path.startswith("hf:"):
        yield from _hub_rows(path[3:], split)
        return
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"no such data file: {path}", field="path", seen=path)
    kind = _kind(file)
    if kind == "parquet":
        yield from _parquet_rows(file)
    elif kind == "csv":
        yield from _csv_rows(file, dict(columns or {}))
    else:
        yield from _json_rows(file)


def _csv_rows(file: Path, columns: dict[str, str]) -> Iterator[tuple[str, Any]]:
    labels: list[str] = []
    if other := columns.pop("labels_file", ""):
        with open_text(Path(other)) as lines:
            labels = [answer for _, answer in _table(lines, columns.get("text", "text"), columns.get("label", "label"))]
    unknown = sorted(set(columns) - {"text", "label", "question", "instructions"})
    if unknown:
        raise ConfigError(f"a table has no setting {', '.join(unknown)}", field="columns")
    with open_text(file) as lines:
        for number, row in enumerate(csv_rows(lines, **columns, labels=[one for one in labels if one]), start=2):
            yield f"{file}:{number}", row


def _json_rows(file: Path) -> Iterator[tuple[str, Any]]:
    with open_text(file) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield f"{file}:{number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise ConfigError(
                    f"not a JSON line: {error.msg} at column {error.colno}", field=f"{file}:{number}"
                ) from None


def _parquet_rows(file: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingDependencyError("reading Parquet needs pyarrow: pip install 'dicast[train]'") from None
    number = 0
    for batch in parquet.ParquetFile(file).iter_batches(batch_size=1024):
        for row in batch.to_pylist():
            number += 1
            yield f"{file}:row {number}", _plain(row)


def _hub_rows(name: str, split: str) -> Iterator[tuple[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise MissingDependencyError("reading a hub data set needs datasets: pip install 'dicast[train]'") from None
    owner_name, _, config = name.partition(":")
    for number, row in enumerate(datasets.load_dataset(owner_name, config or None, split=split), start=1):
        yield f"hf:{name}[{split}]:row {number}", _plain(row)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A table's row: JSON text in the structured columns is decoded, nulls that only fill a struct are dropped."""
    plain: dict[str, Any] = {}
    for key, value in row.items():
        if value is None:
            continue
        if key in JSON_COLUMNS:
            value = json.loads(value) if isinstance(value, str) else _without_nulls(value)
        plain[key] = value
    return plain


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


@contextmanager
def open_text(file: Path) -> Iterator[IO[str]]:
    """Open a text file for reading, unpacking .gz and .zst.

    Raises:
        MissingDependencyError: a .zst file without zstandard.
    """
    if file.suffix == ".gz":
        with gzip.open(file, "rt", encoding="utf-8") as handle:
            yield handle
    elif file.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise MissingDependencyError("reading .zst needs zstandard: pip install 'dicast[train]'") from None
        with file.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            yield io.TextIOWrapper(stream, encoding="utf-8")
    else:
        with file.open(encoding="utf-8", newline="") as handle:
            yield handle


def _kind(file: Path) -> str:
    endings = [ending.lower() for ending in file.suffixes]
    while endings and endings[-1] in (".gz", ".zst"):
        endings.pop()
    ending = endings[-1] if endings else ""
    if ending in (".jsonl", ".ndjson", ".json"):
        return "json"
    if ending in (".parquet", ".csv"):
        return ending[1:]
    raise ConfigError(
        f"unknown kind of data file: {file.name} (known: .jsonl, .parquet, .csv, also .gz and .zst)", field="path"
    )


def _stem(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    stem = name.split(".")[0] or name
    parent = Path(path).parent.name
    return parent if stem in ("train", "dev", "test", "validation") and parent else stem


def _folder(path: str) -> Path | None:
    return None if path.startswith("hf:") else Path(path).resolve().parent


def _at(place: str, field: str) -> str:
    return f"{place}: {field}" if field else place


__all__ = [
    "Example",
    "csv_rows",
    "data_hash",
    "example_row",
    "open_text",
    "option_id",
    "parse_example",
    "question_row",
    "read_examples",
]
