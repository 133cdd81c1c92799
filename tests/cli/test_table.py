"""The table of a decision: every option, the answer, nothing wider than the terminal, nothing that drives it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from dicast.cli.table import MAX_ROWS, Style, media_lines, render
from dicast.cli.text import width
from dicast.media import Video
from dicast.records import Choice, ChoiceAnswer, Decision, Noul, NoulAnswer, Question, Record, Score, ScoreAnswer, Usage

QUESTIONS: dict[str, Question] = {
    "urgent": Noul("Does this convey urgency?"),
    "team": Choice("Who should handle it?", ["billing", "technical"]),
    "mood": Score("How upset?", ["calm", {"level": "angry"}]),
}
DECISION: Decision = Decision(
    {
        "urgent": NoulAnswer({"true": 0.973, "false": 0.027}, 0.9),
        "team": ChoiceAnswer({"billing": 0.12, "technical": 0.88}, 0.76),
        "mood": ScoreAnswer({"0": 0.25, "1": 0.75}, 0.5, legend={"0": "calm", "1": {"level": "angry"}}),
    },
    Usage(123, state_tokens_dropped=7),
    "tiny",
)


def test_the_table_shows_answers_options_and_usage() -> None:
    lines = render(DECISION, QUESTIONS, Style(90), milliseconds=12.4).splitlines()
    assert lines[0].startswith("urgent  Does this convey urgency?")
    assert lines[0].endswith("yes")
    assert lines[1].split()[0] == "true"
    assert lines[1].endswith("97.3%")
    assert lines[2].endswith("technical  (confidence 0.76)")
    assert [line.split()[0] for line in lines[3:5]] == ["technical", "billing"]
    assert lines[5].endswith("0.75 of 1  (confidence 0.50)")
    assert lines[7].strip().startswith('1 {"level": "angry"}')
    assert lines[-1] == "tiny · 123 tokens · 7 tokens of the state cut off · 12 ms"


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    question = Choice("x" * 300, {"y" * 100: None, "日本" * 40: None})
    answer = ChoiceAnswer({"y" * 100: 0.6, "日本" * 40: 0.4}, 0.2)
    decision: Decision = Decision({"q" * 30: answer}, Usage(1))
    table = render(decision, {"q" * 30: question}, Style(columns), milliseconds=1)
    assert max(width(line) for line in table.splitlines()) <= columns


def test_many_options_are_summed_up() -> None:
    shares = {f"option-{i}": 1 / 255 for i in range(255)}
    decision: Decision = Decision({"q": ChoiceAnswer(shares, 0.0)}, Usage(1))
    lines = render(decision, {"q": Choice(None, list(shares))}, Style(80), milliseconds=1).splitlines()
    assert len(lines) == 1 + MAX_ROWS + 1 + 1
    assert lines[-2].strip() == f"and {255 - MAX_ROWS} more, together 95.3%"


def test_an_answer_below_its_threshold_says_so() -> None:
    decision: Decision = Decision({"urgent": NoulAnswer({"true": 0.6, "false": 0.4}, 0.2, accepted=False)}, Usage(1))
    assert "yes  (below the threshold)" in render(decision, QUESTIONS, Style(80), milliseconds=1)


def test_strangers_text_cannot_drive_the_terminal() -> None:
    evil = "\x1b[2J\x07evil"
    question = Choice(evil, {evil: None})
    decision: Decision = Decision({evil: ChoiceAnswer({evil: 1.0}, 1.0)}, Usage(1), evil)
    table = render(decision, {evil: question}, Style(80), milliseconds=1)
    assert "\x1b" not in table
    assert "\x07" not in table


def test_colour_only_where_it_is_wanted_and_plain_ascii_where_needed() -> None:
    assert "\x1b[1m" in render(DECISION, QUESTIONS, Style(80, colour=True), milliseconds=1)
    assert "\x1b" not in render(DECISION, QUESTIONS, Style(80), milliseconds=1)
    assert render(DECISION, QUESTIONS, Style(80, unicode=False), milliseconds=1).isascii()


def test_media_are_listed_by_number_size_and_name() -> None:
    video = Video(np.zeros((6, 48, 64, 3), np.uint8), tuple(map(float, range(6))), 1.0, 6.0)
    record = Record("s", QUESTIONS, [Image.new("RGB", (30, 20)), Image.new("RGB", (8, 9))], [video])
    lines = media_lines(record, ["", "a\x1b[31m.png", "clip.mp4"])
    assert lines[0] == "image 1  30x20"
    assert lines[1].startswith("image 2  8x9  a")
    assert "\x1b" not in lines[1]
    assert lines[2] == "video 1  6 frames of 6.0 s, 64x48  clip.mp4"
    table = render(DECISION, QUESTIONS, Style(40), milliseconds=1, media=[*lines, "x" * 99])
    assert table.splitlines()[0] == lines[0]
    assert max(width(line) for line in table.splitlines()[:4]) <= 40
