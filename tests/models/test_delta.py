"""The Gated DeltaNet of Dicast: token by token, against transformers' code, continued, masked, and its gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dicast.models import delta, qwen_layers
from dicast.models.delta import gated_delta_rule, layer_forward
from dicast.models.qwen_cache import cache_argument

TOKENS = [1, 2, 63, 64, 65, 130, 200]


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.set_grad_enabled(True)


def inputs(tokens: int, *, records: int = 2, shared: int = 2, strength: float = 3.0) -> dict[str, Tensor]:
    """Random arguments of the rule in float64: 2 key heads of size 8, values of size 6."""
    heads = 2 * shared
    draw = {"both": (2, 2, 8), "value": (heads, 6)}
    found = {name: torch.randn(records, tokens, *shape, dtype=torch.float64) for name, shape in draw.items()}
    decay = -strength * torch.rand(records, tokens, heads, dtype=torch.float64)
    return found | {"decay": decay, "beta": torch.rand(records, tokens, heads, dtype=torch.float64)}


def one_by_one(both: Tensor, value: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as it is written in the paper."""
    shared = value.shape[2] // both.shape[3]
    query, key = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in both.unbind(2))
    query, key = (x.repeat_interleave(shared, dim=2) for x in (query * key.shape[-1] ** -0.5, key))
    outputs = []
    for t in range(value.shape[1]):
        state = decay[:, t, :, None, None].exp() * state
        correction = beta[:, t, :, None] * (value[:, t] - torch.einsum("bhde,bhd->bhe", state, key[:, t]))
        state = state + key[:, t, :, :, None] * correction[:, :, None, :]
        outputs.append(torch.einsum("bhde,bhd->bhe", state, query[:, t]))
    return torch.stack(outputs, dim=1), state


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("shared", [1, 2, 3])
@pytest.mark.parametrize("gradients", [True, False])
def test_chunks_give_what_the_recurrence_gives_token_by_token(tokens: int, shared: int, gradients: bool) -> None:
    torch.set_grad_enabled(gradients)
    given = inputs(tokens, shared=shared)
    state = torch.randn(2, 2 * shared, 8, 6, dtype=torch.float64)
    for ours, theirs in zip(gated_delta_rule(**given, state=state), one_by_one(**given, state=state), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_sequence_in_two_parts_is_the_sequence_in_one() -> None:
    given = inputs(170)
    whole, last = gated_delta_rule(**given)
    first, state = gated_delta_rule(**{name: x[:, :41] for name, x in given.items()})
    second, state = gated_delta_rule(**{name: x[:, 41:] for name, x in given.items()}, state=state)
    torch.testing.assert_close(torch.cat((first, second), dim=1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-12)


def test_tokens_without_strength_and_decay_leave_the_state_as_it_is() -> None:
    given = inputs(70)
    given["decay"][:, 50:] = 0
    given["beta"][:, 50:] = 0
    _, state = gated_delta_rule(**given)
    _, before = gated_delta_rule(**{name: x[:, :50] for name, x in given.items()})
    torch.testing.assert_close(state, before, rtol=0, atol=1e-12)


def test_what_has_decayed_beyond_notice_counts_as_zero_and_nothing_is_denormal() -> None:
    given = {name: x.float() for name, x in inputs(128, strength=30.0).items()}
    outputs, state = gated_delta_rule(**given)
    exact, _ = one_by_one(
        **{name: x.double() for name, x in given.items()}, state=torch.zeros(2, 4, 8, 6, dtype=torch.float64)
    )
    torch.testing.assert_close(outputs.double(), exact, rtol=0, atol=1e-5)
    passed = given["decay"].transpose(1, 2).cumsum(-1)
    pairs = delta._pairwise(passed)
    assert float(pairs[pairs > 0].min()) > 1e-18
    assert int((pairs > 0).sum()) < pairs.numel() / 8
    assert state.isfinite().all()


@pytest.mark.parametrize("tokens", [5, 150])
def test_gradients_are_those_of_the_recurrence(tokens: int) -> None:
    given = inputs(tokens) | {"state": torch.randn(2, 4, 8, 6, dtype=torch.float64)}
    weight = torch.randn(2, tokens, 4, 6, dtype=torch.float64)
    found = []
    for rule in (gated_delta_rule, one_by_one):
        leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
        outputs, state = rule(**leaves)
        ((outputs * weight).sum() + state.square().sum()).backward()
        found.append({name: x.grad for name, x in leaves.items()})
    for name in given:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-9, atol=1e-10)


@pytest.fixture
def decoder() -> Any:
    """A random text decoder of transformers in float64, with two value heads to a key head."""
    from benchmarks.checkpoints import TINY, text_config
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**text_config(TINY))).model.eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or "A_log" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def installed(decoder: Any) -> Any:
    own = copy.deepcopy(decoder)
    assert qwen_layers.install(own)
    return own


def test_a_decoder_gives_the_hidden_states_of_transformers(decoder: Any) -> None:
    own = installed(decoder)
    ids = torch.randint(0, 400, (3, 150))
    mask = torch.ones_like(ids)
    mask[1, 40:], mask[2, 129:] = 0, 0
    for given in (None, mask):
        ours, theirs = (m(input_ids=ids, attention_mask=given).last_hidden_state for m in (own, decoder))
        real = (mask if given is not None else torch.ones_like(mask)).bool()
        torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=2e-5)


def test_without_gradients_the_same_comes_out_and_nothing_that_was_given_changes(decoder: Any) -> None:
    own = installed(decoder.double())
    ids = torch.randint(0, 400, (2, 90))
    with_gradients = own(input_ids=ids).last_hidden_state
    with torch.inference_mode():
        torch.testing.assert_close(own(input_ids=ids).last_hidden_state, with_gradients, rtol=0, atol=1e-12)
        given = inputs(100) | {"state": torch.randn(2, 4, 8, 6, dtype=torch.float64)}
        before = {name: x.clone() for name, x in given.items()}
        gated_delta_rule(**given)
        assert all(torch.equal(given[name], before[name]) for name in given)


def test_denormals_are_zero_only_inside_and_only_in_this_thread() -> None:
    tiny = torch.tensor([1e-39])
    with delta.denormals_as_zero(torch.device("cpu")):
        assert float(tiny * 0.5) == 0
        with delta.denormals_as_zero(torch.device("cpu")):
            pass
        assert float(tiny * 0.5) == 0
    assert float(tiny * 0.5) > 0


def test_padding_on_the_left_is_masked_too(decoder: Any) -> None:
    own = installed(decoder.double())
    ids = torch.randint(0, 400, (1, 20))
    alone = own(input_ids=ids).last_hidden_state
    padded = torch.nn.functional.pad(ids, (7, 0))
    mask = torch.nn.functional.pad(torch.ones_like(ids), (7, 0))
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    found = own(input_ids=padded, attention_mask=mask, position_ids=positions).last_hidden_state
    torch.testing.assert_close(found[:, 7:], alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("parts", [(150,), (1, 149), (3, 1, 1, 145), (64, 86)])
def test_a_cache_is_continued_from_any_place(decoder: Any, parts: tuple[int, ...]) -> None:
    from transformers import DynamicCache

    own = installed(decoder.double())
    ids = torch.randint(0, 400, (2, 150))
    whole = own(input_ids=ids).last_hidden_state
    cache = DynamicCache(config=own.config)
    argument = cache_argument(own)
    found = [own(input_ids=part, use_cache=True, **{argument: cache}).last_hidden_state for part in ids.split(parts, 1)]
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=0, atol=1e-9)


def test_parts_of_a_layer_s_tokens_are_one_sequence(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = installed(decoder.double())
    ids = torch.randint(0, 400, (2, 300))
    whole = own(input_ids=ids).last_hidden_state
    monkeypatch.setattr(delta, "SEGMENT", 128)
    assert delta.segment_length(2, 300) == 64
    torch.testing.assert_close(own(input_ids=ids).last_hidden_state, whole, rtol=0, atol=1e-9)


def test_a_decoder_trains_as_with_transformers(decoder: Any) -> None:
    own = installed(decoder).train()
    decoder.train()
    ids = torch.randint(0, 400, (2, 90))
    for model in (own, decoder):
        model(input_ids=ids).last_hidden_state.square().mean().backward()
    for (name, ours), theirs in zip(own.named_parameters(), decoder.parameters(), strict=True):
        scale = float(theirs.grad.abs().max())
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-3 * scale, msg=name)


def test_packed_sequences_stay_with_transformers(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = installed(decoder).layers[0].linear_attn

    def own(layer: Any, hidden_states: Tensor, cache: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:
        return hidden_states, cache, attention_mask, kwargs

    monkeypatch.setattr(type(layer), "forward", own)
    rows, mask, bounds = torch.randn(1, 8, 64), torch.ones(1, 8), torch.tensor([0, 4, 8])
    assert isinstance(layer(rows, attention_mask=mask), Tensor)
    assert layer(rows, cache_params="c", attention_mask=mask, seq_idx=bounds) == (rows, "c", mask, {"seq_idx": bounds})
    assert layer(rows, cu_seq_lens_q=bounds)[0] is rows


def test_layers_of_another_make_keep_their_own_code(decoder: Any, caplog: pytest.LogCaptureFixture) -> None:
    del decoder.layers[2].linear_attn.dt_bias
    assert not qwen_layers.install(decoder)
    assert "unknown" in caplog.text
    assert not any("forward" in vars(layer.linear_attn) for layer in decoder.layers[:3])


def test_the_class_of_transformers_is_left_alone(decoder: Any) -> None:
    before = type(decoder.layers[0].linear_attn).forward
    own = installed(decoder)
    assert type(own.layers[0].linear_attn).forward is before
    assert own.layers[0].linear_attn.forward.__func__ is layer_forward
    assert "forward" not in vars(decoder.layers[0].linear_attn)
