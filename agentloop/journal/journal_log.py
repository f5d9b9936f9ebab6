"""The log of an execution that is kept in a journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from agentloop.contracts.can_answer_calls import CanAnswerCalls
from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.contracts.execution_log import Offer
from agentloop.errors import AskedAnew, JournalConflict, UnknownExecution
from agentloop.journal import bodies
from agentloop.journal.beginning import new_head
from agentloop.journal.chain import verified
from agentloop.journal.conversation_places import ConversationPlaces
from agentloop.journal.downtime import downtime, with_downtime
from agentloop.journal.fold import RecordedExecution, folded
from agentloop.journal.fork_effects import ForkEffects
from agentloop.journal.kept_log import KeptLog
from agentloop.journal.masked import refusal, same_but_for_masks
from agentloop.journal.offered import offered_form
from agentloop.journal.record_writer import RecordWriter
from agentloop.journal.request_delta import request_delta
from agentloop.journal.state_delta import state_delta
from agentloop.values.agent_state import AgentState
from agentloop.values.clock import Clock
from agentloop.values.decision import Decision
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.in_doubt import InDoubt
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.journal_record import RecordKind
from agentloop.values.pending_call import PendingCall
from agentloop.values.recorded import CallIntent, RecordedCall, RecordedInference
from agentloop.values.serialisation import to_plain
from agentloop.values.stop import StopSignal
from agentloop.values.tool_execution import ToolExecution


@define(eq=False)
class JournalLog(KeptLog):
    """The log of one execution, kept in a journal. It lives as long as the run and has claimed the execution.

    Attributes:
        journal: where it is kept.
        in_doubt: what becomes of interrupted calls with an effect that cannot be asked about.
        clock: tells when records are made.
        recorded: the execution as it was found; None for one that is new.
        answers: what answers calls in place of their tools; given by the execution whose call this one serves, and found in
            the record of a fork.
        origin: what is told of a new execution besides its state, as plain JSON data.
    """

    journal: CanJournal
    in_doubt: InDoubt
    clock: Clock
    recorded: RecordedExecution | None = None
    answers: CanAnswerCalls | None = None
    origin: Mapping[str, Any] = field(factory=dict)
    _claim: Claim | None = None
    _writer: RecordWriter | None = None
    _state: AgentState | None = None
    _request: InferenceRequest | None = None
    _offered: dict[str, Any] | None = None
    _offer_told: bool = False
    _downtime: float = 0.0
    _calls_found: bool = False
    _step: int = 0
    _inferences: int = 0
    _intents: dict[str, CallIntent] = field(factory=dict)
    _beside: dict[str, dict[str, Any]] = field(factory=dict)
    _places: ConversationPlaces = field(factory=ConversationPlaces)

    @classmethod
    async def reopened(
        cls,
        journal: CanJournal,
        execution_id: str,
        in_doubt: InDoubt,
        clock: Clock,
        answers: CanAnswerCalls | None = None,
    ) -> JournalLog:
        """Claim an execution that is recorded, and read it.

        Raises:
            UnknownExecution: when there is none of this id.
            JournalConflict: when somebody else drives it.
            JournalCorrupt: when its records are not as they were written.
        """
        log = cls(journal, in_doubt, clock, answers=answers)
        log._claim = await journal.claim(execution_id)
        try:
            await log._read(execution_id)
            log._note_downtime()
        except BaseException:
            await log.aclose()
            raise
        return log

    @property
    def state(self) -> AgentState:
        """The newest state that is recorded."""
        assert self._state is not None  # noqa: S101  # the execution has begun
        return self._state

    # --- the run ------------------------------------------------------------------------------------------------

    async def begin(self, state: AgentState) -> None:
        """Take the state with which the execution begins or goes on; it lasts when this returns.

        Raises:
            JournalConflict: when somebody else drives the execution, when its id is taken, or when the state is not the one
                that the journal ends with.
        """
        if self._claim is None:
            self._claim = await self.journal.claim(state.execution_id)
            if await self.journal.head(state.execution_id) is not None:
                await self._join(state)
        if self._writer is None:
            self._start(state)
        else:
            self._go_on(state)
        await self._written.flush()

    async def step_completed(self, state: AgentState) -> None:
        """Write down what a step has made of the state."""
        self._put_delta(RecordKind.STEP_COMPLETED, state)

    async def flush(self) -> None:
        """Wait until everything that was written down lasts."""
        if self._writer is not None:
            await self._writer.flush()

    async def end(self, state: AgentState) -> None:
        """Write down the state with which the execution ends or is suspended; it lasts when this returns."""
        if self._writer is None:
            return  # it was cancelled before it had begun
        ended = state.status.is_terminal
        self._put_delta(RecordKind.EXECUTION_ENDED if ended else RecordKind.EXECUTION_SUSPENDED, state)
        await self._written.flush()

    async def aclose(self) -> None:
        """Let others go on with the execution."""
        claim, self._claim = self._claim, None
        if claim is None:
            return
        try:
            if self._writer is not None:
                await self._writer.aclose()
        finally:
            await claim.release()

    def note_decisions(self, decisions: Mapping[str, Decision], pending: Sequence[PendingCall]) -> None:
        """Write down that these decisions are used for these calls, each for the last time."""
        digests = {call.key: call.digest for call in pending}
        for key, decision in decisions.items():
            body = {"key": key, "digest": digests[key], "decision": to_plain(decision, Decision)}
            self._written.put(RecordKind.DECISION_USED, body)

    # --- inferences and calls -----------------------------------------------------------------------------------

    def next_inference(self, request: InferenceRequest, offer: Offer | None = None) -> RecordedInference | None:  # noqa: ARG002  # of the contract
        """Return what came of the next inference of the step; None when it failed, or was not made or written down whole.

        Raises:
            AskedAnew: when it is to be made, and calls of the step have begun that nobody has looked for.
        """
        found = self.recorded.inferences if self.recorded is not None else []
        recorded = found[self._inferences] if self._inferences < len(found) else None
        if recorded is None or recorded.response is None:
            found.clear()
            if self.recorded is not None and self.recorded.calls and not self._calls_found:
                raise AskedAnew("calls of this step have begun, for an answer that is not at hand")
            return None
        self._inferences += 1
        return recorded

    def note_inference(
        self, request: InferenceRequest, recorded: RecordedInference, offer: Offer | None = None
    ) -> None:
        """Write down what came of an inference; it lasts before the next call runs, or the execution ends."""
        kind = RecordKind.INFERENCE_RECORDED if recorded.error is None else RecordKind.INFERENCE_FAILED
        delta = request_delta(self._request, request, self._places.of)
        if "request" in delta or not self._offer_told:
            offered, self._offer_told = offered_form(offer, request), True
            if offered != self._offered:
                delta["offered"] = self._offered = offered
        self._written.put(kind, bodies.inference_body(recorded, delta, step=self._step, index=self._inferences))
        self._request = request
        self._inferences += 1

    def recorded_call(self, key: str) -> RecordedCall | None:
        """Return what is known of a call of the step that has begun before."""
        self._calls_found = True
        return self._known_call(key)

    async def next_call(self, intent: CallIntent, *, delegates: bool = False) -> RecordedCall | None:
        """Let every call run, but those of a fork that its policy about effects speaks of; what comes of these is written down."""
        if self.recorded is not None and self.recorded.redacted and (refused := refusal(intent)) is not None:
            return refused
        answer = None if self.answers is None else self.answers.answer(intent, delegates=delegates)
        if answer is None:
            return None
        outcome = bodies.outcome_body(answer.execution, None, None)
        self._written.put(RecordKind.CALL_OUTCOME, {**outcome, "answered": answer.how, "source": answer.source})
        await self._written.flush()
        return RecordedCall(intent=intent, execution=answer.execution)

    async def note_intent(self, intent: CallIntent) -> None:
        """Write down that a call is about to run."""
        self._intents[intent.key] = intent
        self._written.put(RecordKind.CALL_INTENT, bodies.intent_body(intent))
        await self._written.flush()

    async def note_outcome(self, execution: ToolExecution, stop: StopSignal | None = None) -> None:
        """Write down what came of a call."""
        intent = self._intents.pop(execution.key, None)
        if intent is None and (known := self._known_call(execution.key)) is not None:
            intent = known.intent
        intended = None if intent is None else intent.call
        body = bodies.outcome_body(execution, stop, intended)
        self._written.put(RecordKind.CALL_OUTCOME, body | self._kept_beside(execution.key))
        await self._written.flush()

    async def note_suspended(self, pending: PendingCall) -> None:
        """Write down that the tool of a call has suspended it."""
        self._written.put(RecordKind.CALL_SUSPENDED, {"pending": to_plain(pending)} | self._kept_beside(pending.key))
        await self._written.flush()

    # --- what it needs ------------------------------------------------------------------------------------------

    async def _read(self, execution_id: str) -> None:
        head = await self.journal.head(execution_id)
        if head is None:
            raise UnknownExecution(f"no execution {execution_id!r} is recorded in {self.journal!r}")
        records = verified(await self.journal.read(execution_id), execution_id)
        self.recorded = folded(records, execution_id)
        self._writer = RecordWriter(self.journal, head, self.clock)
        self._state, self._request = self.recorded.state, self.recorded.request
        self._offered = self.recorded.offered
        if self.answers is None and "fork" in self.recorded.origin:
            self.answers = await ForkEffects.loaded(self.journal, execution_id, self.recorded.origin["fork"])

    def _note_downtime(self) -> None:
        """Take the time since the last record as waited, if nobody has driven the execution meanwhile."""
        head = self._written.head
        if head.status is ExecutionStatus.IN_PROGRESS:
            self._downtime = downtime(head.updated_at, self.clock.now())
            self._state = with_downtime(self.state, self._downtime)

    async def _join(self, state: AgentState) -> None:
        """Go on with an execution whose state somebody kept, if it is the one that the journal ends with."""
        await self._read(state.execution_id)
        known = self._state
        if not same_but_for_masks(state, known, self.journal):
            raise JournalConflict(
                f"the journal holds an execution {state.execution_id!r} already, and this state is not its newest; go on "
                "with it by `recover`, or choose another id"
            )

    def _start(self, state: AgentState) -> None:
        head = new_head(state, self.clock.now(), self.journal)
        self._writer = RecordWriter(self.journal, head, self.clock)
        origin = {**self.origin, "fork": self.answers.told} if isinstance(self.answers, ForkEffects) else self.origin
        self._writer.put(RecordKind.EXECUTION_STARTED, {"state": state_delta(None, state), **origin})
        self._moved(state)

    def _go_on(self, state: AgentState) -> None:
        waited = self._written.head.status is ExecutionStatus.SUSPENDED
        if waited:
            self._put_delta(RecordKind.EXECUTION_RESUMED, state)
            return
        self._written.put(RecordKind.EXECUTION_RECOVERED, {"downtime": self._downtime})
        self._state, self._step = state, _step_of(state)
        self._places.move(state.messages)

    def _put_delta(self, kind: RecordKind, state: AgentState) -> None:
        body = {"step": state.step_count, "delta": state_delta(self._state, state)}
        self._written.put(kind, body, status=state.status, step_count=state.step_count)
        self._moved(state)

    def _moved(self, state: AgentState) -> None:
        """Take a state as the recorded one: what was found of the step before it is of no use any more."""
        if self.recorded is not None:
            self.recorded.settle(state)
        self._state, self._inferences, self._step = state, 0, _step_of(state)
        self._intents = {}
        self._places.move(state.messages)


def _step_of(state: AgentState) -> int:
    return state.step_count + (0 if state.open_turn is not None else 1)
