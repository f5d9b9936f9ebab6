"""Numbers in words, for a person to read."""

from __future__ import annotations

from agentloop.values.usage import Usage

_MILLISECOND = 0.001
_MINUTE = 60.0


def counted(number: int, thing: str) -> str:
    """Return a number of things: `1 step`, `1,200 steps`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def duration(seconds: float) -> str:
    """Return a length of time, in the unit that suits it: `3 ms`, `1.2 s`, `2 min 5 s`."""
    if seconds < _MILLISECOND:
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), int(_MINUTE))
    return f"{minutes} min {rest} s"


def tokens(usage: Usage) -> str:
    """Return the tokens in and out; what is unknown is called so."""
    if usage.input_tokens is None and usage.output_tokens is None:
        return "tokens unknown"
    return f"{_number(usage.input_tokens)} tokens in, {_number(usage.output_tokens)} out"


def _number(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens:,}"
