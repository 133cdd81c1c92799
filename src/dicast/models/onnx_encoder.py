"""The encoder of the segment model as an ONNX graph, written by hand so that a processor runs it quickly.

    ids, mask, span [n, L]  ->  memory [n, L, W], cls, mean, cls_normed [n, H]

What differs from the torch module, and why (results are the same up to rounding):

* Rows of all tokens stand in one matrix ``[L n, H]``, position first: products are plain two-dimensional ones, and
  heads can be read in place instead of being copied.
* 1 / sqrt(d) is part of the query's weights. The key's bias is left out: it adds the same to all scores of a row.
  The value's bias goes through the output matrix into the output's bias: weights of a row sum to one.
* Given roundings (`dicast.models.onnx_int8`), a product becomes QuantizeLinear, DequantizeLinear and Gemm with an int8
  matrix and an int32 bias. A runtime fuses these into one integer product; one that does not gets the same result.

Matrices are named ``<parameter>|0:<rows>|<N or T>`` for `dicast.models.onnx_weights`. Factors that belong to a matrix
without being part of the parameter stand in tensors of their own, so parameters can be read back; runtimes multiply
them out while loading.

Shapes: n segments, L tokens, H width, h heads of d channels, W width of a memory row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dicast.models.onnx_int8 import PRODUCT_LEVELS, Array, Rounding, int8_rows
from dicast.models.segmented import SegmentNet

ENCODER_INPUTS: Final = ("ids", "mask", "span")
ENCODER_OUTPUTS: Final = ("memory", "cls", "mean", "cls_normed")
IR_VERSION: Final = 8
MASKED: Final = -1e9


def encoder_onnx(net: SegmentNet, opset: int, roundings: Mapping[str, Rounding] | None = None) -> onnx.ModelProto:
    """The graph of `net.encode_bucket`.

    Args:
        net: the torch module.
        opset: version of the operators.
        roundings: per input of products (`product_inputs`) how it is rounded; inputs that are missing stay float32.
    """
    graph = _EncoderGraph(net, roundings or {})
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64 if name == "ids" else TensorProto.BOOL, ["n", "L"])
        for name in ENCODER_INPUTS
    ]
    widths = dict.fromkeys(ENCODER_OUTPUTS, net.bert.config.hidden_size) | {"memory": net.head.config.width}
    outputs = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, ["n", "L", widths[name]] if name == "memory" else ["n", widths[name]]
        )
        for name in ENCODER_OUTPUTS
    ]
    graph.write()
    made = helper.make_graph(graph.nodes, "encoder", inputs, outputs, list(graph.tensors.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


def product_inputs(net: SegmentNet) -> dict[str, list[str]]:
    """Per tensor that is multiplied by matrices, the parameters that hold these (``[out, in]``)."""
    inputs = {}
    for number in range(net.bert.config.layers):
        layer = f"bert.layers.{number}"
        inputs[f"{layer}.input"] = [f"{layer}.{name}.weight" for name in ("query", "key", "value")]
        inputs[f"{layer}.mixed"] = [f"{layer}.output.weight"]
        inputs[f"{layer}.attended"] = [f"{layer}.up.weight"]
        inputs[f"{layer}.inner"] = [f"{layer}.down.weight"]
    inputs["normed"] = ["head.memory_projection.weight"]
    return inputs


class _EncoderGraph:
    """Nodes and tensors, in the order in which they are written."""

    def __init__(self, net: SegmentNet, roundings: Mapping[str, Rounding]) -> None:
        self.net = net
        self.state = {name: value.detach().cpu().numpy() for name, value in net.state_dict().items()}
        self.roundings = roundings
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}

    def write(self) -> None:
        """All of it."""
        config = self.net.bert.config
        self.constant("row", np.array([-1, config.hidden_size], np.int64))
        self.constant("heads", np.array([config.heads, config.hidden_size // config.heads], np.int64))
        self.constant("first", np.array([0], np.int64))
        self.constant("second", np.array([1], np.int64))
        self.constant("query.factor", np.float32(1 / math.sqrt(config.hidden_size // config.heads)))
        x = self.embedded()
        self.add(
            "Where",
            ["mask", self.constant("seen", np.float32(0)), self.constant("unseen", np.float32(MASKED))],
            "bias.rows",
        )
        self.add("Unsqueeze", ["bias.rows", self.constant("inner", np.array([1, 2], np.int64))], "bias")
        for number in range(config.layers):
            x = self.layer(f"bert.layers.{number}", x)
        self.outputs(x)

    def embedded(self) -> str:
        """Rows ``[L n, H]`` of the tokens before the first layer."""
        words, positions = self.matrix("bert.word.weight", "N"), self.matrix("bert.position.weight", "N")
        self.add("Transpose", ["ids"], "ids.first", perm=[1, 0])
        self.add("Shape", ["ids.first"], "size")
        self.add("Shape", ["ids.first"], "length", end=1)
        self.add("Concat", ["size", "heads"], "size.heads", axis=0)
        self.add("Concat", ["size", self.constant("width", np.array([-1], np.int64))], "size.rows", axis=0)
        self.add("Gather", [words, "ids.first"], "word")
        self.add("Slice", [positions, "first", "length"], "position.rows")
        self.add("Unsqueeze", ["position.rows", "second"], "position")
        self.add("Add", ["word", "position"], "placed")
        self.add("Add", ["placed", self.vector("bert.token_type")], "embedded")
        self.add("Reshape", ["embedded", "row"], "embedded.rows")
        return self.norm("embedded.rows", "bert.embedding_norm", "bert.layers.0.input")

    def layer(self, layer: str, x: str) -> str:
        """One layer: rows in, rows out."""
        mixed = self.attention(layer, self.rounded(x))
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
        name, _, number = layer.rpartition(".")
        return self.norm(f"{layer}.sum", f"{layer}.norm", f"{name}.{int(number) + 1}.input")

    def attention(self, layer: str, x: str) -> str:
        """Mixed values ``[L n, H]`` before the output matrix."""
        mixed = f"{layer}.mixed"
        divisor = self.divisor(mixed) if mixed in self.roundings else None
        bias = self.state[f"{layer}.query.bias"] / math.sqrt(
            self.net.bert.config.hidden_size // self.net.bert.config.heads
        )
        self.product(x, f"{layer}.query", bias, factor="query.factor")
        self.product(x, f"{layer}.key")
        self.product(x, f"{layer}.value", factor=divisor)
        for name in ("query", "key", "value"):
            self.add("Reshape", [f"{layer}.{name}", "size.heads"], f"{layer}.{name}.split")  # [L, n, h, d]
            self.add("Transpose", [f"{layer}.{name}.split"], f"{layer}.{name}.heads", perm=[1, 2, 0, 3])
        self.add("Transpose", [f"{layer}.key.heads"], f"{layer}.key.turned", perm=[0, 1, 3, 2])
        self.add("MatMul", [f"{layer}.query.heads", f"{layer}.key.turned"], f"{layer}.scores")
        self.add("Add", [f"{layer}.scores", "bias"], f"{layer}.masked")
        self.add("Softmax", [f"{layer}.masked"], f"{layer}.weights", axis=-1)
        self.add("MatMul", [f"{layer}.weights", f"{layer}.value.heads"], f"{mixed}.heads")
        self.add("Transpose", [f"{mixed}.heads"], f"{mixed}.split", perm=[2, 0, 1, 3])
        return self.add("Reshape", [f"{mixed}.split", "row"], mixed)

    def gelu(self, layer: str) -> str:
        """The exact GELU, in the form that runtimes fuse."""
        x = f"{layer}.up"
        self.add("Div", [x, self.constant("gelu.root", np.float32(math.sqrt(2)))], f"{x}.scaled")
        self.add("Erf", [f"{x}.scaled"], f"{x}.erf")
        self.add("Add", [f"{x}.erf", self.constant("gelu.one", np.float32(1))], f"{x}.gate")
        self.add("Mul", [x, f"{x}.gate"], f"{x}.twice")
        return self.add("Mul", [f"{x}.twice", self.constant("gelu.half", np.float32(0.5))], f"{layer}.inner")

    def outputs(self, x: str) -> None:
        """The head's memory rows and the pooled vectors."""
        self.add("Reshape", [x, "size.rows"], "hidden.first")
        self.add("Transpose", ["hidden.first"], "hidden", perm=[1, 0, 2])
        self.add("Gather", ["hidden", self.constant("cls.row", np.int64(0))], "cls", axis=1)
        self.norm("hidden", "head.hidden_norm", "normed")
        self.add("Gather", ["normed", "cls.row"], "cls_normed", axis=1)
        self.add("Cast", ["span"], "span.weights", to=TensorProto.FLOAT)
        self.add("Unsqueeze", ["span.weights", "second"], "span.row")
        self.add("MatMul", ["span.row", "normed"], "span.sum")
        self.add("Squeeze", ["span.sum", "second"], "span.total")
        self.add("ReduceSum", ["span.weights", "second"], "span.count", keepdims=1)
        self.add("Div", ["span.total", "span.count"], "mean")
        self.add("Reshape", ["normed", "row"], "normed.rows")
        self.product(self.rounded("normed.rows", "normed"), "head.memory_projection")
        self.add("Shape", ["mask"], "shape")
        self.add("Concat", ["shape", "width"], "shape.rows", axis=0)
        self.add("Reshape", ["head.memory_projection", "shape.rows"], "memory")

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
        return self.add("DequantizeLinear", [f"{name}.q", scale, zero], f"{name}.dq")

    def divisor(self, name: str) -> str | None:
        """The tensor by which channels are multiplied before they are rounded, if any."""
        values = self.roundings[name].divisor
        return None if values is None else self.constant(f"{name}.divisor", (1 / values).astype(np.float32))

    def product(self, x: str, module: str, bias: Array | None = None, factor: str | None = None) -> str:
        """x times the module's matrix (and the column factors), plus a bias."""
        if not x.endswith(".dq"):
            matrix = self.matrix(f"{module}.weight", "T")
            if factor is not None:
                matrix = self.add("Mul", [matrix, factor], f"{module}.matrix")
            if bias is None:
                return self.add("MatMul", [x, matrix], module)
            self.add("MatMul", [x, matrix], f"{module}.product")
            return self.add("Add", [f"{module}.product", self.constant(f"{module}.offset", bias)], module)
        source = x.removesuffix(".dq")
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
