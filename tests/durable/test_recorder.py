"""The recorder of an execution: what it has written when it ends, what it reads again, and the claims it depends on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, ToolCall, tool
from agentloop.contracts.can_journal import Claim
from agentloop.contracts.run_log import CallAnswer, CanAnswerCalls
from agentloop.durable import MemoryJournal
from agentloop.durable.fold import fold_records
from agentloop.durable.held_claims import HeldClaim
from agentloop.durable.recorder import ExecutionRecorder
from agentloop.errors import ClaimLost, JournalConflict
from agentloop.interception import RequireApproval
from agentloop.testing import ManualClock, run_in_virtual_time
from agentloop.values import Effect, InferenceRequest, InferenceResponse, Message, RecordKind, ToolStatus, approve
from agentloop.values.inference import ModeChoice
from agentloop.values.json import parse_json
from agentloop.values.records import CallIntent, ExecutionHead, InDoubt, JournalRecord, RecordedInference
from agentloop.values.serialization import to_plain
from agentloop.values.steps import ExecutionStatus
from tests.durable.recovery_bench import Model, truncate
from tests.limits import turns_of_the_event_loop

CLOCK = ManualClock()


def intent_of(key: str) -> CallIntent:
    """Return the intent of a payment."""
    call = ToolCall("1", "pay", "{}")
    return CallIntent(key=key, id=f"id of {key}", call=call, effect=Effect.EFFECT, at=CLOCK.now())


def started_state() -> AgentState:
    """Return the state of an execution that has just started."""
    return AgentState.start("go").with_execution_started("run", CLOCK.now())


async def open_recorder(journal: MemoryJournal, clock: ManualClock = CLOCK, **options: object) -> ExecutionRecorder:
    """Claim and read an execution with the id `run`."""
    return await ExecutionRecorder.open(journal, "run", InDoubt.TELL, clock, **options)  # type: ignore[arg-type]  # of `open`


async def kinds_in(journal: MemoryJournal) -> list[RecordKind]:
    """Return the kinds of the records of the execution."""
    return [record.kind for record in await journal.read("run")]


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_what_is_queued_is_written_when_the_recorder_is_closed() -> None:
    """Nothing is lost that nobody has waited for, and no task runs on."""
    journal = MemoryJournal()
    recorder = await open_recorder(journal)
    await recorder.start(started_state())
    recorder.record_taken([Message.user("more")], 1)
    await recorder.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert await kinds_in(journal) == [RecordKind.EXECUTION_STARTED, RecordKind.MESSAGES_TAKEN]
    await recorder.aclose()
    await (await journal.claim("run")).release()


def test_records_that_nothing_waits_for_are_written_together() -> None:
    """What is recorded within a tenth of a second is one append, unless somebody waits for it."""

    class CountingJournal(MemoryJournal):
        append_count = 0

        async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
            self.append_count += 1
            await super().append(head, records, claim)

    async def record() -> list[int]:
        journal = CountingJournal()
        recorder = await open_recorder(journal)
        await recorder.start(started_state())
        await asyncio.sleep(1)
        counts = [journal.append_count]
        for _ in range(3):
            recorder.record_taken([Message.user("more")], 1)
            await asyncio.sleep(0.03)
            counts.append(journal.append_count)
        await asyncio.sleep(0.02)
        counts.append(journal.append_count)
        await recorder.aclose()
        return counts

    assert run_in_virtual_time(record()) == [1, 1, 1, 1, 2]


# --- reading again ----------------------------------------------------------------------------------------------------


async def test_the_time_without_a_process_counts_as_waiting_time() -> None:
    """The times of several interruptions add up; those of a suspension are none."""
    journal, clock = MemoryJournal(), ManualClock()
    recorder = await open_recorder(journal, clock)
    state = await recorder.start(started_state())
    for seconds, sum_of_seconds in ((60.0, 60.0), (30.0, 90.0), (4.75, 94.75), (0.25, 95.0), (0.0, 95.0)):
        await recorder.aclose()
        clock.advance(seconds)
        recorder = await open_recorder(journal, clock)
        assert recorder.state.execution is not None
        assert recorder.state.execution.waited_seconds == sum_of_seconds
        state = await recorder.start(recorder.state)
    await recorder.aclose()
    assert state.execution is not None
    assert state.execution.waited_seconds == 95.0


async def test_the_calls_of_an_interrupted_program_are_found_by_its_call() -> None:
    """An execution that was not read has none."""
    journal = MemoryJournal()
    recorder = await open_recorder(journal)
    await recorder.start(started_state())
    assert recorder.recorded_inner_calls("run/1/0") == []
    keys = ["run/1/0", "run/1/0/program/1", "run/1/1"]
    for key in keys:
        assert await recorder.start_call(intent_of(key)) is None
        await recorder.begin_call(key)
    await recorder.aclose()
    recorder = await open_recorder(journal)
    assert [call.intent.key for call in recorder.recorded_inner_calls("run/1/0")] == keys[1:2]
    assert recorder.recorded_inner_calls("run/1/1") == []
    assert [call.intent.key for call in recorder.unsettled_calls()] == [keys[0], keys[2]]
    await recorder.aclose()


async def test_a_state_with_the_step_that_a_decision_continued_leads_to_the_newest_one() -> None:
    """The journal holds the step as it was suspended, and the outcome of its call; a caller may hold the settled step."""

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    journal = MemoryJournal()
    loop = AgentLoop.for_model(Model([("pay", {})], "done"), tools=[pay], interceptors=[RequireApproval()])
    loop = loop.replace(journal=journal)
    state = await loop.execute("go", execution_id="run")
    await loop.resume(state, {state.pending[0].key: approve()})
    settled, kinds = await journal.state("run", 1), await kinds_in(journal)
    interrupted = await truncate(journal, "run", kinds.index(RecordKind.CALL_OUTCOME) + 1)
    recorder = ExecutionRecorder(interrupted, InDoubt.TELL, CLOCK)
    resumed = await recorder.start(settled)
    assert settled.open_turn is None
    assert resumed.open_turn is not None
    assert resumed.status is ExecutionStatus.IN_PROGRESS
    await recorder.aclose()


async def test_a_state_of_another_agent_does_not_resume_an_interrupted_execution() -> None:
    """The id of the execution is taken, and what is recorded under it is not what the caller has."""
    journal = MemoryJournal()
    recorder = await open_recorder(journal)
    await recorder.start(started_state())
    await recorder.aclose()
    recorder = ExecutionRecorder(journal, InDoubt.TELL, CLOCK)
    with pytest.raises(JournalConflict, match="this state is not its newest"):
        await recorder.start(evolve(started_state(), agent_id="another"))
    await recorder.aclose()


async def test_a_call_that_begins_anew_has_no_attachments_of_its_interrupted_attempt() -> None:
    """Until it begins, what was attached to that attempt can be read."""
    journal, key = MemoryJournal(), "run/1/0"
    recorder = await open_recorder(journal)
    await recorder.start(started_state())
    await recorder.start_call(intent_of(key))
    await recorder.begin_call(key)
    await recorder.record_attachment(key, "task", {"id": 1})
    await recorder.aclose()
    recorder = await open_recorder(journal)
    await recorder.start(recorder.state)
    await recorder.start_call(intent_of(key))
    assert recorder.attachment(key, "task") == {"id": 1}
    await recorder.begin_call(key)
    assert recorder.attachment(key, "task") is None
    await recorder.aclose()


async def test_a_new_call_runs_after_a_call_whose_record_was_masked() -> None:
    """Only a call with a mask in its own arguments is refused."""
    journal, key = MemoryJournal(secrets=["sk-very-secret"]), "run/1/0"
    recorder = await open_recorder(journal)
    await recorder.start(started_state())
    await recorder.start_call(evolve(intent_of(key), call=ToolCall("1", "pay", '{"by": "sk-very-secret"}')))
    await recorder.begin_call(key)
    await recorder.aclose()
    recorder = await open_recorder(journal)
    masked = recorder.recorded_calls()[0].intent
    assert "sk-very-secret" not in masked.call.arguments_json
    await recorder.start(recorder.state)
    assert await recorder.start_call(intent_of("run/1/1")) is None
    refused = await recorder.start_call(evolve(masked, key="run/1/2"))
    assert refused is not None
    assert refused.execution is not None
    assert refused.execution.status is ToolStatus.FAILED
    await recorder.aclose()


# --- renderings -------------------------------------------------------------------------------------------------------


async def test_a_request_is_rendered_when_the_model_may_receive_it_in_another_form() -> None:
    """Not for more messages: for other settings, after a change of the mode, and once in each process; it is stored if it differs."""
    journal, mode, rendered = MemoryJournal(), ["native"], list[InferenceRequest]()

    def render(request: InferenceRequest) -> InferenceRequest:
        rendered.append(request)
        return request.with_system_prompt(f"{request.system_prompt} in mode {mode[0]}")

    async def offered_by(
        recorder: ExecutionRecorder, request: InferenceRequest, choice: ModeChoice | None
    ) -> str | None:
        """Record an inference; return the form of its request as far as it was stored with it."""
        recorder.record_inference(
            request, RecordedInference(response=InferenceResponse((), mode_choice=choice)), render
        )
        await recorder.flush()
        offered = parse_json((await journal.read("run"))[-1].body)["request"].get("offered")
        return None if offered is None else str(offered["system_prompt"])

    recorder = await open_recorder(journal)
    await recorder.start(started_state())
    request = InferenceRequest([Message.user("go")], "A")
    for step, (settings, choice, count, stored) in enumerate(
        [
            (request, None, 1, "A in mode native"),
            (request, None, 1, None),
            (request.with_messages([*request.messages, Message.user("more")]), None, 1, None),
            (request.with_system_prompt("B"), None, 2, "B in mode native"),
            (request.with_system_prompt("B"), ModeChoice("m", "validated", "no calls"), 2, None),
            (request.with_system_prompt("B"), None, 3, "B in mode validated"),
            (request.with_system_prompt("B"), None, 3, None),
        ]
    ):
        assert (step, await offered_by(recorder, settings, choice), len(rendered)) == (step, stored, count)
        mode[0] = mode[0] if choice is None else choice.mode
    for more in ([], [Message.user("again")]):
        await recorder.aclose()
        recorder = await open_recorder(journal)
        await recorder.start(recorder.state)
        for _ in range(2):
            request = InferenceRequest([Message.user("go"), *more], "B")
            assert await offered_by(recorder, request, None) is None
    assert len(rendered) == 5
    await recorder.aclose()
    assert fold_records(await journal.read("run"), "run").rendering == to_plain(render(rendered[-1]))


# --- answered calls ---------------------------------------------------------------------------------------------------


class Forbid(CanAnswerCalls):
    """Blocks every call."""

    def answer(self, intent: CallIntent, *, delegates: bool) -> CallAnswer:
        return CallAnswer(intent.to_execution(ToolStatus.BLOCKED), "forbidden")


async def test_an_answered_call_is_durable_before_its_outcome_is_used() -> None:
    """Its outcome is stored when `start_call` returns it."""
    journal = MemoryJournal()
    recorder = await open_recorder(journal, answers=Forbid())
    await recorder.start(started_state())
    answered = await recorder.start_call(intent_of("run/1/0"))
    assert answered is not None
    assert answered.execution is not None
    assert await kinds_in(journal) == [RecordKind.EXECUTION_STARTED, RecordKind.CALL_OUTCOME]
    await recorder.aclose()


# --- the claims of callers --------------------------------------------------------------------------------------------


async def test_the_loss_of_a_callers_claim_is_told_and_does_not_keep_outcomes_from_being_recorded() -> None:
    """The execution must not continue, but how a call ended that has begun is still recorded."""
    journal, outer = MemoryJournal(), await MemoryJournal().claim("caller")
    assert isinstance(outer, HeldClaim)
    recorder = await open_recorder(journal, outer_claims=(outer,))
    losses: list[ClaimLost] = []
    recorder.on_claim_lost(losses.append)
    await recorder.start(started_state())
    intent = intent_of("run/1/0")
    await recorder.start_call(intent)
    await recorder.begin_call(intent.key)
    outer.lose("it is gone")
    await turns_of_the_event_loop()
    assert [(loss.execution_id, loss.reason) for loss in losses] == [("caller", "it is gone")]
    await recorder.record_outcome(intent.to_execution(ToolStatus.SUCCEEDED, value=1))
    assert (await kinds_in(journal))[-1] is RecordKind.CALL_OUTCOME
    await recorder.aclose()


async def test_a_callers_claim_may_be_lost_before_the_start() -> None:
    """The loss is told, though nothing can be written yet."""
    outer = await MemoryJournal().claim("caller")
    assert isinstance(outer, HeldClaim)
    recorder = await open_recorder(MemoryJournal(), outer_claims=(outer,))
    losses: list[ClaimLost] = []
    recorder.on_claim_lost(losses.append)
    outer.lose("it is gone")
    await turns_of_the_event_loop()
    assert [loss.execution_id for loss in losses] == ["caller"]
    await recorder.aclose()


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "of a caller"])
async def test_a_loss_before_anybody_listens_is_told_at_once_and_once(*, is_own: bool) -> None:
    """Who begins to listen later learns of it all the same, such as a run that starts under a claim that is gone."""
    journal, outer = MemoryJournal(), await MemoryJournal().claim("caller")
    assert isinstance(outer, HeldClaim)
    recorder = await open_recorder(journal, outer_claims=(outer,))
    if is_own:
        await journal.aclose()
    else:
        outer.lose("it is gone")
    await turns_of_the_event_loop()
    losses: list[ClaimLost] = []
    recorder.on_claim_lost(losses.append)
    assert [loss.execution_id for loss in losses] == ["run" if is_own else "caller"]
    outer.lose("it is gone as well")
    await turns_of_the_event_loop()
    assert len(losses) == 1
    await recorder.aclose()


class SharedLease(Claim):
    """A claim of a journal of others, which knows of its loss only when it is asked."""

    execution_id, token, is_lost = "caller", 1, False

    async def lost(self) -> str:
        return await asyncio.Future()

    async def release(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("tells_why", [True, False])
async def test_a_loss_that_is_found_out_before_it_is_told_has_its_reason(*, tells_why: bool) -> None:
    """It keeps a call from beginning at once; a claim that cannot tell why is lost as its journal reports."""
    claim: Claim = await MemoryJournal().claim("caller") if tells_why else SharedLease()
    recorder = await open_recorder(MemoryJournal(), outer_claims=(claim,))
    await recorder.start(started_state())
    await recorder.start_call(intent_of("run/1/0"))
    if isinstance(claim, HeldClaim):
        claim.lose("it is gone")
    elif isinstance(claim, SharedLease):
        claim.is_lost = True
    with pytest.raises(ClaimLost) as caught:
        await recorder.begin_call("run/1/0")
    assert caught.value.reason == ("it is gone" if tells_why else "the journal reports that it is lost")
    await recorder.aclose()


async def test_the_loss_of_the_own_claim_fails_the_records() -> None:
    """Nothing can be recorded under it any more."""
    journal, losses = MemoryJournal(), list[ClaimLost]()
    recorder = await open_recorder(journal)
    recorder.on_claim_lost(losses.append)
    await recorder.start(started_state())
    await journal.aclose()
    await turns_of_the_event_loop()
    assert [loss.execution_id for loss in losses] == ["run"]
    await recorder.aclose()
    assert await kinds_in(journal) == [RecordKind.EXECUTION_STARTED]
