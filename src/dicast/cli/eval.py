"""`dicast eval`: measure a model, here or behind a URL, on labelled records, index tasks or robustness suites."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dicast.cli.options import DeviceOption, DtypeOption
from dicast.cli.progress import Progress
from dicast.errors import ConfigError

if TYPE_CHECKING:
    from dicast.evaluation.backends import Backend

ApiName = Literal["systemone", "decisions"]
KEY_VARIABLE = "DICAST_API_KEY"
Advance = Callable[[int], None]


def eval(
    data: Annotated[
        list[str] | None,
        typer.Option("--data", "-d", metavar="PATH", help="A file of labelled records, or a folder of such folders."),
    ] = None,
    index: Annotated[
        Path | None, typer.Option("--index", metavar="DIR", help="Run the Decision Index tasks found in this folder.")
    ] = None,
    external: Annotated[
        Literal["jevbench", "sys1bench"] | None,
        typer.Option("--external", help="Run an independent benchmark (a PyPI package) against the model's server."),
    ] = None,
    robustness: Annotated[
        bool, typer.Option("--robustness", help="Vary the records instead of scoring them: flips, injections, ...")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Where results go.")] = Path("dicast-eval"),
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            envvar="DICAST_MODEL",
            metavar="NAME|FOLDER|URL",
            help="A checkpoint, a hub name, or the base URL of a System One or Decisions server.",
            show_default="the embedded model",
        ),
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Which file of a data folder: train, dev or test.")] = "test",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Most records per file, a fixed random subset.")] = 0,
    task: Annotated[list[str] | None, typer.Option("--task", help="With --index: only these tasks.")] = None,
    suite: Annotated[
        list[str] | None, typer.Option("--suite", help="With --robustness or --external: only these suites.")
    ] = None,
    slice_by: Annotated[
        list[str] | None,
        typer.Option("--slice", metavar="KEY", help="Also report by source, question, options or meta.KEY."),
    ] = None,
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="DIR", help="Compare with an earlier run on the same data.")
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option("--manifest", metavar="FILE", help="Training manifest: says which sets the model has seen."),
    ] = None,
    calibrated: Annotated[
        bool, typer.Option("--calibrated/--uncalibrated", help="Whether to apply the checkpoint's calibration.")
    ] = True,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Records scored together by a local model.")] = 16,
    api: Annotated[ApiName, typer.Option("--api", help="What a server speaks.")] = "systemone",
    served: Annotated[str, typer.Option("--served-model", help="Model name sent to a server.")] = "jev-latest",
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests to a server at once.")] = 4,
    repeats: Annotated[int, typer.Option("--repeats", min=0, help="Bootstrap draws for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Of subsets, samples and draws.")] = 0,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", show_default="on a terminal", help="A progress line.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Measure a model on labelled records. A run that was stopped goes on with the same command.

    A server's key is read from DICAST_API_KEY. Results: results.json, results.md and report.html in --out.
    """
    chosen = [name for name, given in (("--data", data), ("--index", index), ("--external", external)) if given]
    if len(chosen) != 1:
        raise ConfigError("choose one of --data, --index and --external", field="eval", seen=" ".join(chosen) or None)
    if external:
        from dicast.evaluation.external import run_external

        suites = (suite or [""])[0]
        found = run_external(external, model, out, served=served, suite=suites, concurrency=concurrency, limit=limit)
        said = "\n".join(["```", *found["said"], "```", f"{found['seconds']:.0f} s; all files are in {out}", ""])
        _finish(out, f"{external}-run", found, f"# {external} {found['version']}\n\n{said}")
        return
    backend = _backend(model, api, served, concurrency, batch, calibrated, device, dtype)
    asked = _asked(model, api, served, calibrated)
    with _shown(progress) as advance:
        if index:
            _index(index, backend, out, task or [], limit, repeats, seed, asked, _known(manifest, model), advance)
        elif robustness:
            _robustness(data or [], backend, out, split, limit, suite or [], repeats, seed, advance)
        else:
            from dicast.evaluation.harness import EvalOptions

            options = EvalOptions(tuple(slice_by or ()), repeats=repeats, seed=seed)
            _data(data or [], backend, out, split, limit, options, asked, compare, advance)


def _data(
    data: list[str],
    backend: Backend,
    out: Path,
    split: str,
    limit: int,
    options: Any,
    asked: dict[str, Any],
    compare: Path | None,
    advance: Advance,
) -> None:
    from dicast.evaluation import report
    from dicast.evaluation.compare import compare as compared
    from dicast.evaluation.data import find_files, read
    from dicast.evaluation.harness import evaluate
    from dicast.training.data import data_hash

    files = find_files(data, split=split)
    hashes = [f"{file.name}:{data_hash(file.path)[:16]}" for file in files]
    facts = {"data": hashes, "split": split, "limit": limit, "seed": options.seed, **asked}
    result = evaluate(read(files, limit=limit, seed=options.seed), backend, out, options, facts=facts, advance=advance)
    text = report.markdown(result)
    if compare:
        result["compared"] = compared(out, compare, repeats=options.repeats, seed=options.seed) | {"with": str(compare)}
        text = report.comparison(result["compared"])
    report.write(result, out)
    print("\n" + text)


def _index(
    index: Path,
    backend: Backend,
    out: Path,
    tasks: list[str],
    limit: int,
    repeats: int,
    seed: int,
    asked: dict[str, Any],
    known: frozenset[str] | None,
    advance: Advance,
) -> None:
    from dicast.evaluation import index as tables

    result = tables.run_index(
        index,
        backend,
        out,
        tasks=tasks,
        limit=limit,
        repeats=repeats,
        seed=seed,
        known=known,
        facts=asked,
        advance=advance,
    )
    _finish(out, "index", result, tables.markdown(result))


def _asked(model: str | None, api: ApiName, served: str, calibrated: bool) -> dict[str, Any]:
    """What must be the same for an earlier run to be continued, besides the data."""
    from dicast.checkpoints import resolve
    from dicast.evaluation.seen import fingerprint

    if model and model.startswith(("http://", "https://")):
        return {"url": model, "api": api, "served": served}
    return {"weights": fingerprint(resolve(model)[0]), "calibrated": calibrated}


def _known(manifest: Path | None, model: str | None) -> frozenset[str] | None:
    """Data sets that the model has read: from the manifest, else from what lies beside the checkpoint."""
    from dicast.checkpoints import resolve
    from dicast.evaluation.seen import known_sets, trained_on

    if manifest:
        return trained_on(manifest)
    return None if model and model.startswith(("http://", "https://")) else known_sets(resolve(model)[0])


def _robustness(
    data: list[str],
    backend: Backend,
    out: Path,
    split: str,
    limit: int,
    suites: list[str],
    repeats: int,
    seed: int,
    advance: Advance,
) -> None:
    from dicast.evaluation import robustness
    from dicast.evaluation.data import find_files, read

    unknown = set(suites) - set(robustness.SUITES)
    if unknown:
        raise ConfigError(f"no such suite; there are {', '.join(robustness.SUITES)}", field="suite", seen=min(unknown))
    records = (example.record for example in read(find_files(data, split=split), limit=limit, seed=seed))
    chosen = tuple(suites) or tuple(robustness.SUITES)
    result = robustness.run_suites(records, backend, suites=chosen, repeats=repeats, seed=seed, advance=advance)
    _finish(out, "robustness", result, robustness.markdown(result))


def _finish(out: Path, name: str, result: dict[str, Any], text: str) -> None:
    import json

    from dicast.evaluation.report import finite

    out.mkdir(parents=True, exist_ok=True)
    body = json.dumps(finite(result), indent=1, ensure_ascii=False, allow_nan=False)
    (out / f"{name}.json").write_text(body + "\n", encoding="utf-8")
    (out / f"{name}.md").write_text(text, encoding="utf-8")
    print("\n" + text)


def _backend(
    model: str | None,
    api: ApiName,
    served: str,
    concurrency: int,
    batch: int,
    calibrated: bool,
    device: str,
    dtype: str,
) -> Backend:
    from dicast.evaluation.backends import LocalBackend, ServerBackend

    if model and model.startswith(("http://", "https://")):
        key = os.environ.get(KEY_VARIABLE, "none")
        return ServerBackend(model, model=served, api=api, key=key, concurrency=concurrency)
    from dicast.model import load

    return LocalBackend(load(model, device=device, dtype=dtype, calibrated=calibrated), batch=batch)


@contextmanager
def _shown(progress: bool | None) -> Iterator[Advance]:
    """Calls that move the progress line."""
    show = progress if progress is not None else sys.stderr.isatty()
    with Progress(0, sys.stderr if show else None) as line:
        yield lambda done: line.add(done - line.records)
