"""One evaluation: examples in, predictions on disk, measures out. Streams, and goes on where it was stopped.

The output folder holds ``predictions.jsonl``, one line per record in reading order, and ``run.json``, which says what
was run. A second run with the same folder reads the finished lines back instead of asking the model again, after
checking that they belong to the same records and model. Memory is bounded by the slices' capacity, whatever the number
of records.
"""

from __future__ import annotations

import heapq
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from dicast.errors import ConfigError
from dicast.evaluation.backends import Backend, Reply
from dicast.evaluation.data import ContentHash, record_hash
from dicast.evaluation.scoring import Reservoir, Slice, label_of, score
from dicast.evaluation.summary import summarise
from dicast.training.data import Example

PREDICTIONS = "predictions.jsonl"
RUN = "run.json"
MAX_SLICES = 200
OPTION_BUCKETS = ((2, "2"), (4, "3-4"), (10, "5-10"), (50, "11-50"), (255, "51-255"))
STATE_SHOWN = 1500
"""Characters of a state that are kept for the list of worst mistakes."""

Prediction = dict[str, Any]
"""One line of the predictions file."""


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """How to evaluate.

    Attributes:
        slices: what to slice by besides the question type: ``source``, ``question``, ``options`` or ``meta.KEY``.
        repeats: bootstrap draws.
        capacity: rows kept per slice.
        worst: how many of the worst mistakes are shown.
        seed: of samples and draws.
    """

    slices: tuple[str, ...] = ()
    repeats: int = 1000
    capacity: int = 100_000
    worst: int = 20
    seed: int = 0


def evaluate(
    examples: Iterable[Example],
    backend: Backend,
    folder: Path,
    options: EvalOptions = EvalOptions(),
    *,
    facts: Mapping[str, Any] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Ask the backend, write its predictions, and measure them.

    Args:
        examples: labelled records; read once.
        backend: who answers.
        folder: made when missing; continued when it holds a run of the same model.
        options: how to measure.
        facts: put into the result under ``run``, and compared when a run is continued.
        advance: called with the number of records done, for a progress bar.

    Returns:
        The result as plain data (see `docs/evaluation.md`).

    Raises:
        ConfigError: the folder holds another run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = {"model": backend.name, **(facts or {})}
    check_run(folder, run)
    collector = Collector(options)
    for done, (example, prediction) in enumerate(predict(examples, backend, folder / PREDICTIONS), start=1):
        collector.add(example, prediction)
        advance(done)
    return {"run": run, "model": backend.describe(), "options": asdict(options), **collector.result()}


def check_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Say what is run in ``run.json``; refuse a folder that holds something else.

    Raises:
        ConfigError: names the first difference.
    """
    path = folder / RUN
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        for key in sorted({*before, *run}):
            if before.get(key) != run.get(key):
                raise ConfigError(
                    f"{folder} holds a run with {key} = {before.get(key)!r}; choose another folder or remove it",
                    field="out",
                    seen=run.get(key),
                )
    path.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def predict(examples: Iterable[Example], backend: Backend, path: Path) -> Iterator[tuple[Example, Prediction]]:
    """Predictions of all examples in order; finished lines of the file are read, the rest is asked and appended.

    Raises:
        ConfigError: a finished line belongs to another record.
    """
    stream = iter(examples)
    for prediction in read_predictions(path):
        example = next(stream, None)
        if example is None:
            return
        if prediction["hash"] != record_hash(example.record):
            raise ConfigError(
                "this line belongs to another record; the data has changed", field=f"{path}", seen=prediction["id"]
            )
        yield example, prediction
    with path.open("a", encoding="utf-8") as lines:
        while chunk := list(islice(stream, backend.chunk)):
            replies = backend.answer([example.record for example in chunk])
            made = [prediction_row(example, reply) for example, reply in zip(chunk, replies, strict=True)]
            lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in made)
            lines.flush()
            yield from zip(chunk, made, strict=True)


def read_predictions(path: Path) -> Iterator[Prediction]:
    """Finished lines of a predictions file; a last line that was cut off in the middle is removed from the file."""
    if not path.is_file():
        return
    size = 0
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            size += len(line)
            yield json.loads(line)
    if size < path.stat().st_size:
        os.truncate(path, size)


def prediction_row(example: Example, reply: Reply) -> Prediction:
    """One record's line: what was asked, what is right, what was answered. States are not repeated in it."""
    record = example.record
    questions = {}
    for question_id, question in record.questions.items():
        if question_id not in example.gold and question_id not in example.soft:
            continue
        asked: dict[str, Any] = {"type": question.type, "options": list(question.options)}
        asked["gold"] = example.gold.get(question_id)
        found = reply.probabilities.get(question_id)
        if found is not None:
            asked["p"] = [float(f"{found[option]:.8g}") for option in question.options]
        if shares := example.soft.get(question_id):
            asked["soft"] = [shares.get(option, 0.0) for option in question.options]
        if question_id in reply.accepted:
            asked["accepted"] = reply.accepted[question_id]
        if question_id in reply.sets:
            asked["set"] = list(reply.sets[question_id])
        questions[question_id] = asked
    row: Prediction = {"id": record.id, "hash": record_hash(record), "source": example.source, "ms": round(reply.ms, 3)}
    row |= {"family": example.family or f"{example.source}/{record.id or record_hash(record)}", "questions": questions}
    row |= {"tokens": reply.tokens, "error": reply.error, "bare": list(reply.bare)}
    return row


class Collector:
    """Measures predictions as they come by. See `EvalOptions` for its bounds."""

    def __init__(self, options: EvalOptions) -> None:
        self.options = options
        self.slices: dict[str, Slice] = {}
        self.latency, self.tokens = Reservoir(), Reservoir()
        self.errors: Counter[str] = Counter()
        self.records = self.failed = self.bare = self.left_out = 0
        self.content = ContentHash()
        self._worst: list[tuple[float, int, dict[str, Any]]] = []
        self._noted = 0

    def add(self, example: Example, prediction: Prediction) -> None:
        """Count one record."""
        self.records += 1
        self.content.add(example)
        self.bare += len(prediction["bare"])
        if prediction["error"]:
            self.failed += 1
            self.errors[prediction["error"][:120]] += 1 if len(self.errors) < 1000 else 0
        else:
            self.latency.add(prediction["ms"])
            if prediction["tokens"] is not None:
                self.tokens.add(prediction["tokens"])
        for question_id, asked in prediction["questions"].items():
            self._add_question(example, prediction, question_id, asked)

    def _add_question(self, example: Example, prediction: Prediction, question_id: str, asked: dict[str, Any]) -> None:
        question, options, p = example.record.questions[question_id], asked["options"], asked.get("p")
        row = score(
            asked["type"],
            options,
            p,
            asked["gold"],
            soft=asked.get("soft"),
            family=prediction["family"],
            accepted=asked.get("accepted"),
            prediction_set=asked.get("set"),
        )
        gold = label_of(question, options[row["gold"]])
        predicted = label_of(question, options[row["predicted"]]) if p else None
        for name in self._names(example, question_id, asked):
            part = self._slice(name)
            if part is not None:
                part.add(row, gold, predicted)
        if p and not row["correct"]:
            self._note(example, question_id, row, gold, str(predicted))

    def _names(self, example: Example, question_id: str, asked: Mapping[str, Any]) -> Iterator[str]:
        yield "all"
        yield f"type={asked['type']}"
        for name in self.options.slices:
            if name == "source":
                yield f"source={example.source}"
            elif name == "question":
                yield f"question={question_id}"
            elif name == "options":
                count = len(asked["options"])
                yield "options=" + next((text for most, text in OPTION_BUCKETS if count <= most), "more")
            elif name.startswith("meta."):
                yield f"{name}={example.meta.get(name[5:])}"

    def _slice(self, name: str) -> Slice | None:
        if name not in self.slices:
            if len(self.slices) >= MAX_SLICES:
                self.left_out += 1
                return None
            self.slices[name] = Slice(self.options.capacity, seed=self.options.seed)
        return self.slices[name]

    def _note(self, example: Example, question_id: str, row: Mapping[str, Any], gold: str, predicted: str) -> None:
        full = len(self._worst) >= self.options.worst
        if full and (not self._worst or row["log_loss"] <= self._worst[0][0]):
            return
        mistake = {
            "id": example.record.id,
            "source": example.source,
            "question": question_id,
            "instructions": _excerpt(example.record.questions[question_id].instructions),
            "state": _excerpt(example.record.state),
            "gold": gold,
            "predicted": predicted,
            "p_predicted": row["confidence"],
            "log_loss": row["log_loss"],
        }
        self._noted += 1
        heapq.heappush(self._worst, (row["log_loss"], -self._noted, mistake))
        if len(self._worst) > self.options.worst:
            heapq.heappop(self._worst)

    def result(self) -> dict[str, Any]:
        """Everything measured, as plain data."""
        worst = sorted(self._worst, key=lambda item: item[:2], reverse=True)
        return {
            "records": self.records,
            "failed": self.failed,
            "errors": dict(self.errors.most_common(20)),
            "answers_without_probabilities": self.bare,
            "slices_left_out": self.left_out,
            "data_sha256": self.content.hexdigest(),
            "latency_ms": self.latency.summary(),
            "latency_histogram": _histogram(self.latency),
            "input_tokens": self.tokens.summary(),
            "slices": {
                name: summarise(part, repeats=self.options.repeats, seed=self.options.seed)
                for name, part in sorted(self.slices.items())
            },
            "worst": [mistake for _, _, mistake in worst],
        }


def _histogram(numbers: Reservoir, bins: int = 40) -> list[list[float]]:
    """[low, high, count] of logarithmic bins."""
    import numpy as np

    values = numbers.values[numbers.values > 0]
    if not values.size:
        return []
    low, high = float(values.min()), float(values.max()) * 1.0001
    edges = np.geomspace(low, max(high, low * 1.01), bins + 1)
    counts, _ = np.histogram(values, edges)
    return [[float(a), float(b), int(n)] for a, b, n in zip(edges, edges[1:], counts, strict=False)]


def _excerpt(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return text if len(text) <= STATE_SHOWN else text[: STATE_SHOWN - 1] + "…"
