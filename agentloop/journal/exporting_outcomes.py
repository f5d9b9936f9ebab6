"""What came of the calls of an execution, as those need it who play it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from attrs import frozen

from agentloop.drivers.judging_decisions import EXTRACTION, VALIDATION
from agentloop.errors import ToolBlocked
from agentloop.journal.exporting_recording import Outcome
from agentloop.values.agent_step import AgentStep
from agentloop.values.pending_call import PendingCall
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExecution, ToolStatus

_OF_TOOLS = {ToolStatus.SUCCEEDED, ToolStatus.FAILED, ToolStatus.IN_DOUBT}
"""The ends that a tool can bring about."""


@frozen(kw_only=True)
class Known:
    """What is known of the calls of an execution beside their ends.

    Attributes:
        offered: the names of the tools that can be called.
        begun: the keys of the calls whose tools have begun.
        decided: the keys of the calls that were decided about.
        waited: how calls waited for decisions, by key.
    """

    offered: Collection[str]
    begun: Collection[str]
    decided: Collection[str]
    waited: Mapping[str, Sequence[PendingCall]]


def outcomes_of(steps: Sequence[AgentStep], known: Known) -> Mapping[str, Outcome]:
    """Return what came of each call of these steps, by key."""
    made = {execution.key: _outcome(execution, call, known) for step in steps for call, execution in _settled(step)}
    for key, calls in known.waited.items():
        if key not in made:
            made[key] = Outcome(waited=calls, status=ToolStatus.CANCELLED)
    return made


def is_decision(call: ToolCall, step: AgentStep) -> bool:
    """Whether a call of a step was not made by the model, but holds what it wrote and nobody could use."""
    return bool(step.errors) and not call.id and call.name in {EXTRACTION, VALIDATION}


def _settled(step: AgentStep) -> Sequence[tuple[ToolCall, ToolExecution]]:
    if step.message is not None:
        return [(exchange.call, exchange.execution) for exchange in step.message.exchanges]
    if step.open_turn is None:
        return []
    calls = [part for part in step.open_turn.parts if isinstance(part, ToolCall)]
    return [
        (call, slot) for call, slot in zip(calls, step.open_turn.slots, strict=True) if isinstance(slot, ToolExecution)
    ]


def _outcome(execution: ToolExecution, call: ToolCall, known: Known) -> Outcome:
    decided, forced = execution.key in known.decided, not _comes_about(execution, known)
    told = forced if decided else execution.call != call
    return Outcome(
        value=execution.value,
        status=execution.status,
        content=execution.content,
        error=execution.error,
        may_have_run=execution.may_have_run,
        ran=execution.call if told else None,
        waited=known.waited.get(execution.key, ()),
        forced=forced,
    )


def _comes_about(execution: ToolExecution, known: Known) -> bool:
    """Whether the end comes about when the call is made again: by its tool, by the check of its arguments, or by a rule."""
    status, error = execution.status, execution.error
    if execution.key in known.decided and any(call.begun for call in known.waited.get(execution.key, ())):
        return False
    if execution.key in known.begun:
        plain = error is None or (not error.path and error.type.isidentifier())
        return status in _OF_TOOLS and plain
    if execution.key in known.decided or error is None:
        return False
    if status is ToolStatus.REJECTED:
        return execution.name in known.offered
    return status is ToolStatus.BLOCKED and error.type == ToolBlocked.__name__
