"""Playing a recorded execution again, without its model, its tools and its journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from attrs import evolve, field, frozen

from agentloop.contracts.tools import Tools
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.events.bus import EventBus
from agentloop.inference.scripted import ScriptedInference
from agentloop.interception.recorded_error import recorded_error
from agentloop.journal.exporting_recording import RecordedLine, Recording
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.sync import run_sync
from agentloop.testing.stand_ins import RecordedRules, StandIn
from agentloop.values.agent_state import AgentState
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.tool_execution import ErrorInfo
from agentloop.values.tool_spec import ToolSpec


def play(recording: Recording, loop: AgentLoop | None = None) -> AgentState:
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
            Exception: as was recorded; with the state so far as its attribute `agent_state`.
        """
        after = await super().use_tools(state)
        if after.step_count not in self.failed or (after.open_turn is not None and not self.is_last):
            return after
        error = recorded_error(self.failed[after.step_count])
        error.agent_state = after  # type: ignore[attr-defined]  # as the contract of drivers says
        raise error


def _asking(loop: AgentLoop, script: ScriptedInference, recording: Recording, legs: int) -> AgentLoop:
    """Return the loop that goes on, and is resumed so many times afterwards."""
    return loop.with_driver(_PlayingDriver(script, mode="native", failed=recording.failed, is_last=not legs))


def _loop(recording: Recording, own: AgentLoop | None) -> AgentLoop:
    specs = {spec.name: spec for spec in recording.tools}
    driver = _PlayingDriver(ScriptedInference())
    if own is None:
        loop = AgentLoop(driver, interceptors=[RecordedRules(recording=recording)], max_steps=None)
    else:
        specs.update({spec.name: spec for spec in own.tools.specs})
        rules = [interceptor for group in own.tools.groups for interceptor in group.interceptors]
        loop = own.with_journal(None).with_events(EventBus())
        loop = loop.with_interceptors(*rules, RecordedRules(recording=recording, has_own=True))
    return loop.with_tools(_stand_ins(specs.values(), recording))


def _stand_ins(specs: Iterable[ToolSpec], recording: Recording) -> Tools:
    return Tools.of([StandIn(offered=spec, outcomes=recording.outcomes) for spec in specs])


def _line(line: RecordedLine) -> InferenceResponse | Exception:
    return line if isinstance(line, InferenceResponse) else recorded_error(line)
