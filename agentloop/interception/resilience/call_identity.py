"""What makes two calls the same call."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from agentloop.values.json_value import JsonObject
from agentloop.values.points import AroundToolUse

CallerOf: TypeAlias = Callable[[AroundToolUse], str]
"""Names whom a call is made for: what was found out for one caller is never shown to another."""


def calling_agent(point: AroundToolUse) -> str:
    """Name the agent: calls of other agents are other calls."""
    return point.state.agent_id


def any_caller(point: AroundToolUse) -> str:  # noqa: ARG001  # that it does not look is the point
    """Make no difference between callers; for tools that answer everyone alike."""
    return ""


def canonical(arguments: JsonObject) -> str:
    """Write arguments so that the same ones are the same text, in whatever order and spelling the model gave them."""
    return _encoder.encode(arguments)


_encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
