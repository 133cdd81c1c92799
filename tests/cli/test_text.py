"""Text on a terminal: escapes, widths and bars."""

from __future__ import annotations

import pytest

from dicast.cli.text import bar, fit, printable, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand tabs", "two lines and tabs"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("left\u202eright", "left\\u202eright"),
        ("日本", "日本"),
    ],
)
def test_printable_shows_control_characters_as_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("日本", 4), ("e\u0301", 1), ("", 0)])
def test_width_counts_columns(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize("text", ["", "a", "abcdefgh", "日本語日本語", "e\u0301e\u0301e\u0301e\u0301e\u0301e\u0301"])
@pytest.mark.parametrize("columns", [1, 2, 5, 8])
def test_fit_takes_exactly_the_columns(text: str, columns: int) -> None:
    assert width(fit(text, columns)) == columns


def test_fit_marks_what_it_cut() -> None:
    assert fit("abcdef", 4) == "abc…"
    assert fit("abcd", 4) == "abcd"


@pytest.mark.parametrize(("share", "shown"), [(0.0, ""), (1.0, "████████"), (0.5, "████"), (1 / 16, "▌")])
def test_bar_is_proportional_to_an_eighth_of_a_column(share: float, shown: str) -> None:
    assert bar(share, 8) == shown.ljust(8)


def test_bar_stays_inside_its_columns() -> None:
    assert bar(1.7, 4) == "████"
    assert bar(-1, 4) == "    "
    assert bar(0.5, 4, unicode=False) == "##.."
