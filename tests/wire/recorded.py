"""Requests recorded from the official clients, by client and case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recordings"


def recorded(client: str) -> dict[str, dict[str, Any]]:
    """Case -> method, target, headers, and body or parts."""
    cases = json.loads((FOLDER / f"{client}.json").read_text(encoding="utf-8"))["cases"]
    return {case["case"]: case for case in cases}
