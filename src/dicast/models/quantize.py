"""Weight-only quantisation of a Clef backbone with torchao: less memory, at a drift that `dicast bench --drift` shows.

Only the large matrices of the decoder layers are quantised; activations and all arithmetic keep the backbone's dtype.
What is small or sensitive is kept as it is: norms, the joint schema head, both embeddings (`lm_head` rows are read as
vectors), the gates `in_proj_a` and `in_proj_b`, the convolutions, the decay parameters and the vision tower.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from dicast.errors import ConfigError, MissingDependencyError
from dicast.models.qwen import QwenBackbone

Bits: TypeAlias = Literal["int8", "int4"]

QUANTISED = frozenset(
    {
        "q_proj", "k_proj", "v_proj", "o_proj",
        "in_proj_qkv", "in_proj_z", "out_proj",
        "gate_proj", "up_proj", "down_proj",
    }
)  # fmt: skip
"""Last part of the names of the matrices that are quantised."""
GROUP = 128
"""Input columns that share one 4-bit scale; a matrix whose width is no multiple of it is kept as it is."""


def quantise(backbone: QwenBackbone, bits: Bits) -> list[str]:
    """Quantise a backbone's matrices in place.

    Args:
        backbone: in evaluation mode.
        bits: ``int8`` (one scale per output row) or ``int4`` (one scale per row and 128 columns). torchao has no packed
            4-bit kernel for a CPU: there the values have 4 bits but take a byte each, which shows the drift and saves
            no more memory than ``int8``.

    Returns:
        Names of the matrices that were quantised.

    Raises:
        ConfigError: `bits` is unknown.
        MissingDependencyError: torchao is not installed, or can't quantise to this many bits on this device.
    """
    if bits not in ("int8", "int4"):
        raise ConfigError(f"quantize must be int8 or int4, not {bits!r}", field="quantize", seen=bits)
    try:
        from torchao.quantization import quantize_
    except ImportError as error:
        raise MissingDependencyError(f"quantisation needs torchao (pip install torchao): {error}") from error
    chosen: list[str] = []

    def wanted(module: nn.Module, name: str) -> bool:
        if not isinstance(module, nn.Linear) or name.rpartition(".")[2] not in QUANTISED:
            return False
        if bits == "int4" and module.in_features % GROUP:
            return False
        chosen.append(name)
        return True

    try:
        quantize_(backbone.text.layers, _config(bits, backbone.device.type), filter_fn=wanted)
    except (ImportError, NotImplementedError, AssertionError, ValueError) as error:
        raise MissingDependencyError(
            f"torchao can't quantise to {bits} on {backbone.device.type} here: {error}"
        ) from error
    return chosen


def _config(bits: Bits, device: str) -> Any:
    from torchao.quantization import Int4WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup

    if bits == "int8":
        return Int8WeightOnlyConfig()
    if device == "cuda":
        return Int4WeightOnlyConfig(group_size=GROUP, int4_packing_format="tile_packed_to_4d")
    four_bits: torch.dtype = torch.int4  # type: ignore[attr-defined]
    return IntxWeightOnlyConfig(weight_dtype=four_bits, granularity=PerGroup(GROUP))
