"""Responses and calls that cannot be used: why, and how the model is called again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

from attrs import evolve, frozen

from agentloop import events as event_classes
from agentloop.contracts.can_accept import OutputCheck
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_use_mode import BESIDE_CALLS, CanUseMode
from agentloop.contracts.tools import Tools
from agentloop.drivers.driver import InferenceExchange
from agentloop.errors import InvalidOutput, MalformedArguments, ToolError
from agentloop.events.bus import emit
from agentloop.tools.fitting import comparable_arguments, fit_call
from agentloop.values.batches import ToolCalls
from agentloop.values.bounds import Bounds
from agentloop.values.inference import FinishReason, InferenceRequest, InferenceResponse, ToolChoice
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.labels import CLEAN
from agentloop.values.messages import REJECTED_ANSWER, Message, Part, ResponsePart
from agentloop.values.parts import ProviderPart, Text
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import (
    Effect,
    ErrorInfo,
    ToolCall,
    ToolExchange,
    ToolExecution,
    ToolSpec,
    ToolStatus,
    parse_arguments,
)
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Rejection(Value):
    """Why a response cannot be used.

    Attributes:
        problem: why it cannot be parsed; empty if it can.
        call_errors: for each of its calls, why it cannot be executed; empty for a valid call.
        output_error: why it is not a valid final answer; empty if it is one, or is none.
    """

    problem: str = ""
    call_errors: tuple[str, ...] = ()
    output_error: str = ""

    @property
    def messages(self) -> tuple[str, ...]:
        """The errors of the output or of the calls."""
        if self.output_error:
            return (self.output_error,)
        return tuple([error for error in self.call_errors if error])


ResponseCheck: TypeAlias = Callable[[InferenceResponse], Rejection | Awaitable[Rejection | None] | None]
"""Returns why a response cannot be used, or None; a coroutine function may do so, too."""


def check_response(
    response: InferenceResponse, tools: Sequence[ToolSpec], mode: CanUseMode, output_check: OutputCheck | None = None
) -> Rejection | None:
    """Return why a response cannot be used, or None.

    Args:
        response: the response.
        tools: the tools on offer.
        mode: the mode in which the model was called. Calls are checked only in a mode that retries invalid calls.
        output_check: the check of final answers, if they have a type.
    """
    # In a mode without retries, the executor rejects invalid calls, and a text that is too long to be read is an error.
    if response.problem and (mode.reprompts or not response.exceeded):
        return Rejection(response.problem)
    calls = response.tool_calls
    if calls:
        errors = tuple([mode.validate(call, tools).error_message for call in calls]) if mode.reprompts else ()
        return Rejection(call_errors=errors) if any(errors) else None
    return None if response.wants_to_continue else check_output(response, output_check)


_MALFORMED_CALL = "it contains a function call that could not be read"


def check_end(response: InferenceResponse) -> Rejection | None:
    """Return that a response holds nothing but an error of the model, such as a malformed call; it is asked for once more."""
    if response.finish_reason is not FinishReason.ERROR or response.text or response.tool_calls:
        return None
    return Rejection(response.problem or _MALFORMED_CALL)


_EMPTY = "it is empty: it has neither a text nor a call of a tool; write the text of the answer, or call a tool"
# These ends say why there is no text: the same request would end in the same way, or `check_end` has it sent once more.
_EXPLAINED_ENDS = frozenset({FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.ERROR})
# What services call a medium that a model has made, in the parts that only they understand.
_MADE_MEDIA = frozenset({"inlineData", "fileData", "image_generation_call"})


def _check_empty(response: InferenceResponse) -> Rejection | None:
    """Return that a response has nothing to show, such as blank text or reasoning alone."""
    if response.text.strip() or response.finish_reason in _EXPLAINED_ENDS:
        return None
    return None if any(_is_medium(part) for part in response.parts) else Rejection(_EMPTY)


def _is_medium(part: ResponsePart) -> bool:
    if not isinstance(part, ProviderPart) or not isinstance(part.payload, Mapping):
        return False
    return not _MADE_MEDIA.isdisjoint({*part.payload, part.payload.get("type")})


def missing_call(exchanges: Sequence[InferenceExchange], response: InferenceResponse) -> str:
    """Return that an answer takes the place of a call which its request requires; empty if it does not.

    Args:
        exchanges: the requests of the step, the one that the response answers last.
        response: the response.
    """
    request = exchanges[-1].request if exchanges else None
    if request is None or not request.tool_choice.is_forced or not request.tools:
        return ""
    if response.tool_calls or response.wants_to_continue or response.finish_reason.is_incomplete:
        return ""
    choice = request.tool_choice
    required = f"of {choice.name!r}" if choice.kind == "specific" else "of a tool"
    return f"a call {required} is required, and it is an answer without one"


def reject_calls(calls: ToolCalls, exchanges: Sequence[InferenceExchange], tools: Sequence[ToolSpec]) -> ToolCalls:
    """Return the batch with the reasons why calls must not run: their request forbids them, or they were cut off.

    A driver may ask several models in a step, such as a planner and a judge. Each call is checked against the request of the
    response that contains it. A call that no response contains is checked against the last request to the driver's own model.

    Of several calls where the request allows one, the first may run.

    Args:
        calls: the calls of the step.
        exchanges: the requests of the step, at least one, each with its response.
        tools: the tools of the driver; an interceptor may have left out some of them in a request.
    """
    hidden: frozenset[str] = frozenset()
    rejections: dict[str, str] = {}
    answered: set[int] = set()
    for key, call in zip(calls.keys, calls.calls, strict=True):
        made = _exchange_of(call, exchanges)
        request, response = made.request, made.response
        unoffered = frozenset() if request.tools is tools else _names(tools) - _names(request.tools)
        hidden |= unoffered
        is_surplus = request.parallel_tool_calls is False and id(made) in answered
        answered.add(id(made))
        if is_surplus:
            rejections[key] = "only one call of an answer may run; make this call again, alone, if it is still needed"
        elif call.name in unoffered:
            rejections[key] = f"the tool {call.name!r} is not offered now; answer without it"
        elif not request.tool_choice.allows(call.name):
            rejections[key] = f"a call of {call.name!r} is not allowed now; {_describe_choice(request.tool_choice)}"
        elif response.finish_reason.is_incomplete and (reason := _cut_off(call, response)):
            rejections[key] = reason
    return evolve(calls, rejections=rejections, hidden=hidden) if rejections or hidden else calls


def _exchange_of(call: ToolCall, exchanges: Sequence[InferenceExchange]) -> InferenceExchange:
    """Return the exchange that a call is from; a driver may have changed the call, for example its id."""
    latest_first = exchanges[::-1]
    for is_from in (_is_same, _is_equal, _has_same_name):
        for exchange in latest_first:
            if any(is_from(call, other) for other in exchange.response.tool_calls):
                return exchange
    return next((exchange for exchange in latest_first if not exchange.is_other), latest_first[0])


def _is_same(call: ToolCall, other: ToolCall) -> bool:
    return call is other


def _is_equal(call: ToolCall, other: ToolCall) -> bool:
    return call == other


def _has_same_name(call: ToolCall, other: ToolCall) -> bool:
    return call.name == other.name


def _names(tools: Sequence[ToolSpec]) -> frozenset[str]:
    return frozenset([spec.name for spec in tools])


def _describe_choice(choice: ToolChoice) -> str:
    return f"call {choice.name!r} first" if choice.kind == "specific" else "answer without calling a tool"


def _cut_off(call: ToolCall, response: InferenceResponse) -> str:
    """Return why a call of an answer that did not end normally must not run; empty if it may."""
    ended = response.provider_finish_reason or response.finish_reason.value
    if response.finish_reason is not FinishReason.LENGTH:
        # The limit of tokens cuts off the end; what else ends an answer may concern all of it.
        return f"the answer did not end normally (finish reason {ended:.80}); make the call again if it is still needed"
    if _is_whole(call) and not (call is _last_part(response) and _is_empty_object(call)):
        return ""
    return f"the answer ended before this call was complete (finish reason {ended:.80}); make the call again, with all arguments"


def _last_part(response: InferenceResponse) -> ResponsePart | None:
    """Return the part in which the answer ended."""
    return next((part for part in reversed(response.parts) if not isinstance(part, ProviderPart)), None)


def _is_empty_object(call: ToolCall) -> bool:
    """Whether a call of a tool API has an empty object as its arguments.

    Gateways write that for a call whose arguments had not begun. A call without an id was written as text, which shows its end.
    """
    return bool(call.id) and call.arguments_json.strip() == "{}"


def _is_whole(call: ToolCall) -> bool:
    # Empty arguments count as an empty object, unless it is possible that the rest of them is missing.
    if not BESIDE_CALLS.issuperset(call.repairs) or call.arguments_json.strip() in {"", "null"}:
        return False
    try:
        parse_arguments(call.arguments_json)
    except MalformedArguments:
        return False
    return True


def check_output(response: InferenceResponse, output_check: OutputCheck | None) -> Rejection | None:
    """Return why a response is not a valid final answer, or None.

    Args:
        response: the response; it has no calls.
        output_check: the check of final answers, if they have a type. It decides whether an empty answer is one; answers without
            a type must not be empty.
    """
    if output_check is None:
        return _check_empty(response)
    try:
        output_check(response.text)
    except InvalidOutput as error:
        return Rejection(output_error=str(error))
    return None


def retry_request(request: InferenceRequest, response: InferenceResponse, rejection: Rejection) -> InferenceRequest:
    """Return the request that shows the model its response and why it was rejected; the conversation keeps neither."""
    # Appended to the same messages: the request extends the previous one, so that providers can cache it (law 13).
    if rejection.problem or rejection.output_error:
        # Providers refuse a blank text.
        shown = [part for part in response.parts if not isinstance(part, Text) or part.text.strip()]
        # The model has written it after what it has read, which the conversation says.
        answer = Message("assistant", [part for part in shown if not isinstance(part, ToolCall)], label=CLEAN)
        metadata = REJECTED_ANSWER if rejection.output_error else EMPTY_OBJECT
        problem = _CORRECTION.format(rejection.problem or rejection.output_error)
        correction = Message.user(problem, metadata=metadata, label=CLEAN)
        return request.with_messages([*request.messages, *((answer, correction) if answer.parts else (correction,))])
    # Valid calls are not executed either: the model repeats them together with the corrected ones.
    errors = iter(rejection.call_errors)
    parts: list[Part] = [
        ToolExchange(part, _rejected_execution(part, next(errors))) if isinstance(part, ToolCall) else part
        for part in response.parts
    ]
    return request.with_messages([*request.messages, Message("assistant", parts, label=CLEAN)])


async def emit_rejection(
    events: CanHandleEvents, state: AgentState, response: InferenceResponse, rejection: Rejection, *, attempt: int
) -> None:
    """Emit why a response was rejected.

    Args:
        events: the bus.
        state: the state of the step.
        response: the response.
        rejection: why it was rejected.
        attempt: the 1-based number of the response in its step.
    """
    if rejection.problem:
        await emit(events, event_classes.DecisionExtractionFailed, state, attempt, rejection.problem, response.text)
    else:
        await emit(events, event_classes.ValidationFailed, state, attempt, rejection.messages)


_CORRECTION = "Your answer was rejected: {}. Answer again in the required format."
_NOT_EXECUTED = "not executed, since another call of the same answer cannot be; make it again if it is still needed"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # a rejected call has no time; requests do not show it


def _rejected_execution(call: ToolCall, error: str) -> ToolExecution:
    """Return the execution that answers a call which no executor sees."""
    if error:
        status, info = ToolStatus.REJECTED, ErrorInfo("InvalidArguments", error)
    else:
        status, info = ToolStatus.CANCELLED, ErrorInfo("Cancelled", _NOT_EXECUTED)
    return evolve(ToolExecution.of(call, status, key="", id="", at=_EPOCH, error=info), label=CLEAN)


# --- repeated effects ------------------------------------------------------------------------------------------------

_MAX_RESULT_CHARACTERS = 2_000


def reject_repeated_effects(calls: ToolCalls, messages: Sequence[Message], tools: Tools, bounds: Bounds) -> ToolCalls:
    """Return the batch with the reason why a call must not run, if it repeats the last effect.

    A call is repeated if its tool has an effect, and the same tool with equal arguments has succeeded since the last message of the
    user, and nothing but pure calls have succeeded since then. A tool that is `repeatable` may be called again, and so may a tool
    that declares deduplication or a cache: they say which calls are the same. Equal calls of one answer are left to these.

    Args:
        calls: the calls of an answer, as they will be admitted.
        messages: the conversation before the answer.
        tools: the tools on offer.
        bounds: the bounds on the check of arguments.
    """
    # Most answers have no such call, and the conversation may be long.
    last = _last_effect(messages, tools) if any(_runs_once(call.name, tools) for call in calls.calls) else None
    if last is None or not last.succeeded or not _runs_once(last.name, tools):
        return calls
    repeated: dict[str, str] = {}
    for key, call in zip(calls.keys, calls.calls, strict=True):
        tool = tools.get(call.name)
        if tool is None or tool.effect is Effect.PURE or key in calls.rejections:
            continue  # it does not run, or changes nothing
        is_equal = _runs_equally(call, last.call, tool.spec, bounds)
        if is_equal:
            repeated[key] = _REASON.format(_shown(last))
        elif is_equal is not None:
            break  # the calls behind this one come after another effect
    return evolve(calls, rejections={**calls.rejections, **repeated}) if repeated else calls


def _last_effect(messages: Sequence[Message], tools: Tools) -> ToolExecution | None:
    """Return the outcome of the last call since a message of the user that changed something or failed; None if there is none."""
    for message in reversed(messages):
        if message.role != "assistant":
            return None
        for part in reversed(message.parts):
            if isinstance(part, ToolExchange) and _counts(part.execution, tools):
                return part.execution
    return None


def _counts(execution: ToolExecution, tools: Tools) -> bool:
    if not execution.succeeded:  # after a failure of any tool, the model may have a reason to call again
        return execution.may_have_run or execution.status in {ToolStatus.FAILED, ToolStatus.TIMED_OUT}
    tool = tools.get(execution.name)
    return tool is None or tool.effect is not Effect.PURE


def _runs_once(name: str, tools: Tools) -> bool:
    """Return whether a call of a tool must not run again directly after itself."""
    tool = tools.get(name)
    return tool is not None and tool.effect is Effect.EFFECT and not tool.policy.may_repeat


def _runs_equally(call: ToolCall, earlier: ToolCall, spec: ToolSpec, bounds: Bounds) -> bool | None:
    """Return whether the function gets equal values: after coercion, and with the defaults of what is left out.

    None for a call that will be rejected because of its arguments.
    """
    try:
        new = fit_call(call, spec, bounds)[1]
        if call.name != earlier.name:
            return False
        old = parse_arguments(earlier.arguments_json)
    except ToolError:
        return None
    return comparable_arguments(new, spec) == comparable_arguments(old, spec)


_REASON = "this call has run, with this result: {}. It was not run again; go on with the result, or call the tool with other arguments"


def _shown(execution: ToolExecution) -> str:
    text = execution.text or "the one above"
    return text if len(text) <= _MAX_RESULT_CHARACTERS else f"{text[:_MAX_RESULT_CHARACTERS]}…"
