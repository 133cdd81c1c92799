# ruff: noqa: E501 - long lines of wording are data here
"""Two answers to one request: which is better, by how the worse one was made. From train parts of public sets, and own words.

`records(rng, read)` gets the reader of train parts and reads `SETS` only. A `Source` yields a request with a whole answer
and answers to other requests; a fault makes a worse one. Ties are the same text twice, or two answers with the same fault.
State: the request and both answers under varied keys, or one text. What is asked besides follows from the fault as well.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Read = Callable[[str], list[Row]]
SETS = ("rubric_score", "gsm8k_choice", "sgd", "onestop_english", "hwu64", "clinc150")
"""Public sets whose train parts are read; none of them holds human preferences between two answers."""
MOST = 620
"""Longest answer in characters."""
TIES = 0.15
"""Share of records in which neither answer is better."""


@dataclass(frozen=True)
class Case:
    """A request, a whole answer, and what the answer is about (answers about something else are off-topic)."""

    request: str
    answer: str
    topic: str
    wrong: str = ""
    """An answer of the same form that is known to be wrong."""


@dataclass(frozen=True)
class Pair:
    """Two answers in order, the better one (0, 1, or None for a tie), and the fault of each ("" for none)."""

    request: str
    texts: tuple[str, str]
    better: int | None
    faults: tuple[str, str]


# --- sources ----------------------------------------------------------------------------------------------------------


def cut(text: str, most: int = MOST) -> str:
    """The text up to the last whole sentence within `most` characters; empty where there is none."""
    text = text.strip()
    if len(text) <= most:
        return text if text.endswith((".", "!", "?", '"', "”")) else ""
    end = max(text[:most].rfind(mark) for mark in (". ", "! ", "? ", ".\n"))
    return (
        re.sub(r"\s+\d+\.$", "", text[: end + 1]).strip() if end > 0 else ""
    )  # the number of a list's next item goes too


def last_turn(instruction: str) -> str:
    """What the user said last."""
    said = instruction.rsplit("User:", 1)[-1].rsplit("Assistant:", 1)[0].strip()
    return said[-400:]


def topic_words(instruction: str) -> str:
    """The long words of a dialogue, without those of its fixed introduction."""
    words = set(re.findall(r"[a-z]{7,}", instruction.lower()))
    return " ".join(
        sorted(words - {"assistant", "previous", "dialogue", "between", "generate", "preferable", "response"})
    )


def rubric_cases(rows: Sequence[Row]) -> list[Case]:
    """Answers that raters gave one of the two best levels."""
    found = []
    for row in rows:
        response = row["state"].get("response")
        if not isinstance(response, str) or row["gold"].get("quality", 0) < 3:
            continue
        request, answer = last_turn(row["state"]["instruction"]), cut(response)
        if request and len(answer) > 120:
            found.append(Case(request, answer, topic_words(row["state"]["instruction"])))
    return found


def rated_pairs(rows: Sequence[Row]) -> list[Pair]:
    """Answers to the same request whose rated levels differ by two or more."""
    by_request: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in rows:
        if isinstance(row["state"].get("response"), str) and "quality" in row["gold"]:
            by_request[row["state"]["instruction"]].append(
                (row["gold"]["quality"], row["state"]["response"][:MOST].strip())
            )
    found = []
    for request, answers in by_request.items():
        for number, (level, text) in enumerate(answers):
            for other_level, other in answers[:number]:
                if abs(level - other_level) >= 2 and text != other:
                    pair = (text, other) if level > other_level else (other, text)
                    found.append(Pair(last_turn(request), pair, 0, ("", "lower rated")))
    return found


def problem_cases(rng: random.Random, rows: Sequence[Row]) -> list[Case]:
    """Word problems with the right number, and a wrong one of those offered."""
    found = []
    for row in rows:
        name = next((key for key, question in row["questions"].items() if question["type"] == "choice"), None)
        state = row["state"]
        request = state if isinstance(state, str) else (state or {}).get("question")
        if name is None or not isinstance(request, str) or not 0 < len(request) < 400 or name not in row["gold"]:
            continue
        options = row["questions"][name]["criteria"]
        right = options[row["gold"][name]]
        wrong = [text for text in options.values() if text != right and re.fullmatch(r"[\d.,]+", str(text))]
        if re.fullmatch(r"[\d.,]+", str(right)) and wrong:
            said = rng.choice(RESULT)
            found.append(Case(request, said.format(n=right), request[:80], said.format(n=rng.choice(wrong))))
    return found


def dialogue_cases(rows: Sequence[Row]) -> list[Case]:
    """The assistant's real reply to the user's last words."""
    found = []
    for row in rows:
        turns = row["state"]["dialogue"]
        for user, reply in itertools.pairwise(turns):
            if user.startswith("User: ") and reply.startswith("System: ") and len(user) > 40 and len(reply) > 55:
                service = row["state"]["service"]["name"].split("_")[0]
                found.append(Case(user[6:], reply[8:].strip(), service))
                break
    return found


def passage_cases(rows: Sequence[Row]) -> list[Case]:
    """A passage to go on with: the first sentences as the request, the rest as the answer."""
    found = []
    for row in rows:
        text = row["state"]
        head, _, tail = text.partition(". ") if isinstance(text, str) else ("", "", "")
        answer = cut(tail, 480)
        if len(head) > 40 and len(answer) > 150:
            found.append(Case(f"Continue this text: {head}.", answer, row["id"].split("/")[-1].split(":")[0]))
    return found


def level_pairs(rows: Sequence[Row]) -> list[Pair]:
    """For a beginner the elementary version is better than the one for advanced readers, and the other way round."""
    by_title: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if isinstance(row["state"], str) and (text := cut(row["state"], 480)):
            by_title[row["id"].split("/")[-1].split(":")[0]][row["gold"].get("level", 1)].append(text)
    found = []
    for levels in by_title.values():
        for easy, hard in zip(levels[0], levels[2], strict=False):
            found.append(
                Pair(
                    "I am learning English. Give me an easy text with short sentences and common words.",
                    (easy, hard),
                    0,
                    ("", "too hard"),
                )
            )
            found.append(
                Pair(
                    "Give me a demanding text for advanced readers, as first published.",
                    (hard, easy),
                    0,
                    ("", "too easy"),
                )
            )
    return found


def intent_cases(rng: random.Random, rows: Sequence[Row]) -> list[Case]:
    """A request to an assistant and a reply that names what was asked for."""
    found = []
    for row in rows:
        label = row["meta"]["label"].replace("_", " ")
        text = row["state"] if isinstance(row["state"], str) else (row["state"] or {}).get("message")
        if (
            isinstance(text, str)
            and len(text) > 12
            and label not in ("oos", "", "maybe", "yes", "no")
            and "general" not in label
        ):
            found.append(Case(text, rng.choice(SERVED).format(label=label), label))
    return found


RESULT = ("The answer is {n}.", "It comes to {n}.", "The result is {n}. I worked through the steps in order.", "After adding everything up you get {n}.",
          "So the final answer is {n}.", "That makes {n} in the end. Let me know if you want to see each step.")  # fmt: skip
SERVED = ("Sure, this is about {label}. I have looked it up and here is the result.", "I can help you with {label}. One moment, I am doing it now.",
          "Here is what you wanted to know on {label}. Tell me if you need more detail.", "Your request on {label} has been taken care of. Is there anything you would like to change?",
          "Done: {label}. You will see it in a second.", "About {label}: everything is set as you asked, and I have saved it for next time.")  # fmt: skip

# --- faults -----------------------------------------------------------------------------------------------------------

REFUSALS = ("I'm sorry, but I can't help with that.", "I cannot answer this question.", "Sorry, I am not able to do that.", "I must decline this request.",
            "As a language model I can't assist with this.", "I'm afraid I won't be able to help you here.", "That is something I am not allowed to do.",
            "I would rather not answer that.", "Unfortunately I can't provide this.", "I refuse to answer.")  # fmt: skip
VAGUE = ("It depends.", "There are many ways to look at this.", "That is an interesting question.", "Hard to say.", "You could search the web for it.", "Maybe.",
         "Some people think one thing, some another.", "Whatever works for you.", "I guess so.", "Just try it.")  # fmt: skip
REVERSALS = ("In fact, the opposite of all this is true.", "Forget all that, it is wrong.", "Actually, none of what I just said is correct.",
             "But no, this answer is false from start to end.", "On second thought, everything above is a mistake.")  # fmt: skip
STARTS = ("Sure! ", "Here you go: ", "Of course. ", "Certainly. ", "Okay. ")
FAULTS = ("truncated", "off-topic", "off-topic", "refusal", "repetitive", "vague", "garbled", "contradictory", "wrong")


def truncated(rng: random.Random, text: str) -> str:
    words = text.split()
    return " ".join(words[: max(3, int(len(words) * rng.uniform(0.12, 0.4)))]).rstrip(".,!?;:")


def garbled(rng: random.Random, text: str) -> str:
    words = text.split()
    if rng.random() < 0.6:
        return " ".join(rng.sample(words, len(words)))
    return " ".join("".join(rng.sample(word, len(word))) for word in words)


def repetitive(rng: random.Random, text: str) -> str:
    first = re.split(r"(?<=[.!?])\s", text)[0]
    return " ".join([first] * rng.randint(3, 5))[:MOST]


def worse(rng: random.Random, case: Case, fault: str, others: Sequence[Case]) -> str | None:
    """A worse answer with the given fault; None where the case does not allow it."""
    long = len(case.answer.split()) >= 14
    if fault == "wrong":
        return case.wrong or None
    if fault == "refusal":
        return rng.choice(REFUSALS)
    if fault == "vague":
        return " ".join(rng.sample(VAGUE, rng.choice((1, 1, 2))))
    if fault == "off-topic":
        return off_topic(rng, case, others)
    if fault == "contradictory":
        return f"{case.answer} {rng.choice(REVERSALS)}"
    if fault == "repetitive":
        return repetitive(rng, case.answer) if long and len(re.split(r"(?<=[.!?])\s", case.answer)) > 1 else None
    return {"truncated": truncated, "garbled": garbled}[fault](rng, case.answer) if long else None


def off_topic(rng: random.Random, case: Case, others: Sequence[Case]) -> str | None:
    """An answer to a request about something else; None where the draw is about the same, or could be a wrong answer too."""
    if case.wrong:
        return None
    other = rng.choice(others)
    shared = set(case.topic.lower().split()) & set(other.topic.lower().split())
    return None if shared or other.request == case.request or other.answer == case.answer else other.answer


def make_pair(rng: random.Random, cases: Sequence[Case]) -> Pair | None:
    """A whole answer beside a worse one."""
    case, fault = rng.choice(cases), rng.choice(FAULTS)
    bad = worse(rng, case, fault, cases)
    if bad is None or bad == case.answer:
        return None
    return Pair(case.request, (case.answer, bad), 0, ("", fault))


def make_tie(rng: random.Random, cases: Sequence[Case]) -> Pair | None:
    """Two answers of which none is better: the same text, or the same fault twice."""
    case = rng.choice(cases)
    kind = rng.choice(("same", "same", "off-topic", "refusal", "vague"))
    if kind == "same":
        a, b = case.answer, case.answer
        if rng.random() < 0.6:
            b = rng.choice(STARTS) + b
        return Pair(case.request, (a, b), None, ("", ""))
    a, b = (worse(rng, case, kind, cases) for _ in range(2))
    return None if a is None or b is None or a == b else Pair(case.request, (a, b), None, (kind, kind))


def flipped(pair: Pair) -> Pair:
    """The same pair in the other order."""
    better = None if pair.better is None else 1 - pair.better
    return Pair(pair.request, pair.texts[::-1], better, pair.faults[::-1])


# --- records ----------------------------------------------------------------------------------------------------------

KEYS = (("response_a", "response_b", "response"), ("response_a", "response_b", "response"), ("answer_1", "answer_2", "answer"), ("first", "second", "answer"),
        ("reply_a", "reply_b", "reply"), ("candidate_1", "candidate_2", "candidate"), ("output_a", "output_b", "output"), ("a", "b", "answer"))  # fmt: skip
REQUESTS = ("request", "request", "prompt", "question", "instruction", "user", "query")
BETTER = ("Which {noun} is better?", "Which {noun} helps the user more?", "Compare the two {noun}s and pick the more helpful one.", "Which of the two would people prefer?",
          "Judge both {noun}s. Which one should be shown to the user?", "Which {noun} serves the request better?", "Select the better {noun}.", "Which one wins?",
          "Read the request, then decide between the two {noun}s.", "Preferred {noun}?", "Which {noun} is of higher quality?")  # fmt: skip
WORSE = (
    "Which {noun} is worse?",
    "Which {noun} helps the user less?",
    "Pick the {noun} that should be thrown away.",
    "Which one is of lower quality?",
)
TIE_TEXTS = ("equally good or bad", "no difference in quality", "both are about the same", "neither is better", "a tie")
OPTION_TEXTS = (
    ("the first {noun}", "the second {noun}"),
    ("the first one", "the second one"),
    ("{noun} A", "{noun} B"),
    ("first", "second"),
    ("{noun} 1", "{noun} 2"),
)
FIRST = ("the first {noun}", "the second {noun}")


def choice(
    rng: random.Random, keys: tuple[str, str, str], pair: Pair, asked: str, at: int | None, tie: bool
) -> tuple[Row, str]:
    """A choice between both answers, with or without an option for a tie; the question and its gold."""
    noun = keys[2]
    style = rng.choice(("state", "state", "ab", "AB", "12", "words"))
    ids = {"state": (keys[0], keys[1], "tie"), "ab": ("a", "b", "c"), "AB": ("A", "B", "C"), "12": ("1", "2", "3")}.get(
        style, ("first", "second", "equal")
    )
    texts: tuple[str | None, ...] = tuple(text.format(noun=noun) for text in rng.choice(OPTION_TEXTS))
    if style in ("state", "words") and rng.random() < 0.25:
        texts = (None, None)
    options = list(zip(ids, (*texts, rng.choice(TIE_TEXTS)), strict=True))[: 3 if tie else 2]
    if rng.random() < 0.25:
        rng.shuffle(options)
    gold = ids[2] if at is None else ids[at]
    return {
        "type": "choice",
        "instructions": asked.format(noun=noun).replace("replys", "replies"),
        "criteria": dict(options),
    }, gold


def side_questions(rng: random.Random, keys: tuple[str, str, str], pair: Pair) -> list[tuple[Row, Any]]:
    """Further questions whose answer follows from how the two answers were made."""
    noun, at = keys[2], rng.randrange(2)
    place, fault, text = FIRST[at].format(noun=noun), pair.faults[at], pair.texts[at]
    made: list[tuple[str, bool]] = []
    if fault in ("off-topic", "", "truncated"):
        made.append(
            (
                rng.choice(
                    (
                        "Is {p} off-topic?",
                        "Does {p} answer some other request?",
                        "{p} has nothing to do with the request.",
                    )
                ),
                fault == "off-topic",
            )
        )
    if fault == "refusal" or not re.search(
        r"sorry|can't|cannot|unable|not able|as an ai|unfortunately", text, re.IGNORECASE
    ):
        made.append(
            (rng.choice(("Did {p} refuse?", "Does {p} decline to help?", "{p} is a refusal.")), fault == "refusal")
        )
    if fault == "truncated" or (fault == "" and len(text) < 300 and text.endswith((".", "!", "?"))):
        made.append(
            (
                rng.choice(
                    ("Is {p} cut off in the middle?", "{p} stops before the end of a sentence.", "Does {p} break off?")
                ),
                fault == "truncated",
            )
        )
    if fault in ("", "garbled", "refusal", "vague"):
        made.append(
            (
                rng.choice(("Is {p} unreadable?", "Is {p} gibberish?", "The words of {p} are jumbled.")),
                fault == "garbled",
            )
        )
    if fault in ("", "repetitive", "refusal"):
        made.append(
            (rng.choice(("Does {p} repeat itself?", "Is the same sentence repeated in {p}?")), fault == "repetitive")
        )
    made.append(
        (
            rng.choice(("Is {p} the better one?", "{p} is better than the other one.", "Should {p} be preferred?")),
            pair.better == at,
        )
    )
    if pair.better is None or "" in pair.faults:
        made.append(
            (
                rng.choice(
                    (
                        "Are both {n}s equally good or bad?",
                        "There is no difference in quality between the two {n}s.",
                        "Is it a tie?",
                    )
                ),
                pair.better is None,
            )
        )
    same = pair.better is None and pair.faults == ("", "")
    if (same or "off-topic" in pair.faults or "refusal" in pair.faults) and pair.faults != ("refusal", "refusal"):
        made.append((rng.choice(("Do both {n}s say the same?", "The two {n}s have the same content.")), same))
    true, false = [item for item in made if item[1]], [item for item in made if not item[1]]
    chosen = true + false
    rng.shuffle(chosen)
    if true and rng.random() < 0.8:
        chosen = rng.sample(true, 1) + [item for item in chosen if item not in true]
    found: list[tuple[Row, Any]] = []
    for asked, value in chosen[:2]:
        words = asked.format(p=place, n=noun).replace("replys", "replies")
        found.append(({"type": "noul", "instructions": words[0].upper() + words[1:]}, value))
    lengths = [len(item) for item in pair.texts]
    if max(lengths) > 1.4 * min(lengths) and rng.random() < 0.4:
        longest = rng.random() < 0.6
        at = lengths.index(max(lengths)) if longest else lengths.index(min(lengths))
        found.append(choice(rng, keys, pair, rng.choice(LONGER if longest else SHORTER), at, False))
    rng.shuffle(found)
    return found[: rng.choice((0, 1, 1, 2))]


LONGER = ("Which {noun} is longer?", "Which {noun} has more words?", "Pick the longer {noun}.")
SHORTER = ("Which {noun} is shorter?", "Which {noun} has fewer words?", "Pick the shorter {noun}.")


def state_of(rng: random.Random, keys: tuple[str, str, str], pair: Pair) -> Any:
    """The request and both answers as an object or as one text."""
    if rng.random() < 0.2:
        name = keys[2].title()
        marks = rng.choice((("A", "B"), ("1", "2")))
        asked = rng.choice(("Request", "User", "Question", "Prompt"))
        return f"{asked}: {pair.request}\n\n{name} {marks[0]}: {pair.texts[0]}\n\n{name} {marks[1]}: {pair.texts[1]}"
    return {rng.choice(REQUESTS): pair.request, keys[0]: pair.texts[0], keys[1]: pair.texts[1]}


def record(rng: random.Random, pair: Pair) -> Row:
    """One pair with its questions."""
    pair = pair if rng.random() < 0.5 else flipped(pair)
    keys = rng.choice(KEYS)
    asked: list[tuple[Row, Any]] = []
    inverse = pair.better is not None and rng.random() < 0.1
    at = None if pair.better is None else 1 - pair.better if inverse else pair.better
    tie = pair.better is None or rng.random() < 0.7
    asked.append(choice(rng, keys, pair, rng.choice(WORSE if inverse else BETTER), at, tie))
    asked += side_questions(rng, keys, pair)
    if len(asked) > 1 and rng.random() < 0.15:
        asked.pop(0)
    rng.shuffle(asked)
    return {
        "state": state_of(rng, keys, pair),
        "questions": {f"q{number + 1}": question for number, (question, _) in enumerate(asked)},
        "gold": {f"q{number + 1}": gold for number, (_, gold) in enumerate(asked)},
        "soft": {},
    }


def records(rng: random.Random, read: Read, count: int = 2500) -> list[Row]:
    """The source `made_preference`: every set in its share, shuffled."""
    rows = {name: read(name) for name in SETS}
    sgd = rng.sample(rows["sgd"], min(len(rows["sgd"]), 3000))
    intents = [*intent_cases(rng, rows["hwu64"]), *intent_cases(rng, rows["clinc150"])]
    made = ((rubric_cases(rows["rubric_score"]), 0.24), (problem_cases(rng, rows["gsm8k_choice"]), 0.13), (dialogue_cases(sgd), 0.24),
            (passage_cases(rows["onestop_english"]), 0.14), (intents, 0.17))  # fmt: skip
    given = [
        *rated_pairs(rows["rubric_score"]),
        *rng.sample(levels := level_pairs(rows["onestop_english"]), min(len(levels), int(0.05 * count))),
    ]
    pairs: list[Pair] = [*given[: int(0.08 * count)]]
    weights = [share for _, share in made]
    while len(pairs) < count:
        cases = rng.choices([cases for cases, _ in made], weights)[0]
        pair = make_tie(rng, cases) if rng.random() < TIES * 0.9 else make_pair(rng, cases)
        if pair is not None:
            pairs.append(pair)
    found = [record(rng, pair) for pair in pairs]
    rng.shuffle(found)
    return found
