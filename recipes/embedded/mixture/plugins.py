"""Which plugins a request needs, from MetaTool's train part: one yes/no question per plugin that is offered."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from mixture.generated import Row, per_tool

NO_TOOL = "no_tool"


def descriptions(rows: Sequence[Row]) -> dict[str, str]:
    """Every plugin and what it does."""
    found: dict[str, str] = {}
    for row in rows:
        if isinstance(row["state"], Mapping):
            found.update({tool["name"]: tool["description"] for tool in row["state"]["tools"]})
        else:
            options: dict[str, str] = row["questions"]["tool"]["criteria"]
            found.update({name: text for name, text in options.items() if name != NO_TOOL and text})
    return found


def calls(rng: random.Random, row: Row, known: Mapping[str, str]) -> Row:
    """The request with 1 to 5 plugins of its own list, most often with the right one among them."""
    state: Any = row["state"]
    text = state["request"] if isinstance(state, Mapping) else state
    right = row["gold"]["tool"]
    offered = [name for name in row["questions"]["tool"]["criteria"] if name not in (NO_TOOL, right) and name in known]
    names = rng.sample(offered, min(len(offered), rng.choice((0, 1, 1, 2, 2, 3, 4))))
    if right in known and (not names or rng.random() < 0.9):
        names.append(right)
    names = names or offered[:1]
    rng.shuffle(names)
    schemas = [{"name": name, "description": known[name]} for name in names]
    return per_tool(rng, text, schemas, [name == right for name in names])
