"""Remake `docs/results`: the embedded model on every test set, with intervals and seen/zero-shot flags.

    python -m docs.results --data DIR [--scale 2 | --scale 0]

One pass over the data gives the measures of every set and the scores of the Decision Index tasks. Each number comes
with n, its 95 % interval and a flag that says whether the model has read that set's train part. Machine, command,
commit and hashes of weights and data are in the result file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dicast._version import __version__
from dicast.evaluation import index
from dicast.evaluation.backends import Backend, LocalBackend
from dicast.evaluation.data import DataFile, find_files, read
from dicast.evaluation.harness import PREDICTIONS, Collector, EvalOptions, check_run, predict
from dicast.evaluation.report import finite, interval_text
from dicast.evaluation.seen import fingerprint, flag, trained_on

LIMIT = 250
LIMITS = {
    "api_bank": 20,
    "banking77": 1000,
    "bfcl": 60,
    "clinc150": 1000,
    "cruxeval": 200,
    "folio": 120,
    "gsm8k_choice": 200,
    "hwu64": 200,
    "metatool": 100,
    "onestop_english": 100,
    "pii_detect": 120,
    "prompt_injection": 80,
    "response_preference": 60,
    "rubric_score": 40,
    "sgd": 60,
    "synth_policy": 120,
    "tabfact": 60,
}
"""Most records per set, fewer where states are long, more where labels are many: a fixed random subset (seed 0) that
keeps the whole run of the embedded model near ten minutes on one core."""
REPEATS = 400
PACKAGES = ("numpy", "onnxruntime", "tokenizers")
KINDS = ("noul", "choice", "score")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(prog="python -m docs.results", description="Remake docs/results.")
    parser.add_argument("--data", default=os.environ.get("DICAST_DATA", "../shared/data"), help="folder of data sets")
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="where the results go")
    parser.add_argument("--name", default="embedded", help="name of the result files")
    parser.add_argument("--model", default=None, help="checkpoint; the embedded model when left out")
    parser.add_argument(
        "--manifest", type=Path, default=Path("recipes/embedded/manifest.json"), help="what it has seen"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual number of records, 0 for all")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="bootstrap draws")
    parser.add_argument("--sets", nargs="*", default=[], help="only these sets")
    parser.add_argument("--work", type=Path, default=None, help="keep predictions here, and go on with them")
    chosen = parser.parse_args(arguments)
    from dicast.checkpoints import resolve
    from dicast.model import load

    started = time.monotonic()
    checkpoint = resolve(chosen.model)[0]
    backend = LocalBackend(load(chosen.model))
    files = [file for file in find_files([chosen.data]) if not chosen.sets or file.name in chosen.sets]
    known = trained_on(chosen.manifest)
    with TemporaryDirectory() as scratch:
        work, options = chosen.work or Path(scratch), {"scale": chosen.scale, "repeats": chosen.repeats}
        sets = measure(files, backend, work, known, weights=fingerprint(checkpoint), **options)
    command = "python -m docs.results " + " ".join(sys.argv[1:] if arguments is None else arguments)
    facts = environment(command.strip(), checkpoint) | options
    facts["seconds"] = round(time.monotonic() - started, 1)
    result: dict[str, Any] = finite({"model": backend.describe(), "made": facts, "sets": sets})
    chosen.out.mkdir(parents=True, exist_ok=True)
    body = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    (chosen.out / f"{chosen.name}.json").write_text(body + "\n", encoding="utf-8")
    (chosen.out / f"{chosen.name}.md").write_text(markdown(result), encoding="utf-8")


def measure(
    files: Sequence[DataFile],
    backend: Backend,
    work: Path,
    known: frozenset[str],
    *,
    weights: str,
    scale: float,
    repeats: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Measures of every set, and index scores where the set is a task of the index."""
    tasks = index.published()["tasks"]
    found = []
    for file in files:
        folder = work / file.name
        folder.mkdir(parents=True, exist_ok=True)
        limit = max(round(LIMITS.get(file.name, LIMIT) * scale), 1) if scale else 0
        check_run(folder, {"model": backend.name, "weights": weights, "set": file.name, "limit": limit, "seed": seed})
        collector, cases = Collector(EvalOptions(repeats=repeats, worst=0, seed=seed)), []
        started = time.monotonic()
        task = tasks.get(file.name)
        for example, prediction in predict(read([file], limit=limit, seed=seed), backend, folder / PREDICTIONS):
            collector.add(example, prediction)
            if task:
                cases.append(index.case_of(example, prediction, task.get("track", "")))
        result = collector.result()
        slices = {name: _kept(part) for name, part in result["slices"].items()}
        facts = {
            key: result[key] for key in ("records", "failed", "errors", "data_sha256", "latency_ms", "input_tokens")
        }
        row = {"set": file.name, "train_part": flag(file.name, known), **facts, "slices": slices}
        if task:
            row["index"] = index.score_task(task, cases, repeats=repeats, seed=seed)
        found.append(row)
        sys.stderr.write(f"{file.name}: {result['records']} records, {time.monotonic() - started:.1f} s\n")
    return found


def environment(command: str, checkpoint: Path) -> dict[str, Any]:
    """Where and how the numbers were made."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "commit": _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", "-uno") else ""),
        "dicast": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "processor": _processor(),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        "weights": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            for path in sorted(checkpoint.iterdir())
            if path.is_file() and path.suffix in (".onnx", ".safetensors", ".json", ".npz", ".bin")
        },
    }


ABOUT = (
    "Brackets: 95 % bootstrap intervals over records (not over training runs). *Seen*: the model has read the train "
    "part of this set; *zero-shot*: it has not. Accuracy counts unanswered questions as wrong. Macro-F1 is over the "
    "labels of choices and nouls. Brier: sum over options, 0 to 2. ECE: top-label, 15 bins of equal width; the floor "
    "is what a perfectly calibrated model with the same confidences would show by chance. Sets of images stay "
    "unanswered by a model that reads none."
)
HEADER = [
    "| set | train part | records | type | questions | answered | accuracy | macro-F1 | Brier | ECE (floor) |",
    "|---|---|---:|---|---:|---:|---|---|---|---|",
]


def markdown(result: Mapping[str, Any]) -> str:
    """The rendered page."""
    made, model = result["made"], result["model"]
    capped = "a fixed random subset of every set" if made["scale"] else "all records"
    lines = [
        f"# {model['name']} on every test set",
        "",
        f"Made on {made['date']} by `{made['command']}` at commit {made['commit'][:12]}, dicast {made['dicast']}, "
        f"{made['processor']}, threads: {made['threads']}, {made['seconds']:.0f} s; {capped}; calibration "
        f"{'on' if model.get('calibrated') else 'off'}.",
        "",
        ABOUT,
        "",
        *HEADER,
        *(line for row in result["sets"] for line in _set_rows(row)),
        "",
        *_index_rows(result["sets"]),
    ]
    return "\n".join(lines) + "\n"


def _index_rows(sets: Sequence[Mapping[str, Any]]) -> list[str]:
    body = index.published()
    lines = [
        "## Decision Index tasks",
        "",
        "Raw results and skills in percent; published rows are raw results of whole test sets, not measured here. The "
        "macro-F1 of a subset is no estimate of that of the whole set, since rare labels drop out of it.",
        "",
        "| benchmark | train part | n | metric | raw | skill | " + " | ".join(index.SYSTEMS) + " |",
        "|---|---|---:|---|---|---|" + "---:|" * len(index.SYSTEMS),
    ]
    for row in sets:
        if score := row.get("index"):
            others = (body["rows"][system].get(row["set"]) for system in index.SYSTEMS)
            shown = " | ".join("–" if value is None else f"{value:.1f}" for value in others)
            n = f"{score['requests']} of {score['requests_of_index']}"
            counted = "" if score["counted"] else " (not counted)"
            lines.append(
                f"| {score['title']}{counted} | {row['train_part']} | {n} | {score['metric']} "
                f"| {_percent(score['raw'])} | {_percent(score['skill'])} | {shown} |"
            )
    return [*lines, "", "These tasks are parts of the Decision Index and no index of their own. " + body["about"]]


def _set_rows(row: Mapping[str, Any]) -> list[str]:
    lines = []
    for kind in KINDS:
        part = row["slices"].get(f"type={kind}")
        if part is None:
            continue
        cells = [interval_text(part["metrics"].get(name)) for name in ("accuracy", "macro_f1", "brier")]
        ece = interval_text(part["metrics"].get("ece"))
        floor = part["calibration"].get("noise_floor")
        place = f"{row['set']} | {row['train_part']} | {row['records']} | {kind}"
        calibrated = ece if floor is None else f"{ece} ({floor:.3f})"
        if not part["answered"]:
            cells, calibrated = ["not answered", "–", "–"], "–"
        shown = " | ".join([place, str(part["n"]), f"{part['answered']:.0%}", *cells, calibrated])
        lines.append(f"| {shown} |")
    return lines


def _kept(part: Mapping[str, Any]) -> dict[str, Any]:
    """A slice without its plots."""
    return {key: value for key, value in part.items() if key not in ("reliability", "risk_coverage", "confusions")}


def _percent(value: Mapping[str, float]) -> str:
    return interval_text(value, scale=100, digits=1)


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    names = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    found = next((line.split(":", 1)[1].strip() for line in names if line.startswith("model name")), platform.machine())
    return f"{found}, {os.cpu_count()} cores"
