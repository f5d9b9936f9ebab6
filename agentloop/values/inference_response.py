"""What a model answered, in neutral form."""

from __future__ import annotations

from enum import StrEnum

from attrs import evolve, field, frozen

from agentloop.values.message import ResponsePart, as_response_parts
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_call import ToolCall
from agentloop.values.usage import Usage
from agentloop.values.value import Value


class FinishReason(StrEnum):
    """Why a model stopped writing."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"
    OTHER = "other"
    UNKNOWN = "unknown"


@frozen(eq=False, repr=False)
class InferenceResponse(Value):
    """One answer of a model. Only a response holds bare calls; a driver joins each to its execution.

    Attributes:
        parts: text, reasoning, tool calls and provider parts in the order they came.
        finish_reason: why the model stopped, in common words.
        usage: tokens of this one inference.
        model: the model that answered, as the provider names it.
        id: the provider's id of the answer.
        provider_finish_reason: why the model stopped, in the provider's own word; None when it gave none.
        problem: what keeps the answer from being read as calls or as an answer, in words for the model; empty when nothing does.
        wants_to_continue: whether the model has neither called a tool nor answered, but wants to think on.
    """

    parts: tuple[ResponsePart, ...] = field(converter=as_response_parts)
    finish_reason: FinishReason = field(default=FinishReason.STOP, converter=FinishReason)
    usage: Usage = Usage()  # noqa: RUF009  # immutable
    model: str = ""
    id: str = ""
    provider_finish_reason: str | None = None
    problem: str = ""
    wants_to_continue: bool = False

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join([part.text for part in self.parts if type(part) is Text])

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined."""
        return "".join([part.text for part in self.parts if type(part) is Reasoning])

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls, in order."""
        return tuple([part for part in self.parts if type(part) is ToolCall])

    def with_parts(self, *parts: ResponsePart) -> InferenceResponse:
        """Return the response with other parts."""
        return evolve(self, parts=parts)

    def with_text(self, text: str) -> InferenceResponse:
        """Return the response with its text parts replaced by this one, where the first of them stood, or at the front."""
        before: list[ResponsePart] = []
        after: list[ResponsePart] = []
        seen = False
        for part in self.parts:
            if type(part) is Text:
                seen = True
            else:
                (after if seen else before).append(part)
        if not seen:
            before, after = [], before
        return evolve(self, parts=(*before, Text(text), *after))
