"""Requests of Messages.

Source: https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.errors import BadRequest
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.anthropic_messages.blocks import FORMAT
from agentloop.inference.wire_formats.anthropic_messages.messages import encode_messages
from agentloop.inference.wire_formats.tool_names import renamed, wire_name
from agentloop.inference.wire_formats.wire_format import EncodedRequest
from agentloop.values.encode_once import encode_each
from agentloop.values.inference_request import InferenceRequest, ReasoningEffort, ResponseFormat, ToolChoice
from agentloop.values.json_text import format_json
from agentloop.values.json_value import JsonValue
from agentloop.values.tool_spec import ToolSpec

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
