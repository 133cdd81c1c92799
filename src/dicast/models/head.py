"""The joint schema head: hidden states and pooled spans of a batch of records to one logit per option.

One vectorised formulation over a padded batch. It knows nothing of tokenizers, prompts, backbones or how spans were
pooled. Parameter names and formulas are those of the Clef release (`joint_head.safetensors`), so its weights load
strictly; `docs/model.md` describes the steps.

Shapes: B records, S memory rows (positions), Q questions, O options of all questions, H backbone width, W head width.

Two stages, so that memory can be cached by position and exported apart:

    normed, memory = head.read(hidden)      # [..., H] -> [..., H], [..., W]
    logits = head(HeadInputs(...))          # [B, O], float32

Attention over the memory has two algebraically equal forms. With few queries it is cheaper to absorb the key and value
projections into the queries and outputs than to project every memory row; `MemoryAttention` chooses by cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOGIT_SCALE_LIMIT = math.log(100.0)
TYPE_CODES = {"noul": 0, "choice": 1, "score": 2}
AttentionForm: TypeAlias = Literal["auto", "absorbed", "projected"]


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The contents of `joint_head_config.json`.

    Attributes:
        hidden_size: width H of the backbone.
        width: width W of the head.
        routing_layers: evidence layers, in which options read the memory.
        layers: field decoder layers, in which questions see each other and the memory.
        heads: attention heads of every attention.
        feedforward: inner width of every feed-forward block.
        dropout: dropout probability while training.
    """

    hidden_size: int
    width: int
    routing_layers: int
    layers: int
    heads: int
    feedforward: int
    dropout: float = 0.0


class HeadInputs(NamedTuple):
    """What the head scores. Padding is marked by the masks (True = real) and never changes a real logit.

    A named tuple, so that it passes through compilers and exporters unchanged.

    Attributes:
        memory: ``[B, S, W]`` projected rows of every position, from :meth:`JointSchemaHead.read`.
        memory_mask: ``[B, S]`` bool.
        question: ``[B, Q, H]`` mean of the normed rows over each question's span.
        question_mask: ``[B, Q]`` bool.
        types: ``[B, Q]`` int64: noul 0, choice 1, score 2.
        option: ``[B, O, H]`` mean of the normed rows over each option's span.
        lexical: ``[B, O, H]`` mean of the raw output-embedding rows over each option's span.
        option_mask: ``[B, O]`` bool.
        owner: ``[B, O]`` int64, index of the question to which an option belongs; 0 at padding.
        summary: ``[B, H]`` global vector: the normed row of the last real token.
        prior_query: ``[B, Q, H]`` vector to which lexical means are compared; None means question + summary.
        hint: ``[B, O, W]`` added to the option queries before they read the memory; Clef has none.
    """

    memory: Tensor
    memory_mask: Tensor
    question: Tensor
    question_mask: Tensor
    types: Tensor
    option: Tensor
    lexical: Tensor
    option_mask: Tensor
    owner: Tensor
    summary: Tensor
    prior_query: Tensor | None = None
    hint: Tensor | None = None


class MemoryAttention(nn.Module):
    """Multi-head attention with released parameter names (`in_proj_weight` rows ordered q, k, v) and a key mask.

    Args:
        width: W, divisible by `heads`.
        heads: number of heads h; each has d = W/h channels.
        dropout: dropout on attention weights while training.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not divisible by {heads} heads")
        self.width, self.heads, self.dropout = width, heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor, form: AttentionForm = "auto") -> Tensor:
        """Attend from ``query [B, N, W]`` to ``memory [B, S, W]`` where ``mask [B, S]``: gives ``[B, N, W]``."""
        if form == "auto":
            form = self.cheaper_form(query.shape[1], memory.shape[1])
        attend = self._absorbed if form == "absorbed" else self._projected
        out: Tensor = self.out_proj(attend(query, memory, mask))
        return out

    def cheaper_form(self, queries: int, rows: int) -> Literal["absorbed", "projected"]:
        """Which form needs fewer multiplications for N queries over S rows.

        projected: 2 S W^2 to project keys and values, 2 N S W to attend.
        absorbed: 2 N W^2 to move queries and outputs, 2 N h S W to attend in the full width.
        Dropout acts on attention weights in both, so training may use either.
        """
        absorbed = queries * self.width + queries * self.heads * rows
        projected = rows * self.width + queries * rows
        return "absorbed" if absorbed < projected else "projected"

    def _split(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:-1], self.heads, -1).transpose(1, 2)  # [B, h, N, d]

    def _projected(self, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        width = self.width
        wq, wkv = self.in_proj_weight[:width], self.in_proj_weight[width:]
        bq, bkv = self.in_proj_bias[:width], self.in_proj_bias[width:]
        q = self._split(F.linear(query, wq, bq))
        k, v = (self._split(part) for part in F.linear(memory, wkv, bkv).chunk(2, dim=-1))
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :], dropout_p=dropout)
        return out.transpose(1, 2).flatten(2)

    def _absorbed(self, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Scores are q.(Wk m + bk) = (Wk^T q).m + const per query; the constant cancels in the softmax.

        Outputs are Wv (sum_s a_s m_s) + bv, since the weights a_s sum to 1 (after dropout: to their own sum).
        """
        wq, wk, wv = self.in_proj_weight.chunk(3)
        bq, _, bv = self.in_proj_bias.chunk(3)
        batch, count, width = query.shape
        head_size = width // self.heads
        q = self._split(F.linear(query, wq, bq))  # [B, h, N, d]
        reach = torch.matmul(q, wk.view(self.heads, head_size, width))  # [B, h, N, W]
        reach = reach.reshape(batch, self.heads * count, width) * head_size**-0.5
        scores = torch.matmul(reach, memory.transpose(1, 2))  # [B, hN, S]
        scores = scores.masked_fill(~mask[:, None, :], torch.finfo(scores.dtype).min)
        weights = F.dropout(scores.softmax(dim=-1), self.dropout, self.training)
        mixed = torch.matmul(weights, memory).view(batch, self.heads, count, width)
        values = torch.matmul(mixed, wv.view(self.heads, head_size, width).transpose(1, 2))  # [B, h, N, d]
        total = weights.sum(dim=-1).view(batch, self.heads, count, 1) if self.training and self.dropout else 1.0
        values = values + total * bv.view(1, self.heads, 1, head_size)
        return values.transpose(1, 2).flatten(2)


class EvidenceLayer(nn.Module):
    """Options read the memory: pre-norm cross-attention (memory normalised too) and a feed-forward block."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width = config.width
        self.query_norm = nn.LayerNorm(width)
        self.memory_norm = nn.LayerNorm(width)
        self.attention = MemoryAttention(width, config.heads, config.dropout)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = nn.Sequential(
            nn.Linear(width, config.feedforward),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feedforward, width),
            nn.Dropout(config.dropout),
        )

    def forward(self, options: Tensor, memory: Tensor, mask: Tensor, form: AttentionForm = "auto") -> Tensor:
        """Options ``[B, O, W]`` after reading memory ``[B, S, W]``."""
        options = options + self.attention(self.query_norm(options), self.memory_norm(memory), mask, form)
        out: Tensor = options + self.feedforward(self.feedforward_norm(options))
        return out


class FieldLayer(nn.Module):
    """Questions see each other, then the memory as it is, then a feed-forward block; all pre-norm."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width = config.width
        self.self_attn = MemoryAttention(width, config.heads, config.dropout)
        self.multihead_attn = MemoryAttention(width, config.heads, config.dropout)
        self.linear1 = nn.Linear(width, config.feedforward)
        self.linear2 = nn.Linear(config.feedforward, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, fields: Tensor, field_mask: Tensor, memory: Tensor, mask: Tensor, form: AttentionForm = "auto"
    ) -> Tensor:
        """Fields ``[B, Q, W]`` after one layer."""
        normed = self.norm1(fields)
        fields = fields + self.dropout(self.self_attn(normed, normed, field_mask, form))
        fields = fields + self.dropout(self.multihead_attn(self.norm2(fields), memory, mask, form))
        inner = self.dropout(F.gelu(self.linear1(self.norm3(fields))))
        out: Tensor = fields + self.dropout(self.linear2(inner))
        return out


class JointSchemaHead(nn.Module):
    """The head of Clef: see the module's header. The constructor takes the keys of `joint_head_config.json`."""

    def __init__(
        self,
        hidden_size: int,
        width: int,
        routing_layers: int,
        layers: int,
        heads: int,
        feedforward: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        config = HeadConfig(hidden_size, width, routing_layers, layers, heads, feedforward, dropout)
        self.config = config
        self.hidden_norm = nn.LayerNorm(hidden_size)
        self.memory_projection = nn.Linear(hidden_size, width, bias=False)
        self.question_projection = nn.Linear(hidden_size, width, bias=False)
        self.option_question_projection = nn.Linear(hidden_size, width, bias=False)
        self.global_projection = nn.Linear(hidden_size, width, bias=False)
        self.option_context_projection = nn.Linear(hidden_size, width, bias=False)
        self.option_lexical_projection = nn.Linear(hidden_size, width, bias=False)
        self.type_embedding = nn.Embedding(len(TYPE_CODES), width)
        self.evidence_layers = nn.ModuleList(EvidenceLayer(config) for _ in range(routing_layers))
        self.option_summary_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(FieldLayer(config) for _ in range(layers))
        self.field_norm = nn.LayerNorm(width)
        self.option_norm = nn.LayerNorm(width)
        self.residual_scorer = nn.Sequential(
            nn.Linear(4 * width, width), nn.GELU(), nn.Dropout(dropout), nn.Linear(width, 1)
        )
        self.prior_logit_scale = nn.Parameter(torch.zeros(()))
        self.joint_logit_scale = nn.Parameter(torch.zeros(()))
        self.residual_gate = nn.Parameter(torch.zeros(()))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype in which the head computes."""
        return self.memory_projection.weight.dtype

    def read(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Normed rows ``[..., H]`` and memory rows ``[..., W]`` of hidden states ``[..., H]``, in the head's dtype."""
        normed = self.hidden_norm(hidden.to(self.dtype))
        return normed, self.memory_projection(normed)

    def forward(self, inputs: HeadInputs, form: AttentionForm = "auto") -> Tensor:
        """Logits ``[B, O]`` in float32 or wider; what stands at padded options has no meaning.

        Args:
            inputs: pooled spans, memory and masks.
            form: which form of attention over the memory to use; both give the same logits up to rounding.
        """
        options = self._route(inputs, form)
        fields = self._decide_fields(inputs, options, form)
        joint = self._joint_logits(inputs, self.field_norm(fields), self.option_norm(options))
        logits = self._prior_logits(inputs) + torch.sigmoid(self.residual_gate) * joint
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _route(self, inputs: HeadInputs, form: AttentionForm) -> Tensor:
        """Option queries ``[B, O, W]`` after the evidence layers."""
        asked = _pick(self.option_question_projection(inputs.question), inputs.owner)
        options: Tensor = (
            self.option_context_projection(inputs.option) + self.option_lexical_projection(inputs.lexical) + asked
        )
        if inputs.hint is not None:
            options = options + inputs.hint
        for layer in self.evidence_layers:
            options = layer(options, inputs.memory, inputs.memory_mask, form)
        return options

    def _decide_fields(self, inputs: HeadInputs, options: Tensor, form: AttentionForm) -> Tensor:
        """Fields ``[B, Q, W]``: each question with a summary of its own options, after the field layers."""
        base = self.question_projection(inputs.question)
        summary = self._option_summary(inputs, base, options)
        fields: Tensor = (
            base
            + self.option_summary_norm(summary)
            + self.global_projection(inputs.summary)[:, None]
            + self.type_embedding(inputs.types)
        )
        for layer in self.layers:
            fields = layer(fields, inputs.question_mask, inputs.memory, inputs.memory_mask, form)
        return fields

    def _option_summary(self, inputs: HeadInputs, base: Tensor, options: Tensor) -> Tensor:
        """Mean of each question's own options, weighted by softmax of their similarity to it: ``[B, Q, W]``."""
        asked = torch.arange(base.shape[1], device=base.device)
        member = (inputs.owner[:, None, :] == asked[None, :, None]) & inputs.option_mask[:, None, :]
        scores = torch.matmul(base, options.transpose(1, 2)) / math.sqrt(self.config.width)
        scores = scores.masked_fill(~member, torch.finfo(scores.dtype).min)
        return torch.matmul(scores.softmax(dim=-1), options)

    def _joint_logits(self, inputs: HeadInputs, fields: Tensor, options: Tensor) -> Tensor:
        asked = _pick(fields, inputs.owner)
        features = torch.cat((asked, options, asked * options, (asked - options).abs()), dim=-1)
        cosine = F.cosine_similarity(asked, options, dim=-1, eps=1e-8)
        scored: Tensor = self.residual_scorer(features).squeeze(-1)
        return _scale(self.joint_logit_scale) * cosine + scored

    def _prior_logits(self, inputs: HeadInputs) -> Tensor:
        target = inputs.prior_query
        if target is None:
            target = inputs.question + inputs.summary[:, None]
        target = F.normalize(target, dim=-1, eps=1e-12)
        lexical = F.normalize(inputs.lexical, dim=-1, eps=1e-12)
        return _scale(self.prior_logit_scale) * (lexical * _pick(target, inputs.owner)).sum(dim=-1)


def _pick(rows: Tensor, owner: Tensor) -> Tensor:
    """Row of each option's question: ``[B, Q, C]`` and ``[B, O]`` to ``[B, O, C]``."""
    return rows.gather(1, owner[:, :, None].expand(-1, -1, rows.shape[-1]))


def _scale(logit_scale: Tensor) -> Tensor:
    return logit_scale.clamp(max=LOGIT_SCALE_LIMIT).exp()


def head_from_state(config: dict[str, Any], state: dict[str, Tensor]) -> JointSchemaHead:
    """A head with the weights of `state`; all names must be present and none extra.

    Raises:
        RuntimeError: names or shapes differ.
    """
    with torch.device("meta"):
        head = JointSchemaHead(**config)
    head.load_state_dict(state, strict=True, assign=True)
    return head
