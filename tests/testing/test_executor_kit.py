"""The law suite of executors: the package's executor passes, and every broken one fails."""

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

LEAKED: list[asyncio.Task[None]] = []

FACTORIES: dict[str, Callable[[], CanExecuteToolCalls]] = {
    "default": ToolExecutor,
    "one at a time": lambda: ToolExecutor(max_concurrency=1),
    "two at a time": lambda: ToolExecutor(max_concurrency=2),
    "raising on failure": lambda: ToolExecutor(raise_on_tool_failure=True),
    "stopping on a block": lambda: ToolExecutor(stop_on_tool_block=True),
    "with a timeout": lambda: ToolExecutor(default_timeout=2.0),
}


@pytest.mark.parametrize("law", ExecutorKit.laws)
@pytest.mark.parametrize("name", FACTORIES)
def test_the_tool_executor_obeys_the_laws(name: str, law: int) -> None:
    """The executor obeys every law of its contract under every option."""
    ExecutorKit(FACTORIES[name], examples=40).check(law)


@frozen
class DropsFailures(ToolExecutor):
    """Breaks law 1: a call that fails has no outcome."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(
            answer, executions=tuple(each for each in answer.executions if each.status is not ToolStatus.FAILED)
        )


@frozen
class Reorders(ToolExecutor):
    """Breaks law 1: executions are in reverse order."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(answer, executions=answer.executions[::-1])


@frozen
class MutatesState(ToolExecutor):
    """Breaks law 3: the executor changes the state that is passed to it."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        object.__setattr__(state, "execution_count", state.execution_count + 1)
        return answer


@frozen
class NumbersByCompletion(ToolExecutor):
    """Breaks law 8: ids depend on the order in which calls end."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        ended: list[str] = []

        async def execute_alone(key: str) -> ToolExecution:
            batch = ToolCalls((tool_calls.calls[tool_calls.keys.index(key)],), (key,))
            answer = await ToolExecutor.execute_tools(self, batch, state)
            ended.append(key)
            return evolve(answer.executions[0], id=f"ended as number {len(ended)}")

        executions = await asyncio.gather(*[execute_alone(key) for key in tool_calls.keys])
        return ToolExecutions(tuple(executions), (), state)


class Shared:
    """State that a broken executor shares between executions."""

    state: AgentState | None = None


@frozen
class SharesState(ToolExecutor):
    """Breaks law 9: an execution returns the state of another."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        Shared.state = state
        answer = await super().execute_tools(tool_calls, state)
        return answer.with_state(Shared.state)


@frozen
class ChangesAfterEvent(ToolExecutor):
    """Breaks law 10: outcomes change after their events."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        answer = await super().execute_tools(tool_calls, state)
        return evolve(answer, executions=tuple(evolve(each, may_have_run=True) for each in answer.executions))


@frozen
class SkipsInterceptors(ToolExecutor):
    """Breaks law 11: calls bypass the interceptors."""

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
class SkipsValidation(ToolExecutor):
    """Breaks law 17: arguments are not validated."""

    def with_tools(self, tools: Tools) -> Self:
        return super().with_tools(Tools.of([Unchecked(each) for each in tools]))


@frozen
class LeaksTask(ToolExecutor):
    """Breaks law 19: a task is still running after the batch."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        LEAKED.append(asyncio.create_task(_forever()))
        return await super().execute_tools(tool_calls, state)


async def _forever() -> None:
    await asyncio.Event().wait()


@frozen
class RecordsNothing(ToolExecutor):
    """Breaks law 14: calls run without a recorded intent."""

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        return super().with_execution_scope(evolve(scope, log=None))


@frozen
class RepeatsCalls(ToolExecutor):
    """Breaks law 14: recorded calls run again."""

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        if isinstance(scope.log, ExecutionRecorder) and scope.log.recorded is not None:
            scope.log.recorded.calls.clear()
        return super().with_execution_scope(scope)


@frozen
class RunsRejectedCalls(ToolExecutor):
    """Breaks law 17: calls run although the driver rejects them."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        return await super().execute_tools(evolve(tool_calls, rejections={}), state)


@frozen
class ForgetsRejections(ToolExecutor):
    """Breaks law 17: a rejected call does not run, but its outcome does not say why."""

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        reasons = dict.fromkeys(tool_calls.rejections, "no")
        return await super().execute_tools(evolve(tool_calls, rejections=reasons), state)


BROKEN: list[tuple[int, Callable[[], CanExecuteToolCalls]]] = [
    (1, DropsFailures),
    (1, Reorders),
    (3, MutatesState),
    (8, NumbersByCompletion),
    (9, SharesState),
    (10, ChangesAfterEvent),
    (11, SkipsInterceptors),
    (14, RecordsNothing),
    (14, RepeatsCalls),
    (17, SkipsValidation),
    (17, RunsRejectedCalls),
    (17, ForgetsRejections),
    (19, LeaksTask),
]


@pytest.mark.parametrize(("law", "factory"), BROKEN)
def test_a_broken_executor_violates_its_law(law: int, factory: Callable[[], CanExecuteToolCalls]) -> None:
    """The kit raises `LawViolation` with the number of the law that an executor breaks."""
    with pytest.raises(LawViolation) as violation:
        ExecutorKit(factory).check(law)
    assert violation.value.law == law


def test_every_law_of_the_kit_has_an_executor_that_breaks_it() -> None:
    """Each check of the kit can fail."""
    assert {law for law, _ in BROKEN} == set(ExecutorKit.laws)
