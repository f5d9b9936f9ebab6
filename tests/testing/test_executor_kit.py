"""The law suite of executors: ours pass, and each broken one is caught."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Self

import pytest
from attrs import evolve, frozen

from agentloop import ToolExecutor
from agentloop.contracts import CanExecuteToolCalls, CanHandleEvents, CanIntercept, ExecutionScope, Tool, Tools
from agentloop.journal.recorder import ExecutionRecorder
from agentloop.testing import ExecutorKit, LawViolation
from agentloop.values import AgentState, ToolCalls, ToolExecution, ToolExecutions, ToolStatus

LEFT_BEHIND: list[asyncio.Task[None]] = []

MAKERS: dict[str, Callable[[], CanExecuteToolCalls]] = {
    "default": ToolExecutor,
    "one at a time": lambda: ToolExecutor(max_concurrency=1),
    "two at a time": lambda: ToolExecutor(max_concurrency=2),
    "raising on failure": lambda: ToolExecutor(raise_on_tool_failure=True),
    "stopping on a block": lambda: ToolExecutor(stop_on_tool_block=True),
    "with a timeout": lambda: ToolExecutor(default_timeout=2.0),
}


@pytest.mark.parametrize("law", ExecutorKit.laws)
@pytest.mark.parametrize("name", MAKERS)
def test_the_tool_executor_keeps_the_laws(name: str, law: int) -> None:
    """The executor keeps every law of its contract under every option."""
    ExecutorKit(MAKERS[name], examples=40).check(law)


@frozen
class LosesFailures(ToolExecutor):
    """Breaks law 1: a call that fails has no outcome."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(answer, executions=tuple(one for one in answer.executions if one.status is not ToolStatus.FAILED))


@frozen
class Reorders(ToolExecutor):
    """Breaks law 1: executions come in reverse order."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(answer, executions=answer.executions[::-1])


@frozen
class WritesIntoTheState(ToolExecutor):
    """Breaks law 3: the given state is changed."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        object.__setattr__(state, "execution_count", state.execution_count + 1)
        return answer


@frozen
class NumbersByCompletion(ToolExecutor):
    """Breaks law 8: ids follow the order in which calls end."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        ended: list[str] = []

        async def alone(key: str) -> ToolExecution:
            place = tool_calls.keys.index(key)
            one = ToolCalls((tool_calls.calls[place],), (key,))
            answer = await ToolExecutor.execute_tools(self, one, state)
            ended.append(key)
            return evolve(answer.executions[0], id=f"ended as number {len(ended)}")

        executions = await asyncio.gather(*[alone(key) for key in tool_calls.keys])
        return ToolExecutions(tuple(executions), (), state)


class Shared:
    """What one broken executor shares between executions."""

    state: AgentState | None = None


@frozen
class KeepsTheState(ToolExecutor):
    """Breaks law 9: the state of one execution is seen by another."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        Shared.state = state
        answer = await super().execute_tools(tool_calls, state)
        return answer.with_state(Shared.state)


@frozen
class ChangesAfterTelling(ToolExecutor):
    """Breaks law 10: the outcome is changed after the event."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(answer, executions=tuple(evolve(one, may_have_run=True) for one in answer.executions))


@frozen
class PassesNoInterceptor(ToolExecutor):
    """Breaks law 11: calls do not pass the interceptors."""

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        del interceptor
        return super().with_lifecycle(ToolExecutor()._interceptor, events)


class Unchecked(Tool):
    """A tool whose schema accepts anything."""

    def __init__(self, inner: Tool) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def description(self) -> str:
        return self._inner.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        return {"type": "object"}

    async def use(self, *_: Any, **arguments: Any) -> Any:
        return await self._inner.use(**arguments)


@frozen
class ValidatesNothing(ToolExecutor):
    """Breaks law 17: arguments are not held against the schema."""

    def with_tools(self, tools: Tools) -> Self:
        return super().with_tools(Tools.of([Unchecked(one) for one in tools]))


@frozen
class LeavesATask(ToolExecutor):
    """Breaks law 19: a task goes on after the batch."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        LEFT_BEHIND.append(asyncio.create_task(_forever()))
        return await super().execute_tools(tool_calls, state)


async def _forever() -> None:
    await asyncio.Event().wait()


@frozen
class WritesNothingDown(ToolExecutor):
    """Breaks law 14: its calls run without an intent."""

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        return super().with_execution_scope(evolve(scope, log=None))


@frozen
class RunsAgain(ToolExecutor):
    """Breaks law 14: what is recorded is run again."""

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        if isinstance(scope.log, ExecutionRecorder) and scope.log.recorded is not None:
            scope.log.recorded.calls.clear()
        return super().with_execution_scope(scope)


BROKEN: list[tuple[int, Callable[[], CanExecuteToolCalls]]] = [
    (1, LosesFailures),
    (1, Reorders),
    (3, WritesIntoTheState),
    (8, NumbersByCompletion),
    (9, KeepsTheState),
    (10, ChangesAfterTelling),
    (11, PassesNoInterceptor),
    (14, WritesNothingDown),
    (14, RunsAgain),
    (17, ValidatesNothing),
    (19, LeavesATask),
]


@pytest.mark.parametrize(("law", "make"), BROKEN)
def test_a_broken_executor_is_caught_by_its_law(law: int, make: Callable[[], CanExecuteToolCalls]) -> None:
    """An executor that breaks a law is refused, and the law is named."""
    with pytest.raises(LawViolation) as caught:
        ExecutorKit(make).check(law)
    assert caught.value.law == law


def test_every_law_of_the_kit_has_an_executor_that_breaks_it() -> None:
    """No check of the kit is one that cannot fail."""
    assert {law for law, _ in BROKEN} == set(ExecutorKit.laws)
