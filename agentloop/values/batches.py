"""What an executor is given and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from attrs import evolve, field, frozen

from agentloop.errors import ContractViolation, DecisionError
from agentloop.values.decisions import Answer, Approve, Decision, Deny, Edit, PendingCall
from agentloop.values.json import as_frozen_dict
from agentloop.values.state import AgentState
from agentloop.values.steps import SuspendedTurn
from agentloop.values.time_and_ids import IdSource
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolStatus
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class ToolCalls(Value):
    """A batch of calls to execute, in the order in which the model made them.

    Attributes:
        calls: the calls.
        keys: the idempotency key of each call, `<execution id>/<step number>/<call index>`.
        decisions: what was decided about calls that waited for it, by key.
        begun: those of the calls whose tools have begun and suspended them, as they waited, by key.
    """

    calls: tuple[ToolCall, ...] = field(converter=tuple[ToolCall, ...])
    keys: tuple[str, ...] = field(converter=tuple[str, ...])
    decisions: Mapping[str, Decision] = field(factory=dict, converter=as_frozen_dict)
    begun: Mapping[str, PendingCall] = field(factory=dict, converter=as_frozen_dict)

    def __attrs_post_init__(self) -> None:
        if len(self.calls) != len(self.keys):
            raise ContractViolation(f"{len(self.calls)} calls need as many keys, there are {len(self.keys)}")

    @classmethod
    def of(cls, calls: Sequence[ToolCall], state: AgentState) -> ToolCalls:
        """Make the batch of the step that this state is about to take, its keys made by position."""
        prefix = f"{state.execution_id}/{state.step_count + 1}"
        return cls(tuple(calls), tuple([f"{prefix}/{index}" for index in range(len(calls))]))

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[ToolCall]:
        return iter(self.calls)


def parse_key(key: str) -> tuple[int, int] | None:
    """Return the step number and the call index that an idempotency key names, or None for a key of another form."""
    match key.rsplit("/", 2):
        case [_, step, index] if step.isdecimal() and index.isdecimal():
            return int(step), int(index)
    return None


@frozen(eq=False, repr=False)
class ToolExecutions(Value):
    """What came of a batch: every call is either settled or pending, none is both or missing (law 1).

    Attributes:
        executions: the outcome of each settled call, in call order.
        pending: the calls that wait for a decision, in call order.
        state: the state after the batch's interceptors, from which a driver goes on.
    """

    executions: tuple[ToolExecution, ...] = field(converter=tuple[ToolExecution, ...])
    pending: tuple[PendingCall, ...] = field(converter=tuple[PendingCall, ...])
    state: AgentState

    def __len__(self) -> int:
        return len(self.executions)

    def __iter__(self) -> Iterator[ToolExecution]:
        return iter(self.executions)

    @property
    def failures(self) -> tuple[ToolExecution, ...]:
        """The executions that did not succeed."""
        return tuple([execution for execution in self.executions if execution.has_error])

    def with_state(self, state: AgentState) -> ToolExecutions:
        """Return the same outcomes with another state."""
        return evolve(self, state=state)


def ready_calls(turn: SuspendedTurn) -> ToolCalls:
    """Return the calls that can be executed now: those decided, or decided inside, and those that wait only for such."""
    undecided = False
    ready: list[PendingCall] = []
    for call in turn.pending:
        if call.is_decided or (call.waits_for and not call.begun and not undecided):
            ready.append(call)
        else:
            undecided = True
    decisions = {call.key: call.decision for call in ready if call.decision is not None}
    begun = {call.key: call for call in ready if call.begun}
    return ToolCalls(tuple([call.call for call in ready]), tuple([call.key for call in ready]), decisions, begun)


def apply_outcomes(outcome: ToolExecutions, at: datetime) -> AgentState:
    """Return the state with these outcomes in the open turn of its last step, which becomes a message when it is full."""
    step = outcome.state.last_step
    if step is None or step.open_turn is None:
        raise ContractViolation("the state after the batch has lost the step that waits")
    executions = {execution.key: execution for execution in outcome.executions}
    turn = step.open_turn.with_settled(executions, {call.key: call for call in outcome.pending})
    if turn.pending:
        return outcome.state.with_last_step(evolve(step, open_turn=turn, ended_at=at))
    return outcome.state.with_last_step(evolve(step, open_turn=None, message=turn.message(), ended_at=at))


def apply_decisions(state: AgentState, decisions: Mapping[str, Decision]) -> AgentState:
    """Return the state with these decisions noted at their calls.

    Raises:
        DecisionError: when a key is of no pending call, when the call waits for another one, when a decision was made
            about another tool or other arguments, or is none.
    """
    step = state.last_step
    waiting = {call.key: call for call in state.pending}
    if step is None or step.open_turn is None:
        raise DecisionError("nothing waits for a decision in this state; its execution is " + state.status.value)
    for key, decision in decisions.items():
        _check(key, decision, waiting)
    slots = [_noted(slot, decisions) if isinstance(slot, PendingCall) else slot for slot in step.open_turn.slots]
    return state.with_last_step(evolve(step, open_turn=SuspendedTurn(step.open_turn.parts, tuple(slots))))


def close_open_turn(
    state: AgentState, reason: str, at: datetime, ids: IdSource, known: Mapping[str, ToolExecution] | None = None
) -> AgentState:
    """Return the state with every call that still waits settled as cancelled, so that its conversation is whole.

    Args:
        state: the state.
        reason: why they are cancelled.
        at: when.
        ids: where ids come from.
        known: the outcomes of calls that have run nevertheless, by key.
    """
    step = state.last_step
    if step is None or step.open_turn is None:
        return state
    cancelled = {
        call.key: ToolExecution.of(
            call.call,
            ToolStatus.CANCELLED,
            key=call.key,
            id=ids.new_id("tool_execution"),
            at=at,
            error=ErrorInfo("Cancelled", reason),
            may_have_run=call.begun,
        )
        for call in step.pending
    }
    turn = step.open_turn.with_settled(cancelled | dict(known or {}), {})
    return state.with_last_step(evolve(step, open_turn=None, message=turn.message(), ended_at=at))


def _noted(call: PendingCall, decisions: Mapping[str, Decision]) -> PendingCall:
    """Return the call with what was decided about it and about the calls inside of it."""
    inner = tuple([_noted(one, decisions) for one in call.inner])
    return evolve(call, decision=decisions.get(call.key, call.decision), inner=inner)


def _check(key: str, decision: Decision, waiting: Mapping[str, PendingCall]) -> None:
    call = waiting.get(key)
    if call is None:
        raise DecisionError(f"no call with the key {key!r} waits; waiting are {', '.join(waiting)}")
    if call.waits_for and not (call.begun and isinstance(decision, Deny | Answer)):
        raise DecisionError(f"the call {key!r} needs no decision: it runs when {call.waits_for!r} is settled")
    if not isinstance(decision, Approve | Deny | Answer | Edit):
        raise DecisionError(
            f"the decision about {key!r} is {decision!r:.100}; make one with approve(), deny(reason), answer(value) or "
            "edit(arguments)"
        )
    if decision.digest and decision.digest != call.digest:
        raise DecisionError(
            f"the decision about {key!r} was given for another tool or other arguments than {call.call.name}"
            f"({call.call.arguments_json}); show the call to the one who decides again"
        )
