"""The law suite of drivers: the package's drivers pass, and every broken one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve, frozen

from agentloop import AgentState, Message, ReActDriver, ToolCallingDriver
from agentloop.contracts import CanUseTools
from agentloop.drivers import StepDraft
from agentloop.events import InferenceResponseReceived
from agentloop.testing import NOTATIONS, DriverKit, LawViolation, Scenario
from agentloop.testing.scenario import VALID_SCENARIOS
from agentloop.values import ProviderPart, ResponsePart, ToolExecutions, to_plain

FACTORIES: dict[str, Callable[[Scenario], CanUseTools]] = {
    "tool calling": lambda scenario: ToolCallingDriver(scenario.inference()),
    "parsed": lambda scenario: ToolCallingDriver(scenario.inference(NOTATIONS["parsed"]), mode="parsed"),
    "scripted": lambda scenario: scenario.driver(),
    "react without validation": lambda scenario: ReActDriver(
        scenario.inference(NOTATIONS["react-json"]), output="json", validator=lambda *_: None
    ),
}
RETRYING: dict[str, Callable[[Scenario], CanUseTools]] = {
    "structured": lambda scenario: ToolCallingDriver(scenario.inference(NOTATIONS["structured"]), mode="structured"),
    "validated": lambda scenario: ToolCallingDriver(scenario.inference(NOTATIONS["validated"]), mode="validated"),
    "react in JSON": lambda scenario: ReActDriver(scenario.inference(NOTATIONS["react-json"]), output="json"),
    "react in text": lambda scenario: ReActDriver(
        scenario.inference(NOTATIONS["react-text"]), output="text", streaming=True
    ),
}

TASKS: list[asyncio.Task[None]] = []


@pytest.mark.parametrize("law", DriverKit.laws)
@pytest.mark.parametrize("name", FACTORIES)
def test_drivers_obey_the_laws(name: str, law: int) -> None:
    """Each driver obeys every law of its contract."""
    DriverKit(FACTORIES[name], examples=40).check(law)


@pytest.mark.parametrize("law", DriverKit.laws)
@pytest.mark.parametrize("name", RETRYING)
def test_drivers_that_retry_invalid_calls_obey_the_laws(name: str, law: int) -> None:
    """Each driver that asks the model again for invalid calls obeys every law in scenarios with valid calls."""
    DriverKit(RETRYING[name], examples=25, scenarios=VALID_SCENARIOS).check(law)


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
class CountsUnknownAsZero(ToolCallingDriver):
    """Breaks law 6: unknown token counts become zero."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        draft.usage = evolve(draft.usage, input_tokens=draft.usage.input_tokens or 0, output_tokens=0)
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


BROKEN: list[tuple[int, Any]] = [
    (2, DropsExecutions),
    (2, SmugglesBareCalls),
    (3, MutatesState),
    (5, CallsModelTwice),
    (5, IgnoresLimits),
    (6, CountsUnknownAsZero),
    (7, EmitsTwice),
    (8, CreatesIds),
    (9, MixesExecutions),
    (13, ChangesFirstMessage),
    (19, LeaksTask),
    (20, CompilesForEachMessage),
]


@pytest.mark.unmonitored
@pytest.mark.parametrize(("law", "driver"), BROKEN)
def test_a_broken_driver_violates_its_law(law: int, driver: Any) -> None:
    """The kit raises `LawViolation` with the number of the law that a driver breaks."""
    with pytest.raises(LawViolation) as violation:
        DriverKit(lambda scenario: driver(scenario.inference())).check(law)
    assert violation.value.law == law


def test_every_law_of_the_kit_has_a_driver_that_breaks_it() -> None:
    """Each check of the kit can fail."""
    assert {law for law, _ in BROKEN} == set(DriverKit.laws)
