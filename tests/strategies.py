"""Strategies for the values of whole executions, beside those of requests, which a kit uses and `agentloop.testing.strategies` has.

The generated values are valid: executions belong to their calls, keys follow from positions, totals are the sums over the steps,
and times never decrease. Text contains no lone surrogates.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from agentloop.testing.strategies import (
    _DURATIONS,
    _NAMES,
    _SHORT,
    _make_once,
    _reasoning,
    _texts,
    error_infos,
    json_objects,
    json_values,
    messages,
    moments,
    response_formats,
    tool_calls,
    tool_executions,
)
from agentloop.values.decisions import Answer, Approve, Decision, Deny, Edit, PendingCall
from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, TokenLogprob, Usage
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.state import AgentContext, AgentState
from agentloop.values.steps import AgentStep, ExecutionStatus, SuspendedTurn
from agentloop.values.stop import Continuation, StopReason, StopSignal
from agentloop.values.tool_calls import ToolCall, ToolExecution

_COUNTS = st.none() | st.integers(0, 10**9)


@_make_once
def usages() -> SearchStrategy[Usage]:
    """Token counts, each known or unknown."""
    return st.builds(Usage, _COUNTS, _COUNTS, _COUNTS, _COUNTS, _COUNTS, st.integers(0, 5))


@_make_once
def response_parts() -> SearchStrategy[ResponsePart]:
    """Parts of responses: text, reasoning and tool calls."""
    return _texts() | _reasoning() | tool_calls()


@_make_once
def inference_responses() -> SearchStrategy[InferenceResponse]:
    """Responses of a model."""
    reasons = st.sampled_from(FinishReason)
    parts = st.lists(response_parts(), max_size=4)
    logprobs = st.lists(token_logprobs(), max_size=2)
    return st.builds(InferenceResponse, parts, reasons, usages(), _SHORT, _SHORT, st.none() | _SHORT, logprobs=logprobs)


@_make_once
def token_logprobs() -> SearchStrategy[TokenLogprob]:
    """Log probabilities of tokens, with and without alternatives."""
    data = st.none() | st.binary(max_size=3)
    alternatives = st.builds(TokenLogprob, _SHORT, st.floats(-100, 0), data)
    return st.builds(TokenLogprob, _SHORT, st.floats(-100, 0), data, st.lists(alternatives, max_size=2))


@_make_once
def inference_deltas() -> SearchStrategy[InferenceDelta]:
    """Deltas of a streamed response."""
    kinds = st.sampled_from(["text", "reasoning", "tool_call", "arguments"])
    return st.builds(InferenceDelta, kinds, _SHORT, st.integers(0, 5), _SHORT, _SHORT, st.integers(1, 3))


@_make_once
def decisions() -> SearchStrategy[Decision]:
    """Decisions about a pending call, of every kind."""
    refusals = st.builds(Deny, _SHORT, _SHORT) | st.builds(Answer, json_values(), _SHORT)
    return st.builds(Approve, _SHORT) | st.builds(Edit, json_objects(), _SHORT) | refusals


@_make_once
def stop_signals() -> SearchStrategy[StopSignal]:
    """Stop signals with every reason."""
    return st.builds(StopSignal, st.sampled_from(StopReason), _SHORT, _SHORT, json_objects(max_size=1))


@_make_once
def continuations() -> SearchStrategy[Continuation]:
    """Stop signals, together with a request to continue or without one."""
    return st.builds(Continuation, st.lists(stop_signals(), max_size=3), st.booleans())


_RESPONSE_PARTS = st.lists(response_parts(), max_size=3)
_DECIDED = st.none() | decisions()


@st.composite
def open_turns(draw: DrawFn, *, prefix: str = "execution/1", at: datetime | None = None) -> SuspendedTurn:
    """Suspended turns: at least the last call is pending. The prefix of the keys is execution id and step number."""
    parts = [*draw(_RESPONSE_PARTS), draw(tool_calls())]
    calls = [part for part in parts if isinstance(part, ToolCall)]
    slots: list[ToolExecution | PendingCall] = []
    for index, call in enumerate(calls):
        key = f"{prefix}/{index}"
        if index == len(calls) - 1 or draw(st.booleans()):
            slots.append(PendingCall(key, call, draw(_SHORT), "", draw(_DECIDED), draw(st.booleans())))
        else:
            slots.append(draw(tool_executions(call=call, key=key, at=at)))
    return SuspendedTurn(parts, slots)


@st.composite
def _response_messages(draw: DrawFn, *, prefix: str, at: datetime) -> Message:
    parts = draw(_RESPONSE_PARTS)
    calls = enumerate(part for part in parts if isinstance(part, ToolCall))
    executions = [draw(tool_executions(call=call, key=f"{prefix}/{index}", at=at)) for index, call in calls]
    return Message.of_response(parts, executions)


_ERRORS = st.lists(error_infos(), max_size=1)
_DISCARDED_CALLS = st.lists(tool_calls(), max_size=1)
_FINISH_REASONS = st.none() | st.sampled_from(FinishReason)


@st.composite
def agent_steps(
    draw: DrawFn,
    *,
    number: int = 1,
    execution_id: str = "execution",
    at: datetime | None = None,
    may_suspend: bool = True,
) -> AgentStep:
    """Steps of every kind: final answers, tool executions, errors and, with `may_suspend`, suspended turns."""
    started_at = at or draw(moments())
    prefix = f"{execution_id}/{number}"
    is_suspended = may_suspend and draw(st.integers(0, 3)) == 0
    errors = () if is_suspended else tuple(draw(_ERRORS))
    has_response = not is_suspended and (not errors or draw(st.booleans()))
    return AgentStep(
        id=draw(_NAMES),
        number=number,
        message=draw(_response_messages(prefix=prefix, at=started_at)) if has_response else None,
        open_turn=draw(open_turns(prefix=prefix, at=started_at)) if is_suspended else None,
        response_id=draw(_SHORT),
        model=draw(_SHORT),
        finish_reason=draw(_FINISH_REASONS),
        usage=draw(usages()),
        errors=errors,
        discarded_calls=tuple(draw(_DISCARDED_CALLS)),
        started_at=started_at,
        ended_at=started_at + draw(_DURATIONS) + timedelta(hours=1),
    )


@_make_once
def agent_contexts() -> SearchStrategy[AgentContext]:
    """Contexts: system prompt, conversation, metadata and response format."""
    conversation = st.lists(messages(), max_size=3)
    return st.builds(AgentContext, _SHORT, conversation, json_objects(), st.none() | response_formats())


_SIGNALS = st.lists(stop_signals(), max_size=2)
_OPTIONAL_NAMES = st.none() | _NAMES


@st.composite
def agent_states(draw: DrawFn, *, max_steps: int = 2) -> AgentState:
    """States before, during and after an execution, with every status, built by the transitions that the loop uses."""
    at = draw(moments())
    state = AgentState(
        agent_id=draw(_NAMES),
        parent_agent_id=draw(_OPTIONAL_NAMES),
        context=draw(agent_contexts()),
        extensions=draw(json_objects(max_size=2)),
        created_at=at,
        updated_at=at,
    )
    if draw(st.integers(0, 3)) == 0:
        return state
    state = state.with_execution_started(draw(_NAMES), at)
    count = draw(st.integers(0, max_steps))
    for number in range(1, count + 1):
        # Only the last step can be suspended.
        step = agent_steps(
            number=number, execution_id=state.execution_id, at=state.updated_at, may_suspend=number == count
        )
        state = state.with_step(draw(step))
    for signal in draw(_SIGNALS):
        state = state.with_stop_signal(signal)
    if draw(st.booleans()):
        state = state.with_continuation_requested()
    others = [status for status in ExecutionStatus if status is not ExecutionStatus.SUSPENDED]
    status = ExecutionStatus.SUSPENDED if state.pending else draw(st.sampled_from(others))
    return state.with_status(status, state.updated_at)
