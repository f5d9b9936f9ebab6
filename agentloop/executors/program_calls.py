"""Tools that make calls themselves: their calls run in batches inside of their own call."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import evolve

from agentloop.contracts.run_log import CallLog
from agentloop.contracts.tool import CanCallTools, Tool
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.batch import Batch, calls_of
from agentloop.executors.call import Call
from agentloop.executors.call_layers import Attempt, CallLayer, CallOutcome, RunCall
from agentloop.executors.inner_calls import InnerBatches, InnerBatchResult, OuterCall
from agentloop.executors.toolbox import is_agent
from agentloop.values.batches import ToolCalls, close_inner_calls
from agentloop.values.json import thaw
from agentloop.values.state import AgentState
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ToolExecution

_INNER_GRACE_FACTOR = 4.0
"""By how much less time the calls of a program have to end, so that they end before the call that runs the program."""
_MAX_INNER_GRACE = 0.4
"""Calls of a program end twice this time, in seconds, after it was cancelled by its timeout, which waits for one second."""
_NESTED = "it makes calls itself, and cannot be called inside a call; call the other tools"


class ProgramCalls(CanLayerCalls):
    """Lets tools make calls, which are run like those of a model.

    Args:
        log: records the calls; None without a journal.
    """

    def __init__(self, log: CallLog | None) -> None:
        self._log = log

    def open(self, call: Call, batch: Admission) -> CallLayer:
        """Return what runs the calls of a tool."""
        return _ProgramCall(call, batch, self._log)


class _ProgramCall(CallLayer):
    __slots__ = ("_batch", "_call", "_inner", "_log", "_runs")

    def __init__(self, call: Call, batch: Admission, log: CallLog | None) -> None:
        self._call = call
        self._batch = batch
        self._log = log
        self._inner: InnerBatches | None = None
        self._runs = False

    @property
    def _is_program(self) -> bool:
        tool = self._call.tool
        return tool is not None and tool.calls_tools

    @property
    def wraps_tool(self) -> bool:
        """Whether its tool makes calls."""
        return self._is_program

    def bind(self, tool: Tool) -> Tool:
        """Return a program with the calls that it makes."""
        if not isinstance(tool, CanCallTools) or not self._is_program:
            return tool
        if self._inner is None:
            self._inner = self._make_inner()
        return tool.with_inner_calls(self._inner)

    async def run(self, proceed: RunCall) -> CallOutcome:
        """Run the call; from now on its outcome holds those of the calls that it makes."""
        if self._is_program:
            self._inner, self._runs = self._make_inner(), True
        return await proceed()

    async def attempt(self, proceed: Attempt) -> ToolExecution:
        """Make an attempt, which makes its calls from the first one on."""
        if self._inner is not None:
            self._inner.restart()
        return await proceed()

    def so_far(self, outcome: CallOutcome) -> CallOutcome:
        """Return the outcome with the calls inside. The tool itself has no effect: its calls have, if one of them ran."""
        if self._inner is None or not self._runs:
            return outcome
        executions = self._inner.executions
        may_have_run = any(made.succeeded or made.may_have_run for made in executions)
        return evolve(outcome, may_have_run=may_have_run, inner=executions)

    def unrun(self, so_far: CallOutcome, reason: str) -> CallOutcome:
        """Return the outcome of a call that does not run on, with the calls that its tool made before."""
        call = self._call
        if so_far.inner or not self._is_program:
            return so_far
        recorded = () if self._log is None else self._log.recorded_inner_calls(call.key)
        known = {made.intent.key: made.to_closed_execution() for made in recorded}
        if call.resumed is not None:
            closed = close_inner_calls(call.resumed, reason, self._batch.runtime.scope.clock.now())
            known = {execution.key: execution for execution in closed} | known
        return evolve(so_far, inner=tuple(known.values()))

    def _make_inner(self) -> InnerBatches:
        call, batch = self._call, self._batch
        tools, hidden = batch.runtime.toolbox.tools, batch.asked.hidden
        if call.resumed is not None and isinstance(call.resumed.progress, Mapping):
            # What was on offer when the call started counts, not what is now.
            hidden = frozenset(map(str, thaw(call.resumed.progress).get("hidden", ())))
        rejections = dict.fromkeys(hidden, "the tool is not offered now; continue without it")
        rejections |= {tool.name: _NESTED for tool in tools if isinstance(tool, CanCallTools)}
        outer = OuterCall(
            key=call.key,
            call=call.call,
            specs=tuple([spec for spec in tools.specs if spec.name not in rejections]),
            rejections=rejections,
            hidden=hidden,
            agents=frozenset([tool.name for tool in tools if is_agent(tool)]),
            note_origins=call.layers[0].note_origins,
            resumed=call.resumed,
        )
        return InnerBatches(outer, self._run_batch, self._log)

    async def _run_batch(self, tool_calls: ToolCalls, report: Callable[[InnerBatchResult], None]) -> None:
        """Run calls that a tool makes like those of a model. What their interceptors make of the state holds for this batch."""
        batch = self._batch
        grace = min(batch.runtime.cancel_grace / _INNER_GRACE_FACTOR, _MAX_INNER_GRACE)
        inner = Batch(
            state=batch.state,
            asked=tool_calls,
            calls=calls_of(tool_calls, batch.state, batch.runtime.scope, self._call),
            runtime=evolve(batch.runtime, cancel_grace=grace),
            features=batch.features,
            nested_count=batch.nested_count,
        )
        known = len(_stop_signals(batch.state))
        try:
            await inner.complete()
        finally:
            batch.state = inner.state
            # Signals are only ever appended, and a new one may be equal to one before.
            stops = [signal.message for signal in _stop_signals(inner.state)[known:]]
            report(InnerBatchResult(inner.executions(), inner.failure, "; ".join(stops)))


def _stop_signals(state: AgentState) -> tuple[StopSignal, ...]:
    """Return the stop signals in effect."""
    return state.execution.continuation.signals if state.execution is not None else ()
