"""The grammar of calls that a program makes."""

from __future__ import annotations

from datetime import UTC, datetime

from agentloop import ToolCall, ToolExecution
from agentloop.events import (
    AgentExecutionStarted,
    AgentStepStarted,
    ProtocolMonitor,
    ToolCallCompleted,
    ToolCallStarted,
)
from agentloop.values import Event, ToolStatus
from agentloop.values.event import EventHead

AT = datetime(2026, 1, 1, tzinfo=UTC)
OUTER, INNER = "e/1/0", "e/1/0/program/0"


def started(key: str) -> tuple[type[Event], tuple[object, ...]]:
    return ToolCallStarted, (key, ToolCall("1", "t"))


def completed(key: str) -> tuple[type[Event], tuple[object, ...]]:
    execution = ToolExecution.of(ToolCall("1", "t"), ToolStatus.SUCCEEDED, key=key, id="x", at=AT)
    return ToolCallCompleted, (execution,)


def violations(*events: tuple[type[Event], tuple[object, ...]]) -> list[str]:
    """Return what a monitor says about these events inside a step."""
    monitor = ProtocolMonitor()
    begin: list[tuple[type[Event], tuple[object, ...]]] = [(AgentExecutionStarted, ()), (AgentStepStarted, ())]
    for sequence, (kind, details) in enumerate([*begin, *events], 1):
        monitor(kind(EventHead("a", "e", None, 1, sequence, AT), *details))
    return monitor.violations


def test_a_call_lies_within_the_call_of_its_program() -> None:
    """A call of a program starts after, and ends before, the call that runs the program."""
    assert violations(started(OUTER), started(INNER), completed(INNER), completed(OUTER)) == []
    (early,) = violations(started(INNER), completed(INNER), started(OUTER))[:1]
    assert "the call e/1/0 that runs the program is 'start'" in early
    late = violations(started(OUTER), completed(OUTER), started(INNER))
    assert "that runs the program is 'settled'" in late[0]
    open_call = violations(started(OUTER), started(INNER), completed(OUTER))
    assert "calls inside the call e/1/0 are still running: e/1/0/program/0" in open_call[0]
