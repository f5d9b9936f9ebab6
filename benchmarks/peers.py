# ruff: noqa: I002, PLC0415
# The peers are loaded by the process that measures them, and read annotations at run time.
"""Other libraries as subjects, each used as its documentation shows; `make bench-peers` makes an environment for each of them."""

import asyncio
import subprocess
import sys
import venv
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from subject import PROMPT, QUESTION, bytes_of

Run = Callable[[], Awaitable[object]]
Stream = Callable[[Callable[[str], None]], Awaitable[object]]
STEPS = 1_000_000
ARGUMENTS = '{"a": 17, "b": 25}'


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def add_plain(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


add_plain.__name__ = "add"
FUNCTIONS: dict[str, Callable[..., Any]] = {"async": add, "plain": add_plain}
"""The tool as each library takes it: a function."""


class PydanticAI:
    """pydantic-ai."""

    def _agent(self, url: str, tools: list[Any]) -> Any:
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        model = OpenAIChatModel("loopback", provider=OpenAIProvider(base_url=url, api_key="key"))
        return Agent(model, tools=tools, system_prompt=PROMPT)

    def agent(self, url: str, tool: str) -> Run:
        from pydantic_ai.usage import UsageLimits

        agent = self._agent(url, [FUNCTIONS[tool]])
        limits = UsageLimits(request_limit=None)

        async def run() -> object:
            return (await agent.run(QUESTION, usage_limits=limits)).output

        return run

    def stream(self, url: str) -> Stream:
        agent = self._agent(url, [])

        async def run(on_text: Callable[[str], None]) -> object:
            async with agent.run_stream(QUESTION) as result:
                async for text in result.stream_text(delta=True, debounce_by=None):
                    on_text(text)
            return None

        return run

    def conversation(self, texts: Iterable[str]) -> object:
        from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

        return [
            ModelResponse([TextPart(text)]) if number % 2 else ModelRequest([UserPromptPart(text)])
            for number, text in enumerate(texts)
        ]

    async def suspended(self, case: dict[str, Any]) -> dict[str, float]:
        from pydantic_ai import Agent, DeferredToolRequests
        from pydantic_ai.messages import ModelResponse, ToolCallPart
        from pydantic_ai.models.function import FunctionModel
        from pydantic_ai.tools import Tool

        async def pay(*_: Any) -> ModelResponse:
            return ModelResponse([ToolCallPart("add", ARGUMENTS, tool_call_id="call_1")])

        tool = Tool(add, requires_approval=True)
        agent = Agent(FunctionModel(pay), tools=[tool], output_type=[str, DeferredToolRequests])

        async def suspend() -> object:
            result = await agent.run(QUESTION)
            assert isinstance(result.output, DeferredToolRequests), result.output
            return result

        return await bytes_of(suspend, case["count"])


class OpenAIAgents:
    """openai-agents."""

    def _agent(self, url: str, tools: list[Any]) -> Any:
        from agents import Agent, OpenAIChatCompletionsModel, function_tool, set_tracing_disabled
        from openai import AsyncOpenAI

        set_tracing_disabled(disabled=True)
        model = OpenAIChatCompletionsModel("loopback", AsyncOpenAI(base_url=url, api_key="key"))
        return Agent("calculator", instructions=PROMPT, model=model, tools=[function_tool(each) for each in tools])

    def agent(self, url: str, tool: str) -> Run:
        from agents import Runner

        agent = self._agent(url, [FUNCTIONS[tool]])

        async def run() -> object:
            return (await Runner.run(agent, QUESTION, max_turns=STEPS)).final_output

        return run

    def stream(self, url: str) -> Stream:
        from agents import Runner

        agent = self._agent(url, [])

        async def run(on_text: Callable[[str], None]) -> object:
            result = Runner.run_streamed(agent, QUESTION)
            async for event in result.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    on_text(event.data.delta)
            return None

        return run

    def conversation(self, texts: Iterable[str]) -> object:
        return [{"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)]

    async def suspended(self, case: dict[str, Any]) -> dict[str, float]:
        from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
        from openai.types.responses import ResponseFunctionToolCall

        class Payer(Model):  # type: ignore[misc]  # its library is missing where types are checked
            async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
                call = ResponseFunctionToolCall(arguments=ARGUMENTS, call_id="call_1", name="add", type="function_call")
                return ModelResponse([call], Usage(), None)

            def stream_response(self, *_: Any, **__: Any) -> Any:
                raise NotImplementedError

        set_tracing_disabled(disabled=True)
        agent = Agent("calculator", model=Payer(), tools=[function_tool(add, needs_approval=True)])

        async def suspend() -> object:
            result = await Runner.run(agent, QUESTION)
            assert result.interruptions, result.final_output
            return result.to_state()

        return await bytes_of(suspend, case["count"])


class LangGraph:
    """langgraph, with langchain-openai."""

    def _agent(self, url: str, tools: list[Any]) -> Any:
        from langchain.agents import create_agent
        from langchain_core.tools import StructuredTool
        from langchain_openai import ChatOpenAI
        from pydantic import SecretStr

        model = ChatOpenAI(model="loopback", base_url=url, api_key=SecretStr("key"), stream_usage=False)
        made = [
            StructuredTool.from_function(coroutine=each)
            if asyncio.iscoroutinefunction(each)
            else StructuredTool.from_function(each)
            for each in tools
        ]
        return create_agent(model, made, system_prompt=PROMPT)

    def agent(self, url: str, tool: str) -> Run:
        agent = self._agent(url, [FUNCTIONS[tool]])

        async def run() -> object:
            config = {"recursion_limit": STEPS}
            result = await agent.ainvoke({"messages": [("user", QUESTION)]}, config)
            return result["messages"][-1].content

        return run

    def stream(self, url: str) -> Stream:
        agent = self._agent(url, [])

        async def run(on_text: Callable[[str], None]) -> object:
            async for chunk, _ in agent.astream({"messages": [("user", QUESTION)]}, stream_mode="messages"):
                if chunk.content:
                    on_text(chunk.content)
            return None

        return run

    def conversation(self, texts: Iterable[str]) -> object:
        from langchain_core.messages import AIMessage, HumanMessage

        return [AIMessage(text) if number % 2 else HumanMessage(text) for number, text in enumerate(texts)]


class Agno:
    """agno."""

    def _agent(self, url: str, tools: list[Any]) -> Any:
        from agno.agent import Agent
        from agno.models.openai.like import OpenAILike

        model = OpenAILike(id="loopback", base_url=url, api_key="key")
        return Agent(model=model, tools=tools, instructions=PROMPT, telemetry=False)

    def agent(self, url: str, tool: str) -> Run:
        agent = self._agent(url, [FUNCTIONS[tool]])

        async def run() -> object:
            return (await agent.arun(QUESTION)).content

        return run

    def stream(self, url: str) -> Stream:
        agent = self._agent(url, [])

        async def run(on_text: Callable[[str], None]) -> object:
            async for event in agent.arun(QUESTION, stream=True):
                if event.event == "RunContent" and event.content:
                    on_text(event.content)
            return None

        return run

    def conversation(self, texts: Iterable[str]) -> object:
        from agno.models.message import Message

        return [Message(role="assistant" if number % 2 else "user", content=text) for number, text in enumerate(texts)]


PEERS: dict[str, Callable[[], Any]] = {
    "pydantic-ai": PydanticAI,
    "openai-agents": OpenAIAgents,
    "langgraph": LangGraph,
    "agno": Agno,
}
IMPORTS = {
    "pydantic-ai": "from pydantic_ai import Agent; from pydantic_ai.models.openai import OpenAIChatModel",
    "openai-agents": "from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool",
    "langgraph": "from langchain.agents import create_agent; from langchain_openai import ChatOpenAI",
    "agno": "from agno.agent import Agent; from agno.models.openai.like import OpenAILike",
}
REQUIREMENTS = {
    "pydantic-ai": ["pydantic-ai-slim[openai]"],
    "openai-agents": ["openai-agents"],
    "langgraph": ["langgraph", "langchain", "langchain-openai"],
    "agno": ["agno", "openai"],
}


def install(folder: Path) -> None:
    """Make an environment for each library."""
    for name, requirements in REQUIREMENTS.items():
        print(f"installing {name}", flush=True)
        venv.create(folder / name, with_pip=True, clear=True)
        python = folder / name / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
