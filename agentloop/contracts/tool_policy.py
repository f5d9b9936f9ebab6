"""How a tool wants to be run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attrs import frozen

from agentloop.values.call_policy import CallPolicy
from agentloop.values.json_value import JsonObject

OrderingKey: TypeAlias = str | Callable[[JsonObject], str]
"""A name, or a function from a call's arguments to one."""


@frozen(eq=False, repr=False, kw_only=True)
class ToolPolicy(CallPolicy):
    """How a tool wants to be run; what it asks for in calls that fail, repeat or come too often is a `CallPolicy`.

    Attributes:
        timeout: seconds after which a call ends as timed out; None for the executor's default.
        sequential: run a call of this tool alone: after all calls before it, before all calls after it.
        key: calls with the same key run one after the other; a name, or a function from the arguments to one.
        max_result_bytes: the most bytes of a result that the model is shown; None for the executor's limit.
    """

    timeout: float | None = None
    sequential: bool = False
    key: OrderingKey | None = None
    max_result_bytes: int | None = None


DEFAULT_POLICY = ToolPolicy()
