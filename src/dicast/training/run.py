"""One run from its TOML file to the finished model.

    python -m dicast.training.run CONFIG.toml [--set key=value] [--fresh]

Puts the parts together: data, model, reference policy, loop, export, summary. `dicast train` calls the same function;
under `torchrun --nproc-per-node N -m dicast.training.run CONFIG.toml` the N processes share one run.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dicast.errors import ConfigError, DicastError, InputError
from dicast.training import measure
from dicast.training.augment import make_augment
from dicast.training.card import model_card, write_card
from dicast.training.config import Config, SourceConfig, load_config
from dicast.training.data import Example, data_hash, read_examples
from dicast.training.distributed import World, start_world, stop_world
from dicast.training.export import push
from dicast.training.loop import Outcome, Trainer
from dicast.training.reference import reference_policy
from dicast.training.sampling import Source
from dicast.training.splits import hold_out
from dicast.training.state import CheckpointStore, write_text_atomically
from dicast.training.trainable import Trainable, build

FREE_TO_CHANGE = (
    "run.folder",
    "run.device",
    "run.threads",
    "schedule.max_minutes",
    "dev.patience",
    "checkpoint",
    "log",
    "export",
    "batch.prefetch",
    "distributed",
)
"""Keys that a resumed run may change without becoming another run."""
PACKAGES = ("torch", "transformers", "peft", "accelerate", "numpy", "tokenizers", "safetensors")


@dataclasses.dataclass
class RunData:
    """The data of a run.

    Attributes:
        train: training examples, those of a source together.
        sources: where each source lies in `train`.
        dev: dev examples.
        hashes: path -> hash of its bytes.
    """

    train: list[Example]
    sources: list[Source]
    dev: list[Example]
    hashes: dict[str, str]


def train(config: Config, *, fresh: bool = False) -> dict[str, Any]:
    """Run the configuration to its end, resuming what is there, and return the summary.

    Args:
        config: the run.
        fresh: forget checkpoints and metrics of an earlier run in the same folder.

    Raises:
        ConfigError: wrong settings or data.
        TrainingStoppedError: the loss is not finite.
    """
    world = start_world(config)
    try:
        return _train(config, world, fresh)
    finally:
        stop_world()


def _train(config: Config, world: World, fresh: bool) -> dict[str, Any]:
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    if config.run.stage == "rlcd" and changes_examples(config):
        raise ConfigError(
            "rlcd compares with the starting policy on the same records: turn [augment] off", field="augment"
        )
    folder = Path(config.run.folder)
    data = load_data(config)
    if world.first:
        _prepare_folder(folder, config, data, fresh)
    world.barrier()
    torch.manual_seed(config.run.seed)
    model = build(config)
    if world.sharded:
        model.shard(world)
    else:
        model.module.to(world.device)
    reference = reference_policy(config, model, data.train, folder, world) if config.run.stage == "rlcd" else None
    trainer = Trainer(
        config,
        model,
        data.train,
        data.sources,
        data.dev,
        world=world,
        folder=folder,
        augment=make_augment(config, data.train),
        reference=reference,
    )
    trainer.journal.say(describe(config, model, data, trainer))
    outcome = trainer.run()
    return _finish(config, model, data, outcome, trainer, world)


def load_data(config: Config) -> RunData:
    """Read all sources.

    Raises:
        ConfigError: the first wrong row, by file and line; or no training data.
    """
    train: list[Example] = []
    sources: list[Source] = []
    for source in config.data.train:
        examples = _read(source)
        train_part = examples
        name = source.name or (examples[0].source if examples else source.path)
        sources.append(Source(_distinct(name, sources), len(train), len(train_part), source.weight, source.cap))
        train += train_part
    dev = [example for source in config.data.dev for example in _read(source, config.dev.limit)]
    if config.data.dev_share > 0.0 and not config.data.dev:
        train, sources, dev = _held_out(train, sources, config)
    if not train:
        raise ConfigError("there are no training examples", field="data.train")
    paths = [source.path for source in (*config.data.train, *config.data.dev)]
    return RunData(train, sources, dev, {path: data_hash(path) for path in paths})


def changes_examples(config: Config) -> bool:
    """Whether any augmentation is on."""
    values = dataclasses.asdict(config.augment)
    return any(isinstance(value, float) and value > 0.0 for value in values.values())


def describe(config: Config, model: Trainable, data: RunData, trainer: Trainer) -> str:
    """One line about the run, shown at its start."""
    learning = sum(parameter.numel() for parameter in model.module.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.module.parameters())
    return (
        f"{config.run.name}: {len(data.train)} training and {len(data.dev)} dev examples, "
        f"{learning:,} of {total:,} weights learn, {trainer.plan.total} steps"
    )


def _read(source: SourceConfig, limit: int = 0) -> list[Example]:
    limit = min(filter(None, (source.limit, limit)), default=0)
    examples = []
    for example in read_examples(source.path, source=source.name, split=source.split, columns=source.columns):
        example.weight *= source.loss_weight
        example.meta = {**example.meta, "augment": source.augment}
        examples.append(example)
        if limit and len(examples) >= limit:
            break
    return examples


def _held_out(
    train: list[Example], sources: list[Source], config: Config
) -> tuple[list[Example], list[Source], list[Example]]:
    kept: list[Example] = []
    dev: list[Example] = []
    moved: list[Source] = []
    for source in sources:
        part, held = hold_out(train[source.first : source.first + source.count], config.data.dev_share, config.run.seed)
        moved.append(dataclasses.replace(source, first=len(kept), count=len(part)))
        kept += part
        dev += held[: config.dev.limit] if config.dev.limit else held
    return kept, moved, dev


def _distinct(name: str, sources: Sequence[Source]) -> str:
    taken = {source.name for source in sources}
    return (
        name
        if name not in taken
        else next(f"{name}-{n}" for n in range(2, len(taken) + 3) if f"{name}-{n}" not in taken)
    )


def _prepare_folder(folder: Path, config: Config, data: RunData, fresh: bool) -> None:
    """Clear the folder for a fresh run, or check that what is there is the same run."""
    record = folder / "config.json"
    store = CheckpointStore(folder)
    if fresh:
        store.clear()
        for name in ("metrics.jsonl", "best.pt", "reference.pt", "summary.json", "config.json"):
            (folder / name).unlink(missing_ok=True)
    now = {"config": config.to_dict(), "data": data.hashes}
    if record.exists() and store.latest() is not None:
        before = json.loads(record.read_text(encoding="utf-8"))
        changed = _differences(before["config"], json.loads(json.dumps(config.to_dict())))
        if before["data"] != now["data"]:
            changed.append("the data files")
        if changed:
            raise ConfigError(
                f"{folder} holds an unfinished or finished run with another setting of {', '.join(changed[:6])}; "
                "restore it, choose another run.folder, or start again with --fresh",
                field="run.folder",
            )
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(json.dumps(now, indent=1), record)


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    """Dotted names of settings that differ; keys that only one version of Dicast knows are left aside."""
    if path in FREE_TO_CHANGE:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        prefix = path + "." if path else ""
        names = sorted(set(before) & set(now))
        return [found for name in names for found in _differences(before[name], now[name], prefix + name)]
    return [] if before == now else [path]


def _finish(
    config: Config, model: Trainable, data: RunData, outcome: Outcome, trainer: Trainer, world: World
) -> dict[str, Any]:
    rows = trainer.evaluate() if data.dev else []
    summary: dict[str, Any] = {
        "name": config.run.name,
        "reason": outcome.reason,
        "steps": outcome.steps,
        "seconds": round(outcome.seconds, 1),
        "best": {"metric": config.dev.metric, "value": outcome.best[0], "step": outcome.best[1]}
        if outcome.best
        else None,
        "dev": measure.summarise(rows),
        "dev_by_source": measure.by_source(rows),
        "examples": {"train": len(data.train), "dev": len(data.dev)},
        "sources": {source.name: source.count for source in data.sources},
        "data": data.hashes,
        "processes": world.size,
        "device": str(world.device),
        "commit": git_commit(),
        "python": platform.python_version(),
        "packages": versions(),
        "config": config.to_dict(),
    }
    folder = Path(config.run.folder)
    if world.first:
        write_text_atomically(json.dumps(summary, indent=1, ensure_ascii=False), folder / "summary.json")
    model.save(folder / "model")  # every process, since a sharded model is gathered
    if world.first:
        card = model_card(summary, licence=config.export.licence, intended_use=config.export.intended_use)
        write_card(folder / "model", card)
        trainer.journal.say(f"{outcome.reason} after {outcome.steps} steps; the model is in {folder / 'model'}")
        if config.export.push:
            trainer.journal.say(f"uploaded to {push(folder / 'model', config.export.push)}")
    world.barrier()
    return summary


def git_commit() -> str:
    """The commit of the working folder, with "+changes" when it is not clean; "" outside a repository."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=10)
        status = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return commit.stdout.strip() + ("+changes" if status.stdout.strip() else "")


def versions() -> dict[str, str]:
    """Versions of the packages that decide results; packages that are not installed are left out."""
    found = {}
    for name in ("dicast", *PACKAGES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code: 0 done, 2 wrong settings or data, 1 anything else raised on purpose."""
    parser = argparse.ArgumentParser(prog="python -m dicast.training.run", description="Train a decision model.")
    parser.add_argument("config", help="TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="key=value", help="override a key")
    parser.add_argument("--fresh", action="store_true", help="forget an earlier run in the same folder")
    options = parser.parse_args(arguments)
    try:
        train(load_config(options.config, options.set), fresh=options.fresh)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except DicastError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
