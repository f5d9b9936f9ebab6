"""The verifier of a replay: returns what is recorded, and compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from agentloop.contracts.can_accept import CanObserveReplay
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.run_log import ExecutionLog, JournalSettings, RequestRenderer
from agentloop.contracts.tools import Tools
from agentloop.errors import JournalError
from agentloop.journal.bodies import rendered_form
from agentloop.replay.comparison import Comparison, Mask, touched
from agentloop.replay.divergence import Divergence
from agentloop.replay.guard import Guard
from agentloop.replay.surroundings import ReplayClock, ReplayIds, ReplayInboxes, with_stand_ins
from agentloop.replay.timeline import RecordedStep, Timeline, recorded_failure, recorded_stop, stopped_from_outside
from agentloop.values.decisions import Decision, PendingCall
from agentloop.values.inference import InferenceRequest
from agentloop.values.messages import Message
from agentloop.values.points import Point
from agentloop.values.records import CallIntent, InDoubt, RecordedCall, RecordedInference, RecordKind
from agentloop.values.state import AgentState
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ToolExecution


def index_of(key: str) -> int:
    """Return the place of a call in its step, which its key names; 0 for a key of another form."""
    index = key.rpartition("/")[2]
    return int(index) if index.isdecimal() else 0


def why(state: AgentState) -> str:
    """Say why an execution stopped."""
    signal = state.stop_signal
    return signal.reason.value if signal is not None else state.status.value


def error_of(state: AgentState) -> str:
    """Return the last error of an execution, to stand at the end of a sentence; empty when it has none."""
    errors = state.errors
    return f"; {errors[-1].type}: {errors[-1].message}" if errors else ""


_CUT_OFF = "the record ends here: the execution was interrupted, or goes on"


class ReplayEnded(JournalError):
    """Nothing more is compared: something differs, or the record is at its end."""


class ReplayVerifier(ExecutionLog, CanObserveReplay):
    """Gives a run what is recorded, and compares what it does with it. It lives as long as one replay.

    Attributes:
        divergence: the first place where they differ; None as long as they do not.
        ended: why nothing more can be compared although nothing differs; empty when all was compared.
        complete: whether the replay came to the end of an execution that has ended.
        steps: how many steps were compared and are equal.
        inferences: how many inferences were compared.
        calls: how many calls were.
        left_out: the names of the interceptors that were left out because they touch the world.
    """

    def __init__(self, timeline: Timeline, guard: Guard, mask: Mask | None) -> None:
        self.divergence: Divergence | None = None
        self.ended: str = ""
        self.complete: bool = False
        self.steps: int = 0
        self.inferences: int = 0
        self.calls: int = 0
        self.left_out: tuple[str, ...] = ()
        self.clock: ReplayClock = ReplayClock(timeline.started_at)
        self.ids: ReplayIds = ReplayIds()
        self.inboxes: ReplayInboxes = ReplayInboxes(timeline.start.execution_id)
        self._timeline = timeline
        self._guard = guard
        self._comparison = Comparison(mask, lambda: self.left_out)
        self._turn = RecordedStep(timeline.start)
        self._following: RecordedStep | None = timeline.next_turn()
        self._begun = False
        self._index = 0
        self._called: set[str] = set()
        self._offered: dict[int, object] = {}

    # --- life cycle ---------------------------------------------------------------------------------------------

    @property
    def has_started(self) -> bool:
        """True: what is replayed is recorded."""
        return True

    @property
    def is_in_step(self) -> bool:
        """False: messages arrive with the step that took them."""
        return False

    def unsettled_calls(self) -> Sequence[RecordedCall]:
        """Return the recorded calls that no step has come to, where the execution ended."""
        turn = self._turn
        if turn.closing is not RecordKind.EXECUTION_ENDED:
            return ()
        return [call for key, call in turn.calls.items() if key not in self._called]

    async def start(self, state: AgentState) -> None:
        """Compare the state with which the execution begins or goes on."""
        if not self._begun:
            self._begun = True
            self._found(self._comparison.states(self._timeline.start, state))
        else:
            assert self._turn.state is not None  # noqa: S101  # `resumed_with` has seen it
            self._found(self._comparison.states(self._turn.state, state))
        self._move()

    async def record_step(self, state: AgentState) -> None:
        """Compare the state after a step."""
        turn = self._check()
        if turn.closing is not RecordKind.STEP_COMPLETED or turn.state is None:
            self._went_on(state)
        self._close(turn, state)

    async def end(self, state: AgentState) -> None:
        """Compare the state with which the execution ends or is suspended."""
        turn = self._check()
        if turn.closing not in {RecordKind.EXECUTION_ENDED, RecordKind.EXECUTION_SUSPENDED} or turn.state is None:
            self._stopped(turn, state)
        self._close(turn, state)

    async def flush(self) -> None:
        """Do nothing: a replay writes no records."""

    async def aclose(self) -> None:
        """Do nothing: a replay claims no execution."""

    def resumed_with(self) -> Mapping[str, Decision] | None:
        """Come to where a suspended execution went on, and return what was decided; None when it did not go on."""
        turn = self._turn
        if turn.closing is not RecordKind.EXECUTION_RESUMED or turn.at is None:
            return None
        self.clock.at = turn.at
        return turn.decisions

    @property
    def resumed_state(self) -> AgentState:
        """The state with which the suspended execution went on."""
        assert self._turn.state is not None  # noqa: S101  # `resumed_with` has seen it
        return self._turn.state

    @property
    def step(self) -> int:
        """The number of the step that the replay has come to."""
        return self._turn.step

    def settled(self) -> Divergence | None:
        """Return the first place where the run differs, once it is over."""
        if self.divergence is None and not self.ended and self._guard.touches:
            return touched(self._guard.touches[0], self._turn)
        return self.divergence

    # --- messages -----------------------------------------------------------------------------------------------

    def waiting_messages(self) -> Sequence[Message]:
        """Return none: messages arrive by the inbox."""
        return ()

    def taken_messages(self) -> Sequence[Message]:
        """Return none: messages arrive by the inbox."""
        return ()

    def record_sent(self, message: Message) -> None:
        """Do nothing: a replay writes no records."""

    def record_taken(self, messages: Sequence[Message], step_number: int) -> None:
        """Do nothing: the state with the messages is compared."""

    # --- inferences and calls -----------------------------------------------------------------------------------

    @property
    def settings(self) -> JournalSettings:
        """No journal and no answers: every call is answered from the record, so no call runs or is in doubt."""
        return JournalSettings(journal=None, in_doubt=InDoubt.TELL, answers=None)

    def next_inference(
        self, request: InferenceRequest, render: RequestRenderer | None = None
    ) -> RecordedInference | None:
        """Compare a request with the recorded one, and return what came of that."""
        turn, index = self._check(), self._index
        if index >= len(turn.inferences):
            self._not_recorded(turn, "inference", index)
        asked, place = turn.inferences[index], (turn.step, index)
        if not asked.is_reused:
            self._found(self._comparison.requests(asked, request, place))
        self._found(self._comparison.offers(asked.offered, rendered_form(render, request), place))
        self._index += 1
        self.inferences += 1
        self.clock.at = asked.at
        if asked.has_masked_calls:
            self._end("something secret was masked in a call that the model made, so that it cannot be repeated")
        stop = recorded_stop(asked, turn)
        if stop is not None:
            raise stop
        return asked.recorded

    def record_inference(
        self, request: InferenceRequest, recorded: RecordedInference, render: RequestRenderer | None = None
    ) -> None:
        """Do nothing: no request is sent."""

    def recorded_call(self, key: str) -> RecordedCall | None:  # noqa: ARG002  # of the contract
        """Return None, so that a call passes the same interceptor points as in the recorded run."""
        return None

    async def start_call(self, intent: CallIntent, *, delegates: bool = False) -> RecordedCall | None:  # noqa: ARG002  # of the contract
        """Compare a call with the recorded one, and return what came of that."""
        turn = self._check()
        recorded = turn.calls.get(intent.key)
        if recorded is None or (recorded.execution is None and recorded.pending is None):
            self._not_recorded(turn, f"calls[{intent.key.rpartition('/')[2]}]", index_of(intent.key), intent)
        self._found(self._comparison.calls(recorded, intent))
        self._called.add(intent.key)
        self.calls += 1
        failure = recorded_failure(recorded, turn)
        if failure is not None:
            raise failure
        return recorded

    async def record_outcome(self, outcome: ToolExecution | PendingCall, stop: StopSignal | None = None) -> None:
        """Do nothing: no tool runs."""

    def attach(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Do nothing: no tool runs."""

    def attachment(self, key: str, name: str) -> Mapping[str, Any] | None:
        """Return an attachment of the recorded outcome."""
        recorded = self._turn.calls.get(key)
        return None if recorded is None else recorded.attachments.get(name)

    # --- the interceptors ---------------------------------------------------------------------------------------

    def admits(self, interceptor: CanIntercept) -> bool:
        """Leave out what touches the world."""
        touches = bool(getattr(interceptor, "touches_world", False))
        if touches and interceptor.name not in self.left_out:
            self.left_out = (*self.left_out, interceptor.name)
        return not touches

    def before_interceptor(self, interceptor: str, point: str) -> None:
        """Remember who is at work."""
        self._guard.interceptor = (interceptor, point)

    def after_interceptor(self, interceptor: str, point: str, before: Point, after: Point) -> None:
        """Remember what it has changed."""
        self._guard.interceptor = ("", "")
        self._comparison.traces.note(interceptor, point, before, after)

    def with_recorded_tools(self, tools: Tools) -> Tools:
        """Return the tools with those that were discovered when the run was recorded."""
        return with_stand_ins(tools, self._turn)

    # --- what it comes to ---------------------------------------------------------------------------------------

    def _check(self) -> RecordedStep:
        """Return the turn, unless nothing more is to be compared."""
        if self._guard.touches:
            self._found(touched(self._guard.touches[0], self._turn))
        if self.divergence is not None or self.ended or self.complete:
            raise ReplayEnded(self.ended or str(self.divergence or "the record is at its end"))
        return self._turn

    def _found(self, divergence: Divergence | None) -> None:
        if divergence is None:
            return
        outside = stopped_from_outside(self._turn)
        if outside and divergence.place.startswith(("state", "stop", "inference", "calls")):
            self._end(f"it was stopped from outside, {outside}")
        self.divergence = self.divergence or divergence
        raise ReplayEnded(str(self.divergence))

    def _end(self, why: str) -> NoReturn:
        self.ended = self.ended or why
        raise ReplayEnded(why)

    def _not_recorded(self, turn: RecordedStep, place: str, index: int, intent: CallIntent | None = None) -> NoReturn:
        if turn.closing is None:
            self._end(_CUT_OFF)
        if not turn.takes_step:
            self._went_on(turn.before)
        told = f"{intent.call.name}({intent.call.arguments_json})" if intent is not None else "the model"
        reason = f"{told} is {'called now' if intent is not None else 'asked once more'}, and was not"
        self._diverge(Divergence(step=turn.step, index=index, place=place, replayed=told, reason=reason))

    def _went_on(self, state: AgentState) -> NoReturn:
        """End where the record says that the execution stopped."""
        turn = self._turn
        if turn.state is None or turn.closing is None:
            self._end(_CUT_OFF)
        recorded = why(turn.state)
        reason = f"the run went on where it stopped ({recorded})"
        step = min(turn.state.step_count, state.step_count)
        self._diverge(Divergence(step=step, place="stop", recorded=recorded, reason=reason))

    def _stopped(self, turn: RecordedStep, state: AgentState) -> NoReturn:
        if turn.closing is None:
            self._end(_CUT_OFF)
        step, stop = state.step_count, why(state)
        reason = f"the run stopped ({stop}) where it went on"
        source = state.stop_signal.source if state.stop_signal is not None else ""
        self._diverge(Divergence(step=step, place="stop", replayed=stop, interceptor=source, reason=reason))

    def _diverge(self, divergence: Divergence) -> NoReturn:
        self._found(divergence)
        raise AssertionError  # what differs ends the replay

    def _close(self, turn: RecordedStep, state: AgentState) -> None:
        """Compare what a turn has come to, and go on to the next."""
        recorded = turn.state
        assert recorded is not None  # noqa: S101  # it is closed
        if self._index < len(turn.inferences):
            asked = f"{len(turn.inferences)} times in this step, and is asked {self._index} times now"
            reason = f"the model was asked {asked}{error_of(state)}"
            self._found(Divergence(step=turn.step, index=self._index, place="inference", reason=reason))
        settled = {one.key for one in state.last_step.executions} if state.last_step is not None else set[str]()
        uncalled = [call for key, call in turn.calls.items() if key not in self._called]
        if turn.closing is RecordKind.EXECUTION_ENDED:  # what was interrupted is settled without being asked about
            uncalled = [call for call in uncalled if call.intent.key not in settled]
        missing = next(iter(uncalled), None)
        if missing is not None:
            self._found(self._comparison.not_run(missing, state, turn.step))
        self._found(self._comparison.states(recorded, state))
        self.complete = turn.closing is RecordKind.EXECUTION_ENDED
        self.steps += turn.closing is RecordKind.STEP_COMPLETED
        self._move()

    def _move(self) -> None:
        """Come to the next turn."""
        following = self._following
        if following is None:
            return
        self._turn = following
        self._following = self._timeline.next_turn() if following.closing is not None else None
        self._index, self._called = 0, set()
        self._comparison.traces.clear()
        self.inboxes.move(self._turn, self._following)
        self._expect(self._turn)

    def _expect(self, turn: RecordedStep) -> None:
        """Let times and ids be those of the turn."""
        step = turn.state.last_step if turn.state is not None and turn.takes_step else None
        if step is not None:
            open_turn = turn.before.open_turn
            known = {one.id for one in open_turn.executions} if open_turn is not None else set[str]()
            self.ids.expect([step.id], [one.id for one in step.executions if one.id not in known])
            self.clock.at = max(step.started_at - turn.down, self.clock.at)
        elif turn.at is not None:
            self.clock.at = turn.at
