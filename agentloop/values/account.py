"""The account of an execution that people read."""

from __future__ import annotations

from agentloop.values.agent_step import AgentStep
from agentloop.values.execution_state import ExecutionState
from agentloop.values.tool_execution import ToolExecution
from agentloop.values.usage import Usage

_LINE = 100


def explain(execution: ExecutionState | None) -> str:
    """Tell in a few lines what happened: the status and why, the tokens, then each step with its calls."""
    if execution is None:
        return "no execution yet"
    lines = [_one_line(f"execution {execution.id}: {execution.status.value}{_why(execution)}", _LINE * 4)]
    lines.append(
        f"  {_count(len(execution.steps), 'step')}, {_count(execution.totals.tool_calls, 'tool call')}, "
        f"{_tokens(execution.totals.usage)}{_time(execution)}"
    )
    for step in execution.steps:
        lines.extend(_step(step))
    return "\n".join(lines)


def _one_line(text: str, most: int = _LINE) -> str:
    line = " ".join(text.splitlines())
    return line if len(line) <= most else line[: most - 1] + "…"


def _why(execution: ExecutionState) -> str:
    signal = execution.continuation.signal
    if signal is None:
        return ""
    source = f" (by {signal.source})" if signal.source else ""
    return f": {signal.reason.value}{source}" + (f", {signal.message}" if signal.message else "")


def _step(step: AgentStep) -> list[str]:
    model = f" [{step.model}]" if step.model else ""
    lines = [f"  step {step.number}: {step.kind.value.replace('_', ' ')}{model}"]
    lines += [f"    {_call(execution)}" for execution in step.executions]
    lines += [f"    {call.call.name}({call.call.arguments_json}) waits: {call.reason}" for call in step.pending]
    lines += [f"    error {error.type}: {error.message}" for error in step.errors]
    if step.message is not None and step.message.text:
        lines.append(f"    {step.message.text!r}")
    return [_one_line(line) for line in lines]


def _call(execution: ToolExecution) -> str:
    shown = (
        f"{execution.name}({execution.call.arguments_json}) {execution.status.value} in {execution.duration_ms:.0f} ms"
    )
    return f"{shown}: {execution.text}"


def _tokens(usage: Usage) -> str:
    total = usage.total_tokens
    return "unknown tokens" if total is None else _count(total, "token")


def _time(execution: ExecutionState) -> str:
    if execution.ended_at is None:
        return ""
    return f", {(execution.ended_at - execution.started_at).total_seconds():.1f} s"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
