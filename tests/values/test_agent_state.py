"""The state of an agent, its transitions and its accessors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import (
    ContractViolation,
    ExecutionError,
    ExecutionFailed,
    ExecutionStopped,
    ExecutionSuspended,
    NoOutput,
)
from agentloop.testing.strategies import messages
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import ResponseFormat, Usage
from agentloop.values.messages import Message
from agentloop.values.serialization import to_json
from agentloop.values.state import AgentContext, AgentState
from agentloop.values.steps import AgentStep, ExecutionStatus, SuspendedTurn
from agentloop.values.stop import NO_SIGNALS, Continuation, StopReason, StopSignal
from agentloop.values.time_and_ids import Clock, IdSource
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolStatus
from tests.generated import examples
from tests.strategies import agent_states, agent_steps, stop_signals

NOW = datetime(2024, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
CALL = ToolCall("c", "find")


class FixedClock(Clock):
    """Always returns the same time."""

    def now(self) -> datetime:
        return NOW

    def monotonic(self) -> float:
        return 0.0


class CountingIds(IdSource):
    """Returns `agent 1`, `agent 2` and so on."""

    def __init__(self) -> None:
        self.count = 0

    def new_id(self, kind: str) -> str:
        self.count += 1
        return f"{kind} {self.count}"


def state_in_execution() -> AgentState:
    """Return a state with an execution in progress."""
    return AgentState.start("hello", clock=FixedClock(), ids=CountingIds()).with_execution_started("run", NOW)


def step(**fields: Any) -> AgentStep:
    """Return a step."""
    return AgentStep(**{"id": "s", "number": 1, "started_at": NOW, "ended_at": LATER, **fields})


TRANSITIONS: dict[str, Callable[[AgentState], AgentState]] = {
    "context": lambda state: state.with_context(AgentContext("other")),
    "message": lambda state: state.with_message("more"),
    "messages": lambda state: state.with_messages([Message.user("other")]),
    "system prompt": lambda state: state.with_system_prompt("other"),
    "metadata": lambda state: state.with_metadata(seen=[1]),
    "extension": lambda state: state.with_extension("acme.notes", [1]),
    "response format": lambda state: state.with_response_format(ResponseFormat(name="other")),
    "output type": lambda state: state.with_output_type_format(ResponseFormat(name="other")),
    "output": lambda state: state.with_output(5),
    "execution": lambda state: state.with_execution_started("next", LATER),
    "step": lambda state: state.with_step(step(message=Message.assistant("done"))),
    "last step": lambda state: state.with_last_step(step(message=Message.assistant("done"))),
    "usage": lambda state: state.with_usage(Usage(1, 1)),
    "stop signal": lambda state: state.with_stop_signal(StopSignal(StopReason.ERROR)),
    "continuation": lambda state: state.with_continuation_requested(),
    "continuation of an earlier state": lambda state: state.with_continuation_of(
        state.with_stop_signal(StopSignal(StopReason.ERROR))
    ),
    "no continuation": lambda state: state.with_continuation_cleared(),
    "resumed": lambda state: state.with_execution_resumed(LATER),
    "status": lambda state: state.with_status(ExecutionStatus.FAILED, LATER),
}


@settings(max_examples=examples(20))
@given(agent_states())
def test_no_transition_changes_its_state(state: AgentState) -> None:
    """The state is equal before and after, whether the transition is legal or refused (law 3)."""
    before, text = to_json(state), repr(state)
    for transition in TRANSITIONS.values():
        with suppress(ContractViolation):
            assert isinstance(transition(state), AgentState)
        assert to_json(state) == before
        assert repr(state) == text


def test_every_transition_is_in_the_list() -> None:
    """A new `with_…` method has to be tested above."""
    methods = {name for name in dir(AgentState) if name.startswith("with_")}
    assert len(methods) == len(TRANSITIONS)


def test_a_new_agent_has_the_values_that_were_passed() -> None:
    """Message, prompt, id and time are set; no execution has started."""
    state = AgentState.start("hello", system_prompt="be kind", clock=FixedClock(), ids=CountingIds())
    assert state.messages == (Message.user("hello"),)
    assert state.context.system_prompt == "be kind"
    assert (state.agent_id, state.created_at, state.updated_at) == ("agent 1", NOW, NOW)
    assert (state.execution, state.execution_count, state.parent_agent_id) == (None, 0, None)
    assert AgentState.start(Message.system("x"), agent_id="mine").messages == (Message.system("x"),)
    assert AgentState.start(agent_id="mine").agent_id == "mine"
    assert AgentState.start().messages == ()
    assert AgentState.start().agent_id != AgentState.start().agent_id


def test_an_extension_survives_changes_by_the_user() -> None:
    """An extension belongs to its owner: metadata, another context and the transitions of the loop do not change it."""
    state = state_in_execution().with_extension("acme.notes", {"seen": [1]}).with_extension("acme.other", 2)
    for name in TRANSITIONS.keys() - {"extension", "last step"}:
        assert TRANSITIONS[name](state).extension("acme.notes") == {"seen": (1,)}
    assert TRANSITIONS["last step"](state.with_step(step())).extension("acme.notes") == {"seen": (1,)}
    assert state.with_extension("acme.notes", 3).extensions == {"acme.notes": 3, "acme.other": 2}
    assert state.with_extension("acme.notes", None).extensions == {"acme.other": 2}
    assert state.extension("acme.unknown") is None
    assert state.context.metadata == {}


def test_before_the_first_execution_there_is_nothing_to_tell() -> None:
    """Every accessor answers."""
    state = AgentState.start("hello")
    assert (state.status, state.execution_id, state.steps, state.step_count) == (ExecutionStatus.PENDING, "", (), 0)
    assert (state.last_step, state.final_response, state.final_text) == (None, None, None)
    assert (state.usage, state.tool_call_count) == (Usage.none(), 0)
    assert (state.stop_signal, state.errors, state.pending) == (None, (), ())
    assert state.has_final_response is False


@pytest.mark.parametrize(
    "transition", ["step", "last step", "stop signal", "continuation", "no continuation", "status"]
)
def test_transitions_of_an_execution_need_an_execution(transition: str) -> None:
    """A step before the first execution is refused, and the error names the remedy."""
    with pytest.raises(ContractViolation, match=r"no execution yet: pass it to AgentLoop\.execute"):
        TRANSITIONS[transition](AgentState.start("hello"))


def test_replacing_the_last_step_needs_a_step() -> None:
    """An execution that has just started has no step."""
    with pytest.raises(ContractViolation, match="no step yet"):
        TRANSITIONS["last step"](state_in_execution())


@settings(max_examples=examples(20))
@given(agent_states(), st.text(min_size=1, max_size=3))
def test_a_new_execution_starts_empty(state: AgentState, execution_id: str) -> None:
    """The count increases, the length of the history is stored, and steps, signals and totals of the last execution are gone."""
    after = state.with_execution_started(execution_id, LATER)
    assert after.execution is not None
    assert (after.execution_id, after.status) == (execution_id, ExecutionStatus.IN_PROGRESS)
    assert after.execution_count == state.execution_count + 1
    assert after.execution.history_length == len(state.messages)
    assert (after.steps, after.usage, after.tool_call_count, after.stop_signal) == ((), Usage.none(), 0, None)
    assert (after.execution.started_at, after.execution.ended_at, after.updated_at) == (LATER, None, LATER)
    assert after.context == state.context


@given(st.lists(agent_steps(), max_size=3))
def test_steps_are_added_with_their_messages_and_sums(steps: list[AgentStep]) -> None:
    """The conversation grows by each step's message, the totals are running sums over the steps."""
    state = state_in_execution()
    for item in steps:
        state = state.with_step(item)
    assert state.steps == tuple(steps)
    assert state.step_count == len(steps)
    assert state.messages[1:] == tuple(item.message for item in steps if item.message is not None)
    assert state.usage == sum([item.usage for item in steps], Usage.none())
    calls = [call for item in steps for execution in item.executions for call in (execution, *execution.inner)]
    assert state.tool_call_count == len(calls) + sum(len(item.pending) for item in steps)
    assert state.errors == tuple(error for item in steps for error in item.errors)
    assert state.updated_at == (steps[-1].ended_at if steps else NOW)


def test_a_suspended_turn_adds_its_message_when_it_ends() -> None:
    """While calls are pending there is no message; afterwards it is added once, and the calls are counted once."""
    suspended = step(open_turn=SuspendedTurn([CALL], [PendingCall("run/1/0", CALL)]))
    state = state_in_execution().with_step(suspended)
    assert (len(state.messages), state.tool_call_count, len(state.pending)) == (1, 1, 1)
    outcome = ToolExecution(id="e", key="run/1/0", call=CALL, status=ToolStatus.SUCCEEDED, started_at=NOW, ended_at=NOW)
    message = Message.of_response([CALL], [outcome])
    settled = state.with_last_step(evolve(suspended, open_turn=None, message=message))
    assert settled.messages[1:] == (message,)
    assert (settled.step_count, settled.tool_call_count, settled.pending) == (1, 1, ())
    noted = evolve(settled.steps[-1], model="another")
    assert settled.with_last_step(noted).messages == settled.messages
    assert settled.with_last_step(noted).last_step == noted


def test_the_answer_is_the_message_of_a_last_step_without_calls() -> None:
    """Calls, errors and suspended turns are not an answer."""
    done, failed = Message.assistant("done"), ErrorInfo("ValueError", "no")
    outcome = ToolExecution(id="e", key="k", call=CALL, status=ToolStatus.FAILED, started_at=NOW, ended_at=NOW)
    answered = state_in_execution().with_step(step(message=done))
    assert (answered.final_response, answered.final_text, answered.has_final_response) == (done, "done", True)
    for other in (
        step(message=Message.of_response([CALL], [outcome])),
        step(message=done, errors=[failed]),
        step(open_turn=SuspendedTurn([CALL], [PendingCall("k", CALL)])),
    ):
        state = answered.with_step(other)
        assert (state.final_response, state.final_text, state.has_final_response) == (None, None, False)


@settings(max_examples=examples(20))
@given(agent_states(), stop_signals())
def test_signals_and_requests_last_until_the_next_step(state: AgentState, signal: StopSignal) -> None:
    """They accumulate within a step and are cleared together."""
    state = state.with_execution_started("run", NOW)
    state_with_request = state.with_stop_signal(signal).with_continuation_requested()
    assert state_with_request.execution is not None
    assert state_with_request.execution.continuation == Continuation((signal,), True)  # noqa: FBT003  # the field is named `requested`
    assert state_with_request.stop_signal == signal
    cleared = state_with_request.with_continuation_cleared()
    assert cleared.execution is not None
    assert cleared.execution.continuation == NO_SIGNALS
    assert cleared == state


@settings(max_examples=examples(20))
@given(agent_states(), messages())
def test_the_conversation_may_be_replaced(state: AgentState, message: Message) -> None:
    """Messages, prompt, metadata and response format change one at a time; the rest of the state is equal."""
    assert state.with_messages([message]).messages == (message,)
    assert state.with_message(message).messages == (*state.messages, message)
    assert state.with_message("text").messages[-1] == Message.user("text")
    assert state.with_metadata(x=1).context.metadata["x"] == 1
    form = ResponseFormat(name="form")
    assert state.with_response_format(form).context.response_format == form
    assert evolve(state.with_system_prompt("new"), context=state.context) == state


def test_only_a_completed_execution_passes_for_success() -> None:
    """Every other status raises its error, which has the state."""
    completed = state_in_execution().with_status(ExecutionStatus.COMPLETED, LATER)
    assert completed.raise_for_status() is completed
    raised: dict[ExecutionStatus, type[ExecutionError]] = {
        ExecutionStatus.FAILED: ExecutionFailed,
        ExecutionStatus.STOPPED: ExecutionStopped,
        ExecutionStatus.SUSPENDED: ExecutionSuspended,
        ExecutionStatus.IN_PROGRESS: ExecutionError,
        ExecutionStatus.PENDING: ExecutionError,
    }
    assert {*raised, ExecutionStatus.COMPLETED} == set(ExecutionStatus)
    for status, kind in raised.items():
        state = state_in_execution().with_status(status, LATER)
        with pytest.raises(ExecutionError) as caught:
            state.raise_for_status()
        assert type(caught.value) is kind
        assert caught.value.state is state


def test_a_failure_names_the_last_error() -> None:
    """The message of the error has the number of steps and the error of the last of them."""
    failed = state_in_execution().with_step(step(errors=[ErrorInfo("RateLimited", "slow down")]))
    with pytest.raises(ExecutionFailed) as caught:
        failed.with_status(ExecutionStatus.FAILED, LATER).raise_for_status()
    assert str(caught.value) == "execution run failed after 1 step: RateLimited: slow down"
    with pytest.raises(ExecutionFailed, match="failed after 0 steps: no error was recorded"):
        state_in_execution().with_status(ExecutionStatus.FAILED, LATER).raise_for_status()


def test_a_stop_names_the_limit_and_what_was_used() -> None:
    """The message of the error has the number of steps, the reason and the message of the signal."""
    signal = StopSignal(StopReason.TOKEN_LIMIT, "the limit of 10,000 tokens is reached: 10,412 used", "Budget")
    stopped = (
        state_in_execution().with_step(step()).with_stop_signal(signal).with_status(ExecutionStatus.STOPPED, LATER)
    )
    with pytest.raises(ExecutionStopped) as caught:
        stopped.raise_for_status()
    assert str(caught.value).startswith(
        "execution run was stopped after 1 step: token_limit (by Budget): the limit of 10,000 tokens is reached: 10,412 used"
    )


def test_a_state_without_an_answer_says_so() -> None:
    """The output raises an error with the status and the state; the text of the answer is None."""
    pending = AgentState.start("go", agent_id="a")
    with pytest.raises(NoOutput, match="no execution yet"):
        _ = pending.output
    running = pending.with_execution_started("run", NOW)
    with pytest.raises(NoOutput, match="execution run has no output, it is in_progress") as running_error:
        _ = running.output
    assert running_error.value.state is running
    failed = running.with_status(ExecutionStatus.FAILED, NOW)
    with pytest.raises(NoOutput) as error:
        _ = failed.output
    assert isinstance(error.value.__cause__, ExecutionFailed)
    assert (pending.final_text, running.final_text, failed.final_text) == (None, None, None)
