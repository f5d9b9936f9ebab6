"""The contract of tools, the optional abilities of a tool, and groups of tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from string import Formatter
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, get_args

from attrs import Factory, field, frozen
from attrs.validators import optional

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ToolDefinitionError
from agentloop.values.authority import Declarations, Statement
from agentloop.values.decisions import PendingCall
from agentloop.values.json import JsonObject, JsonValue, format_json, freeze_object
from agentloop.values.labels import CallOrigins, Label
from agentloop.values.policies import CallPolicy
from agentloop.values.records import Reconciliation
from agentloop.values.run_requests import Identity
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import DerivedIds, IdSource
from agentloop.values.tool_calls import (
    ALL,
    Effect,
    Egress,
    EgressLike,
    NamesLike,
    ToolCall,
    ToolExecution,
    ToolResult,
    ToolSpec,
    as_decides,
    as_egress,
    as_identifiers,
    as_own,
)
from agentloop.values.value import Value, above, at_least, instance_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Covariant: what takes the context of a service also takes that of a subclass of the service.
    Deps_co = TypeVar("Deps_co", default=Any, covariant=True)
else:  # type variables of Python 3.11 have no defaults
    from typing import TypeVar

    Deps_co = TypeVar("Deps_co", covariant=True)


def _ignore(_: object) -> None:
    """Drop progress that has no listener."""


def _is_open() -> bool:
    """Return that nothing has closed a call that no executor runs."""
    return False


@frozen(eq=False, repr=False, kw_only=True)
class ToolContext(Value, Generic[Deps_co]):
    """The context of one call, injected into tools that request it.

    A parameter annotated `ToolContext[Shop]` has `dependencies` of the type `Shop`; an execution with other ones does not start.

    Attributes:
        execution_id: the execution of the call.
        agent_id: the agent of the execution.
        idempotency_key: `<execution id>/<step number>/<call index>`. It is the same when the call runs again, so pass it to
            services that can reject duplicates.
        dependencies: the argument of `AgentLoop.execute(…, dependencies=…)`.
        attempt: the 1-based attempt of this call; retries count, and a resumed call starts again at 1.
        resumed: the pending call with its progress and decision, if the tool had suspended it; else None.
        scope: clock and resources of the execution; for ids see `ids`.
        events: the bus of the execution; None outside of one.
        id: the id of the tool execution.
        claim_token: the fencing token of the claim under which the call runs: larger in each process that takes the
            execution over. A service that stores the largest one it has seen can refuse a process that lost the execution.
            None without a journal.
        label: who had a part in the call: in the decision to make it, and in its arguments; None where nothing is labeled.
    """

    execution_id: str
    agent_id: str
    idempotency_key: str
    dependencies: Deps_co = field(default=None)
    attempt: int = 1
    resumed: PendingCall | None = None
    scope: ExecutionScope = field(factory=ExecutionScope, repr=False, eq=False)
    events: CanHandleEvents | None = field(default=None, repr=False, eq=False)
    id: str = ""
    claim_token: int | None = field(default=Factory(lambda context: context.scope.claim_token, takes_self=True))
    label: Label | None = field(default=None, repr=False)
    _report: Callable[[object], None] = field(default=_ignore, alias="report", repr=False, eq=False)
    _has_closed: Callable[[], bool] = field(default=_is_open, alias="has_closed", repr=False, eq=False)

    @property
    def principal(self) -> Identity | None:
        """Who asks for the execution; None where nobody is known."""
        request = self.scope.request
        return None if request is None else request.principal

    @property
    def is_closed(self) -> bool:
        """Whether the result of this attempt is no longer of use: it has timed out, was cancelled, or another process drives the execution.

        A function in a thread cannot be interrupted. One that takes long can look here, and return; one with an effect looks before
        the effect.
        """
        return self._has_closed()

    def ids(self) -> IdSource:
        """Return a source of ids derived from the id of the call, so that concurrent calls get the same ids in any order."""
        origin = self.id or self.idempotency_key
        return DerivedIds(origin if self.attempt == 1 else f"{origin}/attempt_{self.attempt}")

    def progress(self, update: object) -> None:
        """Emit the progress of the call as `ToolCallProgressed`; can be called from a coroutine or from a thread.

        Args:
            update: JSON data, such as a text, a fraction or an object. After the call has ended it is dropped.

        Raises:
            NotJson: if the update has no JSON form.
        """
        self._report(update)


OrderingKey: TypeAlias = str | Callable[[JsonObject], str]
"""A name, or a function from a call's arguments to a name."""
ResourceKey: TypeAlias = str | Callable[[JsonObject], str | Iterable[str]]
"""What a call is about: a name in which `{path}` stands for the argument `path`, or a function from the arguments to one or several
names. Tools whose calls have the same name are about the same thing."""
_SAME = Literal["same arguments", "same tool", "same resource"]
Supersedes: TypeAlias = _SAME | Callable[[JsonObject, JsonObject], bool]
"""Which earlier results a new result makes stale: those of the tool's calls with the same arguments, those of all its calls, those
of any tool about the same resource, or those of the tool for which a function of the earlier and the new arguments returns True."""


@frozen(eq=False, repr=False, kw_only=True)
class ToolPolicy(CallPolicy):
    """How an executor runs the calls of a tool; `CallPolicy` adds retries, cache, rate limit and the like.

    Attributes:
        timeout: seconds after which a call ends as timed out; None for the executor's default.
        sequential: whether a call of this tool runs alone: after all calls before it, and before all calls after it.
        key: calls with the same key run one after the other; a name, or a function from the arguments to a name.
        max_result_bytes: the maximum bytes of a result that the model sees; None for the executor's limit.
        strict: whether arguments that do not satisfy the schema are never coerced; a `spec` that says so has the same effect.
        supersedes: which earlier results a new result makes stale. The compilers of the package show a notice in their place at once.
            None for no results.
        resource: what a call is about, such as `file:{path}`, so that a call of one tool can make results of another stale:
            those about the same resource, if the later tool supersedes the `same resource`. None for nothing in particular.
        eager: whether a call of a pure tool may start before the model has written its whole answer, if the driver starts calls
            eagerly. False for tools whose calls cost something, such as requests to a network.
        reads_results: whether the tool returns parts of earlier results by their reference, as `read_result` does. Where a loop
            has such a tool, results that do not fit name it.
        repeatable: whether a call of a tool with an effect runs again when a model repeats it directly after it has succeeded, as
            is meant for a test run or a poll. Otherwise the model gets the result of the call that ran. None for a tool whose calls
            may only run again because it declares a cache or deduplication, which say which calls are the same.
        runs_code: whether an argument is code or a command, so that the approval of one call says nothing about another. A
            person is never asked to approve all calls of such a tool.

    Raises:
        ToolDefinitionError: if `key`, `supersedes` or `resource` is neither a text nor a plain function; if `supersedes` is an
            unknown string, or the `same resource` without a `resource`; or if the name of the resource holds anything but names of
            arguments in braces.
    """

    timeout: float | None = field(default=None, validator=optional(above(0)))
    sequential: bool = field(default=False, validator=instance_of(bool))
    key: OrderingKey | None = None
    max_result_bytes: int | None = field(default=None, validator=optional(at_least(1)))
    strict: bool = field(default=False, validator=instance_of(bool))
    supersedes: Supersedes | None = None
    resource: ResourceKey | None = None
    eager: bool = field(default=True, validator=instance_of(bool))
    reads_results: bool = field(default=False, validator=instance_of(bool))
    repeatable: bool | None = field(default=None, validator=optional(instance_of(bool)))
    runs_code: bool = field(default=False, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        given: Mapping[str, object] = {"key": self.key, "supersedes": self.supersedes, "resource": self.resource}
        for name, value in given.items():
            # Called before and after each call of the tool, whose outcome a mistake here would cost.
            if not (value is None or isinstance(value, str) or callable(value)) or iscoroutinefunction(value):
                raise ToolDefinitionError(f"{name} is a text or a plain function, not {value!r:.100}")
        if isinstance(self.resource, str):
            arguments_in(self.resource)
        if isinstance(self.supersedes, str) and self.supersedes not in get_args(_SAME):
            known = " or ".join(map(repr, get_args(_SAME)))
            raise ToolDefinitionError(
                f"supersedes is {known}, or a function of two calls' arguments; not {self.supersedes!r}"
            )
        if self.supersedes == "same resource" and self.resource is None:
            raise ToolDefinitionError(
                "a tool that supersedes the same resource has to name it, as in resource='file:{path}' for its argument path"
            )

    @property
    def may_repeat(self) -> bool:
        """Whether an equal call of a tool with an effect may run directly after one that has succeeded."""
        if self.repeatable is None:
            return self.cache is not None or self.deduplicate is not None
        return self.repeatable

    def resources(self, arguments: JsonObject) -> frozenset[str]:
        """Return the names of what a call is about; none if it has no such argument.

        Raises:
            TypeError: the policy's function returns no names.
        """
        if self.resource is None:
            return frozenset()
        if isinstance(self.resource, str):
            names_of_arguments = arguments_in(self.resource)
            # Without all arguments it is not known what the call is about.
            if any(name not in arguments for name in names_of_arguments):
                return frozenset()
            return frozenset(
                [self.resource.format_map({name: _as_name(arguments[name]) for name in names_of_arguments})]
            )
        names: object = self.resource(arguments)
        names = [names] if isinstance(names, str) else list(names) if isinstance(names, Iterable) else [names]
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"the resource function of the tool's policy returned {names!r:.100}; it returns names")
        return frozenset(names)


def arguments_in(resource: str) -> tuple[str, ...]:
    """Return the names of the arguments in the name of a resource.

    Raises:
        ToolDefinitionError: if there is anything else in braces.
    """
    try:
        fields = [field for field in Formatter().parse(resource) if field[1] is not None]
    except ValueError as error:
        raise ToolDefinitionError(f"{resource!r} is not the name of a resource: {error}") from None
    # Anything more, such as an attribute or a format, would compute something out of the arguments.
    if not all(name and name.isidentifier() and not form and not conversion for _, name, form, conversion in fields):
        raise ToolDefinitionError(
            f"the name of a resource, {resource!r}, has something in braces that is not the name of an argument"
        )
    return tuple([str(name) for _, name, _, _ in fields])


def _as_name(value: JsonValue) -> str:
    return value if isinstance(value, str) else format_json(value).decode()


DEFAULT_POLICY = ToolPolicy()


class Tool(ABC):
    """A tool that a model can call. Its properties, such as `name`, `parameters`, `effect` and `policy`, may be class attributes.

    An executor calls `use` only with arguments that satisfy `parameters` (law 17). An implementation keeps these laws:

    - It keeps no state of a call, so that calls can run at the same time (law 9).
    - It does not change its arguments (law 3).
    - Its effect on the outside world is what `effect` declares (law 14).
    - It sends data only to where `egress` says.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which a model calls the tool."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What the tool does and when to use it, for the model."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """A JSON Schema of type object."""

    @property
    def effect(self) -> Effect:
        """The effect of the tool on the outside world; by default `Effect.EFFECT`."""
        return Effect.EFFECT

    @property
    def egress(self) -> EgressLike:
        """Whether data can leave the program by a call, to a network for example; by default False.

        The names of the arguments that carry the addresses, as in `egress = "url"`, let approvals look at where it goes; True
        says that nothing in the arguments tells.
        """
        return False

    @property
    def own(self) -> NamesLike:
        """The names of the fields of a result whose words the service vouches for, as `ToolSpec.own` has them; by default none."""
        return ()

    @property
    def identifiers(self) -> NamesLike:
        """The names of the fields of a result that name things of the service, as `ToolSpec.identifiers` has them; by default none."""
        return ()

    @property
    def decides(self) -> NamesLike:
        """The names of the arguments that decide whom and what a call reaches, as `ToolSpec.decides` has them; by default all."""
        return ALL

    @property
    def policy(self) -> ToolPolicy:
        """How executors run the calls of the tool."""
        return DEFAULT_POLICY

    @property
    def declarations(self) -> Declarations:
        """The statements about the tool, with their speakers; by default, code makes all of them."""
        policy = self.policy
        return Declarations.of_code(
            effect=self.effect,
            egress=as_egress(self.egress),
            own=as_own(self.own),
            identifiers=as_identifiers(self.identifiers),
            decides=as_decides(self.decides),
            runs_code=policy.runs_code,
            strict=policy.strict,
            sequential=policy.sequential,
            eager=policy.eager,
        )

    @property
    def is_bound_to_calls(self) -> bool:
        """Whether a call needs a copy with the state, the call or the context, for a tool that can access them; by default True.

        An executor makes no copy of a tool that says False.
        """
        return True

    @property
    def is_local(self) -> bool:
        """Whether its calls run in the process of the execution, whatever the executor; by default False.

        So do calls of a tool that works with what only this process has: the records and the parts of the execution, or a
        connection.
        """
        return False

    @property
    def spec(self) -> ToolSpec:
        """The definition of the tool as one value.

        Raises:
            NotJson: if the parameters have no JSON form.
        """
        return ToolSpec(
            self.name,
            self.description,
            freeze_object(self.parameters),
            self.effect,
            egress=self.egress,
            own=self.own,
            identifiers=self.identifiers,
            decides=self.decides,
        )

    @abstractmethod
    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Run the tool.

        An implementation declares its own keyword parameters in place of `**arguments`.

        Args:
            **arguments: the arguments of the call, by name.

        Returns:
            JSON data; a part such as `Image` or a sequence of parts, for the model; a `ToolResult`; or, if the tool is a
            `CanPresentResult`, any argument of its `present`.

        Raises:
            AgentStop: to stop the execution.
            CallSuspended: to suspend the call until there is a decision; the tool is called again when it resumes.
            Exception: any other error fails the call; the model gets its message.
        """


class ToolFromSpec(Tool):
    """A tool whose `spec`, which a subclass sets, says all about it but for its policy."""

    @property
    @abstractmethod
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""

    @property
    def name(self) -> str:
        """The name by which a model calls the tool."""
        return self.spec.name

    @property
    def description(self) -> str:
        """The description for the model."""
        return self.spec.description

    @property
    def parameters(self) -> JsonObject:
        """The JSON Schema of the parameters."""
        return self.spec.parameters

    @property
    def effect(self) -> Effect:
        """The effect of a call."""
        return self.spec.effect

    @property
    def egress(self) -> Egress:
        """Whether data can leave by a call, and by which arguments."""
        return self.spec.egress

    @property
    def own(self) -> tuple[str, ...]:
        """The names of the fields of a result whose words the service vouches for."""
        return self.spec.own

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The names of the fields of a result that name things of the service."""
        return self.spec.identifiers

    @property
    def decides(self) -> tuple[str, ...]:
        """The names of the arguments that decide whom and what a call reaches."""
        return self.spec.decides


class CanPrepareArguments(ABC):
    """A tool whose arguments have other types than those of JSON."""

    @abstractmethod
    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Convert arguments that satisfy the schema to the arguments of `use`.

        Raises:
            InvalidArguments: if a value does not fit its type; names the path.
        """


class CanDescribeDefaults(ABC):
    """A tool that gives values to what a call leaves out, in a way of its own.

    A person who decides about a call sees these values. Tools that do not prepare their arguments have the defaults of their
    schema, and what `prepare` adds to the arguments counts as a default without this class.
    """

    @abstractmethod
    def describe_defaults(self, arguments: Mapping[str, Any]) -> JsonObject:
        """Return the values of the parameters that a call leaves out.

        Args:
            arguments: the arguments of the call, which satisfy the schema; they are not changed.

        Returns:
            The values by path: the name of a parameter, or a JSON Pointer without its first slash for something inside of an argument,
            in which `*` stands for each item of a list. The same values whenever the call runs, as long as the program is the same.
        """


class CanPresentResult(ABC):
    """A tool whose results have other types than those of JSON, or must match a declared type."""

    @abstractmethod
    def present(self, result: Any) -> ToolResult:
        """Convert the result of `use` to JSON, and to content for the model if that differs.

        Raises:
            ToolFailed: if the result does not match the declared type, or has no JSON form.
        """


class CanDescribeResult(ABC):
    """A tool whose results have a known form, which programs that call it can rely on."""

    @property
    @abstractmethod
    def result_schema(self) -> JsonObject | None:
        """A JSON Schema of its results; None if their form is not known."""


class CanLabelResult:
    """Says itself who had a part in its results, by `ToolResult.label`; a result without a label is foreign."""


class CanUseThread(ABC):
    """A tool that is a plain, blocking function: an executor runs it in a thread instead of awaiting `use`."""

    @abstractmethod
    def use_in_thread(self, **arguments: Any) -> Any:
        """Run the tool, blocking the thread; arguments, result and errors are as for `use`.

        A coroutine that it returns is awaited in the event loop, and its result is the result.
        """


class CanUseInline(ABC):
    """A tool that is a plain function which neither waits nor computes for long: an executor calls it in the event loop.

    That saves the thread. Nothing else runs meanwhile, and no timeout or cancellation can reach it, so that it has to be pure and
    short, as arithmetic or a look into a table is.
    """

    @abstractmethod
    def use_inline(self, **arguments: Any) -> Any:
        """Run the tool; arguments, result and errors are as for `use`."""


class CanAccessAgentState(ABC):
    """A tool that reads the agent's state. The state is injected; it is no parameter of the schema."""

    @abstractmethod
    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that reads this state."""


class CanAccessToolCall(ABC):
    """A tool that reads the call that it serves."""

    @abstractmethod
    def with_tool_call(self, call: ToolCall) -> Self:
        """Return a copy that serves this call."""


class CanAccessToolContext(ABC):
    """A tool that uses the context of its call: idempotency key, progress, dependencies."""

    @abstractmethod
    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that uses this context."""


class CanRequireDependencies(ABC):
    """A tool that works only with dependencies of a certain type, or that leads to such tools."""

    @abstractmethod
    def check_dependencies(self, dependencies: object) -> None:
        """Check the dependencies of an execution before it starts.

        Args:
            dependencies: the argument of `AgentLoop.execute(…, dependencies=…)`; None if there is none.

        Raises:
            InvalidDependencies: if they have another type; names the tool, the type and what was passed.
        """


class CanPinDefinition(ABC):
    """A tool that another program defines, such as an MCP server, and that may be a different one tomorrow.

    Its `spec` has the hash of the current definition as `definition`, and of the one that was first seen or last approved as
    `pinned`. While they differ, a call waits for a decision.
    """

    @abstractmethod
    def accept_definition(self) -> None:
        """Pin the current definition; called when a call under it has been approved."""


class CanReconcileCall(ABC):
    """A tool that can determine whether one of its interrupted calls has run, for example by a request to its service."""

    @abstractmethod
    async def reconcile(self, *_: Any, **arguments: Any) -> Reconciliation:
        """Determine whether an interrupted call has run.

        An implementation declares its own keyword parameters in place of `**arguments`, as that of `use` does.

        The tool is bound as for `use`; `ToolContext.idempotency_key` is that of the interrupted call.

        Args:
            **arguments: the arguments of the call, by name.

        Returns:
            `happened(value)`, which settles the call with the value; `did_not_happen()`, which runs it; or
            `cannot_tell(reason)`, which leaves it in doubt.

        Raises:
            Exception: any error leaves the call in doubt.
        """


class CanContinueCall(ABC):
    """A tool that records its own progress: when an interrupted call runs again, it continues from that record."""

    @property
    @abstractmethod
    def continues_calls(self) -> bool:
        """Whether the tool continues interrupted calls; False if it has no record to continue from.

        A tool that always does records calls of its own, as an agent does. One that is bound to an interrupted call can answer
        for this call alone. Its `use` raises `ToolInDoubt` when the record leads nowhere and the call may have had its effect.
        """


class InnerCalls(ABC):
    """The calls that a tool makes itself while it serves a call; an executor passes it to a tool that is a `CanCallTools`.

    Each of them is a call like any other: its arguments are validated, it passes the interceptors, it is recorded, and it can
    wait for a decision. When the tool runs again, because its own call was interrupted, suspended or repeated, the calls
    that it made before are not made again: the tool has to make the same ones in the same order, and gets their outcomes.
    """

    @property
    @abstractmethod
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that can be called: those on offer, without tools that make calls themselves."""

    @property
    def agents(self) -> frozenset[str]:
        """The names of the tools that are agents: a model reads the arguments of their calls, and writes their results."""
        return frozenset()

    @abstractmethod
    async def execute(
        self, calls: Sequence[ToolCall], *, origins: Sequence[CallOrigins] = ()
    ) -> Sequence[ToolExecution]:
        """Execute calls as one batch, and return their outcomes in call order.

        Everything that it raises ends the tool; let it pass.

        Args:
            calls: the calls; their ids are replaced.
            origins: for each call, who had a part in the decision to make it and in its arguments, from a tool that keeps track of
                both. Without them, everybody who had a part in the call of the tool, and in the results that it has received.

        Raises:
            CallSuspended: a call waits for a decision; the tool is called again when there is one.
            ToolInDoubt: the tool made other calls before.
            AgentLoopError: the execution stops, or an interceptor or the journal failed.
            asyncio.CancelledError: the task was cancelled; the calls are settled.
        """

    @abstractmethod
    def check_complete(self) -> None:
        """Check, when the tool has made its last call, that it made no more calls before.

        Raises:
            ToolInDoubt: it did.
        """


class CanCallTools(ABC):
    """A tool that calls other tools, such as an interpreter of programs.

    An executor runs a call of it alone: after all calls before it, and before all calls after it.
    """

    @abstractmethod
    def with_inner_calls(self, inner: InnerCalls) -> Self:
        """Return a copy that makes its calls by this."""


class ToolGroup(ABC):
    """Tools that are configured, started and stopped together. A list of tools may contain groups.

    An implementation keeps these laws:

    - `offered` is constant for the life of the group, unless the group is a `CanDiscoverTools`. A disabled group offers no
      tools and is not started.
    - `hold` and `release` are called in pairs, by any number of executions at once and in any number of event loops. The
      first `hold` starts the group, the last `release` stops it.
    - Neither raises if starting or stopping fails. The failure is reported, and calls of the group's tools fail with
      `ToolUnavailable`.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the group; may be a class attribute."""

    @property
    @abstractmethod
    def offered(self) -> Sequence[Tool]:
        """The tools of the group, in order."""

    @property
    def withheld(self) -> Sequence[str]:
        """The names of the tools that the group has and does not offer now; empty by default."""
        return ()

    @property
    @abstractmethod
    def interceptors(self) -> Sequence[CanIntercept]:
        """The interceptors that the group adds to every loop that uses it."""

    @property
    def statements(self) -> Sequence[Statement]:
        """The statements about the group, with their speakers; by default none."""
        return ()

    @abstractmethod
    async def hold(self) -> None:
        """Keep the group started in the running event loop until `release`.

        Raises:
            asyncio.CancelledError: the task was cancelled; the group is not held then.
        """

    @abstractmethod
    async def release(self) -> None:
        """End one `hold`; stops the group if it was the last one."""


class CanDiscoverTools(ToolGroup):
    """A group whose tools are known only while it is held, such as the tools of a server.

    An execution discovers the tools once, when it starts, and uses them until it ends. Two tools of the same name are not an
    error here, since the program does not control what a server offers; the first one is used.

    `discover` is called while the group is held, by any number of executions at once. An implementation keeps these laws in
    addition to those of `ToolGroup`:

    - `discover` does not raise if discovery fails. The failure is reported, and the last discovered tools are returned.
    - `offered` is the result of the last discovery.
    - No tool has an effect that `possible_effects` does not have.
    """

    @property
    def possible_effects(self) -> frozenset[Effect]:
        """The effects that its tools may have, as far as that is known before they are discovered; by default all."""
        return frozenset(Effect)

    @property
    def name_problems(self) -> Sequence[str]:
        """What is wrong with the names of tools that the group is configured with, as of the last discovery; empty by default."""
        return ()

    @property
    def call_policy(self) -> CallPolicy | None:
        """What the tools may declare that will be discovered; None if it is not known, which is the default."""
        return None

    @abstractmethod
    async def discover(self) -> Sequence[Tool]:
        """Return the current tools of the group, in order.

        Raises:
            asyncio.CancelledError: the task was cancelled.
        """


ToolLike: TypeAlias = Tool | ToolGroup | Callable[..., Any]
"""What a list of tools may hold: tools, groups, and functions, each of which becomes a tool as by `@tool`."""
