"""Encoding of requests for the Converse API.

Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, TypeAlias
from urllib.parse import quote

from agentloop.errors import BadRequest
from agentloop.models.config import LLMConfig
from agentloop.models.wire_formats.bedrock_converse.content import (
    NAME,
    call_block,
    content_block,
    document_name,
    opaque_block,
    reasoning_block,
    text_block,
)
from agentloop.models.wire_formats.fields import (
    FormatTerms,
    HostedForm,
    encode_labeled,
    encoded_names,
    merge_entries,
    message_content,
    model_of,
    refuse_duplicates,
    sendable_parts,
    unique_call_ids,
    unused_labels,
    wire_name,
)
from agentloop.models.wire_formats.schemas import closed_schema, flat_parameters
from agentloop.models.wire_formats.wire_format import EncodedRequest
from agentloop.values.inference import (
    InferenceOptions,
    InferenceRequest,
    ReasoningEffort,
    ResponseFormat,
    ToolChoice,
)
from agentloop.values.json import format_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolExchange, ToolExecution, ToolSpec, arguments_text
from agentloop.values.value import encode_each

_TERMS = FormatTerms(
    NAME,
    "Converse",
    {
        "web_search": HostedForm({"systemTool": {"name": "nova_grounding"}}),
        "code_execution": HostedForm({"systemTool": {"name": "nova_code_interpreter"}}),
    },
)
_ELSEWHERE = "leave it out, or pass the model's own parameter in options.extra['additionalModelRequestFields']"
_STREAM_HEADERS: Mapping[str, str] = {"accept": "application/vnd.amazon.eventstream"}
_CACHE_POINT: Mapping[str, Any] = {"cachePoint": {"type": "default"}}
_CACHED_TURNS = 2
"""The messages of the user with a cache point; Bedrock allows four points in a request, one of them after the tools and one after
the system prompt."""
_EFFORTS: Mapping[ReasoningEffort, str] = {"minimal": "low"}
"""The closest effort of Converse, for the efforts that it does not have."""

Block: TypeAlias = Mapping[str, Any]
Segment: TypeAlias = tuple[tuple[str, bytes], ...]
"""The roles and the joined blocks of the Converse messages that a message becomes."""


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Encode a request by joining segments, each of which is encoded once.

    Translations, for what Converse expresses in another way:

    - Consecutive messages of one role become one message, because roles must alternate. A system message within the
      conversation becomes a message of the user.
    - Converse cannot forbid calls, and refuses calls in a conversation without offered tools. For the tool choice `none`, and
      for a request without tools, no tools are sent, and the calls and results of the conversation are sent as text.
    - `cache_prompt` sets cache points after the tools, the system prompt and the last two messages of the user.
    - The effort `minimal` is sent as `low`.

    Raises:
        BadRequest: when Converse has no encoding for something in the request, or `options.extra` repeats an entry of the body;
            names the part.
        UnsupportedOption: when Converse has no equivalent of an option, such as a seed.
    """
    _TERMS.refuse_options(request, config, "seed", "logprobs", "top_logprobs", remedy=_ELSEWHERE)
    hosted = [*map(format_json, _TERMS.hosted_tools(request, config))]
    entries = _entries(request, config)
    is_cached = request.options.cache_prompt or config.options.cache_prompt
    segments: list[bytes] = []
    encoded = {"messages"}
    has_tools = bool(request.tools or hosted) and request.tool_choice.kind != "none"
    # Tools and prompt come before the messages, in the order in which the provider caches prefixes.
    if has_tools:
        encoded.add("toolConfig")
        segments += [b'"toolConfig":', _tool_config(request, hosted, is_cached=is_cached), b","]
    if request.system_prompt.strip():
        encoded.add("system")
        system: list[Block] = [{"text": request.system_prompt}]
        segments += [b'"system":', format_json([*system, _CACHE_POINT] if is_cached else system), b","]
    # Tools may also come from the extra entries, such as those that the provider runs itself.
    messages = encode_messages(request.messages, has_tools=has_tools or "toolConfig" in entries, is_cached=is_cached)
    segments += [b'"messages":[', b",".join(messages), b"]"]
    refuse_duplicates(entries, encoded)
    segments.append(b"," + format_json(entries)[1:] if entries else b"}")
    path = _path(model_of(request, config), stream=stream)
    names = encoded_names(spec.name for spec in request.tools)
    return EncodedRequest(path, b"{" + b"".join(segments), _STREAM_HEADERS if stream else {}, names)


@lru_cache
def _path(model: str, *, stream: bool) -> str:
    # The model may be an ARN, whose slashes and colons belong to one segment of the path.
    return f"/model/{quote(model, safe='')}/{'converse-stream' if stream else 'converse'}"


# --- messages ------------------------------------------------------------------------------------------------------


def encode_messages(messages: Sequence[Message], *, has_tools: bool = True, is_cached: bool = False) -> list[bytes]:
    """Encode a conversation as Converse messages whose roles alternate.

    Args:
        messages: the conversation.
        has_tools: whether the request offers tools; without them, calls and results become text.
        is_cached: whether to set cache points after the last two messages of the user.

    Raises:
        BadRequest: when Converse has no encoding for something in a message; names the part.
    """
    fingerprint = NAME if has_tools else f"{NAME} text"
    # Call ids and document names must be unique within a request.
    segments = encode_labeled(messages, fingerprint, partial(_segment, has_tools=has_tools), _labels, "-")
    return list(_joined(chain.from_iterable(segments), is_cached=is_cached))


def _joined(segments: Iterable[tuple[str, bytes]], *, is_cached: bool) -> Iterator[bytes]:
    """Yield one message for consecutive blocks of the same role."""
    turns = [(role, [blocks for _, blocks in group]) for role, group in groupby(segments, itemgetter(0))]
    if is_cached:
        # The point of the last request stays where it was, because some models read the cache at present points only.
        for blocks in [blocks for role, blocks in turns if role == "user"][-_CACHED_TURNS:]:
            blocks.append(format_json(_CACHE_POINT))
    for role, blocks in turns:
        yield b'{"role":"' + role.encode() + b'","content":[' + b",".join(blocks) + b"]}"


def _labels(message: Message) -> tuple[str, ...]:
    """Return the ids of a message's calls, then the names of its documents, each unique within the message."""
    exchanges = message.exchanges
    ids = tuple(map(wire_name, unique_call_ids(exchanges))) if exchanges else ()
    own = message.parts if message.role == "assistant" else _user_content(message)
    parts = chain(own, *[_result_parts(exchange.execution) for exchange in exchanges])
    names = [document_name(part) for part in parts if isinstance(part, Document)]
    return (*ids, *unused_labels(names, ids, 0, "-")) if names else ids


def _segment(message: Message, labels: Sequence[str], *, has_tools: bool) -> Segment:
    ids, names = labels[: len(message.exchanges)], iter(labels[len(message.exchanges) :])
    if message.role == "assistant":
        turns = _assistant(message, iter(ids), lambda _: next(names), has_tools=has_tools)
    else:
        turns = (("user", _user(message, lambda _: next(names))),)
    return tuple((role, b",".join(map(format_json, blocks))) for role, blocks in turns if blocks)


def _user(message: Message, name_of: Callable[[Document], str]) -> list[Block]:
    blocks = _blocks(_user_content(message), f"a message of the {message.role}", name_of)
    documents = [block["document"]["name"] for block in blocks if "document" in block]
    # The provider refuses a document without a text beside it.
    if documents and not any("text" in block for block in blocks):
        blocks.insert(0, {"text": ", ".join(documents)})
    return blocks


def _user_content(message: Message) -> list[ContentPart]:
    return message_content(message, lambda part: content_block(part, "a message", document_name))


def _assistant(
    message: Message, ids: Iterator[str], name_of: Callable[[Document], str], *, has_tools: bool
) -> tuple[tuple[str, list[Block]], ...]:
    blocks: list[Block] = []
    results: list[Block] = []
    for part in message.parts:
        if not isinstance(part, ToolExchange):
            blocks += _own_blocks(part, has_tools=has_tools)
        elif has_tools:
            call_id = next(ids)
            blocks.append(call_block(part.call, call_id))
            results.append(_result(part.execution, call_id, name_of))
        else:
            blocks.append({"text": f"[call of {part.call.name}: {arguments_text(part.call)}]"})
            results.append({"text": f"[result of {part.call.name}]"})
            results += _result_blocks(part.execution, name_of)
    # The provider refuses a message that ends with reasoning.
    while blocks and "reasoningContent" in blocks[-1]:
        blocks.pop()
    return ("assistant", blocks), ("user", results)


def _own_blocks(part: Part, *, has_tools: bool) -> list[Block]:
    """Return the block for a part of an assistant message other than a call; none if it is not sent."""
    if isinstance(part, Text):
        block = text_block(part)
    elif isinstance(part, Reasoning):
        block = reasoning_block(part)
    elif isinstance(part, ProviderPart):
        block = opaque_block(part)
        # Calls that the provider ran itself are refused, too, in a request without tools.
        if block is not None and not has_tools and not block.keys().isdisjoint({"toolUse", "toolResult"}):
            block = None
    else:
        raise BadRequest(
            f"Converse does not support {type(part).__name__} in an assistant message; remove it, or use a wire format that "
            "supports it"
        )
    return [] if block is None else [block]


def _result(execution: ToolExecution, call_id: str, name_of: Callable[[Document], str]) -> Block:
    # Some models refuse the status, so that only an error, which needs it, has one.
    status = {"status": "error"} if execution.has_error else {}
    return {"toolResult": {"toolUseId": call_id, "content": _result_blocks(execution, name_of), **status}}


def _result_blocks(execution: ToolExecution, name_of: Callable[[Document], str]) -> list[Block]:
    blocks = _blocks(_result_parts(execution), "a result", name_of)
    # Not all models accept a result without content.
    return blocks or [{"text": execution.error_message.strip() or execution.status.value}]


def _result_parts(execution: ToolExecution) -> list[ContentPart]:
    return sendable_parts(execution.parts, _result_medium)


def _result_medium(part: Image | Audio | Document) -> Block | None:
    if isinstance(part, Audio):
        raise BadRequest("Converse does not support Audio in a result; return its transcript")
    return content_block(part, "a result", document_name)


def _blocks(parts: Iterable[ContentPart], container: str, name_of: Callable[[Document], str]) -> list[Block]:
    return [block for block in (content_block(part, container, name_of) for part in parts) if block is not None]


# --- tools and options ---------------------------------------------------------------------------------------------


def _tool_config(request: InferenceRequest, hosted: Sequence[bytes], *, is_cached: bool) -> bytes:
    tools = [*encode_each(request.tools, NAME, _tool), *hosted]
    if is_cached:
        tools.append(format_json(_CACHE_POINT))
    choice = _tool_choice(request.tool_choice)
    chosen = b"" if choice is None else b',"toolChoice":' + format_json(choice)
    return b'{"tools":[' + b",".join(tools) + b"]" + chosen + b"}"


def _tool(spec: ToolSpec) -> bytes:
    description = {"description": spec.description} if spec.description.strip() else {}
    schema = {"json": {"type": "object", **flat_parameters(spec.parameters)}}
    return format_json({"toolSpec": {"name": wire_name(spec.name), **description, "inputSchema": schema}})


def _tool_choice(choice: ToolChoice) -> Block | None:
    if choice.kind == "specific":
        return {"tool": {"name": wire_name(choice.name)}}
    return {"any": {}} if choice.kind == "required" else None


def _entries(request: InferenceRequest, config: LLMConfig) -> dict[str, Any]:
    """Return the entries of the body besides tools, system prompt and messages.

    Raises:
        UnsupportedOption: for an option that Converse does not have; names it.
    """
    if request.parallel_tool_calls is False and request.tools:
        raise _TERMS.refuse("parallel_tool_calls=False", _ELSEWHERE)
    entries = {} if request.response_format is None else _response_format(request.response_format)
    # Later sources override earlier ones, and extra entries override options.
    for source in (config.options, request.options):
        entries = merge_entries(merge_entries(entries, _options(source)), source.extra)
    return entries


def _options(options: InferenceOptions) -> dict[str, Any]:
    inference = {
        "maxTokens": options.max_tokens,
        "temperature": options.temperature,
        "topP": options.top_p,
        "stopSequences": list(options.stop) or None,
    }
    present = {name: value for name, value in inference.items() if value is not None}
    entries: dict[str, Any] = {"inferenceConfig": present} if present else {}
    effort = options.reasoning_effort
    if effort == "none":
        raise _TERMS.refuse("reasoning_effort=none", _ELSEWHERE)
    return entries if effort is None else {**entries, "outputConfig": {"effort": _EFFORTS.get(effort, effort)}}


def _response_format(response_format: ResponseFormat) -> dict[str, Any]:
    if response_format.schema is None:
        raise _TERMS.refuse("response_format=any JSON object", "give it a schema, or ask for JSON in the prompt")
    schema = format_json(closed_schema(response_format.schema)).decode()
    definition = {"jsonSchema": {"name": wire_name(response_format.name), "schema": schema}}
    return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": definition}}}
