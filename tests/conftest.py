"""What all tests share: names of parameters that are the same in every process."""

from __future__ import annotations

import pytest


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their argument: compressed ones hold the time, which parallel processes differ in."""
    return argname if isinstance(val, bytes) else None
