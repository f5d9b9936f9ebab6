"""The parts of a loop: the parameters that it is made with, and the view of it that its executions use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar, cast, runtime_checkable

from attrs import NOTHING, Factory, field, fields, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept, CanUseLabels
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_provide_models import ModelConfig
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.tool import Tool, ToolLike
from agentloop.contracts.tools import Tools
from agentloop.drivers.tool_calling import DriverSettings
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.dependencies import Dependencies, Deps
from agentloop.tools.output_type import OutputType
from agentloop.values.bounds import Bounds
from agentloop.values.inference import OptionsLike
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.provenance import Provenance
from agentloop.values.records import InDoubt
from agentloop.values.secrets import KeyFunction, Secret
from agentloop.values.system_prompts import SystemPrompt
from agentloop.values.time_and_ids import Clock, IdSource


class RareOptions(TypedDict, total=False):
    """The keyword parameters of `AgentLoop` that few programs need; `LoopOptions` describes them."""

    approve: Literal["untrusted", "effects"] | None
    compiler: CanCompileMessages | None
    output_check: (
        Callable[..., object]
        | CanAcceptExecutionScope
        | Iterable[Callable[..., object] | CanAcceptExecutionScope]
        | None
    )
    executor: CanExecuteToolCalls | None
    events: CanHandleEvents | None
    in_doubt: InDoubt | str
    strict_writes: bool
    provenance: Provenance | str
    bounds: Bounds
    clock: Clock | None
    ids: IdSource | None


class CommonOptions(RareOptions, total=False):
    """The keyword parameters of `AgentLoop` besides its tools, its output type and its dependencies; `LoopOptions` describes them."""

    name: str
    system_prompt: SystemPrompt
    interceptors: Iterable[CanIntercept]
    max_steps: int | None
    journal: CanJournal | None


class LoopOptions(CommonOptions, Generic[Deps], total=False):
    """The keyword parameters of `AgentLoop` besides its tools and its output type. Each can be left out.

    Attributes:
        system_prompt: the instructions of agents that the loop creates from a text or a message, none by default; or a plain function
            from the state, or from the state and its `RunRequest`, to the instructions, which is called once at the start of each
            execution.
        interceptors: observe and change what happens at the interceptor points, in the order of their priorities.
        max_steps: the maximum number of steps of an execution, 50 by default; None for no limit. At the limit, the execution stops
            without a final answer. The interceptor `Budget(steps=…)` reserves a last step for an answer.
        output_check: checks each final answer: a function, plain or async, of the answer, or of the answer and an `Inspection` with state
            and dependencies; a `ModelJudge`; or several of them. One that raises `AskAgain("why")` sends the model back, at most
            `max_retries` times in an execution, which then stops with the reason `retry_limit` and keeps the answer.
        journal: records executions so that they can be resumed after a crash; None, the default, to record nothing.
        compiler: selects the messages that the model sees, such as `ClearOldResults(above=50_000) | TokenWindow(100_000)`; the
            driver's default when None.
        dependencies: what tools receive as `ToolContext.dependencies` where an execution gets no other: a value, or a function, plain
            or async, that makes it for each run from a `RunRequest`. A context manager that it returns is left after the run.
        executor: executes the tool calls; a `ToolExecutor` by default.
        events: the bus that reports events to listeners; a new `EventBus` by default.
        in_doubt: what to do about an interrupted call with an effect when its tool cannot determine whether it ran: `tell` the model,
            the default, `suspend` the execution, or `fail`.
        strict_writes: whether every interceptor has to declare what it writes, and no two may write the same path; by default not.
        provenance: what the state records of the changes of interceptors: `none`, the default, `digests` of the values, or the
            `values`; `state.explain(provenance=True)` shows it.
        bounds: bounds on the work that models, tools and servers can cause.
        clock: the source of times; a `SystemClock` by default.
        ids: the source of ids; `RandomIds` by default.
        approve: which calls wait for a person: those with an `effect` after the model has read what somebody else may have written
            (`untrusted`, see `AskUntrusted`), all those with an effect (`effects`), or, by default, those about which interceptors ask.
        name: the name of the agent, by which people, logs, traces and the rules of permissions know its executions; none by default.
    """

    dependencies: Dependencies[Deps]


class ToolOptions(TypedDict, total=False):
    """The tools of a loop, where they are a keyword parameter; `AgentLoop` describes them."""

    tools: Tools | Iterable[ToolLike]


class LoopChanges(ToolOptions, LoopOptions[Deps], total=False):
    """The keyword parameters of `AgentLoop.replace` besides the output type: all parts of a loop."""

    driver: CanUseTools


class ModelSettings(DriverSettings, total=False):
    """The keyword parameters of `AgentLoop.for_model` besides those of `AgentLoop`; `ModelOptions` describes them."""

    base_url: str | None
    api_key: str | Secret | KeyFunction | None
    timeout: float | None


class ModelOptions(ToolOptions, ModelSettings, LoopOptions[Deps], total=False):
    """The keyword parameters of `AgentLoop.for_model` besides the output type. Each can be left out; None stands for the provider's default.

    Those of `LoopOptions` are parameters, too.

    Attributes:
        tools: what the model can call, as for `AgentLoop`.
        options: sampling and limits of each request: an `InferenceOptions`, or its attributes as a mapping, such as
            `{"temperature": 0.2, "max_tokens": 500}`.
        mode: how tools are offered and calls are read: a mode, its name, or `auto`, the default, for the mode that suits the model.
        tool_choice: whether, and which, tool the model must call: `auto`, the default, `required`, `none` or a `ToolChoice`. A tool
            that is required is required until it was called once.
        parallel_tool_calls: whether an answer may contain several calls.
        max_retries: how often, 2 by default, the model may be called again in one step because its answer cannot be used. Failed
            requests are repeated as `LLMConfig.retry` says.
        streaming: whether answers are streamed, with an event for each chunk; by default not.
        eager: whether calls of pure tools start while the answer is streamed; needs `streaming`.
        base_url: for a model string: the URL of the API, when it is not the provider's default.
        api_key: for a model string: the API key, or a function that returns it, plain or async; read from the provider's environment
            variable by default.
        timeout: for a model string or a configuration: seconds to wait for the next byte of an answer (`LLMConfig.timeout`). For a
            limit on the execution, see `TimeLimit`.
    """


class FileGrants(TypedDict, total=False):
    """What a program allows a file that describes an agent; `FileOptions` describes it."""

    allow: Iterable[str]
    allow_servers: Iterable[str]
    variables: Mapping[str, str | int | float | bool]
    trust: bool | Iterable[str | PathLike[str]]


class FileOptions(ToolOptions, FileGrants, LoopOptions[Deps], total=False):
    """The keyword parameters of `AgentLoop.from_file` besides the output type. Each can be left out.

    Those of `LoopOptions` are parameters, too. Each replaces what the file sets, None as well; what is not passed is left to the file.

    Attributes:
        allow: the modules that its import paths may name, each with all modules below it, such as `myapp.tools`. The ensembles of this
            package are always allowed.
        allow_servers: the programs, such as `uvx`, and the hosts, such as `api.example.com` or `localhost:8000`, that the file may start
            and connect to; `*` for any. The addresses of the known providers are always allowed.
        variables: the values of variables in system prompts, by name.
        trust: whether the statements of the file, and of the files that it names, about tools count as the program's own word, and may
            make tools looser than their code does; or a list of the files to trust.
        model: replaces the model of the file.
        options: sampling and limits of each request; each replaces the one of the same name in the file's `settings`.
        tools: tools in addition to those of the file.
        interceptors: interceptors in addition to those of the file.
        approve: replaces what the file says. Without a word of either, calls wait as with `untrusted`, unless one of the `interceptors`
            is an `AskUntrusted`; None for the calls about which interceptors ask.
        compiler: replaces the compiler of the file; None for the driver's default.
    """

    model: str | ModelConfig | CanInfer | None
    options: OptionsLike


Options = TypeVar("Options", LoopOptions, ModelSettings, FileGrants)


def select_options(options: type[Options], values: Mapping[str, Any]) -> Options:
    """Return the values that belong to a group of parameters, with a type that checkers compare with the parameters of a callee.

    Args:
        options: the group.
        values: values by parameter, of this group and of others.
    """
    return cast("Options", {name: value for name, value in values.items() if name in options.__annotations__})


F = TypeVar("F", bound=Callable[..., Any])


class _LeftOut:
    """The default of a parameter whose docstring says what is done without it."""

    def __repr__(self) -> str:
        return "..."


_LEFT_OUT = _LeftOut()


def shows(
    options: type[Any], *, besides: type[Any] | None = None, defaults: Mapping[str, Any] = EMPTY_OBJECT
) -> Callable[[F], F]:
    """Let `help`, and editors at run time, show the parameters that a function takes by `**`.

    A type checker reads them from the `TypedDict`, but the signature of the function at run time does not name them.

    Args:
        options: the `TypedDict` of the function's last parameter.
        besides: a base of it whose parameters stay behind `**`, so that the signature stays short; None to show all.
        defaults: the defaults of parameters by name. A default that is missing, or made by a factory, is shown as `...`, as in stubs.
    """
    hidden = {} if besides is None else besides.__annotations__
    names = [name for name in options.__annotations__ if name not in hidden]
    known = {name: value for name, value in defaults.items() if not isinstance(value, Factory) and value is not NOTHING}  # type: ignore[arg-type]  # Factory is a class at run time

    def show(function: F) -> F:
        signature = inspect.signature(function)
        *own, rest = signature.parameters.values()
        shown = [
            inspect.Parameter(
                name,
                rest.KEYWORD_ONLY,
                default=known.get(name, _LEFT_OUT),
                annotation=options.__annotations__[name].__forward_arg__,
            )
            for name in names
        ]
        behind = [] if besides is None else [rest.replace(annotation=f"Unpack[{besides.__name__}]")]
        setattr(function, "__signature__", signature.replace(parameters=[*own, *shown, *behind]))  # noqa: B010  # as functions may have it
        return function

    return show


def defaults_of(kind: Any) -> dict[str, Any]:
    """Return the defaults of the fields of an attrs class, by name."""
    return {attribute.name: attribute.default for attribute in fields(kind)}


@frozen
class CompiledParts:
    """What a loop has made of its parts when it was created.

    Attributes:
        stack: the interceptors in the order in which they run.
        output_form: the compiled type of final answers; None for text.
        labels: the interceptors that use labels.
        checked_names: what names tools, once it was checked.
    """

    stack: InterceptorStack
    output_form: OutputType | None
    labels: tuple[CanUseLabels, ...]
    checked_names: list[frozenset[object]] = field(factory=list, init=False)


@runtime_checkable
class LoopParts(Protocol):
    """The parts of a loop that are bound into an execution.

    `AgentLoop` has them. A run, its handoffs and the binding of its parts see a loop through this view only, so that
    `agent_loop` can import them and not the other way around.
    """

    @property
    def name(self) -> str:
        """The name of the agent; empty without one."""

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
