"""Which models are loaded: once, on demand, within a budget, and what happens when one cannot be."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.server.serving import INFO, Arithmetic

from dicast.engine import Engine
from dicast.errors import CheckpointError, DeadlineExceededError, ModelNotFoundError, OverloadedError
from dicast.server.models import ModelRegistry, file_bytes, weight_bytes
from dicast.server.settings import ModelSpec

SPECS = tuple(ModelSpec(name, name) for name in "abc")


class Loader:
    """Loads models of 4,000 bytes and counts."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.broken = ""

    def __call__(self, spec: ModelSpec) -> Engine:
        self.loads.append(spec.name)
        if spec.name == self.broken:
            raise CheckpointError("config.json is missing")
        return Engine(Arithmetic(replace(INFO, name=f"inner-{spec.name}")))


def run(use: Callable[[ModelRegistry], Any], loader: Loader, **options: Any) -> Any:
    async def main() -> Any:
        registry = ModelRegistry(SPECS, loader, **options)
        try:
            return await use(registry)
        finally:
            await registry.close()

    return asyncio.run(main())


async def touch(registry: ModelRegistry, name: str) -> str:
    async with registry.lease(registry.resolve(name), 10) as model:
        return model.name


def test_a_model_is_loaded_once_for_all_who_wait() -> None:
    async def use(registry: ModelRegistry) -> list[str]:
        return await asyncio.gather(*(touch(registry, "b") for _ in range(5)))

    loader = Loader()
    assert run(use, loader) == ["b"] * 5
    assert loader.loads == ["b"]


def test_the_least_recently_used_idle_model_leaves() -> None:
    async def use(registry: ModelRegistry) -> tuple[list[str], list[str]]:
        for name in "abac":
            await touch(registry, name)
        return sorted(model.name for model in registry.loaded), []

    loader = Loader()
    kept, _ = run(use, loader, memory=9000)
    assert kept == ["a", "c"]
    assert loader.loads == ["a", "b", "c"]


def test_room_is_made_before_a_model_is_loaded(tmp_path: Path) -> None:
    async def use(registry: ModelRegistry) -> None:
        await touch(registry, "a")
        await touch(registry, "b")
        async with registry.lease(ModelSpec("d", str(tmp_path)), 10):
            assert seen == [["b"]]
        assert registry.ready

    class Watching(Loader):
        def __call__(self, spec: ModelSpec) -> Engine:
            if spec.name == "d":
                seen.append([model.name for model in registries[0].loaded])
            return super().__call__(spec)

    async def noted(registry: ModelRegistry) -> None:
        registries.append(registry)
        await use(registry)

    (tmp_path / "model.safetensors").write_bytes(bytes(4000))
    (tmp_path / "tokenizer.json").write_bytes(bytes(9000))
    seen: list[list[str]] = []
    registries: list[ModelRegistry] = []
    run(noted, Watching(), memory=9000)
    assert (file_bytes(str(tmp_path)), file_bytes("no/folder"), file_bytes(None)) == (4000, 0, 0)


def test_a_model_in_use_stays_and_the_next_is_told_to_come_back() -> None:
    async def use(registry: ModelRegistry) -> None:
        async with registry.lease(SPECS[0], 10):
            with pytest.raises(OverloadedError):
                await touch(registry, "b")
        assert await touch(registry, "b") == "b"

    run(use, Loader(), memory=5000)


def test_a_model_that_cannot_be_loaded_is_tried_again_next_time() -> None:
    async def use(registry: ModelRegistry) -> None:
        loader.broken = "a"
        with pytest.raises(CheckpointError):
            await touch(registry, "a")
        assert not registry.ready
        loader.broken = ""
        assert await touch(registry, "a") == "a"
        assert registry.ready

    loader = Loader()
    run(use, loader)


def test_who_cannot_wait_for_loading_gives_up_and_the_loading_goes_on() -> None:
    async def use(registry: ModelRegistry) -> None:
        with pytest.raises(DeadlineExceededError, match="still being loaded"):
            async with registry.lease(SPECS[0], 0):
                pass
        assert await touch(registry, "a") == "a"

    loader = Loader()
    run(use, loader)
    assert loader.loads == ["a"]


def test_names() -> None:
    registry = ModelRegistry((ModelSpec("a", "x"), ModelSpec("clef-flash", "y"), ModelSpec("", "z")), Loader())
    assert registry.resolve("clef-flash") == ModelSpec("clef-flash", "y")
    assert registry.resolve("clef") == registry.default
    assert registry.resolve("gpt-6-luna", decisions=True) == registry.default
    assert registry.resolve("z") == ModelSpec("", "z")
    for name in ("jev", "Jev-latest", "gpt-6-luna", "x/y", "A"):
        with pytest.raises(ModelNotFoundError, match="a, clef-flash, z"):
            registry.resolve(name)
    asyncio.run(registry.close())


def test_weights_are_counted_in_their_dtype() -> None:
    assert weight_bytes(INFO) == 4000
    assert weight_bytes(replace(INFO, dtype="bfloat16")) == 2000
    assert weight_bytes(replace(INFO, dtype="int8 (dynamic)")) == 1000
