"""Dicast: open decision models. The public names, and nothing else.

    import dicast

    model = dicast.load()
    decision = model.decide("My payouts fail since Monday!", {"urgent": dicast.Noul("Is this urgent?")})
    decision["urgent"].noul

Every name is imported when it is first used, so that `import dicast` costs next to nothing and never brings torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dicast._version import __version__

if TYPE_CHECKING:
    from dicast.calibration import Calibration
    from dicast.engine import Engine
    from dicast.errors import (
        CapabilityError,
        CheckpointError,
        ConfigError,
        DeadlineExceededError,
        DicastError,
        EngineClosedError,
        EngineError,
        InputError,
        MediaError,
        MissingDependencyError,
        ModelNotFoundError,
        OverloadedError,
        RecordError,
        TokenBudgetError,
    )
    from dicast.model import DecisionModel, load
    from dicast.models.base import EncodeOptions, ModelInfo
    from dicast.records import (
        Answer,
        Choice,
        ChoiceAnswer,
        Decision,
        Noul,
        NoulAnswer,
        Question,
        Record,
        Score,
        ScoreAnswer,
        Usage,
    )

_HOMES = {
    "dicast.model": ("load", "DecisionModel"),
    "dicast.models.base": ("ModelInfo", "EncodeOptions"),
    "dicast.records": (
        "Record", "Question", "Noul", "Choice", "Score",
        "Decision", "Answer", "NoulAnswer", "ChoiceAnswer", "ScoreAnswer", "Usage",
    ),
    "dicast.calibration": ("Calibration",),
    "dicast.engine": ("Engine",),
    "dicast.errors": (
        "DicastError", "InputError", "RecordError", "TokenBudgetError", "MediaError", "CapabilityError", "ConfigError",
        "ModelNotFoundError", "CheckpointError", "MissingDependencyError", "EngineError", "OverloadedError",
        "DeadlineExceededError", "EngineClosedError",
    ),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "Calibration",
    "CapabilityError",
    "CheckpointError",
    "Choice",
    "ChoiceAnswer",
    "ConfigError",
    "DeadlineExceededError",
    "Decision",
    "DecisionModel",
    "DicastError",
    "EncodeOptions",
    "Engine",
    "EngineClosedError",
    "EngineError",
    "InputError",
    "MediaError",
    "MissingDependencyError",
    "ModelInfo",
    "ModelNotFoundError",
    "Noul",
    "NoulAnswer",
    "OverloadedError",
    "Question",
    "Record",
    "RecordError",
    "Score",
    "ScoreAnswer",
    "TokenBudgetError",
    "Usage",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dicast' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
