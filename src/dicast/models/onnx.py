"""The embedded model without torch: two onnxruntime sessions and a cache of encoded segments.

A segment is encoded once and then found in a cache, so a schema or a state that comes again costs nothing; only the
head runs for every record. Knows nothing of JSON bodies, probabilities or queues. Calls from several threads are safe.

Shapes: n segments, L tokens, B records, S memory rows, O options, H encoder width, W head width.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from dicast.engine.batches import BatchLimits, form_batches
from dicast.errors import CapabilityError, CheckpointError, MissingDependencyError, TokenBudgetError
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Logits, Model, ModelInfo, Scored
from dicast.models.segment_batch import SegmentBatch, buckets_of, memory_index, plan_batch, split_logits
from dicast.records import Record
from dicast.segments import Segment, SegmentEncoder, SegmentEncoding

Floats: TypeAlias = npt.NDArray[np.float32]

DEFAULT_CACHE_MB: Final = 48.0
DEFAULT_MOST_THREADS: Final = 4
RUN_TOKENS: Final = 256
"""Most padded tokens of one run of the encoder, per thread: what lies between its steps then stays in the processor's
cache, which is a third quicker than runs of 4,096."""
HEAD_ROWS: Final = 16_384
"""Most padded memory rows of one run of the head; records beyond it go into the next run."""
HEAD_SCORES: Final = 4_000_000
"""Most attention scores (records x options x rows) of one run of the head; a single record may have more."""
MOST_SCORES: Final = 12_000_000
"""Most attention scores (options x rows) of one record, e.g. 400 yes/no questions about 12,000 tokens. Bounds the
memory of the head, which needs about 200 bytes a score."""


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """One segment in the cache; `memory` is None where only the pooled vectors were asked for.

    Attributes:
        memory: ``[L, W]`` or None.
        cls: ``[H]`` raw [CLS] vector.
        mean: ``[H]`` mean of the normed rows of the segment's span.
        cls_normed: ``[H]`` normed [CLS] row.
    """

    memory: Floats | None
    cls: Floats
    mean: Floats
    cls_normed: Floats

    @property
    def size(self) -> int:
        """Bytes of its arrays."""
        return 3 * self.cls.nbytes + (0 if self.memory is None else self.memory.nbytes)


class SegmentCache:
    """Segments, the least recently used leave first. Safe for several threads.

    Args:
        most_bytes: bytes of all arrays; 0 keeps nothing.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.hits = 0
        self.misses = 0
        self._size = 0
        self._items: OrderedDict[Segment, EncodedSegment] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return self._size

    def get(self, segment: Segment, *, memory: bool) -> EncodedSegment | None:
        """The segment, or None where it (or its memory, if asked for) is not held."""
        with self._lock:
            found = self._items.get(segment)
            if found is None or (memory and found.memory is None):
                self.misses += 1
                return None
            self._items.move_to_end(segment)
            self.hits += 1
            return found

    def put(self, segment: Segment, encoded: EncodedSegment) -> None:
        """Keep a segment, and drop old ones until all fit."""
        with self._lock:
            old = self._items.pop(segment, None)
            if old is not None:
                self._size -= old.size
            self._items[segment] = encoded
            self._size += encoded.size
            while self._size > self.most_bytes and self._items:
                _, dropped = self._items.popitem(last=False)
                self._size -= dropped.size


class OnnxSegmentModel:
    """The segment model on onnxruntime; satisfies `dicast.models.base.Model`.

    Args:
        folder: ``encoder.onnx``, ``head.onnx``, ``dicast.json`` and ``tokenizer.json``.
        name: shown instead of the name in ``dicast.json``.
        threads: threads of one run; None: as many as there are processors, at most 4.
        cache_mb: megabytes for encoded segments; 0 switches the cache off.
        spin: keep waiting threads busy: quicker answers, but a busy processor while idle for a moment.

    Raises:
        CheckpointError: a file is missing or broken.
        MissingDependencyError: onnxruntime is not installed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "",
        threads: int | None = None,
        cache_mb: float = DEFAULT_CACHE_MB,
        spin: bool = False,
    ) -> None:
        self._config = _config(folder)
        self.name = name or str(self._config["name"])
        self.threads = threads or min(DEFAULT_MOST_THREADS, _processors())
        self._encoder = _session(folder / "encoder.onnx", self.threads, spin)
        self._head = _session(folder / "head.onnx", self.threads, spin)
        self.encoder = SegmentEncoder.from_file(folder / "tokenizer.json")
        self.cache = SegmentCache(int(cache_mb * 1e6))

    @classmethod
    def load(cls, folder: Path | None = None, **options: Any) -> OnnxSegmentModel:
        """The model in a folder; without one the model that comes with the package."""
        return cls(folder or embedded_folder(), **options)

    @property
    def info(self) -> ModelInfo:
        """What this model is."""
        details = {"threads": self.threads, "weights": self._config["weights"], "cache_mb": self.cache.most_bytes / 1e6}
        return ModelInfo(
            name=self.name,
            architecture="segments (bert + joint schema head)",
            runtime="onnx",
            parameters=self._config["parameters"],
            dtype="float32",
            device="cpu",
            max_tokens=self.encoder.max_tokens,
            revision=self._config.get("revision", ""),
            licence=self._config.get("licence", ""),
            released=self._config.get("released", ""),
            details=details,
        )

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> SegmentEncoding:
        """Encode one record; see `dicast.segments`.

        Raises:
            TokenBudgetError: the record has too many tokens, or too many options for that many tokens.
            CapabilityError: the record shows images or videos.
        """
        if record.has_media:
            raise CapabilityError(f"{self.name} reads text and JSON only", field="images")
        encoding = self.encoder.encode(record, options)
        _check_scores(encoding)
        return encoding

    def score(self, encodings: Sequence[SegmentEncoding]) -> list[Logits]:
        """Logits per record and question, options in request order."""
        return [scored.logits for scored in self.score_reusing(encodings)]

    def plan(self, encodings: Sequence[SegmentEncoding], limits: BatchLimits) -> list[list[int]]:
        """Batches of indices into `encodings`, by length."""
        return form_batches([encoding.length for encoding in encodings], limits)

    def score_reusing(self, encodings: Sequence[SegmentEncoding]) -> list[Scored]:
        """Logits, and how many tokens of each record were in segments that the cache held."""
        found: list[Scored] = [Scored([])] * len(encodings)
        for group in _groups(encodings):
            chosen = [encodings[number] for number in group]
            for number, scored in zip(group, self._score(chosen), strict=True):
                found[number] = scored
        return found

    def _score(self, encodings: Sequence[SegmentEncoding]) -> list[Scored]:
        batch = plan_batch(encodings)
        segments, known = self._encoded(batch)
        inputs = _head_inputs(batch, segments)
        large = inputs["memory_mask"].size * inputs["option_mask"].shape[1] > HEAD_SCORES
        (logits,) = self._head.run(None, inputs, _giving_memory_back() if large else None)
        cached = [sum(len(s.tokens) for s in encoding.segments if s in known) for encoding in encodings]
        split = split_logits(encodings, np.asarray(logits, np.float32))
        return [Scored(*pair) for pair in zip(split, cached, strict=True)]

    def _encoded(self, batch: SegmentBatch) -> tuple[list[EncodedSegment], set[Segment]]:
        """Every segment of the batch, from the cache or computed, and which of them the cache held."""
        in_memory = {number for numbers in batch.memory for number in numbers}
        found = [self.cache.get(segment, memory=number in in_memory) for number, segment in enumerate(batch.segments)]
        known = {segment for segment, item in zip(batch.segments, found, strict=True) if item is not None}
        missing = [number for number, item in enumerate(found) if item is None]
        for bucket in buckets_of([batch.segments[number] for number in missing], most_tokens=RUN_TOKENS * self.threads):
            inputs = {"ids": bucket.ids, "mask": bucket.mask, "span": bucket.span}
            memory, cls, mean, cls_normed = self._encoder.run(None, inputs)
            for row, member in enumerate(bucket.members):
                number = missing[member]
                segment = batch.segments[number]
                rows = memory[row, : len(segment.tokens)].copy() if number in in_memory else None
                item = EncodedSegment(rows, cls[row].copy(), mean[row].copy(), cls_normed[row].copy())
                found[number] = item
                self.cache.put(segment, item)
        return [item for item in found if item is not None], known


def load_segments(
    folder: Path, *, name: str = "", device: str = "auto", dtype: str = "auto", threads: int | None = None
) -> Model:
    """The segment model in a folder: with onnxruntime where ONNX files are there, else with torch.

    Args:
        folder: the checkpoint folder.
        name: shown instead of the name in ``dicast.json``.
        device: ``auto`` and ``cpu``; a torch folder takes any torch device.
        dtype: ``auto`` or ``float32``, the only ones.
        threads: threads of the onnx runtime; None: see :class:`OnnxSegmentModel`.

    Raises:
        CapabilityError: a device or dtype that this model does not have.
        CheckpointError: the folder is incomplete or of another kind.
    """
    if str(dtype) not in ("auto", "float32", "torch.float32"):
        raise CapabilityError(f"the segment model computes in float32, not {dtype}", field="dtype")
    if not (folder / "encoder.onnx").is_file() and (folder / "model.safetensors").is_file():
        from dicast.models.segmented import SegmentModel

        model = SegmentModel.load(folder, device="cpu" if device == "auto" else device)
        model.name = name or model.name
        return model
    if device not in ("auto", "cpu"):
        raise CapabilityError(f"the onnx segment model runs on the CPU, not on {device}", field="device")
    return OnnxSegmentModel(folder, name=name, threads=threads)


def embedded_folder() -> Path:
    """Where the model that comes with the package lies."""
    return Path(str(resources.files("dicast.models") / "embedded"))


def _check_scores(encoding: SegmentEncoding) -> None:
    options = sum(len(question.options) for question in encoding.questions)
    rows = sum(len(encoding.segments[window.segment].tokens) for window in encoding.windows)
    if options * rows > MOST_SCORES:
        raise TokenBudgetError(
            f"{options} options over {rows} tokens of state and instructions are {options * rows} scores, "
            f"and the limit is {MOST_SCORES}; ask fewer questions at once or shorten the state",
            field="questions",
            limit=MOST_SCORES,
            seen=options * rows,
        )


def _giving_memory_back() -> Any:
    """Options of a run after which the session's arena is shrunk: large runs are rare, their memory is wanted back."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def _groups(encodings: Sequence[SegmentEncoding]) -> Iterator[list[int]]:
    """Record numbers in groups that one run of the head can hold; similar lengths together."""
    order = sorted(range(len(encodings)), key=lambda number: encodings[number].length)
    group: list[int] = []
    options = 0
    for number in order:
        encoding = encodings[number]
        asked = max(options, sum(len(question.options) for question in encoding.questions))
        rows = encoding.length * (len(group) + 1)
        if group and (rows > HEAD_ROWS or rows * asked > HEAD_SCORES):
            yield group
            group, asked = [], sum(len(question.options) for question in encoding.questions)
        group.append(number)
        options = asked
    if group:
        yield group


def _head_inputs(batch: SegmentBatch, segments: Sequence[EncodedSegment]) -> dict[str, Any]:
    used = sorted({number for numbers in batch.memory for number in numbers})
    offsets = [0] * len(segments)
    rows = 0
    for number in used:
        offsets[number] = rows
        rows += len(batch.segments[number].tokens)
    memory = np.concatenate([part for number in used if (part := segments[number].memory) is not None])
    index, mask, parts = memory_index(batch, offsets)
    cls = np.stack([item.cls for item in segments])
    mean = np.stack([item.mean for item in segments])
    normed = np.stack([item.cls_normed for item in segments])
    return {
        "memory": memory[index],
        "memory_mask": mask,
        "memory_part": parts,
        "question": mean[batch.question],
        "question_cls": cls[batch.question],
        "question_mask": batch.question_mask,
        "types": batch.types,
        "option": mean[batch.hypothesis],
        "label_cls": cls[batch.label],
        "hypothesis_cls": cls[batch.hypothesis],
        "option_mask": batch.option_mask,
        "owner": batch.owner,
        "window_cls": cls[batch.window],
        "window_normed": normed[batch.window],
        "window_mask": batch.window_mask,
        "window_owner": batch.window_owner,
        "peer": batch.peer,
    }


def _config(folder: Path) -> dict[str, Any]:
    for name in ("dicast.json", "encoder.onnx", "head.onnx", "tokenizer.json"):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} has no {name}")
    try:
        config: dict[str, Any] = json.loads((folder / "dicast.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{folder / 'dicast.json'} is not valid JSON: {error}") from None
    if config.get("format") != "segments":
        raise CheckpointError(f"{folder} holds a {config.get('format')!r} model, not a segments one")
    return config


def _session(path: Path, threads: int, spin: bool) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError(
            "the embedded model needs onnxruntime; install it with: pip install onnxruntime"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # every batch has other shapes
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own classes without a common base
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
