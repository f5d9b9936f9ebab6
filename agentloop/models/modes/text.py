"""The modes that describe tools in the prompt and parse calls from the text: `validated` and `parsed`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.models.modes.calls import (
    ANSWER,
    GO_ON,
    SCRATCHPAD,
    finish_with_calls,
    is_requested_form,
    render_messages,
    results_message,
    text_of,
    thought_alone,
    validate_call,
    without_tools,
)
from agentloop.models.modes.written_calls import (
    RUN_EMBEDDED,
    RunEmbedded,
    SelectedCalls,
    describe_excess,
    describe_rejection,
    may_begin_in_reasoning,
    select_calls,
    strip_fence,
)
from agentloop.models.text_calls import DEFAULT_FORMATS, StreamReader, TextFormat, read_calls
from agentloop.models.text_calls.literal_reader import LiteralReader
from agentloop.models.text_calls.results import ParseResult, RejectedCall
from agentloop.models.text_calls.text_buffer import TextBuffer
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.inference import (
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ResponseFormat,
    ToolChoice,
    iter_deltas,
)
from agentloop.values.json import format_json, parse_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.parts import Reasoning, Text
from agentloop.values.tool_calls import EXTRACTION, ToolCall, ToolExchange, ToolSpec, arguments_object
from agentloop.values.value import encode_each, instance_of, one_of


@frozen(kw_only=True)
class TextMode(CanUseMode):
    """Tools described in the prompt, and calls parsed from the text in whatever notation the model uses.

    Calls that the inference server parsed itself are used as they are.

    Attributes:
        reprompts: whether a call that cannot be executed is sent back to the model with the error (the mode `validated`), or
            goes to the executor, which rejects it (the mode `parsed`).
        run_embedded: when calls in prose run: `pure` if every call of the answer is of a tool with the effect `pure`, or `always`
            or `never`. Otherwise the model is asked for the calls alone in the mode `validated`, and they are rejected in the
            mode `parsed`. Calls that are the whole answer always run, calls that are only quoted never do.
        formats: the text formats, in order of precedence.
        coerce: whether a string becomes a number or a boolean where the tool's schema accepts no string; recorded in the
            call's repairs.
        bounds: limits the length of texts that are read and the steps that it takes; a driver sets those of its loop.
    """

    reprompts: bool = field(default=True, validator=instance_of(bool))
    run_embedded: RunEmbedded = field(default="pure", validator=one_of(RUN_EMBEDDED))
    formats: tuple[TextFormat, ...] = field(default=DEFAULT_FORMATS, converter=tuple[TextFormat, ...], repr=False)
    coerce: bool = field(default=True, validator=instance_of(bool))
    bounds: Bounds = field(default=DEFAULT_BOUNDS, repr=False)

    @property
    def name(self) -> str:
        """`validated` or `parsed`."""
        return "validated" if self.reprompts else "parsed"

    def with_bounds(self, bounds: Bounds) -> Self:
        """Return a mode that reads answers within these bounds."""
        return self if bounds is self.bounds else evolve(self, bounds=bounds)

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with its tools and the requested form of the answer described in the system prompt."""
        plain = without_tools(render_messages(request, "calls in tags", _render_tagged))
        return evolve(plain, system_prompt=_system_prompt(request), response_format=None)

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with the calls in its text; with quoted calls only, it is an answer."""
        if not request.tools or response.tool_calls:
            return response
        result = read_calls(
            response.text,
            request.tools,
            formats=self.formats,
            coerce=self.coerce,
            bounds=self.bounds,
            begins_in_reasoning=may_begin_in_reasoning(response, request),
        )
        if result.exceeded:
            return evolve(response, problem=describe_excess(result.exceeded, self.bounds), exceeded=result.exceeded)
        found = [ToolCall("", call.name, call.arguments_json, repairs=call.repairs) for call in result.calls]
        selected = select_calls(
            found, result.grades, request.tools, run_embedded=self.run_embedded, unread=result.unread
        )
        text = response.text if found else result.text
        payload = _read_payload(text)
        # A stream has emitted what begins otherwise.
        if payload and payload.keys() <= {ANSWER, SCRATCHPAD} and _may_be_payload(text):
            if not is_requested_form(payload, request.response_format):
                return _with_payload(response, result, payload, tuple(found))
            payload = {}
        parts: list[ResponsePart] = [part for part in response.parts if not isinstance(part, Text)]
        thoughts = selected.calls and _read_payload(result.quoting_text)
        if thoughts and thoughts.keys() == {SCRATCHPAD}:  # an object of its own beside the calls
            payload, result = thoughts, evolve(result, quoting_text="")
        if payload.get(SCRATCHPAD) and (selected.calls or request.response_format is None):
            parts.append(Reasoning(payload[SCRATCHPAD]))
        parts += _parts_of(result, selected, response)
        if selected.calls:
            return evolve(
                response,
                parts=parts,
                finish_reason=finish_with_calls(response.finish_reason),
                quoted_calls=selected.quoted,
                quoted_texts=result.shown_tags,
            )
        # What is only quoted is a part of the answer, whether or not it can be read.
        damaged = None if found else next((each for each in result.rejected if not each.is_quoted), None)
        response = evolve(response, parts=parts, quoted_calls=selected.quoted, quoted_texts=result.shown_tags)
        return response if damaged is None else self._with_damaged(response, text, damaged, request)

    def _with_damaged(
        self, response: InferenceResponse, text: str, damaged: RejectedCall, request: InferenceRequest
    ) -> InferenceResponse:
        """Return the response with a call that cannot be read: as its problem, or as a call that the executor rejects."""
        # Without tags, a part in prose may also be about a call: the model is asked, and its last word counts.
        may_be_shown = damaged.is_embedded and damaged.format not in self._tagged
        doubtful = (text[damaged.start : damaged.end][:_MAX_SHOWN],) if may_be_shown else ()
        problem = describe_rejection(damaged)
        if self.reprompts or may_be_shown or damaged.format == "reasoning":
            return evolve(response, problem=problem, quoted_texts=doubtful)
        name = _name_in(text[damaged.start : damaged.end], request.tools) or _name_in(text, request.tools)
        call = ToolCall("", name or EXTRACTION, "{}", rejection=problem)
        return evolve(response, parts=(*response.parts, call), finish_reason=finish_with_calls(response.finish_reason))

    @property
    def _tagged(self) -> frozenset[str]:
        return frozenset([each.name for each in self.formats if each.tags])

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return a stream that holds text back from where a call may begin."""
        return _TextStream(self, request)


_MAX_SHOWN: Final = 80
_NAME: Final = re.compile(r"[\w.-]{1,200}")


def _name_in(text: str, tools: Sequence[ToolSpec]) -> str:
    """Return the name of the offered tool that a text names first; empty if it names none."""
    names = {spec.name for spec in tools}
    return next((word[0] for word in _NAME.finditer(text) if word[0] in names), "")


def _parts_of(result: ParseResult, selected: SelectedCalls, response: InferenceResponse) -> list[ResponsePart]:
    parts: list[ResponsePart] = []
    if result.reasoning:
        parts.append(Reasoning(result.reasoning))
    # An ordinary answer keeps its text parts, with the provider's data in them.
    if not selected.calls and not result.reasoning:
        parts.extend(part for part in response.parts if isinstance(part, Text))
    elif result.quoting_text.strip():
        parts.append(Text(result.quoting_text))
    parts.extend(selected.calls)
    return parts


_CALL_KEYS: Final = frozenset({"tool", "arguments"})
_PAYLOAD_STARTS: Final = tuple([f'{{"{key}"' for key in (ANSWER, SCRATCHPAD, *sorted(_CALL_KEYS))])
_SPACE_AND_FENCE: Final = re.compile(r"\s++|```\w*+")
_MAX_PAYLOAD_START: Final = 100


def _read_payload(text: str) -> dict[str, Any]:
    """Return the JSON object with a scratchpad or an answer that a text is, without the empty keys of a call; empty if it is none.

    Deviations from JSON, such as a line break in a text, are read as in calls.
    """
    if f'"{SCRATCHPAD}"' not in text and f'"{ANSWER}"' not in text:
        return {}
    data = _read_object(strip_fence(text))
    # A model that follows a strict schema writes every key.
    payload = {key: value for key, value in data.items() if key not in _CALL_KEYS or value not in (None, "", {})}
    if SCRATCHPAD not in payload:  # without it, an answer of another type may be data
        is_answer = payload.keys() == {ANSWER} and isinstance(payload[ANSWER], str)
        return {**payload, SCRATCHPAD: ""} if is_answer else {}
    if not isinstance(payload[SCRATCHPAD], str | None):
        return {}
    return payload if payload[SCRATCHPAD] or payload.get(ANSWER) is not None else {}


def _read_object(text: str) -> dict[str, Any]:
    try:
        data = parse_json(text)
    except ValueError:
        reader = LiteralReader(0)
        reader.advance(text, is_complete=True)
        data = reader.value if text.startswith("{") and reader.position == len(text) else None
    return data if isinstance(data, dict) else {}


def _with_payload(
    response: InferenceResponse, result: ParseResult, payload: dict[str, Any], quoted: tuple[ToolCall, ...]
) -> InferenceResponse:
    """Return the response with the thoughts and the answer of an object; without an answer, the model goes on."""
    parts: list[ResponsePart] = [part for part in response.parts if not isinstance(part, Text)]
    parts += [Reasoning(text) for text in (result.reasoning, payload[SCRATCHPAD]) if text]
    answer = payload.get(ANSWER)
    if answer is None:
        return evolve(response, parts=parts, wants_to_continue=True, quoted_calls=quoted)
    parts.append(Text(text_of(answer)))
    return evolve(response, parts=parts, quoted_calls=quoted)


def _may_be_payload(text: str) -> bool:
    """Whether a text may be the beginning of an object with an answer or a scratchpad."""
    start = _SPACE_AND_FENCE.sub("", text[:_MAX_PAYLOAD_START])
    return "``".startswith(start) or any(start.startswith(key) or key.startswith(start) for key in _PAYLOAD_STARTS)


class _TextStream(ModeStream):
    """Emits the text before the first call at once, and the rest when it is complete: only then it is known which calls run."""

    def __init__(self, mode: TextMode, request: InferenceRequest) -> None:
        # Any object may be the answer where one is requested.
        self._may_be_payload = request.response_format is None or request.response_format.schema is not None
        tools = request.tools
        self._reader = StreamReader(tools, mode.formats, coerce=mode.coerce, bounds=mode.bounds) if tools else None
        self._emitted, self._held = TextBuffer(), TextBuffer()
        self._has_calls = False
        self._has_native_calls = False

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Process a delta of the model; return what is certain."""
        # A server that parses calls itself emits them as deltas; the text is then not parsed again.
        self._has_native_calls = self._has_native_calls or delta.kind == "tool_call"
        if self._reader is None or delta.kind != "text":
            return [delta]
        chunk = self._reader.feed(delta.text)
        self._has_calls = self._has_calls or bool(chunk.calls)
        if self._has_calls or not chunk.text:
            return []
        # An object with a scratchpad is known when it is complete.
        self._held.append(chunk.text)
        if not self._emitted.text and self._may_be_payload and _may_be_payload(self._held.text):
            return []
        piece, self._held = self._held.text, TextBuffer()
        self._emitted.append(piece)
        return [evolve(delta, text=piece)]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the deltas of the complete response that were not emitted yet."""
        if self._reader is None or self._has_native_calls:
            return []
        text, emitted = response.text, self._emitted.text
        is_longer = len(text) > len(emitted) and text.startswith(emitted)
        deltas = [InferenceDelta("text", text[len(emitted) :])] if is_longer else []
        return [*deltas, *iter_deltas(response.with_parts(response.tool_calls))]


_INSTRUCTIONS = """\
You can call tools. To call one, write this and no other text:

<tool_call>
{"name": "the tool's name", "arguments": {"the argument's name": "its value"}}
</tool_call>

%(several)s Calls that stand among other text may not be run. Then stop writing: the results are given to you in the next message, inside of <tool_response> tags. Never write \
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
    """Return a message with its calls in tags, followed by a user's message with the results.

    A thought alone is an object with a scratchpad, followed by the request to go on.
    """
    if thought := thought_alone(message):
        kept = [part for part in message.parts if not isinstance(part, Reasoning) or part.provider_data]
        return Message.assistant(*kept, format_json({SCRATCHPAD: thought}).decode()), GO_ON
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
