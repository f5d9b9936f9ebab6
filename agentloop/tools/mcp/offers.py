"""What a server offers, as values of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from attrs import field, frozen

from agentloop.values.json_value import JsonObject, freeze_object
from agentloop.values.tool_result import ToolResult
from agentloop.values.tool_spec import Effect
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class OfferedTool(Value):
    """A tool as its server describes it.

    Attributes:
        name: its name at the server.
        description: what it does.
        parameters: the JSON Schema of its arguments, as given.
        effect: what its annotations say that it does to the world.
    """

    name: str
    description: str
    parameters: JsonObject = field(converter=freeze_object)
    effect: Effect


Progress: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Takes `progress`, and `total` and `message` where they are told."""
Reply: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Answers what a server asks of us, in the JSON of the protocol; None to decline."""
Call: TypeAlias = Callable[[Mapping[str, Any], Progress], Awaitable[ToolResult]]
"""Runs a tool that we offer."""


@frozen(eq=False, repr=False)
class Offer(Value):
    """A tool that we offer to others.

    Attributes:
        name: its name.
        description: what it does.
        parameters: the JSON Schema of its arguments.
        effect: what it does to the world.
        call: runs it.
    """

    name: str
    description: str
    parameters: JsonObject = field(converter=freeze_object)
    effect: Effect
    call: Call
