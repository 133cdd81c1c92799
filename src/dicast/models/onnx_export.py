"""ONNX files of the segment model: one graph that encodes segments, one for the head and the prior.

    encoder.onnx   ids, mask, span [n, L]  ->  memory [n, L, W], cls, mean, cls_normed [n, H]
    head.onnx      memory, pooled vectors, index arrays of a batch  ->  logits [B, O]

Large matrices are stored as int8 with one float32 scale per output row and multiplied out when the session is made
(Cast and Mul of constants, which every runtime folds), so all arithmetic at run time is float32: no integer product
that could saturate, no operator that is tied to a processor. Knows nothing of records.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from dicast.models.head import HeadConfig, HeadInputs
from dicast.models.segmented import FORMAT, PriorInputs, SegmentModel, SegmentNet, summary_of

OPSET: Final = 18
QUANTISE_FROM: Final = 4096
"""Matrices with fewer elements stay float32."""
LEVELS: Final = 127
ENCODER_INPUTS: Final = ("ids", "mask", "span")
ENCODER_OUTPUTS: Final = ("memory", "cls", "mean", "cls_normed")
HEAD_INPUTS: Final = (
    "memory", "memory_mask", "memory_part", "question", "question_cls", "question_mask", "types", "option", "label_cls",
    "hypothesis_cls", "option_mask", "owner", "window_cls", "window_normed", "window_mask", "window_owner",
)  # fmt: skip


class _EncoderGraph(nn.Module):
    def __init__(self, net: SegmentNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor, mask: Tensor, span: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.net.encode_bucket(ids, mask, span))


class _HeadGraph(nn.Module):
    def __init__(self, net: SegmentNet) -> None:
        super().__init__()
        self.net = net

    def forward(
        self,
        memory: Tensor,
        memory_mask: Tensor,
        memory_part: Tensor,
        question: Tensor,
        question_cls: Tensor,
        question_mask: Tensor,
        types: Tensor,
        option: Tensor,
        label_cls: Tensor,
        hypothesis_cls: Tensor,
        option_mask: Tensor,
        owner: Tensor,
        window_cls: Tensor,
        window_normed: Tensor,
        window_mask: Tensor,
        window_owner: Tensor,
    ) -> Tensor:
        memory = memory + self.net.part_embedding[memory_part]
        head = HeadInputs(
            memory, memory_mask, question, question_mask, types, option, hypothesis_cls, option_mask, owner,
            summary_of(window_normed, window_mask),
        )  # fmt: skip
        prior = PriorInputs(
            label_cls, hypothesis_cls, question_cls, window_cls, window_mask, window_owner, types, owner
        )
        return self.net.prior(prior) + self.net.head(head, "projected")  # type: ignore[no-any-return]


def export_onnx(model: SegmentModel, folder: Path, *, tokenizer: Path, int8: bool = True) -> dict[str, int]:
    """Write both graphs, ``dicast.json`` and ``tokenizer.json`` into a folder.

    Args:
        model: the torch model.
        folder: where to write; made if missing.
        tokenizer: the model's ``tokenizer.json``.
        int8: store large matrices as int8 with one scale per output row.

    Returns:
        Bytes of each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    net = model.net.eval()
    for name, graph in (("encoder", _encoder_onnx(net)), ("head", _head_onnx(net))):
        (folder / f"{name}.onnx").write_bytes((quantised(graph) if int8 else graph).SerializeToString())
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    config = {
        "format": FORMAT,
        "name": model.name,
        "runtime": "onnx",
        "bert": net.bert.config.to_dict(),
        "head": {field: getattr(net.head.config, field) for field in HeadConfig.__dataclass_fields__},
        "parameters": dict(model.info.parameters),
        "weights": "int8 per row, float32 arithmetic" if int8 else "float32",
        "opset": OPSET,
        **model.extra,
    }
    (folder / "dicast.json").write_text(json.dumps(config, indent=2) + "\n")
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}


def quantised(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Replace large float32 matrices by int8 values and scales; the graph multiplies them out when it is loaded."""
    nodes: list[onnx.NodeProto] = []
    kept: list[onnx.TensorProto] = []
    gathered = {node.input[0] for node in graph.graph.node if node.op_type == "Gather"}
    transposed = {node.input[1] for node in graph.graph.node if node.op_type == "Gemm" and _attribute(node, "transB")}
    for tensor in graph.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.ndim != 2 or values.size < QUANTISE_FROM:
            kept.append(tensor)
            continue
        axis = 0 if tensor.name in transposed or tensor.name in gathered else 1
        whole, scale = int8_rows(values, axis)
        kept += [
            numpy_helper.from_array(whole, tensor.name + ".int8"),
            numpy_helper.from_array(scale, tensor.name + ".scale"),
        ]
        if tensor.name in gathered:
            _gather_int8(graph, tensor.name, nodes)
            continue
        nodes += [
            helper.make_node("Cast", [tensor.name + ".int8"], [tensor.name + ".cast"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [tensor.name + ".cast", tensor.name + ".scale"], [tensor.name]),
        ]
    rest = list(graph.graph.node)
    del graph.graph.initializer[:], graph.graph.node[:]
    graph.graph.initializer.extend(kept)
    graph.graph.node.extend([*nodes, *rest])
    onnx.checker.check_model(graph)
    return graph


def int8_rows(values: np.ndarray[Any, Any], axis: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Symmetric int8 values and float32 scales; one scale for each index of `axis`."""
    largest = np.abs(values).max(axis=1 - axis, keepdims=True)
    scale = np.where(largest > 0, largest / LEVELS, 1.0).astype(np.float32)
    return np.clip(np.rint(values / scale), -LEVELS, LEVELS).astype(np.int8), scale


def _gather_int8(graph: onnx.ModelProto, name: str, nodes: list[onnx.NodeProto]) -> None:
    """Look up int8 rows and their scales, then multiply: the table stays int8 in memory."""
    rest = []
    for node in graph.graph.node:
        if node.op_type != "Gather" or node.input[0] != name:
            rest.append(node)
            continue
        out = node.output[0]
        rest += [
            helper.make_node("Gather", [name + ".int8", node.input[1]], [out + ".int8"], axis=0),
            helper.make_node("Cast", [out + ".int8"], [out + ".cast"], to=TensorProto.FLOAT),
            helper.make_node("Gather", [name + ".scale", node.input[1]], [out + ".scale"], axis=0),
            helper.make_node("Mul", [out + ".cast", out + ".scale"], [out]),
        ]
    del graph.graph.node[:]
    graph.graph.node.extend(rest)


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((item.i for item in node.attribute if item.name == name), 0)


def _encoder_onnx(net: SegmentNet) -> onnx.ModelProto:
    ids = torch.randint(5, 100, (3, 7))
    mask = torch.ones(3, 7, dtype=torch.bool)
    shapes = {name: {0: "n", 1: "L"} for name in ENCODER_INPUTS}
    return _export(_EncoderGraph(net), (ids, mask, mask.clone()), ENCODER_INPUTS, ENCODER_OUTPUTS, shapes)


def _head_onnx(net: SegmentNet) -> onnx.ModelProto:
    hidden, width = net.head.config.hidden_size, net.head.config.width
    batch, rows, asked, options, windows = 2, 11, 3, 5, 4
    true = torch.ones
    inputs = (
        torch.randn(batch, rows, width),
        true(batch, rows, dtype=torch.bool),
        torch.zeros(batch, rows, dtype=torch.int64),
        torch.randn(batch, asked, hidden),
        torch.randn(batch, asked, hidden),
        true(batch, asked, dtype=torch.bool),
        torch.ones(batch, asked, dtype=torch.int64),
        torch.randn(batch, options, hidden),
        torch.randn(batch, options, hidden),
        torch.randn(batch, options, hidden),
        true(batch, options, dtype=torch.bool),
        torch.zeros(batch, options, dtype=torch.int64),
        torch.randn(batch, windows, hidden),
        torch.randn(batch, windows, hidden),
        true(batch, windows, dtype=torch.bool),
        torch.full((batch, windows), -1, dtype=torch.int64),
    )
    second = {
        "memory": "S",
        "question": "Q",
        "types": "Q",
        "option": "O",
        "label": "O",
        "hypothesis": "O",
        "owner": "O",
        "window": "N",
    }
    shapes = {name: {0: "B", 1: second[name.split("_")[0]]} for name in HEAD_INPUTS}
    return _export(_HeadGraph(net), inputs, HEAD_INPUTS, ("logits",), shapes)


def _export(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    names: tuple[str, ...],
    outputs: tuple[str, ...],
    shapes: dict[str, dict[int, str]],
) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the exporter by tracing is deprecated, but keeps names and dynamic shapes simple
        path = Path(folder) / "graph.onnx"
        torch.onnx.export(
            module.eval(), inputs, path, input_names=list(names), output_names=list(outputs), dynamic_axes=shapes,
            opset_version=OPSET, dynamo=False,
        )  # fmt: skip
        return onnx.load(path)
