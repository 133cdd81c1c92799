"""The one TOML file of a run, as frozen dataclasses. Knows nothing of tensors, models or data.

Every key has a type, a default and a sentence; unknown keys are refused. `docs/training.md` prints the same sentences.

    [run]            name, folder, seed, stage, device
    [model]          which model starts, what trains
    [lora]           adapters
    [[data.train]]   sources, each with weight and cap;  [[data.dev]] the same
    [augment]        named switches with a probability each
    [batch] [optimizer] [schedule] [ema]
    [objective] [rlcd]
    [dev] [checkpoint] [log] [distributed] [export]

Paths are relative to the folder in which the command runs.
"""

# ruff: noqa: RUF009  -- `key` and `table` return dataclass fields; they only read as calls.
from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from dicast.errors import ConfigError


def key(default: Any, doc: str) -> Any:
    """A configuration key: its default value and the sentence that documents it."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"doc": doc})
    return field(default=default, metadata={"doc": doc})


def table(kind: type, doc: str = "") -> Any:
    """A configuration table with all its defaults."""
    return field(default_factory=kind, metadata={"doc": doc})


@dataclass(frozen=True)
class RunConfig:
    """[run]"""

    name: str = key("run", "name of the run, used in the summary and the model card")
    folder: str = key("runs/run", "folder of checkpoints, metrics, summary and the finished model")
    seed: int = key(0, "seed of data order, augmentation, dropout and fresh weights")
    stage: Literal["sft", "rlcd"] = key("sft", "sft: supervised objectives of [objective]; rlcd: rewards of [rlcd]")
    device: str = key("auto", "auto, cpu, cuda, cuda:1 or mps")
    threads: int = key(0, "CPU threads of torch; 0 leaves torch's own choice")
    autocast: Literal["none", "bfloat16"] = key(
        "none", "dtype of the backbone's matrix products; the head stays float32"
    )


@dataclass(frozen=True)
class ModelConfig:
    """[model]"""

    family: str = key("segments", "segments, clef, or package.module:function of a builder")
    start: str = key("", "checkpoint folder or hub name to start from")
    revision: str = key("", "hub revision; empty: the newest")
    head: Literal["keep", "fresh"] = key("keep", "keep the checkpoint's head, or make a new one (bare backbone)")
    train: Literal["all", "head", "lora", "qlora"] = key(
        "all", "which weights learn; lora and qlora also train the head"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = key("float32", "dtype of the frozen or trained backbone weights")
    gradient_checkpointing: bool = key(
        False, "recompute layers in the backward pass: less memory, about a third slower"
    )
    max_length: int = key(0, "most tokens of a record; longer ones are errors; 0: the model's own limit")
    truncation: Literal["refuse", "state_end"] = key("refuse", "refuse long records, or cut the end of the state")
    cache_folder: str = key("", "train = head: folder of cached hidden states; empty: <run folder>/hidden")
    head_dropout: float = key(0.0, "dropout inside the head")
    vision: bool = key(False, "clef: load the vision tower, for examples with images or videos; it never learns")
    options: dict[str, Any] = key({}, "further settings of the family, passed on as they are")


@dataclass(frozen=True)
class LoraConfig:
    """[lora]"""

    rank: int = key(16, "rank r of the adapters")
    alpha: float = key(0.0, "scale: the update is multiplied by alpha / rank; 0 means 2 x rank")
    dropout: float = key(0.0, "dropout on the adapters' input")
    dora: bool = key(False, "DoRA: learn the magnitude of each output separately")
    rslora: bool = key(False, "scale by alpha / sqrt(rank), steadier at high ranks")
    last_layers: int = key(0, "adapt only the last N decoder layers; 0: all")
    targets: list[str] = key([], "names of linear maps; empty: every linear map of the decoder layers")


@dataclass(frozen=True)
class SourceConfig:
    """[[data.train]] and [[data.dev]]"""

    path: str = key("", "file (.jsonl, .parquet, .csv, with .gz or .zst) or hf:owner/name")
    name: str = key("", "name of the source in metrics; empty: from the path")
    split: str = key("train", "split of a hub data set")
    weight: float = key(1.0, "times that the source is seen per epoch; 0.5 shows a different half each epoch")
    cap: int = key(0, "most examples of the source per epoch, drawn anew each epoch; 0: no cap")
    limit: int = key(0, "read only the first N examples; 0: all")
    loss_weight: float = key(1.0, "multiplies the weight of every example of the source")
    augment: bool = key(True, "whether [augment] applies to the source")
    columns: dict[str, str] = key(
        {}, "CSV only: text, label, question, instructions; labels_file: a table whose labels are options too"
    )


@dataclass(frozen=True)
class DataConfig:
    """[data]"""

    train: tuple[SourceConfig, ...] = key((), "sources to learn from")
    dev: tuple[SourceConfig, ...] = key((), "sources to measure on while training")
    dev_share: float = key(0.0, "without dev sources: share of the training families held out")
    group_by: Literal["none", "source"] = key(
        "none", "source: a micro-batch holds one source, so that option lists are shared"
    )


@dataclass(frozen=True)
class AugmentConfig:
    """[augment]: each number is the probability with which the change is made to a record"""

    question_order: float = key(0.0, "shuffle the questions")
    question_subset: float = key(0.0, "keep a random non-empty subset of the questions")
    option_order: float = key(
        0.0, "order the options of choices anew: shuffled, by id, backwards or shortest first; levels never"
    )
    option_subset: float = key(0.0, "keep the labelled option and a random subset of the others")
    neutral_ids: float = key(0.0, "name the options A, B, C, ...; the old id becomes the description if there was none")
    rename_options: float = key(0.0, "write option ids in another case style (snake_case, Title Case, kebab-case)")
    drop_descriptions: float = key(0.0, "drop the descriptions of a choice's options, never when the id is neutral")
    drop_instructions: float = key(0.0, "drop a question's instructions, so that its id is read instead")
    distractors: float = key(0.0, "add options taken from other questions of the same source")
    max_distractors: int = key(3, "most options added by distractors")
    paraphrase: float = key(0.0, "replace instructions by a paraphrase from paraphrases_file")
    paraphrases_file: str = key("", "JSON object: instructions -> list of paraphrases")
    label_words: float = key(0.0, "swap words of option descriptions and ids by label_words_file")
    label_words_file: str = key("", "JSON object: word -> list of words that mean the same")
    spell_noul: float = key(0.0, "give a noul explicit true and false criteria when it has none")


@dataclass(frozen=True)
class BatchConfig:
    """[batch]"""

    tokens: int = key(4096, "most tokens of a micro-batch, padding included")
    records: int = key(64, "most records of a micro-batch")
    micro_batches: int = key(1, "micro-batches of one optimizer step, over all processes")
    prefetch: int = key(2, "micro-batches encoded ahead in a thread; 0: none")


@dataclass(frozen=True)
class OptimizerConfig:
    """[optimizer]: AdamW"""

    lr: float = key(2e-5, "learning rate of the backbone or its adapters")
    head_lr: float = key(2e-4, "learning rate of the joint schema head")
    weight_decay: float = key(0.01, "decoupled weight decay of matrices; vectors and scalars have none")
    betas: tuple[float, ...] = key((0.9, 0.98), "Adam's two decay rates")
    eps: float = key(1e-8, "Adam's epsilon")
    clip: float = key(1.0, "largest global gradient norm; 0: no clipping")
    layer_decay: float = key(1.0, "learning rate factor per backbone layer from the top, for full training")


@dataclass(frozen=True)
class ScheduleConfig:
    """[schedule]: linear warm-up, then cosine"""

    epochs: float = key(1.0, "passes over the data; ignored when max_steps is given")
    max_steps: int = key(0, "optimizer steps; 0: from epochs")
    warmup: float = key(0.05, "share of the steps that warm up")
    final: float = key(0.05, "last learning rate as a share of the first")
    shape: Literal["cosine", "linear", "constant"] = key("cosine", "shape after the warm-up")
    max_minutes: float = key(0.0, "stop after this much wall time, counted over all resumptions; 0: no limit")


@dataclass(frozen=True)
class EmaConfig:
    """[ema]"""

    decay: float = key(0.0, "decay of the running mean of the weights, e.g. 0.999; 0: off")


@dataclass(frozen=True)
class ObjectiveConfig:
    """[objective]: weights of the supervised losses"""

    cross_entropy: float = key(1.0, "label-smoothed cross-entropy, or KL where soft labels are known")
    label_smoothing: float = key(0.05, "share of the target spread evenly over the options")
    soft_share: float = key(1.0, "where soft and gold labels are known: share of the soft one in the target")
    brier: float = key(0.5, "Brier score")
    rps: float = key(0.5, "ranked probability score of score questions")
    average: Literal["questions", "records"] = key("questions", "what counts the same: every question or every record")


@dataclass(frozen=True)
class RlcdConfig:
    """[rlcd]: second stage, rewards"""

    estimator: Literal["exact", "group"] = key(
        "exact", "exact expected reward, or sampled with the group's mean as baseline"
    )
    samples: int = key(8, "group: draws per question")
    normalise: bool = key(False, "group: divide advantages by their standard deviation")
    reward: float = key(0.25, "weight of the reward; the larger beside proper, the sharper the answers")
    partial_credit: float = key(0.5, "reward of the level next to gold, squared at distance two, and so on")
    record_bonus: float = key(0.25, "extra reward when every question of the record is right")
    kl: float = key(0.1, "weight of the KL divergence from the starting policy")
    proper: float = key(1.0, "weight of the proper-scoring term, which keeps answers calibrated")
    proper_rule: Literal["brier", "log"] = key("brier", "which proper score")


@dataclass(frozen=True)
class DevConfig:
    """[dev]"""

    metric: Literal["loss", "accuracy", "macro_f1", "brier", "ece", "joint", "reward"] = key(
        "loss", "metric of early stopping"
    )
    every_steps: int = key(200, "steps between measurements; there is always one at the end")
    patience: int = key(0, "stop after this many measurements without a better one; 0: never")
    limit: int = key(0, "most dev examples per source; 0: all")


@dataclass(frozen=True)
class CheckpointConfig:
    """[checkpoint]"""

    every_steps: int = key(0, "steps between checkpoints; 0: by time only")
    every_minutes: float = key(10.0, "minutes between checkpoints; 0: by steps only")
    keep: int = key(2, "how many of the newest checkpoints stay")


@dataclass(frozen=True)
class LogConfig:
    """[log]"""

    every_steps: int = key(10, "steps between lines of metrics.jsonl")
    tensorboard: bool = key(False, "also write TensorBoard files (needs tensorboard)")


@dataclass(frozen=True)
class DistributedConfig:
    """[distributed]: used under torchrun or accelerate launch"""

    strategy: Literal["replicate", "fsdp2"] = key(
        "replicate", "a copy per process, or backbone layers sharded with FSDP2"
    )
    backend: str = key("", "process group backend; empty: nccl on CUDA, gloo elsewhere")


@dataclass(frozen=True)
class ExportConfig:
    """[export]: what is written when the run ends"""

    licence: str = key("", "licence named in the model card")
    intended_use: str = key("", "sentence for the model card")
    onnx: bool = key(True, "segments: also write ONNX files, which is what `dicast.load` runs")
    weights: Literal["float32", "stored", "integer"] = key(
        "integer", "segments: how ONNX files hold weights: float32, int8 in the file only, or int8 products"
    )
    push: str = key("", "hub name to upload to; empty: no upload")
    head_dtype: Literal["float32", "bfloat16"] = key("float32", "clef: dtype in which the head is stored")


@dataclass(frozen=True)
class Config:
    """The whole file."""

    run: RunConfig = table(RunConfig)
    model: ModelConfig = table(ModelConfig)
    lora: LoraConfig = table(LoraConfig)
    data: DataConfig = table(DataConfig)
    augment: AugmentConfig = table(AugmentConfig)
    batch: BatchConfig = table(BatchConfig)
    optimizer: OptimizerConfig = table(OptimizerConfig)
    schedule: ScheduleConfig = table(ScheduleConfig)
    ema: EmaConfig = table(EmaConfig)
    objective: ObjectiveConfig = table(ObjectiveConfig)
    rlcd: RlcdConfig = table(RlcdConfig)
    dev: DevConfig = table(DevConfig)
    checkpoint: CheckpointConfig = table(CheckpointConfig)
    log: LogConfig = table(LogConfig)
    distributed: DistributedConfig = table(DistributedConfig)
    export: ExportConfig = table(ExportConfig)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the run summary and checkpoints."""
        return dataclasses.asdict(self)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file and apply ``key=value`` overrides.

    Args:
        path: the file.
        overrides: like ``optimizer.lr=1e-5`` or ``data.train.0.cap=500``; the value is TOML, or text if it is not.

    Raises:
        ConfigError: no such file, broken TOML, an unknown key, or a value of the wrong type; names the key.
    """
    file = Path(path)
    try:
        plain = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no such configuration file: {path}", field="config") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}", field=str(path)) from None
    return config_from(with_overrides(plain, overrides))


def with_overrides(plain: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Plain configuration data with ``key=value`` overrides applied, in place.

    Raises:
        ConfigError: an override is not key=value, or names no place.
    """
    for override in overrides:
        _override(plain, override)
    return plain


def config_from(plain: Mapping[str, Any]) -> Config:
    """Build the configuration from plain data.

    Raises:
        ConfigError: see :func:`load_config`.
    """
    config: Config = _build(Config, plain, "")
    _check(config)
    return config


def documented_keys(kind: type = Config, prefix: str = "") -> list[tuple[str, str, str]]:
    """All keys as (dotted name, default as TOML-like text, sentence), in the order of the file."""
    hints = typing.get_type_hints(kind)
    rows: list[tuple[str, str, str]] = []
    for item in fields(kind):
        hint, name = hints[item.name], prefix + item.name
        inner = _element(hint)
        if dataclasses.is_dataclass(hint):
            rows += documented_keys(hint, name + ".")  # type: ignore[arg-type]
        elif inner is not None and dataclasses.is_dataclass(inner):
            rows += documented_keys(inner, name + "[].")  # type: ignore[arg-type]
        else:
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            rows.append((name, _shown(default), str(item.metadata.get("doc", ""))))
    # A source has the same keys for training and dev; one listing is enough.
    return [row for row in rows if not row[0].startswith("data.dev[]")]


def _check(config: Config) -> None:
    positive = {"batch.tokens": config.batch.tokens, "batch.records": config.batch.records,
                "batch.micro_batches": config.batch.micro_batches, "lora.rank": config.lora.rank,
                "log.every_steps": config.log.every_steps, "dev.every_steps": config.dev.every_steps}  # fmt: skip
    for name, value in positive.items():
        if value < 1:
            raise ConfigError(f"must be at least 1, not {value}", field=name, limit=1, seen=value)
    shares = {f"augment.{item.name}": getattr(config.augment, item.name) for item in fields(AugmentConfig)}
    shares |= {"schedule.warmup": config.schedule.warmup, "data.dev_share": config.data.dev_share,
               "objective.label_smoothing": config.objective.label_smoothing,
               "objective.soft_share": config.objective.soft_share, "ema.decay": config.ema.decay}  # fmt: skip
    for name, value in shares.items():
        if isinstance(value, float) and not 0.0 <= value <= 1.0:
            raise ConfigError(f"must be between 0 and 1, not {value}", field=name, limit=1, seen=value)
    if len(config.optimizer.betas) != 2:
        raise ConfigError("needs two numbers", field="optimizer.betas")
    for split in ("train", "dev"):
        for index, source in enumerate(getattr(config.data, split)):
            if not source.path:
                raise ConfigError("a source needs a path", field=f"data.{split}.{index}.path")


def _override(plain: dict[str, Any], text: str) -> None:
    name, equals, raw = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"an override is key=value, not {text!r}", field="set")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    *parents, last = name.strip().split(".")
    place: Any = plain
    for parent in parents:
        place = _list_item(place, parent, name) if isinstance(place, list) else place.setdefault(parent, {})
        if not isinstance(place, dict | list):
            raise ConfigError(f"{parent!r} is not a table", field=name)
    if isinstance(place, list):
        _list_item(place, last, name)
        place[int(last)] = value
    else:
        place[last] = value


def _list_item(items: list[Any], index: str, name: str) -> Any:
    if not index.isdigit() or int(index) >= len(items):
        raise ConfigError(f"there is no item {index!r} in a list of {len(items)}", field=name)
    return items[int(index)]


def _build(kind: Any, plain: Any, path: str) -> Any:
    if not isinstance(plain, Mapping):
        raise ConfigError("must be a table", field=path)
    hints = typing.get_type_hints(kind)
    known = [item.name for item in fields(kind)]
    for name in plain:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f" (known: {', '.join(known)})"
            raise ConfigError(f"unknown key{hint}", field=_join(path, str(name)))
    return kind(**{name: _value(hints[name], value, _join(path, name)) for name, value in plain.items()})


def _value(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, path)
    origin = typing.get_origin(hint)
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value not in allowed:
            raise ConfigError(f"must be one of {', '.join(map(str, allowed))}, not {value!r}", field=path, seen=value)
        return value
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            raise ConfigError(f"must be an array, not {value!r}", field=path)
        inner = typing.get_args(hint)[0]
        return origin(_value(inner, item, _join(path, str(index))) for index, item in enumerate(value))
    if origin is dict or isinstance(hint, types.GenericAlias):
        if not isinstance(value, Mapping):
            raise ConfigError(f"must be a table, not {value!r}", field=path)
        return dict(value)
    return _scalar(hint, value, path)


def _scalar(hint: type, value: Any, path: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"must be {hint.__name__}, not {value!r}", field=path, seen=value)
    return value


def _element(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
