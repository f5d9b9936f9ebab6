"""A tool's result in two forms."""

from __future__ import annotations

from attrs import field, frozen
from attrs.converters import optional

from agentloop.values.json_value import JsonValue, freeze
from agentloop.values.tool_execution import ContentPart, as_content
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class ToolResult(Value):
    """What a tool returned: for the program, and for the model where that differs. A tool may return one itself.

    Attributes:
        value: the result as JSON.
        content: what the model is shown instead; None to show it the value.
    """

    value: JsonValue = field(default=None, converter=freeze)
    content: tuple[ContentPart, ...] | None = field(default=None, converter=optional(as_content))
