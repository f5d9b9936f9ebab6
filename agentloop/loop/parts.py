"""The parts of a loop: the parameters that it is made with, and the view of it that its executions use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Literal, Protocol, TypedDict, TypeVar, cast, runtime_checkable

from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_provide_models import ModelConfig
from agentloop.contracts.can_use_mode import ModeLike
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.tool import Tool, ToolLike
from agentloop.contracts.tools import Tools
from agentloop.drivers.tool_calling import ModeName
from agentloop.interception.stack import InterceptorStack
from agentloop.tools.output_type import OutputType
from agentloop.values.bounds import Bounds
from agentloop.values.inference import HostedKind, HostedTool, ReasoningEffort, ToolChoice
from agentloop.values.json import JsonValue
from agentloop.values.provenance import Provenance
from agentloop.values.records import InDoubt
from agentloop.values.secrets import KeyFunction, Secret
from agentloop.values.state import SystemPrompt
from agentloop.values.time_and_ids import Clock, IdSource


class LoopOptions(TypedDict, total=False):
    """The keyword parameters of `AgentLoop` besides its tools and its output type; `AgentLoop` describes them."""

    executor: CanExecuteToolCalls | None
    interceptors: Iterable[CanIntercept]
    compiler: CanCompileMessages | None
    events: CanHandleEvents | None
    max_steps: int | None
    system_prompt: SystemPrompt
    journal: CanJournal | None
    in_doubt: InDoubt | str
    strict_writes: bool
    provenance: Provenance | str
    bounds: Bounds
    clock: Clock | None
    ids: IdSource | None


class DriverSettings(TypedDict, total=False):
    """The keyword parameters of `ToolCallingDriver.for_model`; `AgentLoop.for_model` describes them."""

    base_url: str | None
    api_key: str | Secret | KeyFunction | None
    timeout: float | None
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    stop: str | Iterable[str]
    seed: int | None
    reasoning_effort: ReasoningEffort | None
    cache_prompt: bool
    hosted_tools: Iterable[HostedTool | HostedKind]
    logprobs: bool
    top_logprobs: int | None
    extra: Mapping[str, JsonValue]
    tool_choice: ToolChoice | Literal["auto", "required", "none"]
    parallel_tool_calls: bool | None
    mode: ModeLike | ModeName
    max_retries: int
    streaming: bool
    eager: bool


class ModelOptions(LoopOptions, DriverSettings, total=False):
    """The keyword parameters of `AgentLoop.for_model` besides its output type; it describes them."""

    tools: Tools | Iterable[ToolLike]


Options = TypeVar("Options", LoopOptions, DriverSettings)


def select_options(options: type[Options], values: Mapping[str, Any]) -> Options:
    """Return the values that belong to a group of parameters, so that type checkers compare it with the callee's parameters.

    Args:
        options: the group.
        values: values by parameter, of this group and of others.
    """
    return cast("Options", {name: values[name] for name in options.__annotations__})


class FileOptions(LoopOptions, total=False):
    """The keyword parameters of `AgentLoop.from_file` besides its output type; it describes them."""

    allow: Iterable[str]
    allow_servers: Iterable[str]
    variables: Mapping[str, str | int | float | bool]
    trust: bool | Iterable[str | PathLike[str]]
    model: str | ModelConfig | CanInfer | None
    tools: Tools | Iterable[ToolLike]


@runtime_checkable
class LoopParts(Protocol):
    """The parts of a loop that are bound into an execution.

    `AgentLoop` has them. A run, its handoffs and the binding of its parts see a loop through this view only, so that
    `agent_loop` can import them and not the other way around.
    """

    @property
    def driver(self) -> CanUseTools:
        """The driver, not yet bound."""

    @property
    def tools(self) -> Tools:
        """The tools, without those that their groups discover when an execution begins."""

    @property
    def executor(self) -> CanExecuteToolCalls:
        """The executor, not yet bound."""

    @property
    def compiler(self) -> CanCompileMessages | None:
        """The message compiler; None for the driver's default."""

    @property
    def stack(self) -> InterceptorStack:
        """The interceptors in the order in which they run."""

    @property
    def output_form(self) -> OutputType | None:
        """The compiled type of final answers; None for text."""

    @property
    def system_prompt(self) -> SystemPrompt:
        """The instructions of agents that are created by this loop, or the function that returns them."""

    @property
    def bounds(self) -> Bounds:
        """The bounds on the work that models, tools and servers can cause."""


def unwrapped(tool: Tool) -> Tool:
    """Return a tool without the overrides of its ensemble."""
    inner = getattr(tool, "tool", None)
    return unwrapped(inner) if isinstance(inner, Tool) else tool
