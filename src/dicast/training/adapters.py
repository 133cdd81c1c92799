"""Low-rank adapters on the linear maps of a decoder: which maps, how they are put in, what they add when merged.

Target names are found in the module, not written down, so that the DeltaNet maps (in_proj_qkv, in_proj_z, in_proj_b,
in_proj_a, out_proj) are adapted like those of attention and feed-forward. Only maps inside decoder layers are found:
the vision tower and the output embedding lie elsewhere. Knows peft; knows nothing of questions or files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dicast.errors import ConfigError, MissingDependencyError
from dicast.training.config import LoraConfig

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def find_targets(decoder: nn.Module, config: LoraConfig) -> list[str]:
    """Full names of the linear maps to adapt, in the module's order.

    Args:
        decoder: a text decoder with its layers under `layers`.
        config: `targets` narrows by last name, `last_layers` by position.

    Raises:
        ConfigError: nothing is left to adapt; names the maps that exist.
    """
    maps = [
        (int(found.group(1)), name)
        for name, module in decoder.named_modules()
        if isinstance(module, nn.Linear) and (found := LAYER.search(name))
    ]
    count = max((layer for layer, _ in maps), default=-1) + 1
    if config.last_layers > count:
        raise ConfigError(
            f"the decoder has {count} layers", field="lora.last_layers", limit=count, seen=config.last_layers
        )
    first = count - config.last_layers if config.last_layers else 0
    known = sorted({name.rsplit(".", 1)[-1] for _, name in maps})
    unknown = sorted(set(config.targets) - set(known))
    if unknown or not maps:
        raise ConfigError(
            f"no linear map is called {', '.join(unknown) or 'anything'} (known: {', '.join(known)})",
            field="lora.targets",
        )
    return [
        name
        for layer, name in maps
        if layer >= first and (not config.targets or name.rsplit(".", 1)[-1] in config.targets)
    ]


def add_adapters(decoder: nn.Module, config: LoraConfig) -> list[str]:
    """Put adapters on the decoder's linear maps, in place; they are float32 and learn, everything else is frozen.

    Returns:
        The names of the adapted maps.

    Raises:
        MissingDependencyError: peft is not installed.
        ConfigError: nothing to adapt.
    """
    try:
        import peft
    except ImportError:
        raise MissingDependencyError("adapters need peft: pip install 'dicast[torch]'") from None
    targets = find_targets(decoder, config)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha or 2 * config.rank,  # type: ignore[arg-type]  # any number works
        lora_dropout=config.dropout,
        use_dora=config.dora,
        use_rslora=config.rslora,
        target_modules=targets,
        bias="none",
    )
    peft.inject_adapter_in_model(settings, decoder)
    for name, parameter in decoder.named_parameters():
        adapter = ".lora_" in name
        parameter.requires_grad_(adapter)
        if adapter:
            parameter.data = parameter.data.float()
    return targets


def merged_weights(decoder: nn.Module, base: Callable[[str], Tensor] | None = None) -> dict[str, Tensor]:
    """Weights of the adapted maps with their adapters merged in, on the CPU, in the dtypes of the weights they change.

    Args:
        decoder: the decoder with adapters.
        base: gives the full-precision weight of a name to merge into; None takes the decoder's own weights. Needed when
            those are quantised: adapters are then merged into the weights that were quantised, not into 4-bit copies.

    Returns:
        "layers.0.mlp.up_proj.weight" and so on -> merged weight.
    """
    names = {f"{name}.weight": module for name, module in adapted_maps(decoder).items()}
    return {name: _merged(module, None if base is None else base(name)) for name, module in names.items()}


def adapted_maps(decoder: nn.Module) -> dict[str, Any]:
    """Name -> peft layer of every adapted map."""
    return {name: module for name, module in decoder.named_modules() if hasattr(module, "lora_A") and module.lora_A}


def _merged(layer: Any, base: Tensor | None) -> Tensor:
    """W + s B A, or with DoRA m (W + s B A) / |W + s B A| per output row (Hu 2021; Liu 2024); computed in float32."""
    stored: Tensor = layer.base_layer.weight if base is None else base
    (name,) = layer.active_adapters
    down, up = _dense(layer.lora_A[name].weight), _dense(layer.lora_B[name].weight)
    merged: Tensor = _dense(stored) + layer.scaling[name] * (up @ down)
    if layer.use_dora.get(name, False):
        magnitude = _dense(layer.lora_magnitude_vector[name].weight)
        merged = magnitude[:, None] * merged / torch.linalg.vector_norm(merged, dim=1, keepdim=True)
    return merged.to(stored.dtype)


def _dense(value: Tensor) -> Tensor:
    whole: Any = value.full_tensor() if hasattr(value, "full_tensor") else value
    dense: Tensor = whole.detach().float().cpu()
    return dense
