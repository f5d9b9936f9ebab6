"""An agent as a tool of another agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, Protocol, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal, is_equal_after_masking
from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolContext,
    CanContinueCall,
    CanDiscoverTools,
    CanLabelResult,
    CanRequireDependencies,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.contracts.tools import Tools
from agentloop.errors import (
    AgentsTooDeep,
    ContractViolation,
    JournalConflict,
    ToolDefinitionError,
    ToolFailed,
    ToolInDoubt,
)
from agentloop.interception.lending import Lease, current_lenders
from agentloop.interception.rules import Permissions
from agentloop.interception.tool_selection import ToolSelection
from agentloop.loop.dependencies import check_dependencies
from agentloop.loop.parameters import require, require_number, require_option
from agentloop.tools.schema import json_schema
from agentloop.values.authority import Declarations
from agentloop.values.decisions import CallSuspended, Decision, PendingCall
from agentloop.values.json import JsonObject, extract_json, format_json, freeze_object, thaw
from agentloop.values.messages import Message, origin_of
from agentloop.values.parts import Text
from agentloop.values.records import AGENT, InDoubt, sub_agent_execution_id
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.system_prompts import SystemPrompt, initial_prompt
from agentloop.values.tool_calls import Effect, ToolResult

TASK: JsonObject = freeze_object(
    {
        "type": "object",
        "properties": {
            "task": {
                "type": "string",
                "description": (
                    "The task, with all the information that it needs: the agent sees nothing else of this conversation."
                ),
            }
        },
        "required": ["task"],
        "additionalProperties": False,
    }
)
"""The parameters of an agent tool without an input type: the task as a text."""


class SubAgentLoop(Protocol):
    """What an agent tool needs of a loop; `AgentLoop` has it."""

    @property
    def system_prompt(self) -> SystemPrompt:
        """The instructions of agents that are created by this loop, or the function that returns them."""

    @property
    def tools(self) -> Tools:
        """The tools of its agents."""

    @property
    def executor(self) -> CanExecuteToolCalls:
        """Runs the calls of its agents."""

    @property
    def journal(self) -> CanJournal | None:
        """Records its executions."""

    @property
    def dependencies(self) -> Any:
        """The dependencies of its executions, or the function that makes them; None for those of the caller."""

    def replace(self, *, dependencies: Any) -> Self:
        """Return a copy with these dependencies."""

    def _for_tool_call(self, context: ToolContext, *interceptors: CanIntercept) -> Self:
        """Return a copy that runs inside a tool call of another execution."""

    async def execute(
        self, state: AgentState, /, *, execution_id: str | None = None, dependencies: Any = None
    ) -> AgentState:
        """Run an execution to its end."""

    async def resume(
        self, state: AgentState | str, decisions: Mapping[str, Decision], *, dependencies: Any = None
    ) -> AgentState:
        """Continue a suspended execution."""

    async def recover(
        self, execution_id: str, *, in_doubt: InDoubt | str | None = None, dependencies: Any = None
    ) -> AgentState:
        """Continue an interrupted execution."""


@frozen(kw_only=True)
class AgentTool(
    Tool, CanAccessAgentState, CanAccessToolContext, CanContinueCall, CanLabelResult, CanRequireDependencies
):
    """Delegates a call to an agent and returns its answer; created by `AgentLoop.as_tool`.

    Each call is an execution of its own, `<key of the call>/agent`, of a new agent whose parent is the calling agent.

    Attributes:
        name: the name by which the model calls it.
        description: what the agent does, for the model.
        loop: the loop of the agent.
        parameters: a JSON Schema of type object. With the schema `TASK`, the first message of the agent is the text of the
            task; with another schema, it is the JSON of the arguments.
        max_depth: the maximum number of nested agents, this one included.
        budget_share: the share of what is not used yet of the caller's `Budget` that each call may use.
        effect: the effect of a call, including all that the agent's tools do.
        policy: the timeout, ordering key and other settings of the tool.
    """

    name: str = ""
    description: str = ""
    loop: SubAgentLoop = field(repr=False)
    parameters: JsonObject = field(repr=False)
    max_depth: int
    budget_share: float
    effect: Effect
    policy: ToolPolicy = field(repr=False)
    _declarations: Declarations | None = field(default=None, repr=False)
    _context: ToolContext | None = field(default=None, repr=False, eq=False)
    _caller: AgentState | None = field(default=None, repr=False, eq=False)

    @property
    def egress(self) -> bool:
        """Whether data can leave by a call of any of the agent's tools, or these are not known yet."""
        tools = self.loop.tools
        return any(bool(tool.egress) for tool in tools) or any(
            isinstance(group, CanDiscoverTools) for group in tools.groups
        )

    @property
    def declarations(self) -> Declarations:
        """The statements about the tool: of code, and of the file that describes the agent, if there is one."""
        return super().declarations if self._declarations is None else self._declarations

    @property
    def is_local(self) -> bool:
        """True: the agent records its calls in the journal of the execution, and uses its limits."""
        return True

    @property
    def continues_calls(self) -> bool:
        """Always true: with a journal, the agent is recorded in the same way as its caller."""
        return True

    @classmethod
    def of(
        cls,
        loop: SubAgentLoop,
        name: str,
        description: str,
        *,
        input_type: Any,
        parameters: Mapping[str, Any] | None,
        max_depth: int,
        budget_share: float,
        effect: Effect | str,
        policy: ToolPolicy,
    ) -> AgentTool:
        """Create the tool of a loop, as `AgentLoop.as_tool` does.

        Args:
            loop: the loop of the agent.
            name: the name by which the model calls the tool.
            description: what the agent does and when to call it, for the model.
            input_type: a class whose fields are the parameters; the agent receives them as JSON. By default there is one text
                parameter, `task`.
            parameters: the parameters as a JSON Schema of type object, in place of `input_type`.
            max_depth: the maximum number of nested agents, this one included.
            budget_share: the share, from 0 to 1, of what is not used yet of the caller's `Budget` that each call may use.
            effect: the effect of a call, including all that the agent's tools do.
            policy: the timeout, ordering key and other settings of the tool.

        `as_tool` has two more: `tools_allowed`, names of the tools that the agent may use, or patterns such as `read_*`, None for
        all; and `tools_denied`, names or patterns of the tools that it may not use.

        Raises:
            InvalidParameter: an argument has the wrong type or value.
            ToolDefinitionError: the parameters are not an object; in `as_tool`, also if a name or pattern matches no tool of the loop.
        """
        require("the name of an agent's tool", name, str, "a text")
        require("the description of an agent's tool", description, str, "a text")
        require_number("max_depth", max_depth, minimum=1, expected="a whole number from 1 on")
        require_number("budget_share", budget_share, minimum=0.0, maximum=1.0, expected="a number from 0 to 1")
        return cls(
            name=name,
            description=description,
            loop=loop,
            parameters=parameters_of(input_type, parameters),
            max_depth=max_depth,
            budget_share=budget_share,
            effect=require_option("effect", effect, Effect),
            policy=policy,
        )

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy whose agent can read the results in this state by reference."""
        return evolve(self, caller=state)

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy for this call."""
        return evolve(self, context=context)

    def check_dependencies(self, dependencies: object) -> None:
        """Check the dependencies of the agent: its own, or else those of its caller.

        Raises:
            InvalidDependencies: if a tool declares another type.
        """
        check_dependencies(self.loop, None if self.loop.dependencies is not None else dependencies)

    async def use(self, *_: Any, **arguments: Any) -> ToolResult:
        """Run the agent to its end, from its start or from where it was suspended or interrupted.

        Raises:
            AgentsTooDeep: too many agents are nested.
            CallSuspended: a call of the agent waits for a decision.
            ExecutionFailed: the agent failed.
            ExecutionStopped: its last answer was cut off.
            ToolFailed: the agent was stopped before it had an answer.
            ToolInDoubt: the call was interrupted before the agent had a record, and a secret in its arguments was not recorded.
        """
        context = self._context
        if context is None:
            raise ContractViolation(f"the agent {self.name!r} needs the context of its call: run it by an executor")
        if context.scope.depth >= self.max_depth:
            raise AgentsTooDeep(
                f"the agent {self.name!r} has a max_depth of {self.max_depth}, and this call is {context.scope.depth} "
                "agents deep already; do the work without it"
            )
        try:
            suspended = _suspended_state(context)
            if self._caller is not None:
                callers = (self._caller, *context.scope.callers)
                context = evolve(context, scope=evolve(context.scope, callers=callers))
            if self.loop.dependencies is not None:
                context = evolve(context, dependencies=None)
            with _lease_budget(self.budget_share, suspended) as leases:
                state = await self._execute(self._loop_for(context, leases), context, suspended, arguments)
                for lease in leases:  # an agent that ended before an interruption did not run under it
                    lease.count_ended(state)
        except asyncio.CancelledError as cancelled:
            # Without the cause, which carries the state of the agent: the caller's loop would take it for its own.
            raise asyncio.CancelledError(*cancelled.args) from None
        if context.scope.log is not None:
            # A fork that reuses calls of the agent checks that their records still exist.
            context.scope.log.attach(context.idempotency_key, AGENT, {"execution": state.execution_id})
        result = _result_of(self.name, state)
        return result if context.label is None else evolve(result, label=origin_of(state.messages))

    def _loop_for(self, context: ToolContext, interceptors: Iterable[CanIntercept]) -> SubAgentLoop:
        return self.loop._for_tool_call(context, *interceptors)  # noqa: SLF001  # the two know each other by `SubAgentLoop`

    async def _execute(
        self, loop: SubAgentLoop, context: ToolContext, suspended: AgentState | None, arguments: Mapping[str, Any]
    ) -> AgentState:
        # With a journal, the records are newer than the progress that the suspended call has stored.
        recovered = None if loop.journal is None else await _recover(loop, loop.journal, context, suspended)
        if recovered is not None:
            return recovered
        if context.resumed is not None and suspended is not None:
            return await loop.resume(suspended, _decisions_in(context.resumed), dependencies=context.dependencies)
        _check_unmasked(context)
        text = arguments["task"] if self.parameters == TASK else format_json(arguments).decode()
        prompt = initial_prompt(loop.system_prompt)
        task = Message.user(text, label=context.label)  # the words of the caller's model
        state = AgentState.start(task, system_prompt=prompt, clock=context.scope.clock, ids=context.ids())
        return await loop.execute(
            evolve(state, parent_agent_id=context.agent_id),
            execution_id=_execution_id(context),
            dependencies=context.dependencies,
        )


async def _recover(
    loop: SubAgentLoop, journal: CanJournal, context: ToolContext, suspended: AgentState | None
) -> AgentState | None:
    """Continue the agent's execution if it is recorded, with the decisions that it has not received; None if it is not."""
    execution_id = _execution_id(context) if suspended is None else suspended.execution_id
    head = await journal.head(execution_id)
    if head is None:
        return None
    # The id names the caller's execution and call. The agent excludes an execution that an earlier caller of this id has left.
    if head.parent_agent_id != context.agent_id:
        raise JournalConflict(
            f"the execution {execution_id!r} is recorded already, and it does not serve a call of the agent {context.agent_id!r}"
        )
    state = await loop.recover(execution_id, dependencies=context.dependencies)
    if state.status is not ExecutionStatus.SUSPENDED or context.resumed is None or suspended is None:
        return state
    # The caller's state is preferred to the recorded one, in which secrets may be masked: decisions are about its calls.
    if is_equal_after_masking(suspended.execution, state.execution, journal):
        state = suspended
    # The agent may have used some of the decisions before the interruption, and its calls may have been suspended again.
    digests = {call.key: call.digest for call in state.pending}
    decisions = _decisions_in(context.resumed, digests)
    return await loop.resume(state, decisions, dependencies=context.dependencies) if decisions else state


def _check_unmasked(context: ToolContext) -> None:
    """Check that the arguments of the call are not those of a record in which a secret is masked.

    Raises:
        ToolInDoubt: they are.
    """
    log = context.scope.log
    recorded = None if log is None else log.recorded_call(context.idempotency_key)
    if recorded is not None and recorded.redacted and recorded.execution is None:
        raise ToolInDoubt(
            "the program was interrupted while this call ran; its agent has no record to continue from, and a secret in the "
            "arguments was not recorded"
        )


def _execution_id(context: ToolContext) -> str:
    return sub_agent_execution_id(context.idempotency_key, context.attempt)


def _suspended_state(context: ToolContext) -> AgentState | None:
    """Return the state in which the agent of this call was suspended; None if it was not.

    A call that waits because it is in doubt has none: approved, its agent continues from its records.
    """
    if context.resumed is None or context.resumed.progress is None:
        return None
    # Loaded late: a program that only defines agents does not need cattrs.
    from agentloop.values.serialization import from_plain

    return from_plain(thaw(context.resumed.progress), AgentState)


def _decisions_in(pending: PendingCall, digests: Mapping[str, str] | None = None) -> Mapping[str, Decision]:
    """Return the decisions about the inner calls of a pending call.

    Args:
        pending: the call.
        digests: the digests of the agent's pending calls, by key; decisions about other suspensions are left out. None for all.
    """
    decided = [call for call in pending.inner if digests is None or digests.get(call.key) == call.digest]
    # The caller has checked the digest of a decision. In its record the arguments may be masked, which changes that of the call.
    return {
        call.key: evolve(decision, digest=call.digest) if decision.digest else decision
        for call in decided
        if (decision := call.decision) is not None
    }


@contextmanager
def _lease_budget(share: float, suspended: AgentState | None) -> Iterator[tuple[Lease, ...]]:
    """Lease a share of the calling execution's limits; yield nothing if they do not lend."""
    with ExitStack() as leases:
        lenders = current_lenders().values()
        yield tuple([leases.enter_context(lender.lease(share, resuming=suspended)) for lender in lenders])


def _result_of(name: str, state: AgentState) -> ToolResult:
    """Return the result of a call from the final state of its agent.

    Raises:
        CallSuspended: calls of the agent wait for decisions.
        ExecutionFailed: the agent failed.
        ExecutionStopped: its last answer was cut off.
        ToolFailed: the agent was stopped before it had an answer.
    """
    if state.status is ExecutionStatus.SUSPENDED:
        from agentloop.values.serialization import to_plain

        inner = [call.without_internals() for call in state.pending]
        raise CallSuspended(f"calls of the agent {name!r} wait for decisions", inner=inner, progress=to_plain(state))
    if state.status is ExecutionStatus.FAILED or state.is_cut_off:
        state.raise_for_status()
    if state.status is ExecutionStatus.COMPLETED:
        typed = state.context.response_format is not None
        text = state.final_text or ""
        return ToolResult(extract_json(text) if typed else text)
    signal = state.stop_signal
    reason = f"{signal.reason.value}: {signal.message}" if signal is not None else "stopped"
    answer = state.final_text
    if not answer:
        raise ToolFailed(
            f"the agent {name!r} was stopped before it had an answer ({reason}). What it did:\n{state.explain()}"
        )
    return ToolResult(answer, (Text(f"{answer}\n\n[The agent was stopped here: {reason}]"),))


# --- the definition of an agent tool --------------------------------------------------------------------------------


def parameters_of(input_type: Any, parameters: Mapping[str, Any] | None) -> JsonObject:
    """Return the JSON Schema of an agent tool's parameters; `TASK` if neither argument is passed.

    Args:
        input_type: a class whose fields are the parameters.
        parameters: a JSON Schema of type object.

    Raises:
        ToolDefinitionError: both are passed, or the parameters are not an object.
    """
    if input_type is not None and parameters is not None:
        raise ToolDefinitionError("an agent's tool has an input_type or parameters, not both")
    if input_type is None and parameters is None:
        return TASK
    schema = freeze_object(json_schema(input_type) if parameters is None else parameters)
    if schema.get("type") != "object":
        raise ToolDefinitionError(
            f"the parameters of an agent's tool are an object, such as a dataclass, not {dict(schema)!r:.100}"
        )
    return schema


def limits_on_tools(tools: Tools, allowed: Iterable[str] | None, denied: Iterable[str]) -> tuple[CanIntercept, ...]:
    """Return the interceptors that neither offer an agent the tools that it may not use nor let it call them.

    Args:
        tools: the tools of the agent's loop.
        allowed: names or patterns of the tools that it may use; None for all.
        denied: names or patterns of the tools that it may not use.

    Raises:
        ToolDefinitionError: a name or pattern matches no tool, and no group could discover one that it matches.
    """
    allowed_names = None if allowed is None else _as_names(allowed)
    denied_names = _as_names(denied)
    for name in (*(allowed_names or ()), *denied_names):
        if not tools.groups and not any(fnmatchcase(tool, name) for tool in tools.names):
            closest = tools.closest(name)
            hint = f"; did you mean {' or '.join(map(repr, closest))}?" if closest else ""
            raise ToolDefinitionError(f"the agent has no tool {name!r} to allow or deny{hint}")
    if allowed_names is None and not denied_names:
        return ()
    return (ToolSelection(allowed_names, denied_names), Permissions(allowed_names, denied_names))


def _as_names(names: Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
