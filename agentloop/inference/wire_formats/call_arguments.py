"""Arguments of calls on their way back to a provider."""

from __future__ import annotations

from typing import Any

from agentloop.errors import MalformedArguments
from agentloop.values.json_text import format_json
from agentloop.values.tool_call import ToolCall, parse_arguments

MALFORMED = "malformed_arguments"
"""The key under which arguments that are no JSON object are shown to the model that wrote them."""


def arguments_text(call: ToolCall) -> str:
    """Return the arguments as JSON text that any provider accepts: as the model sent them, when they are an object.

    A provider that parses the history refuses the whole conversation for one malformed call, so that is wrapped.
    """
    try:
        parse_arguments(call.arguments_json)
    except MalformedArguments:
        return format_json({MALFORMED: call.arguments_json}).decode()
    text = call.arguments_json.strip()
    return text if text.startswith("{") else "{}"


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """Return the arguments as an object that any provider accepts."""
    try:
        return parse_arguments(call.arguments_json)
    except MalformedArguments:
        return {MALFORMED: call.arguments_json}
