"""State reuse changes nothing: alone, batched, cached, chunked and isolated give the same logits, in text and media.

Everything is computed in float64, so that a wrong position, mask or state can't hide in rounding.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden_cases import CASES, RELEASE, media_of

from dicast.checkpoints import load_clef
from dicast.engine import BatchLimits, Engine
from dicast.engine.scoring import score_all
from dicast.model import DecisionModel
from dicast.models.base import EncodeOptions, Logits
from dicast.models.clef import ClefModel
from dicast.models.clef_reuse import ReuseOptions, Shared, StateReuse, reuse_for
from dicast.records import Noul, Record, as_questions

TOLERANCE = 1e-9
LIMITS = BatchLimits(tokens=4096, records=8, padding=0.5)
MEDIA = ("image-1", "image-2", "video-1", "image-and-video")
TEXT = ("minimal-noul", "choice-unsorted", "json-state", "unicode", "state-empty-string", "long-state-max512")
QUESTIONS = {
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
    "team": {"type": "choice", "instructions": "Who?", "criteria": {"billing": "Money", "technical": None}},
    "mood": {"type": "score", "criteria": ["calm", "cross", "furious"]},
}


@pytest.fixture(scope="module")
def exact() -> ClefModel:
    model = load_clef(RELEASE, device="cpu", dtype="float32")
    model.network.double()
    return model


def reusing(model: ClefModel, **options: Any) -> ClefModel:
    model.reuse = StateReuse(model.network, ReuseOptions(**{"chunk": 37, "least": 1, **options}))
    return model


def encode(model: ClefModel, case: dict[str, Any]) -> Any:
    record = Record(case["request"]["state"], as_questions(case["request"]["questions"]), **media_of(case))
    return model.encode(record, EncodeOptions("state_end", case["max_length"], control_tokens="parse"))


def difference(a: Logits, b: Logits) -> float:
    return max(float(np.abs(x - y).max()) for x, y in zip(a, b, strict=True))


def named(names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [case for case in CASES if case["name"] in names]


@pytest.mark.parametrize("case", named(TEXT + MEDIA), ids=lambda case: case["name"])
def test_chunked_and_cached_logits_equal_plain_ones(case: dict[str, Any], exact: ClefModel) -> None:
    encoding = encode(exact, case)
    plain = exact.score([encoding])[0]
    ends_in_one_token = encoding.prefix_length - 1
    for chunk in (37, ends_in_one_token) if case["name"] == "minimal-noul" else (37,):
        model = reusing(exact, chunk=chunk)
        cold = model.score_reusing([encoding])[0]
        warm = model.score_reusing([encoding])[0]
        assert (cold.cached_tokens, warm.cached_tokens) == (0, encoding.prefix_length)
        assert difference(plain, cold.logits) < TOLERANCE
        assert difference(plain, warm.logits) < TOLERANCE


def test_two_states_in_turn_do_not_touch_each_other(exact: ClefModel) -> None:
    model = reusing(exact)
    a, b = (model.encode(Record("state " * n, as_questions(QUESTIONS))) for n in (9, 30))
    first = model.score_reusing([a])[0].logits
    model.score_reusing([b])
    again = model.score_reusing([a])[0]
    assert again.cached_tokens == a.prefix_length
    assert difference(first, again.logits) == 0.0


@pytest.mark.parametrize("case", named(("image-and-video", "json-state")), ids=lambda case: case["name"])
def test_other_questions_about_a_known_state(case: dict[str, Any], exact: ClefModel) -> None:
    model = reusing(exact)
    model.score_reusing([encode(model, case)])
    asked = Record(case["request"]["state"], as_questions(QUESTIONS), **media_of(case))
    encoding = model.encode(asked)
    scored = model.score_reusing([encoding])[0]
    assert scored.cached_tokens == encoding.prefix_length
    assert difference(exact.score([encoding])[0], scored.logits) < TOLERANCE


def test_a_growing_state_reuses_its_beginning(exact: ClefModel) -> None:
    model = reusing(exact)
    questions = as_questions(QUESTIONS)
    cached = []
    for turns in range(1, 5):
        encoding = model.encode(Record("user: hello there\n" * 3 * turns, questions))
        scored = model.score_reusing([encoding])[0]
        assert difference(exact.score([encoding])[0], scored.logits) < TOLERANCE
        cached.append(scored.cached_tokens)
    assert cached[0] == 0
    assert cached[1:] == sorted(cached[1:])
    assert cached[3] > 100


def test_the_same_text_with_another_picture_is_another_state(exact: ClefModel) -> None:
    model = reusing(exact)
    first, second = named(("image-1", "image-2"))
    for case, text in ((first, "same"), (second, "same")):
        record = Record(text, as_questions(QUESTIONS), **media_of(case))
        scored = model.score_reusing([encoding := model.encode(record)])[0]
        assert scored.cached_tokens == 0
        assert difference(exact.score([encoding])[0], scored.logits) < TOLERANCE


@pytest.mark.parametrize("kept", [0, 2**30])
def test_records_of_one_state_share_one_reading(exact: ClefModel, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = reusing(exact, bytes=kept)
    state = "a state " * 20
    encodings = [model.encode(Record(state, as_questions({key: QUESTIONS[key]}))) for key in QUESTIONS]
    encodings.append(model.encode(Record("another", as_questions(QUESTIONS))))
    plain = [exact.score([encoding])[0] for encoding in encodings]
    assert [0, 1, 2] in [sorted(batch) for batch in model.plan(encodings, LIMITS)]
    read = []
    decode = type(model.network.backbone).decode
    monkeypatch.setattr(
        type(model.network.backbone),
        "decode",
        lambda self, *args, **kwargs: read.append(decode(self, *args, **kwargs)) or read[-1],
    )
    outcomes = score_all(model, encodings, LIMITS)
    prefix = encodings[0].prefix_length
    longest = max(encoding.length for encoding in encodings[:3])
    tokens = sum(hidden.shape[0] * hidden.shape[1] for hidden in read)
    assert tokens <= prefix + 3 * (longest - prefix) + encodings[3].length
    for expected, outcome in zip(plain, outcomes, strict=True):
        assert not isinstance(outcome, Exception)
        assert difference(expected, outcome.logits) < TOLERANCE
    assert (len(model.reuse.tree) > 0) == (kept > 0)


def test_isolated_questions_equal_questions_asked_alone(exact: ClefModel) -> None:
    model = DecisionModel(reusing(exact))
    case = named(("image-1",))[0]
    state, media = case["request"]["state"], media_of(case)
    together = model.decide(state, QUESTIONS, isolate=True, **media)
    for key, question in QUESTIONS.items():
        shown = dict(question) if "instructions" in question else {**question, "instructions": key}
        alone = model.logits({"state": state, "questions": {"q": shown}, **media})["q"]
        for option, logit in together[key].logits.items():
            assert logit == pytest.approx(alone[option], abs=TOLERANCE)
    assert together.usage.cached_tokens > 0


def test_short_records_of_different_states_continue_their_header(exact: ClefModel) -> None:
    model = reusing(exact, chunk=1024, least=256)
    encodings = [model.encode(Record("word " * n, as_questions(QUESTIONS))) for n in (1, 5, 9)]
    header = encodings[0].media_offset
    assert header > 20
    assert model.reuse.shared(encodings) == model.reuse.shared(encodings[:1]) == Shared("header", header)
    for cached in ([0, header, header], [header] * 3):
        scored = model.score_reusing(encodings)
        assert [one.cached_tokens for one in scored] == cached
        for one, encoding in zip(scored, encodings, strict=True):
            assert difference(exact.score([encoding])[0], one.logits) < TOLERANCE
    case = named(("image-1",))[0]
    assert model.reuse.shared([encode(model, case), encodings[0]]) is None
    assert reusing(exact, chunk=100, least=256).reuse.shared(encodings[:1]) is None
    assert reusing(exact, bytes=0, chunk=1024, least=256).reuse.shared(encodings[:1]) is None
    assert reusing(exact, bytes=0, chunk=1024, least=256).reuse.shared(encodings) == Shared("header", header)
    assert not reuse_for("cuda:0").header


def test_least_and_longest_decide_who_is_read_apart(exact: ClefModel) -> None:
    model = reusing(exact, least=200, longest=400, header=False)
    short, long, longer = (model.encode(Record("word " * n, as_questions(QUESTIONS))) for n in (1, 60, 100))
    assert model.reuse.shared([short, short]) is None
    assert model.reuse.shared([long]) == Shared("", long.prefix_length)
    assert model.reuse.shared([long, longer]) is None
    model = reusing(exact, bytes=0, least=200, longest=400, header=False)
    assert model.reuse.shared([long, long]) == Shared("", long.prefix_length)
    assert (model.reuse.shared([longer]) is not None) == (longer.length > 400)
    assert reuse_for("cpu", 5).bytes == 5
    assert reuse_for("cuda:0").chunk > reuse_for("cpu").chunk


@pytest.mark.parametrize("count", [120, pytest.param(2000, marks=pytest.mark.slow)])
def test_memory_stays_bounded_over_many_mixed_records(exact: ClefModel, count: int) -> None:
    """States come and go under a budget for few of them: nothing grows, and an answer never changes."""
    model = reusing(exact, bytes=400_000, chunk=64)
    rng = random.Random(0)
    question = as_questions({"q": {"type": "noul"}})
    encodings = [model.encode(Record(f"{n} state", question)) for n in range(20)]
    first: dict[int, Logits] = {}
    live = []
    for step in range(count):
        which = rng.randrange(len(encodings))
        logits = model.score_reusing([encodings[which]])[0].logits
        assert difference(first.setdefault(which, logits), logits) < TOLERANCE
        assert model.reuse.tree.bytes <= 400_000
        if step % (count // 4) == count // 4 - 1:
            live.append(sum(1 for _ in _live_tensors()))
    assert live[-1] <= live[0] + 30


def test_threads_and_an_event_loop_share_one_model(exact: ClefModel) -> None:
    model = reusing(exact, bytes=600_000)
    records = [Record("state " * n, {"q": Noul("Is it?")}) for n in (1, 3, 5, 30)]
    expected = [exact.score([exact.encode(record)])[0][0] for record in records]
    wrong: list[Any] = []

    def check(which: int, decision: Any) -> None:
        if np.abs(np.array(list(decision["q"].logits.values())) - expected[which]).max() > TOLERANCE:
            wrong.append(which)

    with Engine(model) as engine:

        def work(seed: int) -> None:
            for step in range(6):
                which = (seed + step) % 4
                check(which, engine.decide(records[which]))
                check(which, engine.model.decide_batch([records[which]])[0])

        async def loop() -> None:
            decisions = await asyncio.gather(*(engine.decide_async(records[n % 4]) for n in range(12)))
            for n, decision in enumerate(decisions):
                check(n % 4, decision)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        asyncio.run(loop())
        for thread in threads:
            thread.join(60)
    assert wrong == []


def _live_tensors() -> Iterator[torch.Tensor]:
    import gc

    gc.collect()
    for item in gc.get_objects():
        if type(item) is torch.Tensor:
            yield item
