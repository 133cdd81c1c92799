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
processor many times slower.

Shapes: B records, L tokens, X input width, h key heads, H value heads (r = H / h share a key head), d and e sizes of
keys and values, n chunks of C tokens, D = 2 h d + H e channels of the convolution.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache as remember
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dicast.models.qwen_cache import recurrent_states, set_recurrent_states

CHUNK = 64
"""Most tokens of a chunk: larger ones cost more multiplications, smaller ones more steps."""
SEGMENT = 512
"""Tokens, over all records, that go through a layer at once, so that what lies between its steps stays in the cache."""
FORGOTTEN = -40.0
"""Logarithm of the smallest decay that counts: 4e-18."""
EPSILON = 1e-6
NEEDED = (
    *("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "conv1d", "A_log", "dt_bias", "norm", "out_proj"),
    *("key_dim", "value_dim", "head_k_dim", "head_v_dim", "activation", "layer_idx"),
)
"""What a layer of transformers must have to be run from here."""


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, L, H, e]`` and the state ``[B, H, d, e]`` after the last token, in the dtype of `value`.

    Args:
        query, key: ``[B, L, h, d]``, of any length: they are normalised here.
        value: ``[B, L, H, e]``.
        decay: ``[B, L, H]``, the logarithms g, at most 0.
        beta: ``[B, L, H]``, strengths of the updates; 0 leaves the state as it is.
        state: ``[B, H, d, e]`` before the first token; None is zero.
    """
    records, tokens, heads, width = value.shape
    key_heads, size = key.shape[2:]
    count = math.ceil(tokens / CHUNK)
    length = math.ceil(tokens / count)
    grid = (count, records, key_heads, heads // key_heads)
    both = torch.stack((unit(key), unit(query) * size**-0.5), dim=2)  # [B, L, 2, h, d]
    both, value, decay, beta = (_padded(x, count * length - tokens) for x in (both, value, decay, beta))

    both = both.view(records, count, length, 2, key_heads, size).permute(1, 0, 4, 3, 2, 5)
    both = both.reshape(*grid[:3], 2 * length, size)  # keys, then queries
    value = value.view(records, count, length, heads, width).permute(1, 0, 3, 2, 4)  # [n, B, H, C, e]
    passed = decay.view(records, count, length, heads).permute(1, 0, 3, 2).cumsum(-1)  # [n, B, H, C]
    beta = beta.view(records, count, length, heads).permute(1, 0, 3, 2)

    keys = both[..., :length, :]
    products = (both @ keys.transpose(-1, -2)).view(*grid[:3], 1, 2, length, length)
    products = products * _pairwise(passed).view(*grid, 1, length, length)
    system, attention = products.view(count, records, heads, 2, length, length).unbind(3)
    inverse = torch.linalg.solve_triangular(
        system * beta[..., None], torch.eye(length, dtype=value.dtype, device=value.device).expand_as(system),
        upper=False, unitriangular=True,
    )  # fmt: skip
    since = _seen(passed).exp()
    rest = _seen(passed[..., -1:] - passed).exp()
    outputs, state = _walk(
        both=both[:, :, :, None].expand(*grid, *both.shape[3:]).flatten(1, 3),
        update=(inverse @ (value * beta[..., None])).flatten(1, 2),
        correction=(inverse * (beta * since)[..., None, :]).flatten(1, 2),
        write=(keys.transpose(-1, -2)[:, :, :, None] * rest.view(*grid, 1, length)).flatten(1, 3),
        since=since.reshape(count, records * heads, length, 1),
        attention=attention.flatten(1, 2),
        state=value.new_zeros(records * heads, size, width) if state is None else state.to(value).flatten(0, 1),
    )
    outputs = outputs.view(count, records, heads, length, width).permute(1, 0, 3, 2, 4).flatten(1, 2)
    return outputs[:, :tokens], state.view(records, heads, size, width)


def _walk(
    *, both: Tensor, update: Tensor, correction: Tensor, write: Tensor, since: Tensor, attention: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """From chunk to chunk: outputs ``[n, B H, C, e]`` and the last state ``[B H, d, e]``; all arguments are per chunk.

    Args:
        both: keys and queries ``[n, B H, 2 C, d]``.
        update: what W would be with a state of zero, ``[n, B H, C, e]``.
        correction: ``[n, B H, C, C]`` takes K S to what it changes in W.
        write: decayed keys ``[n, B H, d, C]``.
        since: ``[n, B H, C, 1]`` exp(G).
        attention: ``[n, B H, C, C]`` D * Q K^T.
        state: ``[B H, d, e]``.
    """
    length = update.shape[2]
    read, written = [], []
    for place in range(len(update)):
        seen = torch.bmm(both[place], state)
        values = torch.baddbmm(update[place], correction[place], seen[:, :length], alpha=-1)
        state = torch.baddbmm(state * since[place, :, -1:], write[place], values)
        read.append(seen[:, length:])
        written.append(values)
    old = (torch.stack(read) * since).flatten(0, 1)
    outputs = torch.baddbmm(old, attention.flatten(0, 1), torch.stack(written).flatten(0, 1))
    return outputs.view(update.shape), state


def convolve(x: Tensor, weight: Tensor, before: Tensor | None) -> Tensor:
    """Causal convolution of every channel with its own taps, and SiLU: ``[B, L, D]``.

    Args:
        x: ``[B, L, D]``.
        weight: ``[D, 1, T]``, the last tap for the token itself.
        before: ``[B, T - 1, D]`` what stood before; None is zero.
    """
    taps = weight[:, 0].to(x).t()
    tokens, reach = x.shape[1], len(taps) - 1
    x = F.pad(x, (0, 0, reach, 0)) if before is None else torch.cat((before.to(x), x), dim=1)
    mixed = x[:, reach:] * taps[reach]
    for tap in range(reach):
        mixed.addcmul_(x[:, tap : tap + tokens], taps[tap])
    return F.silu(mixed)


def unit(x: Tensor) -> Tensor:
    """Rows of length 1."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPSILON)


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


def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm of the last axis, times `weight`, times SiLU of the gate."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight.to(x) * F.silu(gate)


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
    tail, state = recurrent_states(past, layer.layer_idx) if past is not None else (None, None)
    if tail is not None:
        tail = tail.transpose(1, 2)
    outputs = []
    records, tokens, _ = hidden_states.shape
    step = segment_length(records, tokens)
    for start in range(0, tokens, step):
        output, tail, state = _segment(layer, hidden_states[:, start : start + step], tail, state)
        outputs.append(output)
    if past is not None:
        assert tail is not None, "there is at least one part"
        assert state is not None
        set_recurrent_states(past, layer.layer_idx, tail.transpose(1, 2), state)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def segment_length(records: int, tokens: int) -> int:
    """Tokens of each record that go through a layer at once: whole chunks, in parts of like length."""
    most = max(1, SEGMENT // (records * CHUNK)) * CHUNK
    parts = math.ceil(tokens / most)
    return min(tokens, math.ceil(tokens / (parts * CHUNK)) * CHUNK)


def _segment(layer: Any, hidden: Tensor, tail: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """One part of the tokens: outputs ``[B, L, X]``, the last T inputs ``[B, T, D]`` of the convolution, the state."""
    kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    taps = layer.conv1d.kernel_size[0]
    mixed = layer.in_proj_qkv(hidden)
    gate, strength, step = layer.in_proj_z(hidden), layer.in_proj_b(hidden), layer.in_proj_a(hidden)
    if tail is None:
        tail = mixed.new_zeros(mixed.shape[0], taps, mixed.shape[2])
    with torch.autocast(hidden.device.type, enabled=False):
        convolved = convolve(mixed.to(kind), layer.conv1d.weight, tail[:, 1:])
        query, key, value = torch.tensor_split(convolved, (layer.key_dim, 2 * layer.key_dim), dim=-1)
        outputs, state = gated_delta_rule(
            query.reshape(*query.shape[:2], -1, layer.head_k_dim),
            key.reshape(*key.shape[:2], -1, layer.head_k_dim),
            value.reshape(*value.shape[:2], -1, layer.head_v_dim),
            -layer.A_log.to(kind).exp() * F.softplus(step.to(kind) + layer.dt_bias.to(kind)),
            strength.to(kind).sigmoid(),
            state,
        )
        gate = gate.to(kind).view(outputs.shape)
        outputs = gated_norm(outputs, gate, layer.norm.weight, layer.norm.variance_epsilon)
        outputs = outputs.flatten(2).to(hidden.dtype)
    return layer.out_proj(outputs), torch.cat((tail, mixed[:, -taps:]), dim=1)[:, -taps:], state


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
