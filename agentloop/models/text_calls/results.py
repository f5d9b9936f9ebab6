"""Results of parsing a model's text."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from attrs import frozen

from agentloop.values.json import parse_json
from agentloop.values.value import Value


class CallGrade(StrEnum):
    """How a call stands in its answer, which decides whether it is meant to run.

    `PLAIN` calls are the whole answer: nothing but their notation, bare or in a fenced block, or the form that the prompt asked
    for. `EMBEDDED` calls are surrounded by prose. `QUOTED` calls are only talked about: they are code in a sentence, in a block
    quote, in quotation marks, in one of several fenced blocks among prose, in a table, a log or a shell session, or
    HTML-escaped.
    """

    PLAIN = "plain"
    EMBEDDED = "embedded"
    QUOTED = "quoted"


@frozen(eq=False, repr=False)
class ParsedCall(Value):
    """A tool call that was parsed from text.

    Attributes:
        name: the tool's name as written, without escapes, namespace and method.
        arguments_json: the arguments as JSON. Valid JSON is exactly what the model wrote; anything else is serialized anew.
        start: offset of the call's first character.
        end: offset behind its last character; for a call inside a larger object, the end of that object.
        format: the name of the text format.
        repairs: names of the faults that were corrected, such as "trailing comma" or "single quotes".
    """

    name: str
    arguments_json: str
    start: int
    end: int
    format: str
    repairs: tuple[str, ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, parsed on every access."""
        parsed: dict[str, Any] = parse_json(self.arguments_json)
        return parsed


@frozen(eq=False, repr=False)
class RejectedCall(Value):
    """A part of the text that resembles a call, or is left of one, but was not accepted as one.

    Attributes:
        reason: why it was rejected, in words that a model can act on.
        start: offset of its first character.
        end: offset up to which the text was examined.
        format: the name of the text format that it resembles.
        is_quoted: whether the text has no calls and only quotes this part, as a call of the grade `QUOTED`.
        is_embedded: whether the text has no calls, and this part stands in prose, as a call of the grade `EMBEDDED`.
    """

    reason: str
    start: int
    end: int
    format: str
    is_quoted: bool = False
    is_embedded: bool = False


@frozen(eq=False, repr=False)
class ParseResult(Value):
    """The calls, text and reasoning of a model's text.

    Attributes:
        calls: the calls in the order of the text, of every grade.
        text: the text around the calls, without the tags and fences that belong to them.
        reasoning: what the model marked as reasoning; calls in there do not count.
        rejected: the first hundred parts that resemble a call but were not accepted.
        grades: for each call, how it stands in the text.
        quoting_text: the text with its quoted calls left in.
        full_text: the text with all of its calls left in.
        unread: why no call is meant to run: another part of the answer, which resembles a call, was not parsed, or it is not certain
            that a call is whole. Empty if nothing speaks against the calls, or there is none.
        exceeded: the name of the bound that ended parsing; empty if none did. There are no calls then.
        reasoning_spans: where the reasoning is, with its tags: the offsets of the first character and behind the last.
        shown_tags: the tags of calls, and the parts that resemble calls, that the text only shows, such as `<tool_call>` in a sentence;
            each once.
    """

    calls: tuple[ParsedCall, ...] = ()
    text: str = ""
    reasoning: str = ""
    rejected: tuple[RejectedCall, ...] = ()
    grades: tuple[CallGrade, ...] = ()
    quoting_text: str = ""
    full_text: str = ""
    unread: str = ""
    exceeded: str = ""
    reasoning_spans: tuple[tuple[int, int], ...] = ()
    shown_tags: tuple[str, ...] = ()


@frozen(eq=False, repr=False)
class StreamChunk(Value):
    """What became certain when a piece of a streamed text arrived.

    Attributes:
        text: text that can be shown, since no call begins in it.
        calls: calls that were completed.
    """

    text: str = ""
    calls: tuple[ParsedCall, ...] = ()
