"""The contract of a layer around one call. Each feature is one file, and the batch does not know it.

`CanLayerCalls` opens the layers, and `standard_layers` has their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from attrs import frozen

from agentloop.errors import AgentLoopError
from agentloop.values.decisions import PendingCall
from agentloop.values.labels import ArgumentOrigin, CallOrigins, Label
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ToolExecution

if TYPE_CHECKING:
    from agentloop.contracts.tool import Tool


@frozen(eq=False, kw_only=True)
class CallOutcome:
    """The outcome of a call so far. At the end, exactly one of `execution` and `pending` is set.

    Attributes:
        execution: the execution, once the call is settled.
        pending: the call as it waits for a decision, if it is suspended.
        stop: the stop that the call requested, until the state has it.
        started: whether the tool was started; nothing reads it once the call is settled.
        started_at: when the call started; None before, and for a call that is settled without running.
        failure: an error that interrupts the batch after this call.
        may_have_run: whether the code of the tool has begun, in any attempt, so that an effect cannot be excluded. It is a fact
            about the tool, whatever interceptors make of the outcome.
        exception: what the tool or an interceptor around it raised; None if the call did not fail in this process.
        inner: the outcomes of the calls that the tool has made itself.
    """

    execution: ToolExecution | None = None
    pending: PendingCall | None = None
    stop: StopSignal | None = None
    started: bool = False
    started_at: datetime | None = None
    failure: Exception | None = None
    may_have_run: bool = False
    exception: BaseException | None = None
    inner: tuple[ToolExecution, ...] = ()


OPEN = CallOutcome()
"""The outcome of a call that has not started."""
AWAITED_CANCELLED = "an interceptor of a tool call awaited something that was cancelled"
"""Why a call fails around which a cancellation came from nobody who cancelled the execution."""

RunCall: TypeAlias = Callable[[], Awaitable[CallOutcome]]
Attempt: TypeAlias = Callable[[], Awaitable[ToolExecution]]
UseTool: TypeAlias = Callable[[], Awaitable[Any]]


@frozen
class Cut:
    """Why a call ends without its tool having ended.

    Attributes:
        reason: why, in words.
        error: what an interceptor, a listener or a layer raised around it; None if the call was cancelled.
        is_final: whether the execution has ended with it; otherwise it may be resumed, as after a crash.
    """

    reason: str
    error: Exception | None = None
    is_final: bool = True


class EndedByLayer(AgentLoopError):
    """A layer raises it into the tool to end the call, which is cancelled.

    Attributes:
        failure: the error that interrupts the batch, too; None for none.
    """

    failure: Exception | None = None


class CallLayer:
    """What one feature does about one call, from its admission to its end. Every method has a default that changes nothing.

    The hooks in the order in which a call meets them: `admit`; `keep` if an interceptor refuses a call that has to go on; `run`,
    once; `around`, `attempt`, `bind` and `use`, once for each attempt; `end`; `settle`. Layers are asked outermost first, and
    hooks that get `proceed` are nested in this order. What has no turn of its own, such as a cancellation, asks `so_far`, `unrun`
    and `cut`, which cannot wait, and change nothing outside of the layer.

    A hook that a class does not override is never called, so a layer costs no more than the hooks that it has.

    Attributes:
        hooks: the names of the hooks that the class overrides.
        label: who had a part in the decision to make the call, if the layer knows; only the outermost layer is asked.
        origins: who had a part in each argument, if a program has said so; only the outermost layer is asked.
        input_label: who had a part in the call, its arguments included; only the outermost layer is asked.
    """

    __slots__ = ()
    hooks: ClassVar[frozenset[str]] = frozenset()
    label: Label | None = None
    origins: tuple[ArgumentOrigin, ...] = ()
    input_label: Label | None = None

    def __init_subclass__(cls) -> None:
        cls.hooks = frozenset([name for name in _HOOKS if getattr(cls, name) is not getattr(CallLayer, name)])

    @property
    def wraps_tool(self) -> bool:
        """Whether the layer acts on this call while its tool runs, or in place of it. Such a call gets a task of its own."""
        return not self.hooks.isdisjoint(_WRAPPERS)

    def note_origins(self, key: str, origins: CallOrigins) -> None:
        """Note what the tool of the call says about a call that it is about to make; only the outermost layer is told."""

    # --- before the tool runs -----------------------------------------------------------------------------------

    async def admit(self) -> None:
        """Look at the call, whose tool and arguments are known. In call order; a layer may settle or suspend the call."""

    async def keep(self, refused: str) -> None:
        """Note that something refused or changed a committed call, which goes on nevertheless; the text says what."""

    # --- while it runs ------------------------------------------------------------------------------------------

    async def run(self, proceed: RunCall) -> CallOutcome:
        """Run the call, outside of its events, its limits and its attempts. A layer that has the outcome does not proceed."""
        return await proceed()

    async def around(self, started_at: datetime, proceed: Attempt) -> ToolExecution:  # noqa: ARG002
        """Run the attempts of the call: proceed as often as the tool has to be tried.

        Args:
            started_at: when the call started.
            proceed: makes one attempt.
        """
        return await proceed()

    async def attempt(self, proceed: Attempt) -> ToolExecution:
        """Make one attempt. What is raised before `proceed` is no outcome of the tool: it interrupts the batch."""
        return await proceed()

    def bind(self, tool: Tool) -> Tool:
        """Return the tool of the call with what the layer gives it."""
        return tool

    async def use(self, proceed: UseTool) -> Any:
        """Use the tool once; what is raised is its outcome."""
        return await proceed()

    def disowns(self, error: BaseException) -> bool:  # noqa: ARG002
        """Return whether what the tool raised is no outcome of the call, and interrupts the batch."""
        return False

    # --- how far it has come, at any time -----------------------------------------------------------------------

    def so_far(self, outcome: CallOutcome) -> CallOutcome:
        """Return the outcome so far, with what the layer knows of it; also while the call runs."""
        return outcome

    def unrun(self, so_far: CallOutcome, reason: str) -> CallOutcome:  # noqa: ARG002
        """Return the outcome so far of a call that does not run, or not on, such as one that is answered, with what it did before."""
        return so_far

    def cut(self, so_far: CallOutcome, cut: Cut, settle: Callable[[], CallOutcome]) -> CallOutcome:  # noqa: ARG002
        """Return how the call ends that is cut off; it may stay open, and runs then.

        Args:
            so_far: the outcome so far.
            cut: why it is cut off.
            settle: returns how the layers inside, and then the batch, settle it.
        """
        return settle()

    # --- when it has ended --------------------------------------------------------------------------------------

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        """Take note of how the call ended, before `settle`. Called again if it was cancelled; the second time changes nothing."""
        return outcome

    async def settle(self, grace: float | None) -> None:
        """Complete the outcome, in call order; then it is final, and its event is emitted. Called again if it was cancelled.

        Args:
            grace: the time in seconds that it may take because the batch is being closed; None for any time.
        """

    def drop(self) -> asyncio.Task[Any] | None:
        """Complete the outcome without waiting, because `settle` has not ended in time; return what of it still runs."""
        return None


_WRAPPERS = ("run", "around", "attempt", "use")
_HOOKS = (*_WRAPPERS, "admit", "keep", "bind", "disowns", "so_far", "unrun", "cut", "end", "settle", "drop")
