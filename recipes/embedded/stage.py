"""Between the stages: the running mean of a run's last checkpoint as a model folder, with the prior's scales set anew.

    python recipes/embedded/stage.py RUN WARM OUT

The first stage had started with a hypothesis scale of 0 for choices, so that a choice between yes and no learned
nothing from its hypotheses. This sets it to what a fresh model starts with today.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from dicast.models.segmented import SegmentModel, SegmentPrior

CHOICE = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("run", "warm", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    checkpoint = sorted((args.run / "checkpoints").glob("step-*"))[-1] / "state.pt"
    mean = torch.load(checkpoint, map_location="cpu", weights_only=True)["weights"]["mean"]
    model = SegmentModel.warm_start(args.warm)
    unexpected = model.net.load_state_dict(mean, strict=False).unexpected_keys
    if unexpected:
        raise SystemExit(f"the checkpoint holds unknown weights: {unexpected[:3]}")
    fresh = SegmentPrior()
    with torch.no_grad():
        for name in ("hypothesis_scale", "label_scale"):
            getattr(model.net.prior, name)[CHOICE] = getattr(fresh, name)[CHOICE]
    model.save(args.out, args.warm / "tokenizer.json")


if __name__ == "__main__":
    main()
