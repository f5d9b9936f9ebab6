"""What a tool can learn about the call it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.values.id_source import DerivedIds, IdSource
from agentloop.values.pending_call import PendingCall
from agentloop.values.value import Value


def _nobody(_: object) -> None:
    """Take progress that nobody listens for."""


@frozen(eq=False, repr=False, kw_only=True)
class ToolContext(Value):
    """The context of one call, injected into a tool that asks for it.

    Attributes:
        execution_id: the execution that the call belongs to.
        agent_id: the agent that the execution belongs to.
        idempotency_key: `<execution id>/<step number>/<call index>`; the same again when the call is run again, so give
            it to any service that can refuse a repetition.
        dependencies: what the program gave to `AgentLoop.execute(…, dependencies=…)`.
        attempt: how often the tool was begun for this call since it was last let run, from 1.
        resumed: what the tool left when it raised `CallSuspended`, with what was decided since; None when it begins.
        scope: clock and resources of the execution; for what draws ids, see `ids`.
        events: the bus of the execution; None outside of one.
        id: the id of the tool execution.
    """

    execution_id: str
    agent_id: str
    idempotency_key: str
    dependencies: Any = None
    attempt: int = 1
    resumed: PendingCall | None = None
    scope: ExecutionScope = field(factory=ExecutionScope, repr=False, eq=False)
    events: CanHandleEvents | None = field(default=None, repr=False, eq=False)
    id: str = ""
    _report: Callable[[object], None] = field(default=_nobody, alias="report", repr=False, eq=False)

    def ids(self) -> IdSource:
        """Return ids for what serves this call: derived from the id of the call, so that calls side by side do not mix."""
        origin = self.id or self.idempotency_key
        return DerivedIds(origin if self.attempt == 1 else f"{origin}/attempt_{self.attempt}")

    def progress(self, update: object) -> None:
        """Tell listeners how far the work is, from a coroutine or from a thread.

        Args:
            update: JSON data: a text, a fraction, an object. It is emitted as `ToolCallProgressed`; after the call has
                ended it is dropped.

        Raises:
            NotJson: when the update has no JSON form.
        """
        self._report(update)
