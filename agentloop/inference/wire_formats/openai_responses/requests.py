"""Requests of the Responses API.

The conversation is ours: requests say `store: false` and carry it whole, unless `options.extra` says otherwise.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from agentloop.errors import BadRequest
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.fields import refuse_twice, renamed, turn_ids, wire_name
from agentloop.inference.wire_formats.wire_format import EncodedRequest
from agentloop.values.inference import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.json import EMPTY_OBJECT, format_json
from agentloop.values.messages import Message, Part
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.tool_calls import ContentPart, ToolExchange, ToolSpec, arguments_text
from agentloop.values.value import encode_each

NAME = "openai-responses"
CUSTOM = "custom_tool_call"
"""The type of a call whose arguments are free text."""


def encode_message(message: Message, *, stored: bool) -> bytes:
    """Spell a message as input items, joined by commas; some messages have none.

    Args:
        message: the message.
        stored: whether the provider keeps what it answered, so that its id alone is enough.

    Raises:
        BadRequest: when the message holds what an item cannot carry; names the part.
    """
    if message.role == "assistant":
        return b",".join(map(format_json, _assistant(message, stored=stored)))
    parts = [part for part in message.parts if isinstance(part, Text | Image | Audio | Document)]
    return format_json({"type": "message", "role": message.role, "content": _content(parts, "a message")})


def _assistant(message: Message, *, stored: bool) -> list[dict[str, Any]]:
    """Spell an answer in the order it came, and then the outputs of its calls."""
    ids = iter(turn_ids(message.exchanges))
    answered = _answered(message.parts)
    items: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Text):
            _add_text(items, part)
        elif isinstance(part, Reasoning):
            _add_reasoning(items, part, stored=stored)
        elif isinstance(part, ToolExchange):
            call_id = next(ids)
            items.append(_call(part, call_id))
            outputs.append(_output(part, call_id))
        elif isinstance(part, ProviderPart):
            _add_opaque(items, part, answered)
        else:
            raise BadRequest(
                f"the Responses API cannot carry {type(part).__name__} in a message of the assistant; leave it out, or use a "
                "wire format that can"
            )
    _drop_reasoning_at_end(items)
    return [*items, *outputs]


def state_of(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what this format noted in the provider data of a part."""
    state = data.get(NAME)
    return state if isinstance(state, dict) else EMPTY_OBJECT


def _add_text(items: list[dict[str, Any]], part: Text) -> None:
    """Add text: as the message that it came in, which may hold several, or as a new one."""
    state = state_of(part.provider_data)
    item = state.get("item")
    if not isinstance(item, dict) or not item.get("id"):
        if part.text:
            items.append({"type": "message", "role": "assistant", "content": part.text})
        return
    piece = _output_text(part.text, state.get("content"))
    pieces = items[-1].get("content") if items and items[-1].get("id") == item["id"] else None
    if isinstance(pieces, list):
        pieces.append(piece)
    else:
        items.append({"status": "completed", **item, "type": "message", "role": "assistant", "content": [piece]})


def _output_text(text: str, content: object) -> dict[str, Any]:
    content = content if isinstance(content, dict) else EMPTY_OBJECT
    if content.get("type") == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": content.get("annotations") or []}


def _add_reasoning(items: list[dict[str, Any]], part: Reasoning, *, stored: bool) -> None:
    """Add reasoning of this format as it came; the id alone means nothing to a provider that did not keep it."""
    item = state_of(part.provider_data)
    if item.get("id") and (stored or item.get("encrypted_content") or item.get("content")):
        items.append({"summary": [], **item, "type": "reasoning"})


def _add_opaque(items: list[dict[str, Any]], part: ProviderPart, answered: frozenset[object]) -> None:
    """Add an item of this format as it came; a call that waits for our answer cannot go without one."""
    item = part.payload
    if part.wire_format != NAME or not isinstance(item, dict):
        return
    if _waits(item) and item.get("call_id") not in answered:
        _drop_reasoning_at_end(items)
    else:
        items.append(item)


def _waits(item: Mapping[str, Any]) -> bool:
    """Say whether an item is a call that somebody else than the provider has to answer."""
    return str(item.get("type")).endswith("_call") and bool(item.get("call_id"))


def _answered(parts: Iterable[Part]) -> frozenset[object]:
    """Find the calls that the provider has answered itself."""
    payloads = [part.payload for part in parts if isinstance(part, ProviderPart)]
    return frozenset(
        item.get("call_id") or item.get("id")
        for item in payloads
        if isinstance(item, dict) and str(item.get("type")).endswith("_output")
    )


def _drop_reasoning_at_end(items: list[dict[str, Any]]) -> None:
    """Drop reasoning that nothing follows; the provider refuses it."""
    while items and items[-1].get("type") == "reasoning":
        items.pop()


def _call(exchange: ToolExchange, call_id: str) -> dict[str, Any]:
    call = exchange.call
    state, name = state_of(call.provider_data), wire_name(call.name)
    if state.get("type") == CUSTOM:
        return {**state, "type": CUSTOM, "call_id": call_id, "name": name, "input": call.arguments_json}
    return {**state, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments_text(call)}


def _output(exchange: ToolExchange, call_id: str) -> dict[str, Any]:
    state = state_of(exchange.call.provider_data)
    kind = f"{CUSTOM}_output" if state.get("type") == CUSTOM else "function_call_output"
    shown = _content(exchange.execution.parts, f"the result of the tool {exchange.execution.name!r}")
    output = {"type": kind, "call_id": call_id, "output": shown}
    return {**output, "caller": state["caller"]} if state.get("caller") else output


def _content(parts: Iterable[ContentPart], where: str) -> Any:
    parts = tuple(parts)
    if all(isinstance(part, Text) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, Text))
    return [_part(part, where) for part in parts]


def _part(part: ContentPart, where: str) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Audio):
        raise BadRequest(f"{where} holds Audio, which the Responses API cannot carry; use a wire format that can")
    spelled: dict[str, Any] = (
        {"type": "input_image", "detail": "auto"} if isinstance(part, Image) else {"type": "input_file"}
    )
    if part.file_id is not None:
        spelled["file_id"] = part.file_id
    elif isinstance(part, Image):
        spelled["image_url"] = part.url or _data_url(part)
    elif part.url is not None:
        spelled["file_url"] = part.url
    else:
        kind = part.media_type.partition(";")[0].strip().rpartition("/")[2]
        spelled["filename"] = part.name or f"document.{kind}"
        spelled["file_data"] = _data_url(part)
    return spelled


def _data_url(part: Image | Document) -> str:
    return f"data:{part.media_type};base64,{base64.b64encode(part.data or b'').decode()}"


PATH = "/responses"
_ENCRYPTED = "reasoning.encrypted_content"


def encode_request(request: InferenceRequest, config: LLMConfig, *, stream: bool = False) -> EncodedRequest:
    """Spell a request: a join of segments, each encoded once.

    What `options.extra` holds goes into the body: `text` and `reasoning` entry by entry, and the items of `tools` (the
    provider's own tools) and `include` after ours.

    Raises:
        BadRequest: when a message or an option is what the Responses API cannot carry, or an option spells what the request
            does; names it.
    """
    rest = _rest(request, config, stream=stream)
    tools = [*encode_each(request.tools, NAME, _tool), *map(format_json, rest.pop("tools", ()))]
    if not tools:
        rest.pop("tool_choice", None)
        rest.pop("parallel_tool_calls", None)
    stored = rest["store"] is True
    encode = partial(encode_message, stored=stored)
    items = [text for text in encode_each(request.messages, f"{NAME} stored={stored}", encode) if text]
    pieces = [b'{"model":', format_json(request.options.model or config.options.model or config.model)]
    if request.system_prompt:
        pieces += [b',"instructions":', format_json(request.system_prompt)]
    if tools:
        pieces += [b',"tools":[', b",".join(tools), b"]"]
    pieces += [b',"input":[', b",".join(items), b"],", format_json(rest)[1:]]
    return EncodedRequest(PATH, b"".join(pieces), tool_names=renamed(spec.name for spec in request.tools))


def _rest(request: InferenceRequest, config: LLMConfig, *, stream: bool) -> dict[str, Any]:
    """Spell what stands beside model, instructions and input; `tools` are those that `options.extra` adds."""
    rest: dict[str, Any] = {"store": False}
    if request.tool_choice.kind != "auto":
        rest["tool_choice"] = _tool_choice(request.tool_choice)
    if request.parallel_tool_calls is not None:
        rest["parallel_tool_calls"] = request.parallel_tool_calls
    if request.response_format is not None:
        rest["text"] = {"format": _text_format(request.response_format)}
    for options in (config.options, request.options):
        rest = _joined(_joined(rest, _options(options)), _checked(options.extra, request))
    if stream:
        rest["stream"] = True
    if rest["store"] is not True and _reasons(rest.get("reasoning")):
        # models that do not reason refuse to be asked for it
        rest = _joined({"include": [_ENCRYPTED]}, rest)
    return rest


def _options(options: InferenceOptions) -> dict[str, Any]:
    for name in ("stop", "seed"):
        if getattr(options, name) not in {None, ()}:
            raise BadRequest(
                f"the Responses API has no option {name!r}; leave it out, or pass it in options.extra to a service that has it"
            )
    effort = options.reasoning_effort
    spelled = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_output_tokens": options.max_tokens,
        "reasoning": {"effort": effort} if effort else None,
    }
    return {name: value for name, value in spelled.items() if value is not None}


def _checked(extra: Mapping[str, Any], request: InferenceRequest) -> Mapping[str, Any]:
    """Refuse what would stand twice in the body, and lists that are none."""
    refuse_twice(extra, ["model", "input", "stream", *(["instructions"] if request.system_prompt else [])])
    for name in ("tools", "include"):
        if not isinstance(extra.get(name, ()), list | tuple):
            raise BadRequest(f"options.extra holds {name!r} that is no list; give a list")
    return extra


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Join entries of a body: the second's before the first's, objects entry by entry, lists of tools and such one after the other."""
    joined = dict(first)
    for name, value in second.items():
        before = joined.get(name)
        if name in {"text", "reasoning"} and isinstance(before, dict) and isinstance(value, dict):
            joined[name] = {**before, **value}
        elif name in {"tools", "include"} and before:
            joined[name] = [*before, *(item for item in value if item not in before)]
        else:
            joined[name] = value
    return joined


def _reasons(reasoning: object) -> bool:
    return isinstance(reasoning, dict) and reasoning.get("effort") != "none"


def _tool_choice(choice: ToolChoice) -> Any:
    return {"type": "function", "name": wire_name(choice.name)} if choice.kind == "specific" else choice.kind


def _text_format(wanted: ResponseFormat) -> dict[str, Any]:
    if wanted.schema is None:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "name": wire_name(wanted.name),
        "schema": wanted.schema,
        "strict": wanted.strict,
    }


def _tool(spec: ToolSpec) -> bytes:
    """Spell a tool; strict mode refuses most schemas, and arguments are validated before a tool runs in any case."""
    return format_json(
        {
            "type": "function",
            "name": wire_name(spec.name),
            "description": spec.description,
            "parameters": spec.parameters,
            "strict": False,
        }
    )
