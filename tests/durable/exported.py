"""Recording executions, exporting them and running the exported tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentloop import AgentLoop, AgentState
from agentloop.durable import MemoryJournal, build_fixture, pytest_source
from agentloop.durable.fixture import Fixture
from agentloop.interception.interceptor import Interceptor
from agentloop.values import Text
from agentloop.values.decisions import Decision
from agentloop.values.points import AfterStep, AfterToolUse, BeforeStep, BeforeToolUse, OnError
from agentloop.values.steps import ExecutionStatus


async def record_execution(
    loop: AgentLoop, question: str | AgentState = "go", *decisions: Decision
) -> tuple[Fixture, str, AgentState]:
    """Run a loop with a journal; return its execution as a fixture, as the source of a test, and its final state."""
    journal = MemoryJournal()
    loop = loop.replace(journal=journal)
    state = await loop.execute(question, execution_id="e/1")
    for decision in decisions:
        assert state.status is ExecutionStatus.SUSPENDED
        waiting = [call for call in state.pending if not call.waits_for]
        state = await loop.resume(state, {waiting[0].key: decision})
    records = await journal.read("e/1")
    return build_fixture(records, "e/1"), pytest_source(records, "e/1"), state


def run_test(source: str) -> None:
    """Run an exported test as pytest does: import the file, and call the function that starts with `test_`."""
    scope: dict[str, Any] = {"__name__": "exported"}
    exec(compile(source, "exported.py", "exec"), scope)  # the source under test
    tests: list[Callable[[], None]] = [value for name, value in scope.items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


class ChangeArguments(Interceptor):
    """Changes the arguments of payments."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.with_arguments({"x": 77}) if point.call.name == "pay" else point


class BlockPayments(Interceptor):
    """Blocks payments."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("not on a Sunday") if point.call.name == "pay" else point


class AnswerPayments(Interceptor):
    """Answers payments without running the tool."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.answer({"cached": [1, None]}) if point.call.name == "pay" else point


class RewriteResults(Interceptor):
    """Replaces the result of every tool."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return point.with_value("***", [Text("hidden")])


class FailBeforeSecondStep(Interceptor):
    """Raises before every step but the first."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        if point.state.step_count:
            raise RuntimeError("broken rule")
        return point


class FailAfterToolUse(Interceptor):
    """Raises after every call."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        raise RuntimeError("broken rule")


class RecoverFromErrors(Interceptor):
    """Continues after errors."""

    def on_error(self, point: OnError) -> OnError:
        return point.recover()


class ContinueAfterAnswer(Interceptor):
    """Continues after the first answer."""

    def after_step(self, point: AfterStep) -> AfterStep:
        return point.request_continuation() if point.state.step_count == 1 else point
