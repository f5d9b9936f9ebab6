"""Starts the tools of an answer's calls while the model still writes the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

from attrs import evolve

from agentloop.contracts.can_execute_tool_calls import EagerCalls
from agentloop.contracts.tool import CanAccessAgentState, CanAccessToolCall, CanUseThread, ToolContext
from agentloop.errors import AgentLoopError
from agentloop.events.bus import EventBus
from agentloop.executors.call import Call
from agentloop.executors.invocation import CallRuntime, ToolInvocation
from agentloop.executors.toolbox import ReadyTool
from agentloop.values.batches import call_key
from agentloop.values.inference import InferenceRequest
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ToolCall

EarlyOutcome: TypeAlias = tuple[Any, BaseException | None]
"""What a tool returned, and what it raised."""

# Only the tool itself is started early. Admission, interceptors, the journal's records and the events of a call happen in its
# batch, which finds the tool running, or already finished, when it is about to start it.


class EagerBatch(EagerCalls):
    """The early runs of one answer.

    Args:
        request: the request that the model answers.
        state: the state to which the batch will belong.
        runtime: what the calls have in common.
        runs: the early runs of the execution.
        max_calls: how many calls may start.
    """

    def __init__(
        self,
        request: InferenceRequest,
        state: AgentState,
        runtime: CallRuntime,
        *,
        runs: EagerRuns,
        max_calls: float,
    ) -> None:
        self._request = request
        self._offered = frozenset([spec.name for spec in request.tools])
        self._state = state
        self._runtime = runtime
        self._all_runs = runs
        self._max_calls = max_calls
        self._discarded: list[ToolCall] = []
        self._begin()

    def _begin(self) -> None:
        self._runs: dict[str, _EarlyRun] = {}
        self._started: set[tuple[str, str]] = set()
        self._is_over = False

    @property
    def discarded(self) -> tuple[ToolCall, ...]:
        """The calls that had begun to run and whose outcomes were discarded."""
        return tuple(self._discarded)

    def start(self, call: ToolCall) -> bool:
        """Start the next call of the answer, unless it has to wait for its batch."""
        # In call order and without gaps: a call never starts before one that has to wait, such as one that runs alone.
        run = None if self._is_over else self._admit(call)
        if run is None:
            self._is_over = True
            return False
        self._runs[run.call.key] = run
        self._started.add(_identity(run.call.call))
        self._all_runs.add(run.start())
        return True

    def discard(self) -> None:
        """Cancel the runs that were not used."""
        for run in self._runs.values():
            if run.has_begun:
                self._discarded.append(run.call.call)
            run.discard()
        self._begin()

    async def finish(self, invocation: ToolInvocation) -> EarlyOutcome | None:
        """Wait for the early run of a call and return its result, or what it raised; None if there is none to use."""
        run = self._runs.get(invocation.call.key)
        if run is None or not run.serves(invocation):
            return None
        del self._runs[invocation.call.key]
        ended = await run.finish(invocation)
        if ended is None:
            self._discarded.append(run.call.call)
        return ended

    def _admit(self, call: ToolCall) -> _EarlyRun | None:
        """Return the run of a call; None if the call has to wait for its batch."""
        index = len(self._started)
        is_allowed = call.name in self._offered and self._request.tool_choice.allows(call.name)
        if index >= self._max_calls or not is_allowed:
            return None
        try:
            tool = self._runtime.toolbox.get(call.name)
            if not self._may_run_early(tool):
                return None
            # Coerced as the batch does, so that the calls are compared as they run.
            call, arguments = tool.admit(call, self._runtime.scope.bounds, strict=False)
        except (Exception, SystemExit):  # noqa: BLE001  # the batch meets the same error, and reports it in its place
            return None
        # Equal calls of an answer may be joined to one, by a layer around them.
        if _identity(call) in self._started:
            return None
        step_number = self._state.step_count + 1
        key = call_key(self._state, index)
        admitted = Call(step_number=step_number, index=index, key=key, id="", call=call, tool=tool, arguments=arguments)
        return _EarlyRun(admitted, tool, self._state, self._runtime)

    def _may_run_early(self, tool: ReadyTool) -> bool:
        spec, policy = tool.spec, tool.policy
        # A tool with a definition, or one that was discovered, belongs to a server: its calls go over a network.
        if spec.effect is not Effect.PURE or spec.definition or spec.name in self._runtime.toolbox.tools.origins:
            return False
        if not policy.eager or policy.sequential or policy.key is not None:
            return False
        # What these policies decide, such as when a call may start, is decided in the batch.
        layered = (policy.cache, policy.rate_limit, policy.circuit, policy.deadline, policy.deduplicate)
        if any(each is not None for each in layered):
            return False
        return not isinstance(tool.tool, CanUseThread) or not _is_full(self._runtime.threads.slots)


def _identity(call: ToolCall) -> tuple[str, str]:
    return call.name, call.arguments_json.strip()


def _is_full(slots: AbstractAsyncContextManager[None]) -> bool:
    return isinstance(slots, asyncio.Semaphore) and slots.locked()


class EagerRuns:
    """All early runs of one execution. When it is closed, those that are left are cancelled.

    Args:
        grace: the seconds that tools have to end then.
    """

    def __init__(self, grace: float) -> None:
        self.latest: EagerBatch | None = None
        self._grace = grace
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Watch one more run."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what still runs, and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            if not task.cancelling():  # a second cancellation would end the clean-up of its tool
                task.cancel()
        if tasks:
            _, running = await asyncio.wait(tasks, timeout=self._grace)
            for task in running:
                _logger.warning("%s ignores its cancellation and continues", task.get_name())


_logger = logging.getLogger("agentloop.tools")


class _NotKnownYet(AgentLoopError):  # internal to this module; the tool is started again in its batch
    """A tool asked its context for something that only the batch of its call knows."""


class _EarlyRun(ToolInvocation):
    """The tool of one call, started before the batch of the call."""

    __slots__ = ("_held", "_is_discarded", "_is_void", "_sees_call", "_sees_state", "_successor", "_task", "has_begun")

    def __init__(self, call: Call, tool: ReadyTool, state: AgentState, runtime: CallRuntime) -> None:
        super().__init__(call, tool, state, runtime)
        self._attempts = self._open_attempt = 1
        self._successor: ToolInvocation | None = None
        self._held: list[Callable[[ToolInvocation], object]] = []
        self._is_void = False
        self._is_discarded = False
        self.has_begun: bool = False
        bare = tool.tool
        # A wrapper may accept everything and pass on little: one that returns itself does not use what it is given.
        self._sees_state = isinstance(bare, CanAccessAgentState) and bare.with_agent_state(state) is not bare
        self._sees_call = isinstance(bare, CanAccessToolCall) and bare.with_tool_call(call.call) is not bare

    def start(self) -> asyncio.Task[EarlyOutcome]:
        """Start the tool, and return the task."""
        self._task = asyncio.create_task(self._run_tool(), name=f"agentloop early tool {self.call.key}")
        return self._task

    def discard(self) -> None:
        """Cancel the tool. What it still reports is logged, and is no event."""
        self._is_discarded = True
        self._runtime = evolve(self._runtime, events=EventBus())
        self._task.cancel()

    def serves(self, invocation: ToolInvocation) -> bool:
        """Return whether the outcome is that of this call: the identical one, with what the tool has seen of it."""
        call, own = invocation.call, self.call
        if self._is_void or call.tool is not own.tool or _identity(call.call) != _identity(own.call):
            return False
        if self._sees_state and invocation.state is not self.state:
            return False
        return not self._sees_call or call.call == own.call

    async def finish(self, invocation: ToolInvocation) -> EarlyOutcome | None:
        """Wait for the tool, whose reports are those of the invocation from now on; None if it has to be started again."""
        self._successor = invocation
        held, self._held = self._held, []
        for report in held:
            outcome = report(invocation)
            if asyncio.iscoroutine(outcome):
                await outcome
        is_cancelled = False
        while not self._task.done():
            try:
                await asyncio.wait((self._task,))
            except asyncio.CancelledError:
                # As if the tool was awaited here: it may still end in another way than by its cancellation.
                is_cancelled = True
                self._task.cancel()
        if not self._task.cancelled():
            return None if self._is_void else self._task.result()
        if is_cancelled:
            raise asyncio.CancelledError
        return None

    async def _run_tool(self) -> EarlyOutcome:
        tool = self.call.tool
        in_thread = tool is not None and isinstance(tool.tool, CanUseThread)
        async with self._runtime.threads.slots if in_thread else nullcontext():
            self.has_begun = True
            try:
                with self.enter():
                    return await self.use_tool(), None
            except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001  # raised again in the batch, where it is the outcome of the call
                return None, error

    # --- what the tool knows and reports ------------------------------------------------------------------------

    def create_context(self) -> ToolContext:
        """Return a context that interrupts a tool which asks for what is not known yet."""
        context = super().create_context()
        return _EarlyContext(
            context.execution_id,
            context.agent_id,
            context.idempotency_key,
            self.read_later,
            dependencies=context.dependencies,
            claim_token=context.claim_token,
            report=partial(self._report, self._attempts),
        )

    def read_later(self, name: str) -> Any:
        """Return a field of the context that only the batch knows.

        Raises:
            _NotKnownYet: the batch has not reached the call. The tool will be started again there.
        """
        if self._successor is None:
            self._is_void = True
            raise _NotKnownYet(f"ToolContext.{name} is known when the answer of the model is complete")
        return getattr(self._successor.create_context(), name)

    def emit_progress(self, attempt: int, update: object) -> None:
        """Hold progress back until the batch has reached the call."""
        self._report_to_successor(lambda invocation: invocation.emit_progress(attempt, update))

    async def report_abandoned(self) -> None:
        """Hold back that the tool continues after its timeout; after it was discarded, log it."""
        if self._is_discarded:
            await super().report_abandoned()
        elif self._successor is not None:
            await self._successor.report_abandoned()
        else:
            self._held.append(_report_abandoned)

    def report_late(self, error: BaseException | None) -> None:
        """Hold back that an abandoned tool has ended; after it was discarded, log it."""
        if self._is_discarded:
            super().report_late(error)
        else:
            self._report_to_successor(lambda invocation: invocation.report_late(error))

    def _report_to_successor(self, report: Callable[[ToolInvocation], object]) -> None:
        if self._successor is not None:
            report(self._successor)
        else:
            self._held.append(report)


async def _report_abandoned(invocation: ToolInvocation) -> None:
    await invocation.report_abandoned()


class _EarlyContext(ToolContext):
    """The context of a call before its batch: the fields that only the batch knows are read from there."""

    __slots__ = ("_read_later",)

    def __init__(
        self, execution_id: str, agent_id: str, key: str, read_later: Callable[[str], Any], **known: Any
    ) -> None:
        object.__setattr__(self, "_read_later", read_later)
        super().__init__(execution_id=execution_id, agent_id=agent_id, idempotency_key=key, **known)


def _add_late_fields() -> None:
    """Make properties of the fields that only the batch knows; what the base class assigns to them is ignored."""

    def read(name: str, context: Any) -> Any:
        return context._read_later(name)  # noqa: SLF001  # of the class above

    for name in ("id", "scope", "events"):
        setattr(_EarlyContext, name, property(partial(read, name), lambda _context, _value: None))


_add_late_fields()
# A tool may put the name of the class into its result or its error, which are those of a call that was not started early.
_EarlyContext.__name__, _EarlyContext.__qualname__ = ToolContext.__name__, ToolContext.__qualname__
