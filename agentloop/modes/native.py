"""The mode that uses the provider's tool API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from attrs import evolve, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.modes.calls import validate_call
from agentloop.values.inference import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ResponseFormat,
    ToolChoice,
)
from agentloop.values.json import format_json, freeze_object, parse_json
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Text
from agentloop.values.tool_calls import Effect, ToolCall, ToolSpec

ANSWER_TOOL = "give_final_answer"
"""The name of the tool with which a model gives a structured answer if its API enforces no schema for answers."""


@frozen(kw_only=True)
class NativeMode(CanUseMode):
    """The provider's tool API.

    Attributes:
        output: how an answer gets its requested form: `format` uses the provider's response format; `tool` offers a tool whose
            arguments are the answer, for models whose API enforces no schema for answers.
        reprompts: False: the provider's API does not produce calls that cannot be read.
        streams_calls: True: the provider separates calls from text also in its streams.
    """

    reprompts: ClassVar[bool] = False
    streams_calls: ClassVar[bool] = True

    output: Literal["format", "tool"] = "format"

    @property
    def name(self) -> str:
        """`native`."""
        return "native"

    @property
    def translates(self) -> bool:
        """Whether answers are given with a tool."""
        return self.output == "tool"

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request; if a form is requested and answers are given with a tool, with that tool instead."""
        if not self._answers_with_tool(request):
            return request
        # The answer is a tool call, too, so the model must always call a tool.
        choice = ToolChoice.required() if request.tool_choice.kind in {"auto", "required"} else request.tool_choice
        if choice.kind == "none":
            choice = ToolChoice.specific(ANSWER_TOOL)
        spec = _answer_tool(request.response_format)
        return evolve(request, tools=(*request.tools, spec), tool_choice=choice, response_format=None)

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with a call of the answer tool as its text. Next to other calls, that call is dropped."""
        if not self._answers_with_tool(request):
            return response
        answers = [call for call in response.tool_calls if call.name == ANSWER_TOOL]
        if not answers:
            return response
        remaining = [part for part in response.parts if part not in answers]
        # An answer that does not wait for the results of the other calls is premature.
        if any(isinstance(part, ToolCall) for part in remaining):
            return evolve(response, parts=remaining)
        parts: list[ResponsePart] = [part for part in remaining if not isinstance(part, Text)]
        text = _answer_text(answers[0].arguments_json, request.response_format)
        reason = response.finish_reason
        # An answer that was cut off remains one.
        return evolve(
            response, parts=(*parts, Text(text)), finish_reason=reason if reason.is_incomplete else FinishReason.STOP
        )

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that emits every delta; the arguments of the answer tool become the answer's text."""
        return _AnswerToolStream(is_active=self._answers_with_tool(request))

    def _answers_with_tool(self, request: InferenceRequest) -> bool:
        return self.output == "tool" and request.response_format is not None


class _AnswerToolStream(ModeStream):
    """Emits all deltas except those of the answer tool, whose arguments follow as text at the end."""

    def __init__(self, *, is_active: bool) -> None:
        self._is_active = is_active
        self._answer_indexes: set[int] = set()

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return the delta unless it belongs to the answer tool."""
        if not self._is_active:
            return [delta]
        if delta.kind == "tool_call" and delta.name == ANSWER_TOOL:
            self._answer_indexes.add(delta.index)
        is_answer = delta.kind in {"tool_call", "arguments"} and delta.index in self._answer_indexes
        return [] if is_answer else [delta]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the answer if it was given with the tool."""
        is_answer = self._answer_indexes and not response.tool_calls
        return [InferenceDelta("text", response.text)] if is_answer else []


_VALUE = "answer"
"""The parameter of the answer tool for an answer that is not an object."""


def _answer_tool(response_format: ResponseFormat | None) -> ToolSpec:
    schema: Mapping[str, Any] = {"type": "object"}
    if response_format is not None and response_format.schema is not None:
        schema = response_format.schema
    # The arguments of a tool are always an object.
    if not _is_object(response_format):
        schema = {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE]}
    description = "Give the final answer, when no other tool is left to be called."
    return ToolSpec(ANSWER_TOOL, description, freeze_object(schema), Effect.PURE)


def _answer_text(arguments_json: str, response_format: ResponseFormat | None) -> str:
    """Return the answer's text. What cannot be unwrapped is returned as it is; the check of answers rejects it."""
    if _is_object(response_format):
        return arguments_json
    try:
        data = parse_json(arguments_json)
    except ValueError:
        return arguments_json
    return format_json(data[_VALUE]).decode() if isinstance(data, dict) and _VALUE in data else arguments_json


def _is_object(response_format: ResponseFormat | None) -> bool:
    return response_format is None or response_format.schema is None or response_format.schema.get("type") == "object"
