"""A trained model for others: ONNX files checked against torch, and the hub. Knows model folders, no training."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from dicast.errors import CheckpointError, ConfigError, DicastError, MissingDependencyError
from dicast.models.segmented import SegmentModel
from dicast.records import Choice, Noul, Record, Score
from dicast.segments import Segment

WeightFormat: TypeAlias = Literal["float32", "stored", "integer"]
"""How ONNX files hold weights; see `dicast.models.onnx_export`."""

FLOAT_TOLERANCE, INT8_TOLERANCE = 1e-3, 0.12
"""Largest difference in probability from torch that an exported model may show on the sample."""
SAMPLE = (
    Record("The card was charged twice.", {"team": Choice("Who?", ["billing", "sales"]), "urgent": Noul("Urgent?")}),
    Record({"review": "Not bad at all.", "stars": 4}, {"mood": Score("How happy?", ["not", "a little", "very"])}),
    Record("", {"odd": Noul("Is 7 an odd number?")}),
)


class ExportError(DicastError):
    """The exported files do not decide as the trained model does; nothing was written."""


def export_onnx(
    model: SegmentModel,
    folder: Path,
    *,
    tokenizer: Path,
    weights: WeightFormat = "integer",
    sample: Sequence[Record] = SAMPLE,
    ranges: Sequence[Segment] = (),
) -> dict[str, Any]:
    """Write ONNX files beside what the folder holds, after comparing them with torch on a sample.

    Args:
        model: the trained model.
        folder: where to write.
        tokenizer: its tokenizer.json.
        weights: "integer" (int8 in the file and in the encoder's products), "stored" (int8 in the file) or "float32".
        sample: records on which both must agree.
        ranges: typical segments, for the ranges of rounded activations; without any, texts of all kinds.

    Returns:
        Bytes of the files and the largest difference in probability.

    Raises:
        MissingDependencyError: onnx is not installed.
        ExportError: the difference is above the tolerance; nothing is written.
    """
    require_onnx()
    from dicast.models import onnx, onnx_export

    temporary = folder.with_name(f".tmp-onnx-{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        sizes = onnx_export.export_onnx(model, temporary, tokenizer=tokenizer, weights=weights, samples=ranges)
        runtime = onnx.load_segments(temporary)
        gap = largest_gap(model, runtime, sample)
        limit = FLOAT_TOLERANCE if weights == "float32" else INT8_TOLERANCE
        if gap > limit:
            raise ExportError(f"ONNX and torch differ by {gap:.4f} in probability on the sample, more than {limit}")
        folder.mkdir(parents=True, exist_ok=True)
        for path in temporary.iterdir():
            shutil.copyfile(path, folder / path.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"bytes": sizes, "largest difference": gap, "weights": weights}


def largest_gap(first: Any, second: Any, sample: Sequence[Record]) -> float:
    """Largest difference in probability between two models over all options of a sample."""
    gaps = []
    for record in sample:
        (left,), (right,) = (model.score([model.encode(record)]) for model in (first, second))
        gaps += [float(np.abs(_softmax(a) - _softmax(b)).max()) for a, b in zip(left, right, strict=True)]
    return max(gaps)


def export_folder(source: Path, target: Path, *, format: str, weights: WeightFormat = "integer") -> dict[str, Any]:
    """Export a trained model's folder (or a run's folder) to another place.

    Args:
        source: folder of a model, or of a run that holds `model`.
        target: where to write.
        format: "onnx" (segments) or "release" (clef).
        weights: for ONNX; see :func:`export_onnx`.

    Raises:
        CheckpointError: the folder holds no trained model of that kind.
        ConfigError: a format that the model does not have.
    """
    folder = source / "model" if (source / "model").is_dir() else source
    segments = (folder / "dicast.json").exists()
    if format not in ("onnx", "release"):
        raise ConfigError("must be onnx or release", field="format", seen=format)
    if segments != (format == "onnx"):
        has = "segment model, which is exported as onnx" if segments else "Clef model, which is exported as release"
        raise ConfigError(f"{folder} holds a {has}", field="format", seen=format)
    if not segments:
        if not (folder / "joint_head_config.json").exists():
            raise CheckpointError(f"{folder} holds no trained model")
        shutil.copytree(folder, target, dirs_exist_ok=True)
        return {"files": sorted(path.name for path in target.iterdir())}
    if not (folder / "model.safetensors").exists():
        raise CheckpointError(f"{folder} has no model.safetensors to export from")
    facts = export_onnx(SegmentModel.load(folder), target, tokenizer=folder / "tokenizer.json", weights=weights)
    for name in ("README.md", "calibration.json"):
        if (folder / name).exists():
            shutil.copyfile(folder / name, target / name)
    return facts


def push(folder: Path, name: str, *, private: bool = True) -> str:
    """Upload a folder to the Hugging Face hub with the user's own login; returns the address.

    Raises:
        ConfigError: the name is not "owner/name", or the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if name.count("/") != 1:
        raise ConfigError("must be owner/name", field="push", seen=name)
    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(f"the hub refuses {name}: {reason}", field="push", seen=name) from error
    return f"https://huggingface.co/{name}"


def require_onnx() -> None:
    """Check that ONNX export is installed.

    Raises:
        MissingDependencyError: says which command installs it.
    """
    missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"ONNX export needs {' and '.join(missing)}: pip install 'dicast[export]'")


def _softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()
