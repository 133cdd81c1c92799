from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from dicast.engine.prefixes import Node, PrefixTree


@dataclass(frozen=True)
class Blob:
    bytes: int = 10


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def grow(tree: PrefixTree[Blob], root: str, tokens: np.ndarray, *ends: int) -> Node[Blob]:
    node = tree.find(root, tokens, 0)
    for end in ends:
        node = tree.add(node, tokens[node.end : end], Blob())
    return node


def test_the_longest_known_prefix_is_found() -> None:
    tree: PrefixTree[Blob] = PrefixTree(1000)
    grow(tree, "", ids(1, 2, 3, 4, 5), 2, 4, 5)
    assert tree.find("", ids(1, 2, 3, 4, 5, 6), 6).end == 5
    assert tree.find("", ids(1, 2, 3, 4, 5, 6), 4).end == 4
    assert tree.find("", ids(1, 2, 3, 4, 9), 5).end == 4
    assert tree.find("", ids(1, 2, 9), 3).end == 2
    assert tree.find("", ids(9), 1).end == 0
    assert len(tree.find("", ids(1, 2, 3, 4, 5), 5).payloads()) == 3


def test_other_media_are_another_prefix() -> None:
    tree: PrefixTree[Blob] = PrefixTree(1000)
    grow(tree, "a", ids(1, 2), 2)
    assert tree.find("a", ids(1, 2), 2).end == 2
    assert tree.find("b", ids(1, 2), 2).end == 0


def test_what_is_longest_unused_goes_first_and_leaves_before_trunks() -> None:
    tree: PrefixTree[Blob] = PrefixTree(40)
    grow(tree, "", ids(1, 2, 3), 1, 2, 3)
    grow(tree, "", ids(7), 1)
    tree.find("", ids(1, 2, 3), 3)
    grow(tree, "", ids(8), 1)
    assert tree.find("", ids(7), 1).end == 0
    grow(tree, "", ids(9), 1)
    assert tree.find("", ids(1, 2, 3), 3).end == 2
    assert tree.bytes == 40


def test_nothing_is_kept_without_room() -> None:
    tree: PrefixTree[Blob] = PrefixTree(0)
    node = grow(tree, "", ids(1, 2), 1, 2)
    assert len(node.payloads()) == 2
    assert len(tree) == 0


def test_bytes_and_roots_stay_bounded_over_many_prefixes() -> None:
    tree: PrefixTree[Blob] = PrefixTree(200)
    rng = random.Random(0)
    for n in range(2000):
        tokens = np.array(rng.choices(range(4), k=6), np.int64)
        grow(tree, str(n % 50), tokens, *sorted({rng.randint(1, 6), 6}))
        assert tree.bytes <= 200
    assert len(tree) == 20
    assert len(tree._roots) <= 20
    tree.clear()
    assert (len(tree), tree.bytes) == (0, 0)


def test_growing_from_a_forgotten_node_keeps_nothing_unreachable() -> None:
    tree: PrefixTree[Blob] = PrefixTree(20)
    node = grow(tree, "", ids(1), 1)
    tree.clear()
    tree.add(node, ids(2), Blob())
    assert (len(tree), tree.bytes) == (0, 0)
