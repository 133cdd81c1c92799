"""Random checkpoints in Clef's release layout, so that speed can be measured without any published weights.

The weights know nothing; shapes are what costs time. Tokenizer and processor come from the golden checkpoint of the
tests. Both implementations under test load the same folder.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dicast.checkpoints import copy_files, save_head
from dicast.models.head import JointSchemaHead

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "release"
CACHE = Path(__file__).parent / ".cache"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a checkpoint; three Gated DeltaNet layers to each full-attention layer, as in Clef.

    `attention` and `delta` are (query or value heads, key heads, head size).
    """

    hidden: int
    layers: int
    intermediate: int
    attention: tuple[int, int, int]
    delta: tuple[int, int, int]
    width: int
    head_heads: int
    vocabulary: int = 512
    routing_layers: int = 2
    field_layers: int = 4


HUNDRED_MILLION = Shape(
    hidden=768, layers=12, intermediate=2304, attention=(6, 2, 128), delta=(8, 4, 128), width=192, head_heads=3
)
"""About 100 million parameters in the decoder layers; head width a quarter of the hidden width, as in Clef-Flash."""
SIXTEEN_MILLION = Shape(
    hidden=384, layers=8, intermediate=1152, attention=(4, 2, 96), delta=(4, 2, 96), width=96, head_heads=3
)
"""The same on a small scale, for machines that are busy or slow."""
TINY = Shape(hidden=64, layers=4, intermediate=96, attention=(4, 2, 16), delta=(4, 2, 16), width=32, head_heads=4)


def checkpoint(shape: Shape, *, seed: int = 0, folder: Path | None = None) -> Path:
    """The folder of a random checkpoint with this shape; made once and kept in `benchmarks/.cache`."""
    folder = folder or CACHE / "-".join(str(value) for value in asdict(shape).values()).replace(" ", "")
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _write(shape, seed, folder)
        done.touch()
    return folder


def text_config(shape: Shape) -> dict[str, object]:
    """`text_config` of a Qwen3.5 checkpoint."""
    heads, key_heads, size = shape.attention
    value_heads, delta_keys, delta_size = shape.delta
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": size,
        "linear_num_value_heads": value_heads,
        "linear_num_key_heads": delta_keys,
        "linear_key_head_dim": delta_size,
        "linear_value_head_dim": delta_size,
        "linear_conv_kernel_dim": 4,
        "layer_types": [("full" if i % 4 == 3 else "linear") + "_attention" for i in range(shape.layers)],
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": _sections(size),
        },
        "tie_word_embeddings": False,
        "pad_token_id": 483,
        "eos_token_id": 485,
    }


def _sections(head_size: int) -> list[int]:
    half = head_size // 8  # a quarter of the head is rotated, half of that are frequencies
    return [half - 2 * (half // 3), half // 3, half // 3]


def _write(shape: Shape, seed: int, folder: Path) -> None:
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    torch.manual_seed(seed)
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_position_embeddings": 64}
    config = Qwen3_5Config(
        text_config=text_config(shape),
        vision_config=vision | {"out_hidden_size": shape.hidden, "spatial_merge_size": 2, "temporal_patch_size": 2},
        image_token_id=488,
        video_token_id=489,
        vision_start_token_id=486,
        vision_end_token_id=487,
        tie_word_embeddings=False,
    )
    folder.mkdir(parents=True)
    model = Qwen3_5ForConditionalGeneration(config)
    model.save_pretrained(folder)
    save_head(
        JointSchemaHead(
            hidden_size=shape.hidden,
            width=shape.width,
            routing_layers=shape.routing_layers,
            layers=shape.field_layers,
            heads=shape.head_heads,
            feedforward=4 * shape.width,
        ),
        folder,
    )
    copy_files(GOLDEN, folder)
