"""A decision as a table for people: one block per question, one bar per option. Knows no model and no JSON body.

urgent  Does this convey urgency?                       yes
  true       █████████████████████████████▏   97.3 %
team  Who should handle it?                             billing  (confidence 0.82)
  billing    ██████████████████████████▍      88.0 %
  technical  ███▋                             12.0 %
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dicast.cli.text import bar, fit, printable, width
from dicast.records import JSON, Answer, ChoiceAnswer, Decision, NoulAnswer, Question, Record

MAX_ROWS = 12
"""Most options shown for one question; the rest is summed up in one line."""
_LABEL_COLUMNS = 28
_PERCENT_COLUMNS = 9
_PLAIN = str.maketrans({"…": "~", "·": ","})


@dataclass(frozen=True, slots=True)
class Style:
    """What the terminal can show."""

    columns: int = 80
    colour: bool = False
    unicode: bool = True

    def strong(self, text: str) -> str:
        """The text in bold, where there is colour."""
        return f"\x1b[1m{text}\x1b[0m" if self.colour else text

    def faint(self, text: str) -> str:
        """The text dimmed, where there is colour."""
        return f"\x1b[2m{text}\x1b[0m" if self.colour else text


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    share: float
    best: bool


def render(
    decision: Decision[Any],
    questions: Mapping[str, Question],
    style: Style,
    *,
    milliseconds: float,
    media: Sequence[str] = (),
) -> str:
    """The table of one decision.

    Args:
        decision: the answers.
        questions: the questions that were asked, for their instructions.
        style: what the terminal can show.
        milliseconds: how long the decision took, for the last line.
        media: one line per image and video that was shown (see :func:`media_lines`).
    """
    rows = {question_id: _rows(answer) for question_id, answer in decision.answers.items()}
    labels = [width(row.label) for block in rows.values() for row in block[:MAX_ROWS]]
    label_columns = min(max(labels, default=1), _LABEL_COLUMNS, max(style.columns // 3, 8))
    lines = [style.faint(_cut(line, style.columns)) for line in media]
    for question_id, answer in decision.answers.items():
        lines.append(_heading(question_id, questions[question_id].instructions, answer, style))
        lines.extend(_bars(rows[question_id], label_columns, style))
    lines.append(style.faint(_footer(decision, milliseconds)))
    table = "\n".join(lines)
    return table if style.unicode else table.translate(_PLAIN)


def media_lines(record: Record, names: Sequence[str]) -> list[str]:
    """What a record shows: number, name and size of each image and video.

    Args:
        record: with decoded media.
        names: one per image, then one per video; empty for those that came without a name.
    """
    found = [f"image {n}  {image.width}x{image.height}" for n, image in enumerate(record.images, 1)]
    for number, video in enumerate(record.videos, 1):
        width, height = video.size
        length = "" if video.duration is None else f" of {video.duration:.1f} s"
        found.append(f"video {number}  {len(video)} frames{length}, {width}x{height}")
    return [f"{line}  {printable(name)}".rstrip() for line, name in zip(found, names, strict=True)]


def _heading(question_id: str, instructions: JSON, answer: Answer, style: Style) -> str:
    verdict = _cut(_verdict(answer), style.columns - 2)
    name = _cut(printable(question_id), style.columns)
    asked = _one_line(instructions)
    room = style.columns - width(verdict) - 2
    if width(name) + 2 >= room:
        return f"{style.strong(name)}\n  {style.strong(verdict)}"
    padded = fit(asked, room - width(name) - 2)
    return f"{style.strong(name)}  {padded}  {style.strong(verdict)}"


def _verdict(answer: Answer) -> str:
    if isinstance(answer, NoulAnswer):
        said = "yes" if answer.value else "no"
    elif isinstance(answer, ChoiceAnswer):
        said = f"{_cut(printable(answer.choice), _LABEL_COLUMNS)}  (confidence {answer.confidence:.2f})"
    else:
        said = f"{answer.score:.2f} of {len(answer.probabilities) - 1}  (confidence {answer.confidence:.2f})"
    return said if answer.accepted is not False else f"{said}  (below the threshold)"


def _rows(answer: Answer) -> list[_Row]:
    """Options to show: one for a noul, by probability for a choice, by level for a score."""
    if isinstance(answer, NoulAnswer):
        return [_Row("true", answer.noul, answer.value)]
    if isinstance(answer, ChoiceAnswer):
        ranked = sorted(answer.probabilities.items(), key=lambda item: -item[1])
        return [_Row(printable(option) or '""', share, option == answer.choice) for option, share in ranked]
    return [
        _Row(f"{level} {_one_line(answer.legend.get(level))}".strip(), share, int(level) == answer.level)
        for level, share in answer.probabilities.items()
    ]


def _bars(rows: list[_Row], label_columns: int, style: Style) -> Iterator[str]:
    columns = max(min(style.columns - label_columns - _PERCENT_COLUMNS - 4, 48), 4)
    for row in rows[:MAX_ROWS]:
        line = f"  {fit(row.label, label_columns)}  {bar(row.share, columns, unicode=style.unicode)}{row.share:8.1%}"
        yield style.strong(line) if row.best else line
    if len(rows) > MAX_ROWS:
        rest = sum(row.share for row in rows[MAX_ROWS:])
        yield style.faint(f"  and {len(rows) - MAX_ROWS} more, together {rest:.1%}")


def _footer(decision: Decision[Any], milliseconds: float) -> str:
    usage = decision.usage
    facts = [printable(decision.model)] if decision.model else []
    facts.append(f"{usage.input_tokens} tokens")
    if usage.media_tokens:
        facts.append(f"{usage.media_tokens} of them media")
    if decision.truncated:
        facts.append(f"{usage.state_tokens_dropped} tokens of the state cut off")
    facts.append(f"{milliseconds:.0f} ms")
    return " · ".join(facts)


def _cut(text: str, columns: int) -> str:
    return text if width(text) <= columns else fit(text, columns)


def _one_line(value: JSON) -> str:
    if value is None:
        return ""
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
