"""Does an answer stay the same when nothing that matters has changed, and move when everything has? Needs no labels.

Every suite turns a record into variants and says how the variant's questions and options correspond to the first ones.
Texts are data (`robustness.json`). Rates come with bootstrap intervals over records. Knows backends, not models.

Measures of a suite, over the questions of all variants:

    flips       share whose most probable option changed
    distance    mean total variation distance between the two distributions, 0..1
    entropy     share whose entropy rose (empty and off-topic states: it should)
    negation    mean |p(X) + p(not X) - 1| (negation suite)
    obeyed      share that now answer what the injection asked for, and was not the answer before
"""

from __future__ import annotations

import json
import math
import random
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from itertools import islice
from typing import Any

import numpy as np

from dicast.evaluation import metrics
from dicast.evaluation.backends import Backend, Reply, criteria_of
from dicast.evaluation.bootstrap import bootstrap
from dicast.evaluation.metrics import Floats
from dicast.evaluation.report import interval_text
from dicast.records import JSON, Choice, Noul, Question, Record, Score

Probabilities = Mapping[str, Mapping[str, float]]
TEXTS: dict[str, Any] = json.loads(files("dicast.evaluation").joinpath("robustness.json").read_text(encoding="utf-8"))
DISTRACTOR_WORDS = (60, 240)


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed record.

    Attributes:
        record: what is asked.
        same: first question id -> (question id in the variant, first option -> option in the variant).
        target: first question id -> the option that an injection asks for.
        negated: whether p(true) should become p(false).
    """

    record: Record
    same: Mapping[str, tuple[str, Mapping[str, str]]]
    target: Mapping[str, str] = field(default_factory=dict)
    negated: bool = False


Suite = Callable[[Record, Probabilities, random.Random], Iterator[Variant]]


def option_order(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """Options of every choice backwards, then shuffled."""
    for turn in (lambda keys: keys[::-1], lambda keys: draw.sample(keys, len(keys))):
        changed = {
            key: replace(
                question, criteria={option: criteria_of(question)[option] for option in turn(list(question.options))}
            )
            for key, question in record.questions.items()
            if isinstance(question, Choice)
        }
        if changed:
            yield Variant(replace(record, questions={**record.questions, **changed}), _same(changed))


def question_order(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """Questions backwards; records of one question have no variant."""
    if len(record.questions) > 1:
        questions = dict(reversed(list(record.questions.items())))
        yield Variant(replace(record, questions=questions), _same(questions))


def alone(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """Every question by itself instead of among others."""
    if len(record.questions) > 1:
        for key, question in record.questions.items():
            yield Variant(replace(record, questions={key: question}), _same({key: question}))


def renamed(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """Other question ids where instructions say what is asked, other option keys where texts say what they mean."""
    questions: dict[str, Question] = {}
    same: dict[str, tuple[str, Mapping[str, str]]] = {}
    for number, (key, question) in enumerate(record.questions.items()):
        name = f"item_{number + 1}" if question.instructions else key
        options = {option: option for option in question.options}
        if isinstance(question, Choice) and all(text is not None for text in criteria_of(question).values()):
            options = {option: f"answer {place + 1}" for place, option in enumerate(question.options)}
            described = {options[option]: text for option, text in criteria_of(question).items()}
            question = replace(question, criteria=described)
        questions[name], same[key] = question, (name, options)
    yield Variant(replace(record, questions=questions), same)


def paraphrase(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """Instructions framed in other words that ask for the same thing."""
    for template in TEXTS["paraphrases"]:
        changed = _reworded(record, template, record.questions)
        if changed:
            yield Variant(replace(record, questions={**record.questions, **changed}), _same(changed))


def negation(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """The opposite of every noul without criteria of its own."""
    nouls = {key: q for key, q in record.questions.items() if isinstance(q, Noul) and not q.criteria}
    for template in TEXTS["negations"]:
        changed = _reworded(record, template, nouls)
        if changed:
            yield Variant(replace(record, questions=changed), _same(changed), negated=True)


def empty_state(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """Nothing to decide from. Records whose question holds the case itself (empty state) have no variant."""
    if record.state:
        yield Variant(replace(record, state="" if isinstance(record.state, str) else {}), _same(record.questions))


def off_topic(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """A state about something else."""
    if record.state:
        yield Variant(replace(record, state=draw.choice(TEXTS["off_topic"])), _same(record.questions))


def injection(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """A state that tells the model to give its least probable answer to one of the questions."""
    key = draw.choice(sorted(record.questions))
    if key not in base or not isinstance(record.state, str | dict):
        return
    target = min(base[key], key=base[key].__getitem__)
    question = record.questions[key]
    shown = _shown(question, target)
    for item in TEXTS["injections"]:
        text = item["text"].format(question=question.instructions or key, target=shown)
        state = f"{record.state}\n{text}" if isinstance(record.state, str) else {**record.state, item["field"]: text}
        yield Variant(replace(record, state=state), _same({key: question}), target={key: target})


def distractors(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """Sentences that have nothing to do with the case, before and after it."""
    words = TEXTS["distractors"].split()
    for count in DISTRACTOR_WORDS:
        text = " ".join((words * (count // len(words) + 1))[:count])
        state = _with_text(record.state, text)
        if state is not None:
            yield Variant(replace(record, state=state), _same(record.questions))


def unicode_forms(record: Record, base: Probabilities, draw: random.Random) -> Iterator[Variant]:
    """Other code points for the same text: decomposed accents, typographic quotes and spaces."""
    for change in (lambda text: unicodedata.normalize("NFD", text), _typographic):
        state = _mapped(record.state, change)
        questions = {
            key: replace(question, instructions=_mapped(question.instructions, change))
            for key, question in record.questions.items()
        }
        if (state, questions) != (record.state, dict(record.questions)):
            yield Variant(replace(record, state=state, questions=questions), _same(questions))


SUITES: Mapping[str, Suite] = {
    "option_order": option_order,
    "question_order": question_order,
    "alone": alone,
    "renamed": renamed,
    "paraphrase": paraphrase,
    "negation": negation,
    "empty_state": empty_state,
    "off_topic": off_topic,
    "injection": injection,
    "distractors": distractors,
    "unicode_forms": unicode_forms,
}


def run_suites(
    records: Iterable[Record],
    backend: Backend,
    *,
    suites: Sequence[str] = tuple(SUITES),
    repeats: int = 1000,
    seed: int = 0,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Ask records and their variants, and compare.

    Args:
        records: what to ask; media are kept as they are.
        backend: who answers.
        suites: names of `SUITES`.
        repeats: bootstrap draws.
        seed: of shuffles, targets and draws.
        advance: called with the number of records done.

    Returns:
        ``suites``: name -> ``n`` questions compared, ``records``, ``failed`` variants, and the measures with intervals.
    """
    compared: dict[str, list[dict[str, float]]] = {name: [] for name in suites}
    failed = dict.fromkeys(suites, 0)
    stream, done = iter(records), 0
    while chunk := list(islice(stream, backend.chunk)):
        base = backend.answer(chunk)
        for place, (record, reply) in enumerate(zip(chunk, base, strict=True)):
            if reply.error:
                continue
            draw = random.Random(f"{seed}/{done + place}")
            for name in suites:
                variants = list(SUITES[name](record, reply.probabilities, draw))
                for variant, answered in zip(variants, _answer(backend, variants), strict=True):
                    failed[name] += bool(answered.error)
                    compared[name] += [row | {"record": done + place} for row in compare(reply, answered, variant)]
        done += len(chunk)
        advance(done)
    results = {name: _measures(rows, failed[name], repeats, seed) for name, rows in compared.items()}
    return {"model": backend.describe(), "records": done, "suites": results}


def compare(first: Reply, second: Reply, variant: Variant) -> Iterator[dict[str, float]]:
    """One row per question that both answered."""
    for key, (name, options) in variant.same.items():
        if key not in first.probabilities or name not in second.probabilities:
            continue
        before = first.probabilities[key]
        answer = second.probabilities[name]
        after = {option: answer[options[option]] for option in before}
        if variant.negated:
            yield {"negation": abs(before["true"] + after["true"] - 1.0), "consistent": _opposite(before, after)}
            continue
        row = {
            "flips": float(_best(before) != _best(after)),
            "distance": 0.5 * sum(abs(before[option] - after[option]) for option in before),
            "entropy": float(_entropy(after) > _entropy(before)),
            "entropy_gain": (_entropy(after) - _entropy(before)) / math.log(max(len(before), 2)),
        }
        if key in variant.target:
            row["obeyed"] = float(_best(after) == variant.target[key] and _best(before) != variant.target[key])
        yield row


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a Markdown page."""
    columns = ("flips", "distance", "entropy", "entropy_gain", "negation", "consistent", "obeyed")
    lines = [
        f"# Robustness of {result['model']['name']}",
        "",
        f"{result['records']} records; brackets: 95 % bootstrap intervals over records.",
        "",
        "| suite | questions | failed | " + " | ".join(columns) + " |",
        "|---|---:|---:|" + "---:|" * len(columns),
    ]
    for name, suite in result["suites"].items():
        cells = [interval_text(suite["measures"].get(column)) for column in columns]
        lines.append(f"| {name} | {suite['n']} | {suite['failed']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _answer(backend: Backend, variants: Sequence[Variant]) -> list[Reply]:
    return backend.answer([variant.record for variant in variants]) if variants else []


def _measures(rows: Sequence[Mapping[str, float]], failed: int, repeats: int, seed: int) -> dict[str, Any]:
    names = sorted({name for row in rows for name in row} - {"record"})
    columns = {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}

    def measure(weights: Floats) -> dict[str, float]:
        return {name: metrics.mean(column, weights) for name, column in columns.items()}

    records = np.array([row["record"] for row in rows])
    found = bootstrap(measure, records, repeats=repeats, seed=seed) if rows else {}
    measures = {name: asdict(interval) for name, interval in found.items()}
    return {"n": len(rows), "records": int(np.unique(records).size), "failed": failed, "measures": measures}


def _same(questions: Mapping[str, Question]) -> dict[str, tuple[str, dict[str, str]]]:
    return {key: (key, {option: option for option in question.options}) for key, question in questions.items()}


def _reworded(record: Record, template: str, questions: Mapping[str, Question]) -> dict[str, Question]:
    return {
        key: replace(question, instructions=template.format(instructions=question.instructions))
        for key, question in questions.items()
        if isinstance(question.instructions, str)
    }


def _shown(question: Question, option: str) -> str:
    if isinstance(question, Noul):
        return "yes" if option == "true" else "no"
    text = question.criteria[int(option)] if isinstance(question, Score) else criteria_of(question)[option]
    return text if isinstance(text, str) else option


def _with_text(state: JSON, text: str) -> JSON:
    """The state with sentences before and after it; None for a state that can take none."""
    half = len(text) // 2
    if isinstance(state, str):
        return f"{text[:half]}\n{state}\n{text[half:]}"
    if isinstance(state, dict) and state:
        return {"memo": text[:half], **state, "remarks": text[half:]}
    return None


def _mapped(value: JSON, change: Callable[[str], str]) -> JSON:
    """The value with every string changed; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list | tuple) else value


def _typographic(text: str) -> str:
    table = str.maketrans({"'": "\u2019", '"': "\u201d", "-": "\u2010", "…": "..."})
    return text.translate(table).replace(". ", ".\u00a0")


def _best(p: Mapping[str, float]) -> str:
    """The most probable option; ties by name, so that the order of options does not decide them."""
    return min(p, key=lambda option: (-p[option], option))


def _opposite(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    return float((before["true"] >= 0.5) != (after["true"] >= 0.5))


def _entropy(p: Mapping[str, float]) -> float:
    return -sum(value * math.log(value) for value in p.values() if value > 0)
