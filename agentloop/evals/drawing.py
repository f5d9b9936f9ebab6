"""Drawings of intervals as SVG, for reports and for the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import floor, isfinite, log10
from typing import Final

from attrs import field, frozen

from agentloop.evals.statistics import Estimate
from agentloop.values.visible_text import escape_invisible

_ROW: Final = 26
_LABELS: Final = 170
_NUMBERS: Final = 210
_AXIS: Final = 24
_PLOT: Final = 360
_TICKS: Final = 5


@frozen
class IntervalRow:
    """One line of a drawing.

    Attributes:
        label: what it is about.
        estimate: the number and its interval.
        text: what stands beside it.
        kind: the class of its marks in style sheets: `better`, `worse`, `open`, or empty.
    """

    label: str
    estimate: Estimate
    text: str = ""
    kind: str = ""


@frozen
class Axis:
    """What a drawing measures its intervals by.

    Attributes:
        low: the value at the left end.
        high: the value at the right end.
        format: writes a value below the axis.
        line: a value that gets a line through all rows, such as 0 for differences, or the number of a gate.
    """

    low: float
    high: float
    format: Callable[[float], str] = field(eq=False)
    line: float | None = None

    @classmethod
    def around(
        cls,
        estimates: Sequence[Estimate],
        format: Callable[[float], str],  # noqa: A002  # names the field
        *,
        line: float | None = None,
        lowest: float | None = None,
        highest: float | None = None,
    ) -> Axis:
        """Return an axis that has room for all of these intervals, within the lowest and the highest value that are possible."""
        ends = [end for each in estimates for end in (each.low, each.value, each.high) if isfinite(end)]
        ends += [line] if line is not None else []
        low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
        room = 0.08 * (high - low) or abs(high) * 0.1 or 0.01
        low, high = low - room, high + room
        return cls(
            low if lowest is None else max(low, lowest), high if highest is None else min(high, highest), format, line
        )

    def place(self, value: float) -> float:
        """Return where a value stands, in units of the drawing; values beyond the ends stand at them."""
        share = (value - self.low) / (self.high - self.low) if isfinite(value) else float(value > 0)
        return _LABELS + _PLOT * min(max(share, 0.0), 1.0)

    def ticks(self) -> Sequence[float]:
        """Return a few round values."""
        raw = (self.high - self.low) / _TICKS
        size = 10.0 ** floor(log10(raw))
        step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw)
        first = floor(self.low / step) + (0 if self.low % step < step * 1e-9 else 1)
        found = [(first + number) * step for number in range(_TICKS + 2)]
        return [0.0 if abs(value) < step * 1e-9 else value for value in found if value <= self.high + step * 1e-9]


STYLE: Final = """\
.intervals text { font: 12px system-ui, sans-serif; fill: var(--text, #1c2430); }
.intervals .tick, .intervals .axis { fill: var(--faint, #5d6b7e); font-size: 11px; }
.intervals .grid { stroke: var(--grid, #e2e7ee); stroke-width: 1; }
.intervals .line { stroke: var(--faint, #5d6b7e); stroke-width: 1.5; stroke-dasharray: 4 3; }
.intervals .range { stroke: var(--accent, #3465c0); stroke-width: 7; stroke-linecap: round; opacity: .35; }
.intervals .dot { fill: var(--accent, #3465c0); }
.intervals .better .range { stroke: var(--good, #1a7f4b); } .intervals .better .dot { fill: var(--good, #1a7f4b); }
.intervals .worse .range { stroke: var(--bad, #c03434); } .intervals .worse .dot { fill: var(--bad, #c03434); }
.intervals .open .range { stroke: var(--faint, #5d6b7e); } .intervals .open .dot { fill: var(--faint, #5d6b7e); }
"""
"""The style of drawings; pages with a dark background set the variables in it."""


def draw_intervals(rows: Sequence[IntervalRow], axis: Axis, *, title: str, has_style: bool = False) -> str:
    """Draw intervals below each other: a bar from the lower to the upper end, and a dot at the estimate.

    Args:
        rows: the intervals, from the top.
        axis: the axis below them.
        title: what the drawing shows, for people who do not see it.
        has_style: whether the drawing brings its style along, as a file of its own needs it; otherwise the page has `STYLE`.

    Returns:
        An SVG element.
    """
    height = len(rows) * _ROW + _AXIS
    width = _LABELS + _PLOT + _NUMBERS
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="intervals" {size} role="img" aria-label="{_text(title)}">'
    ]
    if has_style:
        parts.append(f'<style>{STYLE}</style><rect width="{width}" height="{height}" fill="white"/>')
    bottom = height - _AXIS
    for tick in axis.ticks():
        x = f"{axis.place(tick):.1f}"
        parts.append(f'<line class="grid" x1="{x}" y1="0" x2="{x}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{x}" y="{height - 8}" text-anchor="middle">{_text(axis.format(tick))}</text>'
        )
    if axis.line is not None:
        x = f"{axis.place(axis.line):.1f}"
        parts.append(f'<line class="line" x1="{x}" y1="0" x2="{x}" y2="{bottom}"/>')
    parts += [_draw_row(row, axis, number) for number, row in enumerate(rows)]
    return "".join([*parts, "</svg>"])


def _draw_row(row: IntervalRow, axis: Axis, number: int) -> str:
    middle = number * _ROW + _ROW / 2
    found = row.estimate
    low, value, high = (f"{axis.place(end):.1f}" for end in (found.low, found.value, found.high))
    label = row.label if len(row.label) <= 24 else f"{row.label[:23]}…"  # noqa: PLR2004  # what fits
    return (
        f'<g class="{escape(row.kind)}"><title>{_text(f"{row.label}: {row.text}")}</title>'
        f'<text x="{_LABELS - 12}" y="{middle + 4}" text-anchor="end">{_text(label)}</text>'
        f'<line class="range" x1="{low}" y1="{middle}" x2="{high}" y2="{middle}"/>'
        f'<circle class="dot" cx="{value}" cy="{middle}" r="5"/>'
        f'<text x="{_LABELS + _PLOT + 12}" y="{middle + 4}">{_text(row.text)}</text></g>'
    )


def _text(text: str) -> str:
    return escape(escape_invisible(text))
