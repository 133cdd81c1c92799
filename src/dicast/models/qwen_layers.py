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
import torch.nn.functional as F
from torch import Tensor, nn

from dicast.models import delta

logger = logging.getLogger(__name__)


def install(decoder: Any) -> bool:
    """Run the Gated DeltaNet layers, feedforward layers and norms of a decoder from here.

    Returns:
        Whether the Gated DeltaNet layers do; where there are fused kernels, these still run.
    """
    for module in decoder.modules():
        if _is_zero_centred(module):
            module.forward = MethodType(norm_forward, module)
        elif _is_feedforward(module):
            module.forward = MethodType(feedforward_forward, module)
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


def feedforward_forward(layer: Any, x: Tensor) -> Tensor:
    """``down(silu(gate(x)) * up(x))``; in place without gradients, since fresh memory costs as much as arithmetic."""
    gate, up = layer.gate_proj(x), layer.up_proj(x)
    if torch.is_grad_enabled():
        out: Tensor = layer.down_proj(F.silu(gate) * up)
    else:
        out = layer.down_proj(F.silu(gate, inplace=True).mul_(up))
    return out


def _is_feedforward(module: Any) -> bool:
    return type(module).__name__ == "Qwen3_5MLP" and module.config.hidden_act == "silu"


def _is_zero_centred(module: nn.Module) -> bool:
    return type(module).__name__ == "Qwen3_5RMSNorm" and hasattr(module, "eps") and hasattr(module, "weight")
