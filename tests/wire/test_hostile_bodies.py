"""Whatever is sent, a reader either understands it or says what is wrong: no other exception, no 5xx."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.wire.recorded import recorded

from dicast.errors import InputError
from dicast.wire import decisions, systemone
from dicast.wire.errors import error_response

ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 10**30, "", "x", "\ud800", "\x00", "x" * 2000, "data:,",
    "data:image/png;base64,AAAA", [], [[]], [None], [{}],
    ["a", "a"], {}, {"": None}, {"type": "noul"}, {"type": {}}, {"true": 1},
    {"a": {"b": [1, None]}},
]  # fmt: skip
SEEDS = {
    systemone.parse_request: ("typesafe-sdk-python", "typesafe-sdk-js"),
    decisions.parse_request: ("openai-python-decisions", "openai-js-decisions"),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every part of a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def mutated(value: Any, chance: random.Random) -> Any:
    """A copy with one part replaced, removed, renamed or doubled."""
    copy = json.loads(json.dumps(value))
    path = chance.choice(places(copy))
    if not path:
        return chance.choice(ODD)
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    action = chance.randrange(4)
    if action == 0 and isinstance(parent, dict):
        del parent[path[-1]]
    elif action == 1 and isinstance(parent, dict):
        parent[str(chance.choice(ODD))[:20]] = parent.pop(path[-1])
    elif action == 2 and isinstance(parent, list):
        parent.append(parent[path[-1]])
    else:
        parent[path[-1]] = chance.choice(ODD)
    return copy


def corrupted(text: bytes, chance: random.Random) -> bytes:
    """The text with a few bytes changed, removed or repeated."""
    data = bytearray(text)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(data))
        action = chance.randrange(3)
        if action == 0:
            data[place] = chance.choice(b'{}[]",:\\0eE-tfn \x00\xff\xc3')
        elif action == 1:
            del data[place : place + chance.randint(1, 8)]
        else:
            data[place:place] = data[place : place + chance.randint(1, 8)]
        if not data:
            return b""
    return bytes(data)


@pytest.mark.parametrize("read", list(SEEDS), ids=["systemone", "decisions"])
def test_hostile_bodies(read: Callable[[bytes], Any]) -> None:
    chance = random.Random(8)
    bodies = [case["body"] for name in SEEDS[read] for case in recorded(name).values() if "body" in case]
    understood = 0
    statuses: list[int] = []
    for body in [body for body in bodies if len(body) < 3000] * 60:
        value = json.loads(body)
        for _ in range(chance.randint(1, 3)):
            value = mutated(value, chance)
        text = json.dumps(value).encode()
        if chance.random() < 0.3:
            text = corrupted(text, chance)
        try:
            read(text)
            understood += 1
        except InputError as error:
            statuses.append(error_response(error).status)
    assert set(statuses) <= {400, 422}
    assert min(understood, len(statuses)) > 20
