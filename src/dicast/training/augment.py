"""Changes to an example that keep its labels right: order, subsets, names and wordings. Knows examples, no tensors.

Each change is a function (example, rng, wordings) -> example. Its probability is a key of [augment]; they are applied
in the order of `CHANGES`, each seeded by the example and the epoch, so that a resumed run sees the same. Gold labels,
soft labels and rewards follow every renaming and every subset. What falls away is renormalised (soft labels) or dropped
(rewards).
"""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from dicast.errors import ConfigError
from dicast.records import MAX_OPTIONS, Choice, Noul, Question, Score
from dicast.training.config import AugmentConfig, Config
from dicast.training.data import Example
from dicast.training.sampling import stable_seed

MOST_POOLED = 4096
"""Most options kept per source for distractors."""


@dataclass(frozen=True)
class Wordings:
    """What the changes draw from.

    Attributes:
        paraphrases: instructions -> other wordings.
        words: lower-case word -> words of the same meaning.
        options: source -> (id, description) of choice options that occur in it, for distractors.
        most: most distractors added to a question.
    """

    paraphrases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Sequence[tuple[str, Any]]] = field(default_factory=dict)
    most: int = 3


Change = Callable[[Example, random.Random, Wordings], Example]


def make_augment(config: Config, examples: Sequence[Example]) -> Callable[[Example, int], Example] | None:
    """The augmentation of a run, or None when every probability is 0.

    Raises:
        ConfigError: a wordings file is missing or has another form.
    """
    settings = config.augment
    chances = {name: getattr(settings, name) for name in CHANGES if getattr(settings, name) > 0.0}
    if not chances:
        return None
    wordings = load_wordings(settings, examples)

    def augment(example: Example, seed: int) -> Example:
        if not example.meta.get("augment", True):
            return example
        for name, chance in chances.items():
            rng = random.Random(
                stable_seed(seed, name)
            )  # so that switching one change on leaves the others as they were
            if rng.random() < chance:
                example = CHANGES[name](example, rng, wordings)
        return example

    return augment


def load_wordings(settings: AugmentConfig, examples: Sequence[Example]) -> Wordings:
    """Read the wordings files and collect options for distractors.

    Raises:
        ConfigError: a file is needed but not named, missing, or not an object of string lists.
    """
    options: dict[str, dict[tuple[str, str], tuple[str, Any]]] = {}
    if settings.distractors > 0.0:
        for example in examples:
            pool = options.setdefault(example.source, {})
            for question in example.record.questions.values():
                if isinstance(question, Choice) and len(pool) < MOST_POOLED:
                    pool.update({(name, repr(text)): (name, text) for name, text in _criteria(question).items()})
    return Wordings(
        _word_lists(settings.paraphrases_file, "paraphrases_file", settings.paraphrase),
        {
            word.lower(): same
            for word, same in _word_lists(settings.label_words_file, "label_words_file", settings.label_words).items()
        },
        {source: list(pool.values()) for source, pool in options.items()},
        settings.max_distractors,
    )


def question_order(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Shuffle the questions."""
    items = list(example.record.questions.items())
    rng.shuffle(items)
    return _with_questions(example, dict(items))


def question_subset(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Keep a random subset of the questions that holds at least one labelled question."""
    names = list(example.record.questions)
    labelled = [name for name in names if example.labelled(name)]
    if len(names) < 2 or not labelled:
        return example
    kept = set(rng.sample(names, rng.randint(1, len(names))))
    if not kept & set(labelled):
        kept.add(rng.choice(labelled))
    return _with_questions(
        example, {name: question for name, question in example.record.questions.items() if name in kept}
    )


def option_order(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Order the options of every choice by one of a few templates: shuffled, by id, backwards, shortest first.

    Seen by models that keep the request order; Clef sorts by id.
    """

    def reorder(name: str, question: Choice) -> tuple[Choice, dict[str, str]]:
        items = rng.choice(ORDERS)(list(_criteria(question).items()), rng)
        return replace(question, criteria=dict(items)), _same(question)

    return _each_choice(example, reorder)


def option_subset(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Keep options with a gold label, a soft share or the best reward, and some of the others; two at least."""

    def shrink(name: str, question: Choice) -> tuple[Choice, dict[str, str]]:
        needed = _needed(example, name)
        others = [option for option in question.options if option not in needed]
        if not needed or not others:
            return question, _same(question)
        least = 1 if len(needed) == 1 else 0
        kept = needed | set(rng.sample(others, rng.randint(least, len(others))))
        criteria = {option: text for option, text in _criteria(question).items() if option in kept}
        return replace(question, criteria=criteria), {option: option for option in criteria}

    return _each_choice(example, shrink)


def neutral_ids(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Name the options A, B, C, ... in their order; an option without description is described by its old id."""

    def rename(name: str, question: Choice) -> tuple[Choice, dict[str, str]]:
        new = dict(zip(question.options, letter_ids(len(question.options)), strict=True))
        criteria = {new[option]: option if text in (None, "") else text for option, text in _criteria(question).items()}
        return replace(question, criteria=criteria), new

    return _each_choice(example, rename)


def rename_options(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Write all option ids of a choice in another case style; left alone if two would become the same."""

    def rename(name: str, question: Choice) -> tuple[Choice, dict[str, str]]:
        style = rng.choice(STYLES)
        new = {option: option if is_neutral(option) else style(option) for option in question.options}
        if len(set(new.values())) < len(new) or not all(new.values()):
            return question, _same(question)
        return replace(question, criteria={new[option]: text for option, text in _criteria(question).items()}), new

    return _each_choice(example, rename)


def drop_descriptions(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Drop the descriptions of choices whose ids say something by themselves, and the criteria of nouls."""

    def drop(name: str, question: Choice) -> tuple[Choice, dict[str, str]]:
        if any(map(is_neutral, question.options)):
            return question, _same(question)
        return replace(question, criteria=dict.fromkeys(question.options)), _same(question)

    dropped = _each_choice(example, drop)
    questions = {
        name: replace(question, criteria=None) if isinstance(question, Noul) and question.instructions else question
        for name, question in dropped.record.questions.items()
    }
    return _with_questions(dropped, questions)


def drop_instructions(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Drop the instructions of one question, so that its id is read instead; only where the id says something."""
    names = [name for name in example.record.questions if not is_neutral(name) and len(name) > 3]
    nouls = {name for name in names if example.record.questions[name].type == "noul"}
    # A noul without instructions and criteria would ask nothing but its id; leave those alone.
    names = [name for name in names if name not in nouls or example.record.questions[name].criteria]
    if not names:
        return example
    chosen = rng.choice(names)
    return _with_questions(example, {
        name: replace(question, instructions=None) if name == chosen else question
        for name, question in example.record.questions.items()
    })  # fmt: skip


def distractors(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Add options of other records of the same source to choices that name their gold option.

    An option is only added if neither its id nor its description is there already. Questions with neutral ids get the
    next neutral ids.
    """

    def add(name: str, question: Choice) -> tuple[Choice, dict[str, str]]:
        pool = wordings.options.get(example.source, ())
        if name not in example.gold or not pool:
            return question, _same(question)
        criteria = dict(_criteria(question))
        letters = all(map(is_neutral, criteria))
        for other, text in rng.sample(pool, min(rng.randint(1, wordings.most), len(pool))):
            if (
                len(criteria) >= MAX_OPTIONS
                or (text is None and letters)
                or (text is not None and text in criteria.values())
            ):
                continue
            new = letter_ids(len(criteria) + 1)[-1] if letters else other
            if new not in criteria and (letters or not is_neutral(new)):
                criteria[new] = text
        return replace(question, criteria=criteria), _same(question)

    return _each_choice(example, add)


def paraphrase(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Replace instructions by one of their paraphrases."""

    def other(question: Question) -> Question:
        known = wordings.paraphrases.get(question.instructions) if isinstance(question.instructions, str) else None
        return replace(question, instructions=rng.choice(list(known))) if known else question

    return _with_questions(example, {name: other(question) for name, question in example.record.questions.items()})


def label_words(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Swap words of choice ids and of all descriptions for words of the same meaning."""

    def swap(text: Any) -> Any:
        if not isinstance(text, str):
            return text
        return re.sub(r"[^\W_]+", lambda match: _swapped(match.group(), wordings.words, rng), text)

    def rename(name: str, question: Choice) -> tuple[Choice, dict[str, str]]:
        new = {option: swap(option) for option in question.options}
        if len(set(new.values())) < len(new):
            new = _same(question)
        return replace(question, criteria={new[key]: swap(text) for key, text in _criteria(question).items()}), new

    changed = _each_choice(example, rename)
    questions: dict[str, Question] = {}
    for name, question in changed.record.questions.items():
        if isinstance(question, Score):
            question = replace(question, criteria=tuple(swap(level) for level in question.criteria))
        elif isinstance(question, Noul) and question.criteria:
            question = replace(question, criteria={key: swap(text) for key, text in question.criteria.items()})
        questions[name] = question
    return _with_questions(changed, questions)


def spell_noul(example: Example, rng: random.Random, wordings: Wordings) -> Example:
    """Spell out what true and false mean for nouls without criteria, in one of a few wordings."""
    true, false = rng.choice(NOUL_WORDINGS)
    return _with_questions(example, {
        name: Noul(question.instructions, {"true": true, "false": false})
        if question.type == "noul" and not question.criteria
        else question
        for name, question in example.record.questions.items()
    })  # fmt: skip


def letter_ids(count: int) -> list[str]:
    """A, B, ..., Z, then option_27, option_28, ... so that any number of options has ids."""
    letters = list(string.ascii_uppercase)
    return letters[:count] + [f"option_{index}" for index in range(27, count + 1)]


def is_neutral(option: str) -> bool:
    """Whether an id says nothing about its option: one letter, a number, or option_27."""
    return len(option) == 1 or option.isdigit() or re.fullmatch(r"option[_ ]?\d+", option, re.IGNORECASE) is not None


def _snake(text: str) -> str:
    return "_".join(_words(text)).lower()


def _kebab(text: str) -> str:
    return "-".join(_words(text)).lower()


def _title(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in _words(text))


def _plain(text: str) -> str:
    return " ".join(_words(text)).lower()


def _words(text: str) -> list[str]:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", re.sub(r"[\s_\-]+", " ", text)).split()


def _swapped(word: str, words: Mapping[str, Sequence[str]], rng: random.Random) -> str:
    same = words.get(word.lower())
    if not same:
        return word
    new = rng.choice(list(same))
    return new[:1].upper() + new[1:] if word[:1].isupper() else new


def _each_choice(example: Example, change: Callable[[str, Choice], tuple[Choice, dict[str, str]]]) -> Example:
    """Apply a change to every choice: it returns the new question, and old -> new ids of the options that stay."""
    questions: dict[str, Question] = {}
    maps: dict[str, dict[str, str]] = {}
    for name, question in example.record.questions.items():
        if isinstance(question, Choice):
            questions[name], maps[name] = change(name, question)
        else:
            questions[name] = question
    changed = _with_questions(example, questions)
    for name, renamed in maps.items():
        _relabel(changed, name, renamed)
    return changed


def _relabel(example: Example, name: str, renamed: Mapping[str, str]) -> None:
    """Carry labels over to the new ids. Options that are gone take their share and reward with them."""
    if name in example.gold:
        example.gold[name] = renamed[example.gold[name]]
    if name in example.soft:
        shares = {renamed[option]: share for option, share in example.soft[name].items() if option in renamed}
        total = sum(shares.values())
        example.soft[name] = {option: share / total for option, share in shares.items()}
    if name in example.rewards:
        example.rewards[name] = {renamed[o]: number for o, number in example.rewards[name].items() if o in renamed}


def _needed(example: Example, name: str) -> set[str]:
    needed = {example.gold[name]} if name in example.gold else set()
    needed |= {option for option, share in example.soft.get(name, {}).items() if share > 0.0}
    if rewards := example.rewards.get(name):
        needed.add(max(rewards, key=rewards.__getitem__))
    return needed


def _with_questions(example: Example, questions: dict[str, Question]) -> Example:
    """A copy with other questions; labels of questions that are gone are dropped."""
    return replace(
        example,
        record=replace(example.record, questions=questions),
        gold={name: label for name, label in example.gold.items() if name in questions},
        soft={name: dict(shares) for name, shares in example.soft.items() if name in questions},
        rewards={name: dict(numbers) for name, numbers in example.rewards.items() if name in questions},
    )


def _criteria(question: Choice) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", question.criteria)  # a Choice has made a map of it


def _same(question: Question) -> dict[str, str]:
    return {option: option for option in question.options}


def _word_lists(path: str, name: str, chance: float) -> dict[str, list[str]]:
    if chance <= 0.0:
        return {}
    if not path:
        raise ConfigError("the switch is on, but no file is named", field=f"augment.{name}")
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", field=f"augment.{name}") from None
    if not isinstance(table, dict) or not all(
        isinstance(v, list) and v and all(isinstance(w, str) for w in v) for v in table.values()
    ):
        raise ConfigError(f"{path} must be an object of string to non-empty list of strings", field=f"augment.{name}")
    return table


def _shuffled(items: list[tuple[str, Any]], rng: random.Random) -> list[tuple[str, Any]]:
    return rng.sample(items, len(items))


def _by_id(items: list[tuple[str, Any]], rng: random.Random) -> list[tuple[str, Any]]:
    return sorted(items, key=lambda item: item[0])


def _backwards(items: list[tuple[str, Any]], rng: random.Random) -> list[tuple[str, Any]]:
    return items[::-1]


def _shortest_first(items: list[tuple[str, Any]], rng: random.Random) -> list[tuple[str, Any]]:
    return sorted(items, key=lambda item: len(f"{item[0]}{item[1] or ''}"))


ORDERS = (_shuffled, _by_id, _backwards, _shortest_first)
STYLES = (_snake, _kebab, _title, _plain)
NOUL_WORDINGS = (
    ("Yes.", "No."),
    ("The statement holds.", "The statement does not hold."),
    ("This is the case.", "This is not the case."),
    ("The answer is yes.", "The answer is no."),
)
CHANGES: dict[str, Change] = {
    "question_subset": question_subset,
    "question_order": question_order,
    "distractors": distractors,
    "option_subset": option_subset,
    "drop_descriptions": drop_descriptions,
    "label_words": label_words,
    "rename_options": rename_options,
    "neutral_ids": neutral_ids,
    "option_order": option_order,
    "paraphrase": paraphrase,
    "drop_instructions": drop_instructions,
    "spell_noul": spell_noul,
}
"""Switch -> change, in the order in which they are applied."""
