"""Encoding of requests for the Messages API.

Source: https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from agentloop.errors import BadRequest
from agentloop.models.config import LLMConfig
from agentloop.models.model_capabilities import published_capabilities
from agentloop.models.wire_formats.anthropic_messages.content import (
    CONTAINER,
    NAME,
    call_block,
    container_id,
    content_block,
    extra_entries,
    opaque_block,
    text_block,
    thinking_block,
)
from agentloop.models.wire_formats.fields import (
    FormatTerms,
    HostedForm,
    encode_labeled,
    encoded_names,
    message_content,
    refuse_duplicates,
    sendable_parts,
    unique_call_ids,
    wire_name,
)
from agentloop.models.wire_formats.schemas import closed_schema, flat_parameters
from agentloop.models.wire_formats.wire_format import EncodedRequest
from agentloop.values.capabilities import Capabilities
from agentloop.values.inference import InferenceRequest, ReasoningEffort, ResponseFormat, ToolChoice
from agentloop.values.json import format_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolExchange, ToolSpec
from agentloop.values.value import encode_each

PATH = "/messages"
_HEADERS: Mapping[str, str] = {"anthropic-version": "2023-06-01"}
_BETA = "anthropic-beta"
_BINDING = "block_binding"
_DROPPED_IF_CHANGED: Mapping[str, Any] = {_BINDING: {"prefix_mismatch_behavior": "drop_block"}}
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_CACHE_BREAKPOINT: Mapping[str, str] = {"type": "ephemeral"}
_EFFORTS: Mapping[ReasoningEffort, str] = {"minimal": "low"}
"""The closest effort of the Messages API, for the efforts that it does not have."""
_TERMS = FormatTerms(
    NAME,
    "the Messages API",
    {
        "web_search": HostedForm(
            {"type": "web_search_20250305", "name": "web_search"},
            {"allowed_domains": "allowed_domains", "blocked_domains": "blocked_domains", "max_uses": "max_uses"},
        ),
        "code_execution": HostedForm({"type": "code_execution_20250825", "name": "code_execution"}),
    },
)


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Encode a request by joining segments, each of which is encoded once.

    Options without a direct equivalent:

    - Temperature and top_p are sent when set, although newer models refuse them.
    - The effort `none` disables thinking, and is `low` for a model that always thinks; any other effort enables adaptive
      thinking, unless the tool choice forces a call, which the provider does not allow together with thinking.
    - Models that accept thinking only behind what preceded it are asked to drop it where that has changed, such as in a window of
      the conversation, instead of refusing the request.
    - A message of the system within the conversation becomes a message of the user, unless the model accepts it in its place.
    - When the conversation contains calls but the request offers no tools, the called tools are declared and the tool choice
      forbids calls, because the provider refuses calls of undeclared tools.
    - A schema for the response is enforced whether or not it is `strict`.

    Raises:
        BadRequest: when the Messages API has no encoding for something in the request, or `options.extra` repeats an entry
            of the body; names the part.
        UnsupportedOption: when the Messages API has no equivalent of an option.
    """
    _TERMS.refuse_options(request, config, "seed", "logprobs", "top_logprobs")
    options = _Options(request, config)
    segments = [b'{"model":', format_json(options.model)]
    encoded = {"model", "messages"}
    # Tools and prompt come before the messages, in the order in which the provider caches prefixes.
    tools = _tools(options)
    if tools:
        encoded.add("tools")
        segments += [b',"tools":[', b",".join(tools), b"]"]
    system = _system(request.system_prompt, is_cached=options.is_cached)
    if system is not None:
        encoded.add("system")
        segments += [b',"system":', format_json(system)]
    messages = _placed(request.messages, has_system_role=options.known.system_messages)
    segments += [b',"messages":[', b",".join(messages), b"]"]
    entries = _entries(options, has_tools=bool(tools), stream=stream)
    refuse_duplicates(entries, encoded)
    segments += [b",", format_json(entries)[1:]]
    names = encoded_names(spec.name for spec in request.tools)
    return EncodedRequest(PATH, b"".join(segments), _headers(entries, config), names)


def _headers(entries: Mapping[str, Any], config: LLMConfig) -> Mapping[str, str]:
    thinking = entries.get("thinking")
    if not isinstance(thinking, Mapping) or _BINDING not in thinking:
        return _HEADERS
    # The headers of a request override those of the configuration, whose features would be lost.
    configured = [name for name in config.headers.get(_BETA, "").split(",") if name.strip()]
    return {**_HEADERS, _BETA: ",".join(dict.fromkeys([*map(str.strip, configured), _BINDING_BETA]))}


# --- messages ------------------------------------------------------------------------------------------------------

_THINKING_BLOCKS = frozenset({"thinking", "redacted_thinking"})
_SYSTEM_ROLE, _USER_ROLE = b'{"role":"system"', b'{"role":"user"'


def encode_messages(messages: Sequence[Message]) -> list[bytes]:
    """Encode messages: one segment for each message that is not empty.

    An assistant message becomes an assistant message with its blocks in the order of the parts, and a user message with the
    results.

    Raises:
        BadRequest: when the Messages API has no encoding for something in a message; names the part.
    """
    return [segment for segment in _segments(messages) if segment]


def _segments(messages: Sequence[Message]) -> list[bytes]:
    # The provider requires call ids that are unique within the whole conversation.
    return encode_labeled(messages, NAME, _segment, _call_ids, "_")


def _placed(messages: Sequence[Message], *, has_system_role: bool) -> list[bytes]:
    """Encode messages, with those of the system in the role of the user where they cannot have their own.

    A message of the system has to follow one of the user, and to precede one of the assistant or nothing.

    Args:
        messages: the conversation.
        has_system_role: whether the model accepts messages of the system at all.
    """
    segments = _segments(messages)
    if not any(message.role == "system" for message in messages):  # as usual
        return [segment for segment in segments if segment]
    sent = [(message, segment) for message, segment in zip(messages, segments, strict=True) if segment]
    placed: list[bytes] = []
    follows_user = False
    for index, (message, segment) in enumerate(sent, 1):
        precedes_assistant = index == len(sent) or sent[index][0].role == "assistant"
        has_own_role = has_system_role and follows_user and precedes_assistant
        as_user = message.role == "system" and not has_own_role
        placed.append(_USER_ROLE + segment.removeprefix(_SYSTEM_ROLE) if as_user else segment)
        # The results of calls are a message of the user.
        follows_user = as_user or message.role == "user" or bool(message.exchanges)
    return placed


def _call_ids(message: Message) -> tuple[str, ...]:
    """Return the ids of a message's calls in the form that the provider accepts, without duplicates."""
    exchanges = message.exchanges
    return tuple(map(wire_name, unique_call_ids(exchanges))) if exchanges else ()


def _segment(message: Message, labels: Sequence[str]) -> bytes:
    if message.role == "assistant":
        encoded = _assistant(message, labels)
    else:
        container = f"a message of the {message.role}"
        content = message_content(message, lambda part: _blocks((part,), container))
        encoded = [_message(message.role, _blocks(content, container))]
    return b",".join(format_json(item) for item in encoded if item["content"])


def _message(role: str, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"role": role, "content": content}


def _assistant(message: Message, ids: Sequence[str]) -> list[dict[str, Any]]:
    remaining_ids = iter(ids)
    blocks: list[Mapping[str, Any]] = []
    results: list[Mapping[str, Any]] = []
    for part in message.parts:
        if isinstance(part, ToolExchange):
            call_id = next(remaining_ids)
            blocks.append(call_block(part.call, call_id))
            results.append(_result(part, call_id))
        else:
            block = _block(part)
            if block is not None:
                blocks.append(block)
    # The provider refuses a message that ends with thinking.
    while blocks and blocks[-1]["type"] in _THINKING_BLOCKS:
        blocks.pop()
    return [_message("assistant", blocks), _message("user", results)]


def _block(part: Part) -> Mapping[str, Any] | None:
    if isinstance(part, Text):
        return text_block(part)
    if isinstance(part, Reasoning):
        return thinking_block(part)
    if isinstance(part, ProviderPart):
        return opaque_block(part)
    raise BadRequest(
        f"the Messages API does not support {type(part).__name__} in an assistant message; remove it, or use a wire format "
        "that supports it"
    )


def _result(exchange: ToolExchange, call_id: str) -> dict[str, Any]:
    execution = exchange.execution
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    content = _blocks(sendable_parts(execution.parts, lambda part: _blocks((part,), "a result")), "a result")
    if content:
        result["content"] = content
    if execution.has_error:
        result["is_error"] = True
        if not content:  # the provider refuses an error without content
            result["content"] = execution.error_message.strip() or execution.status.value
    toolset = extra_entries(exchange.call).get("toolset_name")
    return {**result, "toolset_name": toolset} if toolset else result


def _blocks(parts: Iterable[ContentPart], container: str) -> list[Mapping[str, Any]]:
    return [block for block in (content_block(part, container) for part in parts) if block is not None]


# --- tools, system prompt and options ------------------------------------------------------------------------------


@frozen
class _Options:
    """The options of a request, with those of the configuration as defaults."""

    request: InferenceRequest
    config: LLMConfig

    @property
    def model(self) -> str:
        return str(self.get("model") or self.config.model)

    @property
    def known(self) -> Capabilities:
        return published_capabilities(self.config.provider, self.model, NAME)

    @property
    def extra(self) -> dict[str, Any]:
        return {**self.config.options.extra, **self.request.options.extra}

    @property
    def is_cached(self) -> bool:
        return self.request.options.cache_prompt or self.config.options.cache_prompt

    def get(self, name: str) -> Any:
        value = getattr(self.request.options, name)
        return getattr(self.config.options, name) if value is None or value == () else value


def _tools(options: _Options) -> list[bytes]:
    offered = options.request.tools
    hosted = _TERMS.hosted_tools(options.request, options.config)
    if not offered and not hosted:
        return [] if "tools" in options.extra else _called_tools(options.request)
    tools = encode_each(offered, NAME, _tool)
    # A breakpoint at the last tool covers all tools.
    if options.is_cached and hosted:
        hosted[-1] = {"cache_control": _CACHE_BREAKPOINT, **hosted[-1]}
    elif options.is_cached:
        tools[-1] = offered[-1].encoded(f"{NAME} cached", _cached_tool)
    return [*tools, *map(format_json, hosted)]


def _tool(spec: ToolSpec) -> bytes:
    return format_json(_declaration(spec))


def _cached_tool(spec: ToolSpec) -> bytes:
    return format_json({**_declaration(spec), "cache_control": _CACHE_BREAKPOINT})


def _declaration(spec: ToolSpec) -> dict[str, Any]:
    description = {"description": spec.description} if spec.description else {}
    schema = {"type": "object", **flat_parameters(spec.parameters)}
    return {"name": wire_name(spec.name), **description, "input_schema": schema}


def _called_tools(request: InferenceRequest) -> list[bytes]:
    """Declare the tools that the conversation called, in the order of their first calls."""
    names = dict.fromkeys(
        wire_name(exchange.call.name) for message in request.messages for exchange in message.exchanges
    )
    return [format_json({"name": name, "input_schema": {"type": "object"}}) for name in names]


def _system(prompt: str, *, is_cached: bool) -> Any:
    if not prompt.strip():
        return None
    return [{"type": "text", "text": prompt, "cache_control": _CACHE_BREAKPOINT}] if is_cached else prompt


def _entries(options: _Options, *, has_tools: bool, stream: bool) -> dict[str, Any]:
    """Return the entries of the body that follow model, tools, system and messages."""
    request = options.request
    is_offered = bool(request.tools or options.get("hosted_tools"))
    choice = _tool_choice(request) if is_offered else {"type": "none"} if has_tools else None
    effort: ReasoningEffort | None = options.get("reasoning_effort")
    if effort == "none" and not options.known.optional_reasoning:
        effort = "low"
    max_tokens = options.get("max_tokens")
    entries = {
        "max_tokens": options.config.quirks.default_max_tokens if max_tokens is None else max_tokens,
        "temperature": options.get("temperature"),
        "top_p": options.get("top_p"),
        "stop_sequences": list(options.get("stop")) or None,
        "tool_choice": choice,
        "thinking": _thinking(effort, choice, is_bound=options.known.bound_reasoning),
        "output_config": _output_config(effort, request.response_format),
        "cache_control": _CACHE_BREAKPOINT if options.is_cached else None,
        "stream": True if stream else None,
        CONTAINER: _open_container(request.messages),
    }
    # The extra entries come last and override the options.
    present = {name: value for name, value in entries.items() if value is not None}
    return {**present, **_merged_extra(options.extra, present)}


def _open_container(messages: Sequence[Message]) -> object:
    """Return the container that waits for the results of its calls, or for its continuation; another one may have expired."""
    if not messages or messages[-1].role != "assistant":
        return None
    exchanges = messages[-1].exchanges
    callers = [extra_entries(exchange.call).get("caller") for exchange in exchanges]
    is_waiting = not exchanges or any(isinstance(caller, dict) and caller.get("tool_id") for caller in callers)
    return container_id(messages[-1]) if is_waiting else None


def _merged_extra(extra: dict[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the `output_config` and the `container` of `options.extra` with those of the request instead of replacing them."""
    configured = {"output_config": entries.get("output_config"), CONTAINER: {"id": entries.get(CONTAINER)}}
    present = {name: value for name, value in configured.items() if entries.get(name)}
    merged = {
        name: {**value, **extra[name]}
        for name, value in present.items()
        if isinstance(value, dict) and isinstance(extra.get(name), dict)
    }
    return {**extra, **merged}


def _tool_choice(request: InferenceRequest) -> dict[str, Any] | None:
    choice: ToolChoice = request.tool_choice
    if choice.kind == "none":
        return {"type": "none"}
    parallel = {"disable_parallel_tool_use": True} if request.parallel_tool_calls is False else {}
    if choice.kind == "auto":
        return {"type": "auto", **parallel} if parallel else None
    if choice.kind == "required":
        return {"type": "any", **parallel}
    return {"type": "tool", "name": wire_name(choice.name), **parallel}


def _thinking(
    effort: ReasoningEffort | None, choice: Mapping[str, Any] | None, *, is_bound: bool
) -> dict[str, Any] | None:
    if effort == "none":
        return {"type": "disabled"}
    # The provider refuses thinking together with a forced call.
    is_forced = choice is not None and choice["type"] in {"any", "tool"}
    # Adaptive thinking is the default of the models that bind it.
    if is_forced or (effort is None and not is_bound):
        return None
    return {"type": "adaptive", **(_DROPPED_IF_CHANGED if is_bound else {})}


def _output_config(effort: ReasoningEffort | None, response_format: ResponseFormat | None) -> dict[str, Any] | None:
    config: dict[str, Any] = {}
    if effort is not None and effort != "none":
        config["effort"] = _EFFORTS.get(effort, effort)
    if response_format is not None:
        if response_format.schema is None:
            raise _TERMS.refuse("response_format=any JSON object", "give it a schema, or ask for JSON in the prompt")
        config["format"] = {"type": "json_schema", "schema": closed_schema(response_format.schema)}
    return config or None
