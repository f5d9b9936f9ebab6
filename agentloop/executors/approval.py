"""Applies what a person has decided about calls that waited. A denied or answered call ends here; an approved one passes the layers inside.

The layer asks nobody: an interceptor, such as `RequireApproval`, asks by suspending a call.
"""

from __future__ import annotations

from agentloop.events.bus import emit_at_step
from agentloop.events.tool_calls import ToolCallReviewed
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call, tool_of
from agentloop.executors.call_layers import CallLayer
from agentloop.values.decisions import Answer, Decision, Deny


class Approval(CanLayerCalls):
    """Applies the decisions about calls that were pending. An edited call has its new arguments when it is admitted."""

    def open(self, call: Call, batch: Admission) -> CallLayer | None:
        """Return what applies the decision about a call; None if nobody has decided."""
        return None if call.decision is None else _DecidedCall(call, call.decision, batch)


class _DecidedCall(CallLayer):
    __slots__ = ("_batch", "_call", "_decision")

    def __init__(self, call: Call, decision: Decision, batch: Admission) -> None:
        self._batch = batch
        self._call = call
        self._decision = decision

    async def admit(self) -> None:
        """Report the decision, and settle the call if it was denied or answered."""
        call, batch, decision = self._call, self._batch, self._decision
        details = (call.step_number, call.key, tool_of(call).spec.name, decision)
        await emit_at_step(batch.runtime.events, ToolCallReviewed, batch.state, *details)
        if isinstance(decision, Deny):
            batch.block(call, decision.reason or "denied")
        elif isinstance(decision, Answer):
            batch.answer(call, decision)
