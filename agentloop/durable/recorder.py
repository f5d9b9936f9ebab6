"""The recorder: the log of one execution, written to a journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, evolve, field

from agentloop._shielding import is_task_cancelled
from agentloop.contracts.can_journal import CanJournal, Claim, is_equal_after_masking
from agentloop.contracts.can_keep_grants import CanKeepGrants, CanUseGrants
from agentloop.contracts.run_log import CallAnswer, CanAnswerCalls, ExecutionLog, JournalSettings, RequestRenderer
from agentloop.durable import bodies
from agentloop.durable.chain import verify_records
from agentloop.durable.conversation_texts import join_texts, texts_of
from agentloop.durable.deltas import MessageIndex, StepParts, request_delta, state_delta
from agentloop.durable.fold import FoldedExecution, add_downtime, downtime, fold_records
from agentloop.durable.fork_effects import ForkEffects
from agentloop.durable.grant_uses import GrantUses
from agentloop.durable.held_claims import loss_of, release_quietly
from agentloop.durable.record_writer import RecordWriter, create_head
from agentloop.durable.redaction import mask_text, refuse_masked_call
from agentloop.errors import ClaimLost, ForeignCancellation, JournalConflict, UnknownExecution
from agentloop.values.commands import ExecutionCommand
from agentloop.values.decisions import Decision, PendingCall
from agentloop.values.grants import GrantUse
from agentloop.values.inference import InferenceRequest
from agentloop.values.journal_errors import InferenceNotRecorded
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object, thaw
from agentloop.values.messages import Message
from agentloop.values.records import (
    CallIntent,
    ExecutionHead,
    InDoubt,
    RecordedCall,
    RecordedInference,
    RecordKind,
    check_execution_id,
    outer_key,
    with_inner_calls,
)
from agentloop.values.serialization import to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.stop import StopSignal
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ToolExecution


@contextmanager
def named_cancellation(journal: CanJournal) -> Iterator[None]:
    """Name the journal where it raises a cancellation that nobody asked for: the caller's task goes on."""
    try:
        yield
    except asyncio.CancelledError as cancelled:
        if is_task_cancelled():
            raise
        raise ForeignCancellation(f"the journal {type(journal).__name__}", cancelled) from cancelled


@define(eq=False)
class ExecutionRecorder(ExecutionLog, CanUseGrants):
    """Writes one execution to a journal, and returns what an earlier process recorded of it.

    A recorder lives as long as the run, and holds the claim on the execution until it is closed.

    Attributes:
        journal: where the records go.
        in_doubt: what happens to interrupted calls with an effect whose tool cannot tell whether they ran.
        clock: the source of the records' times.
        recorded: the execution as read from the journal; None for a new one.
        answers: answers calls in place of their tools: passed in by the execution whose call this one serves, or read from the
            record of a fork.
        origin: plain JSON data to record with the start of a new execution, in addition to its state.
        outer_claims: the claims of the executions whose calls this one serves: without them it must not continue, either.
    """

    journal: CanJournal
    in_doubt: InDoubt
    clock: Clock
    recorded: FoldedExecution | None = None
    answers: CanAnswerCalls | None = None
    origin: Mapping[str, Any] = field(factory=dict)
    outer_claims: tuple[Claim, ...] = ()
    _carrier: Mapping[str, str] = field(factory=dict)
    _claim: Claim | None = None
    _watch: asyncio.Task[None] | None = None
    _loss: ClaimLost | None = None
    _on_loss: Callable[[ClaimLost], None] | None = None
    _writer: RecordWriter | None = None
    _state: AgentState | None = None
    _request: InferenceRequest | None = None
    _rendered: dict[str, Any] | None = None
    _is_rendering_recorded: bool = False
    _downtime: float = 0.0
    _calls_looked_up: bool = False
    _step_number: int = 0
    _inference_index: int = 0
    _announced: dict[str, CallIntent] = field(factory=dict)
    _intents: dict[str, CallIntent] = field(factory=dict)
    _attachments: dict[str, dict[str, Any]] = field(factory=dict)
    # What is attached to the newest attempts of the calls that began in this process.
    _attempts: dict[str, JsonObject] = field(factory=dict)
    _conversation: MessageIndex = field(factory=MessageIndex)
    _parts: StepParts = field(factory=StepParts)
    _masked_calls: set[str] = field(factory=set)
    _decisions: list[dict[str, Any]] = field(factory=list)  # used, and not recorded yet

    @classmethod
    async def reopen(
        cls,
        journal: CanJournal,
        execution_id: str,
        in_doubt: InDoubt,
        clock: Clock,
        *,
        answers: CanAnswerCalls | None = None,
        outer_claims: tuple[Claim, ...] = (),
    ) -> ExecutionRecorder:
        """Claim a recorded execution and read it.

        Raises:
            UnknownExecution: no execution of this id is recorded.
            JournalConflict: another writer drives it.
            JournalCorrupt: its records are damaged.
            UnknownExecution: it is an unfinished fork that reuses effects of an execution which is not recorded any more.
        """
        recorder = await cls.open(journal, execution_id, in_doubt, clock, answers=answers, outer_claims=outer_claims)
        if not recorder.has_started:
            await recorder.aclose()
            raise UnknownExecution(f"no execution {execution_id!r} is recorded in {journal!r}")
        return recorder

    @classmethod
    async def open(
        cls,
        journal: CanJournal,
        execution_id: str,
        in_doubt: InDoubt,
        clock: Clock,
        *,
        answers: CanAnswerCalls | None = None,
        outer_claims: tuple[Claim, ...] = (),
    ) -> ExecutionRecorder:
        """Claim an execution, which may not exist yet, and read it if it does; see `reopen`."""
        recorder = cls(journal, in_doubt, clock, answers=answers, outer_claims=outer_claims)
        with named_cancellation(journal):
            recorder._hold(await journal.claim(execution_id))
            try:
                if await recorder._read(execution_id):
                    recorder._measure_downtime()
            except BaseException:
                await recorder.aclose()
                raise
        return recorder

    @property
    def state(self) -> AgentState:
        """The newest recorded state."""
        assert self._state is not None  # noqa: S101  # the execution has started
        return self._state

    # --- life cycle ---------------------------------------------------------------------------------------------

    @property
    def has_started(self) -> bool:
        """Whether the start of the execution is recorded."""
        return self._writer is not None

    @property
    def is_in_step(self) -> bool:
        """Whether inferences or calls of an incomplete step are recorded."""
        return self.recorded is not None and bool(self.recorded.inferences or self.recorded.calls)

    @property
    def inference_count(self) -> int | None:
        """The number of requests that were sent before the execution was reopened; None if it was not reopened."""
        return None if self.recorded is None else self.recorded.inference_count

    @property
    def other_inference_count(self) -> int:
        """How many of these were sent to models other than the driver's own."""
        return 0 if self.recorded is None else self.recorded.other_inference_count

    @property
    def earlier_context(self) -> Mapping[str, str]:
        """What was current when the start of the execution was recorded; empty for a new one."""
        context = {} if self.recorded is None else self.recorded.origin.get("context", {})
        return {str(name): str(text) for name, text in context.items()}

    def note_context(self, carrier: Mapping[str, str]) -> None:
        """Take what is current, to be recorded with the start of the execution."""
        self._carrier = carrier

    def unsettled_calls(self) -> Sequence[RecordedCall]:
        """Return the calls that started before an interruption and that no step has settled."""
        calls = {} if self.recorded is None else self.recorded.calls
        unsettled = [call for key, call in calls.items() if outer_key(key) not in calls]
        return [with_inner_calls(call, self.recorded_inner_calls(call.intent.key)) for call in unsettled]

    async def start(self, state: AgentState) -> AgentState:
        """Record the state with which the execution starts or resumes; it is durable when this returns.

        Returns:
            This state, or the newest recorded one if this state contains a step that was interrupted.

        Raises:
            JournalConflict: another writer drives the execution, its id is in use, or the state is not the newest one in the
                journal.
        """
        if self._claim is None:
            with named_cancellation(self.journal):
                self._hold(await self.journal.claim(state.execution_id))
                # The state may be one that a caller kept: then the journal has its records.
                if await self._read(state.execution_id):
                    state = self._newest(state)
        if self._writer is None:
            self._record_start(state)
        else:
            self._record_resumption(state)
        await self._open_writer.flush()
        return state

    async def record_step(self, state: AgentState) -> None:
        """Record the state after a step."""
        self._put_delta(RecordKind.STEP_COMPLETED, state)

    async def flush(self) -> None:
        """Wait until all records are durable."""
        if self._writer is not None:
            await self._writer.flush()

    async def end(self, state: AgentState) -> None:
        """Record the state with which the execution ends or is suspended; it is durable when this returns."""
        if self._writer is None:
            return  # it was cancelled before it started
        ended = state.status.is_terminal
        self._put_delta(RecordKind.EXECUTION_ENDED if ended else RecordKind.EXECUTION_SUSPENDED, state)
        await self._open_writer.flush()

    async def aclose(self) -> None:
        """Write what is queued and release the claim. Idempotent."""
        claim, self._claim = self._claim, None
        if claim is None:
            return
        try:
            if self._writer is not None:
                await self._writer.aclose()
        finally:  # also when the queue cannot be written
            if self._watch is not None:
                self._watch.cancel()
            await release_quietly(claim)
            if self._watch is not None:
                await asyncio.wait((self._watch,))

    # --- the claim ----------------------------------------------------------------------------------------------

    @property
    def claim_token(self) -> int | None:
        """The token of the claim under which the execution runs; None before its start."""
        return None if self._claim is None else self._claim.token

    @property
    def loss(self) -> ClaimLost | None:
        """The loss of the claim, or of a caller's, once it is told."""
        return self._loss

    def on_claim_lost(self, listener: Callable[[ClaimLost], None]) -> None:
        """Call a function in the event loop, at most once, when the claim on the execution is lost."""
        self._on_loss = listener
        if self._loss is not None:
            listener(self._loss)

    @property
    def _claims(self) -> tuple[Claim, ...]:
        return self.outer_claims if self._claim is None else (self._claim, *self.outer_claims)

    def _hold(self, claim: Claim) -> None:
        self._claim = claim
        self._watch = asyncio.create_task(self._await_loss(), name=f"agentloop claim {claim.execution_id}")

    async def _await_loss(self) -> None:
        if self._claim is not None and not self.outer_claims:
            self._lose(loss_of(self._claim, await self._claim.lost()))
            return
        waiting = {asyncio.ensure_future(claim.lost()): claim for claim in self._claims}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        first = next(iter(done))
        self._lose(loss_of(waiting[first], first.result()))

    def _lose(self, loss: ClaimLost) -> None:
        if self._loss is not None:
            return
        self._loss = loss
        # Where only a caller's claim is lost, how the calls end that have begun can still be recorded.
        if self._writer is not None and loss.execution_id == self._writer.claim.execution_id:
            self._writer.fail(loss)
        if self._on_loss is not None:
            self._on_loss(loss)

    def _check_claims(self) -> None:
        """Check that nothing has told so far that the execution may be driven by another process.

        Raises:
            ClaimLost: its claim is lost, or that of an execution whose call it serves.
        """
        # Not only what `lost` has told: a journal may notice a loss when it is asked.
        if self._loss is None:
            for claim in self._claims:
                if claim.is_lost:
                    self._lose(loss_of(claim))
                    break
        if self._loss is not None:
            raise self._loss

    # --- decisions ----------------------------------------------------------------------------------------------

    def record_decisions(self, decisions: Mapping[str, Decision], pending: Sequence[PendingCall]) -> None:
        """Record with the resumption that these decisions are used for these calls of the newest suspension.

        A decision is used once. `start` writes both in one group: after a crash, either both are recorded or neither is. An
        execution that does not start has used no decision.
        """
        # The digest of a call binds a decision to one of its suspensions; a second mark of that is not needed.
        digests = {call.key: call.digest for call in pending}
        self._decisions = [
            {"key": key, "digest": digests[key], "decision": to_plain(decision, Decision)}
            for key, decision in decisions.items()
        ]

    # --- messages -----------------------------------------------------------------------------------------------

    def waiting_messages(self) -> Sequence[Message]:
        """Return the messages that were sent before an interruption and that no step had taken."""
        return () if self.recorded is None else tuple(self.recorded.waiting_messages)

    def taken_messages(self) -> Sequence[Message]:
        """Return the messages that the interrupted step had taken."""
        return () if self.recorded is None else tuple(self.recorded.taken_messages)

    def record_sent(self, message: Message, command: ExecutionCommand | None = None) -> None:
        """Record a message that was sent to the execution."""
        origin: dict[str, str] = {}
        if command is not None:
            origin = {"command": command.id} | ({"principal": command.principal} if command.principal else {})
        self._open_writer.put(RecordKind.MESSAGES_SENT, {"messages": [to_plain(message)]} | origin)
        # The sender does not wait, and no later flush may follow for a long time.
        self._open_writer.flush_soon()

    def delivered_commands(self) -> Collection[str]:
        """Return the ids of the commands whose messages were recorded before the execution was reopened."""
        return () if self.recorded is None else tuple(self.recorded.commands)

    def record_taken(self, messages: Sequence[Message], step_number: int) -> None:
        """Record the messages that a step takes."""
        body = {"step": step_number, "messages": [to_plain(message) for message in messages]}
        self._open_writer.put(RecordKind.MESSAGES_TAKEN, body)

    # --- inferences and calls -----------------------------------------------------------------------------------

    @property
    def settings(self) -> JournalSettings:
        """How this execution and the executions that serve its calls are recorded."""
        return JournalSettings(journal=self.journal, in_doubt=self.in_doubt, answers=self.answers, claims=self._claims)

    def next_inference(
        self,
        request: InferenceRequest,  # noqa: ARG002  # of the contract
        render: RequestRenderer | None = None,  # noqa: ARG002  # of the contract
    ) -> RecordedInference | None:
        """Return the recorded result of the step's next inference; None when it is not recorded in full, or failed.

        A failure is returned where calls of the step started in spite of it, such as one of a judge whose verdict was not needed.

        Raises:
            InferenceNotRecorded: the request has to be sent, but calls of the step started that no batch has looked up.
        """
        inferences = self.recorded.inferences if self.recorded is not None else []
        recorded = inferences[self._inference_index] if self._inference_index < len(inferences) else None
        has_calls = self.recorded is not None and bool(self.recorded.calls) and not self._calls_looked_up
        goes_on = has_calls and any(each and each.response and not each.purpose for each in inferences)
        if recorded is None or (recorded.response is None and not goes_on):
            # The response will be a new one, so later recorded inferences do not belong to it, nor do recorded calls.
            inferences.clear()
            if has_calls:
                raise InferenceNotRecorded("calls of this step started for an earlier response that is not recorded")
            self._check_claims()
            return None
        self._inference_index += 1
        return recorded

    def record_inference(
        self, request: InferenceRequest, recorded: RecordedInference, render: RequestRenderer | None = None
    ) -> None:
        """Record the result of an inference; it is durable before the next call runs, or the execution ends."""
        kind = RecordKind.INFERENCE_RECORDED if recorded.error is None else RecordKind.INFERENCE_FAILED
        delta = request_delta(self._request, request, self._conversation)
        # How the model receives a request depends on everything but the conversation, so it is rendered again only when the
        # delta holds more than new messages, after a response that changed the mode, and once after a restart.
        if "request" in delta or not self._is_rendering_recorded:
            rendered, self._is_rendering_recorded = bodies.rendered_form(render, request), True
            if rendered != self._rendered:
                delta["offered"] = self._rendered = rendered
        body = bodies.inference_body(recorded, delta, step=self._step_number, index=self._inference_index)
        is_unmasked = self._open_writer.put(kind, body)
        self._parts.add_response(self._inference_index, recorded.response if is_unmasked else None)
        self._request = request
        if recorded.response is not None and recorded.response.mode_choice is not None:
            self._is_rendering_recorded = False
        self._inference_index += 1

    def recorded_call(self, key: str) -> RecordedCall | None:
        """Return what is recorded of a call of this step that started before an interruption."""
        self._calls_looked_up = True
        return self._earlier_call(key)

    def recorded_calls(self) -> Sequence[RecordedCall]:
        """Return what is recorded of the calls of this step that started before an interruption."""
        return () if self.recorded is None else tuple(self.recorded.calls.values())

    def recorded_inner_calls(self, key: str) -> Sequence[RecordedCall]:
        """Return what is recorded of the calls that the program of an interrupted call made."""
        return [call for call in self.recorded_calls() if outer_key(call.intent.key) == key]

    def masked(self, text: str) -> str:
        """Return a text as the journal stores it."""
        return mask_text(text, self.journal)

    async def start_call(self, intent: CallIntent, *, delegates: bool = False) -> RecordedCall | None:
        """Announce a call that is about to run, unless the policy of a fork answers it or a masked record forbids it."""
        # A call that started before an interruption had its chance of an answer then.
        earlier = self._earlier_call(intent.key)
        if earlier is None:
            answered = await self._answer(intent, delegates=delegates)
            if answered is not None:
                return answered
        elif earlier.intent.grant:
            intent = evolve(intent, grant=earlier.intent.grant)
        self._announced[intent.key] = intent
        # The call may wait for long before it begins, and what led to it must not be lost meanwhile. If it begins at once,
        # its intent is written together with that.
        self._open_writer.flush_soon()
        return None

    async def begin_call(self, key: str) -> None:
        """Record the intent of an announced call; the tool may run when this returns."""
        earlier = self._attempt_attachments(key)
        # An intent is of a new call; without one, the call continues what its interrupted attempt has begun.
        is_new = self._put_intent(key)
        if key in self._attempts and earlier:
            self._put_attachments(key, EMPTY_OBJECT)
        else:
            self._attempts[key] = EMPTY_OBJECT if is_new else earlier
        self._check_claims()
        await self._open_writer.flush()
        # Again: the last moment before the effect.
        self._check_claims()

    async def record_outcome(self, outcome: ToolExecution | PendingCall, stop: StopSignal | None = None) -> None:
        """Record how a call ended, or that its tool suspended it."""
        self._put_intent(outcome.key)
        attachments = self._attachments.pop(outcome.key, None)
        attached = {} if attachments is None else {"beside": attachments}
        if isinstance(outcome, PendingCall):
            self._open_writer.put(RecordKind.CALL_SUSPENDED, {"pending": to_plain(outcome)} | attached)
        else:
            body = bodies.outcome_body(outcome, stop, self._intended(outcome.key))
            self._put_outcome(outcome, body | attached)
        await self._open_writer.flush()

    def attach(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Store extra JSON with the outcome of a running call."""
        self._attachments.setdefault(key, {})[name] = dict(data)

    async def record_attachment(self, key: str, name: str, data: Mapping[str, Any]) -> None:
        """Store extra JSON with the attempt of a call that runs."""
        self._put_attachments(key, freeze_object({**self._attempt_attachments(key), name: data}))
        await self._open_writer.flush()

    def attachment(self, key: str, name: str) -> Mapping[str, Any] | None:
        """Return an attachment of a reused outcome, or of the attempt that was interrupted or runs."""
        attached = self._attempt_attachments(key).get(name)
        return attached if isinstance(attached, Mapping) else None

    # --- grants -------------------------------------------------------------------------------------------------

    def use_grant(self, use: GrantUse) -> None:
        """Let the intent of an announced call name the grant, and count the use when it is stored."""
        intent, writer = self._announced.get(use.key), self._open_writer
        if intent is None or not isinstance(self.journal, CanKeepGrants):
            return  # it has begun
        if not isinstance(writer.journal, GrantUses):
            writer.journal = GrantUses(self.journal)
        self._announced[use.key] = evolve(intent, grant=use.grant_id)
        writer.journal.expect(use)

    def has_used_grant(self, key: str) -> bool:
        """Return whether the intent of a call is stored, and its use is counted."""
        journal = self._open_writer.journal
        return isinstance(journal, GrantUses) and journal.has_counted(key)

    # --- details ------------------------------------------------------------------------------------------------

    @property
    def _open_writer(self) -> RecordWriter:
        assert self._writer is not None  # noqa: S101  # nothing is recorded before the start
        return self._writer

    def _open_chain(self, head: ExecutionHead) -> RecordWriter:
        assert self._claim is not None  # noqa: S101  # nothing is written or read before the claim
        return RecordWriter(self.journal, head, self.clock, self._claim)

    async def _read(self, execution_id: str) -> bool:
        """Read an execution; return whether it is recorded."""
        head = await self.journal.head(execution_id)
        if head is None:
            return False
        records = verify_records(await self.journal.read(execution_id), execution_id)
        self.recorded = fold_records(records, execution_id)
        self._writer = self._open_chain(head)
        self._state, self._request = self.recorded.state, self.recorded.request
        self._parts = self.recorded.parts
        self._rendered = self.recorded.rendering
        # The execution whose call this one serves has precedence.
        if self.answers is None and "fork" in self.recorded.origin and not head.status.is_terminal:
            self.answers = await ForkEffects.load(self.journal, execution_id, self.recorded.origin["fork"])
        return True

    def _newest(self, state: AgentState) -> AgentState:
        """Return the state to resume of an execution that was read and is resumed from a state of the caller's.

        The caller's state must be the newest one in the journal, or continue it by the step that was interrupted.
        """
        if is_equal_after_masking(state, self._state, self.journal):
            return state
        if self.state.status is not ExecutionStatus.IN_PROGRESS or not self._continues_newest(state):
            raise JournalConflict(
                f"the journal holds an execution {state.execution_id!r} already, and this state is not its newest; "
                "resume it with `recover`, or choose another id"
            )
        return self.state

    def _continues_newest(self, state: AgentState) -> bool:
        """Return whether a state is the newest one with the step that was interrupted, and nothing else."""
        assert self.recorded is not None  # noqa: S101  # callers have read it
        newest = self.state
        complete = newest.steps[:-1] if newest.open_turn is not None else newest.steps
        count = len(complete)
        if state.agent_id != newest.agent_id or not count <= state.step_count <= count + 1:
            return False
        # A message that was added to the state is not in the journal and would be lost.
        if len(state.messages) > len(newest.messages) + len(self.recorded.taken_messages) + 1:
            return False
        if not all(
            is_equal_after_masking(step, kept, self.journal)
            for step, kept in zip(state.steps[:count], complete, strict=True)
        ):
            return False
        # If the journal did not know a call that ran, its newest records would be missing, and the call would run again.
        known = {
            *self.recorded.calls,
            *(execution.key for step in newest.steps[count:] for execution in step.executions),
        }
        return all(
            execution.key in known
            for step in state.steps[count:]
            for execution in step.executions
            if execution.succeeded or execution.may_have_run
        )

    def _measure_downtime(self) -> None:
        """Count the time since the last record as waiting time, if the execution was interrupted."""
        head = self._open_writer.head
        if head.status is ExecutionStatus.IN_PROGRESS:
            self._downtime = downtime(head.updated_at, self.clock.now())
            self._state = add_downtime(self.state, self._downtime)

    def _record_start(self, state: AgentState) -> None:
        if state.parent_agent_id is None:
            check_execution_id(state.execution_id)  # a state can be given an id without the loop
        head = create_head(state, self.clock.now(), self.journal)
        self._writer = self._open_chain(head)
        origin = {**self.origin, "fork": self.answers.origin} if isinstance(self.answers, ForkEffects) else self.origin
        context = {"context": dict(self._carrier)} if self._carrier else {}
        self._put_start(state, {**origin, **context})
        self._advance(state)

    def _put_start(self, state: AgentState, beside: Mapping[str, Any]) -> None:
        """Put the first record; of a conversation that has only grown since the last one, what was added is formatted."""
        texts, messages = texts_of(self.journal), state.messages
        kept = texts.beginning(state.agent_id, messages)
        body = {"state": state_delta(None, state, skip=len(kept.messages)), **beside}
        if not messages or self._open_writer.redact(body) is not body:
            body = {"state": state_delta(None, state), **beside} if kept.messages else body
            self._open_writer.put(RecordKind.EXECUTION_STARTED, body)
            return
        text, kept = join_texts(body, messages, kept)
        self._open_writer.put_redacted(RecordKind.EXECUTION_STARTED, text)
        texts.keep(state.agent_id, kept)

    def _record_resumption(self, state: AgentState) -> None:
        decisions, self._decisions = self._decisions, []
        for body in decisions:
            self._open_writer.put(RecordKind.DECISION_USED, body)
        if self._open_writer.head.status is ExecutionStatus.SUSPENDED:
            self._put_delta(RecordKind.EXECUTION_RESUMED, state)
            return
        self._open_writer.put(RecordKind.EXECUTION_RECOVERED, {"downtime": self._downtime})
        # Not `_advance`: what is recorded of the interrupted step is reused by the run that starts here.
        self._state, self._step_number = state, _current_step(state)
        self._conversation.update(state.messages)

    def _put_delta(self, kind: RecordKind, state: AgentState) -> None:
        body = {"step": state.step_count, "delta": state_delta(self._state, state, self._parts)}
        self._open_writer.put(kind, body, status=state.status, step_count=state.step_count)
        self._advance(state)

    def _advance(self, state: AgentState) -> None:
        """Make a state the newest recorded one, and forget what was recorded of the step before it."""
        if self.recorded is not None:
            self.recorded.settle(state)
        self._state, self._inference_index, self._step_number = state, 0, _current_step(state)
        self._announced, self._intents, self._attempts = {}, {}, {}
        self._parts.clear()
        self._masked_calls.clear()
        self._conversation.update(state.messages)

    def _earlier_call(self, key: str) -> RecordedCall | None:
        return self.recorded.calls.get(key) if self.recorded is not None else None

    async def _answer(self, intent: CallIntent, *, delegates: bool) -> RecordedCall | None:
        """Return the result of a call that must not run, and record it; None when its tool has to run."""
        if self.recorded is not None and self.recorded.redacted and (refused := refuse_masked_call(intent)) is not None:
            return refused
        answered = None if self.answers is None else self.answers.answer(intent, delegates=delegates)
        answer = answered if answered is None or isinstance(answered, CallAnswer) else await answered
        if answer is None:
            return None
        outcome = bodies.outcome_body(answer.execution, None, None)
        attached = {"beside": dict(answer.attachments)} if answer.attachments else {}
        body = {**outcome, "answered": answer.how, "source": answer.source, **attached}
        self._put_outcome(answer.execution, body)
        await self._open_writer.flush()
        return RecordedCall(intent=intent, execution=answer.execution)

    def _put_intent(self, key: str) -> bool:
        """Put the intent of a call, once; return whether it was put now."""
        intent = self._announced.pop(key, None)
        if intent is None:
            return False
        self._intents[key] = intent
        if not self._open_writer.put(RecordKind.CALL_INTENT, bodies.intent_body(intent)):
            self._masked_calls.add(key)
        return True

    def _put_outcome(self, execution: ToolExecution, body: dict[str, Any]) -> None:
        """Put an outcome; the record of its step refers to it if it can be read as it was."""
        recorded = self._earlier_call(execution.key)
        is_readable = execution.key not in self._masked_calls and not (recorded is not None and recorded.redacted)
        if self._open_writer.put(RecordKind.CALL_OUTCOME, body) and is_readable:
            self._parts.executions[execution.key] = execution

    def _attempt_attachments(self, key: str) -> JsonObject:
        """Return what is attached to the newest attempt of a call, or to its recorded outcome."""
        if key in self._attempts:
            return self._attempts[key]
        recorded = self._earlier_call(key)
        return EMPTY_OBJECT if recorded is None else recorded.attachments

    def _put_attachments(self, key: str, attachments: JsonObject) -> None:
        """Put all attachments of the newest attempt of a call."""
        self._attempts[key] = attachments
        self._open_writer.put(RecordKind.CALL_ATTACHED, {"key": key, "beside": thaw(attachments)})

    def _intended(self, key: str) -> CallIntent | None:
        """Return the recorded intent of a call; None without one."""
        intent = self._intents.pop(key, None)
        if intent is None and (recorded := self._earlier_call(key)) is not None:
            intent = recorded.intent
        return intent


def _current_step(state: AgentState) -> int:
    """Return the number of the step that is in progress, or comes next."""
    return state.step_count + (0 if state.open_turn is not None else 1)
