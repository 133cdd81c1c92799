"""Gated DeltaNet in few large multiplications: for processors, and for any device without fused kernels.

Per value head a state S ``[d, e]`` is carried from token to token (Yang et al., 2024, "Gated Delta Networks"):

    S <- exp(g_t) S;    S <- S + k_t (beta_t (v_t - S^T k_t))^T;    o_t = S^T q_t

Tokens are taken in chunks of C. With G the running sum of g inside a chunk and D_ij = exp(G_i - G_j) for i >= j, the
corrected values W (rows beta_t (v_t - S^T k_t)) of a chunk that begins with state S solve a unit triangular system:

    (1 + A) W = beta (V - exp(G) K S),    A_ij = beta_i D_ij k_i.k_j for i > j
    O = exp(G) Q S + (D * Q K^T) W,       S <- exp(G_C) S + (exp(G_C - G) K)^T W

The systems of all chunks are inverted at once; what is left for the walk over the chunks is three multiplications each.
Products of keys and queries are computed once per key head, however many value heads share it.

Decays below `FORGOTTEN` count as zero. No result could show them, but numbers that small ("denormal" floats) make a
processor many times slower. For the same reason a processor is told to round such numbers to zero while it is here.

Shapes: B records, L tokens, X input width, h key heads, H value heads (r = H / h share a key head), d and e sizes of
keys and values, n chunks of C tokens, D = 2 h d + H e channels of the convolution.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache as remember
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dicast.models.qwen_cache import recurrent_states, set_recurrent_states

CHUNK = 32
"""Most tokens of a chunk: larger ones cost more multiplications, smaller ones more steps."""
STEP = 8
"""Chunks are as long as a multiple of this, so that their rows fill the processor's registers."""
SEGMENT = 4096
"""Tokens, over all records, that go through the rule at once: bounds its memory. Parts that fit the processor's cache
were no quicker."""
FORGOTTEN = -40.0
"""Logarithm of the smallest decay that counts: 4e-18."""
EPSILON = 1e-6
"""Added to the square of the length of keys and queries."""
HALF = 0.5
"""A name, so that no compiler computes with it beforehand what the processor's mode decides."""
NEEDED = (
    *("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "conv1d", "A_log", "dt_bias", "norm", "out_proj"),
    *("key_dim", "value_dim", "head_k_dim", "head_v_dim", "activation", "layer_idx"),
)
"""What a layer of transformers must have to be run from here."""


def gated_delta_rule(
    both: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, L, H, e]`` and the state ``[B, H, d, e]`` after the last token, in the dtype of `value`.

    Args:
        both: queries and keys ``[B, L, 2, h, d]``, of any length: they are normalised here.
        value: ``[B, L, H, e]``.
        decay: ``[B, L, H]``, the logarithms g, at most 0.
        beta: ``[B, L, H]``, strengths of the updates; 0 leaves the state as it is.
        state: ``[B, H, d, e]`` before the first token; None is zero.

    A number of tokens that :func:`padding` of it is 0 saves copies.
    """
    records, tokens, heads, width = value.shape
    key_heads, size = both.shape[3:]
    more = padding(tokens)
    both, value, decay, beta = (_padded(x, more) for x in (both, value, decay, beta))
    count = math.ceil(tokens / CHUNK)
    length = (tokens + more) // count
    grid = (count, records, key_heads, heads // key_heads)

    both = (both * _scales(both)).view(records, count, length, 2, key_heads, size)
    both = both.permute(1, 0, 4, 3, 2, 5).reshape(*grid[:3], 2 * length, size)  # queries, then keys
    value = value.view(records, count, length, heads, width).permute(1, 0, 3, 2, 4)  # [n, B, H, C, e]
    passed = decay.view(records, count, length, heads).permute(1, 0, 3, 2).cumsum(-1)  # [n, B, H, C]
    beta = beta.view(records, count, length, heads).permute(1, 0, 3, 2)

    products = (both @ both[..., length:, :].transpose(-1, -2)).view(*grid[:3], 1, 2, length, length)
    products = products * _pairwise(passed).view(*grid, 1, length, length)
    attention, system = products.view(count, records, heads, 2, length, length).unbind(3)
    unit = torch.eye(length, dtype=value.dtype, device=value.device).expand_as(system)
    inverse = torch.linalg.solve_triangular(system * beta[..., None], unit, upper=False, unitriangular=True)
    since = _seen(passed).exp()
    chunks, state = _walk(
        both=both[:, :, :, None].expand(*grid, *both.shape[3:]).flatten(1, 3),
        update=(inverse @ (value * beta[..., None])).flatten(1, 2),
        correction=(inverse * (beta * since)[..., None, :]).flatten(1, 2),
        attention=attention.flatten(1, 2),
        since=since.reshape(count, records * heads, length, 1),
        rest=_seen(passed[..., -1:] - passed).exp().reshape(count, records * heads, length, 1),
        state=value.new_zeros(records * heads, size, width) if state is None else state.to(value).flatten(0, 1).clone(),
    )
    outputs = torch.stack([chunk.view(records, heads, length, width).transpose(1, 2) for chunk in chunks], dim=1)
    return outputs.flatten(1, 2)[:, :tokens], state.view(records, heads, size, width)


def _walk(
    *, both: Tensor, update: Tensor, correction: Tensor, attention: Tensor, since: Tensor, rest: Tensor, state: Tensor
) -> tuple[list[Tensor], Tensor]:
    """From chunk to chunk: outputs ``[B H, C, e]`` of each and the last state ``[B H, d, e]``; all arguments are fresh.

    Args:
        both: queries and keys ``[n, B H, 2 C, d]``.
        update: what W would be with a state of zero, ``[n, B H, C, e]``.
        correction: ``[n, B H, C, C]`` takes K S to what it changes in W.
        attention: ``[n, B H, C, C]`` D * Q K^T.
        since: ``[n, B H, C, 1]`` exp(G).
        rest: ``[n, B H, C, 1]`` exp(G_C - G).
        state: ``[B H, d, e]``.
    """
    length = update.shape[2]
    outputs = []
    for place in range(len(update)):
        old = torch.bmm(both[place], state)
        values = _plus_product(update[place], correction[place], old[:, length:], alpha=-1)
        outputs.append(_plus_product(old[:, :length] * since[place], attention[place], values))
        keys = both[place, :, length:].transpose(1, 2)
        state = _plus_product(_times(state, since[place, :, -1:]), keys, values * rest[place])
    return outputs, state


def padding(tokens: int) -> int:
    """How many tokens are missing to fill chunks of equal length."""
    count = math.ceil(tokens / CHUNK)
    return count * math.ceil(tokens / count / STEP) * STEP - tokens


def convolve(x: Tensor, weight: Tensor, before: Tensor, more: int = 0) -> Tensor:
    """Causal convolution of every channel with its own taps, and SiLU: ``[B, L + more, D]``.

    Args:
        x: ``[B, L, D]``.
        weight: ``[D, 1, T]``, the last tap for the token itself.
        before: ``[B, T - 1, D]`` what stood before.
        more: tokens of padding behind, to be ignored.
    """
    taps = weight[:, 0].to(x).t()
    reach = len(taps) - 1
    tokens = x.shape[1] + more
    x = torch.cat((before.to(x), x, x.new_zeros(x.shape[0], more, x.shape[2])), dim=1)
    mixed = x[:, reach:] * taps[reach]
    for tap in range(reach):
        mixed.addcmul_(x[:, tap : tap + tokens], taps[tap])
    return _silu(mixed)


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm of the last axis, times `weight`, times SiLU of the gate."""
    square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square()
    normed = x * torch.rsqrt(square / x.shape[-1] + epsilon)
    return _times(_times(normed, weight.to(x)), F.silu(gate))


def _scales(both: Tensor) -> Tensor:
    """Factors ``[B, L, 2, h, 1]`` that bring keys to length 1 and queries to ``d ** -0.5``."""
    scale = torch.rsqrt(torch.linalg.vector_norm(both, dim=-1, keepdim=True).square() + EPSILON)
    return torch.stack((scale[:, :, 0] * both.shape[-1] ** -0.5, scale[:, :, 1]), dim=2)


def _padded(x: Tensor, count: int) -> Tensor:
    """``[B, L + count, ...]`` with zeros behind: tokens that change no state."""
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, count)) if count else x


def _seen(decay: Tensor) -> Tensor:
    return F.threshold(decay, FORGOTTEN, -math.inf)


def _pairwise(passed: Tensor) -> Tensor:
    """D of sums ``[..., C]``: ``[..., C, C]``, zero above the diagonal."""
    length = passed.shape[-1]
    future = torch.full((length, length), -math.inf, dtype=passed.dtype, device=passed.device).triu(1)
    return _seen((passed[..., :, None] - passed[..., None, :]).add_(future)).exp()


def _times(fresh: Tensor, factor: Tensor) -> Tensor:
    """Product, in the memory of the first where no gradients are kept: fresh memory costs as much as the arithmetic."""
    return fresh * factor if torch.is_grad_enabled() else fresh.mul_(factor)


def _plus_product(fresh: Tensor, a: Tensor, b: Tensor, alpha: float = 1) -> Tensor:
    """``fresh + alpha a @ b`` of batches of matrices, in the memory of the first where no gradients are kept."""
    if torch.is_grad_enabled():
        return torch.baddbmm(fresh, a, b, alpha=alpha)
    return fresh.baddbmm_(a, b, alpha=alpha)


def _silu(fresh: Tensor) -> Tensor:
    return F.silu(fresh, inplace=not torch.is_grad_enabled())


def layer_forward(
    layer: Any,
    hidden_states: Tensor,
    cache: Any = None,
    attention_mask: Tensor | None = None,
    cache_params: Any = None,
    **kwargs: Any,
) -> Tensor:
    """What a Gated DeltaNet layer of transformers computes: ``[B, L, X]`` to ``[B, L, X]``.

    Where fused kernels or packed sequences are asked for, transformers' own code runs.

    Args:
        layer: the layer, for its weights.
        hidden_states: ``[B, L, X]``.
        cache: transformers' cache; its convolution and recurrent states are moved on.
        attention_mask: ``[B, L]``, zero on padding.
        cache_params: what older versions call the cache.
        **kwargs: passed on to transformers' own code.
    """
    past = cache if cache is not None else cache_params
    if is_fused(hidden_states.device) or kwargs.get("cu_seq_lens_q") is not None or kwargs.get("seq_idx") is not None:
        name = "cache" if "cache" in _parameters(type(layer).forward) else "cache_params"
        own: Tensor = type(layer).forward(layer, hidden_states, attention_mask=attention_mask, **{name: past}, **kwargs)
        return own
    if attention_mask is not None:
        hidden_states = hidden_states * attention_mask[:, :, None].to(hidden_states.dtype)
    projections = (layer.in_proj_qkv, layer.in_proj_z, layer.in_proj_a, layer.in_proj_b)
    rows = [project(hidden_states) for project in projections]
    mixed = rows[0]
    tail, state = recurrent_states(past, layer.layer_idx) if past is not None else (None, None)
    records, tokens, channels = mixed.shape
    tail = mixed.new_zeros(records, layer.conv1d.kernel_size[0], channels) if tail is None else tail.transpose(1, 2)
    outputs = []
    length = segment_length(records, tokens)
    with torch.autocast(mixed.device.type, enabled=False), denormals_as_zero(mixed.device):
        for start in range(0, tokens, length):
            part = [x[:, start : start + length] for x in rows]
            output, tail, state = _segment(layer, part, tail, state)
            outputs.append(output)
    if past is not None:
        assert state is not None, "there is at least one part"
        set_recurrent_states(past, layer.layer_idx, tail.transpose(1, 2), state)
    result: Tensor = layer.out_proj(outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1))
    return result


def segment_length(records: int, tokens: int) -> int:
    """Tokens of each record that go through the rule at once: whole chunks, in parts of like length."""
    most = max(1, SEGMENT // (records * CHUNK)) * CHUNK
    parts = math.ceil(tokens / most)
    return min(tokens, math.ceil(tokens / (parts * CHUNK)) * CHUNK)


def _segment(layer: Any, rows: Sequence[Tensor], tail: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """One part of the tokens: outputs ``[B, L, H e]``, the last inputs of the convolution, the state.

    Args:
        layer: the layer, for its weights.
        rows: queries, keys and values before the convolution ``[B, L, D]``, the gate ``[B, L, H e]``, and two
            ``[B, L, H]`` from which decays and betas follow.
        tail: ``[B, T, D]`` inputs of the convolution before these.
        state: as in :func:`gated_delta_rule`.
    """
    mixed, gate, step, strength = rows
    kind = torch.float64 if mixed.dtype == torch.float64 else torch.float32
    records, tokens, _ = mixed.shape
    taps, more = tail.shape[1], padding(tokens)
    convolved = convolve(mixed.to(kind), layer.conv1d.weight, tail[:, 1:], more)
    both, value = torch.tensor_split(convolved, (2 * layer.key_dim,), dim=-1)
    decay = -layer.A_log.to(kind).exp() * F.softplus(step.to(kind) + layer.dt_bias.to(kind))
    outputs, state = gated_delta_rule(
        both.view(records, tokens + more, 2, -1, layer.head_k_dim),
        value.view(records, tokens + more, -1, layer.head_v_dim),
        _padded(decay, more),
        _padded(strength.to(kind).sigmoid(), more),
        state,
    )
    outputs = outputs[:, :tokens]
    wide = gate.to(kind).reshape(outputs.shape)
    outputs = gated_norm(outputs, wide, layer.norm.weight, layer.norm.variance_epsilon)
    return outputs.flatten(2).to(gate.dtype), torch.cat((tail, mixed[:, -taps:]), dim=1)[:, -taps:], state


@contextmanager
def denormals_as_zero(device: torch.device) -> Iterator[None]:
    """Round denormal floats to zero, in this thread only; leaves the thread as it was."""
    already = sys.float_info.min * HALF == 0
    if device.type != "cpu" or already:
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@remember
def is_fused(device: torch.device) -> bool:
    """Whether transformers has fused kernels for the layers on this device."""
    return device.type == "cuda" and find_spec("fla") is not None


def is_known(layer: Any) -> bool:
    """Whether a layer of transformers has what :func:`layer_forward` reads."""
    parameters = _parameters(type(layer).forward)
    return (
        all(hasattr(layer, name) for name in NEEDED)
        and layer.activation == "silu"
        and layer.conv1d.bias is None
        and ("cache" in parameters or "cache_params" in parameters)
    )


@remember
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(inspect.unwrap(function)).parameters)
