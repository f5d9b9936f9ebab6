"""The modes in which tools are described in the prompt and calls are read out of the text: `validated` and `parsed`."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, field, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.drivers.modes.call_validation import validate_call
from agentloop.drivers.modes.tagged_text import tell_tagged, told_prompt
from agentloop.drivers.modes.text_formats.formats import DEFAULT_FORMATS
from agentloop.drivers.modes.text_formats.reader import StreamReader, read_calls
from agentloop.drivers.modes.text_formats.reading import FoundCall, Reading
from agentloop.drivers.modes.text_formats.text_format import TextFormat
from agentloop.drivers.modes.told_calls import without_calls
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_request import InferenceRequest, ToolChoice
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.message import ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_spec import ToolSpec

_ENDED = frozenset({FinishReason.STOP, FinishReason.UNKNOWN, FinishReason.OTHER})


@frozen(kw_only=True)
class TextMode(CanUseMode):
    """Tools described in the prompt, calls read out of the text in whatever notation the model uses.

    Calls that a service has read by itself are taken as they are.

    Attributes:
        asks_again: whether a call that cannot be executed is answered with the error and asked for again (the mode
            `validated`), or executed and thereby rejected (the mode `parsed`).
        formats: the notations, in the order in which they are tried.
        coerce: whether text becomes a number or a boolean where a tool's schema takes no text; noted on the call.
    """

    asks_again: bool = True
    formats: Sequence[TextFormat] = field(default=DEFAULT_FORMATS, repr=False)
    coerce: bool = True

    @property
    def name(self) -> str:
        """`validated` or `parsed`."""
        return "validated" if self.asks_again else "parsed"

    def offer(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with its tools, and the form of the answer it asks for, described in the system prompt."""
        told = without_calls(request, "calls in tags", tell_tagged)
        return evolve(
            told,
            system_prompt=told_prompt(request),
            tools=(),
            tool_choice=ToolChoice.auto(),
            parallel_tool_calls=None,
            response_format=None,
        )

    def read(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the calls that stand in its text."""
        if not request.tools or response.tool_calls:
            return response
        reading = read_calls(response.text, request.tools, formats=self.formats, coerce=self.coerce)
        kept = [part for part in response.parts if not isinstance(part, Text)]
        read = [*kept, *_parts(reading, response)]
        if reading.calls:
            finish = FinishReason.TOOL_CALLS if response.finish_reason in _ENDED else response.finish_reason
            return evolve(response, parts=read, finish_reason=finish)
        return evolve(response, parts=read, problem=reading.refused[0].reason if reading.refused else "")

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Say whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return what translates a streamed answer; text is held back from where a call may begin."""
        return _TextStream(self, request)


class _TextStream(ModeStream):
    """Shows the text around calls, and each call as soon as it is whole."""

    def __init__(self, mode: TextMode, request: InferenceRequest) -> None:
        self._reader = StreamReader(request.tools, mode.formats, coerce=mode.coerce) if request.tools else None
        self._shown = ""
        self._calls = 0
        self._has_own_calls = False

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Take a piece as the model wrote it, and return what is certain of it."""
        self._has_own_calls = self._has_own_calls or delta.kind == "tool_call"
        if self._reader is None or delta.kind != "text":
            return [delta]
        piece = self._reader.feed(delta.text)
        self._shown += piece.text
        found = [evolve(delta, text=piece.text)] if piece.text else []
        for call in piece.calls:
            found += self._told(call.name, call.arguments_json, delta.attempt)
        return found

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Take the whole answer, translated, and return the pieces that were held back."""
        if self._reader is None or self._has_own_calls:
            return []
        found: list[InferenceDelta] = []
        text = response.text
        if len(text) > len(self._shown) and text.startswith(self._shown):
            found.append(InferenceDelta("text", text[len(self._shown) :]))
        for call in response.tool_calls[self._calls :]:
            found += self._told(call.name, call.arguments_json, 1)
        return found

    def _told(self, name: str, arguments_json: str, attempt: int) -> list[InferenceDelta]:
        index = self._calls
        self._calls += 1
        return [
            InferenceDelta("tool_call", index=index, name=name, attempt=attempt),
            InferenceDelta("arguments", arguments_json, index, attempt=attempt),
        ]


def _parts(reading: Reading, response: InferenceResponse) -> list[ResponsePart]:
    parts: list[ResponsePart] = []
    if reading.reasoning:
        parts.append(Reasoning(reading.reasoning))
    if not reading.calls and not reading.reasoning:
        parts.extend(part for part in response.parts if isinstance(part, Text))
    elif reading.text.strip():
        parts.append(Text(reading.text))
    parts.extend(map(_call, reading.calls))
    return parts


def _call(found: FoundCall) -> ToolCall:
    return ToolCall("", found.name, found.arguments_json, repairs=found.repairs)
