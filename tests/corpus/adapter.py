"""The functions that the judge of the corpus calls, implemented with the public API of agentloop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentloop import (
    AgentLoop,
    AgentState,
    HttpInference,
    Interceptor,
    LLMConfig,
    Message,
    ToolCall,
    ToolCallingDriver,
    ToolExecutor,
)
from agentloop.contracts import CanInfer, Tool
from agentloop.contracts.tools import Tools
from agentloop.errors import MalformedArguments
from agentloop.interception import BeforeInference
from agentloop.models.text_calls import read_calls
from agentloop.tools import SchemaValidator
from agentloop.values import (
    Effect,
    InferenceRequest,
    InferenceResponse,
    ProviderPart,
    Text,
    ToolCalls,
    ToolSpec,
    thaw,
)
from agentloop.values.messages import ResponsePart
from agentloop.values.policies import RetryPolicy

NO_RETRIES = RetryPolicy(max_attempts=1)
FORMATS = (
    "openai-chat",
    "openai-responses",
    "anthropic-messages",
    "gemini",
    "ollama",
    "bedrock-converse",
    "cohere-v2",
)


def format_name(wire_format: str) -> str:
    """Return the name of a wire format in agentloop for its name in the corpus."""
    return "ollama" if wire_format == "ollama_chat" else wire_format.replace("_", "-")


def inference_for(wire_format: str, base_url: str, body: Mapping[str, Any] | None = None) -> HttpInference:
    """Return an inference for a server that replays recorded responses."""
    name = format_name(wire_format)
    if name not in FORMATS:
        raise NotImplementedError(wire_format)
    model = str((body or {}).get("model") or "recorded")
    return HttpInference(
        LLMConfig(model=model, base_url=base_url, wire_format=name, api_key="not-a-key", retry=NO_RETRIES)
    )


def decode(wire_format: str, base_url: str, stream: bool, body: Mapping[str, Any] | None) -> dict[str, Any]:
    """Send one request, and return the decoded response."""
    response = asyncio.run(_infer(inference_for(wire_format, base_url, body), stream))
    return {
        "text": "".join(part.text for part in response.parts if isinstance(part, Text) and not is_refusal(part)),
        "tool_calls": [call for part in response.parts for call in calls_in(part)],
        "finish": response.provider_finish_reason,
        "usage": {
            "input_tokens": response.usage.input_tokens,
            "output_tokens": output_tokens(wire_format, response),
        },
    }


def calls_in(part: ResponsePart) -> list[dict[str, Any]]:
    """Return a call as the judge describes it; of Bedrock, it also counts those that the provider ran itself."""
    if isinstance(part, ToolCall):
        return [{"id": part.id or None, "name": part.name, "arguments": arguments_of(part)}]
    payload = part.payload if isinstance(part, ProviderPart) and part.wire_format == "bedrock-converse" else None
    call = payload.get("toolUse") if isinstance(payload, Mapping) else None
    if not isinstance(call, Mapping):
        return []
    return [{"id": call["toolUseId"], "name": call["name"], "arguments": thaw(call["input"])}]


def arguments_of(call: ToolCall) -> Any:
    """Return the arguments; None when they are not a JSON object, as for tools that take plain text."""
    try:
        return thaw(call.arguments)
    except MalformedArguments:
        return None


def output_tokens(wire_format: str, response: InferenceResponse) -> int | None:
    """Return the output tokens as the judge counts them: neither Gemini nor xAI includes reasoning tokens."""
    usage = response.usage
    is_apart = wire_format == "gemini" or (wire_format == "openai_chat" and response.model.startswith("grok"))
    if not is_apart or usage.output_tokens is None:
        return usage.output_tokens
    return usage.output_tokens - (usage.reasoning_tokens or 0)


def is_refusal(part: Text) -> bool:
    """Return whether a text is a refusal, which the judge does not count as text."""
    return any(isinstance(data, Mapping) and data.get("type") == "refusal" for data in part.provider_data.values())


async def _infer(inference: CanInfer, stream: bool) -> InferenceResponse:
    request = InferenceRequest([Message.user("What was recorded?")])
    if not stream:
        return await inference.infer(request)
    items = [item async for item in inference.stream(request)]
    assert isinstance(items[-1], InferenceResponse)
    return items[-1]


def run_loop(
    wire_format: str, base_url: str, stream: bool, system: str | None, user: str, tools: Sequence[Mapping[str, Any]]
) -> str:
    """Run a recorded conversation, and return the final text."""
    driver = ToolCallingDriver(inference_for(wire_format, base_url), mode="native", streaming=stream)
    loop = AgentLoop(
        driver,
        [RecordedTool(definition["name"], definition["fn"]) for definition in tools],
        system_prompt=system or "",
        interceptors=[RecordedSpecs(tools)],
        max_steps=None,
    )
    state = loop.execute_sync(user)
    state.raise_for_status()
    return state.final_text or ""


class RecordedTool(Tool):
    """A tool that returns recorded results, even for arguments that the recorded schema rejects."""

    name = ""
    description = "A recorded tool."
    parameters: Mapping[str, Any] = {"type": "object"}
    effect = Effect.PURE

    def __init__(self, name: str, fn: Callable[..., str]) -> None:
        self.name = name
        self._fn = fn

    async def use(self, **arguments: Any) -> str:
        """Return the recorded result."""
        return self._fn(**arguments)


class RecordedSpecs(Interceptor):
    """Replaces the specs of the tools in requests by the recorded ones."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        no_parameters = {"type": "object", "properties": {}}
        self._specs = [
            ToolSpec(
                definition["name"],
                definition.get("description") or "",
                definition.get("parameters") or no_parameters,
                Effect.PURE,
            )
            for definition in tools
        ]

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Replace the specs."""
        return point.with_request(point.request.with_tools(self._specs))


def validate(schema: Mapping[str, Any], arguments: Any) -> bool:
    """Return whether arguments satisfy a schema."""
    return SchemaValidator(schema).accepts(arguments)


def parse_text(text: str, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Read the calls of offered tools from a text, without coercion of arguments."""
    offered = [ToolSpec(tool["name"], tool.get("description") or "", tool["parameters"]) for tool in tools]
    reading = read_calls(text, offered, coerce=False, only_offered=True)
    return [{"name": call.name, "arguments": call.arguments} for call in reading.calls]


def execute(functions: Mapping[str, Callable[..., Any]], calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """Run calls as one batch, and return the text that the model sees of each result."""
    tools = Tools.of([RecordedTool(name, fn) for name, fn in functions.items()])
    state = AgentState.start()
    batch = ToolCalls.of(
        [ToolCall(call["id"] or "", call["name"], json.dumps(call["arguments"])) for call in calls], state
    )
    executor = ToolExecutor().with_tools(tools)
    executions = asyncio.run(executor.execute_tools(batch, state))
    return [execution.text for execution in executions.executions]
