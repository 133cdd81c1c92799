# ruff: noqa: E501 - the table of the bank's format is wide
"""Messages composed of sentences with known attributes, and questions about them. Own work, CC0.

The banks are `attributes_*.txt` beside this file. One attribute there:

    @key kind domains ; label            kind: topic (what a message is about), mod (anything else), slot (follows from a slot)
    i keys      attributes that it implies
    u keys      attributes whose presence leaves it open whether this one holds; read in both directions
    c keys      it is denied only where one of these is present; they never stand in one message with it
    l keys      attributes that make it likely without stating it: asked with a soft label
    g regex     it is never denied of a text that matches, whatever the sentences were drawn for
    v scale:n   its level on a scale of `SCALES`
    ? and !     questions that are true where it holds, and where it does not; `{who}` and `{text}` are filled by domain
    = a | b     what its presence and its absence mean
    - a|b|...   sentences, with the slots of `SLOTS`

A message has the attributes of its sentences and what they imply, and no others; `holds` says which questions that decides.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mixture import attribute_words as words

Row = dict[str, Any]
LIKELY = 0.8
"""Soft label of what is likely but not stated."""
FORMS = (("plain", 56), ("criteria", 15), ("yes_no", 10), ("which", 14), ("score", 10))
BASE_RATES = (0.2, 0.5, 0.7, 0.9)
"""Share of questions on attributes that hold; drawn once a record, so that some records get mostly no."""
REVERSED = 0.27
"""Share of questions that are true where the attribute does not hold."""


@dataclass(frozen=True)
class Attribute:
    """One row of the bank; see the module's text."""

    key: str
    kind: str
    domains: tuple[str, ...]
    label: str
    implies: frozenset[str]
    unclear: frozenset[str]
    contrast: frozenset[str]
    likely: frozenset[str]
    guard: str
    levels: tuple[tuple[str, int], ...]
    yes: tuple[str, ...]
    no: tuple[str, ...]
    criteria: tuple[str, str]
    sentences: tuple[str, ...]


@dataclass
class Message:
    """Sentences in order with every attribute that they carry."""

    domain: str
    sentences: list[str] = field(default_factory=list)
    present: set[str] = field(default_factory=set)

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


@cache
def bank() -> dict[str, Attribute]:
    """All attributes by key."""
    lines = [
        line
        for path in sorted(Path(__file__).parent.glob("attributes_*.txt"))
        for line in path.read_text().splitlines()
    ]
    blocks: list[list[str]] = []
    for line in lines:
        if line.startswith("@"):
            blocks.append([line[1:]])
        elif line.strip() and not line.startswith("#"):
            blocks[-1].append(line)
    found = [parse(block) for block in blocks]
    named = {item.key: item for item in found}
    if len(named) < len(found):
        raise ValueError("an attribute occurs twice")
    for item in found:
        if missing := (item.implies | item.unclear | item.contrast | item.likely) - set(named):
            raise ValueError(f"{item.key} refers to unknown attributes: {sorted(missing)}")
    return named


def parse(block: list[str]) -> Attribute:
    """One attribute from its lines."""
    head, label = block[0].split(" ; ")
    key, kind, domains = head.split(" ")
    parts = {line[0]: line[2:].strip() for line in block[1:]}
    names = tuple(name for item in domains.split(",") for name in words.GROUPS.get(item, (item,)))

    def keys(mark: str) -> frozenset[str]:
        return frozenset(parts.get(mark, "").split())

    def texts(mark: str) -> tuple[str, ...]:
        return tuple(text.strip() for text in parts[mark].split("|"))

    levels = tuple((item.split(":")[0], int(item.split(":")[1])) for item in parts.get("v", "").split())
    guard = (
        parts.get("g", "").replace("{rivals}", "|".join(words.SLOTS["rival"])).replace("{names}", "|".join(words.NAMES))
    )
    meaning = texts("=")
    return Attribute(key, kind, names, label, keys("i"), keys("u"), keys("c"), keys("l"), guard, levels,
                     texts("?"), texts("!"), (meaning[0], meaning[1]), texts("-"))  # fmt: skip


def closure(keys: Iterable[str]) -> set[str]:
    """Attributes with everything they imply."""
    found: set[str] = set()
    todo = list(keys)
    while todo:
        key = todo.pop()
        if key not in found:
            found.add(key)
            todo += bank()[key].implies
    return found


def conflict(a: str, b: str) -> bool:
    """Whether two attributes never stand in one message."""
    return (
        b in bank()[a].contrast
        or a in bank()[b].contrast
        or frozenset((a, b)) in words.CONFLICTS
        or (bank()[a].kind == bank()[b].kind == "topic" and unclear(a, b))
    )


def unclear(a: str, b: str) -> bool:
    """Whether the presence of one leaves the other open."""
    return b in bank()[a].unclear or a in bank()[b].unclear


def carried(template: str) -> set[str]:
    """What a sentence carries by its slots and its punctuation."""
    found = {key for slot, key in words.SLOT_ATTRIBUTES.items() if "{" + slot + "}" in template}
    return found | ({"asks_question"} if "?" in template else set())


def fill(rng: random.Random, template: str) -> str:
    """A template with its slots filled."""
    values = {name: rng.choice(items) for name, items in words.SLOTS.items() if "{" + name + "}" in template}
    for name in [name for name in words.NUMBERED if "{" + name + "}" in template]:
        values[name] = re.sub("#", lambda _: str(rng.randint(1, 9)), rng.choice(words.NUMBERED[name]))
    text = template.format(**values)
    return text[0].upper() + text[1:]


def compose(rng: random.Random, domain: str) -> Message:
    """A message of one to five sentences, with what it carries."""
    message = Message(domain)
    here = [item for item in bank().values() if domain in item.domains]
    topics = [item for item in here if item.kind == "topic"]
    others = [item for item in here if item.kind != "topic"]
    chosen = rng.sample(topics, min(len(topics), rng.choices((0, 1, 2), (12, 70, 18))[0]))
    chosen += rng.sample(others, min(len(others), rng.choices((0, 1, 2, 3), (25, 38, 27, 10))[0]))
    templates = []
    for item in chosen:
        if add(message, template := rng.choice(item.sentences), (item.key,)):
            templates.append(template)
    rng.shuffle(templates)
    fillers = words.FILLERS[words.FAMILY[domain]]
    for template in rng.sample(fillers, rng.choices((0, 1, 2), (45, 40, 15))[0] if templates else rng.randint(1, 3)):
        if len(templates) < 5:
            add(message, template, ())
            templates.insert(0 if rng.random() < 0.6 else len(templates), template)
    message.sentences = [fill(rng, template) for template in templates]
    return message


def add(message: Message, template: str, keys: tuple[str, ...]) -> bool:
    """Note what a sentence carries, unless that contradicts the message so far."""
    new = closure((*keys, *carried(template)))
    if any(conflict(a, b) for a in new for b in message.present - new):
        return False
    message.present |= new
    return True


def holds(message: Message, key: str) -> bool | float | None:
    """Whether the message has the attribute; a probability where that is only likely, None where it is not decided."""
    item = bank()[key]
    if key in message.present:
        return True
    if item.likely & message.present:
        return None if item.contrast & message.present else LIKELY
    if any(unclear(key, other) for other in message.present):
        return None
    if item.contrast and not item.contrast & message.present:
        return None
    if item.guard and re.search(item.guard, message.text, re.IGNORECASE):
        return None
    return False


def decided(rng: random.Random, message: Message) -> tuple[list[str], list[str], list[str]]:
    """Attributes that hold, that do not, and that are likely; some of the second kind from other domains."""
    keys = [key for key, item in bank().items() if message.domain in item.domains]
    if rng.random() < 0.3:
        far = [item.key for item in bank().values() if item.kind == "topic" and not item.contrast
               and set(item.domains) & set(words.FAR.get(message.domain, ()))]  # fmt: skip
        keys += rng.sample(far, min(3, len(far)))
    answers = {key: holds(message, key) for key in dict.fromkeys(keys)}
    return (
        [key for key, value in answers.items() if value is True],
        [key for key, value in answers.items() if value is False],
        [key for key, value in answers.items() if isinstance(value, float)],
    )


# --- questions --------------------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """A question with its label, hard or soft."""

    question: Row
    gold: Any = None
    soft: dict[str, float] | None = None


def worded(rng: random.Random, domain: str, text: str) -> str:
    """A question text for a domain."""
    who, name = rng.choice(words.WHO[domain]), rng.choice(words.TEXT[domain])
    text = text.replace("{who}", who).replace("{text}", name)
    return text[0].upper() + text[1:]


def phrase(rng: random.Random, domain: str, item: Attribute) -> tuple[str, bool]:
    """A question about an attribute, and whether it is true where the attribute holds."""
    straight = rng.random() >= REVERSED
    return worded(rng, domain, rng.choice(item.yes if straight else item.no)), straight


def plain(rng: random.Random, domain: str, item: Attribute, value: bool) -> Asked:
    asked, straight = phrase(rng, domain, item)
    return Asked({"type": "noul", "instructions": asked}, value == straight)


def likely(rng: random.Random, domain: str, item: Attribute) -> Asked:
    """A question on what is likely, with a soft label."""
    asked, straight = phrase(rng, domain, item)
    share = LIKELY if straight else 1 - LIKELY
    return Asked({"type": "noul", "instructions": asked}, None, {"true": share, "false": round(1 - share, 6)})


def with_criteria(rng: random.Random, domain: str, item: Attribute, value: bool) -> Asked:
    """A yes/no question whose two answers are described; also swapped, or named by other words."""
    asked, straight = phrase(rng, domain, item)
    roll = rng.random()
    if roll < 0.5:
        yes, no = item.criteria if straight else item.criteria[::-1]
    elif roll < 0.65:
        swap = rng.random() < 0.5
        asked, straight = worded(rng, domain, rng.choice(words.JUDGE)), not swap
        yes, no = item.criteria[::-1] if swap else item.criteria
    elif roll < 0.85:
        yes, no = rng.choice(words.PAIRS)
        if rng.random() < 0.35:
            asked = f"{asked} Answer {no} for no and {yes} for yes."
    else:
        yes, no, label = *rng.choice(words.MARKS), item.label
        asked, straight = rng.choice(words.MARKED).format(label=label, yes=yes, no=no), True
        asked = worded(rng, domain, asked)
    return Asked({"type": "noul", "instructions": asked, "criteria": {"true": yes, "false": no}}, value == straight)


def yes_no(rng: random.Random, domain: str, item: Attribute, value: bool) -> Asked:
    """The same as a choice between two options."""
    asked, straight = phrase(rng, domain, item)
    yes_key, no_key = rng.choice(words.KEYS)
    if rng.random() < 0.5 and yes_key in ("yes", "true", "y"):
        yes_text, no_text = None, None
    elif rng.random() < 0.5:
        yes_text, no_text = item.criteria if straight else item.criteria[::-1]
    else:
        yes_text, no_text = rng.choice(words.ANSWERS)
    options = [(yes_key, yes_text), (no_key, no_text)]
    rng.shuffle(options)
    return Asked(
        {"type": "choice", "instructions": asked, "criteria": dict(options)}, yes_key if value == straight else no_key
    )


def which(rng: random.Random, message: Message, true: list[str], false: list[str]) -> Asked | None:
    """Which of several attributes holds? Exactly one does, or none."""
    named = [key for key in true if bank()[key].kind == "topic"] or true
    right = rng.choice(named) if named else None
    others = [key for key in false if right is None or not unclear(key, right)]
    size = min(len(others), rng.randint(2, 7))
    if size < 2:
        return None
    options = rng.sample(others, size)
    none = right is None or rng.random() < 0.25
    hidden = none and (right is None or rng.random() < 0.5)
    if right and not hidden:
        options[0] = right
    rng.shuffle(options)
    labels = {key: bank()[key].label for key in options}
    keys = {key: key for key in options}
    style = rng.choice(("key", "letters", "label", "option"))
    if style in ("letters", "option"):
        keys = {key: chr(65 + n) if style == "letters" else f"option_{n}" for n, key in enumerate(options)}
    elif style == "label":
        keys = labels
    criteria: Row = {keys[key]: None if style == "label" else labels[key] for key in options}
    none_key = {"letters": chr(65 + len(options)), "option": f"option_{len(options)}"}.get(style, "none")
    if none:
        criteria[none_key] = None if style == "label" else rng.choice(words.NONE)
    if style == "label" and none:
        criteria["none"] = rng.choice(words.NONE)
    asked = worded(rng, message.domain, rng.choice(words.WHICH))
    return Asked(
        {"type": "choice", "instructions": asked, "criteria": criteria},
        none_key if hidden or right is None else keys[right],
    )


def score(rng: random.Random, message: Message) -> Asked | None:
    """A level on a scale that the message's attributes fix."""
    for name in rng.sample(list(words.SCALES), len(words.SCALES)):
        values = {level for key in message.present for scale, level in bank()[key].levels if scale == name}
        scale = words.SCALES[name]
        if len(values) == 1 or (values == {0, 2} and scale.mixed):
            level = values.pop() if len(values) == 1 else 1
            levels = list(rng.choice(scale.levels))
            if rng.random() < 0.3:
                levels, level = levels[::-1], len(levels) - 1 - level
            asked = worded(rng, message.domain, rng.choice(scale.asked))
            return Asked({"type": "score", "instructions": asked, "criteria": levels}, level)
    return None


# --- records ----------------------------------------------------------------------------------------------------------


def state_of(rng: random.Random, message: Message) -> Any:
    """The message as text, as an email, as an object, or as turns of a chat."""
    roll = rng.random()
    family = words.FAMILY[message.domain]
    if family == "service" and len(message.sentences) > 1 and roll < 0.14:
        return chat(rng, message)
    if roll < 0.55:
        return message.text
    if family in ("service", "office") and roll < 0.68:
        return f"Subject: {rng.choice(words.SUBJECTS)}\n\n{message.text}"
    if family in ("service", "office") and roll < 0.84:
        keys = rng.choice((("subject", "body"), ("title", "text"), ("subject", "message")))
        return {keys[0]: rng.choice(words.SUBJECTS), keys[1]: message.text}
    state: Row = {rng.choice(words.STATE_KEYS[family]): message.text}
    for key, values in rng.sample(list(words.FIELDS.items()), rng.randint(0, 2)):
        state[key] = rng.choice(values)
    return dict(rng.sample(list(state.items()), len(state)))


def chat(rng: random.Random, message: Message) -> Any:
    """The sentences as a customer's turns with empty words of an agent between them."""
    names = rng.choice((("user", "assistant"), ("customer", "agent"), ("client", "support")))
    role, said = rng.choice((("role", "content"), ("from", "text"), ("speaker", "message")))
    turns = []
    for number, sentence in enumerate(message.sentences):
        if number and rng.random() < 0.6:
            turns.append({role: names[1], said: rng.choice(words.AGENT)})
        turns.append({role: names[0], said: sentence})
    return turns if rng.random() < 0.6 else {rng.choice(("chat", "messages", "transcript")): turns}


def record(rng: random.Random) -> Row:
    """One message with one to six questions."""
    while True:
        domain = rng.choices(list(words.DOMAINS), list(words.DOMAINS.values()))[0]
        message = compose(rng, domain)
        true, false, open_ = decided(rng, message)
        if true or len(false) > 2:
            break
    asked = questions(rng, message, true, false, open_)
    names = [f"q{number + 1}" for number in range(len(asked))]
    row: Row = {
        "state": state_of(rng, message),
        "questions": {name: item.question for name, item in zip(names, asked, strict=True)},
        "gold": {name: item.gold for name, item in zip(names, asked, strict=True) if item.gold is not None},
    }
    soft = {name: item.soft for name, item in zip(names, asked, strict=True) if item.soft}
    return {**row, "soft": soft}


def questions(rng: random.Random, message: Message, true: list[str], false: list[str], open_: list[str]) -> list[Asked]:
    """Questions in mixed forms about attributes that are decided; no attribute twice."""
    rate = rng.choice(BASE_RATES)
    yes, no = rng.sample(true, len(true)), rng.sample(false, len(false))
    asked: list[Asked] = []
    for _ in range(rng.choices((1, 2, 3, 4, 5, 6), (26, 26, 20, 14, 8, 6))[0]):
        form = rng.choices([name for name, _ in FORMS], [share for _, share in FORMS])[0]
        made = which(rng, message, true, false) if form == "which" else score(rng, message) if form == "score" else None
        if form in ("which", "score") and made is not None:
            asked.append(made)
            continue
        if open_ and rng.random() < 0.5:
            asked.append(likely(rng, message.domain, bank()[open_.pop()]))
            continue
        value = bool(yes) and (not no or rng.random() < rate)
        if not (yes if value else no):
            break
        item = bank()[(yes if value else no).pop()]
        make = {"criteria": with_criteria, "yes_no": yes_no}.get(form, plain)
        asked.append(make(rng, message.domain, item, value))
    return asked


def records(rng: random.Random, count: int = 8000) -> list[Row]:
    """The source `made_attributes`."""
    return [record(rng) for _ in range(count)]
