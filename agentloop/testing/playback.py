"""Playing a recorded execution again, without its model, its tools and its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.tool import CanAccessToolContext, Tool, ToolContext, ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.errors import ContractViolation, ToolInDoubt
from agentloop.events.bus import EventBus
from agentloop.inference.scripted import ScriptedInference
from agentloop.interception.interceptor import Interceptor
from agentloop.journal.fixture import Fixture, FixtureOutcome, ScriptEntry
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.sync import run_sync
from agentloop.values.decisions import CallSuspended
from agentloop.values.inference import InferenceResponse
from agentloop.values.interruptions import StepInterrupted
from agentloop.values.json import JsonObject
from agentloop.values.points import AfterStep, AfterToolUse, BeforeStep, BeforeToolUse, OnError
from agentloop.values.records import rebuild_error
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolResult, ToolSpec, ToolStatus

_UNLIMITED = ToolPolicy(max_result_bytes=1 << 40)
"""What the model was shown is recorded as it was cut."""


@frozen(kw_only=True)
class FixtureTool(Tool, CanAccessToolContext):
    """Stands where a tool was: offered as it was, it ends each call as that ended.

    Attributes:
        offered: the tool as the model sees it.
        outcomes: what came of calls, by key.
        waits: how often each call has waited here, by key.
    """

    offered: ToolSpec
    outcomes: Mapping[str, FixtureOutcome] = field(repr=False)
    waits: Counter[str] = field(factory=Counter, repr=False)
    _context: ToolContext | None = field(default=None, repr=False, eq=False)

    @property
    def name(self) -> str:
        """Its name."""
        return self.offered.name

    @property
    def description(self) -> str:
        """What it is for."""
        return self.offered.description

    @property
    def parameters(self) -> JsonObject:
        """Its schema."""
        return self.offered.parameters

    @property
    def effect(self) -> Effect:
        """What calling it did to the world; calling it here does nothing."""
        return self.offered.effect

    @property
    def policy(self) -> ToolPolicy:
        """Nothing is cut."""
        return _UNLIMITED

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that serves this call."""
        return evolve(self, context=context)

    async def use(self, *_: Any, **arguments: Any) -> ToolResult:
        """End as the call ended.

        Raises:
            ContractViolation: when no such call was recorded.
            CallSuspended: when it waited.
            Exception: an error of the recorded class, with the recorded message.
        """
        key = "" if self._context is None else self._context.idempotency_key
        outcome = self.outcomes.get(key)
        if outcome is None:
            raise ContractViolation(f"no call {key} of {self.name!r} was recorded, and it was called with {arguments}")
        begun = [call for call in outcome.suspensions if call.begun]
        if self.waits[key] < len(begun):
            self.waits[key] += 1
            call = begun[self.waits[key] - 1]
            raise CallSuspended(call.reason, inner=call.inner)
        if outcome.status is ToolStatus.IN_DOUBT:
            raise ToolInDoubt("" if outcome.error is None else outcome.error.message)
        if outcome.error is not None and not outcome.forced:
            raise rebuild_error(outcome.error)
        return ToolResult(outcome.value, outcome.content)


@frozen(kw_only=True)
class FixtureInterceptor(Interceptor):
    """Does what the rules of an execution did: lets calls wait, blocks and changes them, and stops it.

    Attributes:
        recording: the execution.
        has_own: whether the loop has rules of its own; then only those ends are put in place that nothing can bring about.
    """

    recording: Fixture = field(repr=False)
    has_own: bool = False
    priority: int = field(default=-1_000_000, kw_only=True)

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Take the messages that the step took; stop an execution that took no step."""
        state, recording = point.state, self.recording
        if state.open_turn is None:
            for message in recording.messages.get(state.step_count + 1, ()):
                state = state.with_message(message)
        if not recording.script:
            for signal in recording.stop_signals:
                state = state.with_stop_signal(signal)
        return point.with_state(state)

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Let a call wait, block it or change it, as was recorded."""
        outcome = self.recording.outcomes.get(point.key)
        if outcome is None or self.has_own:
            return point
        waited = next((call for call in outcome.suspensions if not call.begun), None)
        if waited is not None:
            return point.with_call(waited.call).suspend(waited.reason) if point.decision is None else point.suspend()
        if outcome.executed_call is not None and point.decision is None:
            point = point.with_call(outcome.executed_call)
        if outcome.status is ToolStatus.BLOCKED and point.decision is None:
            return point.block("" if outcome.error is None else outcome.error.message)
        return point

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Put the recorded end in place where nothing can bring it about."""
        execution = point.execution
        outcome = self.recording.outcomes.get(execution.key)
        if outcome is None or not outcome.forced:
            return point
        ended = evolve(
            execution,
            call=outcome.executed_call or execution.call,
            status=outcome.status,
            value=outcome.value,
            content=outcome.content,
            error=outcome.error,
            may_have_run=outcome.may_have_run,
        )
        return point.with_execution(ended)

    def after_step(self, point: AfterStep) -> AfterStep:
        """Go on, or stop, as was recorded."""
        recording, count = self.recording, point.state.step_count
        if count in recording.continued_steps:
            return point.request_continuation()
        last = recording.state.step_count + len(recording.script)
        if self.has_own or count < last or point.state.open_turn is not None:
            return point
        state = point.state
        for signal in recording.stop_signals:
            state = state.with_stop_signal(signal)
        return point.with_state(state)

    def on_error(self, point: OnError) -> OnError:
        """Go on after an error after which it went on."""
        last = point.state.last_step
        held = last is not None and (bool(last.errors) or last.number in self.recording.step_errors)
        number = point.state.step_count + (0 if held else 1)
        return point.recover() if number in self.recording.recovered_steps else point


def play(recording: Fixture, loop: AgentLoop | None = None) -> AgentState:
    """Run an execution again: the model is a script, and every tool ends each call as it ended.

    Args:
        recording: the execution.
        loop: a loop of yours whose tools, as the model sees them, and whose interceptors are used; its model, its journal and what its
            tools do are not. When left out, what interceptors did is done as it was recorded.

    Returns:
        The final state.
    """
    playing = _loop(recording, loop)
    script = ScriptedInference(*map(_line, recording.script))
    state, legs = recording.state, len(recording.decisions)
    if state.status is not ExecutionStatus.SUSPENDED:  # as a fork may begin
        state = run_sync(
            partial(_asking(playing, script, recording, legs).execute, state, execution_id=recording.execution_id)
        )
    for number, decisions in enumerate(recording.decisions, 1):
        if state.status is not ExecutionStatus.SUSPENDED:
            break
        waiting = {call.key for call in state.pending}
        known = {key: evolve(decision, digest="") for key, decision in decisions.items() if key in waiting}
        rest = ScriptedInference(*script.lines[len(script.requests) :])
        rest.requests = script.requests
        state = run_sync(partial(_asking(playing, rest, recording, legs - number).resume, state, known))
    return state


@frozen(kw_only=True)
class _PlayingDriver(ToolCallingDriver):
    """A driver whose steps go wrong after the model has answered, where that was recorded.

    Attributes:
        failed: the steps, and why.
        is_last: whether the execution is not resumed any more, so that a step which went wrong does so now.
    """

    failed: Mapping[int, ErrorInfo] = field(factory=dict, repr=False)
    is_last: bool = True

    async def use_tools(self, state: AgentState) -> AgentState:
        """Take a step.

        Raises:
            StepInterrupted: with the state so far; its cause is as was recorded.
        """
        after = await super().use_tools(state)
        if after.step_count not in self.failed or (after.open_turn is not None and not self.is_last):
            return after
        error = rebuild_error(self.failed[after.step_count])
        raise StepInterrupted(after, error) from error


def _asking(loop: AgentLoop, script: ScriptedInference, recording: Fixture, legs: int) -> AgentLoop:
    """Return the loop that goes on, and is resumed so many times afterwards."""
    return loop.with_driver(_PlayingDriver(script, mode="native", failed=recording.step_errors, is_last=not legs))


def _loop(recording: Fixture, own: AgentLoop | None) -> AgentLoop:
    specs = {spec.name: spec for spec in recording.tools}
    driver = _PlayingDriver(ScriptedInference())
    if own is None:
        loop = AgentLoop(driver, interceptors=[FixtureInterceptor(recording=recording)], max_steps=None)
    else:
        specs.update({spec.name: spec for spec in own.tools.specs})
        rules = [interceptor for group in own.tools.groups for interceptor in group.interceptors]
        loop = own.with_journal(None).with_events(EventBus())
        loop = loop.with_interceptors(*rules, FixtureInterceptor(recording=recording, has_own=True))
    return loop.with_tools(_stand_ins(specs.values(), recording))


def _stand_ins(specs: Iterable[ToolSpec], recording: Fixture) -> Tools:
    return Tools.of([FixtureTool(offered=spec, outcomes=recording.outcomes) for spec in specs])


def _line(line: ScriptEntry) -> InferenceResponse | Exception:
    return line if isinstance(line, InferenceResponse) else rebuild_error(line)
