"""The release's names give the release's results: ids, spans, logits, answers, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.golden_cases import CASES, FLOAT64_LOGITS, GOLDEN, RELEASE, media_of

from dicast.compat import joint_schema_model as release


@pytest.fixture(scope="module")
def loaded() -> tuple[release.ClefModel, Any]:
    return release.load_release_model(RELEASE, device="cpu", dtype=torch.float64)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_ids_and_spans_are_the_release_s(case: dict[str, Any], loaded: tuple[release.ClefModel, Any]) -> None:
    _, processor = loaded
    record = {**case["request"], **media_of(case)}
    encoded = release.encode_record(processor.tokenizer, record, max_length=case["max_length"], processor=processor)
    assert list(encoded.input_ids) == case["input_ids"]
    assert [q.question_id for q in encoded.questions] == [q["id"] for q in case["questions"]]
    assert [q.question_type for q in encoded.questions] == [q["type"] for q in case["questions"]]
    assert [list(q.question_span) for q in encoded.questions] == [q["question_span"] for q in case["questions"]]
    assert [[list(s) for s in q.option_spans] for q in encoded.questions] == [
        q["option_spans"] for q in case["questions"]
    ]
    assert [list(q.option_ids) for q in encoded.questions] == [q["option_ids"] for q in case["questions"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_systemone_gives_the_release_s_answers(case: dict[str, Any], loaded: tuple[release.ClefModel, Any]) -> None:
    model, processor = loaded
    body = release.systemone(model, processor, {**case["request"], **media_of(case)}, max_length=case["max_length"])
    assert_same(body, case["response"])


def test_logits_of_a_batch_equal_the_release_s_in_float64(loaded: tuple[release.ClefModel, Any]) -> None:
    model, processor = loaded
    tokenizer = processor.tokenizer
    cases = [case for case in CASES if case["name"] in GOLDEN["batch"]["names"]]
    records = [release.encode_record(tokenizer, case["request"], processor=processor) for case in cases]
    with torch.inference_mode():
        logits = model(release.collate_records(records, tokenizer.pad_token_id, torch.device("cpu")))
    for case, per_question in zip(cases, logits, strict=True):
        for ours, theirs in zip(per_question, FLOAT64_LOGITS[case["name"]], strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        ({}, "model and state are required"),
        ({"model": 1, "state": "x"}, "model and state are required"),
        ({"model": "m", "state": "x", "questions": {}}, "at least one question is required"),
        ({"model": "m", "state": "x", "questions": [1]}, "at least one question is required"),
        ({"model": "m", "state": "x", "questions": {"a": {"type": "z"}}}, "a: type must be noul, choice, or score"),
        (
            {"model": "m", "state": "x", "questions": {"a": {"type": "choice", "criteria": {}}}},
            "a: criteria must not be empty",
        ),
    ],
)
def test_systemone_refuses_what_the_release_refuses(
    request_body: dict[str, Any], message: str, loaded: tuple[release.ClefModel, Any]
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        release.systemone(*loaded, request_body)


def test_a_tie_goes_to_the_first_option_in_request_order() -> None:
    answer = release.systemone_answer({"type": "choice", "criteria": {"b": 1, "a": None}}, {"a": 0.5, "b": 0.5})
    assert answer["choice"] == "b"
    assert list(answer["probabilities"]) == ["b", "a"]


def assert_same(body: Any, golden: Any) -> None:
    """Equal in everything but the last digit of a number: golden numbers are float32 on another machine."""
    if isinstance(golden, dict):
        assert list(body) == list(golden)
        for key, value in golden.items():
            assert_same(body[key], value)
    elif isinstance(golden, float):
        assert body == pytest.approx(golden, abs=2e-4)
    else:
        assert body == golden
