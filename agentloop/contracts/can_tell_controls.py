"""The contract of interceptors that tell beforehand how they control the calls of a tool, for an audit of a loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from attrs import field, frozen

from agentloop.values.policies import CallPolicy
from agentloop.values.tool_calls import ToolSpec
from agentloop.values.value import Value, one_of

ControlKind: TypeAlias = Literal["asks", "stops", "limits", "records", "repeats", "reuses"]
"""How calls are controlled: a person decides about them; they are refused; there is a limit on them; they are written down; a
failed call runs again; the outcome of an earlier call takes the place of a call, which does not run."""


@frozen(eq=False, repr=False)
class Control(Value):
    """One way in which a part of a loop controls the calls of a tool.

    Attributes:
        kind: how it controls them.
        what: the same in words for people, with numbers and units, such as `at most 20 calls in an execution`.
        of: the subject. For `limits`: `calls`, `rate`, `time` in seconds, `failures`, `repetitions`, `steps`, `tokens` or `cost`. For `stops`: `calls`,
            or `executions` if it stops all of the execution. For `records`: `intents` if it writes before a call runs, else
            `outcomes`. For `repeats`: `attempts`, or `calls` if the model decides. For `reuses`: `undeclared` if the tool does not
            declare it. Empty for other subjects.
        is_sure: whether it is about each call; False if that depends on the call.
        reaches_agents: whether it is also about the calls of an agent that serves the call.
        by: the name of the part; the name of the interceptor if it is empty.
    """

    kind: ControlKind = field(validator=one_of(get_args(ControlKind)))
    what: str
    of: str = field(default="", kw_only=True)
    is_sure: bool = field(default=True, kw_only=True)
    reaches_agents: bool = field(default=False, kw_only=True)
    by: str = field(default="", kw_only=True)


class CanTellControls(ABC):
    """Tells beforehand how it controls the calls of a tool; implemented by interceptors.

    An audit of a loop lists an interceptor as unknown if the interceptor takes part in calls and says nothing.
    """

    @abstractmethod
    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:
        """Return how it controls the calls of a tool; nothing if it does not.

        It is called outside of an execution, and tells what holds for each execution.

        Args:
            tool: the tool.
            ensemble: the name of the group that it belongs to; empty for a tool without a group.
            policy: the policy that the tool declares.
        """
