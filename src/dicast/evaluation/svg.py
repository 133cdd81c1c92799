"""Plots as inline SVG text: no library, no script, no outside resource. Knows numbers and labels only.

Each function returns one ``<svg>`` element of fixed size whose colours come from the page's CSS classes (``axis``,
``data``, ``ideal``, ``band``), so that it reads in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, MARGIN = 360, 260, 44


@dataclass(frozen=True, slots=True)
class Frame:
    """Where data lies in a plot.

    Attributes:
        x: data range from left to right.
        y: data range from bottom to top.
    """

    x: tuple[float, float]
    y: tuple[float, float]

    def px(self, value: float) -> float:
        """Horizontal place of a value, in pixels."""
        low, high = self.x
        return MARGIN + (value - low) / ((high - low) or 1.0) * (WIDTH - MARGIN - 12)

    def py(self, value: float) -> float:
        """Vertical place of a value, in pixels."""
        low, high = self.y
        return HEIGHT - MARGIN - (value - low) / ((high - low) or 1.0) * (HEIGHT - MARGIN - 22)


def reliability(bins: Sequence[tuple[float, float, float]], title: str) -> str:
    """Reliability diagram.

    Args:
        bins: mean confidence, accuracy and count of every bin.
        title: above the plot.
    """
    frame = Frame((0.0, 1.0), (0.0, 1.0))
    total = sum(n for _, _, n in bins) or 1.0
    marks = [_line([(0, 0), (1, 1)], frame, "ideal")]
    marks.append(_line([(c, a) for c, a, _ in bins], frame, "data"))
    for confidence, accuracy, n in bins:
        radius = 2.5 + 9 * math.sqrt(n / total)
        tip = f"confidence {confidence:.3f}, accuracy {accuracy:.3f}, n {n:.0f}"
        marks.append(
            f'<circle class="dot" cx="{frame.px(confidence):.1f}" cy="{frame.py(accuracy):.1f}" r="{radius:.1f}">'
            f"<title>{tip}</title></circle>"
        )
    return _plot(title, "confidence", "accuracy", frame, marks)


def curve(points: Sequence[tuple[float, float]], title: str, x: str, y: str) -> str:
    """A line through points, x from 0 to 1, y from 0 to the largest value."""
    top = max((value for _, value in points), default=1.0) or 1.0
    frame = Frame((0.0, 1.0), (0.0, _round_up(top)))
    return _plot(title, x, y, frame, [_line(points, frame, "data")])


def histogram(bars: Sequence[tuple[float, float, float]], title: str, x: str) -> str:
    """Bars over logarithmic bins.

    Args:
        bars: low edge, high edge and count of every bin; edges above 0.
        title: above the plot.
        x: name of the axis.
    """
    if not bars:
        return ""
    logs = (math.log10(bars[0][0]), math.log10(bars[-1][1]))
    frame = Frame(logs, (0.0, max(count for _, _, count in bars) or 1.0))
    marks = []
    for low, high, count in bars:
        left, right, top = frame.px(math.log10(low)), frame.px(math.log10(high)), frame.py(count)
        marks.append(
            f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{max(right - left - 1, 0.5):.1f}" '
            f'height="{max(frame.py(0) - top, 0):.1f}"><title>{low:.3g} to {high:.3g}: {count:.0f}</title></rect>'
        )
    return _plot(
        title, x, "records", frame, marks, x_text=lambda value: f"{10**value:.3g}", y_text=lambda v: f"{v:.0f}"
    )


def _plot(
    title: str,
    x: str,
    y: str,
    frame: Frame,
    marks: Sequence[str],
    *,
    x_text: Callable[[float], str] = lambda value: f"{value:.2g}",
    y_text: Callable[[float], str] = lambda value: f"{value:.2g}",
) -> str:
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg {size} role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{WIDTH / 2}" y="14" text-anchor="middle">{escape(title)}</text>',
    ]
    for step in range(6):
        at_x = frame.x[0] + (frame.x[1] - frame.x[0]) * step / 5
        at_y = frame.y[0] + (frame.y[1] - frame.y[0]) * step / 5
        px, py = frame.px(at_x), frame.py(at_y)
        bottom, left = HEIGHT - MARGIN, MARGIN
        parts.append(f'<line class="grid" x1="{px:.1f}" x2="{px:.1f}" y1="22" y2="{bottom}"/>')
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - 12}" y1="{py:.1f}" y2="{py:.1f}"/>')
        parts.append(f'<text class="axis" x="{px:.1f}" y="{bottom + 14}" text-anchor="middle">{x_text(at_x)}</text>')
        parts.append(f'<text class="axis" x="{left - 5}" y="{py + 4:.1f}" text-anchor="end">{y_text(at_y)}</text>')
    parts.append(f'<text class="axis" x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escape(x)}</text>')
    middle = HEIGHT / 2
    parts.append(f'<text class="axis" x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">')
    parts.append(f"{escape(y)}</text>")
    return "".join([*parts, *marks, "</svg>"])


def _line(points: Sequence[tuple[float, float]], frame: Frame, kind: str) -> str:
    path = " ".join(f"{frame.px(x):.1f},{frame.py(y):.1f}" for x, y in points)
    return f'<polyline class="{kind}" fill="none" points="{path}"/>'


def _round_up(value: float) -> float:
    """The next of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)
