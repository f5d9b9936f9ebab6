"""Names and forms of the semantic conventions for generative AI.

Source: https://github.com/open-telemetry/semantic-conventions-genai, `docs/gen-ai` (gen-ai-spans, gen-ai-agent-spans, gen-ai-metrics,
gen-ai-token-metrics, mcp), which are in development. What they do not name begins with `agentloop.`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from agentloop.values.inference import InferenceRequest, InferenceResponse, ResponseFormat, Usage
from agentloop.values.json import parse_json, thaw
from agentloop.values.messages import Message, Part, ResponsePart
from agentloop.values.parts import Media, Reasoning, Text
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution, ToolSpec

# --- attributes -----------------------------------------------------------------------------------------------------

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
AGENT_ID: Final = "gen_ai.agent.id"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
OUTPUT_TYPE: Final = "gen_ai.output.type"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105  # the name of an attribute
TOKEN_MODALITY: Final = "gen_ai.token.modality"  # noqa: S105
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
ERROR_TYPE: Final = "error.type"

EXECUTION_ID: Final = "agentloop.execution.id"
EXECUTION_STATUS: Final = "agentloop.execution.status"
EXECUTION_RESUMED: Final = "agentloop.execution.resumed"
STEP_NUMBER: Final = "agentloop.step.number"
STEP_COUNT: Final = "agentloop.step.count"
STOP_REASON: Final = "agentloop.stop.reason"
CALL_KEY: Final = "agentloop.tool.call.key"
CALL_STATUS: Final = "agentloop.tool.call.status"
CALL_EFFECT_UNCERTAIN: Final = "agentloop.tool.call.may_have_run"
CALL_EAGER: Final = "agentloop.tool.call.eager"
CALL_RECOVERY: Final = "agentloop.tool.call.recovery"
RETRY_ATTEMPT: Final = "agentloop.retry.attempt"
RETRY_DELAY: Final = "agentloop.retry.delay"
RETRY_INSTEAD: Final = "agentloop.retry.instead"
APPROVAL_STATE: Final = "agentloop.approval.state"
APPROVAL_DECISION: Final = "agentloop.approval.decision"
APPROVAL_REASON: Final = "agentloop.approval.reason"
RATE_LIMIT_DELAY: Final = "agentloop.rate_limit.delay"

# --- metrics --------------------------------------------------------------------------------------------------------

OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105
USED_INPUT_TOKENS: Final = "gen_ai.client.inference.usage.input_tokens"
USED_OUTPUT_TOKENS: Final = "gen_ai.client.inference.usage.output_tokens"
USED_CACHE_READ_TOKENS: Final = "gen_ai.client.inference.usage.cache_read.input_tokens"
USED_CACHE_WRITE_TOKENS: Final = "gen_ai.client.inference.usage.cache_write.input_tokens"
USED_REASONING_TOKENS: Final = "gen_ai.client.inference.usage.reasoning.output_tokens"
INVOKE_AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
EXECUTE_TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
QUEUE_DURATION: Final = "agentloop.queue.duration"

DURATION_BOUNDARIES: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The boundaries of histograms of seconds."""
TOKEN_BOUNDARIES: Final = tuple(4.0**power for power in range(14))
"""The boundaries of histograms of tokens, from 1 to 67,108,864."""

# --- providers ------------------------------------------------------------------------------------------------------

_PROVIDERS: Final[Mapping[str, str]] = {
    "openai-responses": "openai",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "vertex": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "xai": "x_ai",
    "ollama-native": "ollama",
}
"""Providers of this package whose names in the conventions are others."""


def split_model(name: str) -> tuple[str, str]:
    """Return the provider and the model of a name such as `openai:gpt-5`, as the conventions name them; empty if unknown."""
    provider, colon, model = name.partition(":")
    if not colon or "/" in provider:  # a bare name may have a colon, as in `org/model:tag`
        return "", name
    return _PROVIDERS.get(provider, provider), model


# --- requests and responses -----------------------------------------------------------------------------------------


def request_attributes(request: InferenceRequest, *, is_streamed: bool) -> dict[str, Any]:
    """Return the attributes of a request, without its content."""
    options = request.options
    found: dict[str, Any] = {
        REQUEST_SEED: options.seed,
        REQUEST_MAX_TOKENS: options.max_tokens,
        REQUEST_TEMPERATURE: options.temperature,
        REQUEST_TOP_P: options.top_p,
        REQUEST_STOP_SEQUENCES: options.stop or None,
        REQUEST_STREAM: True if is_streamed else None,
        OUTPUT_TYPE: "json" if isinstance(request.response_format, ResponseFormat) else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def response_attributes(response: InferenceResponse) -> dict[str, Any]:
    """Return the attributes of a response, without its content."""
    found: dict[str, Any] = {
        RESPONSE_ID: response.id or None,
        RESPONSE_MODEL: response.model or None,
        RESPONSE_FINISH_REASONS: (response.provider_finish_reason or response.finish_reason.value,),
        **usage_attributes(response.usage),
    }
    return {name: value for name, value in found.items() if value is not None}


def usage_attributes(usage: Usage) -> dict[str, int]:
    """Return the counts of tokens that are known; parts of the input and output only where there are some."""
    found = {INPUT_TOKENS: usage.input_tokens, OUTPUT_TOKENS: usage.output_tokens}
    parts = {
        CACHE_READ_TOKENS: usage.cached_input_tokens,
        CACHE_CREATION_TOKENS: usage.cache_write_tokens,
        REASONING_TOKENS: usage.reasoning_tokens,
    }
    known = {name: count for name, count in found.items() if count is not None}
    return known | {name: count for name, count in parts.items() if count}


# --- content --------------------------------------------------------------------------------------------------------


def input_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages in the form of the conventions: the outcomes of calls are messages of the role `tool`."""
    found: list[dict[str, Any]] = []
    for message in messages:
        found.append({"role": message.role, "parts": [_part(part) for part in message.parts]})
        outcomes = [_outcome(part.execution) for part in message.parts if isinstance(part, ToolExchange)]
        if outcomes:
            found.append({"role": "tool", "parts": outcomes})
    return found


def output_messages(response: InferenceResponse) -> list[dict[str, Any]]:
    """Return the message of a response in the form of the conventions."""
    parts = [_part(part) for part in response.parts]
    return [{"role": "assistant", "parts": parts, "finish_reason": response.finish_reason.value}]


def system_instructions(prompt: str) -> list[dict[str, Any]]:
    """Return a system prompt in the form of the conventions."""
    return [{"type": "text", "content": prompt}]


def tool_definitions(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the offered tools in the form of the conventions."""
    return [
        {
            "type": "function",
            "name": spec.name,
            "description": spec.description,
            "parameters": thaw(spec.parameters),
        }
        for spec in specs
    ]


def _part(part: Part | ResponsePart) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "content": text}
        case Reasoning(text):
            return {"type": "reasoning", "content": text}
        case ToolCall() | ToolExchange():
            return _call(part if isinstance(part, ToolCall) else part.call)
        case Media():
            return _media(part)
    return {"type": part.wire_format, "payload": thaw(part.payload)}


def _media(part: Media) -> dict[str, Any]:
    # Without the data, which can be megabytes: spans are no store of files.
    size = None if part.data is None else len(part.data)
    found = {"mime_type": part.media_type or None, "uri": part.url, "file_id": part.file_id, "size": size}
    kind = "uri" if part.url else "file" if part.file_id else "media"
    known = {name: value for name, value in found.items() if value is not None}
    return {"type": kind, "modality": type(part).__name__.lower(), **known}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": _parsed(call.arguments_json)}


def _parsed(text: str) -> Any:
    """Return arguments as data; text that is no JSON as it is."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def _outcome(execution: ToolExecution) -> dict[str, Any]:
    return {"type": "tool_call_response", "id": execution.call.id, "response": execution.text}
