"""The mode in which the provider's tool API is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

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
"""The name of the tool by which a model answers that cannot be held to a form otherwise."""
_VALUE = "answer"


@frozen(kw_only=True)
class NativeMode(CanUseMode):
    """The provider's tool API.

    Attributes:
        output: how an answer gets the form that is asked of it: by the provider's response format, or by a tool of which the
            arguments are the answer, for models that can be held to no schema otherwise.
    """

    output: Literal["format", "tool"] = "format"

    @property
    def name(self) -> str:
        """`native`."""
        return "native"

    @property
    def translates(self) -> bool:
        """Whether answers are given by a tool."""
        return self.output == "tool"

    def offer(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request; where answers are given by a tool and have a form, with that tool in place of the form."""
        if not self._answers_by_tool(request):
            return request
        choice = ToolChoice.required() if request.tool_choice.kind in {"auto", "required"} else request.tool_choice
        if choice.kind == "none":
            choice = ToolChoice.specific(ANSWER_TOOL)
        spec = _answer_tool(request.response_format)
        return evolve(request, tools=(*request.tools, spec), tool_choice=choice, response_format=None)

    def read(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response, with a call of the answer's tool as the answer; beside other calls it is too early."""
        if not self._answers_by_tool(request):
            return response
        answers = [call for call in response.tool_calls if call.name == ANSWER_TOOL]
        if not answers:
            return response
        kept = [part for part in response.parts if part not in answers]
        if any(isinstance(part, ToolCall) for part in kept):
            return evolve(response, parts=kept)
        parts: list[ResponsePart] = [part for part in kept if not isinstance(part, Text)]
        text = _answer(answers[0].arguments_json, request.response_format)
        return evolve(response, parts=(*parts, Text(text)), finish_reason=FinishReason.STOP)

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Say whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return what passes every piece on; the arguments of the answer's tool are the answer's text."""
        return _Stream(answers_by_tool=self._answers_by_tool(request))

    def _answers_by_tool(self, request: InferenceRequest) -> bool:
        return self.output == "tool" and request.response_format is not None


class _Stream(ModeStream):
    """Passes pieces on, except those of the answer's tool, which are told as text in the end."""

    def __init__(self, *, answers_by_tool: bool) -> None:
        self._answers_by_tool = answers_by_tool
        self._answers: set[int] = set()

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return the piece."""
        if not self._answers_by_tool:
            return [delta]
        if delta.kind == "tool_call" and delta.name == ANSWER_TOOL:
            self._answers.add(delta.index)
        is_of_answer = delta.kind in {"tool_call", "arguments"} and delta.index in self._answers
        return [] if is_of_answer else [delta]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the answer, if it was given by the tool."""
        return [InferenceDelta("text", response.text)] if self._answers and not response.tool_calls else []


def _is_object(wanted: ResponseFormat | None) -> bool:
    return wanted is None or wanted.schema is None or wanted.schema.get("type") == "object"


def _answer_tool(wanted: ResponseFormat | None) -> ToolSpec:
    schema: Mapping[str, Any] = {"type": "object"} if wanted is None or wanted.schema is None else wanted.schema
    if not _is_object(wanted):
        schema = {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE]}
    described = "Give the final answer, when no other tool is left to be called."
    return ToolSpec(ANSWER_TOOL, described, freeze_object(schema), Effect.PURE)


def _answer(arguments_json: str, wanted: ResponseFormat | None) -> str:
    """Return the answer's text; what cannot be unwrapped is left for the check of answers to refuse."""
    if _is_object(wanted):
        return arguments_json
    try:
        data = parse_json(arguments_json)
    except ValueError:
        return arguments_json
    return format_json(data[_VALUE]).decode() if isinstance(data, dict) and _VALUE in data else arguments_json
