"""Pairs of texts that are nearly the same, in time that grows with their number, not its square. Knows text only.

MinHash over word triples (Broder 1997) with banding finds candidates; their true Jaccard similarity decides.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

HASHES, BANDS = 32, 8
"""32 hashes in 8 bands of 4: a pair of similarity 0.8 is a candidate with probability 1 - (1 - 0.8^4)^8 = 0.985."""
PRIME = (1 << 31) - 1
WORDS = 3


def near_pairs(first: Sequence[str], second: Sequence[str], *, least: float) -> list[tuple[int, int, float]]:
    """Pairs (index in first, index in second, similarity) of at least a similarity; one for each text of `second`.

    Args:
        first, second: the texts.
        least: smallest Jaccard similarity of their sets of word triples.
    """
    sets = [shingles(text) for text in first]
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for index, found in enumerate(sets):
        for band in _bands(found):
            buckets[band].append(index)
    pairs = []
    for right, text in enumerate(second):
        found = shingles(text)
        candidates = {left for band in _bands(found) for left in buckets.get(band, ())}
        best = max(((jaccard(sets[left], found), left) for left in candidates), default=(0.0, -1))
        if best[0] >= least:
            pairs.append((best[1], right, best[0]))
    return pairs


def shingles(text: str) -> frozenset[int]:
    """Hashes of the word triples of a text, without case and punctuation; shorter texts are one shingle."""
    words = re.findall(r"\w+", text.lower())
    count = max(1, len(words) - WORDS + 1)
    return frozenset(zlib.crc32(" ".join(words[start : start + WORDS]).encode()) for start in range(count))


def jaccard(first: frozenset[int], second: frozenset[int]) -> float:
    """Size of the intersection over size of the union."""
    return len(first & second) / max(1, len(first | second))


def _bands(found: frozenset[int]) -> list[tuple[int, bytes]]:
    values = np.fromiter(found, np.int64, len(found)) % PRIME
    least = ((values[:, None] * _FACTORS + _OFFSETS) % PRIME).min(axis=0)
    return [(band, part.tobytes()) for band, part in enumerate(np.split(least, BANDS))]


def _constants(seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(1, PRIME, HASHES, dtype=np.int64)


_FACTORS, _OFFSETS = _constants(1), _constants(2)
