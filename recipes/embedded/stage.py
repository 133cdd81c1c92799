"""Between the stages: the weights of a run's last checkpoint as the model folder from which the next one starts.

    python recipes/embedded/stage.py RUN WARM OUT [--weights mean|last] [--mix 0.2] [--new-head] [--choice-scales]

WARM is the folder that `warm_start.py` wrote. `--mix` moves the encoder that far back to the pretrained one,
`--new-head` starts the joint part again (the prior is kept), `--choice-scales` gives the prior's scales for choices
their first values again: stage 1 had begun with a hypothesis scale of 0, so that a choice between yes and no had
learned nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dicast.models.segmented import SegmentModel, SegmentPrior

CHOICE = 1
SEED = 31


def trained_weights(run: Path, which: str) -> dict[str, Tensor]:
    """The weights that a run has trained: their running mean, or as they were at the last step."""
    checkpoint = sorted((run / "checkpoints").glob("step-*"))[-1] / "state.pt"
    found: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)["weights"]
    weights: dict[str, Tensor] = found["mean" if which == "mean" else "weights"]
    return weights


def next_start(
    warm: Path, weights: dict[str, Tensor], *, mix: float, new_head: bool, choice_scales: bool
) -> SegmentModel:
    """The model of a finished stage, prepared for the next one.

    Raises:
        SystemExit: the checkpoint holds weights of another model.
    """
    model = SegmentModel.warm_start(warm, seed=SEED)
    pretrained = {name: value.clone() for name, value in model.net.state_dict().items()}
    kept = ("bert.", "prior.") if new_head else ("",)
    unexpected = model.net.load_state_dict({k: v for k, v in weights.items() if k.startswith(kept)}, strict=False)
    if unexpected.unexpected_keys:
        raise SystemExit(f"the checkpoint holds unknown weights: {unexpected.unexpected_keys[:3]}")
    with torch.no_grad():
        for name, value in model.net.state_dict().items():
            if mix and name.startswith("bert."):
                value.lerp_(pretrained[name], mix)
        if choice_scales:
            fresh = SegmentPrior(model.net.bert.config.hidden_size)
            for name in ("hypothesis_scale", "label_scale"):
                getattr(model.net.prior, name)[CHOICE] = getattr(fresh, name)[CHOICE]
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("run", "warm", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--weights", choices=("mean", "last"), default="mean")
    parser.add_argument("--mix", type=float, default=0.0)
    parser.add_argument("--new-head", action="store_true")
    parser.add_argument("--choice-scales", action="store_true")
    args = parser.parse_args()
    weights = trained_weights(args.run, args.weights)
    model = next_start(
        args.warm, weights, mix=args.mix, new_head=args.new_head, choice_scales=args.choice_scales
    )  # fmt: skip
    model.save(args.out, args.warm / "tokenizer.json")


if __name__ == "__main__":
    main()
