# ruff: noqa: PLC0415
# Each library is loaded by the runs that it does.
"""The libraries under test, each used as its documentation shows: agentloop in each of its modes, and two others."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attrs import field, frozen

from models.tasks import EFFECTS, INSTRUCTIONS, Made, Task, recorded

MODES = ("native", "structured", "validated", "parsed", "react-json", "react-text", "auto")
"""The modes of agentloop; those that begin with `react-` are the notations of its `ReActDriver`."""


@frozen
class Settings:
    """What is the same for all libraries.

    Attributes:
        temperature: the sampling temperature.
        max_tokens: the longest answer of the model.
        steps: the limit of steps, turns or requests of one run, as each library counts them.
        seconds: the time after which a run is given up, which is long: the limits of steps and tokens are what ends a run.
    """

    temperature: float = 0.3
    max_tokens: int = 256
    steps: int = 6
    seconds: float = 1800.0


@frozen(kw_only=True)
class Assignment:
    """One task for a library.

    Attributes:
        task: the task.
        question: its wording.
        url: the root of the server.
        model: the name of the model.
        api: the API to use.
        seed: the seed of the sampling.
        settings: what is the same for all.
        made: the calls that ran, in their order.
    """

    task: Task
    question: str
    url: str
    model: str
    api: str
    seed: int
    settings: Settings
    made: list[Made] = field(factory=list)

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The tools, as functions that note their calls."""
        return [recorded(function, self.made) for function in self.task.tools]


@frozen
class Ending:
    """How a run ended.

    Attributes:
        how: `completed`, `stopped` by a limit, `failed`, or `timed out`.
        answer: the final answer; None if there is none.
        error: why there is no answer.
        is_protocol_error: whether the library could not speak with the server.
    """

    how: str
    answer: object = None
    error: str = ""
    is_protocol_error: bool = False


Run = Callable[[Assignment], Awaitable[Ending]]


@frozen
class Subject:
    """A library in one of its modes.

    Attributes:
        name: the mode of agentloop, or the name of another library.
        library: the library.
        apis: the APIs that it is run on.
        run: solves a task.
        code: names its code: results of other code are of another subject.
    """

    name: str
    library: str
    apis: tuple[str, ...]
    run: Run = field(repr=False)
    code: str

    async def solve(self, assignment: Assignment) -> Ending:
        """Run a task; errors of the library become the ending."""
        try:
            return await asyncio.wait_for(self.run(assignment), assignment.settings.seconds)
        except TimeoutError:
            return Ending("timed out", error=f"after {assignment.settings.seconds:.0f} s")
        except Exception as error:  # noqa: BLE001  # a library that raises has failed at this task, and the others go on
            return Ending("failed", error=describe(error))


def describe(error: BaseException) -> str:
    """Return an error and its causes in one line."""
    cause = error.__cause__ or error.__context__
    own = f"{type(error).__name__}: {error}"
    return own if cause is None else f"{own} <- {describe(cause)}"


# --- agentloop ------------------------------------------------------------------------------------------------------

_PROVIDERS = {"chat": "llamacpp", "responses": "openai-responses", "anthropic": "anthropic"}


def _agentloop(mode: str) -> Run:
    async def run(given: Assignment) -> Ending:
        from agentloop import AgentLoop, Budget, tool
        from agentloop.errors import InferenceError

        tools = [tool(each) if each.__name__ in EFFECTS else tool(effect="pure")(each) for each in given.functions]
        loop = AgentLoop(
            _driver(mode, given),
            tools,
            system_prompt=INSTRUCTIONS,
            output_type=given.task.output_type,
            interceptors=[Budget(steps=given.settings.steps)],
        )
        state = await loop.execute(given.question)
        if state.status.value == "completed":
            return Ending("completed", state.output)
        error = "; ".join(f"{each.type}: {each.message}" for each in state.errors) or str(state.stop_signal)
        lost = any(isinstance(each.exception, InferenceError) for each in state.errors)
        return Ending(state.status.value, state.final_text, error, lost)

    return run


def _driver(mode: str, given: Assignment) -> Any:
    from agentloop import HttpInference, LLMConfig, ReActDriver, ToolCallingDriver
    from agentloop.values import InferenceOptions

    settings = given.settings
    config = LLMConfig.parse(
        f"{_PROVIDERS[given.api]}:{given.model}", base_url=given.url, api_key="none", timeout=settings.seconds
    )
    options = InferenceOptions(
        temperature=settings.temperature, max_tokens=settings.max_tokens, extra={"seed": given.seed}
    )
    if mode.startswith("react-"):
        return ReActDriver(HttpInference(config), output=mode.removeprefix("react-"), options=options)  # type: ignore[arg-type]  # `json` or `text`
    return ToolCallingDriver(HttpInference(config), mode=mode, options=options)  # type: ignore[arg-type]  # a name of a mode


# --- others ---------------------------------------------------------------------------------------------------------


async def _pydantic_ai(given: Assignment) -> Ending:
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import UsageLimitExceeded
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    provider = OpenAIProvider(base_url=f"{given.url}/v1", api_key="none")
    model = (OpenAIChatModel if given.api == "chat" else OpenAIResponsesModel)(given.model, provider=provider)
    settings = {"temperature": given.settings.temperature, "max_tokens": given.settings.max_tokens}
    agent = Agent(
        model,
        tools=given.functions,
        instructions=INSTRUCTIONS,
        output_type=given.task.output_type or str,
        model_settings={**settings, "extra_body": {"seed": given.seed}, "timeout": given.settings.seconds},
    )
    try:
        result = await agent.run(given.question, usage_limits=UsageLimits(request_limit=given.settings.steps))
    except UsageLimitExceeded as error:
        return Ending("stopped", error=describe(error))
    return Ending("completed", result.output)


async def _openai_agents(given: Assignment) -> Ending:
    from agents import (
        Agent,
        MaxTurnsExceeded,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=f"{given.url}/v1", api_key="none", timeout=given.settings.seconds)
    model = (OpenAIChatCompletionsModel if given.api == "chat" else OpenAIResponsesModel)(given.model, client)
    agent = Agent(
        "assistant",
        instructions=INSTRUCTIONS,
        model=model,
        tools=[function_tool(each) for each in given.functions],
        output_type=given.task.output_type,
        model_settings=ModelSettings(
            temperature=given.settings.temperature,
            max_tokens=given.settings.max_tokens,
            extra_body={"seed": given.seed},
        ),
    )
    try:
        result = await Runner.run(agent, given.question, max_turns=given.settings.steps)
    except MaxTurnsExceeded as error:
        return Ending("stopped", error=describe(error))
    return Ending("completed", result.final_output)


PEERS: Mapping[str, tuple[str, Run]] = {
    "pydantic-ai": ("pydantic-ai-slim", _pydantic_ai),
    "openai-agents": ("openai-agents", _openai_agents),
}
"""The other libraries, with the names of their distributions."""

NAMES = (*MODES, *PEERS)
"""The names of all subjects."""


def subject(name: str) -> Subject:
    """Return a subject by its name."""
    if name in PEERS:
        distribution, run = PEERS[name]
        return Subject(name, name, ("chat", "responses"), run, version(distribution))
    return Subject(name, "agentloop", ("chat", "responses", "anthropic"), _agentloop(name), _digest_of_agentloop())


def _digest_of_agentloop() -> str:
    """Return a digest of the sources, so that a change of the library starts anew."""
    import agentloop

    folder = Path(agentloop.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return f"{agentloop.__version__}-{digest.hexdigest()[:10]}"


def plain(answer: object) -> object:
    """Return an answer as JSON has it."""
    return dataclasses.asdict(answer) if dataclasses.is_dataclass(answer) and not isinstance(answer, type) else answer
