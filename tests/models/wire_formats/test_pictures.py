"""Tests of pictures that tools return: in every wire format and every mode, the model sees them."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    LLMConfig,
    ReActDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    tool,
)
from agentloop.contracts import CanUseTools
from agentloop.errors import BadRequest
from agentloop.mcp.content import parse_result
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.values import Audio, Document, Image, InferenceRequest, Message, Text, ToolExecution, ToolStatus
from agentloop.values.estimates import RequestSize, message_tokens
from agentloop.values.tool_calls import ContentPart

_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_SENT = base64.b64encode(_PNG).decode()
_SENT_FOR_USERS = {("openai-chat", Audio), ("openai-chat", Document), ("openai-responses", Document)}
"""What services of a wire format may accept although OpenAI does not."""
_WITHOUT_TYPES = {"cohere-v2", "ollama"}
"""The wire formats that send a picture whatever its type."""


@tool(effect="pure")
def draw(size: int) -> list[Text | Image]:
    """Draw a picture."""
    return [Text(f"A picture of {size}:"), Image(data=_PNG, name=f"{size}.png")]


@tool(effect="pure")
def photograph() -> Image:
    """Take a photograph."""
    return Image(data=_PNG)


_PHOTOGRAPH = '<tool_call>{"name": "photograph", "arguments": {}}</tool_call>'
_SCRIPTS: dict[str, list[Any]] = {
    "native": [[ToolCall("a", "draw", '{"size": 1}'), ToolCall("b", "photograph")], [ToolCall("c", "photograph")]],
    "validated": [
        f'<tool_call>{{"name": "draw", "arguments": {{"size": 1}}}}</tool_call>\n{_PHOTOGRAPH}',
        _PHOTOGRAPH,
    ],
    "structured": [
        '{"next": [{"tool": "draw", "arguments": {"size": 1}}, {"tool": "photograph", "arguments": {}}]}',
        '{"next": [{"tool": "photograph", "arguments": {}}]}',
    ],
    "react-text": [
        'Thought: t\nAction: draw\nAction Input: {"size": 1}\nAction: photograph\nAction Input: {}',
        "Thought: t\nAction: photograph\nAction Input: {}",
    ],
}
_SCRIPTS["parsed"] = _SCRIPTS["validated"]


def _driver(mode: Any, model: ScriptedInference) -> CanUseTools:
    if mode == "react-text":
        return ReActDriver(model, output="text")
    driver: CanUseTools = ToolCallingDriver(model, mode=mode)
    return driver


async def _requests(mode: str) -> list[InferenceRequest]:
    """Return the requests of an execution that draws and photographs at once, and then photographs again."""
    last = '{"next": [{"answer": "Done."}]}' if mode == "structured" else "Final Answer: Done."
    model = ScriptedInference(*_SCRIPTS[mode], last)
    await AgentLoop(_driver(mode, model), [draw, photograph]).execute("Show me.")
    assert len(model.requests) == 3
    return model.requests


@pytest.mark.parametrize("mode", _SCRIPTS)
@pytest.mark.parametrize("name", WIRE_FORMATS)
async def test_the_model_sees_the_pictures_of_tools(name: str, mode: str) -> None:
    """Every picture is in the next request, once and in order, and the conversation extends that of the request before."""
    config = LLMConfig(model="m", base_url="http://provider", wire_format=name, api_key="k")
    bodies = [wire_format(name).encode_request(request, config).body.decode() for request in await _requests(mode)]
    assert [body.count(_SENT) for body in bodies] == [0, 2, 3]
    assert bodies[1].index("A picture of 1:") < bodies[1].index(_SENT)
    key = {"openai-responses": "input", "gemini": "contents"}.get(name, "messages")
    conversations = [json.loads(body)[key] for body in bodies]
    for shorter, longer in pairwise(conversations):
        assert longer[: len(shorter)] == shorter


@pytest.mark.parametrize("name", ["cohere-v2", "gemini", "openai-chat"])
async def test_pictures_that_results_cannot_hold_follow_in_a_message_of_the_user(name: str) -> None:
    """All results of a turn come first; then the pictures, each below the name of its tool."""
    config = LLMConfig(model="m", base_url="http://provider", wire_format=name, api_key="k")
    request = (await _requests("native"))[1]
    body = json.loads(wire_format(name).encode_request(request, config).body)
    last = (body.get("messages") or body["contents"])[-1]
    assert last["role"] == "user"
    kinds = [
        "text" if "From the result" in json.dumps(part) else "picture" for part in last.get("content") or last["parts"]
    ]
    assert kinds == ["text", "picture", "text", "picture"]
    assert json.dumps(last).index("the tool draw") < json.dumps(last).index("the tool photograph")


@tool(effect="pure")
def record() -> list[Text | Audio | Document]:
    """Record a sound, and write about it."""
    return [Text("Both:"), Audio(data=b"fLaC..."), Document(data=b"PK\x03\x04", name="notes.zip")]


@pytest.mark.parametrize("mode", ["native", "validated"])
@pytest.mark.parametrize("name", WIRE_FORMATS)
async def test_media_of_tools_that_cannot_be_sent_do_not_end_the_run(name: str, mode: Any) -> None:
    """A note replaces them in a result, in every mode; from a user they are refused, or sent where services differ."""
    call = ToolCall("a", "record") if mode == "native" else '<tool_call>{"name": "record", "arguments": {}}</tool_call>'
    model = ScriptedInference([call], "Done.")
    await AgentLoop(ToolCallingDriver(model, mode=mode), [record]).execute("Record.")
    config = LLMConfig(model="m", base_url="http://provider", wire_format=name, api_key="k")
    encoder = wire_format(name)
    body = encoder.encode_request(model.requests[1], config).body.decode()
    for medium in (Audio(data=b"fLaC..."), Document(data=b"PK\x03\x04", name="notes.zip")):
        is_sent = base64.b64encode(medium.data or b"").decode() in body
        assert is_sent or f"[{medium.media_type}" in body
        if is_sent or mode == "native":
            continue
        from_user = InferenceRequest((Message.user(medium),))
        if (name, type(medium)) in _SENT_FOR_USERS:
            assert (
                base64.b64encode(medium.data or b"").decode() in encoder.encode_request(from_user, config).body.decode()
            )
        else:
            with pytest.raises(BadRequest):
                encoder.encode_request(from_user, config)


_CSV = b"name,sum\nGr\xc3\xbc\xc3\x9fe,3\n"


@pytest.mark.parametrize("media_type", ["text/csv", "Text/X-Diff; charset=utf-8", "application/ld+json"])
@pytest.mark.parametrize("sender", ["a tool", "a user"])
@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_documents_that_contain_text_reach_the_model(name: str, sender: str, media_type: str) -> None:
    """A wire format without such documents sends their text, below their name."""
    document = Document(media_type=media_type, data=_CSV, name="sums")
    message = Message.user(document) if sender == "a user" else _message_with_result(document)
    config = LLMConfig(model="m", base_url="http://provider", wire_format=name, api_key="k")
    body = wire_format(name).encode_request(InferenceRequest((Message.user("go"), message)), config).body.decode()
    written = json.dumps(_CSV.decode(), ensure_ascii=False)[1:-1]
    assert written in body or base64.b64encode(_CSV).decode() in body
    assert "sums" in body
    assert "cannot transmit" not in body


@pytest.mark.parametrize("data", [b"\xff\xfe", b"PK\x03\x04"])
@pytest.mark.parametrize("medium", [Document, Image, Audio])
@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_bytes_of_an_unknown_type_from_a_tool_are_a_note(
    name: str, medium: type[Document | Image | Audio], data: bytes
) -> None:
    """No API accepts a type that nobody knows, and the run continues."""
    message = _message_with_result(medium(media_type="application/octet-stream", data=data, name="it"))
    config = LLMConfig(model="m", base_url="http://provider", wire_format=name, api_key="k")
    if medium is Image and name in _WITHOUT_TYPES:
        return
    body = wire_format(name).encode_request(InferenceRequest((Message.user("go"), message)), config).body.decode()
    assert "cannot transmit it" in body
    assert base64.b64encode(data).decode() not in body


def _message_with_result(part: ContentPart) -> Message:
    call = ToolCall("c", "look", "{}")
    execution = ToolExecution.of(call, ToolStatus.SUCCEEDED, key="k", id="e", at=_NOW).with_value(None, [part])
    return Message.of_response([call], [execution])


@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_pictures_of_an_mcp_server_are_shown(name: str) -> None:
    """A server that leaves out the type of a picture does not hide it from the model."""
    blocks = [{"type": "text", "text": "seen"}, {"type": "image", "data": _SENT, "mimeType": ""}]
    result = parse_result({"content": blocks})
    assert result.content is not None
    assert result.content[1] == Image(media_type="image/png", data=_PNG)
    call = ToolCall("c", "look", "{}")
    execution = ToolExecution.of(call, ToolStatus.SUCCEEDED, key="k", id="e", at=_NOW).with_value(
        result.value, result.content
    )
    message = Message.of_response([call], [execution])
    config = LLMConfig(model="m", base_url="http://provider", wire_format=name, api_key="k")
    body = wire_format(name).encode_request(InferenceRequest((Message.user("look"), message)), config).body.decode()
    assert body.count(_SENT) == 1


async def test_pictures_of_tools_count() -> None:
    """The estimated tokens of a request and of a message contain the pictures of results."""
    first, second, third = await _requests("native")
    tokens = [RequestSize().tokens(request) for request in (first, second, third)]
    assert tokens[1] - tokens[0] > 2 * 1_600
    assert tokens[2] - tokens[1] > 1_600
    assert message_tokens(second.messages[-1]) > 2 * 1_600
