"""Weights of the segment net in ONNX files, and back: the shipped int8 files are also what fine-tuning starts from.

Exporting renames every large matrix of a graph to ``<parameter>|<first row>:<last row>|<N or T>`` (T: stored
transposed) by comparing values, since exporters rename, transpose and split them. Everything smaller is kept exactly in
``rest.safetensors``. Reading multiplies int8 values and scales out again: the net that comes back is the one that runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dicast.errors import CheckpointError, MissingDependencyError

Array: TypeAlias = np.ndarray[Any, Any]

LARGE: Final = 4096
"""Matrices with at least this many elements live in the graphs."""
REST: Final = "rest.safetensors"


def is_large(value: Tensor) -> bool:
    """Whether a parameter lives in a graph."""
    return value.ndim == 2 and value.numel() >= LARGE


def name_matrices(model: Any, state: Mapping[str, Tensor]) -> None:
    """Rename the large matrices of an exported graph after the parameters they hold, in place.

    Raises:
        ValueError: a matrix equals no parameter.
    """
    from onnx import numpy_helper

    known = {_digest(part): name for name, part in _parts(state)}
    renamed: dict[str, str] = {}
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype != np.float32 or values.ndim != 2 or values.size < LARGE:
            continue
        name = known.get(_digest(values))
        if name is None:
            raise ValueError(f"the exported matrix {tensor.name} {values.shape} equals no parameter")
        renamed[tensor.name] = name
        tensor.name = name
    for node in model.graph.node:
        for number, name in enumerate(node.input):
            node.input[number] = renamed.get(name, name)


def save_rest(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write everything that is not a large matrix."""
    rest = {name: value.detach().cpu().contiguous() for name, value in state.items() if not is_large(value)}
    save_file(rest, folder / REST)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All parameters of the net from ``encoder.onnx``, ``head.onnx`` and ``rest.safetensors``, in float32.

    Raises:
        CheckpointError: a file is missing or holds other names than expected.
        MissingDependencyError: the onnx package is not installed.
    """
    try:
        import onnx
    except ImportError:
        raise MissingDependencyError(
            "reading weights from ONNX files needs onnx; install it with: pip install 'dicast[export]'"
        ) from None
    if not (folder / REST).is_file():
        raise CheckpointError(f"{folder} has no {REST}, so its weights cannot be read for training")
    weights = load_file(folder / REST)
    pieces: dict[str, list[tuple[int, Array]]] = {}
    for graph in ("encoder", "head"):
        for name, values in _matrices(onnx.load(folder / f"{graph}.onnx")):
            parameter, rows, form = name.split("|")
            if parameter in weights:  # small: kept exactly
                continue
            pieces.setdefault(parameter, []).append((int(rows.split(":")[0]), values.T if form == "T" else values))
    for parameter, found in pieces.items():
        ordered = [values for _, values in sorted(found, key=lambda piece: piece[0])]
        weights[parameter] = torch.from_numpy(np.ascontiguousarray(np.concatenate(ordered)))
    return weights


def undone_divisors(model: Any) -> dict[str, Array]:
    """Per int8 matrix of a graph, by what its rows are multiplied to undo the division of its input's channels."""
    from onnx import numpy_helper

    divisors = {item.name: item for item in model.graph.initializer if item.name.endswith(".divisor")}
    made = {node.output[0]: node for node in model.graph.node}
    found: dict[str, Array] = {}
    for node in model.graph.node:
        if node.op_type == "MatMulInteger":  # files of version 0.1, rounded per token
            name, source = node.input[1], node.input[0].removesuffix(".q")
        elif node.op_type == "Gemm" and (matrix := made.get(node.input[1])) and matrix.op_type == "DequantizeLinear":
            name, source = matrix.input[0], node.input[0].removesuffix(".dq")
        else:
            continue
        if f"{source}.divisor" in divisors:
            found[name] = numpy_helper.to_array(divisors[f"{source}.divisor"])
    return found


def _parts(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Array]]:
    """Every form in which an exporter may write a large parameter."""
    for name, value in state.items():
        if not is_large(value):
            continue
        array = value.detach().cpu().numpy()
        size = len(array)
        spans = [(0, size)]
        if name.endswith("in_proj_weight"):
            third = size // 3
            spans += [(0, third), (third, 2 * third), (2 * third, size), (third, size)]
        for first, last in spans:
            yield f"{name}|{first}:{last}|N", array[first:last]
            yield f"{name}|{first}:{last}|T", array[first:last].T


def _digest(values: Array) -> bytes:
    return hashlib.sha256(repr(values.shape).encode() + np.ascontiguousarray(values).tobytes()).digest()


def _matrices(model: Any) -> Iterator[tuple[str, Array]]:
    """Named large matrices of a graph in float32."""
    from onnx import numpy_helper

    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    divisors = undone_divisors(model)
    for name, values in arrays.items():
        if name.count("|") != 2 or name.endswith(".scale"):
            continue
        if not name.endswith(".int8"):
            yield name, values
            continue
        matrix = values.astype(np.float32) * arrays[name.removesuffix(".int8") + ".scale"]
        if name in divisors:
            matrix = matrix * divisors[name][:, None]
        yield name.removesuffix(".int8"), matrix
