"""Which labelled records an evaluation reads: files by name or folder, fixed random subsets, content hashes.

The records themselves are read by `dicast.training.data`, one at a time. Knows nothing of models or answers.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dicast.errors import ConfigError
from dicast.evaluation.backends import systemone_body
from dicast.records import Record
from dicast.training.data import Example, Problem, read_examples

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of labelled records.

    Attributes:
        name: name of the data set: the folder's when the file is called train, dev or test, else the file's.
        path: the file, or an ``hf:`` name.
    """

    name: str
    path: str


def find_files(sources: Sequence[str], *, split: str = "test") -> list[DataFile]:
    """Files behind paths: a file stands for itself, a folder for its ``{split}.*`` file or for those of its subfolders.

    Raises:
        ConfigError: nothing there.
    """
    found: list[DataFile] = []
    for source in sources:
        behind = _behind(source, split)
        if not behind:
            raise ConfigError(f"no {split} records found in {source}", field="data", seen=source)
        found += behind
    return found


def _behind(source: str, split: str) -> list[DataFile]:
    path = Path(source)
    if source.startswith("hf:"):
        return [DataFile(source, source)]
    if path.is_file():
        return [DataFile(_name(path), str(path))]
    files = sorted(path.glob(f"{split}.*")) or sorted(path.glob(f"*/{split}.*"))
    return [DataFile(_name(file), str(file)) for file in files]


def read(
    files: Iterable[DataFile], *, limit: int = 0, seed: int = 0, problem: Problem | None = None
) -> Iterator[Example]:
    """Examples of all files in order.

    Args:
        files: from `find_files`.
        limit: most records per file, as the fixed random subset that `subset` draws; 0 for all.
        seed: of the subset.
        problem: called for a wrong row, which is then left out; without it the first wrong row raises.
    """
    for file in files:
        examples = read_examples(file.path, source=file.name, on_problem=problem)
        yield from subset(examples, limit, seed=seed) if limit else examples


def subset(examples: Iterable[Example], n: int, *, seed: int = 0) -> list[Example]:
    """A uniform random subset of at most `n` examples in their first order; the same for the same seed and file."""
    draw = random.Random(seed)
    kept: list[tuple[int, Example]] = []
    for index, example in enumerate(examples):
        if len(kept) < n:
            kept.append((index, example))
        elif (place := draw.randrange(index + 1)) < n:
            kept[place] = (index, example)
    return [example for _, example in sorted(kept, key=lambda item: item[0])]


def record_hash(record: Record) -> str:
    """32 hexadecimal digits that stand for what a model sees of a record: state, questions and media, not the id."""
    body = systemone_body(record)
    text = json.dumps(body, ensure_ascii=True, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ContentHash:
    """SHA-256 over the records' content and labels, independent of file format and ids. Order counts."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.n = 0

    def add(self, example: Example) -> None:
        """Include one example."""
        self._digest.update(f"{record_hash(example.record)}{sorted(example.gold.items())}\n".encode())
        self.n += 1

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._digest.hexdigest()


def _name(path: Path) -> str:
    stem = path.name.split(".", 1)[0]
    return path.resolve().parent.name if stem in SPLITS else stem
