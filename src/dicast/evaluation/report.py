"""A result as JSON, as Markdown and as one self-contained HTML page with plots. Knows the result's shape only.

The page loads nothing from anywhere: styles and plots are inline, and texts from records are escaped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dicast.evaluation import svg

Result = Mapping[str, Any]

COLUMNS = (
    ("accuracy", "accuracy"),
    ("macro_f1", "macro-F1"),
    ("log_loss", "log loss"),
    ("brier", "Brier"),
    ("ece", "ECE"),
    ("ece_mass", "ECE (equal mass)"),
    ("aurc", "AURC"),
    ("coverage_at_5", "coverage at 5 % error"),
    ("auroc", "AUROC"),
    ("mae", "MAE"),
    ("rps", "RPS"),
    ("kappa", "kappa"),
    ("spearman", "Spearman"),
    ("soft_brier", "soft Brier"),
    ("accepted", "accepted"),
    ("accepted_error", "error of accepted"),
    ("set_size", "set size"),
    ("set_coverage", "set coverage"),
)
PLOTTED_SLICES = 12


def write(result: Result, folder: Path) -> list[Path]:
    """Write ``results.json``, ``results.md`` and ``report.html``; returns their paths."""
    texts = {
        "results.json": json.dumps(finite(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "results.md": markdown(result),
        "report.html": html(result),
    }
    paths = []
    for name, text in texts.items():
        paths.append(folder / name)
        paths[-1].write_text(text, encoding="utf-8")
    return paths


def finite(value: Any) -> Any:
    """The same data with null for numbers that JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def markdown(result: Result) -> str:
    """The result as a Markdown page."""
    lines = [f"# Evaluation of {result['model']['name']}", ""]
    lines += [f"- {fact}" for fact in facts(result)]
    lines += ["", *metric_table(result["slices"]), "", _bins_note(result["slices"]), ""]
    if compared := result.get("compared"):
        lines += ["## Comparison", "", comparison(compared)]
    if result["worst"]:
        lines += [
            "## Worst mistakes",
            "",
            "| id | question | gold | answered | p | log loss |",
            "|---|---|---|---|---:|---:|",
        ]
        lines += [
            f"| {_cell(item['id'])} | {_cell(item['question'])} | {_cell(item['gold'])} | {_cell(item['predicted'])} "
            f"| {item['p_predicted']:.3f} | {item['log_loss']:.2f} |"
            for item in result["worst"]
        ]
    return "\n".join(lines).rstrip() + "\n"


def comparison(compared: Mapping[str, Any]) -> str:
    """A paired comparison in words; differences are this run minus the other."""
    test = compared["mcnemar"]
    lines = [f"This run minus {compared['with']}, {compared['n']} questions, 95 % paired bootstrap intervals:", ""]
    lines += [f"- {name}: {interval_text(interval)}" for name, interval in compared["difference"].items()]
    lines.append(
        f"- McNemar over {test['families']} families: right only here {test['only_first']}, only there "
        f"{test['only_second']}, p = {test['p_value']:.3g}"
    )
    return "\n".join(lines) + "\n"


def facts(result: Result) -> list[str]:
    """What was run, one sentence each."""
    run = dict(result["run"])
    said = [f"{key}: {_fact(value)}" for key, value in run.items() if value not in ("", None, [], ())]
    said.append(f"records: {result['records']}, not answered: {result['failed']}")
    if result["answers_without_probabilities"]:
        bare = result["answers_without_probabilities"]
        said.append(f"{bare} answers came without probabilities and stand for certainty: do not read their calibration")
    if latency := result["latency_ms"]:
        said.append(f"latency per record: median {latency['median']:.1f} ms, 95th percentile {latency['p95']:.1f} ms")
    if tokens := result["input_tokens"]:
        said.append(f"input tokens per record: mean {tokens['mean']:.0f}, median {tokens['median']:.0f}")
    said.append(f"data hash: {result['data_sha256'][:16]}")
    return said


def metric_table(slices: Mapping[str, Any]) -> list[str]:
    """Slices as a Markdown table: every value with its 95 % interval."""
    used = [column for column in COLUMNS if any(column[0] in part["metrics"] for part in slices.values())]
    lines = [
        "| slice | n | answered | " + " | ".join(title for _, title in used) + " |",
        "|---|---:|---:|" + "---:|" * len(used),
    ]
    for name, part in slices.items():
        cells = [interval_text(part["metrics"].get(key)) for key, _ in used]
        lines.append(f"| {_cell(name)} | {part['n']} | {part['answered']:.1%} | " + " | ".join(cells) + " |")
    return lines


def interval_text(interval: Mapping[str, float | None] | None, *, scale: float = 1.0, digits: int = 3) -> str:
    """``0.812 [0.790, 0.833]``; a dash without a value, n/a for an undefined one.

    Args:
        interval: ``value``, ``low`` and ``high``; NaN or null where undefined.
        scale: 100 for percent.
        digits: decimals.
    """
    if interval is None:
        return "–"
    value, low, high = (interval[key] for key in ("value", "low", "high"))
    if value is None or math.isnan(value):
        return "n/a"
    if low is None or high is None or math.isnan(low):
        return f"{scale * value:.{digits}f} [no interval]"
    return f"{scale * value:.{digits}f} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]"


def html(result: Result) -> str:
    """The result as one page."""
    name = escape(str(result["model"]["name"]))
    body = [f"<h1>Evaluation of {name}</h1>", "<ul>", *(f"<li>{escape(fact)}</li>" for fact in facts(result)), "</ul>"]
    body += ["<h2>Measures</h2>", '<div class="wide">', _html_table(result["slices"]), "</div>"]
    body.append(f"<p>{escape(_bins_note(result['slices']))}</p>")
    if compared := result.get("compared"):
        body += ["<h2>Comparison</h2>", f"<pre>{escape(comparison(compared))}</pre>"]
    body += ["<h2>Plots</h2>", *_plots(result)]
    body += ["<h2>Most frequent mistakes</h2>", *_confusions(result["slices"])]
    body += ["<h2>Worst mistakes</h2>", *(_mistake(item) for item in result["worst"])]
    if result["errors"]:
        rows = [(message, str(count)) for message, count in result["errors"].items()]
        body += ["<h2>Records without an answer</h2>", _rows(("reason", "records"), rows)]
    return PAGE.format(title=name, body="\n".join(body))


def _html_table(slices: Mapping[str, Any]) -> str:
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in metric_table(slices)]
    return _rows(lines[0], lines[2:])


def _plots(result: Result) -> Iterable[str]:
    yield '<div class="plots">'
    drawn = [(name, part) for name, part in result["slices"].items() if part.get("reliability")][:PLOTTED_SLICES]
    for name, part in drawn:
        bins = [(row["confidence"], row["accuracy"], row["n"]) for row in part["reliability"]]
        points = [(coverage, risk) for coverage, risk, _ in part["risk_coverage"]]
        yield svg.reliability(bins, f"{name}: reliability")
        yield svg.curve(points, f"{name}: risk and coverage", "coverage", "error rate of the accepted")
    bars = [(low, high, count) for low, high, count in result["latency_histogram"]]
    yield svg.histogram(bars, "latency per record", "ms") + "</div>"


def _confusions(slices: Mapping[str, Any]) -> Iterable[str]:
    for name, part in slices.items():
        if name == "all" and len(slices) > 1:
            continue
        rows = [(gold, predicted, str(count)) for gold, predicted, count in part.get("confusions", [])]
        if rows:
            yield f"<h3>{escape(name)}</h3>" + _rows(("gold", "answered", "times"), rows)


def _mistake(item: Mapping[str, Any]) -> str:
    head = f"{item['id']}: {item['question']}: {item['predicted']} ({item['p_predicted']:.3f}), gold {item['gold']}"
    return (
        f"<details><summary>{escape(head)}</summary><p>{escape(str(item['instructions']))}</p>"
        f"<pre>{escape(item['state'])}</pre></details>"
    )


def _rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _bins_note(slices: Mapping[str, Any]) -> str:
    whole = slices.get("all", {}).get("calibration") or {}
    if not whole:
        return "No question was answered."
    return (
        f"ECE: top-label confidence, {whole['bins']} bins of equal width; a perfectly calibrated model with these "
        f"confidences would show {whole['noise_floor']:.3f} (95 % below {whole['noise_floor_p95']:.3f}). "
        f"Debiased root-mean-square calibration error {whole['debiased_rms']:.3f}; reliability slope "
        f"{whole['slope']:.2f}. Brackets: 95 % bootstrap interval over families of questions."
    )


def _fact(value: Any) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)


def _cell(value: Any) -> str:
    return str(value).replace("|", "/").replace("\n", " ")[:120]


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Evaluation of {title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c1c1e; --soft: #6b6b70; --line: #d8d8dc; --data: #2457a6;
 --page: #ffffff; }}
@media (prefers-color-scheme: dark) {{
 :root {{ --ink: #e8e8ea; --soft: #9a9aa0; --line: #3a3a3e; --data: #7fb0ff; --page: #161618; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
 max-width: 76rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; font-size: 13px; margin: .5rem 0 1rem; }}
th, td {{ border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left; vertical-align: top; }}
.wide {{ overflow-x: auto; }} .wide td {{ white-space: nowrap; }}
.plots {{ display: flex; flex-wrap: wrap; gap: 1rem; }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; border-left: 3px solid var(--line);
 padding-left: .8rem; }}
svg text {{ font: 11px system-ui, sans-serif; fill: var(--soft); }}
svg text.title {{ font-size: 12px; fill: var(--ink); }}
svg .grid {{ stroke: var(--line); stroke-width: .5; }} svg .ideal {{ stroke: var(--soft); stroke-dasharray: 4 3; }}
svg .data {{ stroke: var(--data); stroke-width: 1.6; }} svg .dot, svg .bar {{ fill: var(--data); fill-opacity: .45; }}
</style></head>
<body>
{body}
</body></html>
"""
