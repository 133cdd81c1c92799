"""What a causal model remembers of token prefixes: a tree of snapshots, bounded in bytes; what is longest unused goes.

A node stands for the tokens from its parent's end to its own, under a root that says which media the tokens stand for.
Two records that begin alike share the nodes of what they share; a growing conversation finds its own beginning. The
tree knows nothing of what a snapshot holds: a payload that says how many bytes it owns and is never changed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


class Payload(Protocol):
    """What a node remembers."""

    @property
    def bytes(self) -> int:
        """Bytes that would be freed with it."""


P = TypeVar("P", bound=Payload)


@dataclass(slots=True, eq=False)
class Node(Generic[P]):
    """A snapshot behind a prefix.

    Attributes:
        end: tokens from the beginning of the sequence.
        payload: what was remembered of the tokens since the parent; None at a root.
    """

    end: int
    payload: P | None
    parent: Node[P] | None
    key: bytes
    used: int = 0
    children: dict[int, dict[bytes, Node[P]]] = field(default_factory=dict)

    def payloads(self) -> list[P]:
        """Payloads from the root down to this node."""
        chain: list[P] = []
        node: Node[P] | None = self
        while node is not None and node.payload is not None:
            chain.append(node.payload)
            node = node.parent
        return chain[::-1]


class PrefixTree(Generic[P]):
    """Snapshots by prefix. Safe to share between threads.

    Args:
        limit: most bytes of all payloads; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._roots: dict[str, Node[P]] = {}
        self._bytes = 0
        self._clock = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Bytes of all payloads now."""
        return self._bytes

    def __len__(self) -> int:
        """How many snapshots are kept."""
        with self._lock:
            return sum(1 for root in self._roots.values() for _ in _below(root))

    def find(self, root: str, ids: Ids, end: int) -> Node[P]:
        """The node of the longest known prefix of ``ids[:end]``; a root (end 0) when none is known."""
        with self._lock:
            node = self._roots.get(root) or Node(0, None, None, root.encode())
            while True:
                node.used = next(self._clock)
                deeper = _step(node, ids, end)
                if deeper is None:
                    return node
                node = deeper

    def add(self, parent: Node[P], tokens: Ids, payload: P) -> Node[P]:
        """Remember what follows `parent` over `tokens`, and forget what has long not been used.

        Returns the node; when another thread was first, or the tree has no room, a node all the same, which just is not
        (or no longer) found.
        """
        with self._lock:
            node = Node(parent.end + len(tokens), payload, parent, tokens.tobytes(), next(self._clock))
            if payload.bytes > self.limit or not self._attached(parent):
                return node
            siblings = parent.children.setdefault(len(tokens), {})
            if node.key in siblings:
                return node
            if parent.parent is None:
                self._roots[parent.key.decode()] = parent
            siblings[node.key] = node
            self._bytes += payload.bytes
            self._shrink()
            return node

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._roots.clear()
            self._bytes = 0

    def _attached(self, node: Node[P]) -> bool:
        while node.parent is not None:
            if node.parent.children.get(len(node.key) // 8, {}).get(node.key) is not node:
                return False
            node = node.parent
        known = self._roots.get(node.key.decode())
        return known is node or (known is None and not node.children)

    def _shrink(self) -> None:
        while self._bytes > self.limit:
            leaves = (node for root in self._roots.values() for node in _below(root) if not node.children)
            self._drop(min(leaves, key=lambda node: node.used))

    def _drop(self, node: Node[P]) -> None:
        parent, payload = node.parent, node.payload
        assert parent is not None  # a root has children as long as it is kept, and so is never dropped
        assert payload is not None
        length = len(node.key) // 8
        del parent.children[length][node.key]
        if not parent.children[length]:
            del parent.children[length]
        self._bytes -= payload.bytes
        if parent.parent is None and not parent.children:
            del self._roots[parent.key.decode()]


def _step(node: Node[P], ids: Ids, end: int) -> Node[P] | None:
    for length in sorted(node.children, reverse=True):
        if node.end + length <= end:
            found = node.children[length].get(ids[node.end : node.end + length].tobytes())
            if found is not None:
                return found
    return None


def _below(root: Node[P]) -> Iterator[Node[P]]:
    pending = [root]
    while pending:
        for siblings in pending.pop().children.values():
            pending.extend(siblings.values())
            yield from siblings.values()
