"""What is wrong with a run before it starts: data, labels, balance, leakage, length, media. One report, no compute.

Reads every row of every source and goes on after errors, so that one look shows them all. Knows examples and how to
count tokens; builds no model.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dicast.errors import DicastError, InputError
from dicast.media import decode_image, decode_video
from dicast.training.config import Config, SourceConfig
from dicast.training.data import Example, read_examples
from dicast.training.neardup import near_pairs

SHOWN = 10
"""Problems of one kind that are listed; the rest is counted."""
RARE = 5
"""A class with fewer training examples than this is reported."""
DOMINANT = 0.95
"""A question whose commonest answer has at least this share is reported."""
NEAR = 0.8
"""Jaccard similarity of word triples from which two states count as nearly the same."""
NEAR_LIMIT = 200_000
"""With more states than this, near duplicates are not searched; the report says so."""


@dataclass
class Report:
    """What the check found.

    Attributes:
        errors: what must be mended: "place: message".
        warnings: what should be looked at.
        facts: name -> value, for the table of the report.
    """

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return not self.errors

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {"ok": self.ok, "errors": self.errors, "warnings": self.warnings, "facts": self.facts}

    def text(self) -> str:
        """The report for people."""
        lines = [f"{name}: {_shown(value)}" for name, value in self.facts.items()]
        for title, problems in (("errors", self.errors), ("warnings", self.warnings)):
            if problems:
                lines += ["", f"{len(problems)} {title}:"]
                lines += [f"  {problem}" for problem in problems]
        lines += ["", "the run can start" if self.ok else "the run cannot start like this"]
        return "\n".join(lines).lstrip("\n")


def check(config: Config, count_tokens: Callable[[Example], int] | None) -> Report:
    """Check everything that a run reads.

    Args:
        config: the run.
        count_tokens: tokens of an example, raising InputError where it does not fit; None leaves lengths out.
    """
    report = Report()
    train = [example for source in config.data.train for example in _read(source, report)]
    dev = [example for source in config.data.dev for example in _read(source, report)]
    if not train:
        report.errors.append("data.train: there are no training examples")
    report.facts["examples"] = {"train": len(train), "dev": len(dev)}
    _labels(train, report)
    _duplicates(train, dev, report)
    _lengths([*train, *dev], count_tokens, report)
    _media([*train, *dev], report)
    return report


def _read(source: SourceConfig, report: Report) -> list[Example]:
    examples: list[Example] = []
    problems: list[str] = []
    try:
        rows = read_examples(
            source.path,
            source=source.name,
            split=source.split,
            columns=source.columns,
            on_problem=lambda place, message: problems.append(f"{place}: {message}"),
        )
        for example in rows:
            examples.append(example)
            if source.limit and len(examples) >= source.limit:
                break
    except (DicastError, UnicodeDecodeError, OSError, EOFError) as error:
        problems.append(f"{source.path}: {error}")
    _add(report.errors, problems, f"{source.path}: rows are wrong")
    return examples


def _labels(train: Sequence[Example], report: Report) -> None:
    """Questions without labels, rare classes, questions that always have the same answer."""
    kinds: Counter[str] = Counter()
    unlabelled = 0
    answers: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for example in train:
        if not any(map(example.labelled, example.record.questions)):
            unlabelled += 1
        for name, question in example.record.questions.items():
            kinds[question.type] += example.labelled(name)
            if name in example.gold:
                answers[example.source, name][_meaning(example, name)] += 1
    report.facts["labelled questions"] = dict(kinds)
    if unlabelled:
        report.warnings.append(f"{unlabelled} training examples have no label at all and teach nothing")
    dominant, rare = [], []
    for (source, name), counts in sorted(answers.items()):
        answer, most = counts.most_common(1)[0]
        total = counts.total()
        if total >= 20 and most / total >= DOMINANT:
            dominant.append(f"{source}: {name} is {answer!r} in {most} of {total} examples")
        few = [f"{label} ({count})" for label, count in counts.items() if count < RARE]
        if few and len(counts) > 1:
            rare.append(
                f"{source}: {name} has {len(few)} classes with fewer than {RARE} examples: {', '.join(few[:6])}"
            )
    _add(report.warnings, dominant, "questions nearly always have the same answer")
    _add(report.warnings, rare, "questions have rare classes")
    report.facts["classes"] = {f"{source}/{name}": len(counts) for (source, name), counts in list(answers.items())[:20]}


def _duplicates(train: Sequence[Example], dev: Sequence[Example], report: Report) -> None:
    """Repeated and contradictory training examples, and training examples that come back in dev."""
    seen: dict[str, Example] = {}
    repeated = 0
    contradictions = []
    for example in train:
        first = seen.setdefault(_signature(example), example)
        if first is not example:
            repeated += 1
            odd = [name for name in example.gold if first.gold.get(name, example.gold[name]) != example.gold[name]]
            if odd:
                contradictions.append(f"{example.place}: {odd[0]} has another label than in {first.place}")
    report.facts["repeated training examples"] = repeated
    _add(report.warnings, contradictions, "equal records have different labels")
    leaks = [
        f"{one.place}: the same record is in {seen[_signature(one)].place}" for one in dev if _signature(one) in seen
    ]
    _add(report.errors, leaks, "dev records are also in the training data")
    families = {example.family for example in train if example.family}
    shared = [
        f"{one.place}: its family {one.family!r} is in the training data" for one in dev if one.family in families
    ]
    _add(report.errors, shared, "dev records share a family with training records")
    exact = {id(one) for one in dev if _signature(one) in seen}
    _near(train, [one for one in dev if id(one) not in exact], report)


def _near(train: Sequence[Example], dev: Sequence[Example], report: Report) -> None:
    if not dev or len(train) + len(dev) > NEAR_LIMIT:
        report.facts["near duplicates"] = "not searched" if dev else "no dev data"
        return
    pairs = near_pairs([_text(one) for one in train], [_text(one) for one in dev], least=NEAR)
    found = [
        f"{dev[right].place}: nearly the state of {train[left].place} ({share:.2f})" for left, right, share in pairs
    ]
    report.facts["near duplicates"] = len(found)
    _add(report.warnings, found, "dev states are nearly those of training examples")


def _lengths(examples: Sequence[Example], count_tokens: Callable[[Example], int] | None, report: Report) -> None:
    if count_tokens is None:
        report.facts["tokens"] = "not counted for this family"
        return
    lengths: list[int] = []
    problems: list[str] = []
    for example in examples:
        if example.record.has_media:
            continue
        try:
            lengths.append(count_tokens(example))
        except InputError as error:
            place = error.field if error.field.startswith(example.place) else f"{example.place}: {error.field}"
            problems.append(f"{place}: {error.message}")
    if lengths:
        ordered = sorted(lengths)
        report.facts["tokens"] = {
            "median": ordered[len(ordered) // 2],
            "95 %": ordered[int(0.95 * (len(ordered) - 1))],
            "most": ordered[-1],
        }
    report.facts["too long"] = len(problems)
    _add(report.errors, problems, "records do not fit the model")


def _media(examples: Iterable[Example], report: Report) -> None:
    problems: list[str] = []
    count = 0
    for example in examples:
        for kind, sources, decode in (
            ("images", example.record.images, decode_image),
            ("videos", example.record.videos, decode_video),
        ):
            for index, source in enumerate(sources):
                count += 1
                try:
                    decode(source, name=f"{kind}.{index}")
                except DicastError as error:
                    problems.append(f"{example.place}: {error}")
    report.facts["images and videos"] = count
    _add(report.errors, problems, "images or videos cannot be read")


def _add(target: list[str], problems: Sequence[str], summary: str) -> None:
    target += problems[:SHOWN]
    if len(problems) > SHOWN:
        target.append(f"... and {len(problems) - SHOWN} more like this: {summary}")


def _meaning(example: Example, name: str) -> str:
    question = example.record.questions[name]
    label = example.gold[name]
    if question.type == "choice" and isinstance(question.criteria, dict) and isinstance(question.criteria[label], str):
        return str(question.criteria[label]) or label
    return label


def _text(example: Example) -> str:
    state = example.record.state
    return state if isinstance(state, str) else json.dumps(state, ensure_ascii=False, sort_keys=True, default=str)


def _signature(example: Example) -> str:
    """The same for records that read the same: case, spaces, punctuation and the order of questions are left aside."""
    state = " ".join(re.findall(r"\w+", _text(example).lower()))
    asked = sorted(
        (name, str(question.instructions), sorted(map(str, question.options)))
        for name, question in example.record.questions.items()
    )
    media = [str(source)[:4096] for source in (*example.record.images, *example.record.videos)]
    return repr((state, asked, media))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items()) or "none"
    return str(value)
