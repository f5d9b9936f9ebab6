"""Plays a recorded execution again, without its model, its tools and its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanAccessToolContext, ToolContext, ToolFromSpec, ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.durable.fixture import Fixture, FixtureOutcome, ScriptEntry
from agentloop.errors import ContractViolation, ToolInDoubt
from agentloop.events.bus import EventBus
from agentloop.interception.interceptor import Interceptor
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.sync import run_to_end
from agentloop.models.scripted import ScriptedInference
from agentloop.values.decisions import CallSuspended, PendingCall
from agentloop.values.inference import InferenceResponse
from agentloop.values.interruptions import StepInterrupted
from agentloop.values.points import AfterStep, AfterToolUse, BeforeStep, BeforeToolUse, OnError
from agentloop.values.records import rebuild_error
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ErrorInfo, ToolResult, ToolSpec, ToolStatus

# Recorded results were truncated when they were recorded.
_UNLIMITED = ToolPolicy(max_result_bytes=1 << 40)
_ORDERED = evolve(_UNLIMITED, sequential=True)


def play(fixture: Fixture, loop: AgentLoop | None = None) -> AgentState:
    """Run a recorded execution again: a script replaces the model, and each tool call ends as it ended then.

    Args:
        fixture: the recorded execution.
        loop: a loop whose tool specs and interceptors are used in place of the recorded ones; its model, its journal and the
            functions of its tools are not used. Without it, the recorded effects of the interceptors are applied.

    Returns:
        The final state.
    """
    player = _player(fixture, loop)
    script = ScriptedInference(*map(_script_line, fixture.script))
    state, resumptions = fixture.state, len(fixture.decisions)
    # A fork may begin suspended: then there is nothing to execute before the first decisions.
    if state.status is not ExecutionStatus.SUSPENDED:
        first = _with_script(player, script, fixture, is_last=not resumptions)
        state = run_to_end("execute_sync", partial(first.execute, state, execution_id=fixture.execution_id))
    for number, recorded in enumerate(fixture.decisions, 1):
        if state.status is not ExecutionStatus.SUSPENDED:
            break
        pending = {call.key for call in state.pending}
        # The digest binds a decision to the recorded arguments, which a changed loop may not produce any more.
        decisions = {key: evolve(decision, digest="") for key, decision in recorded.items() if key in pending}
        remaining = ScriptedInference(*script.lines[len(script.requests) :])
        remaining.requests = script.requests
        resumed = _with_script(player, remaining, fixture, is_last=number == resumptions)
        state = run_to_end("execute_sync", partial(resumed.resume, state, decisions))
    return state


def _player(fixture: Fixture, loop: AgentLoop | None) -> AgentLoop:
    """Return a loop that plays a fixture, without its script."""
    specs = {spec.name: spec for spec in fixture.tools}
    if loop is None:
        driver = _FixtureDriver(ScriptedInference())
        player = AgentLoop(driver, interceptors=[FixtureInterceptor(fixture=fixture)], max_steps=None)
    else:
        specs.update({spec.name: spec for spec in loop.tools.specs})
        # The tools are replaced below, and the interceptors of their groups with them.
        interceptors = [interceptor for group in loop.tools.groups for interceptor in group.interceptors]
        player = loop.replace(journal=None, events=EventBus())
        player = player.with_interceptors(*interceptors, FixtureInterceptor(fixture=fixture, has_interceptors=True))
    return player.replace(
        tools=Tools.of([FixtureTool(spec=spec, outcomes=fixture.outcomes) for spec in specs.values()])
    )


def _with_script(player: AgentLoop, script: ScriptedInference, fixture: Fixture, *, is_last: bool) -> AgentLoop:
    driver = _FixtureDriver(script, mode="native", step_errors=fixture.step_errors, is_last=is_last)
    return player.replace(driver=driver)


def _script_line(entry: ScriptEntry) -> InferenceResponse | Exception:
    return entry if isinstance(entry, InferenceResponse) else rebuild_error(entry)


@frozen(eq=False, repr=False, kw_only=True)
class _FixtureDriver(ToolCallingDriver):
    """A driver whose steps fail after the model's response where that was recorded.

    Attributes:
        step_errors: the recorded errors, by number of the step.
        is_last: whether the execution is not resumed again. A step that was suspended first fails only when it is resumed for
            the last time.
    """

    step_errors: Mapping[int, ErrorInfo] = field(factory=dict, repr=False)
    is_last: bool = True

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose script starts at its first line, which is that of the fixture and not of the execution."""
        return super().with_execution_scope(scope.without_inferences())

    async def use_tools(self, state: AgentState) -> AgentState:
        """Perform one step.

        Raises:
            StepInterrupted: when the recorded step failed; it carries the state so far, and its cause is the recorded error.
        """
        after = await super().use_tools(state)
        if after.step_count not in self.step_errors or (after.open_turn is not None and not self.is_last):
            return after
        error = rebuild_error(self.step_errors[after.step_count])
        raise StepInterrupted(after, error) from error


@frozen(kw_only=True)
class FixtureTool(ToolFromSpec, CanAccessToolContext):
    """Replaces a tool: it has the same spec, and ends each call as it ended in the recorded execution.

    Attributes:
        spec: the tool as the model sees it.
        outcomes: the recorded outcomes of calls, by key.
        waits: how often each call has been suspended so far, by key.
    """

    spec: ToolSpec
    outcomes: Mapping[str, FixtureOutcome] = field(repr=False)
    waits: Counter[str] = field(factory=Counter, repr=False)
    _context: ToolContext | None = field(default=None, repr=False, eq=False)

    @property
    def is_local(self) -> bool:
        """True: it plays back recorded calls."""
        return True

    @property
    def policy(self) -> ToolPolicy:
        """No limits; and the order of a tool whose calls waited for earlier ones."""
        calls = [call for outcome in self.outcomes.values() for call in outcome.suspensions]
        return _ORDERED if any(call.call.name == self.name and _waited_for_turn(call) for call in calls) else _UNLIMITED

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that serves the call of this context."""
        return evolve(self, context=context)

    async def use(self, *_: Any, **arguments: Any) -> ToolResult:
        """Return the recorded result.

        Raises:
            ContractViolation: no call with this key is recorded.
            CallSuspended: the recorded tool suspended the call.
            ToolInDoubt: the recorded call was in doubt.
            Exception: the recorded error, of its class where that can be imported.
        """
        key = "" if self._context is None else self._context.idempotency_key
        outcome = self.outcomes.get(key)
        if outcome is None:
            raise ContractViolation(f"the fixture has no call {key!r} of {self.name!r}; it was called with {arguments}")
        # Calls that had not begun were suspended by an interceptor, and FixtureInterceptor does so again.
        suspended = [call for call in outcome.suspensions if call.begun]
        if self.waits[key] < len(suspended):
            self.waits[key] += 1
            call = suspended[self.waits[key] - 1]
            raise CallSuspended(call.reason, inner=call.inner)
        if outcome.status is ToolStatus.IN_DOUBT:
            raise ToolInDoubt("" if outcome.error is None else outcome.error.message)
        if outcome.error is not None and not outcome.forced:
            raise rebuild_error(outcome.error)
        return ToolResult(outcome.value, outcome.content)


@frozen(kw_only=True)
class FixtureInterceptor(Interceptor):
    """Applies the recorded effects of an execution's interceptors: it suspends, blocks and edits calls, and stops the execution.

    Attributes:
        fixture: the recorded execution.
        has_interceptors: whether the loop has the interceptors themselves. Then it only restores outcomes that neither they nor
            the tools can produce, sends the messages, and continues where the recorded execution continued.
    """

    fixture: Fixture = field(repr=False)
    has_interceptors: bool = False
    priority: int = field(default=-1_000_000, kw_only=True)

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Add the messages that the step received; stop an execution that performed no step."""
        state, fixture = point.state, self.fixture
        if state.open_turn is not None:  # its calls end as recorded before anything else
            return point
        for message in fixture.messages.get(state.step_count + 1, ()):
            state = state.with_message(message)
        if not fixture.script:
            for signal in fixture.stop_signals:
                state = state.with_stop_signal(signal)
        return point.with_state(state)

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Suspend, edit or block the call as recorded."""
        outcome = self.fixture.outcomes.get(point.key)
        if outcome is None or self.has_interceptors:
            return point
        suspended = next((call for call in outcome.suspensions if not call.begun and not call.waits_for), None)
        if suspended is not None:
            # A call with a decision is not suspended again: `suspend` restores the call that was decided on.
            return (
                point.with_call(suspended.call).suspend(suspended.reason) if point.decision is None else point.suspend()
            )
        if outcome.executed_call is not None and point.decision is None:
            point = point.with_call(outcome.executed_call)
        if outcome.status is ToolStatus.BLOCKED and point.decision is None:
            return point.block("" if outcome.error is None else outcome.error.message)
        return point

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Restore the recorded outcome where neither a tool nor an interceptor can produce it."""
        execution = point.execution
        outcome = self.fixture.outcomes.get(execution.key)
        if outcome is None or not outcome.forced:
            return point
        restored = evolve(
            execution,
            call=outcome.executed_call or execution.call,
            status=outcome.status,
            value=outcome.value,
            content=outcome.content,
            error=outcome.error,
            may_have_run=outcome.may_have_run,
        )
        return point.restore(restored)

    def after_step(self, point: AfterStep) -> AfterStep:
        """Continue or stop as recorded."""
        fixture, count = self.fixture, point.state.step_count
        if count in fixture.continued_steps:
            return point.request_continuation()
        last = fixture.state.step_count + len(fixture.script)
        if self.has_interceptors or count < last or point.state.open_turn is not None:
            return point
        state = point.state
        for signal in fixture.stop_signals:
            state = state.with_stop_signal(signal)
        return point.with_state(state)

    def on_error(self, point: OnError) -> OnError:
        """Recover from an error after which the recorded execution continued."""
        last = point.state.last_step
        # The failed step is in the state when the model had responded; otherwise it is the next one.
        is_recorded = last is not None and (bool(last.errors) or last.number in self.fixture.step_errors)
        number = point.state.step_count + (0 if is_recorded else 1)
        return point.recover() if number in self.fixture.recovered_steps else point


def _waited_for_turn(call: PendingCall) -> bool:
    """Return whether a call waited for an earlier one, and not for a decision: its tool brings that about, no interceptor."""
    return bool(call.waits_for) and not call.begun
