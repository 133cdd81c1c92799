"""Options that every command shares, and small helpers around files. Imports no model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from dicast.errors import ConfigError, ModelNotFoundError

ModelOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        envvar="DICAST_MODEL",
        metavar="NAME|FOLDER",
        help="A checkpoint folder or a hub name, e.g. Cloudflare/clef-flash or NAME@REVISION.",
        show_default="the embedded model",
    ),
]
DeviceOption: TypeAlias = Annotated[
    str, typer.Option("--device", envvar="DICAST_DEVICE", help="auto, cpu, cuda, cuda:N or mps.")
]
DtypeOption: TypeAlias = Annotated[
    str, typer.Option("--dtype", envvar="DICAST_DTYPE", help="auto, float32, bfloat16 or float16.")
]


def read_bytes(path: str) -> bytes:
    """Content of a file, or of standard input for `-`.

    Raises:
        ConfigError: there is no such file, or it cannot be read.
    """
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: str, error: OSError) -> ConfigError:
    """The error for a file that cannot be opened."""
    return ConfigError(f"cannot read {path}: {(error.strerror or str(error)).lower()}", seen=path)


def write_json(value: object) -> None:
    """Write a value to standard output as indented UTF-8, whatever the locale."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2)
    sys.stdout.buffer.write(text.encode("utf-8") + b"\n")
    sys.stdout.buffer.flush()


def check_model_name(requested: str | None, loaded: str) -> None:
    """Refuse a request made for another model than the one that would answer it; the server's aliases mean any.

    Raises:
        ModelNotFoundError: another model is asked for.
    """
    if requested is None or requested == loaded:
        return
    from dicast.wire.aliases import ALIASES

    if ALIASES.fullmatch(requested):
        return
    raise ModelNotFoundError(
        f"the request asks for {requested!r}, but {loaded!r} is loaded: choose with --model, or leave the model out",
        field="model",
        seen=requested,
    )
