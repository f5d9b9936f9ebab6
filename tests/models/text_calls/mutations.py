"""Damaged calls of every notation: each part of one call and of two calls is removed, doubled or moved.

The parts are those that the formats declare as `patterns`, so that a new notation is damaged, too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Final, Literal, TypeAlias

from attrs import frozen

from agentloop import tool
from agentloop.models import TextMode
from agentloop.models.text_calls import DEFAULT_FORMATS
from agentloop.models.text_calls.text_format import CallPattern, Slot
from agentloop.values import InferenceRequest, InferenceResponse, Message, Text, ToolCall

Call: TypeAlias = tuple[str, dict[str, object]]
Damage: TypeAlias = Literal["removed", "doubled", "moved"]
Verdict: TypeAlias = Literal["meant", "asked", "quoted", "wrong", "silent"]
"""What becomes of a text: its calls are those that were meant; the model is asked again; the text is an answer that quotes calls, with
an event; other calls run; or the text is an answer, and nobody is told."""


@tool
def pay(account: str, cents: int = 1, note: str = "") -> str:
    """Pay."""
    return account + note + str(cents)


@tool(effect="pure")
def look(path: str, depth: int = 1) -> str:
    """List files."""
    return path * depth


TOOLS = (pay.spec, look.spec)
NAMES = [*dict.fromkeys(text_format.name for text_format in DEFAULT_FORMATS)]
DAMAGES: tuple[Damage, ...] = ("removed", "doubled", "moved")
CALLS: tuple[Call, ...] = (("pay", {"account": "A-7", "cents": 500}), ("look", {"path": "/tmp", "depth": 2}))
_TEXTS = [value for _, arguments in CALLS for value in arguments.values() if isinstance(value, str)]
_MODE = TextMode()
_REQUEST = InferenceRequest((Message.user("Go on."),), "", TOOLS)


@frozen
class Mutant:
    """A damaged text.

    Attributes:
        text: the text.
        damage: what was done to it.
        part: the part to which it was done.
        expected: the calls that were meant.
    """

    text: str
    damage: Damage
    part: str
    expected: tuple[Call, ...]


def _value(value: object, pattern: CallPattern) -> str:
    if pattern.values == "python":
        return repr(value)
    if isinstance(value, str) and pattern.values in {"text", "token"}:
        return value if pattern.values == "text" else f'<|"|>{value}<|"|>'
    return json.dumps(value)


# A part, and whether it belongs to the notation: another value makes another call, which may be meant as well.
_Part: TypeAlias = tuple[str, bool]


def _argument(key: str, value: object, pattern: CallPattern) -> Iterator[_Part]:
    for part in pattern.argument:
        if isinstance(part, str):
            yield part, True
        else:
            yield (key, True) if part is Slot.KEY else (_value(value, pattern), False)


def _call(call: Call, pattern: CallPattern) -> Iterator[_Part]:
    name, arguments = call
    for part in pattern.call:
        if isinstance(part, str):
            yield part, True
        elif part is Slot.NAME:
            yield name, True
        else:
            for index, (key, value) in enumerate(arguments.items()):
                if index and pattern.comma:
                    yield pattern.comma, True
                yield from _argument(key, value, pattern)


def parts_of(pattern: CallPattern, calls: tuple[Call, ...]) -> list[_Part]:
    """Return the parts of a text with these calls."""
    before, behind = pattern.around
    parts = [(part, True) for part in before]
    for index, call in enumerate(calls):
        parts += [(pattern.between, True)] if index else []
        parts += _call(call, pattern)
    return [part for part in (*parts, *((part, True) for part in behind)) if part[0]]


def mutants_of(pattern: CallPattern, calls: tuple[Call, ...], *damages: Damage) -> Iterator[Mutant]:
    """Yield all texts in which one part of the notation is damaged, each once."""
    parts = parts_of(pattern, calls)
    texts = [part for part, _ in parts]
    seen = {"".join(texts)}
    for damage in damages:
        for index, (part, is_notation) in enumerate(parts):
            for text in _damaged(texts, index, damage) if is_notation else ():
                if text not in seen:
                    seen.add(text)
                    yield Mutant(text, damage, part, calls)


def _damaged(texts: list[str], index: int, damage: Damage) -> Iterator[str]:
    rest = [*texts[:index], *texts[index + 1 :]]
    if damage == "removed":
        yield "".join(rest)
    elif damage == "doubled":
        yield "".join([*texts[: index + 1], *texts[index:]])
    else:
        for place in range(len(texts)):
            yield "".join([*rest[:place], texts[index], *rest[place:]])


def patterns(name: str) -> list[CallPattern]:
    """Return the patterns of the built-in formats with a name, each once."""
    found = [pattern for text_format in DEFAULT_FORMATS if text_format.name == name for pattern in text_format.patterns]
    return [*{"".join(part for part, _ in parts_of(pattern, CALLS)): pattern for pattern in found}.values()]


def judge(text: str, expected: tuple[Call, ...], mode: TextMode = _MODE) -> Verdict:
    """Return what becomes of a text."""
    response = mode.parse_response(InferenceResponse((Text(text),)), _REQUEST)
    if response.problem:
        return "asked"
    calls = response.tool_calls
    if not calls:
        return "quoted" if response.quoted_calls or response.quoted_texts else "silent"
    running = [_found(call) for call in calls if not call.rejection and mode.validate(call, TOOLS).is_valid]
    # A mode that asks again runs nothing beside a call that it refuses.
    if not running or (mode.reprompts and len(running) < len(calls)):
        return "asked"
    if len(running) < len(calls):
        is_rest = len(calls) >= len(expected) and all(call in expected for call in running)
        return "asked" if is_rest else "wrong"
    return "meant" if tuple(running) == expected else "wrong"


def _found(call: ToolCall) -> Call:
    # White space around a bare value belongs to the value, and no value here has any.
    values = call.arguments.items()
    return call.name, {key: value.strip() if isinstance(value, str) else value for key, value in values}


def is_exempt(mutant: Mutant) -> bool:
    """Whether a text has no trace of the damage: nothing says that another one was meant.

    A bare value may begin with the character that closes its tag, such as `>5`; and a notation that only consists of a name and an
    object has no token that is left without the name.
    """
    is_in_value = mutant.part.endswith(">") and any(f">>{value}" in mutant.text.replace("\n", "") for value in _TEXTS)
    return is_in_value or _TRACE.search(mutant.text) is None


_TRACE: Final = re.compile(r"\b(?:pay|look|arguments)\b|[<>\[=]")


@cache
def outcomes(name: str) -> tuple[Counter[Verdict], list[tuple[Verdict, Mutant]]]:
    """Return how often each verdict comes for the mutants of a notation, and those that are wrong or silent.

    Of one call, each part is removed, doubled and moved to each place; of two calls, each part is removed and doubled.
    """
    counted, bad = Counter[Verdict](), list[tuple[Verdict, Mutant]]()
    for pattern in patterns(name):
        for mutant in (*mutants_of(pattern, CALLS[:1], *DAMAGES), *mutants_of(pattern, CALLS, *DAMAGES[:2])):
            verdict = judge(mutant.text, mutant.expected)
            if verdict in {"wrong", "silent"} and not is_exempt(mutant):
                bad.append((verdict, mutant))
            counted[verdict] += 1
    return counted, bad


def table_row(name: str, counted: Counter[Verdict]) -> str:
    """Return the row of a notation for the page about calls in text."""
    text_format = next(each for each in DEFAULT_FORMATS if each.name == name)
    without_trace = counted["wrong"] + counted["silent"]
    cells = (counted["meant"], counted["asked"], counted["quoted"], without_trace)
    shown = " | ".join(f"{cell:,}" for cell in cells)
    return f"| `{type(text_format).__name__}`: {name} | {counted.total():,} | {shown} |"


def table() -> str:
    """Return the rows of all notations."""
    return "\n".join(table_row(name, outcomes(name)[0]) for name in NAMES)
