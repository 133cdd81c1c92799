"""The head computes the specified formulas, in either form of attention, alone or in any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dicast.models.head import AttentionForm, HeadInputs, JointSchemaHead, MemoryAttention, head_from_state

SMALL: dict[str, Any] = {
    "hidden_size": 8,
    "width": 8,
    "routing_layers": 2,
    "layers": 2,
    "heads": 2,
    "feedforward": 12,
}


def golden_head() -> JointSchemaHead:
    """The weights of the golden vector: v = sin(1 + 0.7 t + 0.31 k) for the t-th name and k-th element."""
    head = JointSchemaHead(**SMALL).double().eval()
    state = head.state_dict()
    for t, name in enumerate(sorted(state)):
        k = torch.arange(state[name].numel(), dtype=torch.float64)
        v = torch.sin(1 + 0.7 * t + 0.31 * k).view(state[name].shape)
        state[name] = 1 + 0.1 * v if "norm" in name and name.endswith(".weight") else 0.3 * v
    scalars = {"prior_logit_scale": 0.5, "joint_logit_scale": 1.2, "residual_gate": 0.3}
    state |= {name: torch.tensor(value, dtype=torch.float64) for name, value in scalars.items()}
    head.load_state_dict(state)
    return head


def golden_inputs(head: JointSchemaHead) -> HeadInputs:
    s, v = torch.arange(16.0, dtype=torch.float64)[:, None], torch.arange(30.0, dtype=torch.float64)[:, None]
    j = torch.arange(8.0, dtype=torch.float64)[None]
    hidden = torch.sin(0.5 * s + 0.9 * j + 0.1 * s * j)
    embedding = torch.cos(0.3 * v + 0.8 * j + 0.05 * v * j)
    ids = (7 * torch.arange(16) + 3) % 30
    normed, memory = head.read(hidden)

    def means(rows: Tensor, spans: list[tuple[int, int]]) -> Tensor:
        return torch.stack([rows[start:end].mean(0) for start, end in spans])[None]

    options = [(4, 6), (6, 7), (7, 9), (11, 13), (13, 14)]
    return HeadInputs(
        memory=memory[None],
        memory_mask=torch.ones(1, 16, dtype=torch.bool),
        question=means(normed, [(2, 4), (9, 11)]),
        question_mask=torch.ones(1, 2, dtype=torch.bool),
        types=torch.tensor([[1, 0]]),
        option=means(normed, options),
        lexical=means(embedding[ids], options),
        option_mask=torch.ones(1, 5, dtype=torch.bool),
        owner=torch.tensor([[0, 0, 0, 1, 1]]),
        summary=normed[-1:],
    )


@pytest.mark.parametrize("form", ["absorbed", "projected"])
def test_golden_vector(form: AttentionForm) -> None:
    head = golden_head()
    inputs = golden_inputs(head)
    np.testing.assert_allclose(inputs.memory[0, 0, :3].detach(), [-0.94162341, 0.90836924, -0.49181005], atol=1e-8)
    logits = head(inputs, form)[0].detach()
    np.testing.assert_allclose(logits, [1.5229076, 2.2100590, 0.8786166, 1.3587023, 1.9965469], atol=1e-6)


def test_intermediate_rows_of_the_golden_vector() -> None:
    head = golden_head()
    inputs = golden_inputs(head)
    options = head._route(inputs, "auto")
    np.testing.assert_allclose(options[0, 0, :3].detach(), [-0.80208523, 1.25502517, -1.15833523], atol=1e-8)
    fields = head.field_norm(head._decide_fields(inputs, options, "auto"))
    np.testing.assert_allclose(fields[0, 0, :3].detach(), [-1.12402879, 1.57971001, -0.65081930], atol=1e-8)


def test_the_released_tensor_names_and_shapes() -> None:
    head = JointSchemaHead(hidden_size=64, width=32, routing_layers=2, layers=4, heads=4, feedforward=64)
    shapes = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    assert len(shapes) == 122
    assert shapes["evidence_layers.0.attention.in_proj_weight"] == (96, 32)
    assert shapes["layers.3.multihead_attn.out_proj.bias"] == (32,)
    assert shapes["residual_scorer.0.weight"] == (32, 128)
    assert shapes["prior_logit_scale"] == ()


def test_parameter_counts_of_the_released_heads() -> None:
    """121,762,820 for Clef-Flash and 128,056,324 for Clef (spec, section 0)."""
    common = {"width": 1024, "routing_layers": 2, "layers": 4, "heads": 16, "feedforward": 4096}
    with torch.device("meta"):
        flash, clef = JointSchemaHead(hidden_size=4096, **common), JointSchemaHead(hidden_size=5120, **common)
    assert sum(p.numel() for p in flash.parameters()) == 121_762_820
    assert sum(p.numel() for p in clef.parameters()) == 128_056_324


@pytest.mark.parametrize(("queries", "rows"), [(1, 1), (3, 50), (40, 7)])
def test_both_forms_of_attention_are_equal(queries: int, rows: int) -> None:
    torch.manual_seed(0)
    attention = MemoryAttention(32, 4).double()
    torch.nn.init.normal_(attention.in_proj_bias)
    query, memory = torch.randn(2, queries, 32).double(), torch.randn(2, rows, 32).double()
    mask = torch.ones(2, rows, dtype=torch.bool)
    mask[1, rows // 2 + 1 :] = False
    with torch.no_grad():
        absorbed, projected = (attention(query, memory, mask, form) for form in ("absorbed", "projected"))
    torch.testing.assert_close(absorbed, projected, rtol=1e-12, atol=1e-12)


def test_attention_equals_the_framework_s() -> None:
    torch.manual_seed(0)
    ours, theirs = MemoryAttention(32, 4).double(), torch.nn.MultiheadAttention(32, 4, batch_first=True).double()
    theirs.load_state_dict(ours.state_dict())
    query, memory = torch.randn(2, 3, 32).double(), torch.randn(2, 9, 32).double()
    with torch.no_grad():
        expected = theirs(query, memory, memory, need_weights=False)[0]
        actual = ours(query, memory, torch.ones(2, 9, dtype=torch.bool))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_the_cheaper_form_is_chosen() -> None:
    attention = MemoryAttention(1024, 16)
    assert attention.cheaper_form(3, 2048) == "absorbed"
    assert attention.cheaper_form(500, 2048) == "projected"


def test_dropout_trains_in_both_forms_with_the_same_expectation() -> None:
    torch.manual_seed(0)
    attention = MemoryAttention(16, 2, dropout=0.3).double().train()
    torch.nn.init.normal_(attention.in_proj_bias)
    query, memory, mask = torch.randn(1, 2, 16).double(), torch.randn(1, 5, 16).double(), torch.ones(1, 5).bool()
    with torch.no_grad():
        means = [
            torch.stack([attention(query, memory, mask, form) for _ in range(4000)]).mean(0)
            for form in ("absorbed", "projected")
        ]
        exact = attention.eval()(query, memory, mask)
    for mean in means:
        torch.testing.assert_close(mean, exact, rtol=0, atol=0.05)


@pytest.mark.parametrize("form", ["auto", "absorbed", "projected"])
def test_padding_never_changes_a_logit(form: AttentionForm) -> None:
    head = golden_head()
    alone = golden_inputs(head)
    garbage = 1e3

    def pad(tensor: Tensor, size: int, value: float) -> Tensor:
        filler = torch.full((1, size - tensor.shape[1], *tensor.shape[2:]), value, dtype=tensor.dtype)
        return torch.cat((tensor, filler), dim=1)

    padded = HeadInputs(
        memory=pad(alone.memory, 40, garbage),
        memory_mask=pad(alone.memory_mask, 40, 0),
        question=pad(alone.question, 5, garbage),
        question_mask=pad(alone.question_mask, 5, 0),
        types=pad(alone.types, 5, 0),
        option=pad(alone.option, 9, garbage),
        lexical=pad(alone.lexical, 9, garbage),
        option_mask=pad(alone.option_mask, 9, 0),
        owner=pad(alone.owner, 9, 0),
        summary=alone.summary,
    )
    with torch.no_grad():
        torch.testing.assert_close(head(padded, form)[:, :5], head(alone, form), rtol=1e-12, atol=1e-12)


def test_loading_is_strict() -> None:
    state = JointSchemaHead(**SMALL).state_dict()
    with pytest.raises(RuntimeError, match=r"Missing key.*hidden_norm\.weight"):
        head_from_state(SMALL, {name: t for name, t in state.items() if name != "hidden_norm.weight"})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*extra"):
        head_from_state(SMALL, state | {"extra": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="size mismatch"):
        head_from_state(SMALL, state | {"hidden_norm.bias": torch.zeros(3)})


def test_a_fresh_head_starts_as_published() -> None:
    head = JointSchemaHead(**SMALL)
    assert [s.item() for s in (head.prior_logit_scale, head.joint_logit_scale, head.residual_gate)] == [0.0, 0.0, 0.0]
