"""Requests of Messages.

Source: https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from agentloop.errors import BadRequest
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.anthropic_messages.content import (
    FORMAT,
    call_block,
    content_block,
    own_block,
    own_data,
    text_block,
    thinking_block,
)
from agentloop.inference.wire_formats.fields import renamed, turn_ids, wire_name
from agentloop.inference.wire_formats.wire_format import EncodedRequest
from agentloop.values.inference import InferenceRequest, ReasoningEffort, ResponseFormat, ToolChoice
from agentloop.values.json import JsonValue, format_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolExchange, ToolSpec
from agentloop.values.value import encode_each

_IDS = f"{FORMAT} ids"
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})


def encode_messages(messages: Sequence[Message]) -> list[bytes]:
    """Spell messages: one segment for each that holds something.

    An assistant's message becomes one of the assistant, with its blocks in the order of the parts, and one of the user with
    the results. Ids that an earlier turn has used are told apart by the place of the message, since the provider wants them
    unique within the whole conversation; that place does not change while the conversation grows.

    Raises:
        BadRequest: when a message holds what Messages cannot carry; names the part.
    """
    segments = encode_each(messages, FORMAT, _segment)
    seen: set[str] = set()
    for place, ids in enumerate(encode_each(messages, _IDS, wire_ids)):
        if not seen.isdisjoint(ids):
            others = _other_ids(ids, place, seen)
            segments[place] = messages[place].encoded((FORMAT, others), partial(_segment, ids=others))
            seen.update(others)
        seen.update(ids)
    return [segment for segment in segments if segment]


def wire_ids(message: Message) -> tuple[str, ...]:
    """Return the ids of a message's calls as the provider takes them, different from each other."""
    exchanges = message.exchanges
    return tuple(map(wire_name, turn_ids(exchanges))) if exchanges else ()


def _other_ids(ids: Sequence[str], place: int, seen: set[str]) -> tuple[str, ...]:
    others: list[str] = []
    for call_id in ids:
        other = call_id
        while other in seen or other in others or (other != call_id and other in ids):
            other = f"{other}_{place}"
        others.append(other)
    return tuple(others)


def _segment(message: Message, ids: Sequence[str] | None = None) -> bytes:
    if message.role == "assistant":
        spelled = _assistant(message, wire_ids(message) if ids is None else ids)
    else:
        content = [part for part in message.parts if isinstance(part, Text | Image | Audio | Document)]
        spelled = [_message(message.role, _blocks(content, f"a message of the {message.role}"))]
    return b",".join(format_json(one) for one in spelled if one["content"])


def _message(role: str, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"role": role, "content": content}


def _assistant(message: Message, ids: Sequence[str]) -> list[dict[str, Any]]:
    left = iter(ids)
    blocks: list[Mapping[str, Any]] = []
    results: list[Mapping[str, Any]] = []
    for part in message.parts:
        if isinstance(part, ToolExchange):
            call_id = next(left)
            blocks.append(call_block(part.call, call_id))
            results.append(_result(part, call_id))
        else:
            block = _said(part)
            if block is not None:
                blocks.append(block)
    while blocks and blocks[-1]["type"] in _THOUGHTS:  # the provider refuses a message that ends with thoughts
        blocks.pop()
    return [_message("assistant", blocks), _message("user", results)]


def _said(part: Part) -> Mapping[str, Any] | None:
    if isinstance(part, Text):
        return text_block(part)
    if isinstance(part, Reasoning):
        return thinking_block(part)
    if isinstance(part, ProviderPart):
        return own_block(part)
    raise BadRequest(
        f"Messages cannot carry {type(part).__name__} in a message of the assistant; leave it out, or use a wire format "
        "that can"
    )


def _result(exchange: ToolExchange, call_id: str) -> dict[str, Any]:
    execution = exchange.execution
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    content = _blocks(execution.parts, f"the result of the tool {execution.name!r}")
    if content:
        result["content"] = content
    if execution.has_error:
        result["is_error"] = True
        if not content:  # an error has to say something
            result["content"] = execution.error_message.strip() or execution.status.value
    family = own_data(exchange.call).get("toolset_name")
    return {**result, "toolset_name": family} if family else result


def _blocks(parts: Iterable[ContentPart], where: str) -> list[Mapping[str, Any]]:
    return [block for block in (content_block(part, where) for part in parts) if block is not None]


PATH = "/messages"
_HEADERS: Mapping[str, str] = {"anthropic-version": "2023-06-01"}
_MARK: Mapping[str, str] = {"type": "ephemeral"}
"""A cache breakpoint."""
_EFFORTS: Mapping[ReasoningEffort, str] = {"minimal": "low"}
"""What Messages calls efforts that it has no word for."""


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Spell a request: a join of segments, each encoded once.

    What has no place in Messages as it is: A seed is left out. Temperature and top_p are sent where they are set, though
    newer models refuse them. No effort means that thinking is disabled, any other that it is adaptive, unless a call is
    forced, which excludes thinking. Where the conversation holds calls and no tools are offered, those that were called are
    declared and forbidden, since the provider refuses calls of tools it was not told of.

    Raises:
        BadRequest: when the request holds what Messages cannot carry, or an option spells what the request does; names the
            part.
    """
    asked = _Asked(request, config)
    model = format_json(asked.option("model") or config.model)
    pieces = [b'{"model":', model]
    tools = _tools(asked)
    if tools:
        pieces += [b',"tools":[', b",".join(tools), b"]"]
    system = _system(request.system_prompt, is_cached=asked.is_cached)
    if system is not None:
        pieces += [b',"system":', format_json(system)]
    pieces += [b',"messages":[', b",".join(encode_messages(request.messages)), b"]"]
    spelled = {"model", "messages"} | ({"tools"} if tools else set()) | ({"system"} if system is not None else set())
    rest = _checked(_rest(asked, has_tools=bool(tools), stream=stream), spelled)
    names = renamed(spec.name for spec in request.tools)
    return EncodedRequest(PATH, b"".join([*pieces, b",", format_json(rest)[1:]]), _HEADERS, names)


class _Asked:
    """A request together with the options that the configuration adds to it."""

    def __init__(self, request: InferenceRequest, config: LLMConfig) -> None:
        self.request = request
        self.config = config
        self.extra = {**config.options.extra, **request.options.extra}
        self.is_cached = request.options.cache_prompt or config.options.cache_prompt

    def option(self, name: str) -> Any:
        """Return an option of the request, or of the configuration where the request leaves it open."""
        given = getattr(self.request.options, name)
        return getattr(self.config.options, name) if given is None or given == () else given


def _tools(asked: _Asked) -> list[bytes]:
    offered = asked.request.tools
    if not offered:
        return [] if "tools" in asked.extra else _called(asked.request)
    tools = encode_each(offered, FORMAT, _tool)
    if asked.is_cached:
        tools[-1] = offered[-1].encoded(f"{FORMAT} cached", _last_tool)
    return tools


def _tool(spec: ToolSpec) -> bytes:
    return format_json(_described(spec))


def _last_tool(spec: ToolSpec) -> bytes:
    return format_json({**_described(spec), "cache_control": _MARK})


def _described(spec: ToolSpec) -> dict[str, Any]:
    told = {"description": spec.description} if spec.description else {}
    return {"name": wire_name(spec.name), **told, "input_schema": {"type": "object", **spec.parameters}}


def _called(request: InferenceRequest) -> list[bytes]:
    """Declare the tools that were called, in the order of their first calls."""
    names = dict.fromkeys(
        wire_name(exchange.call.name) for message in request.messages for exchange in message.exchanges
    )
    return [format_json({"name": name, "input_schema": {"type": "object"}}) for name in names]


def _system(prompt: str, *, is_cached: bool) -> Any:
    if not prompt.strip():
        return None
    return [{"type": "text", "text": prompt, "cache_control": _MARK}] if is_cached else prompt


def _rest(asked: _Asked, *, has_tools: bool, stream: bool) -> dict[str, Any]:
    request = asked.request
    choice = _tool_choice(request) if request.tools else {"type": "none"} if has_tools else None
    effort: ReasoningEffort | None = asked.option("reasoning_effort")
    limit = asked.option("max_tokens")
    spelled = {
        "max_tokens": asked.config.quirks.default_max_tokens if limit is None else limit,
        "temperature": asked.option("temperature"),
        "top_p": asked.option("top_p"),
        "stop_sequences": list(asked.option("stop")) or None,
        "tool_choice": choice,
        "thinking": _thinking(effort, choice),
        "output_config": _output_config(effort, request.response_format),
        "cache_control": _MARK if asked.is_cached else None,
        "stream": True if stream else None,
    }
    rest = {name: value for name, value in spelled.items() if value is not None}
    return {**rest, **_merged(rest, asked.extra)}


def _merged(rest: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Let an effort or a form of the answer stand beside what `extra` says of the output."""
    own, given = rest.get("output_config"), extra.get("output_config")
    if isinstance(own, dict) and isinstance(given, dict):
        return {**extra, "output_config": {**own, **given}}
    return dict(extra)


def _checked(rest: dict[str, Any], spelled: set[str]) -> dict[str, Any]:
    """Refuse what would stand twice in the body; which of the two a service reads cannot be known."""
    twice = rest.keys() & spelled
    if twice:
        raise BadRequest(
            f"options.extra holds {', '.join(sorted(twice))}, which the request itself spells; leave it out there"
        )
    return rest


def _tool_choice(request: InferenceRequest) -> dict[str, Any] | None:
    choice: ToolChoice = request.tool_choice
    if choice.kind == "none":
        return {"type": "none"}
    one = {"disable_parallel_tool_use": True} if request.parallel_tool_calls is False else {}
    if choice.kind == "auto":
        return {"type": "auto", **one} if one else None
    return (
        {"type": "any", **one} if choice.kind == "required" else {"type": "tool", "name": wire_name(choice.name), **one}
    )


def _thinking(effort: ReasoningEffort | None, choice: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if effort is None:
        return None
    if effort == "none":
        return {"type": "disabled"}
    is_forced = choice is not None and choice["type"] in {"any", "tool"}
    return None if is_forced else {"type": "adaptive"}


def _output_config(effort: ReasoningEffort | None, wanted: ResponseFormat | None) -> dict[str, Any] | None:
    config: dict[str, Any] = {}
    if effort is not None and effort != "none":
        config["effort"] = _EFFORTS.get(effort, effort)
    if wanted is not None:
        if wanted.schema is None:
            raise BadRequest(
                "Messages has no form for any JSON object; give the response format a schema, or ask for JSON in the prompt"
            )
        config["format"] = {"type": "json_schema", "schema": _closed(wanted.schema)}
    return config or None


def _closed(schema: JsonValue) -> Any:
    """Close the objects of a schema that leave open whether they may hold more: the provider takes no open ones."""
    if isinstance(schema, tuple):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            made[name] = {key: _closed(held) for key, held in value.items()}
        else:
            made[name] = value if name in _DATA else _closed(value)
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        made["additionalProperties"] = False
    return made


_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords whose values are schemas by names of the author's choosing."""
_DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are data, not schemas."""
