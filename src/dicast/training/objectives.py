"""What training makes smaller: losses and rewards on a padded matrix of option logits.

Knows nothing of models, tokens, files or loops. Everything works on N questions with at most O options, padded:

    logits [N, O] float32   mask [N, O] bool (True = a real option)   types [N] int64 (noul 0, choice 1, score 2)
    target [N, O] float32   a distribution over the real options, 0 on padding
    reward [N, O] float32   what choosing an option earns

Each function returns one number per question, [N], so that weights and averages are the caller's business. Padded
options never contribute to a value or to a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NOUL, CHOICE, SCORE = 0, 1, 2


@dataclass
class PaddedLogits:
    """Option logits of all questions of a batch.

    Attributes:
        logits: [N, O] float32; the values on padding are ignored.
        mask: [N, O] bool, True on real options; every row has at least one.
        types: [N] int64: noul 0, choice 1, score 2.
        record: [N] int64, the index of the question's record in the batch, not decreasing.
    """

    logits: Tensor
    mask: Tensor
    types: Tensor
    record: Tensor

    def log_probabilities(self) -> Tensor:
        """Log-softmax over the real options, [N, O]; 0 on padding so that products stay finite."""
        logits = self.logits.to(torch.promote_types(self.logits.dtype, torch.float32)).masked_fill(
            ~self.mask, float("-inf")
        )
        return logits.log_softmax(-1).masked_fill(~self.mask, 0.0)

    def probabilities(self) -> Tensor:
        """Softmax over the real options, [N, O]; 0 on padding."""
        return self.log_probabilities().exp() * self.mask


def one_hot(gold: Tensor, mask: Tensor) -> Tensor:
    """Gold option indices [N] as distributions [N, O]; an index of -1 (unknown) gives a row of zeros."""
    target = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    known = gold >= 0
    target[known, gold[known]] = 1.0
    return target


def smooth(target: Tensor, mask: Tensor, amount: float) -> Tensor:
    """Mix a target with the uniform distribution over the real options: (1 - a) t + a / n."""
    uniform = mask.float() / mask.sum(-1, keepdim=True)
    return (1.0 - amount) * target + amount * uniform


def cross_entropy(padded: PaddedLogits, target: Tensor) -> Tensor:
    """-sum t log p, [N]. With a smoothed one-hot target this is label-smoothed cross-entropy."""
    return -(target * padded.log_probabilities()).sum(-1)


def soft_kl(padded: PaddedLogits, target: Tensor) -> Tensor:
    """KL(t || p) = sum t (log t - log p), [N]: cross-entropy minus the target's own entropy, so that 0 is reachable."""
    return torch.xlogy(target, target).sum(-1) + cross_entropy(padded, target)


def brier(padded: PaddedLogits, target: Tensor) -> Tensor:
    """Brier's score over all options, sum (p - t)^2, [N], between 0 and 2 (Brier 1950, original form)."""
    return ((padded.probabilities() - target) ** 2).sum(-1)


def ranked_probability_score(padded: PaddedLogits, target: Tensor) -> Tensor:
    """Ranked probability score of ordered levels, [N]: sum over k of (P(level <= k) - T(level <= k))^2 / (n - 1).

    The squared earth mover's distance between the distributions (Epstein 1969), between 0 and 1. It is 0 for questions
    that are not scores and for scores of one level.
    """
    levels = padded.mask.sum(-1)
    gap = (padded.probabilities() - target).cumsum(-1) * padded.mask  # the last real column is 0: both sum to 1
    value = (gap**2).sum(-1) / (levels - 1).clamp(min=1)
    return value * (padded.types == SCORE)


def expected_reward(padded: PaddedLogits, reward: Tensor) -> Tensor:
    """Exact expected reward of one question answered by sampling, sum p r, [N]."""
    return (padded.probabilities() * reward * padded.mask).sum(-1)


def graded_reward(gold: Tensor, padded: PaddedLogits, partial_credit: float = 0.0) -> Tensor:
    """Rewards that follow from gold labels, [N, O]: 1 for the gold option, c^d for a level at distance d from it.

    Args:
        gold: [N] option index, -1 where unknown (such rows earn nothing).
        partial_credit: c, the credit of the neighbouring level of a score question; 0 means right or nothing.
    """
    reward = one_hot(gold, padded.mask)
    if partial_credit <= 0.0:
        return reward
    columns = torch.arange(padded.mask.shape[1], device=gold.device)
    distance = (columns[None, :] - gold[:, None]).abs()
    graded = torch.tensor(partial_credit, device=gold.device) ** distance * padded.mask
    is_graded = (padded.types == SCORE) & (gold >= 0)
    return torch.where(is_graded[:, None], graded, reward)


def whole_record_chance(padded: PaddedLogits, gold: Tensor, records: int) -> Tensor:
    """Probability that every labelled question of a record is sampled right, [records]: the product of p(gold).

    Questions are independent given the logits, so the product is exact. A record without labels has 0.
    """
    known = gold >= 0
    picked = padded.log_probabilities().gather(1, gold.clamp(min=0)[:, None])[:, 0] * known
    total = picked.new_zeros(records).index_add(0, padded.record, picked)
    labelled = picked.new_zeros(records).index_add(0, padded.record, known.to(picked.dtype)) > 0
    return total.exp() * labelled


def group_relative(
    padded: PaddedLogits,
    reward: Tensor,
    *,
    samples: int,
    normalise: bool = False,
    generator: torch.Generator | None = None,
    gold: Tensor | None = None,
    record_bonus: float = 0.0,
) -> Tensor:
    """Policy-gradient surrogate with the group's mean as baseline, [N] (one-step bandit, as in GRPO).

    `samples` options are drawn for every question; the advantage of a draw is its reward minus the mean reward of the
    question's draws (divided by their standard deviation with `normalise`), and the loss is -mean(advantage log p).
    The mean over the other draws would be unbiased; the plain group mean scales the gradient by (K - 1) / K, which is
    undone here. With `record_bonus`, draw k of every question of a record earns the bonus when all draws k are gold.

    Its value says nothing; its gradient estimates that of minus the expected reward.
    """
    probabilities = padded.probabilities()
    draws = torch.multinomial(probabilities.detach(), samples, replacement=True, generator=generator)  # [N, K]
    earned = reward.gather(1, draws)
    if record_bonus > 0.0 and gold is not None:
        earned = earned + record_bonus * _all_right(draws, gold, padded.record)
    advantage = (earned - earned.mean(-1, keepdim=True)) * (samples / max(samples - 1, 1))
    if normalise:
        advantage = advantage / earned.std(-1, keepdim=True, unbiased=False).clamp(min=1e-4)
    return -(advantage * padded.log_probabilities().gather(1, draws)).mean(-1)


def kl_to_reference(padded: PaddedLogits, reference: Tensor) -> Tensor:
    """KL(p || reference) = sum p (log p - log reference), [N]; `reference` holds log-probabilities, [N, O]."""
    gap = padded.log_probabilities() - reference.masked_fill(~padded.mask, 0.0)
    return (padded.probabilities() * gap).sum(-1)


def _all_right(draws: Tensor, gold: Tensor, record: Tensor) -> Tensor:
    """Whether draw k of every labelled question of the question's record is gold, [N, K] float."""
    known = gold >= 0
    wrong = ((draws != gold[:, None]) & known[:, None]).float()
    records = int(record.max()) + 1 if record.numel() else 0
    mistakes = torch.zeros(records, draws.shape[1], device=draws.device).index_add(0, record, wrong)
    return ((mistakes == 0)[record] & known[:, None]).float()
