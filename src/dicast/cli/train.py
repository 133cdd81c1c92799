"""`dicast train`: post-train a decision model from a configuration file, or from a table of texts and labels."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dicast.cli.options import write_json
from dicast.errors import ConfigError, MissingDependencyError


def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Configuration file of the run.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the configuration.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check data and settings, train nothing; exit 2 on errors.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="With --check: the report as JSON.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget an earlier run in the same folder.")] = False,
    data: Annotated[
        str | None, typer.Option("--data", "-d", metavar="FILE", help="Instead of CONFIG: CSV, JSON lines or Parquet.")
    ] = None,
    dev: Annotated[str, typer.Option("--dev", metavar="FILE", help="With --data: dev examples.")] = "",
    text_column: Annotated[str, typer.Option("--text-column", help="With a CSV: column of the text.")] = "text",
    label_column: Annotated[str, typer.Option("--label-column", help="With a CSV: column of the label.")] = "label",
    instructions: Annotated[str, typer.Option("--instructions", help="With a CSV: what is asked of the text.")] = "",
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="NAME|FOLDER", help="With --data: the model to start from.")
    ] = "",
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="With --data: folder of the run.")] = Path(
        "runs/quick"
    ),
    epochs: Annotated[float, typer.Option("--epochs", min=0.01, help="With --data: passes over the data.")] = 4.0,
) -> None:
    """Train a decision model.

    Either from a configuration file (see recipes/ and docs/training.md), or from one file of examples:

        dicast train --data tickets.csv --text-column body --label-column team --out runs/tickets

    A run that was stopped goes on where it was when the same command is given again. The model is in DIR/model.
    """
    from dicast.checkpoints import require_torch
    from dicast.training.config import config_from, load_config, with_overrides
    from dicast.training.quick import quick_config

    if (config is None) == (data is None):
        raise ConfigError("give a configuration file or --data FILE, one of the two", field="config")
    if config is not None:
        settings = load_config(config, set_ or ())
    else:
        quick = quick_config(
            str(data),
            start=model,
            folder=str(out),
            dev=dev,
            text=text_column,
            label=label_column,
            instructions=instructions,
            epochs=epochs,
        )
        settings = config_from(with_overrides(quick.to_dict(), set_ or ()))
    if check:
        from dicast.training.check import check as check_data
        from dicast.training.lengths import token_counter

        report = check_data(settings, token_counter(settings))
        if find_spec("torch") is None:
            report.warnings.append("training needs torch, which is not installed here: pip install 'dicast[torch]'")
        if json:
            write_json(report.to_dict())
        else:
            print(report.text())
        raise typer.Exit(0 if report.ok else 2)
    try:
        require_torch()
    except MissingDependencyError:
        raise MissingDependencyError("training needs torch: pip install 'dicast[torch]'") from None
    from dicast.training.run import train as run

    summary = run(settings, fresh=fresh)
    if summary["dev"]:
        shown = ("accuracy", "macro_f1", "brier", "ece")
        print("  ".join(f"{name} {summary['dev'][name]:.4f}" for name in shown), file=sys.stderr)
