"""An agent as a tool of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Protocol, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.tool import CanAccessToolContext, CanContinueCall, Tool, ToolContext, ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.errors import AgentsTooDeep, ContractViolation, ToolDefinitionError, ToolFailed
from agentloop.interception.rules import Permissions
from agentloop.interception.tool_selection import ToolSelection
from agentloop.tools.schema import json_schema
from agentloop.values.decisions import CallSuspended, Decision, PendingCall
from agentloop.values.json import JsonObject, extract_json, format_json, freeze_object, thaw
from agentloop.values.parts import Text
from agentloop.values.records import InDoubt
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ToolResult

TASK: JsonObject = freeze_object(
    {
        "type": "object",
        "properties": {
            "task": {
                "type": "string",
                "description": "What to do, with all that has to be known for it: nothing else of this conversation is seen.",
            }
        },
        "required": ["task"],
        "additionalProperties": False,
    }
)
"""The parameters of an agent that is given its task in words."""


class CanServe(Protocol):
    """What an agent's tool needs of a loop."""

    @property
    def system_prompt(self) -> str:
        """The instructions of agents that begin here."""

    def for_tool_call(self, context: ToolContext, *interceptors: CanIntercept) -> Self:
        """Return a copy that runs within the execution that the context is of."""

    async def execute(
        self, state: AgentState, /, *, execution_id: str | None = None, dependencies: Any = None
    ) -> AgentState:
        """Run to the end."""

    @property
    def journal(self) -> CanJournal | None:
        """Where its executions are written down."""

    async def resume(
        self, state: AgentState | str, decisions: Mapping[str, Decision], *, dependencies: Any = None
    ) -> AgentState:
        """Go on with a suspended execution."""

    async def recover(
        self, execution_id: str, *, in_doubt: InDoubt | str | None = None, dependencies: Any = None
    ) -> AgentState:
        """Go on with an execution that was interrupted."""


@frozen(kw_only=True)
class AgentTool(Tool, CanAccessToolContext, CanContinueCall):
    """Has an agent do what a call asks for, and returns its answer; made by `AgentLoop.as_tool`.

    Each call is an execution of its own, `<key of the call>/agent`, of an agent of its own, whose parent is the calling one.

    Attributes:
        name: the name by which a model calls it.
        description: what the agent does, for the model.
        loop: the loop of the agent.
        parameters: a JSON Schema of type object; with that of `TASK` the agent gets the text, with another one the JSON of
            the arguments as its first message.
        max_depth: how many agents may stand below each other, this one included.
        budget_share: how much of what is left in the calling agent's `Budget` is lent to each call.
        effect: what the agent does to the world, with all that it calls.
        policy: how it wants to be run.
    """

    name: str = ""
    description: str = ""
    loop: CanServe = field(repr=False)
    parameters: JsonObject = field(repr=False)
    max_depth: int
    budget_share: float
    effect: Effect
    policy: ToolPolicy = field(repr=False)
    _context: ToolContext | None = field(default=None, repr=False, eq=False)

    @property
    def continues_calls(self) -> bool:
        """It does: with a journal, what the agent does is written down like what its caller does."""
        return True

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that serves this context."""
        return evolve(self, context=context)

    async def use(self, *_: Any, **arguments: Any) -> ToolResult:
        """Run the agent to its end, or on from where it was suspended.

        Raises:
            AgentsTooDeep: when too many agents stand above.
            CallSuspended: when a call of the agent waits for a decision.
            ExecutionFailed: when the agent failed.
            ToolFailed: when it was stopped before it had an answer.
        """
        context = self._context
        if context is None:
            raise ContractViolation(f"the agent {self.name!r} needs the context of its call: run it by an executor")
        if context.scope.depth >= self.max_depth:
            raise AgentsTooDeep(
                f"the agent {self.name!r} may be called down to depth {self.max_depth}, and {context.scope.depth} agents "
                "stand above this call already; do the work without it"
            )
        try:
            resumed = _resumed(context)
            with _lent(self.budget_share, resumed) as interceptors:
                state = await self._ran(self.loop.for_tool_call(context, *interceptors), context, resumed, arguments)
                _count(interceptors, state)
        except asyncio.CancelledError as cancelled:  # without the agent's state, which is not the caller's
            raise asyncio.CancelledError(*cancelled.args) from None
        return _outcome(self.name, state)

    async def _ran(
        self, loop: CanServe, context: ToolContext, resumed: AgentState | None, arguments: Mapping[str, Any]
    ) -> AgentState:
        known = None if loop.journal is None else await _recorded(loop, loop.journal, context, resumed)
        if known is not None:
            return known
        if context.resumed is not None and resumed is not None:
            return await loop.resume(resumed, _decisions(context.resumed), dependencies=context.dependencies)
        text = arguments["task"] if self.parameters == TASK else format_json(arguments).decode()
        ids = context.ids()
        state = AgentState.start(text, system_prompt=loop.system_prompt, clock=context.scope.clock, ids=ids)
        return await loop.execute(
            evolve(state, parent_agent_id=context.agent_id),
            execution_id=_execution_id(context),
            dependencies=context.dependencies,
        )


def _execution_id(context: ToolContext) -> str:
    name = "agent" if context.attempt == 1 else f"agent-{context.attempt}"
    return f"{context.idempotency_key}/{name}"


async def _recorded(
    loop: CanServe, journal: CanJournal, context: ToolContext, resumed: AgentState | None
) -> AgentState | None:
    """Go on with the agent's execution if it is recorded, with the decisions that it still waits for; None if it is not."""
    execution_id = _execution_id(context) if resumed is None else resumed.execution_id
    if await journal.head(execution_id) is None:
        return None
    state = await loop.recover(execution_id, dependencies=context.dependencies)
    if state.status is not ExecutionStatus.SUSPENDED or context.resumed is None:
        return state
    waiting = {call.key for call in state.pending}
    decisions = {key: one for key, one in _decisions(context.resumed).items() if key in waiting}
    return await loop.resume(state, decisions, dependencies=context.dependencies) if decisions else state


def _resumed(context: ToolContext) -> AgentState | None:
    """Return the state in which the agent was suspended; None when it begins."""
    if context.resumed is None:
        return None
    from agentloop.values.serialization import from_plain

    return from_plain(thaw(context.resumed.progress), AgentState)


@contextmanager
def _lent(share: float, resuming: AgentState | None) -> Iterator[tuple[CanIntercept, ...]]:
    """Lend a part of the budget of the execution whose tool runs here, if it has one."""
    from agentloop.interception.budgets.leases import current_budget

    budget = current_budget()
    if budget is None:
        yield ()
        return
    with budget.lease(share, resuming=resuming) as lease:
        yield (lease,)


def _count(leases: tuple[CanIntercept, ...], state: AgentState) -> None:
    """Count what the agent has used where its execution had ended before an interruption and was not run again."""
    if not leases:
        return
    from agentloop.interception.budgets.budget import Budget

    for lease in leases:
        if isinstance(lease, Budget):
            lease.count_ended(state)


def _decisions(pending: PendingCall) -> Mapping[str, Decision]:
    return {call.key: call.decision for call in pending.inner if call.decision is not None}


def _outcome(name: str, state: AgentState) -> ToolResult:
    """Turn the end of an agent's execution into the result of the call that it served.

    Raises:
        CallSuspended: when calls of the agent wait.
        ExecutionFailed: when it failed.
        ToolFailed: when it was stopped before it had an answer.
    """
    if state.status is ExecutionStatus.SUSPENDED:
        from agentloop.values.serialization import to_plain

        inner = [call.without_internals() for call in state.pending]
        raise CallSuspended(f"calls of the agent {name!r} wait for decisions", inner=inner, progress=to_plain(state))
    state.raise_for_failure()
    if state.status is ExecutionStatus.COMPLETED:
        typed = state.context.response_format is not None
        return ToolResult(extract_json(state.final_text) if typed else state.final_text)
    signal = state.stop_signal
    why = f"{signal.reason.value}: {signal.message}" if signal is not None else "stopped"
    if not state.final_text:
        raise ToolFailed(
            f"the agent {name!r} was stopped before it had an answer ({why}). What it has done:\n{state.explain()}"
        )
    return ToolResult(state.final_text, (Text(f"{state.final_text}\n\n[The agent was stopped here: {why}]"),))


def parameters_of(input_type: Any, parameters: Mapping[str, Any] | None) -> JsonObject:
    """Return the parameters of an agent's tool: of a type, as they are given, or a task in words.

    Raises:
        ToolDefinitionError: when they are not those of an object, or are given twice.
    """
    if input_type is not None and parameters is not None:
        raise ToolDefinitionError("an agent's tool has an input_type or parameters, not both")
    if input_type is None and parameters is None:
        return TASK
    schema = freeze_object(json_schema(input_type) if parameters is None else parameters)
    if schema.get("type") != "object":
        raise ToolDefinitionError(
            f"the parameters of an agent's tool are those of an object, such as a dataclass, not {dict(schema)!r:.100}"
        )
    return schema


def limits_on_tools(tools: Tools, allowed: Iterable[str] | None, denied: Iterable[str]) -> tuple[CanIntercept, ...]:
    """Return what keeps an agent from being offered, and from using, tools that it may not.

    Raises:
        ToolDefinitionError: when a name or pattern fits none of the tools, and no group can add any.
    """
    may = None if allowed is None else tuple(_names(allowed))
    may_not = tuple(_names(denied))
    for name in (*(may or ()), *may_not):
        if not tools.groups and not any(fnmatchcase(tool, name) for tool in tools.names):
            hint = f"; did you mean {' or '.join(map(repr, found))}?" if (found := tools.closest(name)) else ""
            raise ToolDefinitionError(f"the agent has no tool {name!r} that could be allowed or denied{hint}")
    if may is None and not may_not:
        return ()
    return (ToolSelection(may, may_not), Permissions(may, may_not))


def _names(given: Iterable[str]) -> Iterable[str]:
    return (given,) if isinstance(given, str) else given
