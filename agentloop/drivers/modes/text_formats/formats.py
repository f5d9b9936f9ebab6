"""The notations that are read when nothing else is said, in the order in which they are tried."""

from __future__ import annotations

from typing import Final

from agentloop.drivers.modes.text_formats.notations.bare_calls import BareJson, CallList, PythonCalls
from agentloop.drivers.modes.text_formats.notations.fenced import FencedCalls
from agentloop.drivers.modes.text_formats.notations.named_json import HEADS, NamedJson
from agentloop.drivers.modes.text_formats.notations.nested_tags import NestedTags
from agentloop.drivers.modes.text_formats.notations.react import ReActCalls
from agentloop.drivers.modes.text_formats.notations.tagged import TaggedCalls
from agentloop.drivers.modes.text_formats.notations.tagged_arguments import STYLES, TaggedArguments
from agentloop.drivers.modes.text_formats.text_format import TextFormat

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
