"""The strategies that generate values: what they promise of every value holds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from agentloop.testing import strategies
from agentloop.values.inference import Usage
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep, ExecutionStatus, StepKind
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution, ToolStatus, parse_arguments
from tests import strategies as tests_strategies
from tests.generated import examples
from tests.strategies import agent_states, agent_steps

T = TypeVar("T")
PUBLIC = {
    name: strategy
    for module in (strategies, tests_strategies)
    for name, strategy in vars(module).items()
    if inspect.isfunction(strategy) and strategy.__module__ == module.__name__ and not name.startswith("_")
}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_strategy_is_documented_and_works_without_arguments(name: str) -> None:
    """A user calls it with nothing and gets values."""
    strategy = PUBLIC[name]
    assert strategy.__doc__
    assert seen(strategy(), lambda value: [type(value)], examples=5)


@settings(max_examples=examples(25))
@given(agent_states(max_steps=3))
def test_states_hang_together(state: AgentState) -> None:
    """Totals match the steps, keys follow from positions, times do not decrease, and suspended states have pending calls."""
    assert state.created_at <= state.updated_at
    assert (state.status is ExecutionStatus.SUSPENDED) is bool(state.pending)
    if state.execution is None:
        return
    assert state.usage == sum([step.usage for step in state.steps], Usage.none())
    calls = [call for step in state.steps for execution in step.executions for call in (execution, *execution.inner)]
    assert state.tool_call_count == len(calls) + sum(len(step.pending) for step in state.steps)
    assert [step.number for step in state.steps] == list(range(1, state.step_count + 1))
    last = state.created_at
    for step in state.steps:
        assert last <= step.started_at <= step.ended_at
        last = step.ended_at
        assert_step_hangs_together(step, state.execution_id)
    assert last == state.updated_at
    to_json(state)


def assert_step_hangs_together(step: AgentStep, execution_id: str) -> None:
    """Check the keys and times of one step."""
    slots: Any = step.open_turn.slots if step.open_turn is not None else step.executions
    for index, slot in enumerate(slots):
        assert slot.key == f"{execution_id}/{step.number}/{index}"
        if isinstance(slot, ToolExecution):
            assert step.started_at <= slot.started_at <= slot.ended_at <= step.ended_at


@given(strategies.tool_executions())
def test_executions_hang_together(execution: ToolExecution) -> None:
    """Exactly a success has no error, and nothing else has a value."""
    assert execution.succeeded is (execution.error is None)
    assert execution.succeeded or (execution.value, execution.content) == (None, None)
    assert execution.started_at <= execution.ended_at


@given(strategies.tool_calls(names=st.just("find")))
def test_calls_can_be_read(call: ToolCall) -> None:
    """Arguments are a JSON object, and names are from the requested set."""
    parse_arguments(call.arguments_json)
    assert call.name == "find"


def seen(
    strategy: SearchStrategy[T],
    kinds: Callable[[T], Iterable[object]],
    wanted: Iterable[object] | None = None,
    examples: int = 200,
) -> set[object]:
    """Return the kinds that come up among as many examples, or until all that are wanted have come up."""
    values: set[object] = set()

    def is_complete(value: T) -> bool:
        values.update(kinds(value))
        return wanted is not None and values.issuperset(wanted)

    with suppress(NoSuchExample):
        find(strategy, is_complete, settings=settings(max_examples=examples, phases=[Phase.generate]))
    return values


def test_everything_comes_up() -> None:
    """No status, no kind of step and no kind of part is left out."""
    with_execution = agent_states().filter(lambda state: state.execution is not None)
    assert seen(with_execution, lambda state: [state.status], ExecutionStatus) == set(ExecutionStatus)
    assert seen(agent_steps(), lambda step: [step.kind], StepKind) == set(StepKind)
    assert seen(strategies.tool_executions(), lambda execution: [execution.status], ToolStatus) == set(ToolStatus)
    parts = {Text, Image, Audio, Document, Reasoning, ProviderPart, ToolExchange}
    assert seen(strategies.messages(), lambda message: map(type, message.parts)) == parts


def test_steps_that_may_not_suspend_do_not() -> None:
    """The strategy can exclude pending calls."""
    assert seen(agent_steps(), lambda step: [bool(step.pending)], [True, False]) == {True, False}
    steps = agent_steps(may_suspend=False)
    assert seen(steps, lambda step: [bool(step.pending)], examples=examples(200)) == {False}
