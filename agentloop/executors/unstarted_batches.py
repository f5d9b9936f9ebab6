"""The outcomes of a batch that an executor around another one does not hand over."""

from __future__ import annotations

from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ErrorInfo, ToolExecution, ToolStatus


def not_begun(tool_calls: ToolCalls, state: AgentState, reason: str = "the batch did not begin") -> ToolExecutions:
    """Return the outcomes of a batch that ends before any of its calls has begun: each call is cancelled, and has not run.

    An executor that waits before it hands a batch over raises them when it is cancelled meanwhile, or fails:

        try:
            await self.turn()
        except asyncio.CancelledError as cancelled:
            raise cancelled from BatchInterrupted(not_begun(tool_calls, state))
        return await self.inner.execute_tools(tool_calls, state)

    A call that its tool has suspended, and that this batch would resume, has begun in an earlier batch: it may have run.

    Args:
        tool_calls: the batch.
        state: the state that the executor received.
        reason: why no call has begun, as the model reads it.
    """
    executions = [
        ToolExecution.of(
            call,
            ToolStatus.CANCELLED,
            key=key,
            id=f"not begun: {key}",
            at=state.updated_at,
            error=ErrorInfo("Cancelled", reason),
            may_have_run=key in tool_calls.begun,
        )
        for call, key in zip(tool_calls.calls, tool_calls.keys, strict=True)
    ]
    return ToolExecutions(tuple(executions), (), state)
