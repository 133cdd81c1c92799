"""Reading a short record padded and without a mask gives the rows of the plain reading; capture itself needs CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.golden_cases import RELEASE

from dicast.checkpoints import load_clef
from dicast.errors import ConfigError
from dicast.models.graphs import Replay, ShortRecords
from dicast.records import Noul, Record


def test_a_padded_record_reads_as_it_would_alone() -> None:
    captured = []

    def capture(backbone: Any, bucket: int) -> Replay:
        captured.append(bucket)
        return lambda ids: backbone.decode(None, ids=ids)

    model = load_clef(RELEASE, device="cpu", dtype="float32", vision=False)
    record = Record("a state", {"q": Noul("Is it so?")})
    encoding = model.encode(record)
    plain = model.score([encoding])[0][0]
    short = ShortRecords(
        model.network.backbone, buckets=(encoding.length - 1, encoding.length + 40, 2000), capture=capture
    )
    model.network.short = short
    for _ in range(2):
        assert np.abs(model.score([encoding])[0][0] - plain).max() < 5e-4
    assert captured == [encoding.length + 40]
    assert not short.fits(2, 10)
    assert not short.fits(1, 2001)
    model.score([encoding, encoding])
    assert captured == [encoding.length + 40]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_graphs_are_refused_without_cuda() -> None:
    with pytest.raises(ConfigError, match="CUDA graphs need a CUDA device"):
        load_clef(RELEASE, device="cpu", dtype="float32", vision=False, cuda_graphs=True)
