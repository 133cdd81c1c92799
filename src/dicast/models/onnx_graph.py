"""Pieces of hand-written ONNX graphs over the segment net's parameters: products, norms, GELU, in float32 or integers.

What a graph writes is the same as the torch module up to rounding. Rows of all tokens stand in one matrix, so products
are plain two-dimensional ones.

* 1 / sqrt(d) is part of the query's weights. The key's bias is left out: it adds the same to all scores of a row.
  The value's bias goes through the output matrix into the output's bias: weights of a row sum to one.
* Given roundings (`dicast.models.onnx_int8`), a product becomes QuantizeLinear, DequantizeLinear and Gemm with an int8
  matrix and an int32 bias. A runtime fuses these into one integer product; one that does not gets the same result.

Matrices are named ``<parameter>|0:<rows>|<N or T>`` for `dicast.models.onnx_weights`. Factors that belong to a matrix
without being part of the parameter stand in tensors of their own, so parameters can be read back; runtimes multiply
them out while loading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from dicast.models.onnx_int8 import PRODUCT_LEVELS, Array, Rounding, int8_rows
from dicast.models.segmented import SegmentNet

IR_VERSION: Final = 8
MASKED: Final = -1e9


class NetGraph:
    """Nodes and tensors, in the order in which they are written.

    Args:
        net: whose parameters are written.
        roundings: per tensor that is multiplied by matrices how it is rounded; those that are missing stay float32.
    """

    def __init__(self, net: SegmentNet, roundings: Mapping[str, Rounding] | None = None) -> None:
        self.net = net
        self.state = {name: value.detach().cpu().numpy() for name, value in net.state_dict().items()}
        self.roundings = roundings or {}
        self.sources: dict[str, str] = {}  # rounded rows and the tensor whose rounding they have
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}
        config = net.bert.config
        self.heads = config.heads
        self.size = config.hidden_size // config.heads
        self.constant("row", np.array([-1, config.hidden_size], np.int64))
        self.constant("query.factor", np.float32(1 / math.sqrt(self.size)))

    def model(
        self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], opset: int
    ) -> onnx.ModelProto:
        """What was written, as a model."""
        made = helper.make_graph(self.nodes, name, inputs, outputs, list(self.tensors.values()))
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)

    def projections(self, layer: str, asking: str, seen: str, mixed: str) -> None:
        """Query of the rows `asking`, key and value of the rows `seen`: ``[rows, H]`` each, named after the layer.

        The channels of the values are already divided as the rounding of `mixed`, their weighted sums, wants.
        """
        divisor = self.divisor(mixed) if mixed in self.roundings else None
        bias = self.state[f"{layer}.query.bias"] / math.sqrt(self.size)
        self.product(asking, f"{layer}.query", bias, factor="query.factor")
        self.product(seen, f"{layer}.key")
        self.product(seen, f"{layer}.value", factor=divisor)

    def after_attention(self, layer: str, x: str, mixed: str, output: str) -> str:
        """The rest of a layer for rows x and their weighted sums of values, as the tensor `output`."""
        bias = (
            self.state[f"{layer}.output.bias"]
            + self.state[f"{layer}.output.weight"] @ self.state[f"{layer}.value.bias"]
        )
        self.product(self.rounded(mixed), f"{layer}.output", bias)
        self.add("Add", [f"{layer}.output", x], f"{layer}.attended.sum")
        attended = self.norm(f"{layer}.attended.sum", f"{layer}.attention_norm", f"{layer}.attended")
        self.product(self.rounded(attended), f"{layer}.up", self.state[f"{layer}.up.bias"])
        self.product(self.rounded(self.gelu(layer)), f"{layer}.down", self.state[f"{layer}.down.bias"])
        self.add("Add", [f"{layer}.down", attended], f"{layer}.sum")
        return self.norm(f"{layer}.sum", f"{layer}.norm", output)

    def gelu(self, layer: str) -> str:
        """The exact GELU, in the form that runtimes fuse."""
        x = f"{layer}.up"
        self.add("Div", [x, self.constant("gelu.root", np.float32(math.sqrt(2)))], f"{x}.scaled")
        self.add("Erf", [f"{x}.scaled"], f"{x}.erf")
        self.add("Add", [f"{x}.erf", self.constant("gelu.one", np.float32(1))], f"{x}.gate")
        self.add("Mul", [x, f"{x}.gate"], f"{x}.twice")
        return self.add("Mul", [f"{x}.twice", self.constant("gelu.half", np.float32(0.5))], f"{layer}.inner")

    def rounded(self, x: str, name: str = "") -> str:
        """The name under which products find x: itself, or x rounded to steps of a fixed size."""
        name = name or x
        if name not in self.roundings:
            return x
        rounding = self.roundings[name]
        scale, zero = self.constant(f"{name}.step", rounding.step), self.constant(f"{name}.zero", rounding.zero)
        divisor = self.divisor(name)
        if divisor is not None and not name.endswith(".mixed"):  # there it is part of the value's matrix
            x = self.add("Mul", [x, divisor], f"{name}.smooth")
        self.add("QuantizeLinear", [x, scale, zero], f"{name}.q")
        return self.restored(name, f"{name}.q", f"{name}.dq")

    def restored(self, source: str, q: str, output: str) -> str:
        """Rounded rows `q` of the tensor `source`, as products take them."""
        self.sources[output] = source
        return self.add("DequantizeLinear", [q, f"{source}.step", f"{source}.zero"], output)

    def divisor(self, name: str) -> str | None:
        """The tensor by which channels are multiplied before they are rounded, if any."""
        values = self.roundings[name].divisor
        return None if values is None else self.constant(f"{name}.divisor", (1 / values).astype(np.float32))

    def product(self, x: str, module: str, bias: Array | None = None, factor: str | None = None) -> str:
        """x times the module's matrix (and the column factors), plus a bias."""
        if x not in self.sources:
            matrix = self.matrix(f"{module}.weight", "T")
            if factor is not None:
                matrix = self.add("Mul", [matrix, factor], f"{module}.matrix")
            if bias is None:
                return self.add("MatMul", [x, matrix], module)
            self.add("MatMul", [x, matrix], f"{module}.product")
            return self.add("Add", [f"{module}.product", self.constant(f"{module}.offset", bias)], module)
        source = self.sources[x]
        divisor = self.roundings[source].divisor
        values = self.state[f"{module}.weight"].T
        if divisor is not None:
            values = values * divisor[:, None]
        whole, scale = int8_rows(values, 1, PRODUCT_LEVELS)
        name = f"{module}.weight|0:{values.shape[1]}|T"
        self.constant(f"{name}.int8", whole)
        step = self.constant(f"{name}.scale", scale[0])
        if factor is not None:
            step = self.add("Mul", [step, factor], f"{module}.columns")
        zeros = self.constant(f"zeros.{len(scale[0])}", np.zeros(len(scale[0]), np.int8))  # runtimes want them to fuse
        inputs = [x, self.add("DequantizeLinear", [f"{name}.int8", step, zeros], f"{module}.matrix", axis=1)]
        if bias is not None:
            inputs.append(self.whole_bias(module, bias, step, source, scale[0] * self.factor(factor)))
        return self.add("Gemm", inputs, module)

    def whole_bias(self, module: str, bias: Array, step: str, source: str, columns: Array) -> str:
        """The bias in steps of the product's int32 sums."""
        size = columns.astype(np.float64) * float(self.roundings[source].step)
        self.constant(f"{module}.offset", np.rint(bias / size).astype(np.int32))
        self.add("Mul", [step, f"{source}.step"], f"{module}.unit")
        return self.add("DequantizeLinear", [f"{module}.offset", f"{module}.unit"], f"{module}.bias", axis=0)

    def factor(self, name: str | None) -> Any:
        """The values of a factor."""
        return 1.0 if name is None else numpy_helper.to_array(self.tensors[name])

    def norm(self, x: str, module: str, output: str) -> str:
        """A layer norm over the last axis."""
        layer = self.net.get_submodule(module)
        weights = [self.vector(f"{module}.weight"), self.vector(f"{module}.bias")]
        return self.add("LayerNormalization", [x, *weights], output, axis=-1, epsilon=float(layer.eps))  # type: ignore[arg-type]

    def matrix(self, parameter: str, form: str) -> str:
        """A float32 matrix under the name by which it can be read back."""
        values = self.state[parameter]
        return self.constant(f"{parameter}|0:{len(values)}|{form}", values.T if form == "T" else values)

    def vector(self, parameter: str) -> str:
        """A small parameter as it is."""
        return self.constant(parameter, self.state[parameter])

    def constant(self, name: str, values: Any) -> str:
        """A tensor of the graph."""
        self.tensors.setdefault(
            name, numpy_helper.from_array(np.ascontiguousarray(values).reshape(np.shape(values)), name)
        )
        return name

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """A node with one output."""
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output
