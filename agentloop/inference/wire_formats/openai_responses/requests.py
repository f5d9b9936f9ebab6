"""Requests of the Responses API.

The conversation is ours: requests say `store: false` and carry it whole, unless `options.extra` says otherwise.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from agentloop.errors import BadRequest
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.body_entries import refuse_twice
from agentloop.inference.wire_formats.openai_responses.input_items import NAME, encode_message
from agentloop.inference.wire_formats.tool_names import renamed, wire_name
from agentloop.inference.wire_formats.wire_format import EncodedRequest
from agentloop.values.encode_once import encode_each
from agentloop.values.inference_request import InferenceOptions, InferenceRequest, ResponseFormat, ToolChoice
from agentloop.values.json_text import format_json
from agentloop.values.tool_spec import ToolSpec

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
