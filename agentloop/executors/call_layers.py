"""The contract of what is laid around the calls of an execution: one feature, one file, unknown to what runs calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from attrs import frozen

from agentloop.errors import AgentLoopError
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolExecution

if TYPE_CHECKING:
    from agentloop.contracts.tool import Tool
    from agentloop.executors.batch import CallState
    from agentloop.executors.invocation import BatchSettings, CallOutcome
    from agentloop.executors.toolbox import Toolbox

RunCall: TypeAlias = "Callable[[], Awaitable[CallOutcome]]"
Attempt: TypeAlias = Callable[[], Awaitable[ToolExecution]]


@frozen
class Cut:
    """Why a call ends without its tool having ended.

    Attributes:
        reason: why, in words.
        error: what an interceptor, a listener or a layer raised around it; None if the call was cancelled.
        is_final: whether the execution has ended with it; else it may be resumed, as after a crash.
    """

    reason: str
    error: Exception | None = None
    is_final: bool = True


class EndedByLayer(AgentLoopError):
    """What a tool uses of a layer ends its call, which is cancelled.

    Attributes:
        failure: the error that interrupts the batch, too; None for none.
    """

    failure: Exception | None = None


class Admission(Protocol):
    """What a layer may do about the batch of its call."""

    state: AgentState
    settings: BatchSettings
    toolbox: Toolbox

    def suspend(self, call: CallState, reason: str) -> None:
        """Let the call wait for a decision."""

    def halt(self, error: Exception, reason: str) -> None:
        """Admit no more calls; the error interrupts the batch."""


class CallLayer:
    """What one feature does about one call, from its admission to its end. Every method has a default that changes nothing."""

    __slots__ = ()
    hooks: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        cls.hooks = frozenset([name for name in _HOOKS if getattr(cls, name) is not getattr(CallLayer, name)])

    @property
    def wraps_tool(self) -> bool:
        """Whether the layer acts while the tool runs, or in place of it."""
        return not self.hooks.isdisjoint(_AROUND)

    async def admit(self) -> None:
        """Look at the call, which has a tool, before the interceptors do. In call order."""

    async def keep(self, refused: str) -> None:
        """Report that an interceptor refused or changed a committed call, which resumes nevertheless."""

    async def run(self, proceed: RunCall) -> CallOutcome:
        """Run the call, outside of the interceptors, the events and the limits."""
        return await proceed()

    async def attempt(self, proceed: Attempt) -> ToolExecution:
        """Make one attempt, inside of the interceptors; an error that is raised before `proceed` is no outcome of the tool."""
        return await proceed()

    async def use(self, proceed: Callable[[], Awaitable[Any]]) -> Any:
        """Use the tool once; what is raised is its outcome."""
        return await proceed()

    def so_far(self, outcome: CallOutcome) -> CallOutcome:
        """Return the outcome so far, with what the layer knows of it; at any time, also while the call runs."""
        return outcome

    def cut(self, so_far: CallOutcome, cut: Cut, settle: Callable[[], CallOutcome]) -> CallOutcome:  # noqa: ARG002
        """Return how the call ends that is cut off; it may stay open, and runs then."""
        return settle()

    def unrun(self, so_far: CallOutcome, reason: str) -> CallOutcome:  # noqa: ARG002
        """Return the outcome so far of a call that does not run, or not on, such as one that is answered, with what it did before."""
        return so_far

    def bind(self, tool: Tool) -> Tool:
        """Return the tool of the call with what the layer gives it."""
        return tool

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        """Take note of the outcome, before the interceptors of `after_tool_use` see it. May be called twice."""
        return outcome


_AROUND = ("run", "attempt", "use")
_HOOKS = (*_AROUND, "admit", "keep", "bind", "so_far", "unrun", "cut", "end")


class CanLayerCalls(ABC):
    """A feature over all calls of an execution."""

    @abstractmethod
    def open(self, call: CallState, batch: Admission) -> CallLayer | None:
        """Return what the feature does about a call; None if nothing. Called in call order, before any call is admitted."""
