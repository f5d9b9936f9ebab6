"""The contract of a text format: a notation in which models write tool calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from enum import Enum
from typing import Literal, TypeAlias

from attrs import frozen

from agentloop.models.text_calls.offered_tools import OfferedTools
from agentloop.models.text_calls.text_buffer import TextBuffer


@frozen
class CallDraft:
    """A call as its notation states it, before it is matched with the offered tools.

    Attributes:
        name: the tool's name as written.
        arguments: the named arguments.
        start: offset of the call's first character.
        end: offset behind its last character.
        raw: the source text of the arguments if that is valid JSON; else empty.
        repairs: names of the faults that were corrected.
        positional: the arguments without a name, in order.
        is_python: whether the call is written in Python syntax.
        untyped: names of the arguments that are strings only because the notation has no other type.
        encoded: names of the untyped arguments that the notation declares to be JSON.
        is_mixed: whether the object that contains it has other contents, such as a text.
        literal: names of the arguments whose text the notation marks as literal, so that tags in it are text.
        problem: why it must not run although it can be read, in words for the model; empty if nothing speaks against that.
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
    is_mixed: bool = False
    encoded: frozenset[str] = frozenset()
    literal: frozenset[str] = frozenset()
    problem: str = ""


class Slot(Enum):
    """The place of what differs between calls, among the parts of a pattern."""

    NAME = "name"
    ARGUMENTS = "arguments"
    KEY = "key"
    VALUE = "value"


@frozen
class CallPattern:
    """How a notation writes calls, as the parts of one text in order: fixed texts, and slots.

    Attributes:
        call: the parts of a call; its arguments take the place of `Slot.ARGUMENTS`.
        argument: the parts of an argument.
        values: how values are written: as `json`, as `python`, as bare `text`, or as `token`, in JSON with a token for quotation marks.
        comma: what separates two arguments.
        around: what stands before all calls and behind them.
        between: what separates two calls.
    """

    call: tuple[str | Slot, ...]
    argument: tuple[str | Slot, ...] = ('"', Slot.KEY, '": ', Slot.VALUE)
    values: Literal["json", "python", "text", "token"] = "json"
    comma: str = ", "
    around: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    between: str = "\n"


@frozen
class AttemptResult:
    """How an attempt to parse calls ended.

    Attributes:
        end: where parsing resumes: behind the calls, or behind text that certainly contains none; the start of the attempt if
            neither applies.
        rejection: why something that resembles a call was not accepted; empty if nothing resembled one.
        reached: offset up to which the text was examined, if that is greater than `end`.
    """

    end: int
    rejection: str = ""
    reached: int = 0


ParseAttempt: TypeAlias = Generator[CallDraft | None, None, AttemptResult]
"""A parser that yields each call as soon as it is complete, and None whenever it needs more text."""


class TextFormat(ABC):
    """A notation: the texts with which its calls may begin, and a parser for them.

    An implementation keeps these rules for any text:

    - It is pure: the same text and tools give the same result, and nothing else is read or changed.
    - It never raises. What cannot be parsed stays in the text, with a rejection if it resembles a call.
    - Nothing is evaluated, and everything returned occurs in the text.
    - It examines each character a bounded number of times and reports how far it looked (`AttemptResult.reached`). The caller
      keeps count and skips ahead when the same text is examined too often.
    - Its decisions depend on the text and on whether it is complete, never on how it was split into pieces.
    - A call that was yielded is final.
    """

    name: str
    """The name of the format, as it appears in `ParsedCall.format`."""

    clarity: int = 3
    """How clearly the notation marks a call: 3 for syntax that is used for calls alone, 2 for a block that is set apart from
    the text, 1 for a list or an object, 0 for what may also occur in prose. After other words, a call that is less clear than
    an earlier one counts as a mere mention."""

    openings: tuple[str, ...] = ()
    """Fixed texts with which a call may begin."""

    name_suffixes: tuple[str, ...] = ()
    """Texts that, directly after the name of an offered tool, make that name the beginning of a call."""

    wrappers: tuple[str, ...] = ()
    """Texts that are dropped if only white space separates them from a call."""

    control_tokens: tuple[str, ...] = ()
    """Texts that are dropped everywhere unless they are quoted."""

    tags: tuple[tuple[str, str], ...] = ()
    """The texts that only calls have, in this notation or a similar one: each with the text that closes it, or with an empty one.
    An element is known by its name, so that `<function=` stands for `<function name="f">`, too. One of them outside of a call is what
    is left of a damaged call, unless the text only shows it. A call with one in a value, without the other, does not run."""

    argument_tags: tuple[tuple[str, str], ...] = ()
    """The same for the texts around names and values of arguments. One in a value, without the other, says that a tag was lost, so
    that it is not certain where the value ends."""

    escape: str = ""
    """How a value may have a tag of the notation, as the end of a sentence to the model; empty if there is no way."""

    patterns: tuple[CallPattern, ...] = ()
    """How the notation writes calls, part by part. Tests damage each part of calls that are written so."""

    @abstractmethod
    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Parse the calls that begin at an opening.

        Args:
            buffer: the text. While it is incomplete, the caller appends to it between two steps of the generator.
            start: offset of the opening.
            tools: the tools that the model was offered.

        Returns:
            A generator that yields each call when it is complete and None whenever more text is needed.
        """
