"""The mode of a model of which nobody has said how it calls tools: by its tool API, until it shows otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.modes.calls import finish_with_calls, may_begin_in_reasoning, validate_call
from agentloop.modes.native import NativeMode
from agentloop.modes.text import TextMode
from agentloop.text_calls import CallGrade, ParseResult, read_calls
from agentloop.values.bounds import Bounds
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, ModeChoice
from agentloop.values.messages import ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolSpec


@frozen(kw_only=True)
class AssumedMode(CanUseMode):
    """The provider's tool API, for a model that may have none.

    A response without calls whose whole text is calls of offered tools is read as in the mode `validated`, and its
    `mode_choice` says so. Calls in prose and quoted calls stay text.

    Attributes:
        model: the name of the model.
        enforces_schemas: whether the provider can constrain an answer to a schema. It is asked to only without tools, since
            several servers that constrain the answer do not let the model call a tool.
        text: the mode in which the model is called when it has no tool API.
    """

    streams_calls: ClassVar[bool] = True

    model: str
    enforces_schemas: bool = False
    text: TextMode = field(factory=TextMode, repr=False)

    @property
    def name(self) -> str:
        """`native`."""
        return "native"

    @property
    def fallback(self) -> CanUseMode:
        """The mode in which to call the model when its provider refuses tools."""
        return self.text

    def with_bounds(self, bounds: Bounds) -> Self:
        """Return a mode that reads answers within these bounds."""
        text = self.text.with_bounds(bounds)
        return self if text is self.text else evolve(self, text=text)

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request for the tool API."""
        return self._native(request).render_request(request)

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with its calls, from the tool API or from a text that consists of calls."""
        offered = self._offered(request)
        is_read = response.tool_calls or not offered.tools
        parsed = response if is_read else self._read_text(response, offered)
        return self._native(request).parse_response(parsed, request)

    def _read_text(self, response: InferenceResponse, offered: InferenceRequest) -> InferenceResponse:
        """Return the response with the calls of which its text consists, and with its reasoning apart from the text."""
        read = partial(
            read_calls,
            response.text,
            offered.tools,
            formats=self.text.formats,
            coerce=self.text.coerce,
            bounds=self.text.bounds,
        )
        result = read(begins_in_reasoning=may_begin_in_reasoning(response, offered))
        is_call = _consists_of_calls(result, {spec.name for spec in offered.tools})
        if result.calls and result.reasoning and not is_call:
            # A text that writes about calls may also write about tags: one alone ends no reasoning.
            result = read(begins_in_reasoning=False)
        if result.exceeded:  # it is too long to be a call
            return response
        calls = [ToolCall("", call.name, call.arguments_json, repairs=call.repairs) for call in result.calls]
        parts: list[ResponsePart] = [part for part in response.parts if not isinstance(part, Text)]
        parts += [Reasoning(result.reasoning)] if result.reasoning else []
        if is_call:
            reason = finish_with_calls(response.finish_reason)
            choice = ModeChoice(self.model, self.text.name, _WRITES_CALLS)
            return evolve(response, parts=(*parts, *calls), finish_reason=reason, mode_choice=choice)
        quoted = [call for call, grade in zip(calls, result.grades, strict=True) if grade is CallGrade.QUOTED]
        if not result.reasoning:
            return evolve(response, quoted_calls=quoted) if quoted else response
        # The text is that of the stream, which has left out the reasoning, too.
        parts += [Text(result.full_text)] if result.full_text.strip() else []
        return evolve(response, parts=parts, quoted_calls=quoted)

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that emits the calls of the tool API at once, and holds text back from where a call may begin."""
        return _AssumedStream(self.text.stream(self._offered(request)), self._native(request).stream(request))

    def _offered(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with the tools that the model sees, also the one that gives the answer."""
        return evolve(request, tools=self.render_request(request).tools)

    def _native(self, request: InferenceRequest) -> NativeMode:
        return _BY_FORMAT if self.enforces_schemas and not request.tools else _BY_TOOL


def _consists_of_calls(result: ParseResult, names: set[str]) -> bool:
    """Return whether a text is nothing but calls of offered tools; a model with a tool API may well write about calls."""
    is_plain = {*result.grades} == {CallGrade.PLAIN} and not result.unread
    return is_plain and all(call.name in names for call in result.calls)


_WRITES_CALLS = "the model wrote a call as text, although it was offered the tool API"
_BY_FORMAT, _BY_TOOL = NativeMode(output="format"), NativeMode(output="tool")


class _AssumedStream(ModeStream):
    """Passes the deltas through the stream of the text mode, then through that of the tool API."""

    def __init__(self, text: ModeStream, native: ModeStream) -> None:
        self._text = text
        self._native = native

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return what is certain."""
        return [item for piece in self._text.feed(delta) for item in self._native.feed(piece)]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the deltas that were held back."""
        return [*self._text.close(response), *self._native.close(response)]
