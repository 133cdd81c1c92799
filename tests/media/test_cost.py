"""Token counts from sizes: equal to the transformers processors, and to the published example."""

from __future__ import annotations

import numpy as np
import pytest

from dicast.media import Geometry, image_tokens, smart_resize, video_tokens


def test_the_published_example() -> None:
    assert smart_resize(441, 330, factor=32, least=65_536, most=16_777_216) == (448, 320)
    assert image_tokens(441, 330) == 140


def test_the_largest_image_costs_what_the_specification_says() -> None:
    assert image_tokens(8192, 8192) == 16_384


def test_images_equal_the_processor() -> None:
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_qwen2_vl")
    draw = np.random.default_rng(1)
    for height, width in draw.integers(1, 9000, (200, 2)).tolist():
        if max(height, width) <= 200 * min(height, width):
            ours = smart_resize(height, width, factor=32, least=65_536, most=16_777_216)
            assert ours == module.smart_resize(height, width, 32, 65_536, 16_777_216)


def test_videos_equal_the_processor() -> None:
    module = pytest.importorskip("transformers.models.qwen3_vl.video_processing_qwen3_vl")
    draw = np.random.default_rng(2)
    geometry = Geometry()
    for frames, height, width in draw.integers(2, 1500, (300, 3)).tolist():
        if max(height, width) <= 200 * min(height, width):
            rows, columns = module.smart_resize(frames, height, width, 2, 32, *geometry.video_pixels)
            assert video_tokens(frames, height, width) == -(-frames // 2) * (rows // 32) * (columns // 32)
