"""ONNX files of the segment model: one graph that encodes segments, one for the head and the prior.

    encoder.onnx   ids, mask, span [n, L]  ->  memory [n, L, W], cls, mean, cls_normed [n, H]
    head.onnx      memory, pooled vectors, index arrays of a batch  ->  logits [B, O]

Weights are written in one of three ways (`dicast.models.onnx_int8` has the arithmetic):

    "float32"   as they are
    "stored"    int8 in the file, float32 arithmetic
    "integer"   int8 in the file; the encoder multiplies integers, the head float32

Every operator is standard ONNX, none is tied to a processor. Knows nothing of records.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from dicast.models.head import HeadConfig, HeadInputs
from dicast.models.onnx_encoder import encoder_onnx, product_inputs
from dicast.models.onnx_int8 import QUANTISE_FROM, Rounding, roundings, stored_int8
from dicast.models.onnx_weights import name_matrices, save_rest
from dicast.models.segment_batch import buckets_of
from dicast.models.segmented import FORMAT, PriorInputs, SegmentModel, SegmentNet, summary_of
from dicast.segments import Segment

WeightFormat: TypeAlias = Literal["float32", "stored", "integer"]

OPSET: Final = 18
SAMPLE_TEXTS: Final = tuple((resources.files("dicast.models") / "sample_texts.txt").read_text("utf-8").splitlines())
"""Texts from which the ranges of activations are taken where nothing better is given: varied in kind and length."""
HEAD_INPUTS: Final = (
    "memory", "memory_mask", "memory_part", "question", "question_cls", "question_mask", "types", "option", "label_cls",
    "hypothesis_cls", "option_mask", "owner", "window_cls", "window_normed", "window_mask", "window_owner",
    "peer",
)  # fmt: skip


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
        peer: Tensor,
    ) -> Tensor:
        memory = memory + self.net.part_embedding[memory_part]
        head = HeadInputs(
            memory, memory_mask, question, question_mask, types, option, hypothesis_cls, option_mask, owner,
            summary_of(window_normed, window_mask),
        )  # fmt: skip
        prior = PriorInputs(
            label_cls, hypothesis_cls, question_cls, window_cls, window_mask, window_owner, types, owner, option_mask,
            peer,
        )  # fmt: skip
        return self.net.decide(head, prior, "projected")


def export_onnx(
    model: SegmentModel,
    folder: Path,
    *,
    tokenizer: Path,
    weights: WeightFormat = "integer",
    samples: Sequence[Segment] = (),
) -> dict[str, int]:
    """Write both graphs, ``rest.safetensors``, ``dicast.json`` and ``tokenizer.json`` into a folder.

    Args:
        model: the torch model.
        folder: where to write; made if missing.
        tokenizer: the model's ``tokenizer.json``.
        weights: how weights are written; see the module.
        samples: typical segments, from which the ranges of rounded activations are taken; without any, `SAMPLE_TEXTS`.

    Returns:
        Bytes of each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    net = model.net.eval()
    encoder, head = encoder_onnx(net, OPSET), _head_onnx(net)
    state = net.state_dict()
    name_matrices(head, state)
    save_rest(folder, state)
    if weights == "integer":
        chosen = encoder_roundings(net, encoder, samples or sample_segments(model))
        encoder = encoder_onnx(net, OPSET, chosen)
    if weights != "float32":
        encoder, head = stored_int8(encoder), stored_int8(head)
    (folder / "encoder.onnx").write_bytes(encoder.SerializeToString())
    (folder / "head.onnx").write_bytes(head.SerializeToString())
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    config = {
        "format": FORMAT,
        "name": model.name,
        "runtime": "onnx",
        "bert": net.bert.config.to_dict(),
        "head": {field: getattr(net.head.config, field) for field in HeadConfig.__dataclass_fields__},
        "parameters": dict(model.info.parameters),
        "weights": weights,
        "opset": OPSET,
        **model.extra,
    }
    (folder / "dicast.json").write_text(json.dumps(config, indent=2) + "\n")
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}


def sample_segments(model: SegmentModel) -> list[Segment]:
    """Segments of the sample texts: each alone, and each after an instruction."""
    alone = [model.encoder.frame(model.encoder.ids(text)) for text in SAMPLE_TEXTS]
    return alone + [model.encoder.frame(alone[0].tokens[1:-1], segment.tokens[1:-1]) for segment in alone[1:]]


def encoder_roundings(net: SegmentNet, encoder: onnx.ModelProto, samples: Sequence[Segment]) -> dict[str, Rounding]:
    """Roundings of the inputs of the encoder's large products; `encoder` is its float32 graph."""
    state = net.state_dict()
    matrices = {
        name: np.concatenate([state[parameter].cpu().numpy() for parameter in parameters]).T
        for name, parameters in product_inputs(net).items()
        if all(state[parameter].numel() >= QUANTISE_FROM for parameter in parameters)
    }
    lengths = itertools.groupby(sorted(samples, key=_length), _length)  # of one length, since padding is no sample
    buckets = [bucket for _, group in lengths for bucket in buckets_of(list(group), most_tokens=1024)]
    inputs = [{"ids": bucket.ids, "mask": bucket.mask, "span": bucket.span} for bucket in buckets]
    return roundings(encoder, matrices, inputs)


def _length(segment: Segment) -> int:
    return len(segment.tokens)


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
        torch.zeros(batch, options, dtype=torch.int64),
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
        "peer": "O",
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
