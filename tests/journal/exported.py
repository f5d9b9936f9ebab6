"""Executions that are recorded, exported and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentloop import AgentLoop, AgentState
from agentloop.interception.interceptor import Interceptor
from agentloop.journal import Fixture, MemoryJournal, build_fixture, pytest_source
from agentloop.values import Text
from agentloop.values.decisions import Decision
from agentloop.values.points import AfterStep, AfterToolUse, BeforeStep, BeforeToolUse, OnError
from agentloop.values.steps import ExecutionStatus


async def recorded(
    loop: AgentLoop, question: str | AgentState = "go", *decisions: Decision
) -> tuple[Fixture, str, AgentState]:
    """Run a loop with a journal; return its execution as a recording, as a test, and what came of it."""
    journal = MemoryJournal()
    loop = loop.with_journal(journal)
    state = await loop.execute(question, execution_id="e/1")
    for decision in decisions:
        assert state.status is ExecutionStatus.SUSPENDED
        waiting = [one for one in state.pending if not one.waits_for]
        state = await loop.resume(state, {waiting[0].key: decision})
    records = await journal.read("e/1")
    return build_fixture(records, "e/1"), pytest_source(records, "e/1"), state


def run(source: str) -> None:
    """Run an exported test as pytest does: import the file, and call what begins with `test_`."""
    scope: dict[str, Any] = {"__name__": "exported"}
    exec(compile(source, "exported.py", "exec"), scope)  # the file that is tested
    tests: list[Callable[[], None]] = [value for name, value in scope.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


class Changing(Interceptor):
    """Changes what is called."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.with_arguments({"x": 77}) if point.call.name == "pay" else point


class Blocking(Interceptor):
    """Keeps a tool from running."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("not on a Sunday") if point.call.name == "pay" else point


class Answering(Interceptor):
    """Settles a call itself."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.answer({"cached": [1, None]}) if point.call.name == "pay" else point


class Rewriting(Interceptor):
    """Changes what a tool has returned."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return point.with_value("***", [Text("hidden")])


class BrokenAtStep(Interceptor):
    """Fails before the second step."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        if point.state.step_count:
            raise RuntimeError("broken rule")
        return point


class BrokenAfterTools(Interceptor):
    """Fails when it sees an outcome."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        raise RuntimeError("broken rule")


class Recovering(Interceptor):
    """Goes on after errors."""

    def on_error(self, point: OnError) -> OnError:
        return point.recover()


class AskingOn(Interceptor):
    """Goes on after the first answer."""

    def after_step(self, point: AfterStep) -> AfterStep:
        return point.request_continuation() if point.state.step_count == 1 else point
