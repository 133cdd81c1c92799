# ruff: noqa: E501 - long lines of wording are data here
"""Changes to a labelled record that keep its label true: other wordings, ids, forms and question types.

A row is a plain dict ``{"state", "questions", "gold", "soft"}`` as in `shared/data`. Every function takes a random generator
and returns new rows; nothing is changed in place.
"""

from __future__ import annotations

import copy
import random
from typing import Any

Row = dict[str, Any]
NONE_TEXTS = ("none of these", "none of the above", "something else", "other", "no option fits", "not in the list",
              "out of scope: none of the listed options")  # fmt: skip
TEXT_NAMES = ("Text", "Message", "Input", "Sentence", "Content", "User request", "Statement", "Case")
EMPTY_STATES: tuple[Any, ...] = ("", {}, None, "...", "n/a", "(empty)", {"text": ""}, {"message": None})
SWAPPED = (("No.", "Yes."), ("It is false.", "It is true."), ("The answer is no.", "The answer is yes."),
           ("not the case", "the case"), ("This does not hold.", "This holds."))  # fmt: skip
STRAIGHT = (("Yes.", "No."), ("It is true.", "It is false."), ("The answer is yes.", "The answer is no."),
            ("the case", "not the case"), ("This holds.", "This does not hold."), ("correct", "incorrect"))  # fmt: skip


def subset(rng: random.Random, row: Row, most: int) -> Row:
    """Keep at most `most` random questions, in a random order."""
    names = [name for name in row["questions"] if name in row["gold"] or name in row.get("soft", {})]
    kept = rng.sample(names, min(len(names), rng.randint(1, most)))
    return {
        **row,
        "questions": {name: row["questions"][name] for name in kept},
        "gold": {name: row["gold"][name] for name in kept if name in row["gold"]},
        "soft": {name: row["soft"][name] for name in kept if name in row.get("soft", {})},
    }


def index_form(rng: random.Random, row: Row) -> Row:
    """Move a text state into the instruction of a record with one question, as some benchmarks ask."""
    if not isinstance(row["state"], str) or len(row["questions"]) != 1 or not row["state"].strip():
        return row
    name, question = next(iter(row["questions"].items()))
    asked = str(question.get("instructions") or "Decide.")
    text = row["state"]
    joined = rng.choice(
        (f"{asked.rstrip('.?!:')}:\n{text}", f"{asked}\n{rng.choice(TEXT_NAMES)}: {text}", f"{asked}\n\n{text}",
         f"{rng.choice(TEXT_NAMES)}: {text}\n{asked}" if rng.random() < 0.3 else f"{asked}\n{text}")
    )  # fmt: skip
    return {**row, "state": rng.choice(({}, "", {})), "questions": {name: {**question, "instructions": joined}}}


def wrap_state(rng: random.Random, row: Row) -> Row:
    """Put a text state into a small object."""
    if not isinstance(row["state"], str):
        return row
    key = rng.choice(("text", "message", "user_message", "body", "content", "utterance", "comment", "request"))
    state: dict[str, Any] = {key: row["state"]}
    if rng.random() < 0.3:
        state["channel"] = rng.choice(("chat", "email", "app", "web", "phone"))
    if rng.random() < 0.2:
        state = {"id": rng.randint(100, 99999), **state}
    return {**row, "state": state}


def neutral_ids(rng: random.Random, row: Row) -> Row:
    """Name the options of choices A, B, ... or option_0, ...; an id without a description becomes the description."""
    row = copy.deepcopy(row)
    style = rng.choice(("letters", "option", "number"))
    for name, question in row["questions"].items():
        if question["type"] != "choice":
            continue
        criteria = as_map(question["criteria"])
        keys = {key: new_key(style, number) for number, key in enumerate(criteria)}
        question["criteria"] = {keys[key]: value or key.replace("_", " ") for key, value in criteria.items()}
        rename_labels(row, name, keys)
    return row


def new_key(style: str, number: int) -> str:
    """The id of option `number` in a style."""
    if style == "letters" and number < 26:
        return chr(65 + number)
    return f"option_{number}" if style != "number" else str(number + 1)


def rename_labels(row: Row, name: str, keys: dict[str, str]) -> None:
    """Rename gold and soft labels of one question."""
    if name in row["gold"]:
        row["gold"][name] = keys[str(row["gold"][name])]
    if name in row.get("soft", {}):
        row["soft"][name] = {keys[key]: share for key, share in row["soft"][name].items()}


def as_map(criteria: Any) -> dict[str, Any]:
    """Criteria of a choice as a map."""
    return dict(criteria) if isinstance(criteria, dict) else dict.fromkeys(criteria)


def reverse_scores(row: Row) -> Row:
    """List the levels of every score from the other end."""
    row = copy.deepcopy(row)
    for name, question in row["questions"].items():
        if question["type"] == "score":
            last = len(question["criteria"]) - 1
            question["criteria"] = question["criteria"][::-1]
            if name in row["gold"]:
                row["gold"][name] = last - int(row["gold"][name])
            if name in row.get("soft", {}):
                row["soft"][name] = {str(last - int(key)): share for key, share in row["soft"][name].items()}
    return row


def vary_noul(rng: random.Random, row: Row) -> Row:
    """Ask yes/no questions with other criteria, swapped or neutral labels, negated, or as a choice."""
    row = copy.deepcopy(row)
    for name, question in list(row["questions"].items()):
        labelled = question["type"] == "noul" and isinstance(row["gold"].get(name), bool)
        if labelled and isinstance(question.get("instructions"), str):
            _vary_one(rng, row, name, question)
    return row


def _vary_one(rng: random.Random, row: Row, name: str, question: Row) -> None:
    asked, gold = question["instructions"], row["gold"][name]
    given = question.get("criteria") or {}
    roll = rng.random()
    if roll < 0.25:
        pass
    elif roll < 0.37 and not given:
        yes, no = rng.choice(STRAIGHT)
        question["criteria"] = {"true": yes, "false": no}
    elif roll < 0.49:
        yes, no = (given["false"], given["true"]) if len(given) == 2 else rng.choice(SWAPPED)
        question["criteria"] = {"true": yes, "false": no}
        row["gold"][name] = not gold
    elif roll < 0.58:
        flip = rng.random() < 0.5
        a, b = ("B", "A") if flip else ("A", "B")
        question["instructions"] = (
            f"{asked} {rng.choice(('Answer A for yes and B for no.', 'A: yes. B: no.', 'A = yes, B = no.'))}"
        )
        question["criteria"] = {"true": a, "false": b}
        row["gold"][name] = gold != flip
    elif roll < 0.70:
        start = rng.choice(("Is it wrong to say yes to this: ", "Is the answer to this question no? ",
                            "Is it false that the answer is yes? ", "Answer the opposite: ", "Not the case: "))  # fmt: skip
        question["instructions"] = start + asked
        question.pop("criteria", None)
        row["gold"][name] = not gold
    elif roll < 0.92:
        yes, no = (given["true"], given["false"]) if len(given) == 2 else rng.choice(STRAIGHT)
        keys = rng.choice(
            (("yes", "no"), ("y", "n"), ("true", "false"), ("A", "B"), ("1", "0"), ("positive", "negative"))
        )
        pairs = [(keys[0], yes), (keys[1], no)]
        rng.shuffle(pairs)
        question["type"] = "choice"
        question["criteria"] = dict(pairs)
        row["gold"][name] = keys[0] if gold else keys[1]


def without_gold(rng: random.Random, row: Row, share: float = 0.5) -> Row:
    """Add a none-of-these option to single-question choices; in `share` of them take the right one away."""
    row = copy.deepcopy(row)
    for name, question in row["questions"].items():
        if question["type"] != "choice" or len(question["criteria"]) < 3 or name not in row["gold"]:
            continue
        criteria = as_map(question["criteria"])
        text = rng.choice(NONE_TEXTS)
        key = "none" if "none" not in criteria else "no_option"
        if rng.random() < share:
            criteria.pop(row["gold"][name])
            row["gold"][name] = key
        criteria[key] = text
        items = list(criteria.items())
        rng.shuffle(items)
        question["criteria"] = dict(items)
        row["soft"] = {}
    return row


def uniform_state(rng: random.Random, row: Row, other: Any) -> Row:
    """Take the evidence away: an empty state, or one about something else; every answer becomes equally likely."""
    row = copy.deepcopy(row)
    row["state"] = rng.choice(EMPTY_STATES) if rng.random() < 0.5 else other
    row["gold"] = {}
    row["soft"] = {}
    for name, question in row["questions"].items():
        options = ("true", "false") if question["type"] == "noul" else (
            [str(level) for level in range(len(question["criteria"]))] if question["type"] == "score"
            else list(as_map(question["criteria"]))
        )  # fmt: skip
        row["soft"][name] = {option: 1 / len(options) for option in options}
    return row


def fewer_options(rng: random.Random, row: Row, low: int, high: int) -> Row:
    """Keep the right option and some others of every choice."""
    row = copy.deepcopy(row)
    for name, question in row["questions"].items():
        if question["type"] != "choice" or name not in row["gold"] or row.get("soft", {}).get(name):
            continue
        criteria = as_map(question["criteria"])
        keep = min(len(criteria), rng.randint(low, high))
        others = [key for key in criteria if key != row["gold"][name]]
        chosen = [*rng.sample(others, keep - 1), row["gold"][name]]
        rng.shuffle(chosen)
        question["criteria"] = {key: criteria[key] for key in chosen}
    return row
