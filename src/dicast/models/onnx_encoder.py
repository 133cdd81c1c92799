"""The encoder of the segment model as an ONNX graph, written by hand so that a processor runs it quickly.

    ids, mask, span [n, L]  ->  memory [n, L, W], cls, mean, cls_normed [n, H], and middle [n, L, H] for a reader

Rows stand position first, ``[L n, H]``, so that heads can be read in place instead of being copied. The rest of what
differs from the torch module is in `dicast.models.onnx_graph`.

Shapes: n segments, L tokens, H width, h heads of d channels, W width of a memory row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from dicast.models.onnx_graph import MASKED, NetGraph
from dicast.models.onnx_int8 import Rounding
from dicast.models.segmented import SegmentNet

ENCODER_INPUTS: Final = ("ids", "mask", "span")
ENCODER_OUTPUTS: Final = ("memory", "cls", "mean", "cls_normed")
MIDDLE: Final = "middle"


def encoder_onnx(net: SegmentNet, opset: int, roundings: Mapping[str, Rounding] | None = None) -> onnx.ModelProto:
    """The graph of `net.encode_bucket`.

    Args:
        net: the torch module.
        opset: version of the operators.
        roundings: per input of products (`product_inputs`) how it is rounded; inputs that are missing stay float32.
    """
    graph = _EncoderGraph(net, roundings)
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
    model = graph.model("encoder", inputs, outputs, opset)
    if net.reader is not None:
        add_middle(model, net.before_reader, net.bert.config.hidden_size)
    onnx.checker.check_model(model)
    return model


def add_middle(model: onnx.ModelProto, layer: int, width: int) -> None:
    """Give an encoder's graph one more output, in place: the states before a layer, which its reader starts from."""
    before = f"bert.layers.{layer}.input"
    model.graph.node.append(helper.make_node("Reshape", [before, "size.rows"], ["middle.first"], name="middle.first"))
    model.graph.node.append(helper.make_node("Transpose", ["middle.first"], [MIDDLE], name=MIDDLE, perm=[1, 0, 2]))
    model.graph.output.append(helper.make_tensor_value_info(MIDDLE, TensorProto.FLOAT, ["n", "L", width]))


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


class _EncoderGraph(NetGraph):
    """The encoder: embeddings, layers and what is pooled from the last one."""

    def write(self) -> None:
        """All of it."""
        config = self.net.bert.config
        self.constant("heads", np.array([self.heads, self.size], np.int64))
        self.constant("first", np.array([0], np.int64))
        self.constant("second", np.array([1], np.int64))
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
        name, _, number = layer.rpartition(".")
        return self.after_attention(layer, x, mixed, f"{name}.{int(number) + 1}.input")

    def attention(self, layer: str, x: str) -> str:
        """Mixed values ``[L n, H]`` before the output matrix."""
        mixed = f"{layer}.mixed"
        self.projections(layer, x, x, mixed)
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
