"""Counting tokens without loading weights, for the check before a run. Knows tokenizers of the two families."""

from __future__ import annotations

from collections.abc import Callable

from dicast.checkpoints import resolve
from dicast.encoding import DEFAULT_MAX_LENGTH, ClefEncoder, load_tokenizer
from dicast.models.base import EncodeOptions
from dicast.segments import SegmentEncoder
from dicast.training.config import Config
from dicast.training.data import Example


def token_counter(config: Config) -> Callable[[Example], int] | None:
    """A function that counts an example's text tokens and raises TokenBudgetError where it does not fit.

    Returns None for families of other packages.

    Raises:
        ModelNotFoundError, CheckpointError: the starting model is not there.
    """
    settings = config.model
    if settings.family not in ("segments", "clef"):
        return None
    name = f"{settings.start}@{settings.revision}" if settings.revision else settings.start
    folder, _, _ = resolve(name or None)
    encoder: SegmentEncoder | ClefEncoder
    if settings.family == "segments":
        encoder = SegmentEncoder.from_file(folder / "tokenizer.json")
    else:
        encoder = ClefEncoder(load_tokenizer(folder), max_length=settings.max_length or DEFAULT_MAX_LENGTH)
    options = EncodeOptions(truncation=settings.truncation)
    return lambda example: encoder.encode(example.record, options).length
