"""The words in which a model without a tool API is offered tools, and in which its calls are told back to it."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.drivers.modes.told_calls import results_message
from agentloop.inference.wire_formats.call_arguments import arguments_object
from agentloop.values.encode_once import encode_each
from agentloop.values.inference_request import InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.json_text import format_json
from agentloop.values.message import Message
from agentloop.values.parts import Text
from agentloop.values.tool_execution import ToolExchange
from agentloop.values.tool_spec import ToolSpec

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
