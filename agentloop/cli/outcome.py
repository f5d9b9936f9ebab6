"""What came of an execution, for a person and for a shell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from agentloop.cli.figures import counted, duration, tokens
from agentloop.cli.terminal_text import call_text, one_line
from agentloop.values.agent_state import AgentState
from agentloop.values.execution_state import ExecutionStatus

_CODES: Mapping[ExecutionStatus, int] = {ExecutionStatus.COMPLETED: 0, ExecutionStatus.FAILED: 1}
_CUT_SHORT = 3
_ADVICE: Mapping[str, str] = {
    "AuthenticationError": "Is the key in the provider's environment variable the right one, and may it use this model?",
    "InvalidResponse": "Is this the address of an API of the provider's kind? A proxy or a login page may have answered.",
    "ContextLengthExceeded": "Shorten the question, or have the tools return less.",
}


def exit_code(state: AgentState) -> int:
    """Return what the process ends with: 0 for an answer, 1 for a failure, 3 for an execution that was cut short or waits."""
    return _CODES.get(state.status, _CUT_SHORT)


def shortcoming(state: AgentState) -> str:
    """Say in a line or two why there is no answer; empty when there is one."""
    after = f"after {counted(state.step_count, 'step')}"
    if state.status is ExecutionStatus.FAILED:
        return _failure(state, after)
    if state.status is ExecutionStatus.SUSPENDED:
        waiting = [f"{call_text(call.call)} waits for a decision: {one_line(call.reason)}" for call in state.pending]
        total = counted(len(waiting), "call")
        return "\n".join([f"Suspended {after}: {total} {'waits' if len(waiting) == 1 else 'wait'}.", *waiting])
    if state.status is ExecutionStatus.COMPLETED:
        return "" if state.final_text else f"Completed {after}, but the model gave no text as its answer."
    signal = state.stop_signal
    return f"Stopped {after}: {one_line(signal.message or signal.reason.value)}." if signal is not None else "Stopped."


def summary(state: AgentState) -> str:
    """Return steps, calls by outcome, tokens and time, on one line."""
    parts = [f"{state.status.value} in {counted(state.step_count, 'step')}", _calls(state), tokens(state.usage)]
    execution = state.execution
    if execution is not None and execution.ended_at is not None:
        parts.append(duration((execution.ended_at - execution.started_at).total_seconds()))
    return " · ".join(parts)


def _calls(state: AgentState) -> str:
    total = counted(state.tool_call_count, "tool call")
    found = Counter(execution.status.value for step in state.steps for execution in step.executions)
    found.update({"waiting": len(state.pending)} if state.pending else {})
    listed = ", ".join([f"{number:,} {status.replace('_', ' ')}" for status, number in found.items()])
    return f"{total} ({listed})" if listed else total


def _failure(state: AgentState, after: str) -> str:
    if not state.errors:
        return f"Failed {after}."
    error = state.errors[-1]
    lines = [f"Failed {after}: {error.type}: {one_line(error.message)}"]
    return "\n".join([*lines, *filter(None, [_ADVICE.get(error.type)])])
