"""How a tool wants to be run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from attrs import field, frozen
from attrs.validators import ge, gt, optional

from agentloop.errors import ToolDefinitionError
from agentloop.values.call_policy import CallPolicy
from agentloop.values.json_value import JsonObject

OrderingKey: TypeAlias = str | Callable[[JsonObject], str]
"""A name, or a function from a call's arguments to one."""
_SAME = Literal["same arguments", "same tool"]
Supersedes: TypeAlias = _SAME | Callable[[JsonObject, JsonObject], bool]
"""Which earlier results of a tool a new one makes stale: those of calls with the same arguments, all, or those for which a
function of the earlier and the new arguments is true."""


@frozen(eq=False, repr=False, kw_only=True)
class ToolPolicy(CallPolicy):
    """How a tool wants to be run; what it asks for in calls that fail, repeat or come too often is a `CallPolicy`.

    Attributes:
        timeout: seconds after which a call ends as timed out; None for the executor's default.
        sequential: run a call of this tool alone: after all calls before it, before all calls after it.
        key: calls with the same key run one after the other; a name, or a function from the arguments to one.
        max_result_bytes: the most bytes of a result that the model is shown; None for the executor's limit.
        supersedes: which earlier results of the tool a new one makes stale: when an epoch begins, a compiler shows a notice in
            their place. None for none.
    """

    timeout: float | None = field(default=None, validator=optional(gt(0)))
    sequential: bool = False
    key: OrderingKey | None = None
    max_result_bytes: int | None = field(default=None, validator=optional(ge(0)))
    supersedes: Supersedes | None = None

    def __attrs_post_init__(self) -> None:
        if isinstance(self.supersedes, str) and self.supersedes not in get_args(_SAME):
            known = " or ".join(map(repr, get_args(_SAME)))
            raise ToolDefinitionError(
                f"supersedes is {known}, or a function of two calls' arguments; not {self.supersedes!r}"
            )


DEFAULT_POLICY = ToolPolicy()
