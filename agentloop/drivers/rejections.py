"""Answers that cannot be used as they came: what is wrong with them, and how a model is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from attrs import frozen

from agentloop.contracts.can_accept import OutputCheck
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.drivers.driver import StepDraft
from agentloop.errors import InvalidOutput
from agentloop.events.inference import DecisionExtractionFailed, ValidationFailed
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.messages import Message, Part
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExchange, ToolExecution, ToolSpec, ToolStatus
from agentloop.values.value import Value

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_UNREADABLE = "Your answer cannot be used: {}. Answer again, in the form that you were told."


@frozen(eq=False, repr=False)
class Unusable(Value):
    """What is wrong with an answer.

    Attributes:
        problem: why it cannot be read at all; empty when it can.
        errors: for each of its calls why it cannot be executed; empty for one that can.
        output: why it has not the form of a final answer; empty when it has, or is none.
    """

    problem: str = ""
    errors: tuple[str, ...] = ()
    output: str = ""


def unusable(
    response: InferenceResponse, tools: Sequence[ToolSpec], mode: CanUseMode, check: OutputCheck | None = None
) -> Unusable | None:
    """Say what is wrong with an answer; None when it can be used.

    Args:
        response: the answer.
        tools: what it may call.
        mode: the mode that the model was asked in; calls are checked only in one that asks again for them.
        check: the check of final answers, if they have a form.
    """
    if mode.asks_again and response.problem:
        return Unusable(response.problem)
    calls = response.tool_calls
    if calls:
        errors = tuple([mode.validate(call, tools).error_message for call in calls]) if mode.asks_again else ()
        return Unusable(errors=errors) if any(errors) else None
    return None if response.wants_to_continue else refused_output(response, check)


def refused_output(response: InferenceResponse, check: OutputCheck | None) -> Unusable | None:
    """Say why an answer does not have the form that is asked of it."""
    if check is None:
        return None
    try:
        check(response.text)
    except InvalidOutput as error:
        return Unusable(output=str(error))
    return None


def asked_again(request: InferenceRequest, response: InferenceResponse, wrong: Unusable) -> InferenceRequest:
    """Return the request that shows a model its answer and what is wrong with it; neither becomes a part of the conversation."""
    if wrong.problem or wrong.output:
        said = Message.assistant(*[part for part in response.parts if not isinstance(part, ToolCall)])
        told = Message.user(_UNREADABLE.format(wrong.problem or wrong.output))
        return request.with_messages(*request.messages, *((said, told) if said.parts else (told,)))
    errors = iter(wrong.errors)
    parts: list[Part] = [
        ToolExchange(part, _not_executed(part, next(errors))) if isinstance(part, ToolCall) else part
        for part in response.parts
    ]
    return request.with_messages(*request.messages, Message.assistant(*parts))


def _not_executed(call: ToolCall, error: str) -> ToolExecution:
    """Make the outcome by which a call is answered that no executor sees."""
    told = ErrorInfo("InvalidArguments", error) if error else ErrorInfo("Cancelled", _BESIDE)
    status = ToolStatus.REJECTED if error else ToolStatus.CANCELLED
    return ToolExecution.of(call, status, key="", id="", at=_NEVER, error=told)


_BESIDE = "not executed, since another call of the same answer cannot be; make it again if it is still needed"


async def tell_unusable(
    events: CanHandleEvents, draft: StepDraft, response: InferenceResponse, wrong: Unusable, *, attempt: int
) -> None:
    """Emit what is wrong with an answer."""
    if wrong.problem:
        if events.due(DecisionExtractionFailed):
            head = events.head(draft.state)
            await events.emit(DecisionExtractionFailed(head, attempt, wrong.problem, response.text))
    elif events.due(ValidationFailed):
        problems = (wrong.output,) if wrong.output else tuple([error for error in wrong.errors if error])
        await events.emit(ValidationFailed(events.head(draft.state), attempt, problems))
