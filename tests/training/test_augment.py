import json
import random
from pathlib import Path
from typing import Any

import pytest

from dicast.errors import ConfigError
from dicast.training.augment import CHANGES, Wordings, is_neutral, letter_ids, make_augment
from dicast.training.config import config_from
from dicast.training.data import Example, parse_example

WORDINGS = Wordings(
    paraphrases={"Who should handle it?": ["Which team takes it?"]},
    words={"money": ["cash"], "billing": ["payments"], "low": ["small"]},
    options={"s": [("legal", "Contracts"), ("sales", None), ("support", "Help")]},
)


def example() -> Example:
    made = parse_example({
        "state": "text",
        "questions": {
            "team": {
                "type": "choice",
                "instructions": "Who should handle it?",
                "criteria": {"billing": "Money", "sales": None, "tech_help": "Outages", "legal_team": "Law"},
            },
            "urgent": {"type": "noul", "instructions": "Urgent?"},
            "level": {"type": "score", "instructions": "How bad?", "criteria": ["low", "high"]},
            "mood": {"type": "choice", "criteria": {"A": "good", "B": "bad"}},
        },
        "gold": {"team": "billing", "urgent": True, "level": 1},
        "soft": {"team": {"billing": 0.75, "tech_help": 0.25}, "mood": {"A": 0.5, "B": 0.5}},
        "rewards": {"team": {"billing": 1.0, "sales": 0.2, "tech_help": 0.1}},
    })  # fmt: skip
    made.source = "s"
    return made


def meaning(one: Example, name: str, option: str) -> str:
    """What an option stands for, whatever its id: its description, else its id without style."""
    question = one.record.questions[name]
    text = question.criteria.get(option) if isinstance(question.criteria, dict) else None
    plain = (text or option).lower().replace("_", " ").replace("-", " ")
    return {"cash": "money", "payments": "billing"}.get(plain, plain)


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("seed", range(12))
def test_labels_follow_every_change(name: str, seed: int) -> None:
    before = example()
    after = CHANGES[name](before, random.Random(seed), WORDINGS)
    assert before.gold == example().gold  # the original is never changed
    questions = after.record.questions
    for table in (after.gold, after.soft, after.rewards):
        assert set(table) <= set(questions)
    for question, label in after.gold.items():
        assert label in questions[question].options
        if question == "team" and name != "drop_descriptions":
            assert meaning(after, question, label) == "money"
        elif question != "team":
            assert label == before.gold[question]
    for question, shares in after.soft.items():
        assert set(shares) <= set(questions[question].options)
        assert sum(shares.values()) == pytest.approx(1.0)
    if "team" in after.soft:
        assert shares_by_meaning(after, "team").get("money", 0.75) == pytest.approx(0.75)
    for question, numbers in after.rewards.items():
        assert set(numbers) <= set(questions[question].options)
        assert numbers[after.gold["team"]] == 1.0
    assert any(after.labelled(question) for question in questions)


def shares_by_meaning(one: Example, name: str) -> dict[str, float]:
    return {meaning(one, name, option): share for option, share in one.soft[name].items()}


def change(name: str, seed: int = 1, **changed: Any) -> Example:
    made = example()
    for key, value in changed.items():
        setattr(made, key, value)
    return CHANGES[name](made, random.Random(seed), WORDINGS)


def test_each_change_does_what_its_name_says() -> None:
    original = example().record.questions
    assert list(change("question_order").record.questions) != list(original)
    assert any(len(change("question_subset", seed).record.questions) < 4 for seed in range(5))
    assert any(
        change("option_order", seed).record.questions["team"].options != original["team"].options for seed in range(5)
    )
    assert change("option_order").record.questions["level"] == original["level"]
    assert any(len(change("option_subset", seed).record.questions["team"].options) < 4 for seed in range(5))
    assert change("neutral_ids").record.questions["team"].criteria == {
        "A": "Money", "B": "sales", "C": "Outages", "D": "Law",
    }  # fmt: skip
    assert any("tech-help" in change("rename_options", seed).record.questions["team"].options for seed in range(9))
    assert set(change("drop_descriptions").record.questions["team"].criteria.values()) == {None}
    assert change("drop_descriptions").record.questions["mood"] == original["mood"]  # A and B say nothing alone
    assert any(q.instructions is None for n, q in change("drop_instructions").record.questions.items() if n != "mood")
    assert len(change("distractors").record.questions["team"].options) > 4
    assert change("paraphrase").record.questions["team"].instructions == "Which team takes it?"
    assert change("label_words").record.questions["team"].criteria["payments"] == "Cash"
    assert change("label_words").record.questions["level"].criteria == ("small", "high")
    assert set(change("spell_noul").record.questions["urgent"].criteria) == {"true", "false"}


def test_distractors_never_repeat_an_option() -> None:
    for seed in range(20):
        criteria = change("distractors", seed).record.questions["team"].criteria
        texts = [text for text in criteria.values() if text]
        assert len(set(texts)) == len(texts)


def test_an_option_subset_keeps_two_options_and_all_that_carry_a_label() -> None:
    for seed in range(20):
        options = change("option_subset", seed).record.questions["team"].options
        assert {"billing", "tech_help"} <= set(options)
        assert len(options) >= 2
    alone = [change("option_subset", seed, soft={}, rewards={}).record.questions["team"].options for seed in range(20)]
    assert min(map(len, alone)) == 2


def config(tmp_path: Path, **augment: Any) -> Any:
    return config_from({"augment": augment})


def test_the_same_seed_gives_the_same_change_and_switches_do_not_disturb_each_other(tmp_path: Path) -> None:
    augment = make_augment(config(tmp_path, question_order=0.5, neutral_ids=0.5), [example()])
    assert augment is not None
    once, again = ([augment(example(), seed) for seed in range(30)] for _ in range(2))
    assert [one.record for one in once] == [one.record for one in again]
    alone = make_augment(config(tmp_path, neutral_ids=0.5), [example()])
    assert alone is not None
    renamed = ["A" in one.record.questions["team"].options for one in once]
    assert renamed == ["A" in alone(example(), seed).record.questions["team"].options for seed in range(30)]
    assert 5 < sum(renamed) < 25


def test_without_switches_there_is_no_augmentation(tmp_path: Path) -> None:
    assert make_augment(config(tmp_path), [example()]) is None


def test_a_source_can_be_left_alone(tmp_path: Path) -> None:
    augment = make_augment(config(tmp_path, neutral_ids=1.0), [example()])
    assert augment is not None
    one = example()
    one.meta = {"augment": False}
    assert augment(one, 1) is one


def test_wordings_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"Urgent?": ["Does it hurry?"]}))
    augment = make_augment(config(tmp_path, paraphrase=1.0, paraphrases_file=str(tmp_path / "p.json")), [example()])
    assert augment is not None
    assert augment(example(), 0).record.questions["urgent"].instructions == "Does it hurry?"
    with pytest.raises(ConfigError, match="no file"):
        make_augment(config(tmp_path, paraphrase=1.0), [])
    (tmp_path / "bad.json").write_text('{"a": "b"}')
    with pytest.raises(ConfigError, match="list of strings"):
        make_augment(config(tmp_path, label_words=1.0, label_words_file=str(tmp_path / "bad.json")), [])


def test_ids_that_say_nothing() -> None:
    assert all(map(is_neutral, ["A", "z", "7", "12", "option_27", *letter_ids(40)]))
    assert not any(map(is_neutral, ["yes", "card_lost", "option", "A1x"]))
    assert len(set(letter_ids(40))) == 40
