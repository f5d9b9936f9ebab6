"""The modes that describe tools in the prompt and parse calls from the text: `validated` and `parsed`."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, field, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.modes.calls import finish_with_calls, render_messages, results_message, validate_call
from agentloop.text_calls import DEFAULT_FORMATS, ParsedCall, ParseResult, StreamReader, TextFormat, read_calls
from agentloop.values.inference import (
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


@frozen(kw_only=True)
class TextMode(CanUseMode):
    """Tools described in the prompt, and calls parsed from the text in whatever notation the model uses.

    Calls that the inference server parsed itself are used as they are.

    Attributes:
        reprompts: whether a call that cannot be executed is sent back to the model with the error (the mode `validated`), or
            goes to the executor, which rejects it (the mode `parsed`).
        formats: the text formats, in order of precedence.
        coerce: whether a string becomes a number or a boolean where the tool's schema accepts no string; recorded in the
            call's repairs.
    """

    reprompts: bool = True
    formats: Sequence[TextFormat] = field(default=DEFAULT_FORMATS, repr=False)
    coerce: bool = True

    @property
    def name(self) -> str:
        """`validated` or `parsed`."""
        return "validated" if self.reprompts else "parsed"

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with its tools and the requested form of the answer described in the system prompt."""
        return evolve(
            render_messages(request, "calls in tags", _render_tagged),
            system_prompt=_system_prompt(request),
            tools=(),
            tool_choice=ToolChoice.auto(),
            parallel_tool_calls=None,
            response_format=None,
        )

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the calls in its text."""
        if not request.tools or response.tool_calls:
            return response
        result = read_calls(response.text, request.tools, formats=self.formats, coerce=self.coerce)
        other_parts = [part for part in response.parts if not isinstance(part, Text)]
        parts = [*other_parts, *_parts_of(result, response)]
        if result.calls:
            return evolve(response, parts=parts, finish_reason=finish_with_calls(response.finish_reason))
        return evolve(response, parts=parts, problem=result.rejected[0].reason if result.rejected else "")

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that holds text back from where a call may begin."""
        return _TextStream(self, request)


def _parts_of(result: ParseResult, response: InferenceResponse) -> list[ResponsePart]:
    parts: list[ResponsePart] = []
    if result.reasoning:
        parts.append(Reasoning(result.reasoning))
    # An ordinary answer keeps its text parts, with the provider's data in them.
    if not result.calls and not result.reasoning:
        parts.extend(part for part in response.parts if isinstance(part, Text))
    elif result.text.strip():
        parts.append(Text(result.text))
    parts.extend(map(_tool_call, result.calls))
    return parts


def _tool_call(call: ParsedCall) -> ToolCall:
    return ToolCall("", call.name, call.arguments_json, repairs=call.repairs)


class _TextStream(ModeStream):
    """Emits the text around calls, and each call when it is complete."""

    def __init__(self, mode: TextMode, request: InferenceRequest) -> None:
        self._reader = StreamReader(request.tools, mode.formats, coerce=mode.coerce) if request.tools else None
        self._emitted_text = ""
        self._emitted_calls = 0
        self._has_native_calls = False

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Process a delta of the model; return what is certain."""
        # A server that parses calls itself emits them as deltas; the text is then not parsed again.
        self._has_native_calls = self._has_native_calls or delta.kind == "tool_call"
        if self._reader is None or delta.kind != "text":
            return [delta]
        chunk = self._reader.feed(delta.text)
        self._emitted_text += chunk.text
        deltas = [evolve(delta, text=chunk.text)] if chunk.text else []
        for call in chunk.calls:
            deltas += self._emit_call(call.name, call.arguments_json, delta.attempt)
        return deltas

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the deltas of the complete response that were not emitted yet."""
        if self._reader is None or self._has_native_calls:
            return []
        deltas: list[InferenceDelta] = []
        text = response.text
        if len(text) > len(self._emitted_text) and text.startswith(self._emitted_text):
            deltas.append(InferenceDelta("text", text[len(self._emitted_text) :]))
        for call in response.tool_calls[self._emitted_calls :]:
            deltas += self._emit_call(call.name, call.arguments_json, 1)
        return deltas

    def _emit_call(self, name: str, arguments_json: str, attempt: int) -> list[InferenceDelta]:
        index = self._emitted_calls
        self._emitted_calls += 1
        return [
            InferenceDelta("tool_call", index=index, name=name, attempt=attempt),
            InferenceDelta("arguments", arguments_json, index, attempt=attempt),
        ]


_INSTRUCTIONS = """\
You can call tools. To call one, write, and put nothing else in the tags:

<tool_call>
{"name": "the tool's name", "arguments": {"the argument's name": "its value"}}
</tool_call>

%(several)s Then stop writing: the results are given to you in the next message, inside of <tool_response> tags. Never write \
such tags yourself. Call only the tools below, each with arguments that satisfy its JSON Schema. When you have what you need, \
answer in plain text without any tags.

%(tools)s"""
_SEVERAL_CALLS = "To call several tools at once, write one such block after the other."
_ONE_CALL = "Call one tool at a time."


def _system_prompt(request: InferenceRequest) -> str:
    sections = [request.system_prompt] if request.system_prompt else []
    if request.tools:
        several = _ONE_CALL if request.parallel_tool_calls is False else _SEVERAL_CALLS
        sections.append(_INSTRUCTIONS % {"several": several, "tools": describe_tools(request.tools)})
        choice = describe_tool_choice(request.tool_choice)
        if choice:
            sections.append(choice)
    if request.response_format is not None:
        sections.append(_describe_format(request.response_format))
    return "\n\n".join(sections)


def describe_tools(tools: Sequence[ToolSpec]) -> str:
    """Return a description of tools for a prompt: one JSON object per line, within tags."""
    # Each line is cached with its tool, since every step repeats the prompt.
    lines = b"\n".join(encode_each(tools, "a line of a prompt", _describe_tool)).decode()
    return f"<tools>\n{lines}\n</tools>"


def _describe_tool(spec: ToolSpec) -> bytes:
    return format_json({"name": spec.name, "description": spec.description, "parameters": spec.parameters})


def describe_tool_choice(choice: ToolChoice) -> str:
    """Return the instruction for a tool choice; empty if the model decides."""
    if choice.kind == "required":
        return "Call a tool now; do not answer yet."
    if choice.kind == "specific":
        return f"Call the tool {choice.name} now; do not answer yet."
    return "Call no tool now; answer." if choice.kind == "none" else ""


def _describe_format(response_format: ResponseFormat) -> str:
    if response_format.schema is None:
        return "When you answer, write one JSON object and nothing else."
    schema = format_json(response_format.schema).decode()
    return f"When you answer, write JSON that satisfies this JSON Schema, and nothing else:\n\n{schema}"


def _render_tagged(message: Message) -> Sequence[Message]:
    """Return a message with its calls in tags, followed by a user's message with the results."""
    if not message.exchanges:
        return (message,)
    lines: list[str] = []
    other_parts = []
    results: list[tuple[str, ToolExchange]] = []
    for part in message.parts:
        if isinstance(part, Text):
            lines.append(part.text)
        elif isinstance(part, ToolExchange):
            lines.append(_tagged_call(part))
            results.append((_tagged_result(part), part))
        else:
            other_parts.append(part)
    return Message.assistant(*other_parts, "\n".join(lines)), results_message(results)


def _tagged_call(exchange: ToolExchange) -> str:
    call = {"name": exchange.call.name, "arguments": arguments_object(exchange.call)}
    return f"<tool_call>\n{format_json(call).decode()}\n</tool_call>"


def _tagged_result(exchange: ToolExchange) -> str:
    result = {"name": exchange.call.name, "content": exchange.execution.text}
    return f"<tool_response>\n{format_json(result).decode()}\n</tool_response>"
