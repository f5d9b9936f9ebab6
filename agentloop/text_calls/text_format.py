"""The contract of a text format: a notation in which models write tool calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from typing import TypeAlias

from attrs import frozen

from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.text_buffer import TextBuffer


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
