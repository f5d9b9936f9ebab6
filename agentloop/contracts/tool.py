"""The contract of tools, and what else a tool may be able to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias, get_args

from attrs import field, frozen
from attrs.validators import ge, gt, optional

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ToolDefinitionError
from agentloop.values.decisions import PendingCall
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.policies import CallPolicy
from agentloop.values.records import Reconciliation
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import DerivedIds, IdSource
from agentloop.values.tool_calls import Effect, ToolCall, ToolResult, ToolSpec
from agentloop.values.value import Value


def _nobody(_: object) -> None:
    """Take progress that nobody listens for."""


@frozen(eq=False, repr=False, kw_only=True)
class ToolContext(Value):
    """The context of one call, injected into a tool that asks for it.

    Attributes:
        execution_id: the execution that the call belongs to.
        agent_id: the agent that the execution belongs to.
        idempotency_key: `<execution id>/<step number>/<call index>`; the same again when the call is run again, so give
            it to any service that can refuse a repetition.
        dependencies: what the program gave to `AgentLoop.execute(…, dependencies=…)`.
        attempt: how often the tool was begun for this call since it was last let run, from 1.
        resumed: what the tool left when it raised `CallSuspended`, with what was decided since; None when it begins.
        scope: clock and resources of the execution; for what draws ids, see `ids`.
        events: the bus of the execution; None outside of one.
        id: the id of the tool execution.
    """

    execution_id: str
    agent_id: str
    idempotency_key: str
    dependencies: Any = None
    attempt: int = 1
    resumed: PendingCall | None = None
    scope: ExecutionScope = field(factory=ExecutionScope, repr=False, eq=False)
    events: CanHandleEvents | None = field(default=None, repr=False, eq=False)
    id: str = ""
    _report: Callable[[object], None] = field(default=_nobody, alias="report", repr=False, eq=False)

    def ids(self) -> IdSource:
        """Return ids for what serves this call: derived from the id of the call, so that calls side by side do not mix."""
        origin = self.id or self.idempotency_key
        return DerivedIds(origin if self.attempt == 1 else f"{origin}/attempt_{self.attempt}")

    def progress(self, update: object) -> None:
        """Tell listeners how far the work is, from a coroutine or from a thread.

        Args:
            update: JSON data: a text, a fraction, an object. It is emitted as `ToolCallProgressed`; after the call has
                ended it is dropped.

        Raises:
            NotJson: when the update has no JSON form.
        """
        self._report(update)


OrderingKey: TypeAlias = str | Callable[[JsonObject], str]
"""A name, or a function from a call's arguments to one."""
_SAME = Literal["same arguments", "same tool"]
Supersedes: TypeAlias = _SAME | Callable[[JsonObject, JsonObject], bool]
"""Which earlier results of a tool a new one makes stale: those of calls with the same arguments, all, or those for which a
function of the earlier and the new arguments is true."""


@frozen(eq=False, repr=False, kw_only=True)
class ToolPolicy(CallPolicy):
    """How a tool wants to be run; what it asks for in calls that fail, repeat or come too often is a `CallPolicy`.

    Attributes:
        timeout: seconds after which a call ends as timed out; None for the executor's default.
        sequential: run a call of this tool alone: after all calls before it, before all calls after it.
        key: calls with the same key run one after the other; a name, or a function from the arguments to one.
        max_result_bytes: the most bytes of a result that the model is shown; None for the executor's limit.
        supersedes: which earlier results of the tool a new one makes stale: when an epoch begins, a compiler shows a notice in
            their place. None for none.
    """

    timeout: float | None = field(default=None, validator=optional(gt(0)))
    sequential: bool = False
    key: OrderingKey | None = None
    max_result_bytes: int | None = field(default=None, validator=optional(ge(0)))
    supersedes: Supersedes | None = None

    def __attrs_post_init__(self) -> None:
        if isinstance(self.supersedes, str) and self.supersedes not in get_args(_SAME):
            known = " or ".join(map(repr, get_args(_SAME)))
            raise ToolDefinitionError(
                f"supersedes is {known}, or a function of two calls' arguments; not {self.supersedes!r}"
            )


DEFAULT_POLICY = ToolPolicy()


class Tool(ABC):
    """Something a model can call.

    An implementer keeps these laws:

    - It is called with arguments that satisfy `parameters`, never with others (law 17).
    - It keeps nothing of a call, so that calls may run at the same time (law 9).
    - It does not change what it is given (law 3).
    - What it does to the world is what `effect` says (law 14).
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name by which a model calls it; a class attribute will do."""

    @property
    @abstractmethod
    def description(self) -> str:
        """What it does and when to use it, for the model; a class attribute will do."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """A JSON Schema of type object; a class attribute will do."""

    @property
    def effect(self) -> Effect:
        """What calling it does to the world; a class attribute will do. `Effect.EFFECT` unless it says otherwise."""
        return Effect.EFFECT

    @property
    def policy(self) -> ToolPolicy:
        """How it wants to be run; a class attribute will do."""
        return DEFAULT_POLICY

    @property
    def spec(self) -> ToolSpec:
        """What a model sees: name, description and parameters as one value."""
        return ToolSpec(self.name, self.description, freeze_object(self.parameters), self.effect)

    @abstractmethod
    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Do it.

        An implementer declares its own keyword parameters in place of `**arguments`.

        Args:
            **arguments: the arguments of the call, by name.

        Returns:
            JSON data; a part such as `Image` or a sequence of parts, which the model is shown; a `ToolResult`; or, of a
            tool that is `CanPresentResult`, whatever its `present` takes.

        Raises:
            AgentStop: to stop the execution.
            CallSuspended: to let the call wait for a decision; then it is used again, with what it left in the context.
            Exception: anything else makes the call fail; the model is told the message.
        """


class CanPrepareArguments(ABC):
    """A tool that takes its arguments in other types than JSON's."""

    @abstractmethod
    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Turn arguments that satisfy the schema into what `use` takes.

        Raises:
            InvalidArguments: when a value does not fit its type after all; names the path.
        """


class CanPresentResult(ABC):
    """A tool whose results have another type than JSON's, or a declared type that they have to fit."""

    @abstractmethod
    def present(self, result: Any) -> ToolResult:
        """Turn what `use` returned into JSON, and into what the model is shown where that differs.

        Raises:
            ToolFailed: when the result does not fit the declared type, or has no JSON form.
        """


class CanUseThread(ABC):
    """A tool whose work is a plain, blocking function: an executor runs it in a thread instead of awaiting `use`."""

    @abstractmethod
    def use_in_thread(self, **arguments: Any) -> Any:
        """Do it, blocking."""


class CanAccessAgentState(ABC):
    """A tool that reads the agent's state. The state is injected: it is never in the schema and never the model's."""

    @abstractmethod
    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that may read this state."""


class CanAccessToolCall(ABC):
    """A tool that wants to know the call it serves."""

    @abstractmethod
    def with_tool_call(self, call: ToolCall) -> Self:
        """Return a copy that serves this call."""


class CanAccessToolContext(ABC):
    """A tool that wants the context of its call: idempotency key, progress, the program's dependencies."""

    @abstractmethod
    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that serves this context."""


class CanReconcileCall(ABC):
    """A tool that can find out whether an interrupted call of its own has run, for example by asking the service it calls."""

    @abstractmethod
    async def reconcile(self, **arguments: Any) -> Reconciliation:
        """Find out whether an interrupted call has run.

        The tool is bound as for `use`: `ToolContext.idempotency_key` is the one that the call had.

        Args:
            **arguments: the arguments of the call, by name.

        Returns:
            `happened(value)`, whose value settles the call; `did_not_happen()`, with which it is run; or `cannot_tell(reason)`.

        Raises:
            Exception: any error leaves the call in doubt.
        """


class CanContinueCall(ABC):
    """A tool that writes down itself what it does: used again for a call that was interrupted, it goes on from there."""

    @property
    @abstractmethod
    def continues_calls(self) -> bool:
        """Whether it does."""


class ToolGroup(ABC):
    """Tools that are configured, started and stopped together; it stands in a list of tools like a single one.

    An implementer keeps these laws:

    - `offered` is the same for the life of the group, unless it is one that `CanDiscoverTools`; a group that is switched off
      offers nothing and costs nothing.
    - `hold` and `release` are called in pairs, by any number of executions at once and in any number of event loops: the
      first hold starts, the last release stops.
    - Neither raises when starting or stopping fails: that is reported, and calls of the group's tools fail with a
      `ToolUnavailable`, so that everything else goes on.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the group; a class attribute will do."""

    @property
    @abstractmethod
    def offered(self) -> Sequence[Tool]:
        """The tools that a model can call, in order."""

    @property
    @abstractmethod
    def interceptors(self) -> Sequence[CanIntercept]:
        """What the group does besides its tools' calls; stands in every loop that is given the group."""

    @abstractmethod
    async def hold(self) -> None:
        """Have it started in the running event loop until `release`.

        Raises:
            asyncio.CancelledError: when cancelled meanwhile; then it is not held.
        """

    @abstractmethod
    async def release(self) -> None:
        """Need it no more; stops it when nobody else holds it."""


class CanDiscoverTools(ToolGroup):
    """A group whose tools are known only while it is held, such as those of a server that has to be asked.

    An execution asks once, when it begins, and keeps what it was told until it ends. Two tools of one name are not an error
    here, since what a server offers is not in the program's hands: the one that was there first stays.

    An implementer keeps these laws besides those of `ToolGroup`:

    - `discover` is called while the group is held, by any number of executions at once.
    - It does not raise: what cannot be asked is reported, and offers what it offered last, or nothing.
    - `offered` is what was discovered last.
    """

    @abstractmethod
    async def discover(self) -> Sequence[Tool]:
        """Return the tools that a model can call from now on, in order.

        Raises:
            asyncio.CancelledError: when cancelled meanwhile.
        """
