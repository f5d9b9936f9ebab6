"""Hypothesis strategies for the values of agentloop, for tests of custom drivers, executors, interceptors and stores.

The generated values are valid: executions belong to their calls, keys follow from positions, totals are the sums over the steps,
and times never decrease. Text contains no lone surrogates.

    @given(state=agent_states())
    def test_my_store_loads_what_it_saved(state: AgentState) -> None:
        assert my_store.load(my_store.save(state)) == state
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import ParamSpec, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from agentloop.values.decisions import Answer, Approve, Decision, Deny, Edit, PendingCall
from agentloop.values.inference import (
    FinishReason,
    HostedTool,
    InferenceDelta,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    ResponseFormat,
    TokenLogprob,
    ToolChoice,
    Usage,
)
from agentloop.values.json import JsonObject, JsonValue, format_json, freeze, freeze_object
from agentloop.values.messages import Message, Part, ResponsePart
from agentloop.values.parts import URL_SCHEMES, Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.records import inner_key
from agentloop.values.state import AgentContext, AgentState
from agentloop.values.steps import AgentStep, ExecutionStatus, SuspendedTurn
from agentloop.values.stop import Continuation, StopReason, StopSignal
from agentloop.values.tool_calls import (
    ContentPart,
    Effect,
    ErrorInfo,
    ToolCall,
    ToolExchange,
    ToolExecution,
    ToolSpec,
    ToolStatus,
)

_EARLIEST, _LATEST = datetime(2000, 1, 1), datetime(2100, 1, 1)  # noqa: DTZ001  # st.datetimes takes naive bounds
_DURATIONS = st.timedeltas(timedelta(0), timedelta(hours=1))
_COUNTS = st.none() | st.integers(0, 10**9)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)
_SHORT = st.text(max_size=12)

P = ParamSpec("P")
T = TypeVar("T")


def _make_once(make: Callable[P, T]) -> Callable[P, T]:
    """Let a function return the same strategy each time: Hypothesis validates a strategy once, which takes longer than many draws."""
    return cast("Callable[P, T]", cache(make))


@_make_once
def json_values(*, max_leaves: int = 8) -> SearchStrategy[JsonValue]:
    """Immutable JSON values of any shape."""
    scalars = st.none() | st.booleans() | st.integers() | _FLOATS | _SHORT
    nested = st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_SHORT, inner, max_size=3),
        max_leaves=max_leaves,
    )
    return nested.map(freeze)


@_make_once
def json_objects(*, max_size: int = 3) -> SearchStrategy[JsonObject]:
    """Immutable JSON objects."""
    return st.dictionaries(_SHORT, json_values(max_leaves=4), max_size=max_size).map(freeze_object)


@_make_once
def moments() -> SearchStrategy[datetime]:
    """Aware datetimes in UTC, from 2000 to 2100."""
    return st.datetimes(_EARLIEST, _LATEST, timezones=st.just(UTC))


@_make_once
def usages() -> SearchStrategy[Usage]:
    """Token counts, each known or unknown."""
    return st.builds(Usage, _COUNTS, _COUNTS, _COUNTS, _COUNTS, _COUNTS, st.integers(0, 5))


@_make_once
def content_parts() -> SearchStrategy[ContentPart]:
    """Parts that a user or a tool can send to a model: text and media, by value and by reference."""
    data = {"media_type": st.sampled_from(["image/png", "audio/wav", "application/pdf"]), "data": st.binary(max_size=8)}
    path = st.text("ab/.-%é", min_size=1, max_size=8)
    url = {
        "url": st.builds("{}://{}".format, st.sampled_from(URL_SCHEMES), path),
        "name": _SHORT,
        "provider_data": json_objects(max_size=1),
    }
    media = [st.builds(kind, **data) | st.builds(kind, **url) for kind in (Image, Audio, Document)]
    files = [st.builds(kind, file_id=_SHORT) for kind in (Image, Audio, Document)]
    return st.one_of(_texts(), *media, *files)


@_make_once
def _texts() -> SearchStrategy[Text]:
    return st.builds(Text, _SHORT, provider_data=json_objects(max_size=1))


@_make_once
def _reasoning() -> SearchStrategy[Reasoning | ProviderPart]:
    reasoning = st.builds(Reasoning, _SHORT, provider_data=json_objects(max_size=1))
    return reasoning | st.builds(ProviderPart, _NAMES, json_values(max_leaves=3))


@_make_once
def tool_calls(*, names: SearchStrategy[str] = _NAMES) -> SearchStrategy[ToolCall]:
    """Calls of tools with these names. The arguments are a JSON object, with and without extra whitespace, or empty."""
    compact = json_objects().map(lambda value: format_json(value).decode())
    arguments = compact | compact.map(lambda text: f" {text.replace('{}', '{ }')}\n") | st.just("")
    return st.builds(ToolCall, _SHORT, names, arguments, provider_data=json_objects(max_size=1))


@_make_once
def error_infos() -> SearchStrategy[ErrorInfo]:
    """Errors as values."""
    return st.builds(ErrorInfo, st.sampled_from(["ToolFailed", "ToolTimedOut", "ValueError"]), _SHORT, _SHORT)


_RESULTS = st.none() | st.lists(content_parts(), max_size=2)


@st.composite
def tool_executions(
    draw: DrawFn,
    *,
    call: ToolCall | None = None,
    key: str = "execution/1/0",
    at: datetime | None = None,
    max_inner: int = 2,
) -> ToolExecution:
    """Executions of this call, or of any call, with every status: a success has a value and maybe content, others have an error.

    Some have calls inside, as those of programs do, at most `max_inner`.
    """
    status = draw(st.sampled_from(ToolStatus))
    succeeded = status is ToolStatus.SUCCEEDED
    started_at = at or draw(moments())
    return ToolExecution(
        id=draw(_NAMES),
        key=key,
        call=call or draw(tool_calls()),
        status=status,
        value=draw(json_values()) if succeeded else None,
        content=draw(_RESULTS) if succeeded else None,
        error=None if succeeded else draw(error_infos()),
        may_have_run=not succeeded and draw(st.booleans()),
        started_at=started_at,
        ended_at=started_at + draw(_DURATIONS),
        inner=[
            draw(tool_executions(key=inner_key(key, number), at=at, max_inner=0))
            for number in range(draw(st.integers(0, max_inner)) if max_inner else 0)
        ],
    )


@st.composite
def tool_exchanges(draw: DrawFn, *, key: str = "execution/1/0") -> ToolExchange:
    """Calls with their executions. Some calls ran with other arguments than the model's."""
    call = draw(tool_calls())
    executed = call.with_arguments(draw(json_objects())) if draw(st.booleans()) else call
    return ToolExchange(call, draw(tool_executions(call=executed, key=key)))


@_make_once
def messages() -> SearchStrategy[Message]:
    """Messages of every role, with all kinds of parts that the role may have."""
    content = st.lists(content_parts(), max_size=3)
    parts: SearchStrategy[Part] = content_parts() | _reasoning() | tool_exchanges()
    return st.one_of(
        st.builds(Message, st.just("user"), content, json_objects(max_size=1)),
        st.builds(Message, st.just("system"), st.lists(_texts(), max_size=2), json_objects(max_size=1)),
        st.builds(Message, st.just("assistant"), st.lists(parts, max_size=4), json_objects(max_size=1)),
    )


@_make_once
def tool_specs() -> SearchStrategy[ToolSpec]:
    """Tool specs with up to three scalar parameters."""
    types = st.sampled_from([{"type": name} for name in ("string", "integer", "number", "boolean")])
    schemas = st.dictionaries(_NAMES, types, max_size=3).map(lambda names: {"type": "object", "properties": names})
    egress = st.booleans() | st.lists(_NAMES, min_size=1, max_size=2)
    return st.builds(ToolSpec, _NAMES, _SHORT, schemas, st.sampled_from(Effect), egress=egress)


@_make_once
def response_formats() -> SearchStrategy[ResponseFormat]:
    """Response formats, with and without a schema."""
    schemas = st.none() | tool_specs().map(lambda spec: spec.parameters)
    return st.builds(ResponseFormat, schemas, _NAMES, st.booleans())


@_make_once
def hosted_tools() -> SearchStrategy[HostedTool]:
    """Tools that a provider runs itself."""
    search = st.builds(HostedTool.web_search, blocked_domains=st.lists(_NAMES, max_size=1))
    return search | st.just(HostedTool.code_execution()) | st.builds(HostedTool.of, _NAMES, json_objects(max_size=1))


@_make_once
def inference_options() -> SearchStrategy[InferenceOptions]:
    """Model, sampling and limits, each set or left to the provider."""
    return st.builds(
        InferenceOptions,
        model=st.none() | _NAMES,
        temperature=st.none() | st.floats(0, 2),
        top_p=st.none() | st.floats(0, 1),
        max_tokens=st.none() | st.integers(1, 10**6),
        stop=st.lists(_SHORT.filter(bool), max_size=2),
        seed=st.none() | st.integers(0, 2**31),
        reasoning_effort=st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh", "max"]),
        cache_prompt=st.booleans(),
        hosted_tools=st.lists(hosted_tools(), max_size=1),
        logprobs=st.booleans(),
        top_logprobs=st.none() | st.integers(0, 20),
        extra=json_objects(max_size=1),
    )


@_make_once
def inference_requests() -> SearchStrategy[InferenceRequest]:
    """Requests with messages, tools and options."""
    choices = st.sampled_from([ToolChoice.auto(), ToolChoice.required(), ToolChoice.none()])
    return st.builds(
        InferenceRequest,
        st.lists(messages(), max_size=3),
        _SHORT,
        st.lists(tool_specs(), max_size=2, unique_by=lambda spec: spec.name),
        choices | _NAMES.map(ToolChoice.specific),
        st.sampled_from([None, True, False]),
        st.none() | response_formats(),
        inference_options(),
    )


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
