"""ONNX files of the segment model: one graph that encodes segments, one for the reader, one for the head and the prior.

    encoder.onnx   ids, mask, span [n, L]  ->  memory [n, L, W], cls, mean, cls_normed [n, H], middle [n, L, H]
    reader.onnx    middle states of a record's hypotheses and evidence  ->  read [P]
    head.onnx      memory, pooled vectors, what was read, index arrays of a batch  ->  logits [B, O]

A model without a reader has no `middle` and no reader.onnx; its head reads zeros.

Weights are written in one of three ways (`dicast.models.onnx_int8` has the arithmetic):

    "float32"   as they are
    "stored"    int8 in the file, float32 arithmetic
    "integer"   int8 in the file; encoder and reader multiply integers, the head float32

Every operator is standard ONNX, none is tied to a processor. Knows nothing of records.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from dicast.models.head import HeadConfig, HeadInputs
from dicast.models.onnx_encoder import encoder_onnx, product_inputs
from dicast.models.onnx_int8 import QUANTISE_FROM, Rounding, roundings, stored_int8
from dicast.models.onnx_reader import reader_onnx, reader_product_inputs
from dicast.models.onnx_weights import name_matrices, save_rest
from dicast.models.segment_batch import buckets_of, hypotheses_of, plan_batch, reading_of
from dicast.models.segmented import FORMAT, PriorInputs, SegmentModel, SegmentNet, summary_of
from dicast.records import Choice, Question, Record
from dicast.segments import HYPOTHESIS_OPTIONS, Segment, SegmentEncoding

WeightFormat: TypeAlias = Literal["float32", "stored", "integer"]

OPSET: Final = 18
SAMPLE_TEXTS: Final = tuple((resources.files("dicast.models") / "sample_texts.txt").read_text("utf-8").splitlines())
"""Texts from which the ranges of activations are taken where nothing better is given: varied in kind and length."""
SAMPLED_SEGMENTS: Final = 12
"""Most segments of one record from which the encoder's ranges are taken."""
HEAD_INPUTS: Final = (
    "memory", "memory_mask", "memory_part", "question", "question_cls", "question_mask", "types", "option", "label_cls",
    "hypothesis_cls", "option_mask", "owner", "window_cls", "window_normed", "window_mask", "window_owner",
    "peer", "read",
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
        read: Tensor,
    ) -> Tensor:
        memory = memory + self.net.part_embedding[memory_part]
        head = HeadInputs(
            memory, memory_mask, question, question_mask, types, option, hypothesis_cls, option_mask, owner,
            summary_of(window_normed, window_mask),
        )  # fmt: skip
        prior = PriorInputs(
            label_cls, hypothesis_cls, question_cls, window_cls, window_mask, window_owner, types, owner, option_mask,
            peer, read,
        )  # fmt: skip
        return self.net.decide(head, prior, "projected")


def export_onnx(
    model: SegmentModel,
    folder: Path,
    *,
    tokenizer: Path,
    weights: WeightFormat = "integer",
    samples: Sequence[SegmentEncoding] = (),
    encoder: Path | None = None,
) -> dict[str, int]:
    """Write the graphs, ``rest.safetensors``, ``dicast.json`` and ``tokenizer.json`` into a folder.

    Args:
        model: the torch model.
        folder: where to write; made if missing.
        tokenizer: the model's ``tokenizer.json``.
        weights: how weights are written; see the module.
        samples: typical records, from which the ranges of rounded activations are taken; without any, `SAMPLE_TEXTS`.
        encoder: folder whose encoder.onnx is kept, for a model whose encoder did not learn; None: it is written anew.

    Returns:
        Bytes of each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    net = model.net.eval()
    state = net.state_dict()
    samples = samples or sample_encodings(model)
    graphs = {"head": _head_onnx(net)}
    name_matrices(graphs["head"], state)
    if net.reader is not None:
        graphs["reader"] = reader_graph(net, weights, samples)
    if encoder is None:
        graphs["encoder"] = _encoder(net, weights, samples)
    else:
        _copy_graph(encoder, "encoder.onnx", folder)
    save_rest(folder, state)
    for name, graph in graphs.items():
        made = graph if weights == "float32" else stored_int8(graph)
        (folder / f"{name}.onnx").write_bytes(made.SerializeToString())
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    config = {
        "format": FORMAT,
        "name": model.name,
        "runtime": "onnx",
        "bert": net.bert.config.to_dict(),
        "head": {field: getattr(net.head.config, field) for field in HeadConfig.__dataclass_fields__},
        "reader": len(net.reader.layers) if net.reader else 0,
        "parameters": dict(model.info.parameters),
        "weights": weights,
        "opset": OPSET,
        **model.extra,
    }
    (folder / "dicast.json").write_text(json.dumps(config, indent=2) + "\n")
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}


def sample_encodings(model: SegmentModel) -> list[SegmentEncoding]:
    """Records of the sample texts: each is a state once, and an option behind an instruction once."""
    records = []
    for first in range(0, len(SAMPLE_TEXTS), HYPOTHESIS_OPTIONS):
        options = list(dict.fromkeys(SAMPLE_TEXTS[first : first + HYPOTHESIS_OPTIONS]))
        asked: dict[str, Question] = {"q": Choice(SAMPLE_TEXTS[0], options if len(options) > 1 else [*options, "none"])}
        records += [Record(text, asked) for text in options]
    return [model.encode(record) for record in records]


def segments_of(samples: Sequence[SegmentEncoding]) -> list[Segment]:
    """Distinct segments of records, evenly spaced where a record has many."""
    found = (s for item in samples for s in item.segments[:: math.ceil(len(item.segments) / SAMPLED_SEGMENTS)])
    return list(dict.fromkeys(found))


def _copy_graph(source: Path, name: str, folder: Path) -> None:
    """Copy a graph and the files beside it that hold its tensors."""
    graph = onnx.load(source / name, load_external_data=False)
    held = {entry.value for t in graph.graph.initializer for entry in t.external_data if entry.key == "location"}
    for file in (name, *sorted(held)):
        shutil.copyfile(source / file, folder / file)


def _encoder(net: SegmentNet, weights: WeightFormat, samples: Sequence[SegmentEncoding]) -> onnx.ModelProto:
    graph = encoder_onnx(net, OPSET)
    if weights != "integer":
        return graph
    return encoder_onnx(net, OPSET, encoder_roundings(net, graph, segments_of(samples)))


def encoder_roundings(net: SegmentNet, encoder: onnx.ModelProto, samples: Sequence[Segment]) -> dict[str, Rounding]:
    """Roundings of the inputs of the encoder's large products; `encoder` is its float32 graph."""
    lengths = itertools.groupby(sorted(samples, key=_length), _length)  # of one length, since padding is no sample
    buckets = [bucket for _, group in lengths for bucket in buckets_of(list(group), most_tokens=1024)]
    inputs = [{"ids": bucket.ids, "mask": bucket.mask, "span": bucket.span} for bucket in buckets]
    return roundings(encoder, _matrices(net, product_inputs(net)), inputs)


def reader_graph(net: SegmentNet, weights: WeightFormat, samples: Sequence[SegmentEncoding]) -> onnx.ModelProto:
    """The reader's graph; its matrices are integers where `weights` asks for them."""
    graph = reader_onnx(net, OPSET)
    if weights != "integer":
        return graph
    inputs = [reading for item in samples for reading in _readings(net, item)]
    return reader_onnx(net, OPSET, roundings(graph, _matrices(net, reader_product_inputs(net)), inputs))


def _matrices(net: SegmentNet, inputs: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray[Any, Any]]:
    """The matrices of products side by side, where they are large enough to be rounded."""
    state = net.state_dict()
    return {
        name: np.concatenate([state[parameter].cpu().numpy() for parameter in parameters]).T
        for name, parameters in inputs.items()
        if all(state[parameter].numel() >= QUANTISE_FROM for parameter in parameters)
    }


def _readings(net: SegmentNet, encoding: SegmentEncoding) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """What the reader's graph is given for a record: hypotheses of one length at a time, since padding is no sample."""
    batch = plan_batch([encoding])
    options = [int(option) for option in hypotheses_of(batch, 0)]

    def length(option: int) -> int:
        return len(batch.segments[int(batch.hypothesis[0, option])].tokens)

    if not options:
        return
    with torch.inference_mode():
        encoded, offsets = net.encode_segments(buckets_of(batch.segments), len(batch.segments))
    middle = encoded.middle.cpu().numpy()
    for _, group in itertools.groupby(sorted(options, key=length), length):
        reading = reading_of(batch, 0, np.array(list(group), np.int64), offsets)
        yield {
            "mask": reading.mask,  # first, since it has one number per row
            "rows": middle[reading.rows],
            "evidence": middle[reading.evidence],
            "part": reading.part,
            "usable": reading.usable,
        }


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
        torch.zeros(batch, options),
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
        "read": "O",
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
