"""Ray: many records offline (`data`), many replicas online (`serve`). Both need ``pip install 'dicast[ray]'``.

Spreads the other rooms over processes and machines, and adds nothing to what a record or a decision means.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dicast.errors import MissingDependencyError


def import_ray(name: str) -> Any:
    """Import a module of Ray.

    Raises:
        MissingDependencyError: Ray, or a library that this part of it needs, is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"{name} is needed ({error}): pip install 'dicast[ray]'") from error
