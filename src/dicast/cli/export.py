"""`dicast export`: write a trained model for another runtime, or upload it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dicast.cli.options import write_json


def export(
    model: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a trained model or of a run.")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write.")],
    format: Annotated[
        Literal["onnx", "release"], typer.Option("--format", "-f", help="onnx: segment models; release: Clef's layout.")
    ] = "onnx",
    weights: Annotated[
        Literal["integer", "stored", "float32"],
        typer.Option("--weights", help="ONNX: int8 products, int8 in the file only, or float32."),
    ] = "integer",
    push: Annotated[str, typer.Option("--push", metavar="OWNER/NAME", help="Upload to the hub with your login.")] = "",
    public: Annotated[bool, typer.Option("--public", help="With --push: make a new repository public.")] = False,
) -> None:
    """Write a trained model for another runtime.

    ONNX files are compared with torch on a sample before they are written. `dicast.load(DIR)` reads the result.
    """
    from dicast.checkpoints import require_torch

    require_torch()
    from dicast.training.export import export_folder
    from dicast.training.export import push as upload

    facts = export_folder(model, out, format=format, weights=weights)
    if push:
        print(f"uploaded to {upload(out, push, private=not public)}", file=sys.stderr)
    write_json(facts)
