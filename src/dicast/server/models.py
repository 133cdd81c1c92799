"""Which models a server offers, which of them are loaded, and which one a request means.

The first model is the default; every name of the ``jev-*``, ``clef*`` and ``dicast-*`` families means it unless a model
has that very name. Models are loaded on first use and the least recently used idle one leaves when the memory budget is
full. Each loaded model has an engine of its own. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dicast.engine import Engine
from dicast.errors import DeadlineExceededError, EngineClosedError, ModelNotFoundError, OverloadedError
from dicast.models.base import ModelInfo
from dicast.server.settings import ModelSpec
from dicast.wire.aliases import ALIASES, DECISIONS_ALIASES

log = logging.getLogger("dicast.server")

DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}
WEIGHT_FILES = (".safetensors", ".onnx")
BUSY_RETRY_MS = 1000
CLOSE_SECONDS = 5.0
"""Longest wait for an engine's worker to end when the server stops."""


@dataclass(slots=True)
class Loaded:
    """A model in memory.

    Attributes:
        name: the name that answers show.
        engine: answers its records.
        size: bytes of its weights.
        users: requests that use it now.
        used: monotonic time of the last use.
    """

    name: str
    engine: Engine
    size: int
    users: int = 0
    used: float = 0.0

    @property
    def info(self) -> ModelInfo:
        """What the model is."""
        return self.engine.model.info


class ModelRegistry:
    """The models of a server. Its methods belong to one event loop.

    Args:
        specs: models on offer; the first is the default.
        load: loads one and warms it up; called in a thread.
        memory: most bytes of weights kept loaded; 0 for no bound.
        any_model: whether an unknown name means the default model.
    """

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        load: Callable[[ModelSpec], Engine],
        *,
        memory: int = 0,
        any_model: bool = False,
    ) -> None:
        self.specs = tuple(specs)
        self._load = load
        self._memory = memory
        self._any_model = any_model
        self._loaded: dict[ModelSpec, Loaded] = {}
        self._loading: dict[ModelSpec, asyncio.Task[Loaded]] = {}
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="dicast-load")
        self._began = False
        self._closed = False

    @property
    def default(self) -> ModelSpec:
        """The model that aliases mean."""
        return self.specs[0]

    @property
    def ready(self) -> bool:
        """Whether the default model has been loaded and warmed up; it may have made room for another since."""
        return self._began and not self._closed

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """Models in memory."""
        return tuple(self._loaded.values())

    def name_of(self, spec: ModelSpec) -> str:
        """The name that answers show; known for sure once an unnamed model is loaded."""
        if spec.name:
            return spec.name
        loaded = self._loaded.get(spec)
        return loaded.name if loaded else spec.path or "dicast-embedded"

    def info_of(self, spec: ModelSpec) -> ModelInfo | None:
        """What a model is, once it is loaded."""
        loaded = self._loaded.get(spec)
        return loaded.info if loaded else None

    def resolve(self, name: str | None, *, decisions: bool = False) -> ModelSpec:
        """The model that a request means.

        Args:
            name: as sent; None means the default.
            decisions: whether the request came by the Decisions route.

        Raises:
            ModelNotFoundError: the name is unknown; the message lists what there is.
        """
        if name is None:
            return self.default
        for spec in self.specs:
            if name == self.name_of(spec):
                return spec
        if self._any_model or ALIASES.fullmatch(name) or (decisions and DECISIONS_ALIASES.fullmatch(name)):
            return self.default
        known = ", ".join(self.name_of(spec) for spec in self.specs)
        raise ModelNotFoundError(
            f"unknown model {name[:100]!r}; this server has {known} (also known as jev-*, clef* and dicast-*)",
            field="model",
            seen=name[:100],
        )

    @asynccontextmanager
    async def lease(self, spec: ModelSpec, seconds: float) -> AsyncIterator[Loaded]:
        """A loaded model that stays loaded meanwhile; waits some seconds for one that is being loaded.

        Raises:
            DeadlineExceededError: loading takes longer.
            OverloadedError: the memory budget is full of models in use.
            EngineClosedError: the server is shutting down.
            DicastError: the model cannot be loaded.
        """
        model = self._loaded.get(spec)
        if model is None:
            try:
                model = await asyncio.wait_for(self._load_once(spec), seconds)
            except TimeoutError:
                raise DeadlineExceededError(f"the model {self.name_of(spec)} is still being loaded") from None
        model.users += 1
        try:
            yield model
        finally:
            model.users -= 1
            model.used = time.monotonic()

    async def close(self) -> None:
        """Close every model; later leases fail."""
        self._closed = True
        for task in self._loading.values():
            task.cancel()
        loop = asyncio.get_running_loop()
        models, self._loaded = list(self._loaded.values()), {}
        for model in models:
            await loop.run_in_executor(None, partial(model.engine.close, drain=False, timeout=CLOSE_SECONDS))
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load_once(self, spec: ModelSpec) -> Loaded:
        """Load a model, or wait for whoever is loading it; the loading goes on when a waiting request is cancelled."""
        if self._closed:
            raise EngineClosedError("the server is shutting down")
        task = self._loading.get(spec)
        if task is None:
            task = self._loading[spec] = asyncio.ensure_future(self._load_now(spec))
            task.add_done_callback(lambda done: self._loaded_or_not(spec, done))
        return await asyncio.shield(task)

    async def _load_now(self, spec: ModelSpec) -> Loaded:
        started = time.monotonic()
        self._make_room(file_bytes(spec.path))
        loop = asyncio.get_running_loop()
        engine = await loop.run_in_executor(self._threads, self._load, spec)
        info = engine.model.info
        model = Loaded(spec.name or info.name, engine, weight_bytes(info), used=time.monotonic())
        try:
            self._make_room(model.size)
        except OverloadedError:
            engine.close(drain=False)
            raise
        self._loaded[spec] = model
        self._began = self._began or spec == self.default
        log.info(
            "model loaded",
            extra={
                "facts": {"model": model.name, "seconds": round(time.monotonic() - started, 3), "bytes": model.size}
            },
        )
        return model

    def _loaded_or_not(self, spec: ModelSpec, task: asyncio.Task[Loaded]) -> None:
        self._loading.pop(spec, None)
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "model not loaded", extra={"facts": {"model": self.name_of(spec), "error": str(task.exception())}}
            )

    def _make_room(self, size: int) -> None:
        """Let the least recently used idle models go until ``size`` more bytes fit."""
        if not self._memory:
            return
        idle = sorted((model.used, spec.name, spec) for spec, model in self._loaded.items() if not model.users)
        while self._loaded and sum(model.size for model in self._loaded.values()) + size > self._memory:
            if not idle:
                raise OverloadedError("the memory for models is full of models in use", retry_after_ms=BUSY_RETRY_MS)
            spec = idle.pop(0)[2]
            model = self._loaded.pop(spec)
            model.engine.close(drain=False)
            log.info("model unloaded", extra={"facts": {"model": model.name}})


def weight_bytes(info: ModelInfo) -> int:
    """Bytes of a model's weights, from its parameter counts and dtype."""
    per_parameter = next((size for name, size in DTYPE_BYTES.items() if name in info.dtype), 4.0)
    return int(sum(info.parameters.values()) * per_parameter)


def file_bytes(path: str | None) -> int:
    """Bytes of the weight files in a checkpoint folder: what a model will need, before it is loaded; 0 if not known."""
    if path is None or not Path(path).is_dir():
        return 0
    return sum(file.stat().st_size for file in Path(path).iterdir() if file.suffix in WEIGHT_FILES)
