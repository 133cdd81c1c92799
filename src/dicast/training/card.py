"""The model card of a finished run, filled from its summary. Knows the summary's keys; invents no number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

NOT_STATED = "not stated"
WHAT = "A decision model: it reads a state and typed questions once and gives a probability for every allowed option."
LIMITS = (
    "Questions in one record influence each other by design. Answers far from the training data may be confident and "
    "wrong; measure on your own labelled records before use (`dicast eval`)."
)
METRICS = ("accuracy", "macro_f1", "brier", "ece", "joint", "loss", "questions")


def model_card(
    summary: Mapping[str, Any], *, licence: str = "", intended_use: str = "", calibrated: bool = False
) -> str:
    """Markdown with front matter: what it is, data, metrics, calibration, licence, intended use, how it was made.

    Args:
        summary: the contents of `summary.json`.
        licence: SPDX identifier; empty says that it is not stated.
        intended_use: a sentence of the maker.
        calibrated: whether a calibration is stored beside the weights.
    """
    config = summary["config"]
    start = config["model"]["start"] or "dicast-embedded"
    sections = [
        _front_matter(summary, licence),
        f"# {summary['name']}",
        f"{WHAT} Post-trained with Dicast from `{start}`.",
        "## Intended use",
        intended_use or "Not stated by its maker. Decisions like those in the training data.",
        "## Data",
        _data(summary),
        "## Metrics",
        _metrics(summary),
        "## Calibration",
        _calibration(summary, calibrated),
        "## Licence",
        f"{licence or NOT_STATED}. Weights derive from the starting model, whose licence applies too.",
        "## How it was made",
        _making(summary),
        "## Limits",
        LIMITS,
    ]
    return "\n\n".join(sections) + "\n"


def write_card(folder: Path, text: str) -> None:
    """Write the card into a model's folder."""
    (folder / "README.md").write_text(text, encoding="utf-8")


def _front_matter(summary: Mapping[str, Any], licence: str) -> str:
    start = summary["config"]["model"]["start"]
    lines = ["---", "library_name: dicast", "pipeline_tag: text-classification", "tags: [decision-model]"]
    lines += [f"license: {licence}"] if licence else []
    lines += [f"base_model: {start}"] if start.count("/") == 1 and not start.startswith((".", "/")) else []
    return "\n".join([*lines, "---"])


def _data(summary: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {count} |" for name, count in summary["sources"].items()]
    counts = summary["examples"]
    hashes = [f"- `{Path(path).name}`: `{digest[:16]}`" for path, digest in summary["data"].items()]
    total = f"{counts['train']} training and {counts['dev']} dev examples."
    note = "Hashes of the files (SHA-256, first 16 digits):"
    return "\n".join(["| source | training examples |", "|---|---:|", *rows, "", f"{total} {note}", "", *hashes])


def _metrics(summary: Mapping[str, Any]) -> str:
    overall = summary["dev"]
    if not overall:
        return "No dev data was given, so nothing was measured."
    names = [name for name in METRICS if name in overall]
    table = {"all dev data": overall} | dict(summary["dev_by_source"])
    rows = [
        f"| {source} | " + " | ".join(_number(name, values[name]) for name in names) + " |"
        for source, values in table.items()
    ]
    header = ["| | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    note = "Measured on the dev data of the run, on which the checkpoint was chosen; a test set will be a little lower."
    return "\n".join([*header, *rows, "", note])


def _number(name: str, value: float) -> str:
    return str(int(value)) if name == "questions" else f"{value:.4f}"


def _calibration(summary: Mapping[str, Any], calibrated: bool) -> str:
    if calibrated:
        return "Temperatures fitted on held-out answers are stored in this folder and applied when it is loaded."
    if "ece" not in summary["dev"]:
        return "Not measured."
    error = summary["dev"]["ece"]
    return f"No temperatures are stored. Expected calibration error on the dev data: {error:.4f} (10 bins, top option)."


def _making(summary: Mapping[str, Any]) -> str:
    config = summary["config"]
    packages = ", ".join(f"{name} {version}" for name, version in summary["packages"].items())
    lines = [
        f"stage {config['run']['stage']}, family {config['model']['family']}, trains {config['model']['train']}",
        f"{summary['steps']} steps, ended because: {summary['reason']}, {summary['seconds']} s on {summary['device']}, "
        f"{summary['processes']} process(es), seed {config['run']['seed']}",
        f"commit {summary['commit'] or NOT_STATED}; python {summary['python']}; {packages}",
    ]
    return "\n".join(f"- {line}" for line in lines)
