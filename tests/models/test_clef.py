"""A release checkpoint gives the reference's logits, alone and in any batch, in text, images and videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden_cases import CASES, FLOAT64_LOGITS, GOLDEN, RELEASE, media_of

from dicast.checkpoints import load_clef
from dicast.errors import CapabilityError
from dicast.models.base import EncodeOptions, Logits
from dicast.models.clef import ClefModel
from dicast.records import Noul, Record, Score, as_questions

GOLDEN_FLOAT32_NOISE = 5e-4
"""How far the reference's float32 logits lie from its own float64 logits on this ill-conditioned checkpoint."""


@pytest.fixture(scope="module")
def exact() -> ClefModel:
    """The golden checkpoint in float64, so that rounding hides no difference."""
    model = load_clef(RELEASE, device="cpu", dtype="float32")
    model.network.double()
    return model


@pytest.fixture(scope="module")
def single() -> ClefModel:
    return load_clef(RELEASE, device="cpu", dtype="float32")


def encode(model: ClefModel, case: dict[str, Any]) -> Any:
    media = media_of(case)
    record = Record(case["request"]["state"], as_questions(case["request"]["questions"]), **media)
    return model.encode(record, EncodeOptions("state_end", case["max_length"], control_tokens="parse"))


def difference(ours: Logits, theirs: list[Any]) -> float:
    return max(float(np.abs(a - np.asarray(b)).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_logits_equal_the_reference_in_float64(case: dict[str, Any], exact: ClefModel) -> None:
    encoding = encode(exact, case)
    assert encoding.ids.tolist() == case["input_ids"]
    assert difference(exact.score([encoding])[0], FLOAT64_LOGITS[case["name"]]) < 1e-9


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_float32_logits_are_as_close_as_the_reference_s_own(case: dict[str, Any], single: ClefModel) -> None:
    ours = single.score([encode(single, case)])[0]
    assert difference(ours, case["logits"]) < GOLDEN_FLOAT32_NOISE
    assert difference(ours, FLOAT64_LOGITS[case["name"]]) < GOLDEN_FLOAT32_NOISE


def test_the_golden_batch(exact: ClefModel) -> None:
    by_name = {case["name"]: case for case in CASES}
    names = GOLDEN["batch"]["names"]
    for name, logits in zip(names, exact.score([encode(exact, by_name[name]) for name in names]), strict=True):
        assert difference(logits, FLOAT64_LOGITS[name]) < 1e-9


def test_all_cases_in_one_batch_equal_their_single_answers(exact: ClefModel) -> None:
    """Text, images and videos of 198 to 3,181 tokens together; padding and neighbours change nothing."""
    for case, logits in zip(CASES, exact.score([encode(exact, case) for case in CASES]), strict=True):
        assert difference(logits, FLOAT64_LOGITS[case["name"]]) < 1e-9, case["name"]


def test_short_and_long_records_share_a_batch_in_float32(single: ClefModel) -> None:
    """In float32 a batch mate changes a logit only by rounding: 5e-4 on this checkpoint, whose noise that is."""
    questions = {"q": Noul("Refund?"), "s": Score(None, ["low", "high"])}
    records = [Record("word " * 2, questions), Record("a long state " * 225, questions)]
    encodings = [single.encode(record) for record in records]
    assert encodings[1].length > encodings[0].length + 600
    together = single.score(encodings)
    for encoding, logits in zip(encodings, together, strict=True):
        assert difference(logits, single.score([encoding])[0]) < GOLDEN_FLOAT32_NOISE


def test_without_vision_text_answers_are_the_same_and_media_is_refused(exact: ClefModel) -> None:
    text_only = load_clef(RELEASE, device="cpu", dtype="float32", vision=False)
    text_only.network.double()
    assert not any("visual" in name for name, _ in text_only.network.named_parameters())
    case = CASES[0]
    assert difference(text_only.score([encode(text_only, case)])[0], FLOAT64_LOGITS[case["name"]]) < 1e-9
    with pytest.raises(CapabilityError, match=r"images: .*vision=True"):
        text_only.encode(Record("s", {"q": Noul("?")}, images=[object()]))


def test_text_records_do_not_run_the_vision_tower(exact: ClefModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("the vision tower ran")

    monkeypatch.setattr(type(exact.network.backbone.model.model.visual), "forward", fail)
    exact.score([encode(exact, CASES[0])])
    with pytest.raises(AssertionError, match="the vision tower ran"):
        exact.score([encode(exact, next(case for case in CASES if "media" in case))])


def test_the_vocabulary_projection_never_runs(exact: ClefModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact.network.backbone.model.lm_head, "forward", lambda *_: pytest.fail("lm_head ran"))
    exact.score([encode(exact, CASES[0])])


def test_the_head_computes_in_float32_whatever_the_backbone_s_dtype() -> None:
    model = load_clef(RELEASE, device="cpu", dtype="bfloat16")
    assert model.network.backbone.dtype == torch.bfloat16
    assert model.network.head.dtype == torch.float32
    logits = model.score([model.encode(Record("s", {"q": Noul("?")}))])[0][0]
    assert logits.dtype == np.float32
    assert not np.array_equal(logits, torch.tensor(logits).bfloat16().float().numpy()), (
        "logits were rounded to bfloat16"
    )


def test_no_records_give_no_logits(exact: ClefModel) -> None:
    assert exact.score([]) == []


def test_info(single: ClefModel) -> None:
    info = single.info
    assert (info.runtime, info.dtype, info.device, info.images, info.videos) == ("torch", "float32", "cpu", True, True)
    assert info.parameters["head"] == sum(p.numel() for p in single.network.head.parameters())
    assert info.name == Path(RELEASE).name
