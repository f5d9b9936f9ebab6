"""Reprs that fit on a screen, whatever a value holds, and summaries as tables for notebooks and for `rich`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Final

import attrs
from attrs import define, field, frozen

from agentloop.values.json import FrozenDict
from agentloop.values.visible_text import escape_invisible

MAX_REPR: Final = 2_000
"""The maximum number of characters of the repr of a value."""


@frozen(eq=False, repr=False)
class _Limits:
    """How much of a value is shown.

    Attributes:
        text: the characters of each text.
        items: the items of each collection.
        depth: the levels of values inside of values.
        has_defaults: whether fields with their default are shown.
    """

    text: int
    items: int
    depth: int
    has_defaults: bool = False


_WHOLE: Final = _Limits(MAX_REPR, MAX_REPR, 100, has_defaults=True)
# From a whole value to its outline; the first that fits is shown.
_LIMITS: Final = (
    _WHOLE,
    _Limits(400, 40, 8),
    _Limits(120, 10, 8),
    _Limits(60, 5, 7),
    _Limits(40, 3, 5),
    _Limits(20, 2, 3),
)


class _TooLongError(Exception):
    """The repr exceeds its number of characters."""


def bounded_repr(value: object) -> str:
    """Return the repr of a value by field, with at most `MAX_REPR` characters.

    A value that does not fit is shown without the fields that have their default, and with long texts, bytes and collections
    cut: what is left out is given by its size.
    """
    for limits in _LIMITS:
        writer = _Writer(limits, MAX_REPR)
        try:
            writer.write_fields(value, 0)
        except _TooLongError:
            continue
        return "".join(writer.pieces)
    return f"{_class_name(type(value))}(…)"


class ShownByField:
    """The base of attrs classes that are compared by identity; provides the repr by field.

    attrs can generate it for each class; together with `==` and `hash`, that takes as long as all other code that it generates.
    Decorate subclasses with `@define(eq=False, repr=False)` or `@frozen(eq=False, repr=False)`.
    """

    __slots__ = ()
    __repr__ = bounded_repr


def whole_repr(value: object) -> str:
    """Return the repr of a value by field, of any length; different values of one class have different reprs."""
    writer = _Writer(_Limits(2**63, 2**63, 2**63, has_defaults=True), 2**63)
    writer.write(value, 0)
    return "".join(writer.pieces)


@define(eq=False, repr=False)
class _Writer:
    """Collects the pieces of a repr until they are too many.

    Attributes:
        limits: how much is shown.
        remaining: the number of characters that are left.
        pieces: the pieces so far.
    """

    limits: _Limits
    remaining: int
    pieces: list[str] = field(factory=list)

    def add(self, piece: str) -> None:
        self.remaining -= len(piece)
        if self.remaining < 0:
            raise _TooLongError
        self.pieces.append(piece)

    def write(self, value: Any, depth: int) -> None:
        """Add a value."""
        kind: Any = type(value)
        if _shows_fields(kind):
            self.write_fields(value, depth)
        elif kind in {str, bytes}:
            self._write_text(value)
        elif isinstance(value, tuple | list) and kind.__repr__ in {tuple.__repr__, list.__repr__}:
            self._write_items(value, depth)
        elif isinstance(value, dict) and kind.__repr__ in {dict.__repr__, FrozenDict.__repr__}:
            self._write_entries(value, depth)
        else:
            self._write_other(value)

    def write_fields(self, value: Any, depth: int) -> None:
        """Add an object of an attrs class by field."""
        name = _class_name(type(value))
        if depth >= self.limits.depth:
            self.add(f"{name}(…)")
            return
        self.add(f"{name}(")
        separator = ""
        for each in attrs.fields(type(value)):
            if not each.repr or not hasattr(value, each.name):
                continue
            content = getattr(value, each.name)
            if not self.limits.has_defaults and _is_default(each, content):
                continue
            self.add(f"{separator}{each.name.lstrip('_')}=")
            separator = ", "
            if callable(each.repr):
                self.add(each.repr(content))
            else:
                self.write(content, depth + 1)
        self.add(")")

    def _write_text(self, value: Any) -> None:
        if len(value) <= self.limits.text:
            self.add(repr(value))
            return
        if len(value) > self.remaining and self.limits.has_defaults:
            raise _TooLongError  # without the repr of a text of any length
        unit = "bytes" if isinstance(value, bytes) else "characters"
        self.add(f"{value[: self.limits.text]!r}… ({len(value):,} {unit})")

    def _write_items(self, value: Any, depth: int) -> None:
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        self.add(opening)
        for index, item in enumerate(self._shown(value)):
            self.add(", " if index else "")
            self.write(item, depth + 1)
        self._add_missing(len(value))
        self.add("," if opening == "(" and len(value) == 1 else "")
        self.add(closing)

    def _write_entries(self, value: Mapping[Any, Any], depth: int) -> None:
        self.add("{")
        for index, key in enumerate(self._shown(value)):
            self.add(", " if index else "")
            self.write(key, depth + 1)
            self.add(": ")
            self.write(value[key], depth + 1)
        self._add_missing(len(value))
        self.add("}")

    def _shown(self, values: Iterable[Any]) -> Iterator[Any]:
        for index, value in enumerate(values):
            if index >= self.limits.items:
                return
            yield value

    def _add_missing(self, count: int) -> None:
        if count > self.limits.items:
            self.add(f", … {count - self.limits.items:,} more")

    def _write_other(self, value: object) -> None:
        if not self.limits.has_defaults and isinstance(value, datetime | Enum):
            self.add(value.isoformat() if isinstance(value, datetime) else str(value.value))
            return
        text = repr(value)
        if len(text) > self.limits.text:
            text = f"{text[: self.limits.text]}… ({len(text):,} characters)"
        self.add(text)


def _class_name(kind: type) -> str:
    return kind.__qualname__.rpartition(">.")[2]


@cache
def _shows_fields(kind: Any) -> bool:
    """Return whether the repr of a class is by field, by this module or as attrs generates it."""
    if kind.__repr__ is bounded_repr:
        return True
    code = getattr(kind.__repr__, "__code__", None)
    return attrs.has(kind) and code is not None and code.co_filename.startswith("<attrs generated")


def _is_default(each: Any, content: object) -> bool:
    if content is each.default:
        return True
    is_simple = isinstance(content, str | int | float | tuple | Mapping)
    return is_simple and type(content) is type(each.default) and content == each.default


# --- summaries ------------------------------------------------------------------------------------------------------

_MAX_CELL: Final = 300


class Summarized:
    """A value with a summary of a few rows, which notebooks and `rich` show in place of its repr."""

    __slots__ = ()

    @abstractmethod
    def _summary(self) -> Mapping[str, str]:
        """Return what a person wants to know first, by label; a row without a text is not shown."""

    def _repr_html_(self) -> str:
        """Return the summary as a table, for notebooks."""
        # Loaded here: only notebooks need it, and every program loads this module.
        from html import escape  # noqa: PLC0415

        rows = "".join(
            f'<tr><th style="text-align:left;vertical-align:top">{escape(label)}</th>'
            f'<td style="text-align:left;white-space:pre-wrap">{escape(escape_invisible(text))}</td></tr>'
            for label, text in self._rows()
        )
        return f"<table><caption>{escape(_class_name(type(self)))}</caption><tbody>{rows}</tbody></table>"

    def __rich_repr__(self) -> Iterator[tuple[str, str]]:
        """Yield the summary, for `rich`."""
        yield from self._rows()

    def _rows(self) -> Iterator[tuple[str, str]]:
        for label, text in self._summary().items():
            if text:
                yield label, text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}… ({len(text):,} characters)"


def format_count(number: int, noun: str) -> str:
    """Format a number of things: `1 step`, `1,200 steps`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# --- waterfalls -----------------------------------------------------------------------------------------------------

_MAX_BARS: Final = 20
_BAR_COLORS: Final = {"succeeded": "#7fa98c", "failed": "#c97b63", "in_doubt": "#c9a227", "": "#8a94a6"}
"""Calm colors, which can be told apart on light and dark pages; that of other statuses is that of `failed`."""


@frozen(eq=False, repr=False)
class Bar(ShownByField):
    """One line of a waterfall.

    Attributes:
        label: the name of the step or call.
        detail: how it ended, in a few words.
        status: the status of a call; empty for a step.
        started_at: when it started.
        ended_at: when it ended.
    """

    label: str
    detail: str
    status: str
    started_at: datetime
    ended_at: datetime


def render_waterfall(bars: Sequence[Bar]) -> str:
    """Return a table with a bar for each step and call at its place in time, for notebooks: without scripts, everything escaped."""
    from html import escape  # noqa: PLC0415  # as above

    if not bars:
        return ""
    start = min(bar.started_at for bar in bars)
    total = max((max(bar.ended_at for bar in bars) - start).total_seconds(), 0.001)
    rows = []
    for bar in bars[:_MAX_BARS]:
        left = (bar.started_at - start).total_seconds() / total * 100
        seconds = (bar.ended_at - bar.started_at).total_seconds()
        color = _BAR_COLORS.get(bar.status, _BAR_COLORS["failed"])
        texts = [escape(escape_invisible(text[:_MAX_LABEL])) for text in (bar.label, bar.detail)]
        rows.append(
            f"<tr><td>{texts[0]}</td><td>{texts[1]}</td><td>{seconds:.2f} s</td>"
            f'<td style="width:20em"><div style="margin-left:{left:.1f}%;width:{seconds / total * 100:.1f}%;min-width:2px;'
            f'height:.6em;background:{color}"></div></td></tr>'
        )
    missing = len(bars) - _MAX_BARS
    more = f'<tr><td colspan="4">… {missing:,} more</td></tr>' if missing > 0 else ""
    return f'<table style="text-align:left"><tbody>{"".join(rows)}{more}</tbody></table>'


_MAX_LABEL: Final = 60
