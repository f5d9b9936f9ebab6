"""What was found in a model's text."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, TypeAlias

from attrs import frozen

from agentloop.values.json import parse_json
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class FoundCall(Value):
    """A call of a tool that stands in a text.

    Attributes:
        name: the tool's name, as the text has it.
        arguments_json: the arguments as JSON text: exactly what the model wrote where that was JSON, else written anew.
        start: where the call begins in the text.
        end: where it ends; for a call within a larger object, where that ends.
        format: the name of the notation.
        repairs: what had to be mended to read it, in words, such as "trailing comma" or "single quotes".
    """

    name: str
    arguments_json: str
    start: int
    end: int
    format: str
    repairs: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, parsed anew each time."""
        parsed: dict[str, Any] = parse_json(self.arguments_json)
        return parsed


@frozen(eq=False, repr=False)
class Refusal(Value):
    """A place that looked like a call and was not read as one.

    Attributes:
        reason: why, in words that a model can act on.
        start: where it begins.
        end: how far it was looked at.
        format: the name of the notation that it seemed to be.
    """

    reason: str
    start: int
    end: int
    format: str


@frozen(eq=False, repr=False)
class ParseResult(Value):
    """A text, taken apart.

    Attributes:
        calls: the calls, in the order of the text.
        text: what stands around the calls, without the tags and fences that only served them.
        reasoning: what the model marked as its thoughts; calls in there are not calls.
        refused: what looked like a call and was not read; the first hundred.
    """

    calls: tuple[FoundCall, ...] = ()
    text: str = ""
    reasoning: str = ""
    refused: tuple[Refusal, ...] = ()


@frozen(eq=False, repr=False)
class StreamChunk(Value):
    """What a piece of a stream made certain.

    Attributes:
        text: text that can be shown: no call begins in it.
        calls: calls whose last character has arrived.
    """

    text: str = ""
    calls: tuple[FoundCall, ...] = ()


@frozen
class Draft:
    """What a notation says about a call.

    Attributes:
        name: the tool's name.
        arguments: the arguments by name.
        start: where the call begins.
        end: where it ends.
        raw: the arguments as they stand in the text, when that is JSON without a fault; else empty.
        repairs: what had to be mended.
        positional: arguments without a name, in order.
        is_python: whether it is written as a call in Python's notation.
        untyped: names of arguments that are text only because the notation has nothing else.
    """

    name: str
    arguments: Mapping[str, object]
    start: int
    end: int
    raw: str = ""
    repairs: tuple[str, ...] = ()
    positional: tuple[object, ...] = ()
    is_python: bool = False
    untyped: frozenset[str] = frozenset()


@frozen
class Outcome:
    """How an attempt to read calls ended.

    Attributes:
        end: where to go on: behind the calls, or behind what is certainly none; the place where it began if neither.
        refusal: why something that looked like a call was not read; empty when nothing looked like one.
        reached: how far the text was looked at, when that is further than `end`.
    """

    end: int
    refusal: str = ""
    reached: int = 0


Attempt: TypeAlias = Generator[Draft | None, None, Outcome]
"""Reading that hands over each call when it is complete, and gives None wherever it has to wait for more text."""
