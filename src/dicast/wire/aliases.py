"""Names of other systems' models that clients send and that mean the model which is loaded. Knows no models."""

from __future__ import annotations

import re
from typing import Final

ALIASES: Final = re.compile(r"~?(?:[\w.@-]+/)*(?:jev-[\w.-]+|clef[\w.-]*|dicast-[\w.-]+)", re.ASCII)
"""Names that mean the default model; gateways put a vendor in front, as in ``typesafe/jev-1.13``."""
DECISIONS_ALIASES: Final = re.compile(r"gpt-6-luna(?:-[\w.-]+)?", re.ASCII)
"""Names that mean the default model on the Decisions route only."""
LISTED_ALIAS: Final = "jev-latest"
"""The alias that the models listing shows: the official clients' default."""
