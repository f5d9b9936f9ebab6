"""What a program may use, what it calls, and what comes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from attrs import field, frozen
from attrs.validators import gt

from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze, freeze_object
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class ProgramLimits(Value):
    """What one run of a program may use.

    Attributes:
        seconds: seconds for which the interpreter computes; the time of tool calls does not count.
        memory_bytes: bytes of the values of the program.
        calls: the number of tool calls.
        output_characters: characters that it prints, and of the JSON of its value; the rest of what it prints is dropped.
        argument_bytes: bytes of the arguments of a call, as JSON.
        recursion: the depth of nested calls of its own functions.
        workers: the number of worker processes of a loop. A program needs one only while it computes, and waits for it.
    """

    seconds: float = field(default=10.0, validator=gt(0))
    memory_bytes: int = field(default=64 * 1024 * 1024, validator=gt(0))
    calls: int = field(default=200, validator=gt(0))
    output_characters: int = field(default=50_000, validator=gt(0))
    argument_bytes: int = field(default=1_000_000, validator=gt(0))
    recursion: int = field(default=200, validator=gt(0))
    workers: int = field(default=4, validator=gt(0))


DEFAULT_LIMITS = ProgramLimits()


@frozen(eq=False, repr=False)
class FunctionCall(Value):
    """A call of a function by a program.

    Attributes:
        name: the name of the function.
        arguments: the arguments by name, as JSON data.
    """

    name: str
    arguments: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


@frozen(eq=False, repr=False)
class FunctionResult(Value):
    """What a function returned to a program, or raised in it.

    Attributes:
        value: the result as JSON.
        error: the message of the exception; empty if the function returned.
        error_type: the class of the exception, one of Python's built-in ones.
    """

    value: JsonValue = field(default=None, converter=freeze)
    error: str = ""
    error_type: str = "RuntimeError"


@frozen(eq=False, repr=False)
class ProgramResult(Value):
    """What a program printed, and its value.

    Attributes:
        printed: the text that it printed.
        value: the value of its last expression, or what it returned, as JSON; None without one.
        notes: what the writer of the program should know about the run.
    """

    printed: str = ""
    value: JsonValue = field(default=None, converter=freeze)
    notes: tuple[str, ...] = ()


CallFunctions: TypeAlias = Callable[[Sequence[FunctionCall]], Awaitable[Sequence[FunctionResult]]]
"""Calls functions for which a program waits, all at once, and returns their results in the same order."""
