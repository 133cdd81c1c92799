"""`dicast info`: what a model is, what it can do and how it runs here."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dicast import records
from dicast._version import __version__
from dicast.cli.options import DeviceOption, DtypeOption, ModelOption, write_json
from dicast.cli.text import printable
from dicast.errors import ConfigError

if TYPE_CHECKING:
    from dicast.model import DecisionModel


def info(
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="The same as --model.")] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    as_json: Annotated[
        bool | None, typer.Option("--json/--table", help="JSON or a table.", show_default="a table on a terminal")
    ] = None,
) -> None:
    """Show a model's architecture, parameters, dtype, limits, licence, calibration, and the kernels that run it."""
    if name is not None and model is not None and name != model:
        raise ConfigError(f"give the model once, not both {name!r} and {model!r}", field="model")
    from dicast.model import load

    facts = describe(load(name or model, device=device, dtype=dtype))
    if as_json if as_json is not None else not sys.stdout.isatty():
        write_json(facts)
    else:
        print("\n".join(table(facts)))


def describe(loaded: DecisionModel) -> dict[str, Any]:
    """Everything that is known of a loaded model, as plain data."""
    facts = asdict(loaded.info)
    parameters = dict(facts["parameters"])
    facts["parameters"] = parameters | {"total": sum(parameters.values())}
    facts["limits"] = {
        "tokens": facts.pop("max_tokens"),
        "questions": records.MAX_QUESTIONS,
        "options": records.MAX_OPTIONS,
        "levels": records.MAX_LEVELS,
        "nesting": records.MAX_NESTING,
    }
    facts["calibration"] = _calibration(loaded.calibration)
    facts["confidence"] = loaded.confidence
    facts["versions"] = {"dicast": __version__, "python": platform.python_version()}
    return facts


def table(facts: Mapping[str, Any]) -> list[str]:
    """One line per fact; a nested fact is one line with its parts."""
    rows = [(key.replace("_", " "), _shown(value)) for key, value in facts.items()]
    columns = max(len(key) for key, _ in rows)
    return [f"{key:<{columns}}  {value}" for key, value in rows]


def _calibration(calibration: Any) -> dict[str, Any] | None:
    """A summary of the calibration that is applied; None when logits stay as they are."""
    from dicast.calibration import Calibration

    if not isinstance(calibration, Calibration):
        return None
    made = calibration.provenance
    return {
        "method": made.method,
        "date": made.date,
        "questions": made.n,
        "data": list(made.data),
        "temperatures": {
            f"{item.type} {item.low}-{item.high or ''}": item.temperature for item in calibration.temperatures
        },
        "thresholds": len(calibration.thresholds),
        "conformal sets": len(calibration.conformal),
    }


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items()) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value) or "-"
    return printable(str(value)) if value not in (None, "") else "-"
