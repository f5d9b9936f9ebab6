"""What came of the calls of an execution, as those need it who play it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from agentloop.journal.exporting_recording import Outcome
from agentloop.values.agent_step import AgentStep
from agentloop.values.pending_call import PendingCall
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExecution, ToolStatus

_OF_TOOLS = {ToolStatus.SUCCEEDED, ToolStatus.FAILED, ToolStatus.IN_DOUBT}
"""The ends that a tool can bring about."""


def outcomes_of(
    steps: Sequence[AgentStep],
    waited: Mapping[str, Sequence[PendingCall]],
    offered: Collection[str],
    *,
    decided: Collection[str],
) -> Mapping[str, Outcome]:
    """Return what came of each call, by key.

    Args:
        steps: the steps of the execution.
        waited: how calls waited for decisions, by key.
        offered: the names of the tools that can be called.
        decided: the keys of the calls that were decided about.
    """
    made = {
        execution.key: _outcome(
            execution, call, waited.get(execution.key, ()), offered, decided=execution.key in decided
        )
        for step in steps
        for call, execution in _settled(step)
    }
    for key, calls in waited.items():
        if key not in made:
            made[key] = Outcome(waited=calls, status=ToolStatus.CANCELLED)
    return made


def _settled(step: AgentStep) -> Sequence[tuple[ToolCall, ToolExecution]]:
    if step.message is not None:
        return [(exchange.call, exchange.execution) for exchange in step.message.exchanges]
    if step.open_turn is None:
        return []
    calls = [part for part in step.open_turn.parts if isinstance(part, ToolCall)]
    return [
        (call, slot) for call, slot in zip(calls, step.open_turn.slots, strict=True) if isinstance(slot, ToolExecution)
    ]


def _outcome(
    execution: ToolExecution, call: ToolCall, waited: Sequence[PendingCall], offered: Collection[str], *, decided: bool
) -> Outcome:
    changed = execution.call != call and not decided
    return Outcome(
        value=execution.value,
        status=execution.status,
        content=execution.content,
        error=execution.error,
        may_have_run=execution.may_have_run,
        ran=execution.call if changed else None,
        waited=tuple(waited),
        forced=_is_forced(execution, offered),
    )


def _is_forced(execution: ToolExecution, offered: Collection[str]) -> bool:
    """Whether nothing but the one who plays it can bring this end about."""
    error = execution.error
    if execution.status is ToolStatus.REJECTED:
        return execution.name not in offered
    if error is not None and (error.path or not error.type.isidentifier()):
        return True
    return execution.status not in _OF_TOOLS and execution.status is not ToolStatus.BLOCKED
