"""Tool calls that models write as text: the reader, its notations, and what a reading gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.drivers.modes.text_formats.draft import Attempt as Attempt
    from agentloop.drivers.modes.text_formats.draft import Draft as Draft
    from agentloop.drivers.modes.text_formats.draft import Outcome as Outcome
    from agentloop.drivers.modes.text_formats.formats import DEFAULT_FORMATS as DEFAULT_FORMATS
    from agentloop.drivers.modes.text_formats.notations.bare_calls import BareJson as BareJson
    from agentloop.drivers.modes.text_formats.notations.bare_calls import CallList as CallList
    from agentloop.drivers.modes.text_formats.notations.bare_calls import PythonCalls as PythonCalls
    from agentloop.drivers.modes.text_formats.notations.fenced import FencedCalls as FencedCalls
    from agentloop.drivers.modes.text_formats.notations.named_json import HEADS as HEADS
    from agentloop.drivers.modes.text_formats.notations.named_json import Head as Head
    from agentloop.drivers.modes.text_formats.notations.named_json import NamedJson as NamedJson
    from agentloop.drivers.modes.text_formats.notations.nested_tags import NestedTags as NestedTags
    from agentloop.drivers.modes.text_formats.notations.react import ReActCalls as ReActCalls
    from agentloop.drivers.modes.text_formats.notations.tagged import TaggedCalls as TaggedCalls
    from agentloop.drivers.modes.text_formats.notations.tagged_arguments import STYLES as STYLES
    from agentloop.drivers.modes.text_formats.notations.tagged_arguments import Style as Style
    from agentloop.drivers.modes.text_formats.notations.tagged_arguments import TaggedArguments as TaggedArguments
    from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools as OfferedTools
    from agentloop.drivers.modes.text_formats.reader import StreamReader as StreamReader
    from agentloop.drivers.modes.text_formats.reader import read_calls as read_calls
    from agentloop.drivers.modes.text_formats.reading import FoundCall as FoundCall
    from agentloop.drivers.modes.text_formats.reading import Piece as Piece
    from agentloop.drivers.modes.text_formats.reading import Reading as Reading
    from agentloop.drivers.modes.text_formats.reading import Refusal as Refusal
    from agentloop.drivers.modes.text_formats.source import Source as Source
    from agentloop.drivers.modes.text_formats.text_format import TextFormat as TextFormat
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.drivers.modes.text_formats.draft": "Attempt Draft Outcome",
            "agentloop.drivers.modes.text_formats.formats": "DEFAULT_FORMATS",
            "agentloop.drivers.modes.text_formats.notations.bare_calls": "BareJson CallList PythonCalls",
            "agentloop.drivers.modes.text_formats.notations.fenced": "FencedCalls",
            "agentloop.drivers.modes.text_formats.notations.named_json": "HEADS Head NamedJson",
            "agentloop.drivers.modes.text_formats.notations.nested_tags": "NestedTags",
            "agentloop.drivers.modes.text_formats.notations.react": "ReActCalls",
            "agentloop.drivers.modes.text_formats.notations.tagged": "TaggedCalls",
            "agentloop.drivers.modes.text_formats.notations.tagged_arguments": "STYLES Style TaggedArguments",
            "agentloop.drivers.modes.text_formats.offered_tools": "OfferedTools",
            "agentloop.drivers.modes.text_formats.reader": "StreamReader read_calls",
            "agentloop.drivers.modes.text_formats.reading": "FoundCall Piece Reading Refusal",
            "agentloop.drivers.modes.text_formats.source": "Source",
            "agentloop.drivers.modes.text_formats.text_format": "TextFormat",
        },
    )
