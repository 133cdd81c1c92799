"""`dicast decide`: one state, its questions, one decision; a table for people, JSON for programs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dicast.cli.options import DeviceOption, DtypeOption, ModelOption, check_model_name, read_bytes, write_json
from dicast.cli.quick import in_typed_order, parse_questions
from dicast.errors import ConfigError
from dicast.records import Record, check_limits

if TYPE_CHECKING:
    from dicast.cli.table import Style
    from dicast.wire.systemone import SystemOneRequest

ConfidenceName = Literal["typesafe", "pmax", "purity", "entropy"]
TruncationName = Literal["refuse", "state_end"]


def decide(
    context: typer.Context,
    file: Annotated[
        str | None, typer.Argument(metavar="FILE|-", help="A System One request as JSON; - reads standard input.")
    ] = None,
    state: Annotated[str | None, typer.Option("--state", help="The state as text; - reads standard input.")] = None,
    noul: Annotated[list[str] | None, typer.Option("--noul", metavar='ID="…"', help="A yes/no question.")] = None,
    choice: Annotated[
        list[str] | None, typer.Option("--choice", metavar='ID="…:a,b,c"', help="A question with named options.")
    ] = None,
    score: Annotated[
        list[str] | None, typer.Option("--score", metavar='ID="…:low,mid,high"', help="A question with levels.")
    ] = None,
    image: Annotated[list[str] | None, typer.Option("--image", metavar="FILE", help="An image to show.")] = None,
    video: Annotated[list[str] | None, typer.Option("--video", metavar="FILE", help="A video to show.")] = None,
    max_pixels: Annotated[
        int | None,
        typer.Option("--max-pixels", min=1024, help="Scale images and video frames down to so many pixels."),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    truncation: Annotated[
        TruncationName | None, typer.Option("--truncation", help="What happens to a state that does not fit.")
    ] = None,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Score every question alone, so that none can move another's answer.")
    ] = False,
    confidence: Annotated[
        ConfidenceName, typer.Option("--confidence", help="Which rule defines `confidence`.")
    ] = "typesafe",
    digits: Annotated[int, typer.Option("--digits", min=1, max=12, help="Decimals of the numbers in JSON.")] = 4,
    as_json: Annotated[
        bool | None, typer.Option("--json/--table", help="JSON or a table.", show_default="a table on a terminal")
    ] = None,
) -> None:
    """Answer questions about one state.

    Give a System One request as FILE, or a state and questions:

    dicast decide --state "My card was charged twice" --noul refund="Do they want money back?"
    """
    valued = _valued_options(context)
    typed = in_typed_order(_words(context), valued, {"noul": noul or (), "choice": choice or (), "score": score or ()})
    request = _request(file, state, typed)
    record = _with_files(request.record, image or (), video or ())
    names = _names(request.record, image or (), video or ())
    if max_pixels is not None:
        record = replace(record, media_kwargs={"max_pixels": max_pixels})
    request = replace(request, record=record)

    from dicast.model import load
    from dicast.wire.systemone import response_body

    loaded = load(model, device=device, dtype=dtype, confidence=confidence)
    check_model_name(request.model, loaded.info.name)
    options = request.x_dicast.encode_options
    if truncation is not None:
        options = replace(options, truncation=truncation)
    started = time.perf_counter()
    isolate = isolate or bool(request.x_dicast.isolate)
    decision = loaded.decide_batch([request.record], options=options, isolate=isolate)[0]
    milliseconds = (time.perf_counter() - started) * 1000

    if as_json if as_json is not None else not sys.stdout.isatty():
        write_json(response_body(decision, digits=digits, asked=request.x_dicast))
        return
    from dicast.cli.table import media_lines, render

    shown = media_lines(record, names)
    print(render(decision, record.questions, terminal_style(), milliseconds=milliseconds, media=shown))


def terminal_style() -> Style:
    """What standard output can show."""
    from dicast.cli.table import Style

    encoding = sys.stdout.encoding or "ascii"
    try:
        "█▏…·".encode(encoding)
        unicode = True
    except (UnicodeEncodeError, LookupError):
        unicode = False
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return Style(max(shutil.get_terminal_size().columns, 40), colour, unicode)


def _words(context: typer.Context) -> Sequence[str]:
    """The command line behind the command's name, as `dicast.cli.app` was given it."""
    words: Sequence[str] = context.find_root().obj
    return words


def _valued_options(context: typer.Context) -> dict[str, bool]:
    return {
        name: not getattr(parameter, "is_flag", False)
        for parameter in context.command.params
        for name in parameter.opts
        if name.startswith("-")
    }


def _request(file: str | None, state: str | None, typed: Sequence[tuple[str, str]]) -> SystemOneRequest:
    from dicast.wire.systemone import SystemOneRequest, parse_request

    if file is not None:
        if state is not None or typed:
            raise ConfigError("give either a request FILE, or --state with questions, not both")
        return parse_request(read_bytes(file))
    if state is None:
        raise ConfigError("nothing to decide: give a request FILE (- for standard input), or --state with questions")
    if not typed:
        raise ConfigError("--state needs at least one question: --noul, --choice or --score")
    text = _decoded(read_bytes("-")) if state == "-" else state
    return SystemOneRequest(check_limits(Record(text, parse_questions(typed))))


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the state is not valid UTF-8 at byte {error.start}", field="--state") from None


def _with_files(record: Record, images: Sequence[str], videos: Sequence[str]) -> Record:
    """The record with further images and videos from files."""
    if not images and not videos:
        return record
    from dicast.media import decode_image, decode_video

    return replace(
        record,
        images=(*record.images, *(decode_image(read_bytes(path), name=path) for path in images)),
        videos=(*record.videos, *(decode_video(read_bytes(path), name=path) for path in videos)),
    )


def _names(record: Record, images: Sequence[str], videos: Sequence[str]) -> list[str]:
    """Names of all images, then of all videos: empty for those of the request, which have none."""
    files = [*("",) * len(record.images), *images], [*("",) * len(record.videos), *videos]
    return [name for kind in files for name in kind]
