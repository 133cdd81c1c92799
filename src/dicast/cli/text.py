"""Text on a terminal: what a stranger's text may do there, how wide it is, and bars. Knows nothing of decisions."""

from __future__ import annotations

import unicodedata

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def printable(text: str) -> str:
    """The text on one line, with control and other unprintable characters shown as escapes.

    Question ids, options and states come from strangers; raw escape sequences could rewrite the terminal.
    """
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def width(text: str) -> int:
    """Columns that a printable text takes on a terminal: wide characters take two, combining marks none."""
    return sum(_columns(character) for character in text)


def fit(text: str, columns: int) -> str:
    """The text cut (with an ellipsis) or padded to exactly this many columns, which must be at least 1."""
    if width(text) <= columns:
        return text + " " * (columns - width(text))
    kept, used = [], 1
    for character in text:
        used += _columns(character)
        if used > columns:
            break
        kept.append(character)
    shown = "".join(kept) + "…"
    return shown + " " * (columns - width(shown))


def bar(share: float, columns: int, *, unicode: bool = True) -> str:
    """A bar for a share between 0 and 1, padded to this many columns."""
    share = min(max(share, 0.0), 1.0)
    if not unicode:
        return ("#" * round(share * columns)).ljust(columns, ".")
    full, rest = divmod(round(share * columns * 8), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(columns)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _escaped(character: str) -> str:
    if character in "\n\r\t":
        return " "
    return character.encode("unicode_escape").decode("ascii")
