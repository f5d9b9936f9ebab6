"""The modes in which tools are described in the prompt and calls are read out of the text: `validated` and `parsed`."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, field, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.modes.calls import results_message, validate_call, without_calls
from agentloop.text_calls import DEFAULT_FORMATS, ParsedCall, ParseResult, StreamReader, TextFormat, read_calls
from agentloop.values.inference import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ResponseFormat,
    ToolChoice,
)
from agentloop.values.json import format_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolSpec, arguments_object
from agentloop.values.value import encode_each

_OFFER = """\
You can call tools. To call one, write, and put nothing else in the tags:

<tool_call>
{"name": "the tool's name", "arguments": {"the argument's name": "its value"}}
</tool_call>

%(several)s Then stop writing: the results are given to you in the next message, inside of <tool_response> tags. Never write \
such tags yourself. Call only the tools below, each with arguments that satisfy its JSON Schema. When you have what you need, \
answer in plain text without any tags.

%(tools)s"""
_SEVERAL = "To call several tools at once, write one such block after the other."
_ONE = "Call one tool at a time."


def told_prompt(request: InferenceRequest) -> str:
    """Return the system prompt of a request, followed by its tools and by the form of the answer that it asks for."""
    pieces = [request.system_prompt] if request.system_prompt else []
    if request.tools:
        several = _ONE if request.parallel_tool_calls is False else _SEVERAL
        pieces.append(_OFFER % {"several": several, "tools": told_tools(request.tools)})
        choice = told_choice(request.tool_choice)
        if choice:
            pieces.append(choice)
    if request.response_format is not None:
        pieces.append(told_format(request.response_format))
    return "\n\n".join(pieces)


def told_format(wanted: ResponseFormat) -> str:
    """Say in words what form the answer shall have."""
    if wanted.schema is None:
        return "When you answer, write one JSON object and nothing else."
    schema = format_json(wanted.schema).decode()
    return f"When you answer, write JSON that satisfies this JSON Schema, and nothing else:\n\n{schema}"


def told_tools(tools: Sequence[ToolSpec]) -> str:
    """Describe tools: one JSON object per line, within tags."""
    told = b"\n".join(encode_each(tools, "told in a prompt", _tool)).decode()
    return f"<tools>\n{told}\n</tools>"


def told_choice(choice: ToolChoice) -> str:
    """Say in words whether and which tool has to be called; empty when the model decides."""
    if choice.kind == "required":
        return "Call a tool now; do not answer yet."
    if choice.kind == "specific":
        return f"Call the tool {choice.name} now; do not answer yet."
    return "Call no tool now; answer." if choice.kind == "none" else ""


def tell_tagged(message: Message) -> Sequence[Message]:
    """Tell the calls of a message in tags, and their results in a user's message after it."""
    said: list[str] = []
    kept = []
    results: list[tuple[str, ToolExchange]] = []
    for part in message.parts:
        if isinstance(part, Text):
            said.append(part.text)
        elif isinstance(part, ToolExchange):
            said.append(_told_call(part))
            results.append((_told_result(part), part))
        else:
            kept.append(part)
    return Message.assistant(*kept, "\n".join(said)), results_message(results)


def _tool(spec: ToolSpec) -> bytes:
    return format_json({"name": spec.name, "description": spec.description, "parameters": spec.parameters})


def _told_call(exchange: ToolExchange) -> str:
    call = {"name": exchange.call.name, "arguments": arguments_object(exchange.call)}
    return f"<tool_call>\n{format_json(call).decode()}\n</tool_call>"


def _told_result(exchange: ToolExchange) -> str:
    told = {"name": exchange.call.name, "content": exchange.execution.text}
    return f"<tool_response>\n{format_json(told).decode()}\n</tool_response>"


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
        return evolve(response, parts=read, problem=reading.rejected[0].reason if reading.rejected else "")

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


def _parts(reading: ParseResult, response: InferenceResponse) -> list[ResponsePart]:
    parts: list[ResponsePart] = []
    if reading.reasoning:
        parts.append(Reasoning(reading.reasoning))
    if not reading.calls and not reading.reasoning:
        parts.extend(part for part in response.parts if isinstance(part, Text))
    elif reading.text.strip():
        parts.append(Text(reading.text))
    parts.extend(map(_call, reading.calls))
    return parts


def _call(found: ParsedCall) -> ToolCall:
    return ToolCall("", found.name, found.arguments_json, repairs=found.repairs)
