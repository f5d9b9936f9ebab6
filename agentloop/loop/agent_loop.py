"""The loop of an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, Unpack, cast, overload

from attrs import NOTHING, evolve, field, frozen

from agentloop.contracts.can_compile_messages import CanCompileMessages, CompilerPipeline
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents, E, Listener, Subscription
from agentloop.contracts.can_infer import CanInfer, CanNameModel
from agentloop.contracts.can_intercept import CanIntercept, labels_of
from agentloop.contracts.can_journal import CanJournal, CanRedactRecords, Claim
from agentloop.contracts.can_provide_models import ModelConfig
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.run_log import CanAnswerCalls, ExecutionLog
from agentloop.contracts.tool import DEFAULT_POLICY, Tool, ToolContext, ToolLike, ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.drivers.forwarding import innermost_driver
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.errors import ConfigurationError, ContractViolation, DecisionError, InvalidParameter
from agentloop.events.bus import EventBus, join_buses, require_emitted
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.stack import InterceptorStack
from agentloop.interception.stops import StepLimit
from agentloop.loop import parameters as checks
from agentloop.loop.dependencies import Deps, check_dependencies, dependencies_of
from agentloop.loop.doors import agent_files, answer_checks, exits, journaling, sessions
from agentloop.loop.event_stream import EventStream, TextStream
from agentloop.loop.in_charge import begin_execution, check_answer_type, read_answer
from agentloop.loop.inbox import Inbox
from agentloop.loop.parameters import require
from agentloop.loop.parts import (
    CommonOptions,
    CompiledParts,
    FileGrants,
    FileOptions,
    LoopChanges,
    LoopOptions,
    ModelOptions,
    ModelSettings,
    RareOptions,
    defaults_of,
    select_options,
    shows,
)
from agentloop.loop.resources import SharedParts, hold_groups
from agentloop.loop.sync import SyncEventStream, SyncTextStream, iterate, run_to_end
from agentloop.loop.tool_names import check_tool_names, noted_references
from agentloop.loop.tool_policies import declared_policies
from agentloop.tools.output_type import OutputType, output_type_of
from agentloop.values.batches import apply_decisions, ready_calls
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds, apply_bounds
from agentloop.values.decisions import Decision
from agentloop.values.epochs import Summary
from agentloop.values.event import Event
from agentloop.values.inference import check_keywords
from agentloop.values.messages import Message
from agentloop.values.provenance import Provenance
from agentloop.values.records import InDoubt, check_execution_id
from agentloop.values.reprs import Summarized, bounded_repr
from agentloop.values.run_requests import REQUEST, Identity, begin_request, principal_of, request_of
from agentloop.values.secrets import as_key
from agentloop.values.state import AgentState, Output_co
from agentloop.values.steps import ExecutionStatus
from agentloop.values.system_prompts import SystemPrompt, initial_prompt
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock
from agentloop.values.tool_calls import Effect

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from agentloop.loop.audit import Audit
    from agentloop.loop.run import Run

    # The type of answers without an output type is text.
    TextOrT = TypeVarWithDefault("TextOrT", default=str)
    GivenDeps = TypeVarWithDefault("GivenDeps", default=Any)

T = TypeVar("T")
Input: TypeAlias = str | Message | AgentState
"""The input of an execution: the text of a user message, a message, or a state to continue."""


@frozen
class Beginning:
    """What an execution begins with, as the ways to run a loop take it.

    Attributes:
        input: the input.
        execution_id: the id; None for a new one.
        dependencies: what tools receive; None for the dependencies of the loop.
        principal: who asks; None for who is recorded in a state, or for nobody.
    """

    input: Input
    execution_id: str | None
    dependencies: Any
    principal: Identity | None = field(default=None, converter=checks.as_principal)

    def check_asks_for(self, state: AgentState) -> None:
        """Check that the principal, if there is one, has begun the execution of a state.

        Raises:
            ContractViolation: another one has, or nobody is known.
        """
        known = principal_of(state)
        if self.principal is not None and str(known or "") != str(self.principal):
            begun = "without a principal" if known is None else f"for {known}"
            raise ContractViolation(
                f"the execution {state.execution_id} was begun {begun}; it cannot go on for {self.principal}"
            )


class _TwoTypes:
    """Lets the loop be named with its first type alone, `AgentLoop[str]`; the second one is Any then."""

    if not TYPE_CHECKING:  # type variables of Python 3.11 have no defaults

        def __class_getitem__(cls, types: Any) -> Any:
            """Return the class with these types."""
            return super().__class_getitem__(types if isinstance(types, tuple) else (types, Any))


# Without slots, which would be listed once more in its help.
@frozen(eq=False, init=False, repr=False, slots=False, match_args=False)
class AgentLoop(_TwoTypes, Summarized, Generic[Output_co, Deps]):
    """Runs an agent: calls its driver step by step with an immutable state, and decides when to stop.

    A loop is immutable; `replace` and `with_interceptors` return changed copies. One loop can run any number of executions at the
    same time, and keeps connections and tool groups open between them inside of `async with loop:`. Its parameters are attributes, too.

    Args:
        driver: takes the steps, such as `ToolCallingDriver`.
        tools: what the model can call: tools, groups such as ensembles, and functions, which become tools as by `@tool`.
        output_type: the type of final answers, any that a tool's parameter can have, or a JSON Schema; None for text. It is the
            parameter of the class: `AgentLoop(driver, output_type=Weather)` is an `AgentLoop[Weather]`. The second one is the type
            of the dependencies: `AgentLoop[Weather, Shop]` takes `run(…, dependencies=…)` of the type `Shop`.
        **options: the other parts of the loop; see `agentloop.loop.LoopOptions`.

    Raises:
        InvalidParameter, ToolDefinitionError, ConfigurationError: a part has a wrong type or value, or parts do not fit each other.
    """

    # Each part is a parameter: `LoopOptions` has the types that it may be given as, and the converter makes the part of it.
    driver: CanUseTools = field(converter=checks.as_driver)
    tools: Tools = field(converter=checks.as_tools)
    output_type: Any = field(converter=checks.as_output_type)
    system_prompt: SystemPrompt = field(default="", converter=checks.as_prompt, repr=False)
    interceptors: tuple[CanIntercept, ...] = field(default=(), converter=checks.as_interceptors)
    max_steps: int | None = field(default=50, converter=checks.as_max_steps)
    output_check: Sequence[object] = field(default=(), converter=checks.as_output_checks, repr=False)
    journal: CanJournal | None = field(default=None, converter=checks.as_journal)
    compiler: CanCompileMessages | None = field(default=None, converter=checks.as_compiler)
    executor: CanExecuteToolCalls = field(factory=ToolExecutor, converter=checks.as_executor)
    events: CanHandleEvents = field(factory=EventBus, converter=checks.as_bus, repr=False)
    in_doubt: InDoubt = field(default=InDoubt.TELL, converter=checks.as_in_doubt)
    strict_writes: bool = field(default=False, converter=checks.as_strict_writes, repr=False)
    provenance: Provenance = field(default=Provenance.NONE, converter=checks.as_provenance, repr=False)
    bounds: Bounds = field(default=DEFAULT_BOUNDS, converter=checks.as_bounds, repr=False)
    clock: Clock = field(factory=SystemClock, converter=checks.as_clock, repr=False)
    ids: IdSource = field(factory=RandomIds, converter=checks.as_ids, repr=False)
    dependencies: Any = field(default=None, repr=False)
    name: str = field(default="", converter=checks.as_name)

    def __repr__(self) -> str:
        return bounded_repr(self)

    # Not parameters: `_copy` hands them on to the copies that share them.
    _parent_scope: ExecutionScope | None = field(default=None, init=False, repr=False)
    _shared: SharedParts = field(factory=SharedParts, init=False, repr=False)
    _compiled: CompiledParts = field(init=False, repr=False)

    def _summary(self) -> Mapping[str, str]:
        tools, output, inference = self.tools.by_name, self.output_type, getattr(self.driver, "inference", None)
        model = inference.model_name if isinstance(inference, CanNameModel) else ""
        return {
            "name": self.name,
            "driver": type(self.driver).__name__,
            "model": model or ("" if inference is None else repr(inference)),
            "tools": ", ".join(tools),
            "interceptors": ", ".join(type(interceptor).__name__ for interceptor in self.interceptors),
            "compiler": "" if self.compiler is None else repr(self.compiler),
            "journal": "" if self.journal is None else repr(self.journal),
            "steps": "any number" if self.max_steps is None else f"at most {self.max_steps}",
            "output": "text" if output is None else getattr(output, "__name__", repr(output)),
        }

    # Twice three, as pyright does not apply the default of a type variable that only `self` and the options have.
    @overload
    def __init__(
        self: AgentLoop[str, Any],
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: None = None,
        **options: Unpack[CommonOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AgentLoop[Output_co, Any],
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: type[Output_co],
        **options: Unpack[CommonOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AgentLoop[Any, Any],
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: Any,
        **options: Unpack[CommonOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AgentLoop[str, Deps],
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: None = None,
        **options: Unpack[LoopOptions[Deps]],
    ) -> None: ...

    @overload
    def __init__(
        self: AgentLoop[Output_co, Deps],
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: type[Output_co],
        **options: Unpack[LoopOptions[Deps]],
    ) -> None: ...

    @overload
    def __init__(
        self: AgentLoop[Any, Deps],
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: Any,
        **options: Unpack[LoopOptions[Deps]],
    ) -> None: ...

    def __init__(
        self,
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: Any = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        check_keywords("AgentLoop()", options, LoopOptions.__annotations__)
        parts = checks.with_approvals(options)
        self.__attrs_init__(driver=driver, tools=tools, output_type=output_type, **parts)

    @_compiled.default
    def _compile(self) -> CompiledParts:
        form = None if self.output_type is None else output_type_of(self.output_type)
        # First: among interceptors of equal priority, the limit stops the execution before the others act.
        limit = () if self.max_steps is None else (StepLimit(self.max_steps),)
        of_groups = [interceptor for group in self.tools.groups for interceptor in group.interceptors]
        layers = (*limit, *self.interceptors, *_layers_of_checks(self, form), *_layers_of_compiler(self), *of_groups)
        layers = (*layers, *declared_policies(self.tools, layers))
        stack = InterceptorStack.of(layers, strict_writes=self.strict_writes, provenance=self.provenance)
        return CompiledParts(stack, form, labels_of(layers))

    @overload
    @classmethod
    def for_model(
        cls,
        model: str | ModelConfig | CanInfer,
        *,
        output_type: type[TextOrT] | None = None,
        **options: Unpack[ModelOptions[GivenDeps]],
    ) -> AgentLoop[TextOrT, GivenDeps]: ...

    @overload
    @classmethod
    def for_model(
        cls, model: str | ModelConfig | CanInfer, *, output_type: Any, **options: Unpack[ModelOptions[GivenDeps]]
    ) -> AgentLoop[Any, GivenDeps]: ...

    @classmethod
    def for_model(
        cls, model: str | ModelConfig | CanInfer, *, output_type: Any = None, **parts: Unpack[ModelOptions]
    ) -> AgentLoop[Any]:
        """Create a loop for a model: a string such as `openai:gpt-5`, a configuration, or an inference; see `agentloop.loop.ModelOptions`.

        Raises:
            ConfigurationError, TypeError: the model or a setting is invalid, has a wrong type, or cannot apply; or the API key is missing.
        """
        check_keywords("AgentLoop.for_model()", parts, ModelOptions.__annotations__)
        if "api_key" in parts:  # tracebacks show local variables, and the repr of a `Secret` hides it
            parts["api_key"] = as_key(parts["api_key"])
        driver = ToolCallingDriver.for_model(model, **select_options(ModelSettings, parts))
        return cls(driver, parts.get("tools", ()), output_type=output_type, **select_options(LoopOptions, parts))

    @overload
    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, output_type: type[T], **options: Unpack[FileOptions[GivenDeps]]
    ) -> AgentLoop[T, GivenDeps]: ...

    @overload
    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, output_type: None, **options: Unpack[FileOptions[GivenDeps]]
    ) -> AgentLoop[str, GivenDeps]: ...

    @overload
    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, output_type: Any = ..., **options: Unpack[FileOptions[GivenDeps]]
    ) -> AgentLoop[Any, GivenDeps]: ...

    @classmethod
    @shows(FileOptions, besides=RareOptions)
    def from_file(
        cls, path: str | PathLike[str], *, output_type: Any = NOTHING, **parts: Unpack[FileOptions]
    ) -> AgentLoop[Any]:
        """Create the loop of an agent that a TOML or a Markdown file describes; see `agentloop.loop.FileOptions`.

        Raises:
            InvalidDescriptor, TypeError: the file has mistakes, each with its key and its line; or a parameter has a wrong type.
        """
        check_keywords("AgentLoop.from_file()", parts, FileOptions.__annotations__)
        require("the path of an agent file", path, (str, PathLike), "a text or a Path")
        grants = select_options(FileGrants, parts)
        given = {name: value for name, value in parts.items() if name != "model" and name not in grants}
        if output_type is not NOTHING:
            given["output_type"] = output_type
        loop: AgentLoop[Any] = agent_files().build_from_file(cls, path, given, model=parts.get("model"), **grants)
        return loop

    # --- running ------------------------------------------------------------------------------------------------

    async def run(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> Output_co:
        """Run an execution to its end and return the final answer, of `output_type`; any other end raises an `ExecutionError` with its state."""
        begin = Beginning(input, execution_id, dependencies, principal)
        state: AgentState[Output_co] = (await _execute(self, begin, session)).raise_for_status()
        check_answer_type(self, state)
        return state.output

    async def execute(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> AgentState[Output_co]:
        """Run an execution to its end and return its final state: completed, stopped, failed or suspended.

        Raises:
            InvalidDependencies, ToolDefinitionError, DecisionError, ConfigurationError, JournalError: it cannot begin, or not be recorded.
        """
        return await _execute(self, Beginning(input, execution_id, dependencies, principal), session)

    async def iterate(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> AsyncGenerator[AgentState[Output_co], None]:
        """Run an execution and yield the state after each step, recorded if there is a journal, then the final state; see `execute`."""
        begin, log = Beginning(input, execution_id, dependencies, principal), None
        async with AsyncExitStack() as stack:
            if session is not None:
                state, begun_id, log = await stack.enter_async_context(_open_turn(self, session, begin))
                begin = Beginning(state, begun_id, dependencies)
            run = await self._start(begin, log=log)
            states = await stack.enter_async_context(aclosing(run.states()))
            async for state in states:
                await run.recording.flush()  # the caller can act on the state, so its records have to be durable
                yield state

    def stream(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> EventStream[Output_co]:
        """Run an execution as a stream of its events and those of its sub-agents; the final state is `stream.state`; see `execute`."""
        return _stream(self, Beginning(input, execution_id, dependencies, principal), session)[1]

    def stream_text(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> TextStream[Output_co]:
        """Run an execution as a stream of the text that its model writes; the final answer is `stream.output`; see `TextStream`."""
        begin = Beginning(input, execution_id, dependencies, principal)
        return TextStream(*_stream(self, begin, session, is_read=True))

    async def resume(
        self, state: AgentState | str, decisions: Mapping[str, Decision], *, dependencies: Deps | None = None
    ) -> AgentState[Output_co]:
        """Continue a suspended state, or its id in the journal, with decisions by the keys of calls; `DecisionError` if one does not fit."""
        expected = "a mapping of the keys of pending calls, as in {call.key: approve(call.digest)}"
        require("the argument decisions", decisions, Mapping, expected)
        if not isinstance(state, AgentState | str):
            raise InvalidParameter(
                f"resume takes a suspended state, or with a journal the id of its execution, not {type(state).__name__}"
            )
        log: ExecutionLog | None = None
        if self.journal is not None:
            check = partial(self._check_dependencies, dependencies)
            resumed, log = await journaling().reopen_suspended(
                self.journal,
                state,
                decisions,
                self.in_doubt,
                self.clock,
                check=check,
                answers=self._answers,
                outer_claims=self._outer_claims,
            )
            if log is None:  # no call can run with these decisions
                return resumed
        elif isinstance(state, str):
            raise ConfigurationError("resuming an execution by its id needs a journal: AgentLoop(…, journal=…)")
        else:
            resumed = apply_decisions(state, decisions)
            if resumed.open_turn is None or not len(ready_calls(resumed.open_turn)):
                return state
            self._check_dependencies(dependencies)
        resumed = resumed.with_execution_resumed(self.clock.now())
        return await _run_to_end(lambda: self._bind(resumed, dependencies, resumed=True, log=log), log)

    async def recover(
        self,
        execution_id: str,
        *,
        in_doubt: InDoubt | str | None = None,
        dependencies: Deps | None = None,
        principal: Identity | None = None,
    ) -> AgentState[Output_co]:
        """Continue an interrupted execution from its journal, or return the state of one that has ended; `UnknownExecution` without one."""
        if self.journal is None:
            raise ConfigurationError("recovering an execution needs a journal: AgentLoop(…, journal=…)")
        begin = Beginning("", execution_id, dependencies, principal)
        require("an execution id", execution_id, str, "a text")
        policy = self.in_doubt if in_doubt is None else checks.as_in_doubt(in_doubt)
        check = partial(self._check_dependencies, dependencies)
        state, log = await journaling().reopen_interrupted(
            self.journal,
            execution_id,
            policy,
            self.clock,
            check=check,
            answers=self._answers,
            outer_claims=self._outer_claims,
        )
        return await _go_on(self, state, begin, log)

    async def get_or_start(
        self,
        input: Input,
        execution_id: str,
        *,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> AgentState[Output_co]:
        """Run the execution of an id once, from any process: start it, continue it, or return its state; `JournalConflict` while it runs."""
        if self.journal is None:
            raise ConfigurationError("get_or_start finds executions by their ids in a journal: AgentLoop(…, journal=…)")
        check_execution_id(require("an execution id", execution_id, str, "a text"))
        begin = Beginning(input, execution_id, dependencies, principal)
        check = partial(self._check_dependencies, dependencies)
        state, log = await journaling().open_or_reopen(
            self.journal,
            execution_id,
            self.in_doubt,
            self.clock,
            check=check,
            answers=self._answers,
            outer_claims=self._outer_claims,
        )
        if state is None:
            return await _execute(self, begin, session, log)
        return await _go_on(self, state, begin, log)

    # --- running without an event loop --------------------------------------------------------------------------

    def run_sync(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> Output_co:
        """Do what `run` does, from a program without an event loop; inside of a running one, it raises `RuntimeError`."""
        return run_to_end(
            "run_sync",
            lambda: self.run(
                input, execution_id=execution_id, dependencies=dependencies, session=session, principal=principal
            ),
        )

    def execute_sync(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> AgentState[Output_co]:
        """Do what `execute` does, from a program without an event loop; inside of a running one, it raises `RuntimeError`."""
        return run_to_end(
            "execute_sync",
            lambda: self.execute(
                input, execution_id=execution_id, dependencies=dependencies, session=session, principal=principal
            ),
        )

    def iterate_sync(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> Iterator[AgentState[Output_co]]:
        """Do what `iterate` does, from a program without an event loop; inside of a running one, it raises `RuntimeError`."""
        return iterate(
            "iterate_sync",
            lambda: self.iterate(
                input, execution_id=execution_id, dependencies=dependencies, session=session, principal=principal
            ),
        )

    def stream_sync(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> SyncEventStream[Output_co]:
        """Do what `stream` does, from a program without an event loop; inside of a running one, it raises `RuntimeError`."""
        return SyncEventStream(
            self.stream(
                input, execution_id=execution_id, dependencies=dependencies, session=session, principal=principal
            )
        )

    def stream_text_sync(
        self,
        input: Input,
        *,
        execution_id: str | None = None,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> SyncTextStream[Output_co]:
        """Do what `stream_text` does, from a program without an event loop; inside of a running one, it raises `RuntimeError`."""
        return SyncTextStream(
            self.stream_text(
                input, execution_id=execution_id, dependencies=dependencies, session=session, principal=principal
            )
        )

    def resume_sync(
        self, state: AgentState | str, decisions: Mapping[str, Decision], *, dependencies: Deps | None = None
    ) -> AgentState[Output_co]:
        """Do what `resume` does, from a program without an event loop; inside of a running one, it raises `RuntimeError`."""
        return run_to_end("resume_sync", lambda: self.resume(state, decisions, dependencies=dependencies))

    def get_or_start_sync(
        self,
        input: Input,
        execution_id: str,
        *,
        dependencies: Deps | None = None,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> AgentState[Output_co]:
        """Do what `get_or_start` does, from a program without an event loop; inside of a running one, it raises `RuntimeError`."""
        return run_to_end(
            "get_or_start_sync",
            lambda: self.get_or_start(
                input, execution_id, dependencies=dependencies, session=session, principal=principal
            ),
        )

    def recover_sync(
        self,
        execution_id: str,
        *,
        in_doubt: InDoubt | str | None = None,
        dependencies: Deps | None = None,
        principal: Identity | None = None,
    ) -> AgentState[Output_co]:
        """Do what `recover` does, from a program without an event loop; inside of a running one, it raises `RuntimeError`."""
        return run_to_end(
            "recover_sync",
            lambda: self.recover(execution_id, in_doubt=in_doubt, dependencies=dependencies, principal=principal),
        )

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        input_type: Any = None,
        parameters: Mapping[str, Any] | None = None,
        tools_allowed: Iterable[str] | None = None,
        tools_denied: Iterable[str] = (),
        max_depth: int = 3,
        budget_share: float = 0.5,
        effect: Effect | str = Effect.EFFECT,
        policy: ToolPolicy = DEFAULT_POLICY,
    ) -> Tool:
        """Return a tool with which another loop delegates a task to this one; `AgentTool.of` describes the parameters and errors."""
        from agentloop.loop.agent_tool import AgentTool, limits_on_tools

        # Not strict about writes: the loop was checked, and its caller may limit it by the same means as the loop itself.
        limited = self._copy(
            name=self.name or require("the name of an agent's tool", name, str, "a text"),
            interceptors=(*self.interceptors, *limits_on_tools(self.tools, tools_allowed, tools_denied)),
            strict_writes=False,
        )
        return AgentTool.of(
            limited,
            name,
            description,
            input_type=input_type,
            parameters=parameters,
            max_depth=max_depth,
            budget_share=budget_share,
            effect=effect,
            policy=policy,
        )

    # --- messages, events and resources -------------------------------------------------------------------------

    def inbox(self, execution_id: str) -> Inbox:
        """Return the inbox of an execution, before it begins or while it runs: `loop.inbox(id).send("…")`."""
        return Inbox(require("an execution id", execution_id, str, "a text"), self._shared.inboxes)

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Call the listener, plain or async, with every event of this loop and its changed copies."""
        return self.events.wiretap(listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Call the listener, plain or async, with the events of exactly one class; `InvalidParameter` if no event has this class."""
        require_emitted(kind)
        return self.events.on(kind, listener)

    async def __aenter__(self) -> Self:
        self._check_names()
        resources = self._shared.resources.enter()
        if self.tools.groups:
            try:
                with apply_bounds(self.bounds):
                    await hold_groups(self.tools.groups, resources)
            except BaseException:  # Python calls no __aexit__ after a failed __aenter__
                await self._shared.resources.leave()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._shared.resources.leave()

    async def aclose(self) -> None:
        """Close what this loop and its changed copies hold open in the running event loop."""
        await self._shared.resources.close()

    # --- changed copies -----------------------------------------------------------------------------------------

    @overload
    def replace(self, **parts: Unpack[LoopChanges[Deps]]) -> Self: ...

    @overload
    def replace(self, *, output_type: None, **parts: Unpack[LoopChanges[Deps]]) -> AgentLoop[str, Deps]: ...

    @overload
    def replace(self, *, output_type: type[T], **parts: Unpack[LoopChanges[Deps]]) -> AgentLoop[T, Deps]: ...

    @overload
    def replace(self, *, output_type: Any, **parts: Unpack[LoopChanges[Deps]]) -> AgentLoop[Any, Deps]: ...

    def replace(self, *, output_type: Any = NOTHING, **parts: Unpack[LoopChanges[Deps]]) -> AgentLoop[Any, Deps]:
        """Return a copy with these parts, the parameters of `AgentLoop`, in place of its own: `loop.replace(max_steps=5)`."""
        check_keywords("AgentLoop.replace()", parts, LoopChanges.__annotations__)
        changes = checks.with_approvals(parts, self.interceptors)
        return self._copy(**changes, **({} if output_type is NOTHING else {"output_type": output_type}))

    def with_interceptors(self, *interceptors: CanIntercept) -> Self:
        """Return a copy with these interceptors in addition to its own."""
        return self._copy(interceptors=(*self.interceptors, *interceptors))

    def _for_tool_call(self, context: ToolContext, *interceptors: CanIntercept) -> Self:
        """Return a copy that runs a sub-agent inside a tool call of another execution, with further interceptors; used by `as_tool`."""
        # A replay decides about the journal: it may have none although this loop has one.
        log = context.scope.log
        copy = self._copy(
            journal=log.settings.journal if log is not None else self.journal,
            in_doubt=log.settings.in_doubt if log is not None else self.in_doubt,
            events=self.events if context.events is None else join_buses(context.events, self.events),
            clock=context.scope.clock,
            ids=context.ids(),
            interceptors=(*self.interceptors, *interceptors, *(() if self._compiled.labels else context.scope.labels)),
            strict_writes=False,
        )
        object.__setattr__(copy, "_parent_scope", context.scope)
        return copy

    def _copy(self, **changes: Any) -> Self:
        copy: Self = evolve(cast("Any", self), **changes)
        for name in ("_parent_scope", "_shared"):
            object.__setattr__(copy, name, getattr(self, name))
        return copy

    # --- inspection ---------------------------------------------------------------------------------------------

    @property
    def stack(self) -> InterceptorStack:
        """The interceptors in the order in which they run, including the step limit and those of tool groups."""
        return self._compiled.stack

    @property
    def output_form(self) -> OutputType | None:
        """The compiled `output_type`; None for text."""
        return self._compiled.output_form

    @property
    def redaction(self) -> CanRedactRecords:
        """Masks what its journal masks, and the keys that its parts have, such as those of its models, where texts leave the process."""
        return exits().redaction_of(self.journal, [self])

    def audit(self) -> Audit:
        """Return how the calls of each tool with consequences are guarded, limited, recorded and repeated, and what is missing; see `Audit`."""
        from agentloop.loop.audit import audit_loop

        return audit_loop(self, self.journal, self.in_doubt)

    def describe(self, format: Literal["text", "mermaid"] = "text") -> str:
        """Return a description of the parts: lines of text with the tools that run without a question, or a `mermaid` flowchart."""
        if format == "mermaid":
            from agentloop.loop.binding import diagram_of

            return diagram_of(self)
        if format != "text":
            raise InvalidParameter(f"the format of a description has to be 'text' or 'mermaid', not {format!r:.100}")
        from agentloop.loop.unasked import format_unasked, unasked_tools

        lines = [
            *([f"name      {self.name}"] if self.name else []),
            f"driver    {self.driver!r}",
            f"tools     {', '.join(self.tools.names) or 'none'}",
            *[f"          {line}" for line in format_unasked(unasked_tools(self))],
            f"executor  {self.executor!r}",
            *([f"journal   {self.journal!r}"] if self.journal is not None else []),
            "interceptors, outermost first:",
            self._compiled.stack.describe() or "       none",
        ]
        return "\n".join(lines)

    # --- private ------------------------------------------------------------------------------------------------

    async def _start(self, begin: Beginning, *, is_read: bool = False, log: ExecutionLog | None = None) -> Run:
        """Return a run that continues the state's execution if it is in progress, or else begins a new one."""
        execution_id, dependencies = begin.execution_id, begin.dependencies
        self._check_dependencies(dependencies)
        if execution_id is not None:
            require("an execution id", execution_id, str, "a text")
        state = _state_from(self, begin.input)
        if state.status is ExecutionStatus.SUSPENDED:
            keys = ", ".join(call.key for call in state.pending)
            raise DecisionError(f"this state waits for decisions about {keys}; pass them to AgentLoop.resume")
        if state.status is ExecutionStatus.IN_PROGRESS:
            if execution_id not in {None, state.execution_id} or log is not None:
                raise ContractViolation(
                    f"this state is in the middle of execution {state.execution_id}; it keeps that id"
                )
            begin.check_asks_for(state)
            return await self._bind(state, dependencies, resumed=True, at_start=state.step_count == 0, is_read=is_read)
        if execution_id and self.journal is not None and self._parent_scope is None:
            check_execution_id(execution_id)
        state = Summary.forget_replaced(state)
        state = state.with_execution_started(execution_id or self.ids.new_id("execution"), self.clock.now())
        asked = None if self._parent_scope is None else self._parent_scope.request
        if asked is not None or begin.principal is not None or REQUEST in state.extensions:
            state = begin_request(state, asked, begin.principal)
        state = begin_execution(self, state)  # a function of the system prompt can know who asks
        if log is not None:
            journaling().describe_origin(log, self, state)
        return await self._bind(state, dependencies, resumed=False, at_start=True, is_read=is_read, log=log)

    async def _bind(
        self,
        state: AgentState,
        dependencies: Any,
        *,
        resumed: bool,
        at_start: bool = False,
        is_read: bool = False,
        log: ExecutionLog | None = None,
    ) -> Run:
        """Return a run of the state's execution with the parts of this loop."""
        # Loaded with the first execution: programs that only define agents start twice as fast.
        from agentloop.loop.recording import recording_of
        from agentloop.loop.run import Run

        if log is None and self.journal is not None:
            log = journaling().create_log(
                self,
                state,
                self.journal,
                self.in_doubt,
                self.clock,
                answers=self._answers,
                outer_claims=self._outer_claims,
            )
        self._check_names()
        local = Resources()
        if dependencies is None and self.dependencies is not None:
            dependencies = await dependencies_of(self, state, local)
        scope = _scope_of(self, state, dependencies, local, log, is_read=is_read)
        if names := self._compiled.checked_names:
            noted_references(scope.shared_resources).update(names[0])
        records = recording_of(log)
        try:
            return Run.of(
                self,
                state,
                scope,
                self.events,
                self._shared.inboxes,
                resumed=resumed,
                at_start=at_start,
                recording=records,
            )
        except BaseException:
            await local.aclose()
            raise

    def _check_names(self) -> None:
        """Check once that the parts of the loop name tools that are there; for a sub-agent, its caller has done so.

        Raises:
            ConfigurationError: a name or a pattern matches no tool, or `in_doubt` is given without a journal.
        """
        if not self._compiled.checked_names and self._parent_scope is None:
            checks.check_in_doubt(self.in_doubt, self.journal)
            self._compiled.checked_names.append(check_tool_names(self))

    def _check_dependencies(self, dependencies: object) -> None:
        if dependencies is None and self.dependencies is not None:
            check_dependencies(self)
        else:
            self.executor.local_tools(self.tools).check_dependencies(dependencies)

    @property
    def _answers(self) -> CanAnswerCalls | None:
        """What answers tool calls in place of the tools: of this loop, or of the calling execution, if that is a fork or an eval."""
        if self._parent_scope is None:
            return self._shared.answers
        log = self._parent_scope.log
        return log.settings.answers if log is not None else None

    @property
    def _outer_claims(self) -> tuple[Claim, ...]:
        """The claims of the executions whose calls those of this loop serve."""
        log = self._parent_scope.log if self._parent_scope is not None else None
        return log.settings.claims if log is not None else ()


# Here, where the defaults are known.
shows(LoopOptions, defaults=defaults_of(AgentLoop))(AgentLoop.__init__)
shows(
    ModelOptions,
    besides=RareOptions,
    defaults={**defaults_of(ToolCallingDriver), **defaults_of(AgentLoop), "tools": ()},
)(vars(AgentLoop)["for_model"].__func__)


def answered_by(
    loop: AgentLoop[Output_co, Deps], answers: CanAnswerCalls, journal: CanJournal
) -> AgentLoop[Output_co, Deps]:
    """Return a copy of a loop whose calls, and those of its sub-agents, are answered in place of the tools, as in an eval.

    Args:
        loop: the loop.
        answers: answers the calls of the executions of the copy.
        journal: where they are recorded: only a recorded call is answered.
    """
    copy = loop._copy(journal=journal)  # noqa: SLF001  # of this module
    object.__setattr__(copy, "_shared", evolve(loop._shared, answers=answers))  # noqa: SLF001  # of this module
    return copy


def _layers_of_checks(loop: AgentLoop[Any], form: OutputType | None) -> tuple[CanIntercept, ...]:
    """Return what asks the checks of answers, as often as the driver may ask the model again."""
    if not loop.output_check:
        return ()
    read = None if form is None else form.read
    max_retries = getattr(innermost_driver(loop.driver), "max_retries", 2)
    return (answer_checks().checking_layer(loop.output_check, read, max_retries),)


def _layers_of_compiler(loop: AgentLoop[Any]) -> tuple[CanIntercept, ...]:
    """Return the parts of the compiler that act between steps, bound to the messages that a model sees before them."""
    compiler = loop.compiler
    return compiler.with_tools(loop.tools).interceptors if isinstance(compiler, CompilerPipeline) else ()


async def _run_to_end(bind: Callable[[], Awaitable[Run]], log: ExecutionLog | None = None) -> AgentState:
    """Bind an execution and run it to its end.

    Args:
        bind: returns the run.
        log: the log of an execution that is claimed already. If the execution cannot be bound, its claim is released, and
            nothing is recorded.
    """
    try:
        run = await bind()
    except BaseException:
        if log is not None:
            await log.aclose()
        raise
    async for _ in run.states():
        pass
    return run.state


def _state_from(loop: AgentLoop[Any], input: Input) -> AgentState:
    if isinstance(input, AgentState):
        return input
    if not isinstance(input, str | Message):
        raise checks.invalid_input(input)
    return AgentState.start(input, system_prompt=initial_prompt(loop.system_prompt), clock=loop.clock, ids=loop.ids)


def _stream(
    loop: AgentLoop[Output_co, Any], begin: Beginning, session: str | None, *, is_read: bool = False
) -> tuple[str, EventStream[Output_co]]:
    """Return the id of the agent, and the stream of its execution."""
    if session is None:
        begin = evolve(begin, input=_state_from(loop, begin.input))
    given = begin.input
    agent_id = given.agent_id if isinstance(given, AgentState) else sessions().agent_of_session(session or "")
    return agent_id, EventStream(agent_id, loop.events, lambda: _execute(loop, begin, session, is_read=is_read))


def _scope_of(
    loop: AgentLoop[Any],
    state: AgentState,
    dependencies: Any,
    local: Resources,
    log: ExecutionLog | None,
    *,
    is_read: bool,
) -> ExecutionScope:
    parent, shared = loop._parent_scope, loop._shared.resources  # noqa: SLF001  # of this module
    if log is None or log.inference_count is None:
        inferences, others = state.inference_count, state.other_inference_count
    else:
        inferences, others = log.inference_count, log.other_inference_count
    # Connections are shared as widely as possible: by the executions of an entered loop, else with the calling execution.
    return ExecutionScope(
        clock=loop.clock,
        ids=loop.ids,
        dependencies=dependencies,
        local_resources=local,
        shared_resources=shared.current() or (local if parent is None else parent.shared_resources),
        kept_resources=shared.kept() if parent is None else parent.kept_resources,
        depth=0 if parent is None else parent.depth + 1,
        inference_count=inferences - others,
        other_inference_count=others,
        log=log,
        bounds=loop.bounds,
        callers=() if parent is None else parent.callers,
        request=request_of(state) if REQUEST in state.extensions or state.context.metadata else None,
        is_read=is_read,
        labels=loop._compiled.labels,  # noqa: SLF001  # of this module
    )


async def _execute(
    loop: AgentLoop[Any],
    begin: Beginning,
    session: str | None,
    log: ExecutionLog | None = None,
    *,
    is_read: bool = False,
) -> AgentState:
    """Run an execution to its end, as a turn of a session if one is named."""
    if session is None:
        return await _run_to_end(lambda: loop._start(begin, is_read=is_read, log=log), log)  # noqa: SLF001  # of this module
    async with _open_turn(loop, session, begin, log=log) as (state, begun_id, claimed):
        return await _run_claimed(loop, state, begun_id, claimed, dependencies=begin.dependencies, is_read=is_read)


async def _go_on(loop: AgentLoop[Any], state: AgentState, begin: Beginning, log: ExecutionLog | None) -> AgentState:
    """Continue an execution that is recorded to its end; return its state if nothing of it is left to run."""

    async def bind() -> Run:
        begin.check_asks_for(state)
        # Changes of `before_execution` are recorded with the first step: without one, the point is passed again.
        at_start = state.step_count == 0
        return await loop._bind(state, begin.dependencies, resumed=True, at_start=at_start, log=log)  # noqa: SLF001  # of this module

    if log is not None:
        return await _run_to_end(bind, log)
    begin.check_asks_for(state)
    return read_answer(loop, state)


def _open_turn(
    loop: AgentLoop[Any], session: str, begin: Beginning, *, log: ExecutionLog | None = None
) -> AbstractAsyncContextManager[tuple[AgentState, str, ExecutionLog]]:
    """Wait until an execution is the next turn of a session; the loop runs those of processes that have died."""
    return sessions().open_turn(
        loop,
        session,
        begin.input,
        begin.execution_id,
        partial(_run_claimed, dependencies=begin.dependencies),
        dependencies=begin.dependencies,
        principal=begin.principal,
        log=log,
    )


async def _run_claimed(
    loop: AgentLoop[Any],
    state: AgentState,
    execution_id: str,
    log: ExecutionLog,
    *,
    dependencies: Any,
    is_read: bool = False,
) -> AgentState:
    """Run a new execution, which its log has claimed, to its end."""
    begin = Beginning(state, execution_id, dependencies)
    return await _run_to_end(lambda: loop._start(begin, is_read=is_read, log=log), log)  # noqa: SLF001  # of this module
