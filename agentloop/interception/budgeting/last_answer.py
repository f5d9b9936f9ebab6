"""The last answer of an execution that comes near a limit."""

from __future__ import annotations

from agentloop.values.inference_request import InferenceRequest, ToolChoice
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.message import Message
from agentloop.values.tool_call import ToolCall

NOTICE = (
    "This is your last answer: the budget of this task is nearly used up, and no more tools can be called. Answer now with "
    "what you have found so far, and say what is left undone."
)
"""What a model is told with the last request; it is not part of the conversation."""


def last_request(request: InferenceRequest) -> InferenceRequest:
    """Return the request without tools, with the notice at its end."""
    told = request.with_messages(*request.messages, Message.user(NOTICE))
    return told.with_tools().with_tool_choice(ToolChoice.none())


def last_response(response: InferenceResponse) -> InferenceResponse:
    """Return the answer without calls that it makes all the same, if there is anything else in it."""
    if not response.text or not response.tool_calls:
        return response
    return response.with_parts(*[part for part in response.parts if not isinstance(part, ToolCall)])
