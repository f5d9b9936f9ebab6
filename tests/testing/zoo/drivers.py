"""Drivers that break one law each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Self

from attrs import evolve, field, frozen

from agentloop import AgentState, Message, ToolCallingDriver, ToolExecutor
from agentloop.contracts import CanExecuteToolCalls, CanHandleEvents, CanInfer, CanIntercept
from agentloop.contracts.tools import Tools
from agentloop.drivers import ForwardingDriver, StepDraft
from agentloop.errors import InferenceError, StepInterrupted
from agentloop.events import EagerCallsDiscarded, EventBus, InferenceResponseReceived
from agentloop.events.bus import emit_soon
from agentloop.testing import DriverKit, Scenario
from agentloop.values import (
    FinishReason,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    ProviderPart,
    ResponsePart,
    Text,
    ToolCall,
    ToolCalls,
    ToolChoice,
    ToolExecutions,
    to_plain,
)
from agentloop.values.batches import ready_calls
from agentloop.values.decisions import PendingCall
from agentloop.values.steps import SuspendedTurn
from tests.testing.lawful import PlanAndExecute, Planner
from tests.testing.zoo.zoo import Member

TASKS: list[asyncio.Task[None]] = []


@frozen(kw_only=True)
class DropsExecutions(ToolCallingDriver):
    """Breaks law 2: calls leave no trace in the conversation."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        draft.calls, draft.parts = (
            None,
            tuple(part for part in draft.parts or () if not hasattr(part, "arguments_json")),
        )
        del outcome
        return super().finish(draft, None)


@frozen(kw_only=True)
class SmugglesBareCalls(ToolCallingDriver):
    """Breaks law 2: calls stay in the conversation as opaque parts, without executions."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple(
            ProviderPart("openai-chat", to_plain(part)) if hasattr(part, "arguments_json") else part for part in parts
        )


@frozen(kw_only=True)
class MutatesState(ToolCallingDriver):
    """Breaks law 3: the driver changes the state that is passed to it."""

    async def use_tools(self, state: AgentState) -> AgentState:
        after = await super().use_tools(state)
        object.__setattr__(state, "execution_count", state.execution_count + 1)
        return after


@frozen(kw_only=True)
class CallsModelTwice(ToolCallingDriver):
    """Breaks law 5: the driver makes more inferences than it declares."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        await self.infer(draft, self.request(draft, messages))
        return await super().decide(draft, messages)


@frozen(kw_only=True)
class IgnoresLimits(ToolCallingDriver):
    """Breaks law 5: the driver exceeds a limit by performing several steps in one."""

    async def use_tools(self, state: AgentState) -> AgentState:
        after = await super().use_tools(state)
        while after.last_step is not None and after.last_step.executions:
            after = await super().use_tools(after)
        return after


@frozen(kw_only=True)
class CountsNoRequests(ToolCallingDriver):
    """Breaks law 5: the tokens of a request are counted, and the request is not."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        draft.ledger.inferences = 0
        return super().finish(draft, outcome)


@frozen(kw_only=True)
class CountsUnknownAsZero(ToolCallingDriver):
    """Breaks law 6: unknown token counts become zero."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        draft.ledger.usage = evolve(draft.usage, input_tokens=draft.usage.input_tokens or 0, output_tokens=0)
        return super().finish(draft, outcome)


@frozen(kw_only=True)
class EmitsTwice(ToolCallingDriver):
    """Breaks law 7: the event of a response is emitted twice."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        if self.events.due(InferenceResponseReceived) and draft.response is not None:
            await self.events.emit(InferenceResponseReceived(self.events.head(draft.state), draft.response))
        return parts


class Counter:
    """A counter that broken drivers share between executions."""

    value = 0


@frozen(kw_only=True)
class CreatesIds(ToolCallingDriver):
    """Breaks law 8: ids do not come from the loop's source of ids."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        Counter.value += 1
        draft.id = f"mine_{Counter.value}"
        return super().finish(draft, outcome)


class Shared:
    """State that a broken driver shares between executions."""

    messages: tuple[Message, ...] = ()


@frozen(kw_only=True)
class MixesExecutions(ToolCallingDriver):
    """Breaks law 9: the state of one execution leaks into another."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        previous, Shared.messages = Shared.messages, draft.state.messages
        after = super().finish(draft, outcome)
        return after.with_metadata(seen=len(previous), by=draft.state.agent_id) if previous else after


@frozen(kw_only=True)
class ChangesFirstMessage(ToolCallingDriver):
    """Breaks law 13: the first message of the request changes with every step."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        changed = state.with_messages([Message.system(f"step {state.step_count}"), *state.messages])
        return super().compile(evolve(changed, execution=state.execution))


@frozen(kw_only=True)
class SendsLastMessages(ToolCallingDriver):
    """Breaks law 13: to save tokens, a request has the last two messages alone, and no epoch is announced."""

    def request(self, draft: StepDraft, messages: Sequence[Message]) -> InferenceRequest:
        request = super().request(draft, messages)
        return request.with_messages(request.messages[-2:])


@frozen(kw_only=True)
class LeaksTask(ToolCallingDriver):
    """Breaks law 19: a task is still running after the execution."""

    async def use_tools(self, state: AgentState) -> AgentState:
        TASKS.append(asyncio.create_task(_forever()))
        return await super().use_tools(state)


async def _forever() -> None:
    await asyncio.Event().wait()


@frozen(kw_only=True)
class CompilesForEachMessage(ToolCallingDriver):
    """Breaks law 20: the conversation is compiled again for each of its messages."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return [super(CompilesForEachMessage, self).compile(state)[index] for index in range(len(state.messages))]


@frozen(kw_only=True)
class SwapsCalls(ToolCallingDriver):
    """Breaks law 1: the calls of the model are made in another order."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        return tuple(reversed(await super().decide(draft, messages)))


@frozen(kw_only=True)
class WritesIntoMetadata(ToolCallingDriver):
    """Breaks law 3: the driver writes into a mapping of the state, behind the back of its class."""

    async def use_tools(self, state: AgentState) -> AgentState:
        dict.__setitem__(state.context.metadata, "steps", state.step_count)
        return await super().use_tools(state)


@frozen(kw_only=True)
class WritesIntoDependencies(ToolCallingDriver):
    """Breaks law 3: the driver writes into what the program has passed for its tools."""

    async def use_tools(self, state: AgentState) -> AgentState:
        if isinstance(self.scope.dependencies, dict):
            self.scope.dependencies["steps"] = state.step_count
        return await super().use_tools(state)


@frozen(kw_only=True)
class ForgesOutcomes(ToolCallingDriver):
    """Breaks law 10: the outcomes of calls are made better than they were."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        if outcome is not None:
            outcome = evolve(outcome, executions=tuple(each.with_value("all is well") for each in outcome.executions))
        return super().finish(draft, outcome)


@frozen(kw_only=True)
class IgnoresDecisions(ToolCallingDriver):
    """Breaks law 16: calls that were decided are executed as if nobody had decided."""

    async def _settle_pending(self, state: AgentState, turn: SuspendedTurn) -> AgentState:
        calls = evolve(ready_calls(turn), decisions={})
        outcome = await self.executor.execute_tools(calls, state)
        executions = {execution.key: execution for execution in outcome.executions}
        settled = turn.with_settled(executions, {call.key: call for call in outcome.pending})
        step = outcome.state.last_step
        assert step is not None
        message = None if settled.pending else settled.message()
        return outcome.state.with_last_step(
            evolve(step, open_turn=settled if settled.pending else None, message=message)
        )


@frozen(kw_only=True)
class ForgetsBegunCalls(IgnoresDecisions):
    """Breaks law 16: a tool that has suspended its call begins anew when it is resumed."""

    async def _settle_pending(self, state: AgentState, turn: SuspendedTurn) -> AgentState:
        unbegun = tuple(evolve(slot, begun=False) if isinstance(slot, PendingCall) else slot for slot in turn.slots)
        return await ToolCallingDriver._settle_pending(self, state, evolve(turn, slots=unbegun))


@frozen(kw_only=True)
class LosesBatchOnError(ToolCallingDriver):
    """Breaks law 21: when an interceptor fails, the error of the driver has no state."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except StepInterrupted as interrupted:
            raise RuntimeError(str(interrupted)) from None


@frozen(kw_only=True)
class LosesBatchOnCancellation(ToolCallingDriver):
    """Breaks law 21: a cancellation leaves the driver without a state."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except asyncio.CancelledError:
            raise asyncio.CancelledError from None


@frozen(kw_only=True)
class LosesInterceptorState(ToolCallingDriver):
    """Breaks law 22: what interceptors change in the state during an inference is lost."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        before = draft.state
        parts = await super().decide(draft, messages)
        draft.state = before
        return parts


@frozen(kw_only=True)
class LosesStateOfBatch(ToolCallingDriver):
    """Breaks law 22: what interceptors change in the state during calls is lost."""

    async def execute(self, calls: ToolCalls, draft: StepDraft) -> ToolExecutions:
        return (await super().execute(calls, draft)).with_state(draft.state)


@frozen(kw_only=True)
class AddsMessages(ToolCallingDriver):
    """Breaks law 22: the driver says something in the name of the user."""

    async def use_tools(self, state: AgentState) -> AgentState:
        return (await super().use_tools(state)).with_message("Go on.")


@frozen(kw_only=True)
class StartsFresh(ToolCallingDriver):
    """Breaks law 38: each step begins without the signals that belong to it."""

    async def use_tools(self, state: AgentState) -> AgentState:
        after = await super().use_tools(state)
        return after.with_continuation_cleared() if after.last_step and after.last_step.executions else after


@frozen(kw_only=True)
class IgnoresToolChoice(ToolCallingDriver):
    """Breaks law 38: the request is built anew, with the choice that most models know."""

    def request(self, draft: StepDraft, messages: Sequence[Message]) -> InferenceRequest:
        return evolve(super().request(draft, messages), tool_choice=ToolChoice.auto())


@frozen(kw_only=True)
class IgnoresParallelToolCalls(ToolCallingDriver):
    """Breaks law 38: the request is built anew, without a setting that was added later."""

    def request(self, draft: StepDraft, messages: Sequence[Message]) -> InferenceRequest:
        return evolve(super().request(draft, messages), parallel_tool_calls=None)


@frozen(kw_only=True)
class HasItsOwnOptions(ToolCallingDriver):
    """Breaks law 38: the options of the program are replaced by others."""

    def request(self, draft: StepDraft, messages: Sequence[Message]) -> InferenceRequest:
        return super().request(draft, messages).with_options(InferenceOptions(temperature=0.0))


@frozen(kw_only=True)
class SwallowsCancellation(ToolCallingDriver):
    """Breaks law 34: a cancelled driver returns as if nothing had happened."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await super().use_tools(state)
        except asyncio.CancelledError as cancelled:
            carrier = StepInterrupted.find_in(cancelled)
            return state if carrier is None else carrier.state


@frozen(kw_only=True)
class BypassesPoints(ToolCallingDriver):
    """Breaks law 35: requests go to the model without passing the interceptors."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        response = await self.inference.infer(self.request(draft, messages))
        draft.add_response(response)
        return response.parts


@frozen(kw_only=True)
class PrefersRawAnswers(ToolCallingDriver):
    """Breaks law 35: the answer is used as the model gave it, whatever interceptors make of it."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        bare = await self.inference.infer(self.request(draft, messages))
        await super().decide(evolve(draft), messages)
        draft.add_response(bare)
        return bare.parts


@frozen(kw_only=True)
class AsksPlannerDirectly(PlanAndExecute):
    """Breaks law 35: the request for the plan goes to the planner without passing the interceptors."""

    async def plan(self, draft: StepDraft, messages: Sequence[Message]) -> str:
        return (await self.planner.infer(InferenceRequest(tuple(messages), "Make a plan."))).text


PLANS: list[str] = []


@frozen(kw_only=True)
class KeepsPlanInModule(PlanAndExecute):
    """Breaks law 9: the first plan is kept in the module, for all executions."""

    async def plan(self, draft: StepDraft, messages: Sequence[Message]) -> str:
        if not PLANS:
            PLANS.append(await super().plan(draft, messages))
        return PLANS[0]


def _planner(law: int, driver: type[PlanAndExecute]) -> Member:
    def make(examples: int) -> DriverKit:
        PLANS.clear()  # each kit begins as in a new process
        return DriverKit(
            lambda scenario: driver(scenario.inference(), planner=scenario.watch(Planner())),
            examples=examples,
            max_inferences_per_step=2,
        )

    return Member(driver, law, make)


@frozen(kw_only=True)
class DropsTextBesideCalls(ToolCallingDriver):
    """Breaks law 1: of an answer with text and calls, only the calls are kept."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple(part for part in parts if isinstance(part, ToolCall)) or parts


@frozen(kw_only=True)
class MakesEqualCallsOnce(ToolCallingDriver):
    """Breaks law 1: a call that an answer makes twice is made once."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        kept: dict[object, ResponsePart] = {}
        for place, part in enumerate(await super().decide(draft, messages)):
            is_call = isinstance(part, ToolCall)
            kept.setdefault((part.name, part.arguments_json) if isinstance(part, ToolCall) else (is_call, place), part)
        return tuple(kept.values())


@frozen(kw_only=True)
class ReportsLate(ToolCallingDriver):
    """Breaks law 7: an event of a step comes some seconds after its execution has ended."""

    async def use_tools(self, state: AgentState) -> AgentState:
        after = await super().use_tools(state)
        report = partial(emit_soon, self.events, EagerCallsDiscarded, state, None, ())
        asyncio.get_running_loop().call_later(3, report)
        return after


@frozen(eq=False)
class TriesAgain(ForwardingDriver):
    """Breaks law 21: a step that fails is taken once more, so that its error is lost."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await self.inner.use_tools(state)
        except Exception:  # noqa: BLE001  # the fault
            return await self.inner.use_tools(state)


@frozen(eq=False)
class GoesOnAfterErrors(ForwardingDriver):
    """Breaks law 21: what an interceptor raises in a step is swallowed, and the execution goes on."""

    async def use_tools(self, state: AgentState) -> AgentState:
        try:
            return await self.inner.use_tools(state)
        except StepInterrupted as interrupted:
            return interrupted.state


@frozen(kw_only=True)
class Apologizes(ToolCallingDriver):
    """Breaks law 23: an error of the model becomes an answer."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        try:
            return await super().decide(draft, messages)
        except InferenceError:
            return (Text("Sorry, something went wrong."),)


@frozen(kw_only=True)
class TakesEveryEndForNormal(ToolCallingDriver):
    """Breaks law 23: an answer that was cut off or filtered is used as one that is whole."""

    async def infer(
        self, draft: StepDraft, request: InferenceRequest, *, inference: CanInfer | None = None
    ) -> InferenceResponse:
        response = await super().infer(draft, request, inference=inference)
        draft.ledger.response = evolve(response, finish_reason=FinishReason.STOP)
        return draft.ledger.response


@frozen(kw_only=True)
class CutsAnswers(ToolCallingDriver):
    """Breaks law 35: of an answer, the first 500 characters are kept."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple(Text(part.text[:500]) if isinstance(part, Text) else part for part in parts)


@frozen(eq=False)
class KeepsItsLock(ForwardingDriver):
    """Breaks law 34: one step is taken at a time, and one that is cancelled keeps the lock."""

    lock: asyncio.Lock = field(factory=asyncio.Lock)

    async def use_tools(self, state: AgentState) -> AgentState:
        await self.lock.acquire()
        after = await self.inner.use_tools(state)
        self.lock.release()
        return after


@frozen(kw_only=True)
class PlansWithTheSameModel(PlanAndExecute):
    """Keeps no law in the kit, since it asks the model of the scenario for the plan, too."""


def _overasking(law: int) -> Member:
    def make(examples: int) -> DriverKit:
        def create(scenario: Scenario) -> PlansWithTheSameModel:
            model = scenario.inference()
            return PlansWithTheSameModel(model, planner=model)

        return DriverKit(create, examples=examples, max_inferences_per_step=2)

    return Member(PlansWithTheSameModel, law, make, works=False)


@frozen(kw_only=True)
class HidesUsedTools(ToolCallingDriver):
    """Breaks law 13: a tool is offered until it is used, so that each request begins anew."""

    def request(self, draft: StepDraft, messages: Sequence[Message]) -> InferenceRequest:
        request = super().request(draft, messages)
        used = {exchange.call.name for message in draft.state.messages for exchange in message.exchanges}
        return evolve(request, tools=tuple([each for each in request.tools if each.name not in used]))


@frozen(kw_only=True)
class TellsNobody(ToolCallingDriver):
    """Breaks law 7: what its model answers is on a bus of its own."""

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        return super().with_lifecycle(interceptor, EventBus())


@frozen(kw_only=True)
class SendsEverything(ToolCallingDriver):
    """Breaks law 38: the whole conversation is sent, whatever the compiler of the loop selects."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return state.messages


@frozen(kw_only=True)
class KeepsItsExecutor(ToolCallingDriver):
    """Breaks law 38: calls are executed by an executor of its own."""

    def with_tool_runtime(self, tools: Tools, executor: CanExecuteToolCalls) -> Self:
        return super().with_tool_runtime(tools, ToolExecutor().with_tools(tools))


@frozen(kw_only=True)
class CountsTokensElsewhere(ToolCallingDriver):
    """Breaks law 45: the event loop waits for the service that counts tokens."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        time.sleep(0.0001)  # noqa: ASYNC251  # the fault
        return await super().decide(draft, messages)


def _member(law: int, driver: type[ToolCallingDriver]) -> Member:
    def make(examples: int) -> DriverKit:
        return DriverKit(lambda scenario: driver(scenario.inference()), examples=examples)

    return Member(driver, law, make)


def _wrapper(law: int, driver: type[ForwardingDriver]) -> Member:
    def make(examples: int) -> DriverKit:
        return DriverKit(lambda scenario: driver(ToolCallingDriver(scenario.inference())), examples=examples)

    return Member(driver, law, make)


DRIVERS: tuple[Member, ...] = (
    _member(1, SwapsCalls),
    _overasking(1),
    _member(1, DropsTextBesideCalls),
    _member(1, MakesEqualCallsOnce),
    _member(2, DropsExecutions),
    _member(2, SmugglesBareCalls),
    _member(3, MutatesState),
    _member(3, WritesIntoMetadata),
    _member(3, WritesIntoDependencies),
    _member(5, CallsModelTwice),
    _member(5, IgnoresLimits),
    _member(5, CountsNoRequests),
    _member(6, CountsUnknownAsZero),
    _member(7, EmitsTwice),
    _member(7, ReportsLate),
    _member(7, TellsNobody),
    _member(8, CreatesIds),
    _member(9, MixesExecutions),
    _planner(9, KeepsPlanInModule),
    _member(10, ForgesOutcomes),
    _member(13, ChangesFirstMessage),
    _member(13, SendsLastMessages),
    _member(13, HidesUsedTools),
    _member(16, IgnoresDecisions),
    _member(16, ForgetsBegunCalls),
    _member(19, LeaksTask),
    _member(20, CompilesForEachMessage),
    _member(21, LosesBatchOnError),
    _member(21, LosesBatchOnCancellation),
    _wrapper(21, TriesAgain),
    _wrapper(21, GoesOnAfterErrors),
    _member(22, LosesInterceptorState),
    _member(22, LosesStateOfBatch),
    _member(22, AddsMessages),
    _member(23, Apologizes),
    _member(23, TakesEveryEndForNormal),
    _member(34, SwallowsCancellation),
    _wrapper(34, KeepsItsLock),
    _member(35, BypassesPoints),
    _member(35, PrefersRawAnswers),
    _member(35, CutsAnswers),
    _planner(35, AsksPlannerDirectly),
    _member(38, StartsFresh),
    _member(38, IgnoresToolChoice),
    _member(38, IgnoresParallelToolCalls),
    _member(38, HasItsOwnOptions),
    _member(38, SendsEverything),
    _member(38, KeepsItsExecutor),
    _member(45, CountsTokensElsewhere),
)
