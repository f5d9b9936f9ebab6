"""The loop of an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from os import PathLike
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, Unpack, cast, overload

from attrs import NOTHING, NothingType, evolve, field, frozen

from agentloop.contracts.can_compile_messages import CanCompileMessages, CompilerPipeline
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents, E, Listener, Subscription
from agentloop.contracts.can_infer import CanInfer, CanNameModel
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal, CanRedactRecords, Claim
from agentloop.contracts.can_provide_models import ModelConfig
from agentloop.contracts.can_use_mode import ModeLike
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.run_log import CanAnswerCalls, ExecutionLog
from agentloop.contracts.tool import DEFAULT_POLICY, Tool, ToolContext, ToolLike, ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.drivers.tool_calling import ModeName, ToolCallingDriver
from agentloop.errors import ConfigurationError, ContractViolation, DecisionError, InvalidParameter
from agentloop.events.bus import join_buses, require_emitted
from agentloop.interception.stack import InterceptorStack
from agentloop.interception.stops import StepLimit
from agentloop.loop import parameters as checks
from agentloop.loop.doors import agent_files, exits, journaling
from agentloop.loop.event_stream import EventStream, TextStream
from agentloop.loop.in_charge import begin_execution, check_answer_type, read_answer
from agentloop.loop.inbox import Inbox, Inboxes
from agentloop.loop.parameters import require
from agentloop.loop.parts import DriverSettings, FileOptions, LoopOptions, ModelOptions, select_options
from agentloop.loop.resources import OpenResources, hold_groups
from agentloop.loop.sync import SyncEventStream, SyncTextStream, iterate, run_to_end
from agentloop.loop.tool_names import check_tool_names, noted_references
from agentloop.loop.tool_policies import declared_policies
from agentloop.tools.output_type import OutputType, output_type_of
from agentloop.values.batches import apply_decisions, ready_calls
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds, apply_bounds
from agentloop.values.decisions import Decision
from agentloop.values.epochs import Summary
from agentloop.values.event import Event
from agentloop.values.inference import HostedKind, HostedTool, ReasoningEffort, ToolChoice
from agentloop.values.json import EMPTY_OBJECT, JsonValue
from agentloop.values.messages import Message
from agentloop.values.provenance import Provenance
from agentloop.values.records import InDoubt, check_execution_id
from agentloop.values.reprs import Summarized, bounded_repr
from agentloop.values.secrets import KeyFunction, Secret, as_key
from agentloop.values.state import AgentState, Output_co, SystemPrompt, initial_prompt
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock, IdSource
from agentloop.values.tool_calls import Effect

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    from agentloop.loop.audit import Audit
    from agentloop.loop.run import Run

    # The type of answers without an output type is text.
    TextOrT = TypeVarWithDefault("TextOrT", default=str)

NO_VARIABLES: Mapping[str, str | int | float | bool] = MappingProxyType({})
T = TypeVar("T")
Input: TypeAlias = str | Message | AgentState
"""The input of an execution: the text of a user message, a message, or a state to continue."""


@frozen(eq=False, init=False, repr=False)
class AgentLoop(Summarized, Generic[Output_co]):
    """Runs an agent: calls its driver step by step with an immutable state, and decides when to stop.

    The parameter is the type of final answers: `AgentLoop(driver, output_type=Weather)` is an `AgentLoop[Weather]`, and without
    an output type it is an `AgentLoop[str]`. For a union or a JSON Schema, annotate it:
    `loop: AgentLoop[int | str] = AgentLoop(driver, output_type=int | str)`.

    A loop is immutable; its `with_…` methods return changed copies. One loop can run any number of executions at the same
    time. `run` returns the final answer or raises; `execute` returns the final state with the reason, also when it failed.

    Connections are opened and tool groups started for each execution and closed at its end. Inside `async with loop:` they
    stay open between executions.

    Args:
        driver: takes the steps, such as `ToolCallingDriver`.
        tools: what the model can call: tools, groups such as ensembles, and functions, which become tools as by `@tool`. The
            interceptors of groups run inside those of the loop.
        executor: executes the tool calls; a `ToolExecutor` by default.
        interceptors: observe and change what happens at the interceptor points, in the order of their priorities.
        compiler: selects the messages that the model sees, such as `ClearOldResults(above=50_000) | TokenWindow(100_000)`; the
            driver's default when None.
        events: the bus that reports events to listeners; a new `EventBus` by default.
        max_steps: the maximum number of steps of an execution, which then stops without a final answer; None for no limit.
            The interceptor `Budget(steps=…)` reserves a last step for an answer.
        system_prompt: the instructions of agents that this loop creates from a text or a message; or a plain function from the
            state to the instructions, which is called once at the start of each execution.
        output_type: the type of final answers, any that a tool's parameter can have, or a JSON Schema as a mapping; None for
            text. An answer of another form is rejected, and drivers that can do so request it again. `str | None` is text, or None
            for an answer in which the model says nothing; without it, an empty answer is requested again.
        journal: records executions so that they can be resumed after a crash; None to record nothing.
        in_doubt: what to do about an interrupted call with an effect when its tool cannot determine whether it ran.
        strict_writes: whether every interceptor has to declare what it writes, and no two may write the same path.
        provenance: what the state records of the changes of interceptors: `none`, `digests` of the values, or the `values`;
            `state.explain(provenance=True)` shows it.
        bounds: bounds on the work that models, tools and servers can cause.
        clock: the source of times.
        ids: the source of ids.

    Raises:
        InvalidParameter: if a parameter has the wrong type or value; it is a `ConfigurationError`, a `TypeError` and a `ValueError`.
        ToolDefinitionError: if two tools have the same name, a function cannot become a tool, or the output type has no JSON Schema.
        ConfigurationError: if an interceptor has an invalid timeout or declares a path that does not exist, or with
            `strict_writes`, if two interceptors may write the same path.
    """

    driver: CanUseTools = field(converter=checks.as_driver)
    tools: Tools = field(converter=checks.as_tools)
    executor: CanExecuteToolCalls = field(converter=checks.as_executor)
    interceptors: tuple[CanIntercept, ...] = field(converter=checks.as_interceptors)
    compiler: CanCompileMessages | None = field(converter=checks.as_compiler)
    events: CanHandleEvents = field(converter=checks.as_bus, repr=False)
    max_steps: int | None = field(converter=checks.as_max_steps)
    system_prompt: SystemPrompt = field(converter=checks.as_prompt, repr=False)
    output_type: Any = field(converter=checks.as_output_type)
    journal: CanJournal | None = field(converter=checks.as_journal)
    in_doubt: InDoubt = field(converter=checks.as_in_doubt)
    strict_writes: bool = field(converter=checks.as_strict_writes, repr=False)
    provenance: Provenance = field(converter=checks.as_provenance, repr=False)
    bounds: Bounds = field(converter=checks.as_bounds, repr=False)
    clock: Clock = field(converter=checks.as_clock, repr=False)
    ids: IdSource = field(converter=checks.as_ids, repr=False)

    __repr__ = bounded_repr

    # Not parameters: `_copy` hands them on to the copies that share them.
    _parent_scope: ExecutionScope | None = field(default=None, init=False, repr=False)
    _open_resources: OpenResources = field(factory=OpenResources, init=False, repr=False)
    _inboxes: Inboxes = field(factory=Inboxes, init=False, repr=False)
    # What names tools, once it was checked.
    _checked_names: list[frozenset[object]] = field(factory=list, init=False, repr=False)
    _stack: InterceptorStack = field(init=False, repr=False)
    _output_form: OutputType | None = field(init=False, repr=False)

    def _summary(self) -> Mapping[str, str]:
        tools, output, inference = self.tools.by_name, self.output_type, getattr(self.driver, "inference", None)
        model = inference.model_name if isinstance(inference, CanNameModel) else ""
        return {
            "driver": type(self.driver).__name__,
            "model": model or ("" if inference is None else repr(inference)),
            "tools": ", ".join(tools),
            "interceptors": ", ".join(type(interceptor).__name__ for interceptor in self.interceptors),
            "compiler": "" if self.compiler is None else repr(self.compiler),
            "journal": "" if self.journal is None else repr(self.journal),
            "steps": "any number" if self.max_steps is None else f"at most {self.max_steps}",
            "output": "text" if output is None else getattr(output, "__name__", repr(output)),
        }

    @overload
    def __init__(
        self: AgentLoop[str],
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: None = None,
        **options: Unpack[LoopOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AgentLoop[Output_co],
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: type[Output_co],
        **options: Unpack[LoopOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AgentLoop[Any],
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        output_type: Any,
        **options: Unpack[LoopOptions],
    ) -> None: ...

    def __init__(
        self,
        driver: CanUseTools,
        tools: Tools | Iterable[ToolLike] = (),
        *,
        executor: CanExecuteToolCalls | None = None,
        interceptors: Iterable[CanIntercept] = (),
        compiler: CanCompileMessages | None = None,
        events: CanHandleEvents | None = None,
        max_steps: int | None = 50,
        system_prompt: SystemPrompt = "",
        output_type: Any = None,
        journal: CanJournal | None = None,
        in_doubt: InDoubt | str = InDoubt.TELL,
        strict_writes: bool = False,
        provenance: Provenance | str = Provenance.NONE,
        bounds: Bounds = DEFAULT_BOUNDS,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self.__attrs_init__(
            driver=driver,
            tools=tools,
            executor=executor,
            interceptors=interceptors,
            compiler=compiler,
            events=events,
            max_steps=max_steps,
            system_prompt=system_prompt,
            output_type=output_type,
            journal=journal,
            in_doubt=in_doubt,
            strict_writes=strict_writes,
            provenance=provenance,
            bounds=bounds,
            clock=clock,
            ids=ids,
        )

    @_stack.default
    def _compile_stack(self) -> InterceptorStack:
        # First: among interceptors of equal priority, the limit stops the execution before the others act.
        limit = () if self.max_steps is None else (StepLimit(self.max_steps),)
        of_groups = [interceptor for group in self.tools.groups for interceptor in group.interceptors]
        layers = (*limit, *self.interceptors, *self._of_compiler(), *of_groups)
        layers = (*layers, *declared_policies(self.tools, layers))
        return InterceptorStack.of(layers, strict_writes=self.strict_writes, provenance=self.provenance)

    def _of_compiler(self) -> tuple[CanIntercept, ...]:
        """Return the parts of the compiler that act between steps, bound to what a model sees before them."""
        compiler = self.compiler
        return compiler.with_tools(self.tools).interceptors if isinstance(compiler, CompilerPipeline) else ()

    @_output_form.default
    def _compile_output_form(self) -> OutputType | None:
        return None if self.output_type is None else output_type_of(self.output_type)

    @overload
    @classmethod
    def for_model(
        cls,
        model: str | ModelConfig | CanInfer,
        *,
        output_type: type[TextOrT] | None = None,
        **options: Unpack[ModelOptions],
    ) -> AgentLoop[TextOrT]: ...

    @overload
    @classmethod
    def for_model(
        cls, model: str | ModelConfig | CanInfer, *, output_type: Any, **options: Unpack[ModelOptions]
    ) -> AgentLoop[Any]: ...

    @classmethod
    def for_model(  # noqa: D417  # `AgentLoop` describes the parts of a loop
        cls,
        model: str | ModelConfig | CanInfer,
        *,
        tools: Tools | Iterable[ToolLike] = (),
        base_url: str | None = None,
        api_key: str | Secret | KeyFunction | None = None,
        timeout: float | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        stop: str | Iterable[str] = (),
        seed: int | None = None,
        reasoning_effort: ReasoningEffort | None = None,
        cache_prompt: bool = False,
        hosted_tools: Iterable[HostedTool | HostedKind] = (),
        logprobs: bool = False,
        top_logprobs: int | None = None,
        extra: Mapping[str, JsonValue] = EMPTY_OBJECT,
        tool_choice: ToolChoice | Literal["auto", "required", "none"] = "auto",
        parallel_tool_calls: bool | None = None,
        mode: ModeLike | ModeName = "auto",
        max_retries: int = 2,
        streaming: bool = False,
        eager: bool = False,
        executor: CanExecuteToolCalls | None = None,
        interceptors: Iterable[CanIntercept] = (),
        compiler: CanCompileMessages | None = None,
        events: CanHandleEvents | None = None,
        max_steps: int | None = 50,
        system_prompt: SystemPrompt = "",
        output_type: Any = None,
        journal: CanJournal | None = None,
        in_doubt: InDoubt | str = InDoubt.TELL,
        strict_writes: bool = False,
        provenance: Provenance | str = Provenance.NONE,
        bounds: Bounds = DEFAULT_BOUNDS,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> AgentLoop[Any]:
        """Create a loop with a `ToolCallingDriver` for a model.

        None stands for the provider's default. The parameters that are not described here are those of `AgentLoop`.

        Args:
            model: a model string such as `openai:gpt-5`, a configuration, or an inference.
            tools: what the model can call, as for `AgentLoop`.
            base_url: for a model string: the URL of the API, when it is not the provider's default.
            api_key: for a model string: the API key, or a function that returns it, plain or async; read from the provider's
                environment variable by default.
            timeout: for a model string or a configuration: seconds to wait for the next byte of an answer
                (`LLMConfig.timeout`). For a limit on the execution, see `TimeLimit`.
            temperature: the sampling temperature.
            top_p: the probability mass of nucleus sampling, from 0 to 1.
            max_tokens: the maximum number of tokens of an answer.
            stop: the texts that end an answer.
            seed: the seed for repeatable sampling, where the provider supports it.
            reasoning_effort: how long to reason before an answer.
            cache_prompt: whether to set cache breakpoints, for providers that need explicit ones.
            hosted_tools: tools that the provider runs itself, beside those of the loop.
            logprobs: whether answers have the log probability of each token.
            top_logprobs: the number of most likely tokens at each position, from 0 to 20; implies `logprobs`.
            extra: entries that are added unchanged to the request body, for parameters of a single provider.
            tool_choice: whether, and which, tool the model must call: `auto`, `required`, `none` or a `ToolChoice`. A tool that
                is required is required until it was called once.
            parallel_tool_calls: whether an answer may contain several calls.
            mode: how tools are offered and calls are read: a mode, its name, or `auto` for the mode that suits the model.
            max_retries: how often the model may be called again in one step because its answer cannot be used. Failed
                requests are repeated as `LLMConfig.retry` says.
            streaming: whether answers are streamed, with an event for each chunk.
            eager: whether calls of pure tools start while the answer is streamed; needs `streaming`.
            output_type: the type of final answers, as for `AgentLoop`.

        Raises:
            ConfigurationError: if the model string or a setting is invalid, the API key is missing, or a setting cannot apply:
                `base_url` or `api_key` with a configuration or an inference, `timeout` with an inference, `eager` without
                `streaming`.
            TypeError: if the model or a setting has a wrong type.
            ToolDefinitionError: as for `AgentLoop`.
        """
        api_key = as_key(api_key)  # tracebacks show local variables, and the repr of a `Secret` hides it
        # Passed on in two groups: each parameter by its name would be as long again as the signature.
        values = locals()
        driver = ToolCallingDriver.for_model(model, **select_options(DriverSettings, values))
        return cls(driver, tools, output_type=output_type, **select_options(LoopOptions, values))

    @overload
    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, output_type: type[T], **options: Unpack[FileOptions]
    ) -> AgentLoop[T]: ...

    @overload
    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, output_type: None, **options: Unpack[FileOptions]
    ) -> AgentLoop[str]: ...

    @overload
    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, output_type: Any = ..., **options: Unpack[FileOptions]
    ) -> AgentLoop[Any]: ...

    @classmethod
    def from_file(  # noqa: D417  # `AgentLoop` describes the parts of a loop
        cls,
        path: str | PathLike[str],
        *,
        allow: Iterable[str] = (),
        allow_servers: Iterable[str] = (),
        variables: Mapping[str, str | int | float | bool] = NO_VARIABLES,
        trust: bool | Iterable[str | PathLike[str]] = False,
        model: str | ModelConfig | CanInfer | None = None,
        tools: Tools | Iterable[ToolLike] = (),
        executor: CanExecuteToolCalls | None = None,
        interceptors: Iterable[CanIntercept] = (),
        compiler: CanCompileMessages | NothingType | None = NOTHING,
        events: CanHandleEvents | None = None,
        max_steps: int | NothingType | None = NOTHING,
        system_prompt: SystemPrompt | NothingType = NOTHING,
        output_type: Any = NOTHING,
        journal: CanJournal | None = None,
        in_doubt: InDoubt | str = InDoubt.TELL,
        strict_writes: bool = False,
        provenance: Provenance | str = Provenance.NONE,
        bounds: Bounds = DEFAULT_BOUNDS,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> AgentLoop[Any]:
        """Create the loop of the agent that a TOML file, or a Markdown file with front matter, describes.

        The parameters that are not described here are those of `AgentLoop`.

        Args:
            path: the file.
            allow: the modules that its import paths may name, each with all modules below it, such as `myapp.tools`. The
                ensembles of this package are always allowed.
            allow_servers: the programs, such as `uvx`, and the hosts, such as `api.example.com` or `localhost:8000`, that the
                file may start and connect to; `*` for any. The addresses of the known providers are always allowed.
            variables: the values of variables in system prompts, by name.
            trust: whether the statements of the file, and of the files that it names, about tools count as the program's own word,
                and may make tools looser than their code does; or a list of the files to trust.
            model: replaces the model of the file.
            tools: tools in addition to those of the file.
            interceptors: interceptors in addition to those of the file.
            compiler: replaces the compiler of the file; None for the driver's default.
            max_steps: replaces the maximum of the file; None for no limit.
            system_prompt: replaces the instructions of the file.
            output_type: replaces the output schema of the file; None for text.

        Raises:
            InvalidDescriptor: with every mistake in the file and those that it names, each with its key and its line. Nothing
                is imported when an import path is not allowed.
            TypeError: if `allow` is not a list of modules, or `trust` is neither a bool nor a list of files.
        """
        given = locals()
        require("the path of an agent file", path, (str, PathLike), "a text or a Path")
        names = (*LoopOptions.__annotations__, "tools", "output_type")
        # What is not passed is left to the file.
        parts = {name: given[name] for name in names if given[name] is not NOTHING}
        loop: AgentLoop[Any] = agent_files().build_from_file(
            cls,
            path,
            allow=allow,
            allow_servers=allow_servers,
            variables=variables,
            trust=trust,
            model=model,
            parts=parts,
        )
        return loop

    # --- running ------------------------------------------------------------------------------------------------

    async def run(self, input: Input, *, execution_id: str | None = None, dependencies: Any = None) -> Output_co:
        """Run an execution to its end and return the final answer: a text, or an instance of `output_type`.

        See `execute` for the arguments and further errors.

        Raises:
            ExecutionFailed: an error ended the execution.
            ExecutionStopped: a limit or a request to stop ended it, also if there is a last answer.
            ExecutionSuspended: calls wait for decisions; `resume` continues it.
            NoOutput: it completed without an answer.
            ExecutionError: it was handed over, and the loop that answered does not have the output type that this loop has.
        """
        state = (await self.execute(input, execution_id=execution_id, dependencies=dependencies)).raise_for_status()
        check_answer_type(self, state)
        return state.output

    async def execute(
        self, input: Input, *, execution_id: str | None = None, dependencies: Any = None
    ) -> AgentState[Output_co]:
        """Run an execution to its end and return its state, whether or not it completed.

        Args:
            input: a text, a message, or a state. An execution of the state that is in progress is continued; otherwise the
                agent begins a new execution.
            execution_id: the id of a new execution; drawn from `ids` by default.
            dependencies: objects for tools, available as `ToolContext.dependencies`; never stored.

        Returns:
            The final state: completed, stopped, failed or suspended.

        Raises:
            ToolDefinitionError: if a tool's parameters are not a valid JSON Schema.
            InvalidDependencies: if a tool declares dependencies of another type, as `ToolContext[Shop]`.
            ConfigurationError: with a journal, if the id is reserved for sub-agents: it ends with `/<step>/<call>/agent`.
            DecisionError: if the state is suspended; see `resume`.
            JournalError: if the journal failed; `interrupted_state` returns the last state.
            asyncio.CancelledError: if the task was cancelled; `interrupted_state` returns the last state.
        """
        return await _run_to_end(lambda: self._start(input, execution_id, dependencies))

    async def iterate(
        self, input: Input, *, execution_id: str | None = None, dependencies: Any = None
    ) -> AsyncGenerator[AgentState[Output_co], None]:
        """Run an execution and yield the state after each step, then the final state.

        Each state is complete: it can be stored, and `execute` and `iterate` continue from it. With a journal, it was
        recorded before it is yielded. See `execute` for arguments and errors.
        """
        run = self._start(input, execution_id, dependencies)
        async with aclosing(run.states()) as states:
            async for state in states:
                if run.log is not None:  # the caller can act on the state, so its records have to be durable
                    await run.log.flush()
                yield state

    def stream(
        self, input: Input, *, execution_id: str | None = None, dependencies: Any = None
    ) -> EventStream[Output_co]:
        """Run an execution as a stream of its events and those of its sub-agents; the final state is `stream.state`.

            async for event in loop.stream("…"):
                print(event)

        See `execute` for arguments and errors.
        """
        return self._stream(input, execution_id, dependencies)

    def stream_text(
        self, input: Input, *, execution_id: str | None = None, dependencies: Any = None
    ) -> TextStream[Output_co]:
        """Run an execution as a stream of the text that its model writes; the final answer is `stream.output`.

            async for text in loop.stream_text("…"):
                print(text, end="", flush=True)

        The driver streams for this execution, however it was made. The text of each step is included, without that of
        sub-agents; see `TextStream`. See `run` for arguments and for errors, which are raised after the last piece.
        """
        state = self._state_from(input)
        return TextStream(state.agent_id, self._stream(state, execution_id, dependencies, is_read=True))

    async def resume(
        self, state: AgentState | str, decisions: Mapping[str, Decision], *, dependencies: Any = None
    ) -> AgentState[Output_co]:
        """Continue a suspended execution with decisions about its pending calls.

        Args:
            state: a suspended state; with a journal, also the id of its execution.
            decisions: a decision for each key of a pending call: `approve()`, `deny("why")`, `answer(value)` or
                `edit(arguments)`. Calls without a decision stay pending.
            dependencies: as for `execute`.

        Returns:
            The next final state, which can be suspended again.

        Raises:
            DecisionError: if a key is not that of a pending call, or a decision was made about another tool or other
                arguments; with a journal, also if it was used before.
            JournalConflict: if another process or task runs the execution.
            UnknownExecution: if the journal has no execution of this id.
            ConfigurationError: if an id is passed and the loop has no journal.
        """
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
        self, execution_id: str, *, in_doubt: InDoubt | str | None = None, dependencies: Any = None
    ) -> AgentState[Output_co]:
        """Continue an execution that was interrupted, such as by a crash, from its journal.

        Recorded inferences and outcomes of calls are reused. A call that started and has no recorded outcome runs again if
        its effect is `pure` or `idempotent`. For one with an effect, the tool's reconciler determines whether it ran;
        without a reconciler, `in_doubt` applies.

        Args:
            execution_id: the execution. If it has ended or is suspended, nothing runs and its state is returned.
            in_doubt: what to do about calls that may have run; that of the loop by default.
            dependencies: as for `execute`; not needed if nothing runs.

        Returns:
            The final state: completed, stopped, failed or suspended.

        Raises:
            UnknownExecution: if the journal has no execution of this id.
            JournalConflict: if another process or task runs it.
            JournalCorrupt: if its records were changed after they were written.
            ConfigurationError: if the loop has no journal.
        """
        if self.journal is None:
            raise ConfigurationError("recovering an execution needs a journal: AgentLoop(…, journal=…)")
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
        if log is None:
            return read_answer(self, state)
        # Changes of `before_execution` are recorded with the first step: without one, the point is passed again.
        at_start = state.step_count == 0
        return await _run_to_end(lambda: self._bind(state, dependencies, resumed=True, at_start=at_start, log=log), log)

    async def get_or_start(self, input: Input, execution_id: str, *, dependencies: Any = None) -> AgentState[Output_co]:
        """Run the execution of an id to its end, once: start it, continue it after a crash, or return its recorded state.

        Calling it again with the same id is safe, from any process that uses the same journal: of two calls at the same time,
        one runs the execution.

        Args:
            input: as for `execute`, for a new execution. If the execution is recorded, the input is ignored, also when it is
                another one than the recorded.
            execution_id: the id of the execution.
            dependencies: as for `execute`; not needed if nothing runs.

        Returns:
            The final state: completed, stopped, failed or suspended. `resume` continues a suspended execution.

        Raises:
            JournalConflict: if another process or task runs it; wait for its end, or try again.
            JournalCorrupt: if its records were changed after they were written.
            ConfigurationError: if the loop has no journal, or the id is reserved for sub-agents.
            ContractViolation: if the input is a state in the middle of another execution.
            DecisionError: if the input is a suspended state.
        """
        if self.journal is None:
            raise ConfigurationError("get_or_start finds executions by their ids in a journal: AgentLoop(…, journal=…)")
        check_execution_id(require("an execution id", execution_id, str, "a text"))
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
        if state is not None and log is None:
            return read_answer(self, state)
        if state is None:
            return await _run_to_end(lambda: self._start(input, execution_id, dependencies, log=log), log)
        at_start = state.step_count == 0
        return await _run_to_end(lambda: self._bind(state, dependencies, resumed=True, at_start=at_start, log=log), log)

    # --- running without an event loop --------------------------------------------------------------------------

    def run_sync(self, input: Input, *, execution_id: str | None = None, dependencies: Any = None) -> Output_co:
        """Run an execution to its end, and return the final answer, from a program without an event loop; see `run`.

        Raises:
            RuntimeError: inside a running event loop; use `await loop.run(…)` there.
        """
        return run_to_end("run_sync", lambda: self.run(input, execution_id=execution_id, dependencies=dependencies))

    def execute_sync(
        self, input: Input, *, execution_id: str | None = None, dependencies: Any = None
    ) -> AgentState[Output_co]:
        """Run an execution to its end from a program without an event loop; see `execute`.

        Raises:
            RuntimeError: inside a running event loop; use `await loop.execute(…)` there.
        """
        return run_to_end(
            "execute_sync", lambda: self.execute(input, execution_id=execution_id, dependencies=dependencies)
        )

    def iterate_sync(
        self, input: Input, *, execution_id: str | None = None, dependencies: Any = None
    ) -> Iterator[AgentState[Output_co]]:
        """Run an execution step by step from a program without an event loop; see `iterate`.

        Raises:
            RuntimeError: inside a running event loop; use `async for state in loop.iterate(…)` there.
        """
        return iterate(
            "iterate_sync", lambda: self.iterate(input, execution_id=execution_id, dependencies=dependencies)
        )

    def stream_sync(
        self, input: Input, *, execution_id: str | None = None, dependencies: Any = None
    ) -> SyncEventStream[Output_co]:
        """Run an execution as a stream of its events from a program without an event loop; see `stream`.

        Raises:
            RuntimeError: inside a running event loop; use `async for event in loop.stream(…)` there.
        """
        stream = self.stream(input, execution_id=execution_id, dependencies=dependencies)
        return SyncEventStream(stream)

    def stream_text_sync(
        self, input: Input, *, execution_id: str | None = None, dependencies: Any = None
    ) -> SyncTextStream[Output_co]:
        """Run an execution as a stream of its text from a program without an event loop; see `stream_text`.

        Raises:
            RuntimeError: inside a running event loop; use `async for text in loop.stream_text(…)` there.
        """
        return SyncTextStream(self.stream_text(input, execution_id=execution_id, dependencies=dependencies))

    def resume_sync(
        self, state: AgentState | str, decisions: Mapping[str, Decision], *, dependencies: Any = None
    ) -> AgentState[Output_co]:
        """Continue a suspended execution from a program without an event loop; see `resume`.

        Raises:
            RuntimeError: inside a running event loop; use `await loop.resume(…)` there.
        """
        return run_to_end("resume_sync", lambda: self.resume(state, decisions, dependencies=dependencies))

    def get_or_start_sync(self, input: Input, execution_id: str, *, dependencies: Any = None) -> AgentState[Output_co]:
        """Run the execution of an id to its end, once, from a program without an event loop; see `get_or_start`.

        Raises:
            RuntimeError: inside a running event loop; use `await loop.get_or_start(…)` there.
        """
        return run_to_end(
            "get_or_start_sync", lambda: self.get_or_start(input, execution_id, dependencies=dependencies)
        )

    def recover_sync(
        self, execution_id: str, *, in_doubt: InDoubt | str | None = None, dependencies: Any = None
    ) -> AgentState[Output_co]:
        """Continue an interrupted execution from a program without an event loop; see `recover`.

        Raises:
            RuntimeError: inside a running event loop; use `await loop.recover(…)` there.
        """
        return run_to_end(
            "recover_sync", lambda: self.recover(execution_id, in_doubt=in_doubt, dependencies=dependencies)
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
        """Return a tool with which another loop delegates a task to this one; the final answer is the tool's result.

        Args:
            name: the name by which the model calls the tool.
            description: what the agent does and when to call it, for the model.
            input_type: a class whose fields are the parameters; the agent receives them as JSON. By default there is one
                text parameter, `task`.
            parameters: the parameters as a JSON Schema of type object, in place of `input_type`.
            tools_allowed: names of the tools that the agent may use, or patterns such as `read_*`; None for all.
            tools_denied: names or patterns of the tools that it may not use.
            max_depth: the maximum number of nested agents, this one included.
            budget_share: the share, from 0 to 1, of what is not used yet of the caller's `Budget` that each call may use.
            effect: the effect of a call, including all that the agent's tools do.
            policy: the timeout, ordering key and other settings of the tool.

        Raises:
            ToolDefinitionError: if the parameters are not an object, or a name or pattern matches no tool of this loop.
        """
        from agentloop.loop.agent_tool import AgentTool, limits_on_tools

        # Not strict about writes: the loop was checked, and its caller may limit it by the same means as the loop itself.
        limited = self._copy(
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
        return Inbox(require("an execution id", execution_id, str, "a text"), self._inboxes)

    def wiretap(self, listener: Listener[Event]) -> Subscription:
        """Call the listener, plain or async, with every event of this loop and its changed copies."""
        return self.events.wiretap(listener)

    def on(self, kind: type[E], listener: Listener[E]) -> Subscription:
        """Call the listener, plain or async, with the events of exactly one class.

        Raises:
            InvalidParameter: no event has exactly this class, as with `ToolCallSettled`, the base of several.
        """
        require_emitted(kind)
        return self.events.on(kind, listener)

    async def __aenter__(self) -> Self:
        self._check_names()
        resources = self._open_resources.enter()
        if self.tools.groups:
            try:
                with apply_bounds(self.bounds):
                    await hold_groups(self.tools.groups, resources)
            except BaseException:  # Python calls no __aexit__ after a failed __aenter__
                await self._open_resources.leave()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._open_resources.leave()

    async def aclose(self) -> None:
        """Close what this loop and its changed copies hold open in the running event loop."""
        await self._open_resources.close()

    # --- changed copies -----------------------------------------------------------------------------------------

    def with_driver(self, driver: CanUseTools) -> Self:
        """Return a copy with another driver."""
        return self._copy(driver=driver)

    def with_tools(self, tools: Tools | Iterable[ToolLike]) -> Self:
        """Return a copy with these tools in place of the present ones."""
        return self._copy(tools=tools)

    def with_executor(self, executor: CanExecuteToolCalls) -> Self:
        """Return a copy with another executor."""
        return self._copy(executor=executor)

    def with_interceptors(self, *interceptors: CanIntercept) -> Self:
        """Return a copy with these interceptors in addition to the present ones."""
        return self._copy(interceptors=(*self.interceptors, *interceptors))

    def with_compiler(self, compiler: CanCompileMessages) -> Self:
        """Return a copy with another message compiler."""
        return self._copy(compiler=compiler)

    def with_events(self, events: CanHandleEvents) -> Self:
        """Return a copy with another event bus, without the listeners of this loop."""
        return self._copy(events=events)

    def with_journal(self, journal: CanJournal | None) -> Self:
        """Return a copy that records its executions in another journal; None to record nothing."""
        return self._copy(journal=journal)

    def with_clock(self, clock: Clock) -> Self:
        """Return a copy with another source of times."""
        return self._copy(clock=clock)

    def with_max_steps(self, max_steps: int | None) -> Self:
        """Return a copy with another maximum number of steps; None for no limit."""
        return self._copy(max_steps=max_steps)

    def with_system_prompt(self, system_prompt: SystemPrompt) -> Self:
        """Return a copy with other instructions for the agents that it creates."""
        return self._copy(system_prompt=system_prompt)

    @overload
    def with_output_type(self, output_type: None) -> AgentLoop[str]: ...

    @overload
    def with_output_type(self, output_type: type[T]) -> AgentLoop[T]: ...

    @overload
    def with_output_type(self, output_type: Any) -> AgentLoop[Any]: ...

    def with_output_type(self, output_type: Any) -> AgentLoop[Any]:
        """Return a copy with another type of final answers; None for text."""
        return self._copy(output_type=output_type)

    def for_tool_call(self, context: ToolContext, *interceptors: CanIntercept) -> Self:
        """Return a copy that runs a sub-agent inside a tool call of another execution; used by `as_tool`.

        The copy uses the clock, the journal and the shared resources of the calling execution and derives its ids from
        the call. Its events reach the listeners of both loops.

        Args:
            context: the context of the tool call.
            *interceptors: interceptors in addition to those of this loop.
        """
        # A replay decides about the journal: it may have none although this loop has one.
        log = context.scope.log
        copy = self._copy(
            journal=log.settings.journal if log is not None else self.journal,
            in_doubt=log.settings.in_doubt if log is not None else self.in_doubt,
            events=self.events if context.events is None else join_buses(context.events, self.events),
            clock=context.scope.clock,
            ids=context.ids(),
            interceptors=(*self.interceptors, *interceptors),
            strict_writes=False,
        )
        object.__setattr__(copy, "_parent_scope", context.scope)
        return copy

    def _copy(self, **changes: Any) -> Self:
        copy: Self = evolve(cast("Any", self), **changes)
        for name in ("_parent_scope", "_open_resources", "_inboxes"):
            object.__setattr__(copy, name, getattr(self, name))
        return copy

    # --- inspection ---------------------------------------------------------------------------------------------

    @property
    def stack(self) -> InterceptorStack:
        """The interceptors in the order in which they run, including the step limit and those of tool groups."""
        return self._stack

    @property
    def output_form(self) -> OutputType | None:
        """The compiled `output_type`; None for text."""
        return self._output_form

    @property
    def redaction(self) -> CanRedactRecords:
        """Masks what its journal masks, and the keys that its parts have, such as those of its models, where texts leave the process."""
        return exits().redaction_of(self.journal, [self])

    def audit(self) -> Audit:
        """Return how the calls of each tool with consequences are guarded, limited, recorded and repeated, and what is missing.

        The tools of sub-agents and of loops that this one hands over to are included. Nothing is called or started. Inside of
        `async with loop:` the tools of servers are known; before, those of a server appear as one row.

            print(loop.audit())
        """
        from agentloop.loop.audit import audit_loop

        return audit_loop(self, self.journal, self.in_doubt)

    def describe(self, format: Literal["text", "mermaid"] = "text") -> str:
        """Return a multi-line description of the loop's parts.

        It lists the tools that run without a question, with the tools of agents among the tools, and the speakers on whose word they
        do; and the interceptors in their order.

        Args:
            format: `text` for people, or `mermaid` for a flowchart, with the loops of agents among the tools.

        Raises:
            InvalidParameter: the format is another one.
        """
        if format == "mermaid":
            from agentloop.loop.binding import diagram_of

            return diagram_of(self)
        if format != "text":
            raise InvalidParameter(f"the format of a description has to be 'text' or 'mermaid', not {format!r:.100}")
        from agentloop.loop.unasked import format_unasked, unasked_tools

        lines = [
            f"driver    {self.driver!r}",
            f"tools     {', '.join(self.tools.names) or 'none'}",
            *[f"          {line}" for line in format_unasked(unasked_tools(self))],
            f"executor  {self.executor!r}",
            *([f"journal   {self.journal!r}"] if self.journal is not None else []),
            "interceptors, outermost first:",
            self._stack.describe() or "       none",
        ]
        return "\n".join(lines)

    # --- private ------------------------------------------------------------------------------------------------

    def _state_from(self, input: Input) -> AgentState:
        if isinstance(input, AgentState):
            return input
        if not isinstance(input, str | Message):
            raise checks.invalid_input(input)
        return AgentState.start(input, system_prompt=initial_prompt(self.system_prompt), clock=self.clock, ids=self.ids)

    def _stream(
        self, input: Input, execution_id: str | None, dependencies: Any, *, is_read: bool = False
    ) -> EventStream[Output_co]:
        state = self._state_from(input)

        async def run() -> AgentState:
            return await _run_to_end(lambda: self._start(state, execution_id, dependencies, is_read=is_read))

        return EventStream(state.agent_id, self.events, run)

    def _start(
        self,
        input: Input,
        execution_id: str | None,
        dependencies: Any,
        *,
        is_read: bool = False,
        log: ExecutionLog | None = None,
    ) -> Run:
        """Return a run that continues the state's execution if it is in progress, or else begins a new one."""
        self._check_dependencies(dependencies)
        if execution_id is not None:
            require("an execution id", execution_id, str, "a text")
        state = self._state_from(input)
        if state.status is ExecutionStatus.SUSPENDED:
            keys = ", ".join(call.key for call in state.pending)
            raise DecisionError(f"this state waits for decisions about {keys}; pass them to AgentLoop.resume")
        if state.status is ExecutionStatus.IN_PROGRESS:
            if execution_id not in {None, state.execution_id} or log is not None:
                raise ContractViolation(
                    f"this state is in the middle of execution {state.execution_id}; it keeps that id"
                )
            return self._bind(state, dependencies, resumed=True, at_start=state.step_count == 0, is_read=is_read)
        state = begin_execution(self, Summary.forget_replaced(state))
        if execution_id and self.journal is not None and self._parent_scope is None:
            check_execution_id(execution_id)
        state = state.with_execution_started(execution_id or self.ids.new_id("execution"), self.clock.now())
        if log is not None:
            journaling().describe_origin(log, self, state)
        return self._bind(state, dependencies, resumed=False, at_start=True, is_read=is_read, log=log)

    def _bind(
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
        if log is None or log.inference_count is None:
            inferences, others = state.inference_count, state.other_inference_count
        else:
            inferences, others = log.inference_count, log.other_inference_count
        self._check_names()
        # Connections are shared as widely as possible: by the executions of an entered loop, else with the calling execution.
        local, parent = Resources(), self._parent_scope
        scope = ExecutionScope(
            clock=self.clock,
            ids=self.ids,
            dependencies=dependencies,
            local_resources=local,
            shared_resources=self._open_resources.current() or (local if parent is None else parent.shared_resources),
            kept_resources=self._open_resources.kept() if parent is None else parent.kept_resources,
            depth=0 if parent is None else parent.depth + 1,
            inference_count=inferences - others,
            other_inference_count=others,
            log=log,
            bounds=self.bounds,
            callers=() if parent is None else parent.callers,
            is_read=is_read,
        )
        if self._checked_names and self._checked_names[0]:
            noted_references(scope.shared_resources).update(self._checked_names[0])
        return Run.of(
            self, state, scope, events=self.events, inboxes=self._inboxes, resumed=resumed, at_start=at_start, log=log
        )

    def _check_names(self) -> None:
        """Check once that the parts of the loop name tools that are there; for a sub-agent, its caller has done so.

        Raises:
            ConfigurationError: a name or a pattern matches no tool, or `in_doubt` is given without a journal.
        """
        if not self._checked_names and self._parent_scope is None:
            checks.check_in_doubt(self.in_doubt, self.journal)
            self._checked_names.append(check_tool_names(self))

    def _check_dependencies(self, dependencies: object) -> None:
        self.executor.local_tools(self.tools).check_dependencies(dependencies)

    @property
    def _answers(self) -> CanAnswerCalls | None:
        """What answers tool calls in place of the tools, if the calling execution is a fork."""
        log = self._parent_scope.log if self._parent_scope is not None else None
        return log.settings.answers if log is not None else None

    @property
    def _outer_claims(self) -> tuple[Claim, ...]:
        """The claims of the executions whose calls those of this loop serve."""
        log = self._parent_scope.log if self._parent_scope is not None else None
        return log.settings.claims if log is not None else ()


async def _run_to_end(bind: Callable[[], Run], log: ExecutionLog | None = None) -> AgentState:
    """Bind an execution and run it to its end.

    Args:
        bind: returns the run.
        log: the log of an execution that is claimed already. If the execution cannot be bound, its claim is released, and
            nothing is recorded.
    """
    try:
        run = bind()
    except BaseException:
        if log is not None:
            await log.aclose()
        raise
    async for _ in run.states():
        pass
    return run.state
