"""The log of a replayed execution: returns the recorded results, and compares what the run does with the record."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from attrs import evolve, frozen

from agentloop.contracts.can_accept import CanObserveReplay
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_keep_grants import CanReplayGrants
from agentloop.contracts.run_log import ExecutionLog, JournalSettings, RequestRenderer
from agentloop.contracts.tool import CanDiscoverTools, ToolFromSpec
from agentloop.contracts.tools import Tools
from agentloop.durable.bodies import rendered_form
from agentloop.durable.replaying.comparison import Comparison, Mask, blocked_divergence
from agentloop.durable.replaying.divergence import Divergence
from agentloop.durable.replaying.guard import Guard
from agentloop.durable.replaying.timeline import RecordedStep, Timeline, layer_failure
from agentloop.errors import ClaimLost, ContractViolation, JournalError
from agentloop.loop.inbox import Inboxes
from agentloop.values.commands import ExecutionCommand
from agentloop.values.decisions import Decision, PendingCall
from agentloop.values.inference import InferenceRequest
from agentloop.values.messages import Message
from agentloop.values.points import Point
from agentloop.values.records import CallIntent, InDoubt, RecordedCall, RecordedInference, RecordKind, outer_key
from agentloop.values.rendering import render_call
from agentloop.values.state import AgentState
from agentloop.values.stop import StopSignal
from agentloop.values.time_and_ids import Clock, IdSource
from agentloop.values.tool_calls import ToolExecution, ToolSpec, ToolStatus

_SETTLED_BY_PROGRAM = frozenset({ToolStatus.SUCCEEDED, ToolStatus.FAILED})
_RECORD_ENDS = "the record ends here: the execution was interrupted, or is still running"


class ReplayEnded(JournalError):
    """Nothing more can be compared: the run differs from the record, or the record ends."""


class ReplayVerifier(ExecutionLog, CanObserveReplay, CanReplayGrants):
    """Returns recorded results to a run, and compares the run with the record. It serves one replay.

    Attributes:
        divergence: the first place where they differ; None as long as they are equal.
        end_reason: why nothing more can be compared although nothing differs; empty when everything was compared.
        is_complete: whether the replay reached the recorded end of the execution.
        steps: the number of steps that are equal.
        inferences: the number of inferences that were compared.
        calls: the number of calls that were compared.
        skipped: the names of the interceptors that are left out because they have side effects.
    """

    def __init__(self, timeline: Timeline, guard: Guard, mask: Mask | None) -> None:
        self.divergence: Divergence | None = None
        self.end_reason: str = ""
        self.is_complete: bool = False
        self.steps: int = 0
        self.inferences: int = 0
        self.calls: int = 0
        self.skipped: tuple[str, ...] = ()
        self.clock: ReplayClock = ReplayClock(timeline.started_at)
        self.ids: ReplayIds = ReplayIds()
        self.inboxes: ReplayInboxes = ReplayInboxes(timeline.start.execution_id)
        self._timeline = timeline
        self._guard = guard
        self._comparison = Comparison(mask, lambda: self.skipped)
        self._step = RecordedStep(timeline.start)
        self._following: RecordedStep | None = timeline.next_step()
        self._has_run = False
        self._index = 0
        self._called: set[str] = set()

    # --- life cycle ---------------------------------------------------------------------------------------------

    @property
    def has_started(self) -> bool:
        """True: a replayed execution is recorded."""
        return True

    @property
    def is_in_step(self) -> bool:
        """False: messages arrive with the steps that took them."""
        return False

    def unsettled_calls(self) -> Sequence[RecordedCall]:
        """Return the recorded calls that the run has not made when the recorded execution ended in the middle of a step."""
        current = self._step
        if current.closing is not RecordKind.EXECUTION_ENDED:
            return ()
        return [call for key, call in current.calls.items() if key not in self._called]

    async def start(self, state: AgentState) -> AgentState:
        """Compare the state with which the execution starts or resumes."""
        if not self._has_run:
            self._has_run = True
            self._report(self._comparison.states(self._timeline.start, state))
        else:
            assert self._step.state is not None  # noqa: S101  # `resumed_with` has checked it
            self._report(self._comparison.states(self._step.state, state))
        self._move()
        return state

    async def record_step(self, state: AgentState) -> None:
        """Compare the state after a step."""
        current = self._check()
        if current.closing is not RecordKind.STEP_COMPLETED or current.state is None:
            self._report_continued(state)
        self._close(current, state)

    async def end(self, state: AgentState) -> None:
        """Compare the state with which the execution ends or is suspended."""
        current = self._check()
        if current.closing not in {RecordKind.EXECUTION_ENDED, RecordKind.EXECUTION_SUSPENDED} or current.state is None:
            self._report_stopped(current, state)
        self._close(current, state)

    async def flush(self) -> None:
        """Do nothing: a replay writes no records."""

    async def aclose(self) -> None:
        """Do nothing: a replay claims no execution."""

    def on_claim_lost(self, listener: Callable[[ClaimLost], None]) -> None:
        """Do nothing: a replay claims no execution."""

    def resumed_with(self) -> Mapping[str, Decision] | None:
        """Return the decisions with which the suspended execution was resumed; None when it was not resumed."""
        current = self._step
        if current.closing is not RecordKind.EXECUTION_RESUMED or current.at is None:
            return None
        self.clock.at = current.at
        return current.decisions

    @property
    def resumed_state(self) -> AgentState:
        """The state with which the suspended execution was resumed."""
        assert self._step.state is not None  # noqa: S101  # `resumed_with` has checked it
        return self._step.state

    @property
    def step(self) -> int:
        """The 1-based number of the step that the replay has reached."""
        return self._step.number

    def final_divergence(self) -> Divergence | None:
        """Return the first place where the run differs, after the run."""
        if self.divergence is None and not self.end_reason and self._guard.blocked:
            return blocked_divergence(self._guard.blocked[0], self._step)
        return self.divergence

    # --- messages -----------------------------------------------------------------------------------------------

    def waiting_messages(self) -> Sequence[Message]:
        """Return none: messages arrive by the inbox."""
        return ()

    def taken_messages(self) -> Sequence[Message]:
        """Return none: messages arrive by the inbox."""
        return ()

    def record_sent(self, message: Message, command: ExecutionCommand | None = None) -> None:
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
        """Compare a request with the recorded one, and return the recorded result."""
        current, index = self._check(), self._index
        if index >= len(current.requests):
            self._report_unrecorded(current, "inference", index)
        recorded, place = current.requests[index], (current.number, index)
        if not recorded.is_reused:
            self._report(self._comparison.requests(recorded, request, place))
        self._report(self._comparison.renderings(recorded.rendering, rendered_form(render, request), place))
        self._index += 1
        self.inferences += 1
        self.clock.at = recorded.at
        if recorded.has_masked_calls:
            self._end("a secret in a tool call of the model is masked in the record, so the call cannot be repeated")
        if recorded.stop is not None:
            raise recorded.stop
        return recorded.inference

    def record_inference(
        self, request: InferenceRequest, recorded: RecordedInference, render: RequestRenderer | None = None
    ) -> None:
        """Do nothing: no request is sent."""

    def recorded_call(self, key: str) -> RecordedCall | None:  # noqa: ARG002  # of the contract
        """Return None, so that a call passes the same interceptor points as in the recorded run."""
        return None

    async def start_call(self, intent: CallIntent, *, delegates: bool = False) -> RecordedCall | None:
        """Compare a call with the recorded one, and return the recorded result.

        A program runs again on the recorded results of its calls, which are compared one by one.
        """
        current = self._check()
        recorded = current.calls.get(intent.key)
        if recorded is None or (recorded.execution is None and recorded.pending is None):
            self._report_unrecorded(current, f"calls[{intent.key.rpartition('/')[2]}]", call_index(intent.key), intent)
        self._report(self._comparison.calls(recorded, intent))
        self._called.add(intent.key)
        self.calls += 1
        failure = layer_failure(recorded)
        if failure is not None:
            raise failure
        inner = {key: call for key, call in current.calls.items() if outer_key(key) == intent.key}
        if delegates and _can_run_program_again(recorded, inner.values()):
            return None
        self._called |= inner.keys()
        return recorded

    async def begin_call(self, key: str) -> None:
        """Do nothing: no tool runs."""

    async def record_outcome(self, outcome: ToolExecution | PendingCall, stop: StopSignal | None = None) -> None:
        """Do nothing: no tool runs."""

    def attach(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Do nothing: no tool runs."""

    async def record_attachment(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Do nothing: no tool runs."""

    def attachment(self, key: str, name: str) -> Mapping[str, Any] | None:
        """Return an attachment of the recorded outcome."""
        recorded = self._step.calls.get(key)
        return None if recorded is None else recorded.attachments.get(name)

    # --- interceptors -------------------------------------------------------------------------------------------

    def admits(self, interceptor: CanIntercept) -> bool:
        """Return whether an interceptor takes part: those that declare side effects do not."""
        skips = bool(getattr(interceptor, "has_side_effects", False))
        if skips and interceptor.name not in self.skipped:
            self.skipped = (*self.skipped, interceptor.name)
        return not skips

    def before_interceptor(self, interceptor: str, point: str) -> None:
        """Remember which interceptor is running."""
        self._guard.interceptor = (interceptor, point)

    def after_interceptor(self, interceptor: str, point: str, before: Point, after: Point) -> None:
        """Remember what the interceptor changed."""
        self._guard.interceptor = ("", "")
        self._comparison.changes.add(interceptor, point, before, after)

    def was_granted(self, key: str) -> bool:
        """Return whether a recorded call was let through by a grant; without an intent, whether it did not wait."""
        recorded, state = self._step.calls.get(key), self._step.state
        if recorded is not None and not recorded.is_answered:
            return bool(recorded.intent.grant)
        return state is not None and all(call.key != key for call in state.pending)

    def with_recorded_tools(self, tools: Tools) -> Tools:
        """Return the tools together with those that the recorded step had discovered."""
        return with_recorded_tools(tools, self._step)

    # --- comparison ---------------------------------------------------------------------------------------------

    def _check(self) -> RecordedStep:
        """Return the recorded step, unless nothing more can be compared."""
        if self._guard.blocked:
            self._report(blocked_divergence(self._guard.blocked[0], self._step))
        if self.divergence is not None or self.end_reason or self.is_complete:
            raise ReplayEnded(self.end_reason or str(self.divergence or "the record ends here"))
        return self._step

    def _report(self, divergence: Divergence | None) -> None:
        """End the replay at a divergence; do nothing without one."""
        if divergence is None:
            return
        external = self._step.external_stop
        if external and divergence.place.startswith(("state", "stop", "inference", "calls")):
            self._end(f"the recorded execution was stopped from outside, {external}")
        self.divergence = self.divergence or divergence
        raise ReplayEnded(str(self.divergence))

    def _end(self, reason: str) -> NoReturn:
        """End the replay although nothing differs."""
        self.end_reason = self.end_reason or reason
        raise ReplayEnded(reason)

    def _report_unrecorded(
        self, current: RecordedStep, place: str, index: int, intent: CallIntent | None = None
    ) -> NoReturn:
        """End where the run sends a request or makes a call that is not recorded."""
        if current.closing is None:
            self._end(_RECORD_ENDS)
        if not current.has_step:
            self._report_continued(current.before)
        called = render_call(intent.call) if intent is not None else "the model"
        reason = f"{called} is called{' once more' if intent is None else ''}, which is not recorded"
        self._diverge(Divergence(step=current.number, index=index, place=place, replayed=called, reason=reason))

    def _report_continued(self, state: AgentState) -> NoReturn:
        """End where the recorded execution stopped and the run continues."""
        current = self._step
        if current.state is None or current.closing is None:
            self._end(_RECORD_ENDS)
        recorded = _stop_reason(current.state)
        reason = f"the run continues where the recorded execution stopped ({recorded})"
        step = min(current.state.step_count, state.step_count)
        self._diverge(Divergence(step=step, place="stop", recorded=recorded, reason=reason))

    def _report_stopped(self, current: RecordedStep, state: AgentState) -> NoReturn:
        """End where the run stops and the recorded execution continued."""
        if current.closing is None:
            self._end(_RECORD_ENDS)
        step, stop = state.step_count, _stop_reason(state)
        reason = f"the run stops ({stop}) where the recorded execution continued"
        source = state.stop_signal.source if state.stop_signal is not None else ""
        self._diverge(Divergence(step=step, place="stop", replayed=stop, interceptor=source, reason=reason))

    def _diverge(self, divergence: Divergence) -> NoReturn:
        self._report(divergence)
        raise AssertionError  # a divergence ends the replay

    def _close(self, current: RecordedStep, state: AgentState) -> None:
        """Compare the end of a step, and go to the next one."""
        recorded = current.state
        assert recorded is not None  # noqa: S101  # the step is closed
        if self._index < len(current.requests):
            counts = f"{len(current.requests)} times in this step, and is called {self._index} times now"
            reason = f"the model was called {counts}{_last_error(state)}"
            self._report(Divergence(step=current.number, index=self._index, place="inference", reason=reason))
        settled = (
            {execution.key for execution in state.last_step.executions} if state.last_step is not None else set[str]()
        )
        uncalled = [call for key, call in current.calls.items() if key not in self._called]
        if current.closing is RecordKind.EXECUTION_ENDED:  # interrupted calls are settled without a new start
            uncalled = [call for call in uncalled if call.intent.key not in settled]
        missing = next(iter(uncalled), None)
        if missing is not None:
            self._report(self._comparison.not_run(missing, state, current.number))
        self._report(self._comparison.states(recorded, state))
        self.is_complete = current.closing is RecordKind.EXECUTION_ENDED
        self.steps += current.closing is RecordKind.STEP_COMPLETED
        self._move()

    def _move(self) -> None:
        """Go to the next recorded step."""
        following = self._following
        if following is None:
            return
        self._step = following
        self._following = self._timeline.next_step() if following.closing is not None else None
        self._index, self._called = 0, set()
        self._comparison.changes.clear()
        self.inboxes.move_to(self._step, self._following)
        self._expect(self._step)

    def _expect(self, current: RecordedStep) -> None:
        """Set the clock and the ids to those of a recorded step."""
        step = current.state.last_step if current.state is not None and current.has_step else None
        if step is not None:
            open_turn = current.before.open_turn
            known = {execution.id for execution in open_turn.executions} if open_turn is not None else set[str]()
            self.ids.expect([step.id], [execution.id for execution in step.executions if execution.id not in known])
            self.clock.at = max(step.started_at - current.downtime, self.clock.at)
        elif current.at is not None:
            self.clock.at = current.at


def call_index(key: str) -> int:
    """Return the 0-based index of a call in its step from its key; 0 for a key of another form."""
    index = key.rpartition("/")[2]
    return int(index) if index.isdecimal() else 0


def _can_run_program_again(recorded: RecordedCall, inner: Iterable[RecordedCall]) -> bool:
    """Return whether a call runs a program, and the record has all that the program has received."""
    execution, pending = recorded.execution, recorded.pending
    # In a fork, a program whose outcome was reused did not run, and none of its calls is recorded.
    if recorded.is_answered or recorded.redacted:
        return False
    if any(call.redacted or not (call.execution or call.pending) for call in inner):
        return False
    if pending is not None:
        return any(outer_key(call.key) == pending.key for call in pending.inner)
    return execution is not None and bool(execution.inner) and execution.status in _SETTLED_BY_PROGRAM


def _stop_reason(state: AgentState) -> str:
    signal = state.stop_signal
    return signal.reason.value if signal is not None else state.status.value


def _last_error(state: AgentState) -> str:
    """Return the last error of an execution as the end of a sentence; empty when it has none."""
    errors = state.errors
    return f"; {errors[-1].type}: {errors[-1].message}" if errors else ""


# --- the recorded clock, ids, inbox and tools -----------------------------------------------------------------------


class ReplayClock(Clock):
    """A clock that shows the recorded time.

    Attributes:
        at: the time of the record that the replay has reached.
    """

    def __init__(self, at: datetime) -> None:
        self.at = at

    def now(self) -> datetime:
        """Return the recorded time."""
        return self.at

    def monotonic(self) -> float:
        """Return the recorded time, in seconds since the epoch."""
        return self.at.timestamp()


class ReplayIds(IdSource):
    """Returns the recorded ids of a step in the order in which they were drawn, and counts up where none is recorded."""

    def __init__(self) -> None:
        self._recorded: dict[str, deque[str]] = {}
        self._counts: Counter[str] = Counter()

    def expect(self, step: Iterable[str], executions: Iterable[str]) -> None:
        """Set the ids of the next step."""
        self._recorded = {"step": deque(step), "tool_execution": deque(executions)}

    def new_id(self, kind: str) -> str:
        """Return the next recorded id of this kind, or a new one."""
        recorded = self._recorded.get(kind)
        if recorded:
            return recorded.popleft()
        self._counts[kind] += 1
        return f"replayed_{kind}_{self._counts[kind]}"


class ReplayInboxes(Inboxes):
    """Delivers the recorded messages in the steps that took them."""

    __slots__ = ("_execution_id", "_next", "_step", "_untaken")

    def __init__(self, execution_id: str) -> None:
        super().__init__()
        self._execution_id = execution_id
        self._step: RecordedStep | None = None
        self._next: RecordedStep | None = None
        self._untaken: list[Message] = []

    def move_to(self, step: RecordedStep, following: RecordedStep | None) -> None:
        """Go to a step.

        Args:
            step: the step.
            following: the next one; None after the last.
        """
        self._step, self._next = step, following
        self._untaken = list(step.messages)
        self._update_waiting()

    def take(self, execution_id: str) -> list[Message]:  # noqa: ARG002  # a replay has one execution
        """Return the messages that the recorded step took."""
        taken, self._untaken = self._untaken, []
        self._update_waiting()
        return taken

    def close_if_empty(self, execution_id: str) -> bool:  # noqa: ARG002  # a replay has one execution
        """Return whether the recorded step took no further message."""
        return not self._untaken

    def close(self, execution_id: str) -> list[Message]:
        """Return the messages that were taken when the execution ended."""
        late = self._step.late_messages if self._step is not None else []
        return [*self.take(execution_id), *late]

    def _update_waiting(self) -> None:
        """Show a waiting message where the recorded run continued because of one."""
        state = self._step.state if self._step is not None else None
        continued = state is not None and state.execution is not None and state.execution.continuation.requested
        ahead = self._next.messages if self._next is not None and continued else []
        waiting = [*self._untaken, *ahead]
        self.waiting.clear()
        if waiting:
            self.waiting[self._execution_id] = waiting


@frozen
class RecordedTool(ToolFromSpec):
    """A tool of a group that a replay does not start: it is offered as recorded, and never runs.

    Attributes:
        spec: the recorded definition.
    """

    spec: ToolSpec

    async def use(self, *_: Any, **arguments: Any) -> Any:
        """Raise: a replay runs no tools.

        Raises:
            ContractViolation: always.
        """
        raise ContractViolation(f"a replay runs no tools, and {self.name!r} was to run: {dict(arguments)!r:.100}")


def with_recorded_tools(tools: Tools, step: RecordedStep) -> Tools:
    """Return the tools of a loop together with those that its groups had discovered in the recorded step."""
    group = next((group for group in tools.groups if isinstance(group, CanDiscoverTools)), None)
    if group is None:
        return tools
    missing: Mapping[str, ToolSpec] = {
        spec.name: spec for recorded in step.requests for spec in recorded.request.tools if spec.name not in tools
    }
    return tools.with_discovered(
        [(group, [RecordedTool(evolve(spec, definition="", pinned="")) for spec in missing.values()])]
    )
