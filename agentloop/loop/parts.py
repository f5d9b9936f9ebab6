"""The parts of a loop, and how it is put together and changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from attrs import evolve, field, frozen
from attrs.validators import instance_of, optional

from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import Tool, ToolGroup
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.errors import ConfigurationError
from agentloop.events.bus import EventBus
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_inference import HttpInference
from agentloop.interception.budgets.limits import StepLimit
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.inbox import Inboxes
from agentloop.loop.resources import OpenResources
from agentloop.values.records import InDoubt
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock

if TYPE_CHECKING:
    from agentloop.tools.output_type import OutputType


def _as_interceptors(interceptors: Iterable[CanIntercept]) -> tuple[CanIntercept, ...]:
    return tuple(interceptors)


def _as_tools(tools: Tools | Iterable[Tool | ToolGroup]) -> Tools:
    return Tools.of(tools)


def _as_executor(executor: CanExecuteToolCalls | None) -> CanExecuteToolCalls:
    return ToolExecutor() if executor is None else executor


def _as_bus(events: CanHandleEvents | None) -> CanHandleEvents:
    return EventBus() if events is None else events


@frozen(eq=False)
class LoopParts:
    """The parts of a loop.

    Attributes:
        driver: decides what to do next.
        tools: what the model can call: single tools, and groups such as ensembles, whose interceptors come after the loop's.
        executor: runs the calls; a `ToolExecutor` when left out.
        interceptors: may change what happens.
        compiler: decides what a model sees of the state; the driver's own when left out.
        events: tells what happens; an `EventBus` when left out.
        max_steps: the most steps of an execution, after which it stops as it is, without a last answer; None for no limit. The
            interceptor `Budget(steps=…)` stops it with one.
        system_prompt: the instructions of agents that begin here, with a text or a message.
        output_type: the type of final answers, any that can stand at a tool's parameter; None for text. An answer of another
            form is asked for again.
        journal: where executions are written down, so that they can be gone on with after a crash; None for nowhere.
        in_doubt: what becomes of an interrupted call with an effect, when its tool cannot find out whether it has run.
        clock: where times come from.
        ids: where ids come from.
    """

    driver: CanUseTools = field(validator=instance_of(CanUseTools))  # type: ignore[type-abstract]  # any implementer
    tools: Tools = field(default=NO_TOOLS, converter=_as_tools)
    executor: CanExecuteToolCalls = field(
        default=None,
        converter=_as_executor,
        validator=instance_of(CanExecuteToolCalls),  # type: ignore[type-abstract]  # any implementer
        kw_only=True,
    )
    interceptors: tuple[CanIntercept, ...] = field(default=(), converter=_as_interceptors, kw_only=True)
    compiler: CanCompileMessages | None = field(
        default=None,
        validator=optional(instance_of(CanCompileMessages)),  # type: ignore[type-abstract]  # any implementer
        kw_only=True,
    )
    events: CanHandleEvents = field(
        default=None,
        converter=_as_bus,
        validator=instance_of(CanHandleEvents),  # type: ignore[type-abstract]  # any implementer
        kw_only=True,
        repr=False,
    )
    max_steps: int | None = field(default=50, kw_only=True)
    system_prompt: str = field(default="", validator=instance_of(str), kw_only=True, repr=False)
    output_type: Any = field(default=None, kw_only=True)
    journal: CanJournal | None = field(
        default=None,
        validator=optional(instance_of(CanJournal)),  # type: ignore[type-abstract]  # any implementer
        kw_only=True,
    )
    in_doubt: InDoubt = field(default=InDoubt.TELL, converter=InDoubt, kw_only=True)
    clock: Clock = field(factory=SystemClock, kw_only=True, repr=False)
    ids: IdSource = field(factory=RandomIds, kw_only=True, repr=False)
    _above: ExecutionScope | None = field(default=None, kw_only=True, repr=False)
    _entered: OpenResources = field(factory=OpenResources, kw_only=True, repr=False)
    _inboxes: Inboxes = field(factory=Inboxes, kw_only=True, repr=False)
    _stack: InterceptorStack = field(init=False, repr=False)
    _output: OutputType | None = field(init=False, repr=False)

    @_output.default
    def _compiled_output(self) -> OutputType | None:
        if self.output_type is None:
            return None
        from agentloop.tools.output_type import output_type_of

        return output_type_of(self.output_type)

    @_stack.default
    def _compiled_stack(self) -> InterceptorStack:
        limit = () if self.max_steps is None else (StepLimit(self.max_steps),)
        of_groups = [interceptor for group in self.tools.groups for interceptor in group.interceptors]
        return InterceptorStack.of((*limit, *self.interceptors, *of_groups))

    @property
    def stack(self) -> InterceptorStack:
        """The interceptors in their order, the limit of steps and those of the tools' groups included."""
        return self._stack

    @property
    def output_form(self) -> OutputType | None:
        """The type of final answers, made ready; None for text."""
        return self._output

    @classmethod
    def for_model(
        cls,
        model: str | LLMConfig | CanInfer,
        *,
        tools: Tools | Iterable[Tool | ToolGroup] = (),
        base_url: str | None = None,
        api_key: str | None = None,
        **parts: Any,
    ) -> Self:
        """Make a loop for a model that calls tools.

        Args:
            model: a model string such as `openai:gpt-5`, a configuration, or anything that can infer.
            tools: what the model can call.
            base_url: another address than the provider's own, for a model string.
            api_key: the key, for a model string; from the provider's environment variable when left out.
            **parts: any other attribute of a loop.

        Raises:
            ConfigurationError: when the model string or its key is missing or unknown, or an address or a key is given beside
                what has its own.
            TypeError: when the model is nothing that can be asked.
        """
        if isinstance(model, str):
            model = LLMConfig.parse(model, base_url=base_url, api_key=api_key)
        elif not isinstance(model, LLMConfig | CanInfer):
            raise TypeError(f"a model is a string, an LLMConfig or a CanInfer, not {type(model).__name__}")
        elif base_url is not None or api_key is not None:
            raise ConfigurationError(
                f"base_url and api_key belong to a model string; this {type(model).__name__} has its own"
            )
        inference = HttpInference(model) if isinstance(model, LLMConfig) else model
        return cls(ToolCallingDriver(inference), tools, **parts)

    def with_driver(self, driver: CanUseTools) -> Self:
        """Return a copy with another driver."""
        return evolve(self, driver=driver)

    def with_tools(self, tools: Tools | Iterable[Tool | ToolGroup]) -> Self:
        """Return a copy with these tools instead."""
        return evolve(self, tools=tools)

    def with_executor(self, executor: CanExecuteToolCalls) -> Self:
        """Return a copy with another executor."""
        return evolve(self, executor=executor)

    def with_interceptors(self, *interceptors: CanIntercept) -> Self:
        """Return a copy with these interceptors besides those it has."""
        return evolve(self, interceptors=(*self.interceptors, *interceptors))

    def with_compiler(self, compiler: CanCompileMessages) -> Self:
        """Return a copy with another compiler."""
        return evolve(self, compiler=compiler)

    def with_events(self, events: CanHandleEvents) -> Self:
        """Return a copy with a bus of its own; its listeners are not those of this loop."""
        return evolve(self, events=events)

    def with_journal(self, journal: CanJournal | None) -> Self:
        """Return a copy whose executions are written down there; None for nowhere."""
        return evolve(self, journal=journal)

    def with_max_steps(self, max_steps: int | None) -> Self:
        """Return a copy with another limit of steps; None for no limit."""
        return evolve(self, max_steps=max_steps)

    def with_system_prompt(self, system_prompt: str) -> Self:
        """Return a copy whose agents begin with other instructions."""
        return evolve(self, system_prompt=system_prompt)

    def describe(self) -> str:
        """Return the loop's parts, and its interceptors in their order, for a person to read."""
        lines = [
            f"driver    {self.driver!r}",
            f"tools     {', '.join(self.tools.names) or 'none'}",
            f"executor  {self.executor!r}",
            *([f"journal   {self.journal!r}"] if self.journal is not None else []),
            "interceptors, outermost first:",
            self._stack.describe() or "       none",
        ]
        return "\n".join(lines)
