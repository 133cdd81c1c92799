"""`dicast calibrate`: fit temperatures, thresholds and prediction sets on held-out answers, and store them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dicast.cli.options import DeviceOption, DtypeOption, ModelOption
from dicast.cli.progress import Progress
from dicast.errors import ConfigError

if TYPE_CHECKING:
    from dicast.calibration import Calibration
    from dicast.evaluation.calibrate import Observation

MethodName = Literal["temperature", "vector", "isotonic", "auto"]
SetName = Literal["lac", "aps"]


def calibrate(
    data: Annotated[
        list[str],
        typer.Option("--data", "-d", metavar="PATH", help="Labelled records that the model was not trained on."),
    ],
    model: ModelOption = None,
    split: Annotated[str, typer.Option("--split", help="Which file of a data folder: dev or test.")] = "dev",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most records per file, a fixed random subset.")] = 0,
    method: Annotated[
        MethodName, typer.Option("--method", help="What to fit; auto lets held-out data choose.")
    ] = "auto",
    target_error: Annotated[
        float | None,
        typer.Option("--target-error", min=0.0, max=1.0, help="Also find thresholds that keep this error rate."),
    ] = None,
    risk: Annotated[
        float, typer.Option("--risk", min=1e-6, max=0.5, help="Probability that the promise fails.")
    ] = 0.05,
    miss_rate: Annotated[
        float | None,
        typer.Option("--miss-rate", min=0.0, max=1.0, help="Also fit prediction sets that miss this rarely."),
    ] = None,
    sets: Annotated[SetName, typer.Option("--sets", help="Kind of prediction sets.")] = "lac",
    per_question: Annotated[
        bool, typer.Option("--per-question", help="Thresholds per question id, for data of one schema.")
    ] = False,
    predictions: Annotated[
        Path | None,
        typer.Option("--predictions", metavar="FILE", help="Keep raw answers here; a stopped run goes on with them."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report, but write nothing.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where calibration.json goes.", show_default="the checkpoint"),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Records scored together.")] = 16,
    seed: Annotated[int, typer.Option("--seed", help="Of subsets.")] = 0,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", show_default="on a terminal", help="A progress line.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Fit a calibration on held-out records and write calibration.json beside the weights.

    Everything is judged by cross-validation; what does not help on held-out folds is left out. Files that the
    checkpoint's training records mention are refused.
    """
    from dicast.calibration import Provenance
    from dicast.checkpoints import resolve
    from dicast.evaluation.backends import LocalBackend
    from dicast.evaluation.calibrate import Promise, fit
    from dicast.evaluation.data import ContentHash, find_files, read
    from dicast.evaluation.seen import refuse_training_files
    from dicast.model import load

    folder, name, _ = resolve(model)
    target = None if dry_run else _writable(out or folder)  # before the work, not after it
    files = find_files(data, split=split)
    refuse_training_files(files, folder)
    backend = LocalBackend(load(model, device=device, dtype=dtype, calibrated=False), batch=batch)
    content = ContentHash()
    show = progress if progress is not None else sys.stderr.isatty()
    with Progress(0, sys.stderr if show else None) as line:
        observations = list(_observed(read(files, limit=limit, seed=seed), backend, predictions, content, line))
    today = datetime.now(UTC).date().isoformat()
    names = tuple(f"{file.name}/{split}" for file in files)
    provenance = Provenance(names, content.hexdigest(), content.n, today, method, name)
    promise = Promise(target_error, risk, miss_rate, sets, per_question)
    calibration = fit(observations, provenance, method=method, promise=promise)
    print(report(calibration))
    if target is not None:
        print(f"written: {calibration.save(target)}")


def _observed(
    examples: Iterator[Any], backend: Any, path: Path | None, content: Any, line: Progress
) -> Iterator[Observation]:
    import tempfile

    from dicast.evaluation.calibrate import observations_of
    from dicast.evaluation.harness import predict

    with tempfile.TemporaryDirectory() as scratch:
        for example, prediction in predict(examples, backend, path or Path(scratch) / "predictions.jsonl"):
            content.add(example)
            line.add(1)
            yield from observations_of([prediction])


def report(calibration: Calibration) -> str:
    """The fit in words: before and after per type, what was stored, warnings."""
    provenance = calibration.provenance
    lines = ["", f"{provenance.n} questions; {provenance.method}", ""]
    lines.append("| type | n | log loss | Brier | ECE (noise floor) |")
    lines.append("|---|---:|---|---|---|")
    for kind, facts in provenance.report.items():
        before, after = facts["before"], facts["after"]
        lines.append(
            f"| {kind} | {facts['n']} | {before['log_loss']:.4f} -> {after['log_loss']:.4f} "
            f"| {before['brier']:.4f} -> {after['brier']:.4f} "
            f"| {before['ece']:.4f} -> {after['ece']:.4f} ({after['ece_noise_floor']:.4f}) |"
        )
    lines.append("")
    for t in calibration.temperatures:
        lines.append(f"temperature {t.temperature:.3f} for {t.type}, {t.low} to {t.high or 'any'} options, n {t.n}")
    lines += [f"vector for {v.type} with {len(v.scale)} options, n {v.n}" for v in calibration.vectors]
    if calibration.isotonic:
        lines.append(f"isotonic map for noul, {len(calibration.isotonic.x)} knots, n {calibration.isotonic.n}")
    for s in calibration.thresholds:
        shown = (
            "nothing is accepted" if s.threshold is None else f"accept from {s.threshold:.4f}, {s.coverage:.1%} of them"
        )
        whom = f"{s.type} {s.question}" if s.question else s.type
        lines.append(f"error at most {s.target_error:g} (but for {s.delta:g}): {whom}: {shown}, n {s.n}")
    for c in calibration.conformal:
        whom = f"{c.type} {c.question}" if c.question else c.type
        lines.append(
            f"{c.score} sets missing at most {c.alpha:g}: {whom}, {c.low} to {c.high or 'any'} options, n {c.n}"
        )
    lines += [f"warning: {warning}" for warning in provenance.warnings]
    return "\n".join(lines)


def _writable(folder: Path) -> Path:
    if not folder.is_dir():
        raise ConfigError("no such folder", field="out", seen=str(folder))
    return folder
