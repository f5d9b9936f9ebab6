"""Checking a call against the tools that were offered, without executing it."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from agentloop.contracts.can_use_mode import ToolCallValidation
from agentloop.errors import InvalidArguments, MalformedArguments, ToolDefinitionError
from agentloop.tools.validation import validator_of
from agentloop.values.tool_call import ToolCall, parse_arguments
from agentloop.values.tool_spec import ToolSpec


def validate_call(call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
    """Say whether a call names an offered tool, with arguments that satisfy its schema."""
    spec = next((spec for spec in tools if spec.name == call.name), None)
    if spec is None:
        return ToolCallValidation(is_valid=False, error_message=_unknown(call.name, tools))
    try:
        arguments = parse_arguments(call.arguments_json)
        validator_of(spec).validate(arguments)
    except (MalformedArguments, InvalidArguments, ToolDefinitionError) as error:
        return ToolCallValidation(is_valid=False, error_message=str(error))
    return ToolCallValidation(is_valid=True, arguments=arguments)


def _unknown(name: str, tools: Sequence[ToolSpec]) -> str:
    names = [spec.name for spec in tools]
    closest = get_close_matches(name, names, n=1)
    hint = f", did you mean {closest[0]!r}?" if closest else ""
    return f"there is no tool {name!r}{hint}; the tools are {', '.join(names) or 'none'}"
