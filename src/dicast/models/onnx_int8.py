"""Int8 in ONNX graphs: smaller files, and integer products that cannot saturate. Knows graphs, knows no model.

`stored_int8` rewrites a float32 graph: a large matrix becomes int8 values and one float32 scale per output column,
multiplied out by Cast and Mul when the graph is loaded (runtimes fold constants). Tables that are only looked up stay
int8 in memory.

`roundings` chooses, from samples, how the inputs x of a graph's products are rounded: x / d = s (q - z) with q in
0..255 and *one fixed* step s and zero z per tensor. A token's result therefore does not depend on its company, and
rounding costs one pass. Matrices are W d = s_w v with v in -63..63 and one s_w per output column.

* A few channels of a transformer's activations are far larger than the others and would take all the resolution, so
  channel c is divided by d_c = max |x_c|^e / max |w_c|^(1 - e) (SmoothQuant, Xiao et al. 2023), with the e
  that makes the rounded product nearest to the exact one.
* A few values in a million are clipped: they would double the step of all others.

Why it cannot saturate: on processors with AVX2 and without VNNI, runtimes add two products of an unsigned and a signed
byte in 16 bits. The largest sum is 2 * 255 * 63 = 32,130, below 32,767; with 8-bit weights it would be 64,770.
Accumulation is in 32 bits. All operators are standard ONNX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array: TypeAlias = np.ndarray[Any, Any]

QUANTISE_FROM: Final = 4096
"""Matrices with fewer elements stay float32."""
STORED_LEVELS: Final = 127
PRODUCT_LEVELS: Final = 63
"""7-bit weights; see above."""
LEVELS: Final = 255
"""Steps of a rounded activation."""
EXPONENTS: Final = (0.0, 0.3, 0.5, 0.65, 0.8, 1.0)
"""Which e are tried, see above; with 0 nothing is divided."""
ROWS: Final = 384
"""About how many rows the choice of e looks at."""
CLIPPED: Final = 3e-6
"""Share of the values at either end that may be beyond the range."""
SMALLEST: Final = 1e-5


def stored_int8(model: onnx.ModelProto, *, least: int = QUANTISE_FROM) -> onnx.ModelProto:
    """Replace float32 matrices of at least `least` elements by int8 values and scales."""
    gathered = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    initializers, nodes = [], []
    tables: dict[str, str] = {}
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.ndim != 2 or values.size < least:
            initializers.append(tensor)
            continue
        name = tensor.name
        axis = 0 if name in gathered or name in _transposed(model) else 1
        initializers += _pair(name, *int8_rows(values, axis))
        if name in gathered:
            tables[name] = name
        else:
            nodes += [
                helper.make_node("Cast", [f"{name}.int8"], [f"{name}.cast"], to=TensorProto.FLOAT),
                helper.make_node("Mul", [f"{name}.cast", f"{name}.scale"], [name]),
            ]
    for node in model.graph.node:
        lookup = node.op_type == "Gather" and node.input[0] in tables
        nodes += _looked_up(node) if lookup else [node]
    return _rebuilt(model, nodes, initializers)


@dataclass(frozen=True, slots=True)
class Rounding:
    """How rows x are rounded before a product: ``x / divisor = step (q - zero)`` with q in 0..255.

    Attributes:
        step: float32 scalar.
        zero: uint8 scalar.
        divisor: ``[H]`` float32 by which channels are divided first; None: by nothing.
    """

    step: np.float32
    zero: np.uint8
    divisor: Array | None


def roundings(
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    samples: Sequence[Mapping[str, Array]],
) -> dict[str, Rounding]:
    """Choose roundings for the inputs of products from what they are on samples. The same samples, the same result.

    Args:
        model: a float32 graph that computes the inputs.
        inputs: per tensor of the graph ``[..., H]`` the matrix ``[H, outputs]`` by which it is multiplied.
        samples: typical inputs of the graph, without padding; the first has one number per row of every tensor.
    """
    if not inputs:
        return {}
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # sums in the same order everywhere
    session = onnxruntime.InferenceSession(watched.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def seen() -> Iterator[tuple[str, Array]]:
        for sample in samples:
            for name, values in zip(inputs, session.run(None, dict(sample)), strict=True):
                yield name, values.reshape(-1, values.shape[-1])

    largest: dict[str, Array] = {}
    counts = dict.fromkeys(inputs, 0)
    rows: dict[str, list[Array]] = {name: [] for name in inputs}
    every = max(1, sum(next(iter(sample.values())).size for sample in samples) // ROWS)
    for name, values in seen():
        found = np.abs(values).max(axis=0)
        largest[name] = np.maximum(largest.get(name, found), found)
        rows[name].append(values[-counts[name] % every :: every].copy())
        counts[name] += len(values)
    divisors = {
        name: _best_divisor(np.concatenate(rows.pop(name)), matrix, largest[name]) for name, matrix in inputs.items()
    }
    clipped = {name: CLIPPED * counts[name] * len(matrix) for name, matrix in inputs.items()}
    ends = {name: (_Largest(count), _Largest(count)) for name, count in clipped.items()}
    for name, values in seen():
        divided = _divided(values, divisors[name])
        ends[name][0].add(-divided)
        ends[name][1].add(divided)
    return {name: _rounding(-low.least, high.least, divisors[name]) for name, (low, high) in ends.items()}


class _Largest:
    """The largest of many values; `least` is the smallest of them."""

    def __init__(self, count: float) -> None:
        self._count = max(1, int(count))
        self._held: Array = np.zeros(self._count, np.float32)

    def add(self, values: Array) -> None:
        """See more values; those below zero do not count."""
        both = np.concatenate([self._held, values[values > self._held[0]]])
        self._held = np.partition(both, len(both) - self._count)[len(both) - self._count :]

    @property
    def least(self) -> float:
        """The smallest of the largest."""
        return float(self._held[0])


def _best_divisor(rows: Array, matrix: Array, largest: Array) -> Array | None:
    """The divisor whose rounded product of some rows is nearest to the exact one."""
    exact = rows @ matrix
    clipped = int(CLIPPED * rows.size)

    def error(divisor: Array | None) -> float:
        divided = _divided(rows, divisor)
        ends = np.partition(divided, (clipped, divided.size - 1 - clipped), axis=None)
        rounding = _rounding(float(ends[clipped]), float(ends[-1 - clipped]), divisor)
        whole = np.clip(np.rint(divided / rounding.step) + np.float32(rounding.zero), 0, LEVELS)
        values, scale = int8_rows(matrix if divisor is None else matrix * divisor[:, None], 1, PRODUCT_LEVELS)
        made = ((whole - np.float32(rounding.zero)) * rounding.step) @ (values * scale)
        return float(np.square(made - exact).mean())

    return min((_divisor(largest, matrix, exponent) for exponent in EXPONENTS), key=error)


def _divisor(largest: Array, matrix: Array, exponent: float) -> Array | None:
    """What divides each channel: its size to the power of `exponent`, its weights' size to the rest."""
    if exponent == 0:
        return None
    weights = np.maximum(np.abs(matrix).max(axis=1), SMALLEST)
    divisor: Array = (np.maximum(largest, SMALLEST) ** exponent / weights ** (1 - exponent)).astype(np.float32)
    return divisor


def _divided(values: Array, divisor: Array | None) -> Array:
    return values if divisor is None else values / divisor


def _rounding(low: float, high: float, divisor: Array | None) -> Rounding:
    step = max(high - low, SMALLEST) / LEVELS
    return Rounding(np.float32(step), np.uint8(np.clip(np.rint(-low / step), 0, LEVELS)), divisor)


def int8_rows(values: Array, axis: int, levels: int = STORED_LEVELS) -> tuple[Array, Array]:
    """Symmetric int8 values within +-`levels` and float32 scales; one scale for each index of `axis`."""
    largest = np.abs(values).max(axis=1 - axis, keepdims=True)
    scale = np.where(largest > 0, largest / levels, 1.0).astype(np.float32)
    return np.clip(np.rint(values / scale), -levels, levels).astype(np.int8), scale


def _pair(name: str, whole: Array, scale: Array) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(whole, f"{name}.int8"), numpy_helper.from_array(scale, f"{name}.scale")]


def _transposed(model: onnx.ModelProto) -> set[str]:
    """Matrices that a Gemm uses transposed, whose output rows are their first axis."""
    return {
        node.input[1]
        for node in model.graph.node
        if node.op_type == "Gemm" and any(item.name == "transB" and item.i for item in node.attribute)
    }


def _looked_up(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Look up int8 rows and their scales, then multiply."""
    name, out = node.input[0], node.output[0]
    return [
        helper.make_node("Gather", [f"{name}.int8", node.input[1]], [f"{out}.int8"], axis=0),
        helper.make_node("Cast", [f"{out}.int8"], [f"{out}.cast"], to=TensorProto.FLOAT),
        helper.make_node("Gather", [f"{name}.scale", node.input[1]], [f"{out}.scale"], axis=0),
        helper.make_node("Mul", [f"{out}.cast", f"{out}.scale"], [out]),
    ]


def _rebuilt(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto]
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, model.graph.name, list(model.graph.input), list(model.graph.output), initializers)
    rebuilt = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    onnx.checker.check_model(rebuilt)
    return rebuilt
