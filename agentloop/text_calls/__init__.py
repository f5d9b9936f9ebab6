"""Tool calls that models write as text: the reader, its notations, and what a reading gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.text_calls.notations.fenced import BareJson as BareJson
    from agentloop.text_calls.notations.fenced import CallList as CallList
    from agentloop.text_calls.notations.fenced import FencedCalls as FencedCalls
    from agentloop.text_calls.notations.fenced import PythonCalls as PythonCalls
    from agentloop.text_calls.notations.named_json import HEADS as HEADS
    from agentloop.text_calls.notations.named_json import Head as Head
    from agentloop.text_calls.notations.named_json import NamedJson as NamedJson
    from agentloop.text_calls.notations.react import ReActCalls as ReActCalls
    from agentloop.text_calls.notations.tagged import NestedTags as NestedTags
    from agentloop.text_calls.notations.tagged import TaggedCalls as TaggedCalls
    from agentloop.text_calls.notations.tagged_arguments import STYLES as STYLES
    from agentloop.text_calls.notations.tagged_arguments import Style as Style
    from agentloop.text_calls.notations.tagged_arguments import TaggedArguments as TaggedArguments
    from agentloop.text_calls.offered_tools import OfferedTools as OfferedTools
    from agentloop.text_calls.reader import DEFAULT_FORMATS as DEFAULT_FORMATS
    from agentloop.text_calls.reader import StreamReader as StreamReader
    from agentloop.text_calls.reader import read_calls as read_calls
    from agentloop.text_calls.reading import Attempt as Attempt
    from agentloop.text_calls.reading import Draft as Draft
    from agentloop.text_calls.reading import FoundCall as FoundCall
    from agentloop.text_calls.reading import Outcome as Outcome
    from agentloop.text_calls.reading import ParseResult as ParseResult
    from agentloop.text_calls.reading import Refusal as Refusal
    from agentloop.text_calls.reading import StreamChunk as StreamChunk
    from agentloop.text_calls.source import Source as Source
    from agentloop.text_calls.text_format import TextFormat as TextFormat
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.text_calls.reading": "Attempt Draft Outcome FoundCall StreamChunk ParseResult Refusal",
            "agentloop.text_calls.reader": "DEFAULT_FORMATS StreamReader read_calls",
            "agentloop.text_calls.notations.fenced": "BareJson CallList PythonCalls FencedCalls",
            "agentloop.text_calls.notations.named_json": "HEADS Head NamedJson",
            "agentloop.text_calls.notations.tagged": "NestedTags TaggedCalls",
            "agentloop.text_calls.notations.react": "ReActCalls",
            "agentloop.text_calls.notations.tagged_arguments": "STYLES Style TaggedArguments",
            "agentloop.text_calls.offered_tools": "OfferedTools",
            "agentloop.text_calls.source": "Source",
            "agentloop.text_calls.text_format": "TextFormat",
        },
    )
