"""The parts of transformers' Qwen3.5 decoder that Dicast computes itself, put in place layer by layer.

The classes of transformers stay as they are; only the layers of one decoder get another `forward`. Parts of an unknown
make (another transformers version, kernels of their own) keep their own code, and `dicast info` says so.

Shapes: B records, L tokens, X width.
"""

from __future__ import annotations

import logging
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from dicast.models import delta

logger = logging.getLogger(__name__)


def install(decoder: Any) -> bool:
    """Run the Gated DeltaNet layers and the norms of a decoder from here.

    Returns:
        Whether the Gated DeltaNet layers do; where there are fused kernels, these still run.
    """
    for norm in decoder.modules():
        if _is_zero_centred(norm):
            norm.forward = MethodType(norm_forward, norm)
    layers = [layer.linear_attn for layer in decoder.layers if hasattr(layer, "linear_attn")]
    if not all(delta.is_known(layer) for layer in layers):
        logger.warning("the Gated DeltaNet layers of this transformers version are unknown; its own code runs them")
        return False
    for layer in layers:
        layer.forward = MethodType(delta.layer_forward, layer)
    return True


def norm_forward(norm: Any, x: Tensor) -> Tensor:
    """Root mean square norm of ``x [..., X]`` times ``1 + weight``, in float64 for float64 input, else in float32."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square()
    scale = torch.rsqrt(square / wide.shape[-1] + norm.eps)
    normed: Tensor = wide * scale * (1 + norm.weight.to(wide))
    return normed.to(x)


def _is_zero_centred(module: nn.Module) -> bool:
    return type(module).__name__ == "Qwen3_5RMSNorm" and hasattr(module, "eps") and hasattr(module, "weight")
