"""Torch weights of a segment model from its ONNX files, so that a model that ships as ONNX alone can learn further.

The exporter transposes, splits and renames matrices, and int8 files hold them as integers and scales. When a model is
exported, :func:`write_map` finds every torch tensor among the ONNX tensors by its values and writes down where it lies
(`torch_weights.json`, a few kilobytes); :func:`read_state` follows that map. Tensors that the exporter folded away are
few numbers, which stand in the map itself. Knows tensors and files; knows nothing of models.

    python -m dicast.training.onnx_weights TORCH_FOLDER ONNX_FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dicast.errors import CheckpointError
from dicast.training.state import write_text_atomically

MAP = "torch_weights.json"
FILES = ("encoder.onnx", "head.onnx")
INT8, SCALE = ".int8", ".scale"
TOLERANCE = 0.006
"""Largest error as a share of the largest value: int8 rounding costs at most 1/254 of a row's largest value."""
SMALL = 16
"""Tensors of at most this many numbers may stand in the map itself."""

Floats: TypeAlias = npt.NDArray[np.float32]


def write_map(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Find the tensors of a trained model in its ONNX files and write the map beside them.

    Raises:
        CheckpointError: a tensor is not in the files.
    """
    known = onnx_tensors(folder)
    places: dict[str, Any] = {}
    for name, tensor in state.items():
        value = tensor.detach().float().cpu().numpy()
        found = _find(value, known)
        if found is None and value.size <= SMALL:
            found = {"value": value.tolist()}
        if found is None:
            raise CheckpointError(f"{name} {list(value.shape)} is not among the tensors of the ONNX files in {folder}")
        places[name] = found
    write_text_atomically(json.dumps({"format": 1, "tensors": places}, indent=0) + "\n", folder / MAP)


def read_state(folder: Path) -> dict[str, Tensor]:
    """The torch weights, float32; int8 files give them with their rounding.

    Raises:
        CheckpointError: no map, or it does not fit the files.
    """
    try:
        places = json.loads((folder / MAP).read_text(encoding="utf-8"))["tensors"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder} has no usable {MAP}, so its ONNX files cannot be trained further") from error
    known = onnx_tensors(folder)
    return {name: torch.from_numpy(np.array(_read(place, known, name))) for name, place in places.items()}


def onnx_tensors(folder: Path) -> dict[str, Floats]:
    """Float32 values of every floating-point tensor of the ONNX files, by "file:name"; int8 ones are multiplied out.

    Raises:
        CheckpointError: a file is missing.
    """
    import onnx
    from onnx import numpy_helper

    found: dict[str, Floats] = {}
    for file in FILES:
        path = folder / file
        if not path.exists():
            raise CheckpointError(f"{folder} has no {file}")
        raw = {item.name: numpy_helper.to_array(item) for item in onnx.load(str(path)).graph.initializer}
        for name, array in raw.items():
            if name.endswith(INT8):
                stem = name.removesuffix(INT8)
                found[f"{file}:{stem}"] = array.astype(np.float32) * raw[stem + SCALE]
            elif array.dtype == np.float32 and not name.endswith(SCALE):
                found[f"{file}:{name}"] = array
    return found


def _find(value: Floats, known: Mapping[str, Floats]) -> dict[str, Any] | None:
    """Where a tensor lies: one ONNX tensor, perhaps transposed, or several that hold its rows one after the other."""
    whole = _best(value, known)
    if whole is not None:
        return {"parts": [whole]}
    for bounds in _splits(value):
        parts = [_best(value[first:last], known) for first, last in bounds]
        if all(part is not None for part in parts):
            return {"parts": parts}
    return None


def _splits(value: Floats) -> Iterator[list[tuple[int, int]]]:
    """Ways in which query, key and value rows may have been taken apart."""
    rows = value.shape[0] if value.ndim else 0
    if rows and rows % 3 == 0:
        third = rows // 3
        yield [(0, third), (third, rows)]
        yield [(0, 2 * third), (2 * third, rows)]
        yield [(0, third), (third, 2 * third), (2 * third, rows)]


def _best(value: Floats, known: Mapping[str, Floats]) -> dict[str, Any] | None:
    limit = TOLERANCE * float(np.abs(value).max(initial=0.0)) + 1e-7
    best: tuple[float, str, bool] | None = None
    for name, array in known.items():
        for turned in (False, True) if array.ndim == 2 else (False,):
            seen = array.T if turned else array
            if seen.shape == value.shape:
                error = float(np.abs(seen - value).max(initial=0.0))
                if error <= limit and (best is None or error < best[0]):
                    best = (error, name, turned)
    return None if best is None else {"name": best[1], "transposed": best[2]}


def _read(place: Mapping[str, Any], known: Mapping[str, Floats], name: str) -> Floats:
    if "value" in place:
        return np.asarray(place["value"], np.float32)
    parts = []
    for part in place["parts"]:
        if part["name"] not in known:
            raise CheckpointError(f"{MAP} does not fit the ONNX files: {part['name']} for {name} is not there")
        array = known[part["name"]]
        parts.append(array.T if part["transposed"] else array)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def main() -> None:
    """Write the map of an exported folder."""
    from dicast.models.segmented import SegmentModel

    torch_folder, onnx_folder = map(Path, sys.argv[1:3])
    write_map(onnx_folder, SegmentModel.load(torch_folder).net.state_dict())


if __name__ == "__main__":
    main()
