"""Quantised backbones: which matrices, how far the answers move, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torchao", reason="quantisation is an optional extra")

from tests.golden_cases import RELEASE

from dicast.checkpoints import load_clef
from dicast.errors import ConfigError
from dicast.models.quantize import QUANTISED, quantise
from dicast.records import Noul, Record

RECORD = Record("a state", {"q": Noul("Is it?")})


@pytest.mark.filterwarnings("ignore")
def test_only_the_large_matrices_of_the_decoder_layers_are_quantised() -> None:
    model = load_clef(RELEASE, device="cpu", dtype="float32", vision=False)
    before = model.score([model.encode(RECORD)])[0][0]
    names = quantise(model.network.backbone, "int8")
    layers = model.network.backbone.text.layers
    kinds = {name.rpartition(".")[2] for name in names}
    assert kinds == QUANTISED
    for name, module in layers.named_modules():
        if name in names:
            assert "Int8" in type(module.weight).__name__
    plain = {name for name, weight in layers.named_parameters() if "Int8" not in type(weight).__name__}
    for part in ("in_proj_a.weight", "in_proj_b.weight", "conv1d.weight", "A_log", "dt_bias", "layernorm.weight"):
        assert any(name.endswith(part) for name in plain)
    for module in (model.network.head, model.network.backbone.model.lm_head, model.network.backbone.text.embed_tokens):
        assert all("Int8" not in type(weight).__name__ for weight in module.parameters())
    after = model.score([model.encode(RECORD)])[0][0]
    assert 0 < float(np.abs(after - before).max()) < 0.5


@pytest.mark.filterwarnings("ignore")
def test_four_bits_skip_matrices_that_are_no_multiple_of_the_group() -> None:
    model = load_clef(RELEASE, device="cpu", dtype="float32", vision=False, quantize="int8")
    assert model.info.details["weights"] == "int8"
    model = load_clef(RELEASE, device="cpu", dtype="float32", vision=False)
    assert quantise(model.network.backbone, "int4") == []


def test_other_widths_are_refused() -> None:
    model = load_clef(RELEASE, device="cpu", dtype="float32", vision=False)
    with pytest.raises(ConfigError, match="int8 or int4"):
        quantise(model.network.backbone, "int2")  # type: ignore[arg-type]
