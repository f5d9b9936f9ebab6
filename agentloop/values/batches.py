"""Batches of tool calls, their outcomes, and the changes of a suspended turn: decisions, outcomes, cancellation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from attrs import evolve, field, frozen

from agentloop.errors.kinds import ContractViolation, DecisionError
from agentloop.values.decisions import Answer, Approve, Decision, Deny, Edit, PendingCall
from agentloop.values.json import JsonObject, as_frozen_dict
from agentloop.values.records import outer_key
from agentloop.values.rendering import render_call
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep, Slot, SuspendedTurn
from agentloop.values.time_and_ids import IdSource
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolStatus
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class ToolCalls(Value):
    """A batch of calls to execute, in the order of the response.

    Attributes:
        calls: the calls.
        keys: the idempotency key of each call, `<execution id>/<step number>/<call index>`.
        decisions: the decisions about calls that were pending, by key.
        begun: the pending calls whose tools have started and suspended them, by key.
        suspensions: how often each pending call was suspended itself, by key.
        rejections: why calls must not be executed, by key; an executor settles them as rejected with this reason.
        definitions: the definition of each pending call's tool when it was suspended, by key.
        defaults: the defaults with which each pending call was shown, by key.
        hidden: the names of the tools that are not offered now, so that programs cannot call them either.

    Raises:
        ContractViolation: if the number of keys differs from the number of calls.
    """

    calls: tuple[ToolCall, ...] = field(converter=tuple[ToolCall, ...])
    keys: tuple[str, ...] = field(converter=tuple[str, ...])
    decisions: Mapping[str, Decision] = field(factory=dict, converter=as_frozen_dict)
    begun: Mapping[str, PendingCall] = field(factory=dict, converter=as_frozen_dict)
    suspensions: Mapping[str, int] = field(factory=dict, converter=as_frozen_dict)
    rejections: Mapping[str, str] = field(factory=dict, converter=as_frozen_dict)
    definitions: Mapping[str, str] = field(factory=dict, converter=as_frozen_dict)
    defaults: Mapping[str, JsonObject] = field(factory=dict, converter=as_frozen_dict)
    hidden: frozenset[str] = frozenset()

    def __attrs_post_init__(self) -> None:
        if len(self.calls) != len(self.keys):
            raise ContractViolation(f"{len(self.calls)} calls need as many keys, there are {len(self.keys)}")

    @classmethod
    def of(cls, calls: Sequence[ToolCall], state: AgentState) -> ToolCalls:
        """Create the batch of the state's next step; the keys follow from the position of each call."""
        return cls(tuple(calls), tuple([call_key(state, index) for index in range(len(calls))]))

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[ToolCall]:
        return iter(self.calls)


def call_key(state: AgentState, index: int) -> str:
    """Return the idempotency key of a call of the state's next step.

    Args:
        state: the state before the step.
        index: the 0-based position of the call in its answer.
    """
    return f"{state.execution_id}/{state.step_count + 1}/{index}"


def parse_key(key: str) -> tuple[int, int] | None:
    """Return the 1-based step number and the 0-based call index in an idempotency key; None for a key of another form.

    A call of a program has the numbers of the call that runs the program.
    """
    match key.rsplit("/", 2):
        case [_, step, index] if step.isdecimal() and index.isdecimal():
            return int(step), int(index)
    outer = outer_key(key)
    return parse_key(outer) if outer else None


@frozen(eq=False, repr=False)
class ToolExecutions(Value):
    """The outcome of a batch: every call is either settled or pending (law 1).

    Attributes:
        executions: the outcome of each settled call, in call order.
        pending: the pending calls, in call order.
        state: the state after the batch's interceptors, with which the driver continues.
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


def match_outcomes(calls: ToolCalls, outcome: object) -> tuple[Mapping[str, Slot], str]:
    """Pair the calls of a batch with what an executor returned, by key.

    Args:
        calls: the calls.
        outcome: what the executor returned: `ToolExecutions` if it keeps its contract.

    Returns:
        The execution or pending call of each call that has one, by key, in call order; and what breaks the contract, an
        empty text if nothing does.
    """
    if not isinstance(outcome, ToolExecutions):
        return {}, f"it returned {outcome!r:.100} in place of ToolExecutions"
    if _is_complete(calls, outcome):
        return dict(zip(calls.keys, outcome.executions, strict=True)), ""
    problems: list[str] = []
    slots: dict[str, Slot] = {}
    keys_of_ids = _keys_of_ids(calls)
    for slot in (*outcome.executions, *outcome.pending):
        if not isinstance(slot, ToolExecution | PendingCall):
            problems.append(f"{slot!r:.100} is not an outcome")
        elif slot.key not in calls.keys:
            problems.append(f"no call has the key {slot.key!r}")
        elif slot.key in slots:
            problems.append(f"the call {slot.key!r} has two outcomes")
        elif keys_of_ids.get(slot.call.id, slot.key) != slot.key:
            problems.append(f"the outcome under the key {slot.key!r} is that of the call {keys_of_ids[slot.call.id]!r}")
        else:
            slots[slot.key] = slot
    missing = [key for key in calls.keys if key not in slots]
    if missing:
        problems.append(f"these calls have no outcome: {', '.join(missing)}")
    return {key: slots[key] for key in calls.keys if key in slots}, "; ".join(problems)


def lost_outcome(call: ToolCall, key: str, error: BaseException | None, *, id: str, at: datetime) -> ToolExecution:  # noqa: A002  # names the field
    """Return the outcome of a call for which an executor has returned none: it has failed, and an effect cannot be excluded.

    Args:
        call: the call.
        key: its key.
        error: what the executor raised; None if it returned.
        id: the id of the outcome.
        at: the time.
    """
    kind = ContractViolation.__name__ if error is None else type(error).__name__
    why = "it returned no outcome" if error is None else str(error) or kind
    info = ErrorInfo(kind, f"the executor failed: {why}")
    return ToolExecution.of(call, ToolStatus.FAILED, key=key, id=id, at=at, error=info, may_have_run=True)


def _is_complete(calls: ToolCalls, outcome: ToolExecutions) -> bool:
    """Return whether there is exactly one execution of each call, in call order."""
    if outcome.pending or len(outcome.executions) != len(calls.keys):
        return False
    for call, key, execution in zip(calls.calls, calls.keys, outcome.executions, strict=True):
        if type(execution) is not ToolExecution or execution.key != key or execution.call.id != call.id:
            return False
    return len(set(calls.keys)) == len(calls.keys)


def _keys_of_ids(calls: ToolCalls) -> Mapping[str, str]:
    """Return the keys of calls by their ids; without the ids that several calls have, or none."""
    ids = Counter(call.id for call in calls.calls)
    return {call.id: key for call, key in zip(calls.calls, calls.keys, strict=True) if call.id and ids[call.id] == 1}


def ready_calls(turn: SuspendedTurn) -> ToolCalls:
    """Return the batch of calls that can be executed now: decided calls, and calls that wait only for decided ones."""
    has_undecided = False
    ready: list[PendingCall] = []
    for call in turn.pending:
        # A call that waits for another one must not overtake it: once a call stays pending, those that wait stay as well.
        if call.is_decided or (call.waits_for and not call.begun and not has_undecided):
            ready.append(call)
        else:
            has_undecided = True
    decisions = {call.key: call.decision for call in ready if call.decision is not None}
    begun = {call.key: call for call in ready if call.begun}
    # A call that only waited for others was not suspended itself.
    suspensions = {call.key: call.suspension - (bool(call.waits_for) and not call.begun) for call in ready}
    definitions = {call.key: call.definition for call in ready}
    defaults = {call.key: call.defaults for call in ready}
    keys = [call.key for call in ready]
    calls = [call.call for call in ready]
    return ToolCalls(calls, keys, decisions, begun, suspensions, definitions=definitions, defaults=defaults)


def apply_outcomes(outcome: ToolExecutions, at: datetime) -> AgentState:
    """Return the state with these outcomes in the suspended turn of its last step, which becomes a message when complete.

    Raises:
        ContractViolation: if an interceptor of the batch removed the suspended step from the state.
    """
    step = outcome.state.last_step
    if step is None or step.open_turn is None:
        raise ContractViolation("the state after the batch has lost its suspended step")
    executions = {execution.key: execution for execution in outcome.executions}
    turn = step.open_turn.with_settled(executions, {call.key: call for call in outcome.pending})
    if turn.pending:
        return outcome.state.with_last_step(evolve(step, open_turn=turn, ended_at=at))
    return outcome.state.with_last_step(evolve(step, open_turn=None, message=turn.message(), ended_at=at))


def apply_decisions(state: AgentState, decisions: Mapping[str, Decision]) -> AgentState:
    """Return the state with these decisions added to its pending calls.

    Raises:
        DecisionError: if no call is pending under a key, the call waits for another one, a decision was made about another
            tool, other arguments or an earlier suspension, or is not a `Decision`.
    """
    step = state.last_step
    waiting = {call.key: call for call in state.pending}
    if step is None or step.open_turn is None:
        raise DecisionError("nothing waits for a decision in this state; its execution is " + state.status.value)
    for key, decision in decisions.items():
        _check_decision(key, decision, waiting)
    slots = [
        with_decisions(slot, decisions) if isinstance(slot, PendingCall) else slot for slot in step.open_turn.slots
    ]
    return state.with_last_step(evolve(step, open_turn=step.open_turn.with_slots(slots)))


def close_open_turn(
    state: AgentState, reason: str, at: datetime, ids: IdSource, known: Mapping[str, ToolExecution] | None = None
) -> AgentState:
    """Return the state with every pending call settled as cancelled, so that each call in the conversation has an outcome.

    Args:
        state: the state.
        reason: the reason of the cancellation, for the model.
        at: the time of the cancellation.
        ids: the source of the ids of the executions.
        known: the outcomes of calls that were recorded before the cancellation, by key.
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
            inner=close_inner_calls(call, reason, at),
        )
        for call in step.pending
    }
    turn = step.open_turn.with_settled(cancelled | dict(known or {}), {})
    return state.with_last_step(evolve(step, open_turn=None, message=turn.message(), ended_at=at))


def close_inner_calls(call: PendingCall, reason: str, at: datetime) -> tuple[ToolExecution, ...]:
    """Return the outcomes of the calls inside a pending call that does not resume; those that wait are cancelled.

    Args:
        call: the pending call.
        reason: why the waiting calls are cancelled.
        at: when.
    """
    waiting = [inner for inner in call.inner if outer_key(inner.key) == call.key]
    cancelled = [
        ToolExecution.of(
            inner.call,
            ToolStatus.CANCELLED,
            key=inner.key,
            id=inner.key,
            at=at,
            error=ErrorInfo("Cancelled", reason),
            may_have_run=inner.begun,
        )
        for inner in waiting
    ]
    return (*[exchange.execution for exchange in call.settled], *cancelled)


def settled_calls(step: AgentStep) -> list[ToolExecution]:
    """Return the outcomes of the calls of a step, each followed by those inside it, such as of a program, and those inside pending calls."""
    inside = [exchange.execution for call in step.pending for exchange in call.settled]
    return [inner for execution in (*step.executions, *inside) for inner in execution.flat]


def with_decisions(call: PendingCall, decisions: Mapping[str, Decision]) -> PendingCall:
    """Return the call with the decisions about it and its inner calls."""
    inner = tuple([with_decisions(inner_call, decisions) for inner_call in call.inner])
    return evolve(call, decision=decisions.get(call.key, call.decision), inner=inner)


_MAX_CALL = 1_000


def _check_decision(key: str, decision: Decision, waiting: Mapping[str, PendingCall]) -> None:
    call = waiting.get(key)
    if call is None:
        raise DecisionError(f"no call with the key {key!r:.200} waits; waiting are {', '.join(waiting)}")
    if call.waits_for and not (call.begun and isinstance(decision, Deny | Answer)):
        raise DecisionError(f"the call {key!r} needs no decision: it runs when {call.waits_for!r} is settled")
    if not isinstance(decision, Approve | Deny | Answer | Edit):
        raise DecisionError(
            f"the decision about {key!r} is {decision!r:.100}; make one with approve(), deny(reason), answer(value) or "
            "edit(arguments)"
        )
    if decision.digest and decision.digest != call.digest:
        raise DecisionError(
            f"the decision about {key!r} was given for another tool, definition, arguments or suspension than "
            f"{render_call(call.call, defaults=call.defaults, max_length=_MAX_CALL)}, for other defaults, or for another "
            "rendering; show the call, as its `rendering`, to the one who decides again"
        )
    if isinstance(decision, Approve) and decision.grant is not None and not call.grantable:
        raise DecisionError(
            f"the approval of {key!r} comes with a grant, and none can be given for later calls of {call.call.name!r}: its tool "
            "runs code, or no AskUnlessGranted has asked about the call; approve this call alone"
        )
    if isinstance(decision, Approve) and decision.endorse:
        _check_endorsement(key, decision, call)


def _check_endorsement(key: str, decision: Approve, call: PendingCall) -> None:
    if not decision.digest:
        raise DecisionError(
            f"the approval of {key!r} endorses values, and does not say which were shown: pass the digest of the call, "
            "approve(call.digest, endorse=…)"
        )
    other = [name for name in decision.endorse if name not in call.endorsable]
    if other:
        can = f"it can endorse {', '.join(call.endorsable)}" if call.endorsable else "there is nothing to endorse"
        raise DecisionError(
            f"the approval of {key!r} endorses {', '.join(map(repr, other))}, and {can}: values that somebody else has written, "
            "in calls of a program that was planned before anything foreign was read"
        )
