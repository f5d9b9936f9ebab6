"""A bench for executors: batches of calls outside of any loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.run_log import CallLog
from agentloop.contracts.tool import Tool
from agentloop.contracts.tools import Tools
from agentloop.events.bus import EventBus
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.stack import InterceptorStack
from agentloop.journal.recorder import ExecutionRecorder
from agentloop.loop.binding import bind_executor
from agentloop.testing.clocks import CountingIds, LoopClock, ManualClock
from agentloop.testing.journal_bench import CrashableJournal
from agentloop.testing.kit import require
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.decisions import Decision
from agentloop.values.event import Event
from agentloop.values.interruptions import BatchInterrupted
from agentloop.values.json import parse_json
from agentloop.values.records import InDoubt, RecordKind
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ToolCall, ToolStatus


@frozen
class ExecutorBench:
    """An executor at work outside of any loop, bound to tools, interceptors, a bus and a scope.

    Attributes:
        tools: the tools.
        executor: the executor.
        interceptors: what its calls pass.
        dependencies: what the program gives to tools.
        clock: where times come from.
        events: what it emitted.
        log: where the calls are written down; None for nowhere.
    """

    tools: Iterable[Tool]
    executor: CanExecuteToolCalls = field(factory=ToolExecutor)
    interceptors: Sequence[CanIntercept] = ()
    dependencies: Any = None
    clock: Clock = field(factory=LoopClock)
    events: list[Event] = field(factory=list)
    log: CallLog | None = None

    async def run(
        self,
        *calls: ToolCall,
        state: AgentState | None = None,
        keys: Sequence[str] | None = None,
        decisions: Mapping[str, Decision] | None = None,
    ) -> ToolExecutions:
        """Execute a batch, and close what it opened.

        Args:
            *calls: the calls.
            state: the state they belong to; one at the beginning of an execution named `run` when left out.
            keys: the keys of the calls; made from the state when left out.
            decisions: what was decided about calls that waited, by key.

        Raises:
            Exception: whatever the executor raises.
        """
        own = Resources()
        scope = ExecutionScope(
            clock=self.clock,
            ids=CountingIds(),
            dependencies=self.dependencies,
            local_resources=own,
            shared_resources=own,
            log=self.log,
        )
        bus = EventBus(clock=self.clock)
        bus.wiretap(self.events.append)
        tools = Tools.of(self.tools)
        executor = bind_executor(self.executor, tools, InterceptorStack.of(self.interceptors), bus, scope)
        begun = state or started_state("agent", "run")
        batch = ToolCalls.of(calls, begun)
        if keys is not None:
            batch = ToolCalls(tuple(calls), tuple(keys), decisions or {})
        try:
            return await executor.execute_tools(batch, begun)
        finally:
            await own.aclose()

    def event_names(self) -> list[str]:
        """Return the classes of the events, in order."""
        return [type(event).__name__ for event in self.events]


def started_state(agent_id: str, execution_id: str) -> AgentState:
    """Return the state of an agent whose execution has just begun."""
    clock = ManualClock()
    return AgentState.start("go", agent_id=agent_id, clock=clock).with_execution_started(execution_id, clock.now())


_RUN = "run"


async def require_effects_accounted(
    make: Callable[[], CanExecuteToolCalls], calls: Sequence[ToolCall], share: float
) -> None:
    """Execute a batch, cut what is written down of it short after this share of its records, and execute it again.

    Raises:
        LawBroken: when what was recorded is done again, or something ran that was not (law 14).
    """
    chronicle = CrashableJournal()
    first = await _executed(make, calls, chronicle)
    begun = _keys_of(chronicle, RecordKind.CALL_INTENT, "intent")
    ran = {one.key for one in first.answer.executions if one.succeeded}
    require(14, ran <= begun, f"these ran, and nothing was written down before: {sorted(ran - begun)}")
    left = await chronicle.after_crash(1 + round(share * (len(chronicle.appended) - 1)))
    begun, ended = (
        _keys_of(left, RecordKind.CALL_INTENT, "intent"),
        _keys_of(left, RecordKind.CALL_OUTCOME, "execution"),
    )
    again = await _executed(make, calls, left)
    repeated = {arguments["value"] for _, arguments in again.ledger.calls}
    for place, (before, after) in enumerate(zip(first.answer.executions, again.answer.executions, strict=True)):
        if after.key in begun:
            require(14, place not in repeated, f"the call {after.key} had begun, and was run again")
        if after.key in ended:
            require(14, after.value == before.value, f"the call {after.key} had ended with {before.value!r}")
        elif after.key in begun:
            require(14, after.status is ToolStatus.IN_DOUBT, f"the call {after.key} is in doubt, not {after.status}")
        else:
            require(14, place in repeated, f"the call {after.key} had not begun, and was not run")


@frozen
class _Executed:
    """What came of a batch under a journal.

    Attributes:
        answer: the executor's answer.
        ledger: which toys ran.
    """

    answer: ToolExecutions
    ledger: Ledger


async def _executed(
    make: Callable[[], CanExecuteToolCalls], calls: Sequence[ToolCall], chronicle: CrashableJournal
) -> _Executed:
    """Execute a batch as the first step of an execution that is written down, or go on with it."""
    clock, ledger, state = ManualClock(), Ledger(), started_state("agent", _RUN)
    if await chronicle.head(_RUN) is None:
        log = ExecutionRecorder(chronicle, InDoubt.TELL, clock)
    else:
        log = await ExecutionRecorder.reopen(chronicle, _RUN, InDoubt.TELL, clock)
    await log.start(state)
    try:
        answer = await ExecutorBench(toy_tools(ledger), make(), clock=clock, log=log).run(*calls, state=state)
    except Exception as error:
        carrier = BatchInterrupted.find_in(error)
        if carrier is None:
            raise
        answer = carrier.executions
    finally:
        await log.aclose()
    return _Executed(answer, ledger)


def _keys_of(chronicle: CrashableJournal, kind: RecordKind, field: str) -> set[str]:
    """Return the keys of the calls that records of a kind are about."""
    return {parse_json(record.body)[field]["key"] for record in chronicle.appended if record.kind is kind}
