"""The joint schema head once more, one record and one question at a time, straight from the formulas of docs/model.md.

Slow and plain on purpose: it shares nothing with `dicast.models.head` but the weights, and so can vouch for it where
the reference package is not installed.

Shapes: n tokens, H backbone width, W head width, K questions, O options of all questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CODES = {"noul": 0, "choice": 1, "score": 2}


def loop_logits(head: Any, hidden: Tensor, lexical: Tensor, questions: Sequence[Any]) -> list[Tensor]:
    """Logits per question.

    Args:
        head: the head whose weights are used.
        hidden: ``[n, H]`` final hidden states of one record.
        lexical: ``[n, H]`` output-embedding rows of its tokens.
        questions: with `type`, `question_span` and `option_spans`.
    """
    normed = head.hidden_norm(hidden.to(head.dtype))
    memory = head.memory_projection(normed)
    summary = normed[-1]
    asked = [_mean(normed, question.question_span) for question in questions]
    contexts, words, owners = [], [], []
    for index, question in enumerate(questions):
        for span in question.option_spans:
            contexts.append(_mean(normed, span))
            words.append(_mean(lexical.to(head.dtype), span))
            owners.append(index)
    options = torch.stack(
        [
            head.option_context_projection(context)
            + head.option_lexical_projection(word)
            + head.option_question_projection(asked[owner])
            for context, word, owner in zip(contexts, words, owners, strict=True)
        ]
    )
    for layer in head.evidence_layers:
        options = options + _attend(layer.attention, layer.query_norm(options), layer.memory_norm(memory))
        options = options + layer.feedforward(layer.feedforward_norm(options))
    fields = []
    for index, question in enumerate(questions):
        base = head.question_projection(asked[index])
        own = torch.stack([option for option, owner in zip(options, owners, strict=True) if owner == index])
        weights = torch.softmax(own @ base / math.sqrt(len(base)), dim=0)
        kind = head.type_embedding.weight[CODES[question.type]]
        fields.append(base + head.option_summary_norm(weights @ own) + head.global_projection(summary) + kind)
    field = torch.stack(fields)
    for layer in head.layers:
        field = field + _attend(layer.self_attn, layer.norm1(field), layer.norm1(field))
        field = field + _attend(layer.multihead_attn, layer.norm2(field), memory)
        field = field + layer.linear2(F.gelu(layer.linear1(layer.norm3(field))))
    field, options = head.field_norm(field), head.option_norm(options)
    logits: list[list[Tensor]] = [[] for _ in questions]
    for place, owner in enumerate(owners):
        joint = _joint(head, field[owner], options[place])
        prior = torch.dot(_unit(words[place]), _unit(asked[owner] + summary)) * _scale(head.prior_logit_scale)
        logits[owner].append(prior + torch.sigmoid(head.residual_gate) * joint)
    return [torch.stack(values) for values in logits]


def _mean(rows: Tensor, span: tuple[int, int]) -> Tensor:
    return rows[span[0] : span[1]].mean(dim=0)


def _attend(attention: Any, query: Tensor, memory: Tensor) -> Tensor:
    """Torch's own multi-head attention with the same weights, without any mask."""
    module = nn.MultiheadAttention(query.shape[1], attention.heads, batch_first=True, device=query.device)
    module = module.to(query.dtype).eval()
    module.load_state_dict(
        {
            "in_proj_weight": attention.in_proj_weight,
            "in_proj_bias": attention.in_proj_bias,
            "out_proj.weight": attention.out_proj.weight,
            "out_proj.bias": attention.out_proj.bias,
        }
    )
    out, _ = module(query[None], memory[None], memory[None], need_weights=False)
    result: Tensor = out[0]
    return result


def _joint(head: Any, field: Tensor, option: Tensor) -> Tensor:
    features = torch.cat((field, option, field * option, (field - option).abs()))
    cosine = torch.dot(field, option) / (field.norm().clamp(min=1e-8) * option.norm().clamp(min=1e-8))
    scored: Tensor = head.residual_scorer(features)[0]
    return _scale(head.joint_logit_scale) * cosine + scored


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm().clamp(min=1e-12)


def _scale(scale: Tensor) -> Tensor:
    return scale.clamp(max=math.log(100.0)).exp()
