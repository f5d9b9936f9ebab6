"""The calls that a tool makes itself: run in batches like those of a model, and not made again when the tool runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from agentloop.contracts.run_log import CallLog
from agentloop.contracts.tool import InnerCalls
from agentloop.errors import ToolInDoubt
from agentloop.executors.call_layers import EndedByLayer
from agentloop.values.batches import ToolCalls, ToolExecutions, ready_calls, with_decisions
from agentloop.values.decisions import CallSuspended, PendingCall
from agentloop.values.json import thaw
from agentloop.values.labels import CallOrigins
from agentloop.values.records import RecordedCall, inner_key
from agentloop.values.reprs import format_count
from agentloop.values.steps import Slot, SuspendedTurn
from agentloop.values.tool_calls import ToolCall, ToolExchange, ToolExecution, ToolSpec
from agentloop.values.value import Value

_MAX_INNER_CALLS = 10_000
"""The highest number of a call inside a call; above all limits that tools set themselves."""


class InnerCallsEnded(EndedByLayer):
    """No more calls are made inside a call: the execution stops, or something around a call failed."""


@frozen(eq=False, repr=False)
class InnerBatchResult(Value):
    """How a batch inside a call ended.

    Attributes:
        executions: the outcomes.
        failure: the error of an interceptor or of the journal that interrupted it; None without one.
        stop: why the execution stops after it; empty if it does not.
    """

    executions: ToolExecutions
    failure: Exception | None = None
    stop: str = ""


RunInnerBatch = Callable[[ToolCalls, Callable[[InnerBatchResult], None]], Awaitable[None]]
"""Runs a batch inside a call and passes on how it ended, also when the task is cancelled."""


@frozen(eq=False, kw_only=True)
class OuterCall:
    """The call whose tool makes calls itself.

    Attributes:
        key: its idempotency key.
        call: the call.
        specs: the tools that its tool can call.
        rejections: why other tools cannot be called, by their names.
        hidden: the names of the tools that are not on offer.
        agents: the names of the tools that are agents.
        note_origins: takes note of what the tool says about who had a part in a call that it makes, by the key of that call.
        resumed: the pending call that the tool left when it suspended the call; None if it did not.
    """

    key: str
    call: ToolCall
    specs: tuple[ToolSpec, ...]
    rejections: Mapping[str, str]
    hidden: frozenset[str]
    agents: frozenset[str]
    note_origins: Callable[[str, CallOrigins], None]
    resumed: PendingCall | None = field(default=None)


class InnerBatches(InnerCalls):
    """The calls of one tool during one of its calls, over all attempts of it, interruptions and suspensions.

    The outcome of a call is found by its number. In this process it is kept here; a suspended call carries it in
    `PendingCall.settled`; after an interruption it is in the journal, where the executor finds it like that of any call.

    Attributes:
        failure: the error that interrupted a batch; None without one.
    """

    def __init__(self, outer: OuterCall, run: RunInnerBatch, log: CallLog | None) -> None:
        self.failure: Exception | None = None
        self._outer = outer
        self._run = run
        self._log = log
        self._settled: dict[int, ToolExchange] = {}
        self._turn: SuspendedTurn | None = None
        self._turn_start = -1
        self.restart()
        if outer.resumed is not None:
            self._settled = {_number(exchange.execution.key): exchange for exchange in outer.resumed.settled}
            # A call that waits because it is in doubt has no progress: approved, its tool makes its calls from the first one on.
            if outer.resumed.progress is not None:
                self._read_progress(outer.resumed)

    @property
    def specs(self) -> Sequence[ToolSpec]:
        """The tools that can be called."""
        return self._outer.specs

    @property
    def agents(self) -> frozenset[str]:
        """The names of the tools that are agents."""
        return self._outer.agents

    @property
    def executions(self) -> tuple[ToolExecution, ...]:
        """The outcomes of the settled calls, and of recorded ones that the tool has not made again, in order."""
        known = {number: exchange.execution for number, exchange in self._settled.items()}
        for call in () if self._log is None else self._log.recorded_inner_calls(self._outer.key):
            known.setdefault(_number(call.intent.key), call.to_closed_execution())
        return tuple([known[number] for number in sorted(known)])

    def restart(self) -> None:
        """Prepare for another attempt of the tool, which makes its calls from the first one on."""
        self._next = 0

    async def execute(
        self, calls: Sequence[ToolCall], *, origins: Sequence[CallOrigins] = ()
    ) -> Sequence[ToolExecution]:
        """Execute calls as one batch, and return their outcomes in call order."""
        first, self._next = self._next, self._next + len(calls)
        numbers = range(first, self._next)
        requested = [
            evolve(call, id=f"{self._outer.call.id}.{number}") for number, call in zip(numbers, calls, strict=True)
        ]
        for number, call in zip(numbers, requested, strict=True):
            self._check_order(number, call)
        for number, each in zip(numbers, origins, strict=True) if origins else ():
            self._outer.note_origins(inner_key(self._outer.key, number), each)
        if not all(number in self._settled for number in numbers):
            await self._execute_open(first, requested)
        return [self._settled[number].execution for number in numbers]

    def check_complete(self) -> None:
        """Check that the tool made no more calls before."""
        more = max([*self._settled, -1]) >= self._next or self._turn is not None
        if not more and self._log is not None:
            recorded = self._log.recorded_inner_calls(self._outer.key)
            more = any(_number(call.intent.key) >= self._next for call in recorded)
        if more:
            raise ToolInDoubt(f"{_CHANGED}: it ends after {self._next} calls, and had made more")

    async def _execute_open(self, first: int, requested: Sequence[ToolCall]) -> None:
        """Run the calls that are not settled; suspend the outer call if one of them waits for a decision."""
        keys = [inner_key(self._outer.key, first + offset) for offset in range(len(requested))]
        turn = self._turn if self._turn_start == first else None
        if turn is None:
            reasons = {key: self._outer.rejections.get(call.name) for key, call in zip(keys, requested, strict=True)}
            rejections = {key: reason for key, reason in reasons.items() if reason is not None}
            batch = ToolCalls(tuple(requested), tuple(keys), rejections=rejections)
        else:
            batch = ready_calls(turn)
        results: list[InnerBatchResult] = []
        if len(batch):
            try:
                await self._run(batch, results.append)
            except asyncio.CancelledError as cancelled:
                # Without a cause: the executor of the outer call would take the outcomes of this batch for its own.
                raise asyncio.CancelledError(*cancelled.args) from None
            finally:
                self._note(requested, keys, turn, results)
        self._turn, self._turn_start = self._open_turn(requested, keys, turn, results), first
        self._raise_ended(results)
        if self._turn is not None:
            raise self._suspension(self._turn)

    def _note(
        self,
        requested: Sequence[ToolCall],
        keys: Sequence[str],
        turn: SuspendedTurn | None,
        results: list[InnerBatchResult],
    ) -> None:
        calls = dict(zip(keys, requested, strict=True))
        known = () if turn is None else turn.executions
        settled = (*known, *[execution for result in results for execution in result.executions])
        for execution in settled:
            self._settled[_number(execution.key)] = ToolExchange(calls[execution.key], execution)

    def _open_turn(
        self,
        requested: Sequence[ToolCall],
        keys: Sequence[str],
        turn: SuspendedTurn | None,
        results: list[InnerBatchResult],
    ) -> SuspendedTurn | None:
        """Return the calls as they wait; None if all are settled."""
        slots: dict[str, Slot] = {} if turn is None else {slot.key: slot for slot in turn.slots}
        for result in results:
            slots |= {call.key: call for call in result.executions.pending}
            slots |= {execution.key: execution for execution in result.executions}
        opened = SuspendedTurn(tuple(requested), tuple([slots[key] for key in keys]))
        return opened if opened.pending else None

    def _raise_ended(self, results: list[InnerBatchResult]) -> None:
        for result in results:
            if result.failure is not None:
                self.failure = result.failure
                raise self._ended(f"not completed, because a call inside it was interrupted: {result.failure}")
            if result.stop:
                raise self._ended(f"not completed, because the execution stops: {result.stop}")

    def _ended(self, problem: str) -> InnerCallsEnded:
        ended = InnerCallsEnded(problem)
        ended.failure = self.failure
        return ended

    # --- suspension ---------------------------------------------------------------------------------------------

    def _suspension(self, turn: SuspendedTurn) -> CallSuspended:
        from agentloop.values.serialization import to_plain

        waiting = [call for pending in turn.pending for call in pending.flat]
        undecided = [call for call in waiting if not call.waits_for]
        reason = f"{format_count(len(undecided), 'call')} of {self._outer.call.name!r} {'wait' if len(undecided) > 1 else 'waits'} for a decision"
        progress = {
            "first": self._turn_start,
            "calls": [to_plain(call) for call in turn.parts],
            "pending": [to_plain(call) for call in turn.pending],
            "hidden": sorted(self._outer.hidden),
        }
        settled = [self._settled[number] for number in sorted(self._settled)]
        inner = [call.without_internals() for call in waiting]
        return CallSuspended(reason, inner=inner, progress=progress, settled=settled)

    def _read_progress(self, resumed: PendingCall) -> None:
        """Restore the calls that waited, with the decisions about them."""
        from agentloop.values.serialization import from_plain

        progress: Any = thaw(resumed.progress)
        decisions = {call.key: call.decision for call in resumed.inner if call.decision is not None}
        pending = [with_decisions(from_plain(data, PendingCall), decisions) for data in progress["pending"]]
        slots: dict[int, Slot] = {_number(call.key): call for call in pending}
        slots |= {number: exchange.execution for number, exchange in self._settled.items()}
        first, calls = progress["first"], [from_plain(data, ToolCall) for data in progress["calls"]]
        self._turn_start = first
        self._turn = SuspendedTurn(tuple(calls), tuple([slots[first + offset] for offset in range(len(calls))]))

    # --- the order of calls -------------------------------------------------------------------------------------

    def _check_order(self, number: int, call: ToolCall) -> None:
        """Check that the tool makes the call that it made under this number before, if it did.

        Raises:
            ToolInDoubt: it makes another one.
        """
        if number >= _MAX_INNER_CALLS:
            raise ToolInDoubt(f"{self._outer.call.name!r} makes more than {_MAX_INNER_CALLS:,} calls")
        earlier = self._earlier_call(number)
        if earlier is None and self._log is not None:
            recorded = self._log.recorded_call(inner_key(self._outer.key, number))
            if recorded is None or _is_recorded_as(recorded, call, self._log):
                return
            earlier = recorded.intent.requested or recorded.intent.call
        if earlier is not None and not earlier.matches(call):
            raise ToolInDoubt(
                f"{_CHANGED}: its call number {number} is one of {call.name!r}, and was another call, of {earlier.name!r}"
            )

    def _earlier_call(self, number: int) -> ToolCall | None:
        if number in self._settled:
            return self._settled[number].call
        turn, offset = self._turn, number - self._turn_start
        parts = () if turn is None else turn.parts
        part = parts[offset] if 0 <= offset < len(parts) else None
        return part if isinstance(part, ToolCall) else None


_CHANGED = "the tool ran again after an interruption, and makes other calls than before, some of which have run"


def _is_recorded_as(recorded: RecordedCall, call: ToolCall, log: CallLog) -> bool:
    """Return whether a call is the recorded one, in which secrets may be masked."""
    made = recorded.intent.requested or recorded.intent.call
    if made.matches(call):
        return True
    return recorded.redacted and made.matches(call.with_arguments_json(log.masked(call.arguments_json)))


def _number(key: str) -> int:
    """Return the number of an inner call in its key."""
    return int(key.rpartition("/")[2])
