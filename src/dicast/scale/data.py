"""Many records offline: a Ray dataset of records in, the same rows with decisions out.

    dataset = ray.data.read_text("requests.jsonl")              # one System One request per line, in the column "text"
    decided = decide_dataset(dataset, "checkpoints/mine", column="text", concurrency=8)
    decided.write_parquet("decided")

A record travels as JSON text. It does not travel as a nested column, because a column has one type for all its rows:
Arrow would add the keys of every row to the state and the questions of every other row, with null as their value.

Every row comes out once, with all its columns and two more, one of which is null: `decision` (the System One response
body as JSON text) and `error` (the error body as JSON text). Ray does not keep the order of rows; the columns that were
there say which row is which. Knows how to spread records over actors; reading and answering them is the matter of the
wire and the engine.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dicast.engine import Engine
from dicast.errors import ConfigError, ModelNotFoundError
from dicast.records import Decision, Question, Record, as_questions, check_limits
from dicast.scale import import_ray
from dicast.wire.aliases import ALIASES
from dicast.wire.errors import error_response, invalid
from dicast.wire.extensions import Extensions
from dicast.wire.jsontext import write_json
from dicast.wire.systemone import DIGITS, SystemOneRequest, checked, parse_request, response_body

if TYPE_CHECKING:
    import pyarrow
    import ray.data

DECISION, ERROR = "decision", "error"
"""The columns that are added."""

log = logging.getLogger(__name__)


def request_dataset(requests: Iterable[Mapping[str, Any]]) -> ray.data.Dataset:
    """A dataset of System One requests that are at hand as dicts.

    Returns:
        Rows of `index` (place in `requests`, from 0) and `request` (the request as JSON text).

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    rows = [{"index": index, "request": write_json(request).decode()} for index, request in enumerate(requests)]
    dataset: ray.data.Dataset = import_ray("ray.data").from_items(rows)
    return dataset


def decide_dataset(
    dataset: ray.data.Dataset,
    model: str | Path | None = None,
    *,
    column: str = "request",
    questions: Mapping[str, Question | Mapping[str, Any]] | None = None,
    concurrency: int | tuple[int, int] = 1,
    batch_size: int = 256,
    num_cpus: float = 1,
    num_gpus: float = 0,
    digits: int | None = DIGITS,
    **load_options: Any,
) -> ray.data.Dataset:
    """Decide every record of a dataset, when the dataset is consumed.

    A request's `model` must be the loaded model's name or one of the hosted aliases; its `deadline_ms` has no meaning
    here.

    Args:
        dataset: rows with a text column that holds records; other columns are carried on as they are.
        model: None for the embedded model, a checkpoint folder that every node can read, or a hub name. It is loaded
            once per actor.
        column: the column. Each cell is a System One request as JSON text or, if `questions` are given, a state.
        questions: questions asked about every state, by id.
        concurrency: actors, or the least and the most of them.
        batch_size: records that an actor holds at once; the engine forms the batches that the model sees.
        num_cpus: CPUs reserved for each actor; it computes with as many threads.
        num_gpus: GPUs reserved for each actor; may be a fraction.
        digits: decimals of the numbers; None shows all.
        **load_options: see :func:`dicast.load` (``device``, ``dtype``, ``confidence``, ...).

    Returns:
        The rows with the columns `decision` and `error`.

    Raises:
        MissingDependencyError: Ray is not installed.
        RecordError: the questions have the wrong shape or break a limit.
        ConfigError: the column is missing, or an added one exists already. If the columns are not known before the
            dataset runs, the run fails with it.
    """
    compute = import_ray("ray.data").ActorPoolStrategy
    least, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    known = dataset.columns(fetch_if_missing=False)
    if known is not None:
        _check_columns(known, column)
    decided: ray.data.Dataset = dataset.map_batches(
        Decider,
        fn_constructor_kwargs={
            "model": _everywhere(model),
            "column": column,
            "questions": None if questions is None else check_limits(Record("", as_questions(questions))).questions,
            "queue": batch_size,
            "digits": digits,
            "load_options": {"threads": max(1, int(num_cpus)), **load_options},
        },
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=compute(min_size=least, max_size=most),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        udf_modifying_row_count=False,
    )
    return decided


class Decider:
    """What an actor runs: loads a model once, then decides tables of records.

    Args:
        model: name or path for :func:`dicast.load`.
        column: column of the records.
        questions: questions about every state; None if the cells are whole requests.
        queue: most records of one table.
        digits: decimals of the numbers.
        load_options: passed on to :func:`dicast.load`.
    """

    def __init__(
        self,
        model: str | None,
        *,
        column: str,
        questions: Mapping[str, Question] | None,
        queue: int,
        digits: int | None,
        load_options: Mapping[str, Any],
    ) -> None:
        from dicast.model import load

        self.engine = Engine(load(model, **load_options), queue_records=queue, queue_tokens=sys.maxsize)
        self.column = column
        self.questions = questions
        self.digits = digits

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        """The table with the columns `decision` and `error`."""
        import pyarrow

        _check_columns(table.column_names, self.column)
        begun = [self._begin(cell) for cell in table[self.column].to_pylist()]
        rows = [self._finish(item) for item in begun]
        for index, name in enumerate((DECISION, ERROR)):
            table = table.append_column(name, pyarrow.array([row[index] for row in rows], pyarrow.string()))
        return table

    def _begin(self, cell: Any) -> tuple[Extensions, Future[Decision[Any]]] | Exception:
        """Queue a record, or say why not."""
        try:
            request = self._read(cell)
            asked = request.x_dicast
            future = self.engine.submit(request.record, options=asked.encode_options, isolate=bool(asked.isolate))
            return asked, future
        except Exception as error:
            return error

    def _finish(self, begun: tuple[Extensions, Future[Decision[Any]]] | Exception) -> tuple[str | None, str | None]:
        """The cells `decision` and `error` of a record; a failure of any kind stays with its row."""
        try:
            if isinstance(begun, Exception):
                raise begun
            asked, future = begun
            return write_json(response_body(future.result(), digits=self.digits, asked=asked)).decode(), None
        except Exception as error:
            failure = error_response(error)
            if failure.status >= 500:
                log.error("record failed", exc_info=error)
            return None, write_json(failure.body).decode()

    def _read(self, cell: Any) -> SystemOneRequest:
        if not isinstance(cell, str):
            raise invalid(
                f"must be text, not {type(cell).__name__}; a struct or list goes in as JSON text", (self.column,)
            )
        if self.questions is not None:
            return SystemOneRequest(checked(Record(cell, self.questions)))
        request = parse_request(cell.encode())
        name = self.engine.model.info.name
        if request.model not in (None, name) and not ALIASES.fullmatch(request.model):
            raise ModelNotFoundError(f"unknown model {request.model[:100]!r}; {name} is loaded", field="model")
        return request


def _check_columns(names: Sequence[str], column: str) -> None:
    if column not in names:
        raise ConfigError(f"no column {column!r}; there are {', '.join(names)}", field="column", seen=column)
    for name in (DECISION, ERROR):
        if name in names:
            raise ConfigError(
                f"the dataset has a column {name!r} already; drop or rename it", field="dataset", seen=name
            )


def _everywhere(model: str | Path | None) -> str | None:
    """The model's name, or its folder in a form that does not depend on a process's working directory."""
    if model is None:
        return None
    return str(Path(model).resolve()) if Path(model).exists() else str(model)
