"""What an agent's tool is made of: its parameters, and the limits on what the agent may use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tools import Tools
from agentloop.errors import ToolDefinitionError
from agentloop.interception.permissions import Permissions
from agentloop.interception.tool_selection import ToolSelection
from agentloop.loop.agent_tool import TASK
from agentloop.tools.schema_builder import json_schema
from agentloop.values.json_value import JsonObject, freeze_object


def parameters_of(input_type: Any, parameters: Mapping[str, Any] | None) -> JsonObject:
    """Return the parameters of an agent's tool: of a type, as they are given, or a task in words.

    Raises:
        ToolDefinitionError: when they are not those of an object, or are given twice.
    """
    if input_type is not None and parameters is not None:
        raise ToolDefinitionError("an agent's tool has an input_type or parameters, not both")
    if input_type is None and parameters is None:
        return TASK
    schema = freeze_object(json_schema(input_type) if parameters is None else parameters)
    if schema.get("type") != "object":
        raise ToolDefinitionError(
            f"the parameters of an agent's tool are those of an object, such as a dataclass, not {dict(schema)!r:.100}"
        )
    return schema


def limits_on_tools(tools: Tools, allowed: Iterable[str] | None, denied: Iterable[str]) -> tuple[CanIntercept, ...]:
    """Return what keeps an agent from being offered, and from using, tools that it may not.

    Raises:
        ToolDefinitionError: when a name or pattern fits none of the tools, and no group can add any.
    """
    may = None if allowed is None else tuple(_names(allowed))
    may_not = tuple(_names(denied))
    for name in (*(may or ()), *may_not):
        if not tools.groups and not any(fnmatchcase(tool, name) for tool in tools.names):
            hint = f"; did you mean {' or '.join(map(repr, found))}?" if (found := tools.closest(name)) else ""
            raise ToolDefinitionError(f"the agent has no tool {name!r} that could be allowed or denied{hint}")
    if may is None and not may_not:
        return ()
    return (ToolSelection(may, may_not), Permissions(may, may_not))


def _names(given: Iterable[str]) -> Iterable[str]:
    return (given,) if isinstance(given, str) else given
