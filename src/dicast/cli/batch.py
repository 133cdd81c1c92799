"""`dicast batch`: System One requests as JSON lines in, answers as JSON lines out, in the same order.

Each output line holds the number of its input line (`line`), the request's `id` if it has one, and the response or an
`error`; one bad line never stops the others. The output is written chunk by chunk, so that an interrupted run goes on
where it stopped (`--resume`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from dicast.cli.options import DeviceOption, DtypeOption, ModelOption, check_model_name, read_bytes, unreadable
from dicast.cli.progress import Progress
from dicast.errors import ConfigError, InputError

if TYPE_CHECKING:
    from dicast.engine import Engine
    from dicast.records import Decision
    from dicast.wire.systemone import SystemOneRequest


@dataclass(slots=True)
class _Item:
    """One input line and what became of it."""

    line: int
    id: Any = None
    request: SystemOneRequest | None = None
    decision: Decision[Any] | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Output:
    """Where answers go, and after which input line they go on."""

    stream: IO[bytes]
    done: int = 0
    last_id: Any = None
    refused: int = 0
    failed: int = 0


def batch(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="Requests, one JSON object per line.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE|-", help="Where the answers go.")] = "-",
    questions: Annotated[
        str | None, typer.Option("--questions", metavar="FILE", help="Questions (JSON) for lines that have none.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an output that exists.")] = False,
    chunk: Annotated[int, typer.Option("--chunk", min=1, help="Records decided together and then written.")] = 64,
    digits: Annotated[int, typer.Option("--digits", min=1, max=12, help="Decimals of the numbers.")] = 4,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", show_default="on a terminal", help="A progress line.")
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Answer a file of System One requests, one JSON object per line."""
    shared = _shared_questions(questions)
    with ExitStack() as stack:
        source = sys.stdin.buffer if file == "-" else stack.enter_context(_opened(file))
        target = _output(output, resume=resume, overwrite=overwrite, stack=stack)
        from dicast.engine import Engine
        from dicast.model import load

        engine = stack.enter_context(Engine(load(model, device=device, dtype=dtype)))
        show = progress if progress is not None else sys.stderr.isatty()
        bar = stack.enter_context(Progress(_size(source), sys.stderr if show else None))
        items = _items(source, shared, target, bar)
        while together := list(islice(items, chunk)):
            _decide(engine, together)
            _write(target, together, digits)
            bar.add(len(together))
    if target.refused or target.failed:
        counts = f"{target.refused} records were refused and {target.failed} failed"
        print(f"dicast: {counts}; their lines in the output say why", file=sys.stderr)
        raise typer.Exit(1 if target.failed else 2)


def _items(source: IO[bytes], shared: Any, target: _Output, bar: Progress) -> Iterator[_Item]:
    """Input lines behind the last one that is done, read but not decided; blank lines are skipped."""
    for number, text in enumerate(source, start=1):
        bar.position += len(text)
        if not text.strip() or number < target.done:
            continue
        item = _read(number, text, shared)
        if number > target.done:
            yield item
        elif item.id != target.last_id:
            raise ConfigError(
                f"the output is of another input: line {number} has the id {target.last_id!r} there, {item.id!r} here",
                field="--resume",
            )


def _read(number: int, text: bytes, shared: Any) -> _Item:
    from dicast.wire.systemone import parse_request, read_object

    item = _Item(number)
    try:
        fields = read_object(text)
        item.id = fields.get("id")
        if shared is not None and "questions" not in fields:
            fields = {**fields, "questions": shared}
        item.request = parse_request(fields)
    except InputError as error:
        item.error = error
    return item


def _decide(engine: Engine, items: Sequence[_Item]) -> None:
    """Decide all items that can be; those that are asked in the same way travel together."""
    for item in items:
        if item.request is not None:
            try:
                check_model_name(item.request.model, engine.model.info.name)
            except InputError as error:
                item.error, item.request = error, None
    ways: dict[Any, list[_Item]] = {}
    for item in items:
        if item.request is not None:
            asked = item.request.x_dicast
            ways.setdefault((asked.encode_options, bool(asked.isolate)), []).append(item)
    for (options, isolate), together in ways.items():
        records = [item.request.record for item in together if item.request]
        outcomes = engine.decide_batch(records, errors="return", options=options, isolate=isolate)
        for item, outcome in zip(together, outcomes, strict=True):
            if isinstance(outcome, Exception):
                item.error = outcome
            else:
                item.decision = outcome


def _write(target: _Output, items: Sequence[_Item], digits: int) -> None:
    for item in items:
        body: dict[str, Any] = {"line": item.line} | ({} if item.id is None else {"id": item.id})
        if item.error is not None:
            target.refused += isinstance(item.error, InputError)
            target.failed += not isinstance(item.error, InputError)
            body["error"] = _error_body(item.error)
        else:
            body |= _response(item, digits)
        text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        target.stream.write(text.encode("utf-8") + b"\n")
    target.stream.flush()


def _response(item: _Item, digits: int) -> Mapping[str, Any]:
    from dicast.wire.systemone import response_body

    assert item.decision is not None
    assert item.request is not None
    return response_body(item.decision, digits=digits, asked=item.request.x_dicast)


def _error_body(error: Exception) -> dict[str, Any]:
    body: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    for name in ("field", "limit", "seen"):
        value = getattr(error, name, None)
        if value not in (None, ""):
            body[name] = value if isinstance(value, int | float | str) else str(value)
    return body


def _shared_questions(path: str | None) -> Any:
    """The questions of `--questions`: an object of id to question, or one that holds it under `questions`."""
    if path is None:
        return None
    from dicast.wire.systemone import parse_questions, read_object

    fields = read_object(read_bytes(path))
    questions = fields.get("questions", fields)
    parse_questions({"questions": questions})
    return questions


def _opened(path: str) -> IO[bytes]:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise unreadable(path, error) from None


def _size(source: IO[bytes]) -> int:
    """Bytes of a regular file; 0 for a pipe."""
    try:
        return os.fstat(source.fileno()).st_size
    except (OSError, ValueError):
        return 0


def _output(path: str, *, resume: bool, overwrite: bool, stack: ExitStack) -> _Output:
    if resume and (overwrite or path == "-"):
        raise ConfigError("needs --output FILE and no --overwrite", field="--resume")
    if path == "-":
        return _Output(sys.stdout.buffer)
    file = Path(path)
    if file.exists() and file.stat().st_size and not (resume or overwrite):
        raise ConfigError(f"{path} exists: add --resume to go on with it, or --overwrite", field="--output", seen=path)
    try:
        stream = stack.enter_context(file.open("r+b" if resume and file.exists() else "w+b"))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {(error.strerror or str(error)).lower()}", field="--output") from None
    return _resumed(stream, path) if resume else _Output(stream)


def _resumed(stream: IO[bytes], path: str) -> _Output:
    """Stand behind the last whole line of an output; what an interruption left of another line is cut off."""
    last, end = b"", 0
    for text in stream:
        if text.endswith(b"\n"):
            last, end = text, end + len(text)
    stream.seek(end)
    stream.truncate()
    if not last:
        return _Output(stream)
    try:
        body = json.loads(last)
        return _Output(stream, int(body["line"]), body.get("id"))
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{path} is not an output of `dicast batch`", field="--resume", seen=path) from None
