"""The law suite of drivers: ours pass, and each broken one is caught."""

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
from agentloop.testing import NOTATIONS, VALID_SCENARIOS, DriverKit, LawViolation, Scenario
from agentloop.values import ProviderPart, ResponsePart, ToolExecutions, to_plain

MAKERS: dict[str, Callable[[Scenario], CanUseTools]] = {
    "tool calling": lambda scenario: ToolCallingDriver(scenario.inference()),
    "parsed": lambda scenario: ToolCallingDriver(scenario.inference(NOTATIONS["parsed"]), mode="parsed"),
    "scripted": lambda scenario: scenario.driver(),
    "react, taking what cannot be executed": lambda scenario: ReActDriver(
        scenario.inference(NOTATIONS["react-json"]), output="json", validator=lambda *_: None
    ),
}
ASKING_AGAIN: dict[str, Callable[[Scenario], CanUseTools]] = {
    "structured": lambda scenario: ToolCallingDriver(scenario.inference(NOTATIONS["structured"]), mode="structured"),
    "validated": lambda scenario: ToolCallingDriver(scenario.inference(NOTATIONS["validated"]), mode="validated"),
    "react in JSON": lambda scenario: ReActDriver(scenario.inference(NOTATIONS["react-json"]), output="json"),
    "react in text": lambda scenario: ReActDriver(
        scenario.inference(NOTATIONS["react-text"]), output="text", streaming=True
    ),
}

TASKS: list[asyncio.Task[None]] = []


@pytest.mark.parametrize("law", DriverKit.laws)
@pytest.mark.parametrize("name", MAKERS)
def test_the_drivers_keep_the_laws(name: str, law: int) -> None:
    """Each driver keeps every law of its contract."""
    DriverKit(MAKERS[name], examples=40).check(law)


@pytest.mark.parametrize("law", DriverKit.laws)
@pytest.mark.parametrize("name", ASKING_AGAIN)
def test_the_drivers_that_ask_again_keep_the_laws(name: str, law: int) -> None:
    """So does each that asks again for what cannot be executed, when there is nothing to ask again for."""
    DriverKit(ASKING_AGAIN[name], examples=25, scenarios=VALID_SCENARIOS).check(law)


@frozen(kw_only=True)
class ForgetsExecutions(ToolCallingDriver):
    """Breaks law 2: calls leave no trace in the conversation."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        draft.calls, draft.parts = None, tuple(p for p in draft.parts or () if not hasattr(p, "arguments_json"))
        del outcome
        return super().finish(draft, None)


@frozen(kw_only=True)
class SmugglesBareCalls(ToolCallingDriver):
    """Breaks law 2: calls are kept as opaque parts, without executions."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple(ProviderPart("openai-chat", to_plain(p)) if hasattr(p, "arguments_json") else p for p in parts)


@frozen(kw_only=True)
class WritesIntoTheState(ToolCallingDriver):
    """Breaks law 3: the given state is changed."""

    async def use_tools(self, state: AgentState) -> AgentState:
        after = await super().use_tools(state)
        object.__setattr__(state, "execution_count", state.execution_count + 1)
        return after


@frozen(kw_only=True)
class AsksTwice(ToolCallingDriver):
    """Breaks law 5: the model is asked more often than declared."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        await self.infer(draft, self.request(draft, messages))
        return await super().decide(draft, messages)


@frozen(kw_only=True)
class DefeatsLimits(ToolCallingDriver):
    """Breaks law 5: goes on against a limit, by taking further steps inside of one."""

    async def use_tools(self, state: AgentState) -> AgentState:
        after = await super().use_tools(state)
        while after.last_step is not None and after.last_step.executions:
            after = await super().use_tools(after)
        return after


@frozen(kw_only=True)
class CountsNothing(ToolCallingDriver):
    """Breaks law 6: unknown tokens count as none."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        draft.usage = evolve(draft.usage, input_tokens=draft.usage.input_tokens or 0, output_tokens=0)
        return super().finish(draft, outcome)


@frozen(kw_only=True)
class TellsTwice(ToolCallingDriver):
    """Breaks law 7: a response is told twice."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        if self.events.due(InferenceResponseReceived) and draft.response is not None:
            await self.events.emit(InferenceResponseReceived(self.events.head(draft.state), draft.response))
        return parts


class Counter:
    """What broken drivers count across executions."""

    value = 0


@frozen(kw_only=True)
class DrawsItsOwnIds(ToolCallingDriver):
    """Breaks law 8: ids do not come from the source of the loop."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        Counter.value += 1
        draft.id = f"mine_{Counter.value}"
        return super().finish(draft, outcome)


class Shared:
    """What one broken driver shares between executions."""

    messages: tuple[Message, ...] = ()


@frozen(kw_only=True)
class MixesExecutions(ToolCallingDriver):
    """Breaks law 9: the state of one execution reaches another."""

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        previous, Shared.messages = Shared.messages, draft.state.messages
        after = super().finish(draft, outcome)
        return after.with_metadata(seen=len(previous), by=draft.state.agent_id) if previous else after


@frozen(kw_only=True)
class PutsAClockInFront(ToolCallingDriver):
    """Breaks law 13: what the model has seen changes with every step."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        with_clock = state.with_messages([Message.system(f"step {state.step_count}"), *state.messages])
        return super().compile(evolve(with_clock, execution=state.execution))


@frozen(kw_only=True)
class LeavesATask(ToolCallingDriver):
    """Breaks law 19: a task goes on after the execution."""

    async def use_tools(self, state: AgentState) -> AgentState:
        TASKS.append(asyncio.create_task(_forever()))
        return await super().use_tools(state)


async def _forever() -> None:
    await asyncio.Event().wait()


@frozen(kw_only=True)
class CompilesForEachMessage(ToolCallingDriver):
    """Breaks law 20: the conversation is compiled again for each of its messages."""

    def compile(self, state: AgentState) -> Sequence[Message]:
        return [super(CompilesForEachMessage, self).compile(state)[place] for place in range(len(state.messages))]


BROKEN: list[tuple[int, Any]] = [
    (2, ForgetsExecutions),
    (2, SmugglesBareCalls),
    (3, WritesIntoTheState),
    (5, AsksTwice),
    (5, DefeatsLimits),
    (6, CountsNothing),
    (7, TellsTwice),
    (8, DrawsItsOwnIds),
    (9, MixesExecutions),
    (13, PutsAClockInFront),
    (19, LeavesATask),
    (20, CompilesForEachMessage),
]


@pytest.mark.unmonitored
@pytest.mark.parametrize(("law", "make"), BROKEN)
def test_a_broken_driver_is_caught_by_its_law(law: int, make: Any) -> None:
    """A driver that breaks a law is refused, and the law is named."""
    with pytest.raises(LawViolation) as caught:
        DriverKit(lambda scenario: make(scenario.inference())).check(law)
    assert caught.value.law == law


def test_every_law_of_the_kit_has_a_driver_that_breaks_it() -> None:
    """No check of the kit is one that cannot fail."""
    assert {law for law, _ in BROKEN} == set(DriverKit.laws)
