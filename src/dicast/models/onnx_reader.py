"""The reader of the segment model as an ONNX graph: hypotheses that attend to evidence, see `dicast.models.reader`.

    mask [P, L], rows [P, L, H], evidence [S, H], part [S], usable [P, S]  ->  read [P]

Rows of hypotheses stand position first, ``[L P, H]``, before those of the evidence: one product gives the keys of both,
and the [CLS] rows, which alone ask in the last layer, are the first P. What else differs from the torch module is in
`dicast.models.onnx_graph`.

Shapes: P hypotheses of L tokens, A asking rows of each (L, in the last layer 1), S rows of evidence, h heads of d.
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

READER_INPUTS: Final = ("mask", "rows", "evidence", "part", "usable")


def reader_onnx(net: SegmentNet, opset: int, roundings: Mapping[str, Rounding] | None = None) -> onnx.ModelProto:
    """The graph of `net.reader`, which must be there.

    Args:
        net: the torch module.
        opset: version of the operators.
        roundings: per input of products (`reader_product_inputs`) how it is rounded; the others stay float32.
    """
    width = net.bert.config.hidden_size
    kinds: dict[str, tuple[int, list[str | int]]] = {
        "mask": (TensorProto.BOOL, ["P", "L"]),
        "rows": (TensorProto.FLOAT, ["P", "L", width]),
        "evidence": (TensorProto.FLOAT, ["S", width]),
        "part": (TensorProto.INT64, ["S"]),
        "usable": (TensorProto.BOOL, ["P", "S"]),
    }
    inputs = [helper.make_tensor_value_info(name, *kinds[name]) for name in READER_INPUTS]
    outputs = [helper.make_tensor_value_info("read", TensorProto.FLOAT, ["P"])]
    graph = _ReaderGraph(net, roundings)
    graph.write()
    model = graph.model("reader", inputs, outputs, opset)
    onnx.checker.check_model(model)
    return model


def reader_product_inputs(net: SegmentNet) -> dict[str, list[str]]:
    """Per tensor that is multiplied by matrices, the parameters that hold these (``[out, in]``)."""
    inputs = {}
    for number in range(_layers(net)):
        layer = f"reader.layers.{number}"
        inputs[f"{layer}.all"] = [f"{layer}.{name}.weight" for name in ("query", "key", "value")]
        inputs[f"{layer}.mixed"] = [f"{layer}.output.weight"]
        inputs[f"{layer}.attended"] = [f"{layer}.up.weight"]
        inputs[f"{layer}.inner"] = [f"{layer}.down.weight"]
    return inputs


def _layers(net: SegmentNet) -> int:
    assert net.reader is not None
    return len(net.reader.layers)


class _ReaderGraph(NetGraph):
    """Layers, and the score of the [CLS] rows."""

    def write(self) -> None:
        """All of it."""
        whole = {"any": [-1], "zero": [0], "one": [1], "end": [2**62], "heads": [self.heads, self.size]}
        for name, numbers in (whole | {"flat": [self.heads, -1, self.size]}).items():
            self.constant(name, np.array(numbers, np.int64))
        self.constant("seen", np.float32(0))
        self.constant("unseen", np.float32(MASKED))
        self.add("Shape", ["mask"], "count", end=1)  # P
        self.add("Shape", ["mask"], "length", start=1)  # L
        self.add("Mul", ["count", "length"], "own.rows")  # L P
        self.add("Concat", ["any", "count", "heads"], "by.row", axis=0)
        self.add("Concat", ["any", "heads"], "by.heads", axis=0)
        self.add("Where", ["mask", "seen", "unseen"], "bias.own")
        self.add("Where", ["usable", "seen", "unseen"], "bias.given")
        self.add("Gather", [self.vector("reader.part"), "part"], "part.rows")
        self.add("Add", ["evidence", "part.rows"], "given")
        self.add("Transpose", ["rows"], "rows.first", perm=[1, 0, 2])
        x = self.add("Reshape", ["rows.first", "row"], "own")
        last = _layers(self.net) - 1
        for number in range(last + 1):
            x = self.layer(f"reader.layers.{number}", x, only_cls=number == last)
        score = self.constant("reader.score.weight|T", self.state["reader.score.weight"].T)
        self.add("MatMul", [x, score], "score")
        self.add("Add", ["score", self.vector("reader.score.bias")], "score.row")
        self.add("Squeeze", ["score.row", "one"], "read")

    def layer(self, layer: str, x: str, *, only_cls: bool) -> str:
        """One layer: rows of hypotheses in; their rows out, or those of [CLS] only."""
        self.add("Concat", [x, "given"], f"{layer}.all", axis=0)
        seen = self.rounded(f"{layer}.all")
        asked = "count" if only_cls else "own.rows"
        mixed = f"{layer}.mixed"
        self.projections(layer, self.first(seen, asked, f"{layer}.asking"), seen, mixed)
        self.attention(layer, mixed)
        rows = self.add("Slice", [x, "zero", asked], f"{layer}.kept") if only_cls else x
        return self.after_attention(layer, rows, mixed, f"{layer}.out")

    def first(self, x: str, count: str, name: str) -> str:
        """The first rows of x, which is rounded or not."""
        if x not in self.sources:
            return self.add("Slice", [x, "zero", count], name)
        source = self.sources[x]
        return self.restored(source, self.add("Slice", [f"{source}.q", "zero", count], f"{name}.q"), f"{name}.dq")

    def attention(self, layer: str, mixed: str) -> None:
        """Weighted sums ``[A P, H]`` of the values: scores of own rows and of evidence share one softmax."""
        self.add("Reshape", [f"{layer}.query", "by.row"], f"{layer}.q4")  # [A, P, h, d]
        self.add("Transpose", [f"{layer}.q4"], f"{layer}.q.own", perm=[1, 2, 0, 3])  # [P, h, A, d]
        self.add("Transpose", [f"{layer}.q4"], f"{layer}.q.turned", perm=[2, 0, 1, 3])  # [h, A, P, d]
        self.add("Reshape", [f"{layer}.q.turned", "flat"], f"{layer}.q.flat")  # [h, A P, d]
        for name in ("key", "value"):
            self.add("Slice", [f"{layer}.{name}", "zero", "own.rows"], f"{layer}.{name}.own")
            self.add(
                "Slice",
                [f"{layer}.{name}", "own.rows", self.constant("end", np.array([2**62]))],
                f"{layer}.{name}.given",
            )
            self.add("Reshape", [f"{layer}.{name}.own", "by.row"], f"{layer}.{name}.own4")  # [L, P, h, d]
            self.add("Reshape", [f"{layer}.{name}.given", "by.heads"], f"{layer}.{name}.given3")  # [S, h, d]
        self.add("Transpose", [f"{layer}.key.own4"], f"{layer}.k.own", perm=[1, 2, 3, 0])  # [P, h, d, L]
        self.add("MatMul", [f"{layer}.q.own", f"{layer}.k.own"], f"{layer}.s.own")  # [P, h, A, L]
        self.add("Transpose", [f"{layer}.s.own"], f"{layer}.s.own.turned", perm=[1, 2, 0, 3])  # [h, A, P, L]
        self.add("Add", [f"{layer}.s.own.turned", "bias.own"], f"{layer}.s.own.masked")
        self.add("Transpose", [f"{layer}.key.given3"], f"{layer}.k.given", perm=[1, 2, 0])  # [h, d, S]
        self.add("MatMul", [f"{layer}.q.flat", f"{layer}.k.given"], f"{layer}.s.flat")  # [h, A P, S]
        self.add("Shape", [f"{layer}.q.turned"], f"{layer}.q.size", end=3)
        self.add("Concat", [f"{layer}.q.size", "any"], f"{layer}.s.size", axis=0)
        self.add("Reshape", [f"{layer}.s.flat", f"{layer}.s.size"], f"{layer}.s.given")  # [h, A, P, S]
        self.add("Add", [f"{layer}.s.given", "bias.given"], f"{layer}.s.given.masked")
        self.add("Concat", [f"{layer}.s.own.masked", f"{layer}.s.given.masked"], f"{layer}.s", axis=-1)
        self.add("Softmax", [f"{layer}.s"], f"{layer}.w", axis=-1)
        self.add("Slice", [f"{layer}.w", "zero", "length", "any"], f"{layer}.w.own")
        self.add("Slice", [f"{layer}.w", "length", "end", "any"], f"{layer}.w.given")
        self.add("Transpose", [f"{layer}.w.own"], f"{layer}.w.own.turned", perm=[2, 0, 1, 3])  # [P, h, A, L]
        self.add("Transpose", [f"{layer}.value.own4"], f"{layer}.v.own", perm=[1, 2, 0, 3])  # [P, h, L, d]
        self.add("MatMul", [f"{layer}.w.own.turned", f"{layer}.v.own"], f"{layer}.m.own")  # [P, h, A, d]
        self.add("Transpose", [f"{layer}.m.own"], f"{layer}.m.own.turned", perm=[2, 0, 1, 3])  # [A, P, h, d]
        self.add("Shape", [f"{layer}.q.flat"], f"{layer}.q.flat.size", end=2)
        self.add("Concat", [f"{layer}.q.flat.size", "any"], f"{layer}.w.size", axis=0)
        self.add("Reshape", [f"{layer}.w.given", f"{layer}.w.size"], f"{layer}.w.flat")  # [h, A P, S]
        self.add("Transpose", [f"{layer}.value.given3"], f"{layer}.v.given", perm=[1, 0, 2])  # [h, S, d]
        self.add("MatMul", [f"{layer}.w.flat", f"{layer}.v.given"], f"{layer}.m.flat")  # [h, A P, d]
        self.add("Transpose", [f"{layer}.m.flat"], f"{layer}.m.rows", perm=[1, 0, 2])  # [A P, h, d]
        self.add("Reshape", [f"{layer}.m.rows", "by.row"], f"{layer}.m.given")  # [A, P, h, d]
        self.add("Add", [f"{layer}.m.own.turned", f"{layer}.m.given"], f"{layer}.m")
        self.add("Reshape", [f"{layer}.m", "row"], mixed)
