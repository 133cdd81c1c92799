"""Hypotheses that read the evidence: the upper layers of a cross-encoder, over segments that were encoded apart.

A hypothesis (instruction and option) and the state are encoded separately up to a middle layer of the encoder; the
reader's layers then let every token of the hypothesis attend to its own tokens and to the state's (as in DeFormer, Cao
et al. 2020), so that "is this urgent: yes" is compared with the state word by word. The state does not read back, so
its rows stay the same for every question and can be cached. The reader's layers start as copies of the encoder's upper
ones; what its [CLS] row says is added to the prior's logit of the option. It starts at zero.

One record at a time: hypotheses have no padding between records, and all of a record's read the same rows. The order of
hypotheses, and how many there are, cannot change what one of them says beyond rounding.

Shapes: P hypotheses of at most L tokens, S rows of evidence, H encoder width, h heads of d channels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dicast.models.bert import BertLayer

MASKED = -1e9


class Reader(nn.Module):
    """Layers in which hypotheses attend to themselves and to evidence, and a scorer of their [CLS] rows.

    Args:
        layers: layers to start from, see :meth:`BertEncoder.layers`; copied.
        width: encoder width H.
        parts: how many kinds of evidence there are.
    """

    def __init__(self, layers: Iterable[nn.Module], width: int, parts: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer in layers)
        self.part = nn.Parameter(torch.zeros(parts, width))
        self.score = nn.Linear(width, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, rows: Tensor, mask: Tensor, evidence: Tensor, part: Tensor, usable: Tensor) -> Tensor:
        """What each hypothesis says of the evidence.

        Args:
            rows: ``[P, L, H]`` middle states of the hypotheses.
            mask: ``[P, L]`` True for tokens.
            evidence: ``[S, H]`` middle states of the evidence.
            part: ``[S]`` int64: what kind of evidence a row is.
            usable: ``[P, S]`` True where the hypothesis may read the row.

        Returns:
            Logits ``[P]``.
        """
        evidence = evidence + self.part[part]
        own, given = _bias(mask)[:, None, None], _bias(usable)[:, None, None]  # [P, 1, 1, L or S]
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            asking = rows[:, :1] if number == last else rows  # of the last layer only [CLS] is needed
            rows = _read(layer, asking, rows, evidence, own, given)  # type: ignore[arg-type]
        said: Tensor = self.score(rows[:, 0]).squeeze(-1)
        return said


def _bias(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, MASKED)


def _read(layer: BertLayer, asking: Tensor, rows: Tensor, evidence: Tensor, own: Tensor, given: Tensor) -> Tensor:
    """One layer: `asking` ``[P, A, H]`` attends to `rows` ``[P, L, H]`` and to `evidence` ``[S, H]``."""
    count, asked, width = asking.shape
    heads, size = layer.heads, width // layer.heads

    def split(x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], heads, size).transpose(-3, -2)

    query = split(layer.query(asking)) / math.sqrt(size)  # [P, h, A, d]
    inner = torch.matmul(query, split(layer.key(rows)).transpose(-2, -1)) + own  # [P, h, A, L]
    queries = query.transpose(0, 1).reshape(heads, count * asked, size)
    outer = torch.matmul(queries, split(layer.key(evidence)).transpose(-2, -1))  # [h, P A, S]
    outer = outer.view(heads, count, asked, -1).transpose(0, 1) + given  # [P, h, A, S]
    weights = torch.cat((inner, outer), dim=-1).softmax(dim=-1)
    length = rows.shape[1]
    mixed = torch.matmul(weights[..., :length], split(layer.value(rows)))  # [P, h, A, d]
    outward = weights[..., length:].transpose(0, 1).reshape(heads, count * asked, -1)
    read = torch.matmul(outward, split(layer.value(evidence))).view(heads, count, asked, size).transpose(0, 1)
    both = (mixed + read).transpose(1, 2).reshape(count, asked, width)
    asking = layer.attention_norm(asking + layer.output(both))
    out: Tensor = layer.norm(asking + layer.down(F.gelu(layer.up(asking))))
    return out
