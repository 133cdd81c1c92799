"""What a Qwen3.5 decoder carries from one token to the next, taken from and given to transformers' cache.

Per layer: keys and values of every token (full attention), or the recurrent and convolution states after the last token
(Gated DeltaNet). The one place that knows the insides of transformers' cache objects.

Shapes: B records, h key heads, n tokens, d head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache as remember
from typing import Any

from torch import Tensor, cat


@dataclass(frozen=True, slots=True)
class LayerState:
    """One layer's share of a snapshot; never changed once made.

    Attributes:
        recurrent: whether the tensors are (convolution state, recurrent state) ``[1, ...]`` after the last token, or
            (keys, values) ``[1, h, n, d]`` of the snapshot's own tokens.
        tensors: the two tensors, with storage of their own.
    """

    recurrent: bool
    tensors: tuple[Tensor, Tensor]

    @property
    def bytes(self) -> int:
        """Bytes of both tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


def capture(cache: Any, start: int, end: int) -> tuple[LayerState, ...]:
    """Copy what the cache of one record holds of positions ``[start, end)``, where `end` is where it stands."""
    return tuple(_capture_layer(layer, start, end) for layer in cache.layers)


def restore(config: Any, pieces: Sequence[Sequence[LayerState]], records: int = 1) -> Any:
    """A new cache that continues from consecutive snapshots, for `records` records; shares no storage with them.

    Args:
        config: text configuration of the decoder.
        pieces: snapshots from the beginning of the sequence on; none gives an empty cache.
        records: how many records continue from there.
    """
    from transformers import DynamicCache

    cache = DynamicCache(config=config)
    for index, states in enumerate(zip(*pieces, strict=True)):
        if states[0].recurrent:
            convolution, recurrent = (_repeat(tensor, records) for tensor in states[-1].tensors)
            cache.update_conv_state(convolution, index)
            cache.update_recurrent_state(recurrent, index)
        else:
            keys, values = (
                _repeat(_joined([state.tensors[i] for state in states]), records) for i in range(len(states[0].tensors))
            )
            cache.update(keys, values, index)  # concatenates, and so copies
    return cache


def recurrent_states(cache: Any, layer: int) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """A Gated DeltaNet layer's convolution state ``[B, D, T]`` and recurrent state ``[B, H, d, e]``; None at first."""
    states = cache.layers[layer]
    known = states.has_previous_state
    if not (known[0] if isinstance(known, dict) else known):
        return None, None
    return _first(states.conv_states), _first(states.recurrent_states)


def set_recurrent_states(cache: Any, layer: int, convolution: Tensor, recurrent: Tensor) -> None:
    """Move a Gated DeltaNet layer's states on."""
    cache.update_conv_state(convolution, layer)
    cache.update_recurrent_state(recurrent, layer)


def cache_argument(decoder: Any) -> str:
    """Name of a decoder's cache argument, which transformers renamed."""
    return _cache_argument(type(decoder).forward)


@remember
def _cache_argument(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(inspect.unwrap(forward)).parameters else "past_key_values"


def _capture_layer(layer: Any, start: int, end: int) -> LayerState:
    if hasattr(layer, "recurrent_states"):
        return LayerState(True, (_first(layer.conv_states).clone(), _first(layer.recurrent_states).clone()))
    return LayerState(False, (layer.keys[:, :, start:end].clone(), layer.values[:, :, start:end].clone()))


def _first(states: Any) -> Tensor:
    tensor: Tensor = states[0] if isinstance(states, dict) else states
    return tensor


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else cat(tensors, dim=2)


def _repeat(tensor: Tensor, records: int) -> Tensor:
    return tensor.expand(records, *tensor.shape[1:])
