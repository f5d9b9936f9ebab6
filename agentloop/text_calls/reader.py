"""Reading the calls out of a model's text, whole or while it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentloop.text_calls.arguments import Rules
from agentloop.text_calls.notations.fenced import BareJson, CallList, FencedCalls, PythonCalls
from agentloop.text_calls.notations.named_json import HEADS, NamedJson
from agentloop.text_calls.notations.react import ReActCalls
from agentloop.text_calls.notations.tagged import NestedTags, TaggedCalls
from agentloop.text_calls.notations.tagged_arguments import STYLES, TaggedArguments
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.reading import ParseResult, StreamChunk
from agentloop.text_calls.scanner import Scanner
from agentloop.text_calls.source import Source
from agentloop.text_calls.text_format import TextFormat
from agentloop.values.tool_calls import ToolSpec

DEFAULT_FORMATS: Final[tuple[TextFormat, ...]] = (
    TaggedCalls(),
    *map(NamedJson, HEADS),
    *map(TaggedArguments, STYLES),
    NestedTags(),
    ReActCalls(),
    FencedCalls(),
    CallList(),
    BareJson(),
    PythonCalls(),
)
"""Where one text may begin calls in several notations, the first of these that reads one wins."""


def read_calls(
    text: str,
    tools: Sequence[ToolSpec],
    *,
    formats: Sequence[TextFormat] = DEFAULT_FORMATS,
    coerce: bool = True,
    only_offered: bool = False,
) -> ParseResult:
    """Read the calls out of a model's text.

    Nothing is evaluated, no text raises, and the time grows with the length of the text and no faster.

    Args:
        text: what the model wrote.
        tools: the tools that it was offered; a call in a notation that only calls are written in may name another one.
        formats: the notations, in the order in which they are tried where several may begin.
        coerce: whether text becomes a number or a boolean where a tool's schema takes no text; noted in the call's repairs.
        only_offered: whether calls of tools that were not offered are refused in every notation.
    """
    reader = StreamReader(tools, formats, coerce=coerce, only_offered=only_offered)
    reader.feed(text)
    return reader.close()


class StreamReader:
    """Reads the calls out of a text that arrives in pieces.

    The reading is the same however the text is cut into pieces. What `feed` gives is certain, with one exception: a closing
    tag of thoughts whose opening tag stood in the prompt makes all before it thoughts; then the reading says so.
    """

    def __init__(
        self,
        tools: Sequence[ToolSpec],
        formats: Sequence[TextFormat] = DEFAULT_FORMATS,
        *,
        coerce: bool = True,
        only_offered: bool = False,
    ) -> None:
        """Begin a text; the arguments are those of `read_calls`."""
        self._source = Source()
        self._scanner = Scanner(self._source, formats, OfferedTools.of(tools), Rules(coerce, only_offered))
        self._told = 0

    def feed(self, piece: str) -> StreamChunk:
        """Take the next piece; return the text that can be shown and the calls that are complete by now."""
        self._source.grow(piece)
        self._scanner.advance()
        calls = self._scanner.calls
        self._told = min(self._told, len(calls))
        new = tuple(calls[self._told :])
        self._told = len(calls)
        return StreamChunk(self._scanner.shown.take(), new)

    def close(self) -> ParseResult:
        """Say that the text is complete, and return all that stands in it."""
        self._source.end()
        self._scanner.advance()
        found = self._scanner
        reasoning = "\n\n".join(thought for thought in found.reasoning if thought)
        return ParseResult(tuple(found.calls), found.shown.text, reasoning, tuple(found.refused))
