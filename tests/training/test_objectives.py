import pytest
import torch

from dicast.training import objectives as terms
from dicast.training.objectives import SCORE, PaddedLogits


def padded(
    logits: torch.Tensor, options: list[int], types: list[int] | None = None, record: list[int] | None = None
) -> PaddedLogits:
    mask = torch.arange(logits.shape[1])[None, :] < torch.tensor(options)[:, None]
    kinds = torch.tensor(types or [1] * len(options))
    return PaddedLogits(logits, mask, kinds, torch.tensor(record or list(range(len(options)))))


@pytest.fixture
def batch() -> PaddedLogits:
    torch.manual_seed(3)
    return padded(torch.randn(3, 4), [4, 2, 3], [SCORE, 0, 1], [0, 0, 1])


TARGET = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.75, 0.25, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
LOSSES = {
    "cross_entropy": lambda p: terms.cross_entropy(p, TARGET),
    "soft_kl": lambda p: terms.soft_kl(p, TARGET),
    "brier": lambda p: terms.brier(p, TARGET),
    "rps": lambda p: terms.ranked_probability_score(p, TARGET),
    "reward": lambda p: terms.expected_reward(p, TARGET),
    "kl": lambda p: terms.kl_to_reference(p, TARGET.clamp(min=1e-3).log()),
    "record": lambda p: terms.whole_record_chance(p, torch.tensor([3, 0, 1]), 2),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_agree_with_finite_differences(batch: PaddedLogits, name: str) -> None:
    logits = batch.logits.double().requires_grad_()

    def value(x: torch.Tensor) -> torch.Tensor:
        return LOSSES[name](PaddedLogits(x, batch.mask, batch.types, batch.record)).sum()

    assert torch.autograd.gradcheck(value, (logits,))


@pytest.mark.parametrize("name", LOSSES)
def test_padding_changes_neither_values_nor_gradients(batch: PaddedLogits, name: str) -> None:
    logits = batch.logits.clone().requires_grad_()
    changed = torch.where(batch.mask, batch.logits, torch.tensor(1e4)).requires_grad_()
    first = LOSSES[name](PaddedLogits(logits, batch.mask, batch.types, batch.record))
    second = LOSSES[name](PaddedLogits(changed, batch.mask, batch.types, batch.record))
    torch.testing.assert_close(first, second)
    first.sum().backward()
    second.sum().backward()
    torch.testing.assert_close(logits.grad, changed.grad)
    assert torch.all(changed.grad[~batch.mask] == 0)  # type: ignore[index]


@pytest.mark.parametrize("name", ["cross_entropy", "soft_kl", "brier", "rps", "kl"])
def test_the_optimum_is_the_target(name: str) -> None:
    target = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    logits = torch.zeros(1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(600):
        batch = padded(logits, [4], [SCORE])
        loss = {
            "cross_entropy": lambda b: terms.cross_entropy(b, target),
            "soft_kl": lambda b: terms.soft_kl(b, target),
            "brier": lambda b: terms.brier(b, target),
            "rps": lambda b: terms.ranked_probability_score(b, target),
            "kl": lambda b: terms.kl_to_reference(b, target.log()),
        }[name](batch)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    torch.testing.assert_close(padded(logits, [4]).probabilities().detach(), target, atol=2e-3, rtol=0)


def test_smoothing_spreads_over_real_options_only() -> None:
    batch = padded(torch.zeros(1, 3), [2])
    smoothed = terms.smooth(torch.tensor([[1.0, 0.0, 0.0]]), batch.mask, 0.1)
    torch.testing.assert_close(smoothed, torch.tensor([[0.95, 0.05, 0.0]]))


def test_values_by_hand() -> None:
    batch = padded(torch.tensor([[0.8, 0.1, 0.1]]).log(), [3], [SCORE])
    target = torch.tensor([[0.0, 0.0, 1.0]])
    assert terms.cross_entropy(batch, target).item() == pytest.approx(2.302585, abs=1e-5)
    assert terms.brier(batch, target).item() == pytest.approx(0.64 + 0.01 + 0.81, abs=1e-5)
    assert terms.ranked_probability_score(batch, target).item() == pytest.approx((0.64 + 0.81) / 2, abs=1e-5)


def test_ranked_probability_score_is_for_score_questions_only() -> None:
    batch = padded(torch.randn(1, 3), [3], [1])
    assert terms.ranked_probability_score(batch, torch.tensor([[1.0, 0.0, 0.0]])).item() == 0.0


def test_partial_credit_fades_with_distance_and_only_for_scores() -> None:
    batch = padded(torch.zeros(2, 4), [4, 3], [SCORE, 1])
    reward = terms.graded_reward(torch.tensor([1, 1]), batch, 0.5)
    torch.testing.assert_close(reward, torch.tensor([[0.5, 1.0, 0.5, 0.25], [0.0, 1.0, 0.0, 0.0]]))


def test_the_whole_record_is_the_product_of_its_labelled_questions() -> None:
    logits = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]]).log()
    batch = padded(logits, [2, 2, 2], record=[0, 0, 1])
    chance = terms.whole_record_chance(batch, torch.tensor([0, 1, -1]), 2)
    torch.testing.assert_close(chance, torch.tensor([0.4, 0.0]))


def test_sampled_gradient_estimates_the_exact_one() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([[0.3, -0.2, 0.5]], requires_grad=True)
    reward = torch.tensor([[1.0, 0.2, 0.0]])
    (-terms.expected_reward(padded(logits, [3]), reward)).sum().backward()
    exact = logits.grad.clone()  # type: ignore[union-attr]
    logits.grad = None
    many = logits.expand(20000, 3)
    batch = padded(many, [3] * 20000)
    terms.group_relative(batch, reward.expand(20000, 3), samples=4).mean().backward()
    torch.testing.assert_close(logits.grad, exact, atol=0.01, rtol=0)


@pytest.mark.parametrize("normalise", [False, True])
def test_group_relative_finds_the_best_option(normalise: bool) -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    generator = torch.Generator().manual_seed(1)
    reward = torch.tensor([[0.1, 0.9, 0.5]])
    for _ in range(300):
        optimizer.zero_grad()
        terms.group_relative(
            padded(logits, [3]), reward, samples=8, normalise=normalise, generator=generator
        ).sum().backward()
        optimizer.step()
    assert padded(logits, [3]).probabilities()[0, 1] > 0.95


def test_reward_with_kl_finds_the_tilted_reference() -> None:
    """The optimum of reward - b KL is reference * exp(reward / b), normalised."""
    reference, reward, weight = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.0, 1.0, 0.5]]), 0.5
    logits = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.05)
    for _ in range(500):
        batch = padded(logits, [3])
        loss = -terms.expected_reward(batch, reward) + weight * terms.kl_to_reference(batch, reference.log())
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
    tilted = reference * (reward / weight).exp()
    torch.testing.assert_close(padded(logits, [3]).probabilities().detach(), tilted / tilted.sum(), atol=1e-3, rtol=0)
