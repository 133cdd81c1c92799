"""The joint schema head alone, at Clef-Flash's true size with random weights, against the reference's loops."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Row, compare
from dicast.batching import collate
from dicast.encoding import ClefEncoding, QuestionSpans
from dicast.models.clef import ClefNetwork
from dicast.models.head import JointSchemaHead

FLASH = {"hidden_size": 4096, "width": 1024, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 4096}
VOCABULARY = 2000
CASES = (
    # tokens, questions, options of each, target ratio
    (512, 1, 3, None),
    (512, 8, 4, None),
    (512, 64, 4, None),
    (2048, 1, 3, 2.5),
    (2048, 8, 4, 2.0),
    (2048, 64, 4, None),
)
SPAN = 2
"""Tokens of each question and option, so that 64 questions with 4 options fit into 512 tokens as well."""


class Lexicon:
    """Stands for the backbone: only its output embedding is asked for."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def lexical_rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.rows[ids]


def rows(rounds: int) -> Iterator[Row]:
    """One row per number of tokens and questions."""
    from clef_finetune._vendor import joint_schema_model as reference

    torch.manual_seed(0)
    ours = JointSchemaHead(**FLASH).eval().requires_grad_(False)
    theirs = reference.JointSchemaHead(**FLASH).eval().requires_grad_(False)
    theirs.load_state_dict(ours.state_dict())
    lexicon = torch.randn(VOCABULARY, FLASH["hidden_size"])
    network = ClefNetwork.__new__(ClefNetwork)
    torch.nn.Module.__init__(network)
    network.head, network.backbone = ours, Lexicon(lexicon)
    for case in CASES:
        yield _row(network, theirs, reference, lexicon, case, rounds)


@torch.inference_mode()
def _row(network: Any, theirs: Any, reference: Any, lexicon: Any, case: tuple[Any, ...], rounds: int) -> Row:
    tokens, questions, options, target = case
    encoding = _encoding(tokens, questions, options)
    hidden = torch.randn(1, tokens, FLASH["hidden_size"])
    ids = torch.from_numpy(encoding.ids)[None]
    mask = torch.ones_like(ids)
    record = reference.EncodedRecord(tuple(encoding.ids.tolist()), _reference_questions(encoding, reference), "r")

    @torch.inference_mode()
    def run_ours() -> torch.Tensor:
        batch = collate([encoding], pad_id=0)
        return network.head(network.head_inputs(batch, hidden))[0]

    @torch.inference_mode()
    def run_theirs() -> torch.Tensor:
        return torch.cat(theirs(hidden, ids, mask, [record], lexicon)[0])

    difference = float((run_ours() - run_theirs()).abs().max())
    return compare(
        "head",
        f"{tokens} tokens, {questions} x {options} options",
        {"dicast": run_ours, "reference": run_theirs},
        rounds=rounds,
        target=target,
        difference=difference,
        tolerance=1e-4,
    )


def _encoding(tokens: int, questions: int, options: int) -> ClefEncoding:
    """Spans that lie evenly over the second half of the sequence, or over all of it where they need more."""
    needed = questions * (1 + options) * SPAN
    start = min(tokens // 2, tokens - needed - 1)
    if start < 0:
        start, length = 0, max(1, math.floor((tokens - 1) / (questions * (1 + options))))
    else:
        length = SPAN
    at = start
    asked = []
    for index in range(questions):
        spans = [(at + length * i, at + length * (i + 1)) for i in range(1 + options)]
        at += length * (1 + options)
        names = tuple(f"o{i}" for i in range(options))
        asked.append(QuestionSpans(f"q{index}", "choice", names, spans[0], tuple(spans[1:])))
    ids = np.random.default_rng(0).integers(0, VOCABULARY, tokens)
    return ClefEncoding(ids, tuple(asked), prefix_length=start, media_offset=0, state_tokens=start)


def _reference_questions(encoding: ClefEncoding, reference: Any) -> tuple[Any, ...]:
    return tuple(
        reference.EncodedQuestion(q.id, 1, q.question_span, q.option_spans, q.options) for q in encoding.questions
    )
