"""A test bench for executors: batches of calls outside a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.run_log import CallLog
from agentloop.contracts.tool import ToolLike
from agentloop.events.bus import EventBus
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.stack import InterceptorStack
from agentloop.journal.recorder import ExecutionRecorder
from agentloop.loop.binding import bind_executor
from agentloop.testing.clocks import CountingIds, LoopClock, ManualClock
from agentloop.testing.journal_bench import CrashableJournal
from agentloop.testing.kit import require
from agentloop.testing.toys import Ledger, toy_tools
from agentloop.tools.decorator import collect_tools
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
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
    """Runs an executor outside a loop, bound to tools, interceptors, an event bus and a scope.

    Attributes:
        tools: the tools.
        executor: the executor.
        interceptors: the interceptors of the calls.
        dependencies: the program's dependencies, which tools can access.
        clock: the source of times.
        events: the events that were emitted so far.
        log: records the calls; None to record nothing.
        bounds: the bounds of the execution.
    """

    tools: Iterable[ToolLike]
    executor: CanExecuteToolCalls = field(factory=ToolExecutor)
    interceptors: Sequence[CanIntercept] = ()
    dependencies: Any = None
    clock: Clock = field(factory=LoopClock)
    events: list[Event] = field(factory=list)
    log: CallLog | None = None
    bounds: Bounds = DEFAULT_BOUNDS

    async def run(
        self,
        *calls: ToolCall,
        state: AgentState | None = None,
        keys: Sequence[str] | None = None,
        decisions: Mapping[str, Decision] | None = None,
        rejections: Mapping[int, str] | None = None,
    ) -> ToolExecutions:
        """Execute a batch, and close the resources that it opened.

        Args:
            *calls: the calls.
            state: the state that the calls belong to; by default, the initial state of an execution with the id `run`.
            keys: the keys of the calls; derived from the state by default.
            decisions: the decisions about pending calls, by key. They take effect only together with `keys`.
            rejections: why the driver rejects calls, by their positions in the batch.

        Raises:
            Exception: whatever the executor raises.
        """
        resources = Resources()
        scope = ExecutionScope(
            clock=self.clock,
            ids=CountingIds(),
            dependencies=self.dependencies,
            local_resources=resources,
            shared_resources=resources,
            log=self.log,
            bounds=self.bounds,
        )
        bus = EventBus(clock=self.clock)
        bus.wiretap(self.events.append)
        tools = collect_tools(self.tools)
        executor = bind_executor(self.executor, tools, InterceptorStack.of(self.interceptors), bus, scope)
        state = state or started_state("agent", "run")
        batch = ToolCalls.of(calls, state)
        if keys is not None:
            batch = ToolCalls(tuple(calls), tuple(keys), decisions or {})
        if rejections:
            batch = evolve(batch, rejections={batch.keys[place]: reason for place, reason in rejections.items()})
        try:
            return await executor.execute_tools(batch, state)
        finally:
            await resources.aclose()

    def event_names(self) -> list[str]:
        """Return the class names of the emitted events, in order."""
        return [type(event).__name__ for event in self.events]


def started_state(agent_id: str, execution_id: str) -> AgentState:
    """Return the state of an agent at the start of an execution."""
    clock = ManualClock()
    return AgentState.start("go", agent_id=agent_id, clock=clock).with_execution_started(execution_id, clock.now())


_EXECUTION_ID = "run"


async def require_effects_accounted(
    factory: Callable[[], CanExecuteToolCalls], calls: Sequence[ToolCall], share: float
) -> None:
    """Check law 14: execute a batch, discard the last records as a crash does, and execute the batch again.

    Args:
        factory: creates the executor.
        calls: the batch.
        share: the share of the records that survive the crash, from 0 to 1.

    Raises:
        LawViolation: when a recorded call runs again, or a call ran that was not recorded before.
    """
    journal = CrashableJournal()
    first = await _execute_journaled(factory, calls, journal)
    intents = _call_keys(journal, RecordKind.CALL_INTENT, "intent")
    ran = {execution.key for execution in first.answer.executions if execution.succeeded}
    require(14, ran <= intents, f"these calls ran without a recorded intent: {sorted(ran - intents)}")

    # At least one record survives: without any, there is no execution to recover.
    survived = await journal.after_crash(1 + round(share * (len(journal.appended) - 1)))
    started = _call_keys(survived, RecordKind.CALL_INTENT, "intent")
    ended = _call_keys(survived, RecordKind.CALL_OUTCOME, "execution")
    second = await _execute_journaled(factory, calls, survived)
    # The value of each call is its index in the batch.
    repeated = {arguments["value"] for _, arguments in second.ledger.calls}
    for index, (before, after) in enumerate(zip(first.answer.executions, second.answer.executions, strict=True)):
        if after.key in started:
            require(14, index not in repeated, f"the call {after.key} had started, and ran again")
        if after.key in ended:
            require(
                14, after.value == before.value, f"the outcome of {after.key} was {before.value!r}, not {after.value!r}"
            )
        elif after.key in started:
            require(14, after.status is ToolStatus.IN_DOUBT, f"the call {after.key} is in doubt, not {after.status}")
        else:
            require(14, index in repeated, f"the call {after.key} had not started, and did not run")


@frozen
class _JournaledBatch:
    """The result of a batch under a journal.

    Attributes:
        answer: the executions.
        ledger: the calls that ran.
    """

    answer: ToolExecutions
    ledger: Ledger


async def _execute_journaled(
    factory: Callable[[], CanExecuteToolCalls], calls: Sequence[ToolCall], journal: CrashableJournal
) -> _JournaledBatch:
    """Execute a batch as the first step of a journaled execution, or recover it when the journal holds it."""
    clock, ledger, state = ManualClock(), Ledger(), started_state("agent", _EXECUTION_ID)
    if await journal.head(_EXECUTION_ID) is None:
        log = ExecutionRecorder(journal, InDoubt.TELL, clock)
    else:
        log = await ExecutionRecorder.reopen(journal, _EXECUTION_ID, InDoubt.TELL, clock)
    await log.start(state)
    try:
        answer = await ExecutorBench(toy_tools(ledger), factory(), clock=clock, log=log).run(*calls, state=state)
    except Exception as error:
        carrier = BatchInterrupted.find_in(error)
        if carrier is None:
            raise
        answer = carrier.executions
    finally:
        await log.aclose()
    return _JournaledBatch(answer, ledger)


def _call_keys(journal: CrashableJournal, kind: RecordKind, field: str) -> set[str]:
    """Return the keys of the calls in the records of a kind; `field` holds the call in their bodies."""
    return {parse_json(record.body)[field]["key"] for record in journal.appended if record.kind is kind}
