"""The segment model in torch: what must not change an answer does not, and what must, does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.segment_models import save_tokenizer, tiny_encoder, tiny_model

from dicast.models.base import Logits
from dicast.models.segment_batch import buckets_of, memory_index, plan_batch
from dicast.models.segmented import UNIT, SegmentModel
from dicast.records import Choice, Noul, Question, Record, Score

MODEL = tiny_model()
SCHEMA: dict[str, Question] = {
    "urgent": Noul("is it urgent"),
    "team": Choice("which team", {"billing": "money", "pay": "the card", "lost": None}),
    "level": Score("is it the card", ["no", "yes it is", "the team"]),
}
RECORDS = [
    Record("the card is lost", SCHEMA),
    Record({"text": "pay " * 500, "plan": "billing"}, SCHEMA),
    Record("", {"q": Choice("which team:\nlost card", [f"x{n}" for n in range(9)])}),
    Record({}, {"n": Noul()}),
]


def score(record: Record) -> Logits:
    return MODEL.score([MODEL.encode(record)])[0]


def test_a_batch_gives_every_record_the_logits_it_has_alone() -> None:
    together = MODEL.score([MODEL.encode(record) for record in RECORDS])
    for record, logits in zip(RECORDS, together, strict=True):
        for mine, alone in zip(logits, score(record), strict=True):
            np.testing.assert_allclose(mine, alone, atol=1e-5)


def test_logits_come_per_question_in_the_order_of_its_options() -> None:
    assert [len(logits) for logits in score(RECORDS[0])] == [2, 3, 3]
    assert [len(logits) for logits in score(RECORDS[2])] == [9]


@pytest.mark.parametrize("options", [3, 9])
def test_the_order_of_options_does_not_matter_at_all(options: int) -> None:
    names = [f"pay{n}" for n in range(options)]
    straight = score(Record("the card", {"q": Choice("which", names)}))[0]
    back = score(Record("the card", {"q": Choice("which", names[::-1])}))[0]
    np.testing.assert_allclose(straight, back[::-1], atol=2e-6)


def test_question_ids_do_not_matter() -> None:
    renamed = {f"other_{n}": question for n, question in enumerate(SCHEMA.values())}
    for mine, other in zip(score(RECORDS[0]), score(Record(RECORDS[0].state, renamed)), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_every_part_of_a_record_matters() -> None:
    base = score(RECORDS[0])[0]
    changed = [
        Record("the card is not lost", SCHEMA),
        Record("the card is lost", {**SCHEMA, "urgent": Noul("is it billing")}),
        Record("the card is lost", {**SCHEMA, "team": Choice("which team", ["tool", "it"])}),  # through field layers
    ]
    for record in changed:
        assert np.abs(score(record)[0] - base).max() > 1e-4


def test_swapped_criteria_swap_the_answer() -> None:
    straight = score(Record("card", {"q": Noul("is it", {"true": "yes", "false": "no"})}))[0]
    swapped = score(Record("card", {"q": Noul("is it", {"true": "no", "false": "yes"})}))[0]
    np.testing.assert_allclose(straight, swapped[::-1], atol=1e-6)


def test_reversed_levels_mirror_the_scores() -> None:
    up = score(Record("card", {"q": Score("is it", ["no", "it", "yes"])}))[0]
    down = score(Record("card", {"q": Score("is it", ["yes", "it", "no"])}))[0]
    np.testing.assert_allclose(up, down[::-1], atol=1e-6)


def test_empty_texts_give_finite_logits() -> None:
    empty = Record("", {"a": Noul(""), "b": Choice("", {"x": "", "y": ""}), "c": Score(None, ["", ""])})
    assert all(np.isfinite(logits).all() for logits in score(empty))


def test_an_untrained_head_gives_the_answers_of_the_cosine() -> None:
    torch.manual_seed(0)
    net = tiny_model().net
    net.start_at_prior()
    kept = net.prior
    batch = plan_batch([MODEL.encode(RECORDS[0])])
    with torch.no_grad():
        whole = net(batch)
        for parameter in kept.parameters():
            parameter.zero_()
        assert net(batch).abs().max() < 0.15  # what the joint part adds at the start
        assert whole.abs().max() > 0.15


def test_a_saved_model_loads_with_the_same_logits(tmp_path: Path) -> None:
    MODEL.save(tmp_path, save_tokenizer(tmp_path / "source"))
    again = SegmentModel.load(tmp_path)
    for mine, other in zip(score(RECORDS[0]), again.score([again.encode(RECORDS[0])])[0], strict=True):
        np.testing.assert_array_equal(mine, other)


def test_buckets_hold_every_segment_once_with_little_padding() -> None:
    encoding = tiny_encoder().encode(RECORDS[1])
    buckets = buckets_of(encoding.segments)
    assert sorted(number for bucket in buckets for number in bucket.members) == list(range(len(encoding.segments)))
    for bucket in buckets:
        for row, number in enumerate(bucket.members):
            tokens = encoding.segments[number].tokens
            assert tuple(bucket.ids[row][bucket.mask[row]]) == tokens
            assert len(tokens) >= 0.85 * bucket.ids.shape[1] - 3


def test_memory_index_points_to_the_rows_of_each_record() -> None:
    batch = plan_batch([tiny_encoder().encode(record) for record in RECORDS])
    lengths = [len(segment.tokens) for segment in batch.segments]
    offsets = [sum(lengths[:number]) for number in range(len(lengths))]
    index, mask, _ = memory_index(batch, offsets)
    for row, numbers in enumerate(batch.memory):
        expected = [offsets[number] + at for number in numbers for at in range(lengths[number])]
        assert index[row][mask[row]].tolist() == expected


def tool_record(names: list[str]) -> Record:
    tools = [{"name": name, "description": f"{name} money"} for name in names]
    asked: dict[str, Question] = {name: Choice(f"is {name} the tool", {"yes": "yes", "no": "no"}) for name in names}
    return Record({"text": "pay the card", "tools": tools}, asked)


def test_peers_are_options_of_the_same_text_in_questions_of_one_template() -> None:
    names = ["payBill", "lostCard", "teamTool"]
    alone: dict[str, Question] = {"u": Noul("is it urgent"), "v": Noul("is it lost")}
    tools = tool_record(names)
    batch = plan_batch([MODEL.encode(Record(tools.state, {**tools.questions, **alone})), MODEL.encode(RECORDS[0])])
    yes, no = batch.peer[0, 0], batch.peer[0, 1]
    assert yes != no
    assert batch.peer[0].tolist() == [yes, no] * 3 + [-1] * 4
    assert set(batch.peer[1]) == {-1}


def test_the_prior_takes_the_odds_of_rivals_from_an_option() -> None:
    """With share 1 for "yes", p(yes) of each of several tools is its softmax among them."""
    net = tiny_model().net
    with torch.no_grad():
        for parameter in net.head.parameters():
            parameter.zero_()
        batch = plan_batch([MODEL.encode(tool_record(["payBill", "lostCard", "teamTool"]))])
        encoded, _ = net.encode_segments(buckets_of(batch.segments), len(batch.segments))
        label = torch.nn.functional.normalize(encoded.cls[torch.from_numpy(batch.label[0, :2])], dim=-1)
        net.prior.rivalry.zero_()
        own = net(batch)[0].view(3, 2)
        share = torch.tensor([1.0, 0.0]) / UNIT
        net.prior.rivalry.copy_(torch.linalg.lstsq(label, share[:, None]).solution[:, 0])
        logits = net(batch)[0].view(3, 2)
    odds = own[:, 0] - own[:, 1]
    expected = torch.stack([odds[k] - torch.cat([odds[:k], odds[k + 1 :]]).logsumexp(0) for k in range(3)])
    torch.testing.assert_close(logits[:, 0] - logits[:, 1], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close((logits[:, 0] - logits[:, 1]).sigmoid(), odds.softmax(0), atol=1e-4, rtol=0)


def test_rivals_change_nothing_where_questions_are_not_alike() -> None:
    record = RECORDS[0]
    before = score(record)[0]
    with torch.no_grad():
        MODEL.net.prior.rivalry.add_(3.0)
        try:
            np.testing.assert_array_equal(score(record)[0], before)
        finally:
            MODEL.net.prior.rivalry.sub_(3.0)


def test_what_the_prior_says_reaches_the_head() -> None:
    before = score(RECORDS[0])[0]
    with torch.no_grad():
        MODEL.net.hint.weight.add_(1.0)
        try:
            assert np.abs(score(RECORDS[0])[0] - before).max() > 1e-4
        finally:
            MODEL.net.hint.weight.sub_(1.0)
