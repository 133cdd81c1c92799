"""Int8 in ONNX graphs: smaller files, and integer products that cannot saturate. Knows graphs, knows no model.

Two rewrites of a float32 graph:

* `stored_int8`: a large matrix becomes int8 values and one float32 scale per output column, multiplied out by Cast and
  Mul when the graph is loaded (runtimes fold constants). Tables that are only looked up stay int8 in memory.
* `integer_products`: a product with such a matrix becomes MatMulInteger. Activations are rounded per row (token), so a
  token's result does not depend on its company: x = s_x (q - 128) with q in 1..255, w = s_w v with v in -63..63.
  A few channels of a transformer's activations are far larger than the others and would take all the resolution, so
  channel c of x is divided by sqrt(max |x_c| / max |w_c|) and the weights are multiplied by it (SmoothQuant, Xiao et
  al. 2023, with exponent 1/2); the maxima of x come from sample inputs.

Why it cannot saturate: processors without VNNI (AVX2, SSE) add two products of an unsigned and a signed byte in 16
bits. The largest sum is 2 * 255 * 63 = 32,130, below 32,767; with 8-bit weights it would be 64,770. Accumulation is in
32 bits. All operators are standard ONNX.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
OFFSET: Final = 128
"""Zero point of rounded activations."""


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


def integer_products(
    model: onnx.ModelProto, samples: Iterable[Mapping[str, Array]], *, least: int = QUANTISE_FROM
) -> onnx.ModelProto:
    """Replace products with constant float32 matrices of at least `least` elements by integer products.

    Args:
        model: the graph.
        samples: typical inputs, from which the largest activation of every channel is taken.
        least: smaller matrices stay float32.
    """
    matrices = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if len(tensor.dims) == 2 and int(np.prod(tensor.dims)) >= least
    }
    products = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in matrices]
    if not products:
        return model
    divisors = _divisors(model, products, matrices, samples)
    kept = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    rounded: set[str] = set()
    for node in model.graph.node:
        if node not in products:
            nodes.append(node)
            continue
        source, name = node.input[0], node.input[1]
        kept.pop(name, None)
        smoothed = matrices[name] * divisors[source][:, None]
        for tensor in _pair(name, *int8_rows(smoothed, 1, PRODUCT_LEVELS)):
            kept[tensor.name] = tensor
        if source not in rounded:
            rounded.add(source)
            kept[f"{source}.divisor"] = numpy_helper.from_array(1 / divisors[source], f"{source}.divisor")
            nodes += _rounded(source)
        nodes += _product(node, name, source)
    constants = {"int8.last": np.array([-1], np.int64), "int8.step": np.float32(1 / 127), "int8.tiny": np.float32(1e-8),
                 "int8.offset": np.float32(OFFSET), "int8.zero": np.uint8(OFFSET)}  # fmt: skip
    tensors = [*kept.values(), *(numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())]
    return _rebuilt(model, nodes, tensors)


def _divisors(
    model: onnx.ModelProto,
    products: list[onnx.NodeProto],
    matrices: Mapping[str, Array],
    samples: Iterable[Mapping[str, Array]],
) -> dict[str, Array]:
    """Per input of a product, by what each channel is divided."""
    sources = sorted({node.input[0] for node in products})
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    del seen.graph.output[:]
    seen.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sources)
    session = onnxruntime.InferenceSession(seen.SerializeToString(), providers=["CPUExecutionProvider"])
    largest: dict[str, Array] = {}
    for sample in samples:
        for name, values in zip(sources, session.run(None, dict(sample)), strict=True):
            found = np.abs(values).reshape(-1, values.shape[-1]).max(axis=0)
            largest[name] = np.maximum(largest.get(name, found), found)
    rows: dict[str, Array] = {}
    for node in products:
        found = np.abs(matrices[node.input[1]]).max(axis=1)
        rows[node.input[0]] = np.maximum(rows.get(node.input[0], found), found)
    return {
        name: np.sqrt(np.maximum(largest[name], 1e-5) / np.maximum(rows[name], 1e-5)).astype(np.float32)
        for name in sources
    }


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


def _rounded(x: str) -> list[onnx.NodeProto]:
    """Divide the channels of x, then round its rows: ``x.q`` uint8 and ``x.s`` scales ``[..., 1]``."""
    return [
        helper.make_node("Mul", [x, f"{x}.divisor"], [f"{x}.smooth"]),
        helper.make_node("Abs", [f"{x}.smooth"], [f"{x}.abs"]),
        helper.make_node("ReduceMax", [f"{x}.abs", "int8.last"], [f"{x}.max"], keepdims=1),
        helper.make_node("Mul", [f"{x}.max", "int8.step"], [f"{x}.raw"]),
        helper.make_node("Max", [f"{x}.raw", "int8.tiny"], [f"{x}.s"]),
        helper.make_node("Div", [f"{x}.smooth", f"{x}.s"], [f"{x}.scaled"]),
        helper.make_node("Round", [f"{x}.scaled"], [f"{x}.round"]),
        helper.make_node("Add", [f"{x}.round", "int8.offset"], [f"{x}.shifted"]),
        helper.make_node("Cast", [f"{x}.shifted"], [f"{x}.q"], to=TensorProto.UINT8),
    ]


def _product(node: onnx.NodeProto, name: str, x: str) -> list[onnx.NodeProto]:
    out = node.output[0]
    return [
        helper.make_node("MatMulInteger", [f"{x}.q", f"{name}.int8", "int8.zero"], [f"{out}.int32"]),
        helper.make_node("Cast", [f"{out}.int32"], [f"{out}.float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{out}.float", f"{name}.scale"], [f"{out}.columns"]),
        helper.make_node("Mul", [f"{out}.columns", f"{x}.s"], [out]),
    ]


def _rebuilt(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto]
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, model.graph.name, list(model.graph.input), list(model.graph.output), initializers)
    rebuilt = helper.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    onnx.checker.check_model(rebuilt)
    return rebuilt
