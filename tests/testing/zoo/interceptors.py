"""Interceptors that break one law each."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence

from attrs import evolve

from agentloop import Interceptor, ToolCall
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.interception import (
    AfterInference,
    AfterToolUse,
    AroundToolUse,
    BeforeInference,
    BeforeToolUse,
)
from agentloop.testing import InterceptorKit
from agentloop.values import InferenceResponse, Message, ToolExchange, ToolExecution
from agentloop.values.points import (
    AfterExecution,
    AfterStep,
    AroundInference,
    BeforeExecution,
    BeforeStep,
    Proceed,
    ProceedToolUse,
)
from tests.testing.zoo.zoo import Member

STARTED: list[object] = []


class MutatesState(Interceptor):
    """Breaks law 3: the interceptor changes the state of a point in place."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        object.__setattr__(point.state, "execution_count", point.state.execution_count + 1)
        return point


class Counter:
    """A counter that a broken interceptor shares between executions."""

    value = 0


class DependsOnUse(Interceptor):
    """Breaks law 8: the metadata depends on how often the interceptor was used."""

    def after_step(self, point: AfterStep) -> AfterStep:
        Counter.value += 1
        return point.with_state(point.state.with_metadata(count=Counter.value))


class SharesState(Interceptor):
    """Breaks law 9: concurrent executions share a counter."""

    def __init__(self) -> None:
        self.steps = 0

    def after_step(self, point: AfterStep) -> AfterStep:
        self.steps += 1
        return point.with_state(point.state.with_metadata(steps=self.steps))


class WritesIntoArguments(Interceptor):
    """Breaks law 3: the interceptor writes into a mapping that it was given."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        dict.__setitem__(point.state.context.metadata, "seen", 1)
        return point


NUMBERS = itertools.count()


class NumbersRequests(Interceptor):
    """Breaks law 8: requests depend on how many were sent before, by anybody."""

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        return point.with_request(point.request.with_system_prompt(f"request {next(NUMBERS)}"))


class RemembersOnClass(Interceptor):
    """Breaks law 9: the first agent is remembered on the class, and told to all others."""

    owner = ""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        RemembersOnClass.owner = RemembersOnClass.owner or point.state.agent_id
        return point.with_state(point.state.with_metadata(owner=RemembersOnClass.owner))


RESULTS: dict[str, ToolExecution] = {}


class RemembersInModule(Interceptor):
    """Breaks law 9: results are kept in the module by the ids of calls, which occur in every execution."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        known = RESULTS.setdefault(point.call.name, point.execution)
        return point.with_value(known.value) if point.execution.succeeded and known.succeeded else point


class PutsClockFirst(Interceptor):
    """Breaks law 13: the system prompt begins with the time, so that no request extends the one before it."""

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        return point.with_request(point.request.with_system_prompt(f"It is step {point.state.step_count}."))


class ForgetsOldMessages(Interceptor):
    """Breaks law 13: the oldest message of each request is left out."""

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        messages = point.request.messages
        return point.with_request(point.request.with_messages(messages[1:])) if len(messages) > 2 else point


class ProceedsTwice(Interceptor):
    """Breaks law 14: each tool runs twice, to be on the safe side."""

    repeats_effects = True

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        await proceed()
        return await proceed()


class RepeatsFailures(Interceptor):
    """Breaks law 14: a call that failed is made again, whether or not it may have run."""

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        first = await proceed()
        return first if first.succeeded else await proceed()


class LeaksTask(Interceptor):
    """Breaks law 19: a task is still running after the execution."""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        STARTED.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))
        return point


class DropsSteps(Interceptor):
    """Breaks law 22: the state that is returned has lost its last step."""

    def after_step(self, point: AfterStep) -> AfterStep:
        execution = point.state.execution
        assert execution is not None
        return point.with_state(evolve(point.state, execution=evolve(execution, steps=execution.steps[:-1])))


class ReturnsOldState(Interceptor):
    """Breaks law 22: changes of other interceptors since the step began are lost."""

    def __init__(self) -> None:
        self._states: dict[str, dict[str, object]] = {}

    def before_step(self, point: BeforeStep) -> BeforeStep:
        self._states[point.state.execution_id] = dict(point.state.context.metadata)
        return point

    def after_inference(self, point: AfterInference) -> AfterInference:
        metadata = self._states[point.state.execution_id]
        return point.with_state(point.state.with_context(evolve(point.state.context, metadata=metadata)))


class ForgesCalls(Interceptor):
    """Breaks law 25: an answer gets a call that the model has not made."""

    def after_inference(self, point: AfterInference) -> AfterInference:
        call = ToolCall("forged", "echo", '{"value": 1}')
        return point.with_response(point.response.with_parts([*point.response.parts, call]))


class ForgesExchanges(Interceptor):
    """Breaks law 25: the conversation gets the result of a call that nobody has run."""

    def after_step(self, point: AfterStep) -> AfterStep:
        step = point.state.last_step
        if step is None or not step.executions or point.state.step_count > 1:
            return point
        forged = evolve(step.executions[0], id="forged", key=f"{step.executions[0].key}/forged")
        return point.with_state(point.state.with_message(Message.assistant(ToolExchange(forged.call, forged))))


class ChangesFacts(Interceptor):
    """Breaks law 25: the outcome of a call becomes that of another one."""

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        outcome = await proceed()
        return evolve(outcome, call=point.call.with_arguments({"value": 0}))


class SwallowsCancellation(Interceptor):
    """Breaks law 34: a call that is cancelled has an outcome, as if it had failed by itself."""

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        try:
            return await proceed()
        except asyncio.CancelledError:
            return point.fail("it was cancelled")


class WaitsOn(Interceptor):
    """Breaks law 34: an interceptor that waits is cancelled, and lets the call pass all the same."""

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            return point
        return point


class KeepsItsLock(Interceptor):
    """Breaks law 34: one request is sent at a time, and one that is cancelled keeps the lock."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def around_inference(self, point: AroundInference, proceed: Proceed[InferenceResponse]) -> InferenceResponse:
        await self.lock.acquire()
        response = await proceed()
        self.lock.release()
        return response


class RemembersTheLastStep(Interceptor):
    """Breaks law 9: the state with which a step began is kept, and another execution may have begun one since."""

    def __init__(self) -> None:
        self.began = ""

    def before_step(self, point: BeforeStep) -> BeforeStep:
        self.began = point.state.agent_id
        return point

    def after_step(self, point: AfterStep) -> AfterStep:
        return point.with_state(point.state.with_metadata(began=self.began))


class CountsCallsOfAgents(Interceptor):
    """Breaks law 9: the calls of an execution are counted for its agent, and those of earlier executions are never forgotten."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        self.calls[point.state.agent_id] = self.calls.get(point.state.agent_id, 0) + 1
        return point.block("too many calls") if self.calls[point.state.agent_id] > 12 else point


class LocksAcrossPoints(Interceptor):
    """Breaks law 9: a lock is taken before a call and given back after it, though all calls of a batch begin before one has ended."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        await self.lock.acquire()
        return point

    async def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        self.lock.release()
        return point


class ChangesKeys(Interceptor):
    """Breaks law 25: the outcome of a call gets the key of another one, which the point refuses."""

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return point.with_execution(evolve(point.execution, key="another"))


class WritesMoreThanDeclared(Interceptor):
    """Breaks law 3: the interceptor blocks calls, and declares to change results alone."""

    writes = frozenset({"execution.value"})

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("not now") if point.arguments["value"] > 15 else point


class RaisesOnly(Interceptor):
    """Keeps no law, since nothing happens: every execution ends with its error."""

    def before_execution(self, point: BeforeExecution) -> BeforeExecution:
        raise NotImplementedError


class NeedsOtherArguments(Interceptor):
    """Keeps no law, since it reads an argument that no toy has: every call fails."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("too much") if point.arguments["amount"] > 100 else point


class HoldsByName(Interceptor):
    """Breaks law 38: a misspelled name holds nothing back, and nobody is told."""

    def __init__(self, name: str = "echo") -> None:
        self.tool = name

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point.block("held back") if point.call.name == self.tool else point


class NamesNothing(HoldsByName, CanNameTools):
    """Breaks law 38: the names are declared as if each of them may be missing."""

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        return ()


class LimitsExecutions(Interceptor):
    """Breaks law 34: eight executions run at a time, and one that is cancelled keeps its place."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(8)

    async def before_execution(self, point: BeforeExecution) -> BeforeExecution:
        await self.places.acquire()
        return point

    async def after_execution(self, point: AfterExecution) -> AfterExecution:
        self.places.release()
        return point


class AsksItsPolicyServer(Interceptor):
    """Breaks law 45: the event loop waits for a server with every call."""

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        time.sleep(0.0001)  # noqa: ASYNC251  # the fault
        return point


def _naming(law: int, interceptor: Callable[[str], Interceptor]) -> Member:
    def make(examples: int) -> InterceptorKit:
        return InterceptorKit(lambda: interceptor("echo"), naming=interceptor, examples=examples)

    return Member(interceptor, law, make)


def _member(law: int, interceptor: type[Interceptor], *, works: bool = True) -> Member:
    return Member(interceptor, law, lambda examples: InterceptorKit(interceptor, examples=examples), works)


INTERCEPTORS: tuple[Member, ...] = (
    _member(3, MutatesState),
    _member(3, WritesIntoArguments),
    _member(3, WritesMoreThanDeclared),
    _member(3, RaisesOnly, works=False),
    _member(3, NeedsOtherArguments, works=False),
    _member(8, DependsOnUse),
    _member(8, NumbersRequests),
    _member(9, SharesState),
    _member(9, RemembersOnClass),
    _member(9, RemembersInModule),
    _member(9, LocksAcrossPoints),
    _member(9, CountsCallsOfAgents),
    _member(9, RemembersTheLastStep),
    _member(13, PutsClockFirst),
    _member(13, ForgetsOldMessages),
    _member(14, ProceedsTwice),
    _member(14, RepeatsFailures),
    _member(19, LeaksTask),
    _member(22, DropsSteps),
    _member(22, ReturnsOldState),
    _member(25, ForgesCalls),
    _member(25, ForgesExchanges),
    _member(25, ChangesFacts),
    _member(25, ChangesKeys),
    _member(34, SwallowsCancellation),
    _member(34, WaitsOn),
    _member(34, KeepsItsLock),
    _member(34, LimitsExecutions),
    _naming(38, HoldsByName),
    _naming(38, NamesNothing),
    _member(45, AsksItsPolicyServer),
)
