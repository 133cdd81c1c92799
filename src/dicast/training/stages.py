"""The two stages as one loss per question: supervised (sft) and rewards (rlcd), with their named parts.

Formulas are in `objectives`; this module only weighs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dicast.training import objectives as terms
from dicast.training.config import ObjectiveConfig, RlcdConfig
from dicast.training.objectives import PaddedLogits
from dicast.training.targets import Targets


@dataclass
class StageLoss:
    """Losses of a batch before averaging.

    Attributes:
        total: scalar, the weighted sum over questions.
        weight: scalar, the sum of question weights that `total` is to be divided by.
        parts: name -> weighted sum over questions, detached.
    """

    total: Tensor
    weight: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


def supervised(padded: PaddedLogits, targets: Targets, config: ObjectiveConfig) -> StageLoss:
    """Label-smoothed cross-entropy or soft-label KL, plus Brier, plus ranked probability score."""
    target = targets.distribution(padded.mask, config.soft_share)
    smoothed = terms.smooth(target, padded.mask, config.label_smoothing)
    hard = torch.where(targets.has_soft[:, None], target, smoothed)
    values = {
        "cross_entropy": torch.where(
            targets.has_soft, terms.soft_kl(padded, target), terms.cross_entropy(padded, hard)
        ),
        "brier": terms.brier(padded, target),
        "rps": terms.ranked_probability_score(padded, target),
    }
    factors = {"cross_entropy": config.cross_entropy, "brier": config.brier, "rps": config.rps}
    return _weigh(values, factors, targets.weight)


def rewarded(
    padded: PaddedLogits,
    targets: Targets,
    reference: Tensor,
    config: RlcdConfig,
    generator: torch.Generator | None = None,
) -> StageLoss:
    """RLCD: minus the reward, plus KL to the reference, plus a proper score where an answer is known.

    Args:
        padded: logits of the policy.
        targets: labels and rewards.
        reference: [N, O] log-probabilities of the starting policy.
        config: weights.
        generator: for the sampled estimator.
    """
    reward = targets.reward(padded, config.partial_credit)
    target = targets.distribution(padded.mask, 1.0)
    known = ((targets.gold >= 0) | targets.has_soft).float()
    score = terms.brier(padded, target) if config.proper_rule == "brier" else terms.cross_entropy(padded, target)
    if config.estimator == "exact":
        gain = -terms.expected_reward(padded, reward) - config.record_bonus * _shared_bonus(padded, targets)
    else:
        gain = terms.group_relative(
            padded,
            reward,
            samples=config.samples,
            normalise=config.normalise,
            generator=generator,
            gold=targets.gold,
            record_bonus=config.record_bonus,
        )
    values = {"reward": gain, "kl": terms.kl_to_reference(padded, reference), "proper": score * known}
    return _weigh(values, {"reward": config.reward, "kl": config.kl, "proper": config.proper}, targets.weight)


def _shared_bonus(padded: PaddedLogits, targets: Targets) -> Tensor:
    """The chance that a whole record is right, divided among its labelled questions, [N]."""
    records = int(padded.record.max()) + 1 if padded.record.numel() else 0
    known = (targets.gold >= 0).float()
    chance = terms.whole_record_chance(padded, targets.gold, records)
    count = torch.zeros_like(chance).index_add(0, padded.record, known).clamp(min=1)
    return (chance / count)[padded.record] * known


def _weigh(values: dict[str, Tensor], factors: dict[str, float], weight: Tensor) -> StageLoss:
    sums = {name: (value * weight).sum() for name, value in values.items() if factors[name] != 0.0}
    total = torch.stack([factors[name] * value for name, value in sums.items()]).sum()
    return StageLoss(total, weight.sum(), {name: value.detach() for name, value in sums.items()})
