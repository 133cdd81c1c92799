# ruff: noqa: E501, B905 - long lines of wording are data here
"""Records derived from the labels of public sets: yes/no from choices, pairs, inverse choices, API choice, replies."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from mixture.generated import conversation
from mixture.tools import styled

Row = dict[str, Any]
Labelled = list[tuple[str, str]]
"""Texts with the label as words."""

ABOUT = ("Is the user asking about {l}?", "The request concerns: {l}.", "Is the intent of this message '{l}'?", "Does this belong to the topic {l}?",
         "Would you file this under {l}?", "The person wants help with {l}.", "Category check: {l}", "Is {l} what this is about?")  # fmt: skip
PICK = ("What is the intent?", "Which intent fits the message?", "Classify the request.", "Choose the matching label.",
        "Pick the category of this user request.", "Which of these does the user want?", "Route the message.", "Label the text.",
        "Select the best label for this text", "Assign the message to one class.")  # fmt: skip
SAME = ("Do both messages ask for the same thing?", "Are these two requests duplicates?", "Is the intent of the two texts identical?",
        "Would one answer serve both messages?")  # fmt: skip
INVERSE = (
    "Which message expresses this intent?",
    "Pick the request that belongs to the label.",
    "Which text fits the given category?",
)


def yes_no(rng: random.Random, items: Labelled, near: dict[str, list[str]]) -> Row:
    """Does a text have a label? Wrong labels are close ones in half of the cases."""
    text, label = rng.choice(items)
    true = rng.random() < 0.5
    shown = label if true else rng.choice(near[label] if rng.random() < 0.5 else [k for k in near if k != label])
    questions: Row = {"q": {"type": "noul", "instructions": rng.choice(ABOUT).format(l=shown)}}
    gold: Row = {"q": true}
    if rng.random() < 0.3:
        other = rng.choice([key for key in near if key != label])
        questions["q2"] = {"type": "noul", "instructions": rng.choice(ABOUT).format(l=other)}
        gold["q2"] = False
    return {"state": text, "questions": questions, "gold": gold}


def near_labels(labels: Sequence[str]) -> dict[str, list[str]]:
    """For each label those that share a word with it; all others where none does."""
    split = {label: set(label.split()) for label in labels}
    return {
        label: [other for other in labels if other != label and split[other] & split[label]]
        or [other for other in labels if other != label]
        for label in labels
    }


def pair(rng: random.Random, by_label: dict[str, list[str]]) -> Row:
    """Two texts: the same label or not."""
    label = rng.choice(list(by_label))
    same = rng.random() < 0.5
    other = label if same else rng.choice([key for key in by_label if key != label])
    a, b = rng.choice(by_label[label]), rng.choice(by_label[other])
    first, second = rng.choice((("a", "b"), ("message_1", "message_2"), ("first", "second")))
    return {
        "state": {first: a, second: b},
        "questions": {"same": {"type": "noul", "instructions": rng.choice(SAME)}},
        "gold": {"same": same},
    }


def inverse(rng: random.Random, by_label: dict[str, list[str]]) -> Row:
    """Which of several texts has the label in the state?"""
    labels = rng.sample(list(by_label), rng.randint(2, 8))
    texts = [rng.choice(by_label[label]) for label in labels]
    keys = (
        [f"option_{number}" for number in range(len(labels))]
        if rng.random() < 0.5
        else [chr(65 + n) for n in range(len(labels))]
    )
    gold = rng.randrange(len(labels))
    state: Any = rng.choice((labels[gold], {"intent": labels[gold]}, {"label": labels[gold]}))
    return {"state": state, "questions": {"q": {"type": "choice", "instructions": rng.choice(INVERSE), "criteria": dict(zip(keys, texts))}},
            "gold": {"q": keys[gold]}}  # fmt: skip


def many(rng: random.Random, items: Labelled, labels: Sequence[str], sizes: Sequence[int]) -> Row:
    """A choice among many labels; text in the state or, as some benchmarks do, in the instruction of an empty state."""
    text, label = rng.choice(items)
    size = min(len(labels), rng.choice(sizes))
    chosen = (
        sorted(labels)
        if size == len(labels)
        else [*rng.sample([item for item in labels if item != label], size - 1), label]
    )
    if rng.random() < 0.5 and size < len(labels):
        rng.shuffle(chosen)
    style = rng.choice(("option", "option", "words", "snake"))
    keys = {
        item: f"option_{number}" if style == "option" else item.replace(" ", "_") for number, item in enumerate(chosen)
    }
    shown = {item: item.replace(" ", "_") if style == "snake" or rng.random() < 0.1 else item for item in chosen}
    criteria = {keys[item]: shown[item] if style == "option" else None for item in chosen}
    asked = rng.choice(PICK)
    state: Any = text
    if rng.random() < 0.5:
        asked, state = (
            rng.choice((f"{asked.rstrip('?.')}:\n{text}", f"{asked}\n{text}", f"{asked}\n\nMessage: {text}")),
            {},
        )
    return {
        "state": state,
        "questions": {"q1": {"type": "choice", "instructions": asked, "criteria": criteria}},
        "gold": {"q1": keys[label]},
    }


def as_tools(rng: random.Random, items: Labelled, near: dict[str, list[str]]) -> Row:
    """Intents as functions: one yes/no question per offered function."""
    text, label = rng.choice(items)
    count = rng.choice((1, 2, 2, 3, 3, 4))
    others = rng.sample([key for key in near if key != label], 6) + rng.sample(near[label], min(2, len(near[label])))
    offered = [label, *rng.sample(sorted(set(others)), min(count - 1, len(set(others))))]
    if rng.random() < 0.1:
        offered = offered[1:] or [rng.choice(others)]
    rng.shuffle(offered)
    style = rng.choice(("snake", "camel", "pascal"))
    names = {item: styled(rng, item.replace(" ", "_"), style) for item in offered}
    about = rng.choice(("Handle requests about {l}.", "Serve the user intent: {l}", "Use for {l}.", "{l}"))
    key, value = conversation(rng, text)
    asked = rng.choice(("Candidate tool: {n}. Invoke it?", "Does the assistant have to call {n}?", "Mark yes if {n} answers the user.",
                        "Select yes when the tool should be called for the conversation in the state, else no.\n\nCandidate tool: {n}"))  # fmt: skip
    noul = rng.random() < 0.4
    yes, no = rng.choice((("Call it.", "Do not call it."), ("the tool is needed", "the tool is not needed")))
    questions, gold = {}, {}
    for number, item in enumerate(offered):
        question: Row = {"type": "noul", "instructions": asked.format(n=names[item])}
        if not noul:
            question = {"type": "choice", "instructions": question["instructions"], "criteria": {"yes": yes, "no": no}}
        questions[f"f{number}"] = question
        gold[f"f{number}"] = (item == label) if noul else ("yes" if item == label else "no")
    state = {key: value, "functions": [{"name": names[item], "description": about.format(l=item)} for item in offered]}
    return {"state": state, "questions": questions, "gold": gold}


def api_choice(rng: random.Random, rows: Sequence[Row], catalogue: dict[str, str]) -> Row | None:
    """The intent of a service dialogue among the intents of all services, described in the state's catalogue."""
    row = rng.choice(rows)
    gold = row["gold"].get("intent")
    if gold is None or gold == "NONE" or gold not in catalogue:
        return None
    names = [
        *rng.sample([name for name in catalogue if name != gold], rng.choice((4, 9, 19, 29, len(catalogue) - 1))),
        gold,
    ]
    names.sort() if rng.random() < 0.5 else rng.shuffle(names)
    style = rng.choice(("same", "snake"))
    shown = {
        name: name if style == "same" else "".join("_" + c.lower() if c.isupper() else c for c in name).strip("_")
        for name in names
    }
    turns = row["state"]["dialogue"][-rng.choice((3, 5, 7, 10)) :]
    dialogue: Any = turns
    if rng.random() < 0.6:
        dialogue = [{"role": turn.split(": ", 1)[0], "text": turn.split(": ", 1)[-1]} for turn in turns]
    in_state = rng.random() < 0.7
    state: Row = {"dialogue": dialogue}
    if in_state:
        state["available_tools"] = [{"name": shown[name], "description": catalogue[name]} for name in names]
    keys = {name: f"option_{n}" if in_state and rng.random() < 0.6 else shown[name] for n, name in enumerate(names)}
    criteria = {keys[name]: shown[name] if in_state else catalogue[name] for name in names}
    asked = rng.choice(("Which API should be called for the dialogue in the state?", "Pick the single tool for the next step.",
                        "Choose the tool that serves the user's last request. Use the catalog in the state.", "Next API call?"))  # fmt: skip
    return {
        "state": state,
        "questions": {"tool": {"type": "choice", "instructions": asked, "criteria": criteria}},
        "gold": {"tool": keys[gold]},
    }


def next_reply(rng: random.Random, rows: Sequence[Row]) -> Row | None:
    """Which of two replies comes next in a dialogue?"""
    row, other = rng.sample(rows, 2)
    turns = row["state"]["dialogue"]
    replies = [number for number, turn in enumerate(turns) if turn.startswith("System: ") and number > 0]
    wrong = [turn for turn in other["state"]["dialogue"] if turn.startswith("System: ")]
    if not replies or not wrong:
        return None
    at = rng.choice(replies)
    texts = [turns[at].split(": ", 1)[1], rng.choice(wrong).split(": ", 1)[1]]
    order = [0, 1]
    rng.shuffle(order)
    state = {"dialogue": turns[max(0, at - 4) : at], "response_a": texts[order[0]], "response_b": texts[order[1]]}
    asked = rng.choice(
        (
            "Which response fits better?",
            "Compare both responses and choose the better one.",
            "Which reply is more helpful here?",
        )
    )
    criteria: Row = {"response_a": "the first response", "response_b": "the second response"}
    if rng.random() < 0.5:
        criteria["tie"] = "equally good or bad"
    return {"state": state, "questions": {"better": {"type": "choice", "instructions": asked, "criteria": criteria}},
            "gold": {"better": "response_a" if order[0] == 0 else "response_b"}}  # fmt: skip


def better_answer(rng: random.Random, rows: Sequence[Row]) -> Row:
    """Two answers to one request: the real one against one to another request, or a cut one."""
    row, other = rng.sample(rows, 2)
    good = row["state"]["response"][:700]
    cut = good[: rng.randint(20, max(21, len(good) // 4))]
    bad = cut if rng.random() < 0.4 else other["state"]["response"][:700]
    order = rng.random() < 0.5
    a, b = (good, bad) if order else (bad, good)
    tie = rng.random() < 0.1
    if tie:
        b = a
    asked = rng.choice(
        ("Which answer do people prefer?", "Compare the two responses; which helps more?", "Which response is better?")
    )
    criteria = {"response_a": "the first response", "response_b": "the second response", "tie": "equally good or bad"}
    state = {"request": row["state"]["instruction"][-500:], "response_a": a, "response_b": b}
    return {"state": state, "questions": {"better": {"type": "choice", "instructions": asked, "criteria": criteria}},
            "gold": {"better": "tie" if tie else "response_a" if order else "response_b"}}  # fmt: skip
