"""What the judge of the corpus asks of an implementation, on the public API of agentloop."""

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
from agentloop.contracts import CanInfer, Tool, Tools
from agentloop.errors import MalformedArguments
from agentloop.interception import BeforeInference
from agentloop.text_calls import read_calls
from agentloop.tools import SchemaValidator
from agentloop.values import Effect, InferenceRequest, InferenceResponse, Text, ToolCalls, ToolSpec, Usage, thaw
from agentloop.values.policies import RetryPolicy

ONCE = RetryPolicy(max_attempts=1)
KNOWN = ("openai-chat", "openai-responses", "anthropic-messages", "gemini", "ollama")


def format_name(wire_format: str) -> str:
    """Return our name of a wire format; the corpus has one of its own for Ollama's."""
    return "ollama" if wire_format == "ollama_chat" else wire_format.replace("_", "-")


def inference_for(wire_format: str, base_url: str, body: Mapping[str, Any] | None = None) -> HttpInference:
    """Return the way to a server that replays recorded answers."""
    name = format_name(wire_format)
    if name not in KNOWN:
        raise NotImplementedError(wire_format)
    model = str((body or {}).get("model") or "recorded")
    return HttpInference(LLMConfig(model=model, base_url=base_url, wire_format=name, api_key="not-a-key", retry=ONCE))


def decode(wire_format: str, base_url: str, stream: bool, body: Mapping[str, Any] | None) -> dict[str, Any]:
    """Ask once, and tell what came back."""
    response = asyncio.run(_asked(inference_for(wire_format, base_url, body), stream))
    return {
        "text": "".join(part.text for part in response.parts if isinstance(part, Text) and not is_refusal(part)),
        "tool_calls": [
            {"id": call.id or None, "name": call.name, "arguments": arguments_of(call)} for call in response.tool_calls
        ],
        "finish": response.provider_finish_reason,
        "usage": {"input_tokens": response.usage.input_tokens, "output_tokens": written(wire_format, response.usage)},
    }


def arguments_of(call: ToolCall) -> Any:
    """Return the arguments; None for those that are no JSON object, as of tools that take a plain text."""
    try:
        return thaw(call.arguments)
    except MalformedArguments:
        return None


def written(wire_format: str, usage: Usage) -> int | None:
    """Return the tokens written, as the judge counts them: Gemini's SDK tells those of reasoning apart from the others."""
    if wire_format != "gemini" or usage.output_tokens is None:
        return usage.output_tokens
    return usage.output_tokens - (usage.reasoning_tokens or 0)


def is_refusal(part: Text) -> bool:
    """Say whether a text came as a refusal, which the judge keeps apart."""
    return any(isinstance(data, Mapping) and data.get("type") == "refusal" for data in part.provider_data.values())


async def _asked(inference: CanInfer, stream: bool) -> InferenceResponse:
    request = InferenceRequest([Message.user("What was recorded?")])
    if not stream:
        return await inference.infer(request)
    pieces = [piece async for piece in inference.stream(request)]
    assert isinstance(pieces[-1], InferenceResponse)
    return pieces[-1]


def run_loop(
    wire_format: str, base_url: str, stream: bool, system: str | None, user: str, tools: Sequence[Mapping[str, Any]]
) -> str:
    """Run a recorded conversation, and return its last words."""
    driver = ToolCallingDriver(inference_for(wire_format, base_url), mode="native", streaming=stream)
    loop = AgentLoop(
        driver,
        [Recorded(described["name"], described["fn"]) for described in tools],
        system_prompt=system or "",
        interceptors=[OfferedAsRecorded(tools)],
        max_steps=None,
    )
    state = loop.execute_sync(user)
    state.raise_for_failure()
    return state.final_text or ""


class Recorded(Tool):
    """A tool that gives the results that were recorded, also for arguments that its schema, as recorded, refuses."""

    name = ""
    description = "What was recorded."
    parameters: Mapping[str, Any] = {"type": "object"}
    effect = Effect.PURE

    def __init__(self, name: str, fn: Callable[..., str]) -> None:
        self.name = name
        self._fn = fn

    async def use(self, **arguments: Any) -> str:
        """Give the result."""
        return self._fn(**arguments)


class OfferedAsRecorded(Interceptor):
    """Offers the tools to the model in the words of the recording."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        nothing = {"type": "object", "properties": {}}
        self._specs = [
            ToolSpec(
                described["name"],
                described.get("description") or "",
                described.get("parameters") or nothing,
                Effect.PURE,
            )
            for described in tools
        ]

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Put the recorded words into the request."""
        return point.with_request(point.request.with_tools(*self._specs))


def validate(schema: Mapping[str, Any], arguments: Any) -> bool:
    """Say whether arguments fit a schema."""
    return SchemaValidator(schema).accepts(arguments)


def parse_text(text: str, tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Read calls out of a text as it is written: nothing is coerced, and the corpus knows calls of offered tools only."""
    offered = [ToolSpec(tool["name"], tool.get("description") or "", tool["parameters"]) for tool in tools]
    reading = read_calls(text, offered, coerce=False, only_offered=True)
    return [{"name": call.name, "arguments": call.arguments} for call in reading.calls]


def execute(functions: Mapping[str, Callable[..., Any]], calls: Sequence[Mapping[str, Any]]) -> list[str]:
    """Run calls as one batch, and return what the model is shown of each."""
    made = Tools.of([Recorded(name, fn) for name, fn in functions.items()])
    state = AgentState.start()
    batch = ToolCalls.of(
        [ToolCall(call["id"] or "", call["name"], json.dumps(call["arguments"])) for call in calls], state
    )
    executor = ToolExecutor().with_tools(made)
    executions = asyncio.run(executor.execute_tools(batch, state))
    return [execution.text for execution in executions.executions]
