"""The reference's cases (`tests/golden`): requests, ids, spans, logits and answers, for every test that compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "golden"
RELEASE = FOLDER / "release"
GOLDEN: dict[str, Any] = json.loads((FOLDER / "cases.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = GOLDEN["cases"]
FLOAT64_LOGITS: dict[str, list[list[float]]] = json.loads((FOLDER / "logits-float64.json").read_text(encoding="utf-8"))[
    "logits"
]
"""What the reference module computes in float64. The tiny checkpoint is ill-conditioned: the reference's own float32
logits in `cases.json` lie up to 4e-4 from these and move by 2e-4 with the processor's instruction set, so exactness is
proven in float64."""


def media_of(case: dict[str, Any]) -> dict[str, Any]:
    """The case's images (PIL, RGB), videos (arrays of frames) and processor arguments."""
    from PIL import Image

    def open_rgb(name: str) -> Image.Image:
        with Image.open(FOLDER / name) as image:
            return image.convert("RGB")

    files = case.get("media", {})
    return {
        "images": [open_rgb(name) for name in files.get("images", [])],
        "videos": [np.stack([np.asarray(open_rgb(name)) for name in video]) for video in files.get("videos", [])],
        "media_kwargs": case.get("media_kwargs") or {},
    }
