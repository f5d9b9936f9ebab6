"""Edge cases of recovery: messages between steps, responses that are not recorded, runs that end early."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NoReturn

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, Interceptor, ToolCallingDriver, handoff_to, tool
from agentloop.contracts import CanExecuteToolCalls, Tool
from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.contracts.tools import Tools
from agentloop.durable import MemoryJournal, SqliteJournal
from agentloop.durable.fold import fold_records
from agentloop.durable.recovery import fail_execution, stop_execution
from agentloop.errors import ForeignCancellation, InboxClosed, JournalConflict, TooManyRecoveries
from agentloop.events import (
    AgentExecutionFailed,
    AgentExecutionStarted,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    EventBus,
    ProtocolMonitor,
    Recovery,
    ToolCallCompleted,
    ToolCallRecovered,
)
from agentloop.interception import (
    AfterInference,
    AfterStep,
    BeforeExecution,
    BeforeStep,
    CancellationToken,
    RequireApproval,
    at,
)
from agentloop.loop import handed_over_by
from agentloop.testing import CrashableJournal, Ledger, toy_tools
from agentloop.values import (
    Effect,
    ExecutionHead,
    ExecutionStatus,
    InferenceRequest,
    InferenceResponse,
    JournalRecord,
    RecordKind,
    Text,
    ToolStatus,
    approve,
    to_json,
)
from agentloop.values.event import Event
from tests.durable.recovery_bench import Model, truncate
from tests.limits import jump


async def test_a_message_sent_after_the_answer_is_answered_after_a_crash() -> None:
    """Wherever the records end from then on, the recovered execution has the message and its answer, in order."""
    chronicle = CrashableJournal()
    loop, sent = AgentLoop(ToolCallingDriver(Model("first", "second")), journal=chronicle), False
    async for _ in loop.iterate("go", execution_id="run"):
        if not sent:
            loop.inbox("run").send("and more?")
            sent = True
            await asyncio.sleep(0)
    kinds = [record.kind for record in chronicle.appended]
    for count in range(kinds.index(RecordKind.MESSAGES_SENT) + 1, len(kinds) + 1):
        remaining = await chronicle.after_crash(count)
        state = await loop.replace(journal=remaining).recover("run")
        assert [message.text for message in state.messages] == ["go", "first", "and more?", "second"]
        assert fold_records(await remaining.read("run"), "run").state == state


async def test_a_message_sent_during_an_inference_follows_its_response_after_a_crash() -> None:
    """A recorded response is not put behind a message that the model had not seen."""

    class SendsMessages(Interceptor):
        async def after_inference(self, point: AfterInference) -> AfterInference:
            if loops and len(point.state.messages) == 1:
                loops[0].inbox("run").send("and more?")
                await asyncio.sleep(0)
            return point

    chronicle, loops = CrashableJournal(), list[AgentLoop]()
    model = ToolCallingDriver(Model("first", "second"))
    loops.append(AgentLoop(model, journal=chronicle, interceptors=[SendsMessages()]))
    final = await loops[0].execute("go", execution_id="run")
    texts = [message.text for message in final.messages]
    assert texts == ["go", "first", "and more?", "second"]
    kinds = [record.kind for record in chronicle.appended]
    for count in range(kinds.index(RecordKind.MESSAGES_SENT) + 1, len(kinds) + 1):
        state = await AgentLoop(model, journal=await chronicle.after_crash(count)).recover("run")
        assert [message.text for message in state.messages] == texts


async def test_calls_of_an_unrecorded_response_are_settled_before_the_next_inference() -> None:
    """Calls of a masked response are reused or in doubt, in their own step; no call of the new response replaces them."""
    runs: Counter[int] = Counter()
    steps: list[int] = []

    def note(point: AfterStep) -> AfterStep:
        steps.append(point.state.step_count)
        return point

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        runs[n] += 1
        return f"paid {n}"

    class ModelWithSecret(Model):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            response = await super().infer(request)
            return evolve(response, parts=(Text("the word is sesame42"), *response.parts))

    journal = MemoryJournal(secrets=["sesame42"])
    first = ModelWithSecret([("pay", {"n": 1}), ("pay", {"n": 2})], "done")
    await AgentLoop(ToolCallingDriver(first), [pay], journal=journal).execute("go", execution_id="run")
    records = await journal.read("run")
    assert runs == {1: 1, 2: 1}
    outcome = next(record.sequence for record in records if record.kind is RecordKind.CALL_OUTCOME)
    other = ModelWithSecret("?", "done")
    remaining = await truncate(journal, "run", outcome)
    loop = AgentLoop(ToolCallingDriver(other), [pay], journal=remaining, interceptors=[at("after_step", note)])
    state = await loop.recover("run")
    assert runs == {1: 1, 2: 1}
    statuses = {execution.arguments["n"]: execution.status for execution in state.steps[0].executions}
    assert set(statuses.values()) == {ToolStatus.SUCCEEDED, ToolStatus.IN_DOUBT}
    assert state.status is ExecutionStatus.COMPLETED
    assert state.step_count == 2
    assert steps == [2]  # the driver took no step of the old calls


async def test_a_handoff_of_an_unrecorded_response_takes_place() -> None:
    """Its outcome is recorded, and says that the conversation is handed over."""

    class ModelWithSecret(Model):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            response = await super().infer(request)
            return evolve(response, parts=(Text("the word is sesame42"), *response.parts))

    def desk(journal: CanJournal, model: Model) -> AgentLoop:
        billing = AgentLoop(ToolCallingDriver(Model("?", "billing answers")))
        over = handoff_to(billing, name="over", description="Money.")
        return AgentLoop(ToolCallingDriver(model), [over], journal=journal)

    journal = MemoryJournal(secrets=["sesame42"])
    await desk(journal, ModelWithSecret([("over", {})], "desk answers")).execute("go", execution_id="run")
    outcome = next(each.sequence for each in await journal.read("run") if each.kind is RecordKind.CALL_OUTCOME)
    remaining = await truncate(journal, "run", outcome)
    state = await desk(remaining, Model([("over", {})], "desk answers")).recover("run")
    assert (state.final_text, handed_over_by(state)) == ("billing answers", "over")


async def test_a_refused_run_does_not_affect_the_inbox_of_the_running_one() -> None:
    """Messages of the running execution are still recorded; an ended one accepts none."""
    chronicle, waiting, resumes = CrashableJournal(), asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        waiting.set()
        await resumes.wait()
        return "waited"

    loop = AgentLoop(ToolCallingDriver(Model([("wait", {})], "done", "again")), [wait], journal=chronicle)
    running = asyncio.create_task(loop.execute("go", execution_id="run"))
    await waiting.wait()
    with pytest.raises(JournalConflict):
        await loop.execute("go", execution_id="run")
    loop.inbox("run").send("hurry")
    await asyncio.sleep(0)
    resumes.set()
    await running
    assert RecordKind.MESSAGES_SENT in [record.kind for record in chronicle.appended]
    with pytest.raises(JournalConflict):
        await loop.execute("go", execution_id="run")
    with pytest.raises(InboxClosed):
        loop.inbox("run").send("too late")


def test_a_message_between_two_runs_waits_for_the_next_one() -> None:
    """The run that was suspended has ended, with its event loop: the next one receives the message, and records it."""
    chronicle = CrashableJournal()
    model = Model([("echo", {"value": 1})], "done")
    loop = AgentLoop(ToolCallingDriver(model), toy_tools(Ledger()), journal=chronicle, interceptors=[RequireApproval()])
    suspended = loop.execute_sync("go", execution_id="run")
    loop.inbox("run").send("hurry")
    state = loop.resume_sync("run", {call.key: approve(call.digest) for call in suspended.pending})
    texts = ["go", "", "hurry", "done"]
    assert [message.text for message in state.messages] == texts
    kinds = [record.kind for record in chronicle.appended]
    for count in range(kinds.index(RecordKind.MESSAGES_TAKEN) + 1, len(kinds) + 1):
        left = asyncio.run(chronicle.after_crash(count))
        recovered = AgentLoop(loop.driver, loop.tools, journal=left).recover_sync("run")
        assert [message.text for message in recovered.messages] == texts


class SlowClaimJournal(MemoryJournal):
    """A journal whose claims never return."""

    async def claim(self, execution_id: str) -> Claim:
        """Wait."""
        await asyncio.Event().wait()
        return await super().claim(execution_id)


async def test_a_run_that_is_cancelled_during_its_claim_leaves_its_messages_waiting() -> None:
    """It has not started, so no message is received and nothing is recorded."""
    journal = SlowClaimJournal()
    loop = AgentLoop(ToolCallingDriver(Model("done")), journal=journal)
    loop.inbox("run").send("hello")
    task = asyncio.create_task(loop.execute("go", execution_id="run"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await journal.head("run") is None
    again = loop.replace(journal=MemoryJournal(), events=EventBus())
    state = await again.execute("go", execution_id="run")
    assert [message.text for message in state.messages if message.role == "user"] == ["go", "hello"]


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.EFFECT])
@pytest.mark.parametrize("end", ["token", "failure", "stop_execution"])
async def test_an_outcome_that_its_interceptors_have_not_seen_does_not_get_into_the_state(
    end: str, effect: Effect
) -> None:
    """They mask it in the run that was interrupted, and have no turn when the recovered execution ends before its step."""

    @tool(effect=effect)
    async def look() -> str:
        """Look."""
        return "password=hunter2"

    def fail(point: BeforeStep) -> BeforeStep:
        raise ConnectionError("no luck")

    journal, token = CrashableJournal(), CancellationToken()
    mask = at("after_tool_use", lambda point: point.with_value("***"))
    loop = AgentLoop(ToolCallingDriver(Model([("look", {})], "Done.")), [look], interceptors=[mask], journal=journal)
    assert (await loop.execute("go", execution_id="run")).steps[0].executions[0].value == "***"
    count = [record.kind for record in journal.appended].index(RecordKind.CALL_OUTCOME) + 1
    crashed = await journal.after_crash(count)
    token.cancel("enough")
    if end == "stop_execution":
        await stop_execution(crashed, "run", "enough")
        state = await crashed.state("run")
    else:
        layer = token if end == "token" else at("before_step", fail)
        state = await loop.replace(journal=crashed).with_interceptors(layer).recover("run")
    assert state.status.is_terminal
    assert b"hunter2" not in to_json(state)
    (execution,) = state.steps[0].executions
    assert (execution.status, execution.may_have_run) == (ToolStatus.CANCELLED, effect is Effect.EFFECT)


@pytest.mark.parametrize("by", ["execute", "get_or_start", "recover"])
async def test_an_execution_without_a_step_runs_before_execution_again(by: str) -> None:
    """Changes of its state are recorded with the first step, however it is continued."""

    class Tenant(Interceptor):
        def before_execution(self, point: BeforeExecution) -> BeforeExecution:
            return point.with_state(point.state.with_metadata(tenant="acme"))

    chronicle = CrashableJournal()
    loop = AgentLoop(ToolCallingDriver(Model("done")), journal=chronicle, interceptors=[Tenant()])
    await loop.execute("go", execution_id="run")
    remaining = await chronicle.after_crash(1)
    started = fold_records(await remaining.read("run"), "run").state
    assert started is not None
    again = loop.replace(journal=remaining)
    if by == "execute":
        state = await again.execute(started)
    elif by == "get_or_start":
        state = await again.get_or_start("go", "run")
    else:
        state = await again.recover("run")
    assert state.context.metadata["tenant"] == "acme"


def check_one_step_that_ends(events: Sequence[Event], calls: Sequence[type[Event]]) -> None:
    """Check that events are those of the first step, with these of its calls, after which none follows."""
    started, *of_step, failed = events
    assert (type(started), type(failed)) == (AgentExecutionStarted, AgentExecutionFailed)
    kinds = [AgentStepStarted, *calls, ContinuationEvaluated, AgentStepCompleted]
    assert [type(event) for event in of_step] == kinds
    assert {event.step_number for event in of_step} == {1}
    assert [event.continues for event in events if isinstance(event, ContinuationEvaluated)] == [False]


async def test_an_execution_that_is_given_up_between_steps_reports_no_step() -> None:
    """Without open calls, there are its start and its failure alone; when it has ended, nothing is reported."""
    chronicle, events = CrashableJournal(), list[Event]()
    model = Model([("echo", {"value": 1})], "done")
    loop = AgentLoop(ToolCallingDriver(model), toy_tools(Ledger()), journal=chronicle)
    loop.wiretap(events.append)
    await loop.execute("go", execution_id="run")
    kinds = [record.kind for record in chronicle.appended]
    journal = await chronicle.after_crash(kinds.index(RecordKind.STEP_COMPLETED) + 1)
    for before, after in [
        (ExecutionStatus.IN_PROGRESS, [AgentExecutionStarted, AgentExecutionFailed]),
        (ExecutionStatus.FAILED, []),
    ]:
        events.clear()
        state = await journal.state("run")
        assert state.status is before
        failed = await fail_execution(journal, "run", TooManyRecoveries("its worker died"), events=loop.events)
        assert [type(event) for event in events] == after
        assert [error.message for error in failed.errors] == ["its worker died"]
        assert (failed.status, failed.steps[0]) == (ExecutionStatus.FAILED, state.steps[0])
        assert await journal.state("run") == failed


async def test_an_execution_that_is_given_up_reports_its_pending_calls() -> None:
    """Calls that wait for a decision are cancelled, and each of them is reported."""
    journal = MemoryJournal()
    model = Model([("echo", {"value": 1}), ("echo", {"value": 2})], "done")
    loop = AgentLoop(ToolCallingDriver(model), toy_tools(Ledger()), interceptors=[RequireApproval()], journal=journal)
    events: list[Event] = []
    assert len((await loop.execute("go", execution_id="run")).pending) == 2
    loop.wiretap(events.append)
    failed = await fail_execution(journal, "run", TooManyRecoveries("its worker died"), events=loop.events)
    settled = [event.execution for event in events if isinstance(event, ToolCallCompleted)]
    assert settled == [*failed.steps[0].executions]
    assert [execution.status for execution in settled] == [ToolStatus.CANCELLED, ToolStatus.CANCELLED]
    check_one_step_that_ends(events, [ToolCallCompleted] * 2)
    assert (await journal.state("run")) == failed


async def test_an_execution_that_is_given_up_leaves_none_of_its_agents_in_progress() -> None:
    """Nobody would continue them: those that had not ended are stopped before their caller fails, and keep their outcomes."""
    chronicle = CrashableJournal()

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        return f"paid {n}"

    def clerk(turns: Sequence[object], tools: Sequence[object]) -> AgentLoop:
        return AgentLoop(ToolCallingDriver(Model(*turns)), tools)  # type: ignore[arg-type]  # of this test

    inner = clerk([[("pay", {"n": 1})], [("pay", {"n": 2})], "done"], [pay]).as_tool("clerk", "Works.")
    outer = clerk([[("clerk", {"task": "work"})], "done"], [inner]).as_tool("boss", "Works.")
    loop = AgentLoop(ToolCallingDriver(Model([("boss", {"task": "work"})], "done")), [outer], journal=chronicle)
    await loop.execute("go", execution_id="run")
    kinds = [(record.execution_id.count("/agent"), record.kind) for record in chronicle.appended]
    journal = await chronicle.after_crash(kinds.index((2, RecordKind.CALL_OUTCOME)) + 1)
    ids = sorted([head.execution_id for head in await journal.list()])
    assert len(ids) == 3

    held = await journal.claim(ids[-1])
    with pytest.raises(JournalConflict):
        await fail_execution(journal, "run", TooManyRecoveries("its worker died"), events=loop.events)
    assert {head.status for head in await journal.list()} == {ExecutionStatus.IN_PROGRESS}
    await held.release()

    failed = await fail_execution(journal, "run", TooManyRecoveries("its worker died"), events=loop.events)
    assert failed.status is ExecutionStatus.FAILED
    statuses = {head.execution_id: head.status for head in await journal.list()}
    assert statuses == dict(
        zip(ids, [ExecutionStatus.FAILED, ExecutionStatus.STOPPED, ExecutionStatus.STOPPED], strict=True)
    )
    innermost = await journal.state(ids[-1])
    assert [execution.value for step in innermost.steps for execution in step.executions] == ["paid 1"]
    assert innermost.stop_signal is not None
    assert innermost.stop_signal.message == "its worker died"
    assert await journal.verify() == ()


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_an_execution_that_is_given_up_reports_its_calls(*, is_resumed: bool) -> None:
    """A call in doubt and one with a recorded outcome have the same events as in a run that ends."""

    @tool
    async def pay(n: int) -> str:
        """Pay."""
        return f"paid {n}"

    chronicle = CrashableJournal()
    guards = [RequireApproval()] if is_resumed else []
    turns = ([("pay", {"n": 1}), ("pay", {"n": 2})], "done")
    loop = AgentLoop(ToolCallingDriver(Model(*turns)), [pay], interceptors=guards, journal=chronicle)
    state = await loop.execute("go", execution_id="run")
    if is_resumed:
        await loop.resume("run", {call.key: approve(call.digest) for call in state.pending})
    kinds = [record.kind for record in chronicle.appended]
    journal = await chronicle.after_crash(kinds.index(RecordKind.CALL_OUTCOME) + 1)
    watched = AgentLoop(ToolCallingDriver(Model("never")), [pay])
    events: list[Event] = []
    watched.wiretap(ProtocolMonitor())
    watched.wiretap(events.append)
    failed = await fail_execution(journal, "run", TooManyRecoveries("its worker died"), events=watched.events)
    assert failed.status is ExecutionStatus.FAILED
    started = events[0]
    assert isinstance(started, AgentExecutionStarted)
    assert (started.resumed, started.message) == (True, state.messages[0])
    settled = [event.execution for event in events if isinstance(event, ToolCallCompleted)]
    assert settled == [execution for step in failed.steps for execution in step.executions]
    assert {execution.status for execution in settled} == {ToolStatus.SUCCEEDED, ToolStatus.IN_DOUBT}
    recoveries = [event.recovery for event in events if isinstance(event, ToolCallRecovered)]
    assert sorted(recoveries) == [Recovery.IN_DOUBT, Recovery.REUSED]
    (completed,) = [event for event in events if isinstance(event, AgentStepCompleted)]
    assert completed.step.executions == tuple(settled)
    check_one_step_that_ends(events, [ToolCallRecovered, ToolCallCompleted] * 2)
    assert (await journal.state("run")) == failed
    assert await journal.delete("run")  # nothing claims it any more


class InvalidTool(Tool):
    """A tool whose parameters are no JSON Schema, which is noticed when an execution is bound."""

    name, description, parameters = "bad", "Bad.", {"type": "object", "properties": {"n": {"type": "strin"}}}

    async def use(self, **arguments: object) -> object:
        raise AssertionError("it never runs")


class UnboundDriver(ToolCallingDriver):
    """A driver that no execution can use."""

    def with_tool_runtime(self, tools: Tools, executor: CanExecuteToolCalls) -> NoReturn:
        raise ValueError(f"no runtime with {executor!r} for {tools!r}")


CONTINUATIONS: dict[str, Callable[[AgentLoop, AgentState], Awaitable[AgentState]]] = {
    "resume": lambda loop, state: loop.resume("run", {call.key: approve(call.digest) for call in state.pending}),
    "resume_a_state": lambda loop, state: loop.resume(state, {call.key: approve() for call in state.pending}),
    "recover": lambda loop, _: loop.recover("run"),
    "get_or_start": lambda loop, _: loop.get_or_start("go", "run"),
    "get_or_start_anew": lambda loop, _: loop.get_or_start("go", "new"),
}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("how", CONTINUATIONS)
@pytest.mark.parametrize("has_invalid_tool", [True, False])
async def test_an_execution_whose_parts_cannot_be_bound_is_released(
    how: str, kind: str, tmp_path: Path, *, has_invalid_tool: bool
) -> None:
    """Nothing is recorded, no task is left, and a corrected loop continues the execution in the same process."""

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def records() -> list[RecordKind]:
        return [record.kind for record in await journal.read("run")]

    journal: CanJournal = MemoryJournal() if kind == "memory" else SqliteJournal(tmp_path / "runs.db")
    guards = [RequireApproval()] if "resume" in how else []
    loop = AgentLoop(ToolCallingDriver(Model([("pay", {})], "done")), [pay], interceptors=guards, journal=journal)
    async with aclosing(loop.iterate("go", execution_id="run")) as states:
        state = await anext(states)
        state = await anext(states) if guards else state
    tasks, before = asyncio.all_tasks(), await records()
    if has_invalid_tool:
        broken, error = loop.replace(tools=[pay, InvalidTool()]), "not a valid JSON Schema"
    else:
        broken, error = loop.replace(driver=UnboundDriver(Model("never"))), "no runtime"
    with pytest.raises(Exception, match=error):
        await CONTINUATIONS[how](broken, state)
    jump(60.0)  # what is queued is written by now
    await asyncio.sleep(0.1)
    assert await records() == before
    assert asyncio.all_tasks() == tasks
    final = await CONTINUATIONS[how](loop, state)
    assert (final.status, final.final_text) == (ExecutionStatus.COMPLETED, "done")
    if guards:
        resumption = [RecordKind.DECISION_USED, RecordKind.EXECUTION_RESUMED]
        assert (await records())[len(before) :][:2] == resumption
    await journal.aclose()


class CancellingJournal(MemoryJournal):
    """Raises, once armed, what a driver of a database does whose own task was cancelled."""

    method = ""

    async def _cancel(self, method: str) -> None:
        if self.method == method:
            self.method = ""
            raise asyncio.CancelledError

    async def claim(self, execution_id: str) -> Claim:
        await self._cancel("claim")
        return await super().claim(execution_id)

    async def head(self, execution_id: str) -> ExecutionHead | None:
        await self._cancel("head")
        return await super().head(execution_id)

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        await self._cancel("read")
        return await super().read(execution_id, after=after)


@pytest.mark.parametrize(
    ("how", "method"),
    # A new execution has no records to read.
    [(how, m) for how in CONTINUATIONS for m in ("claim", "head", "read") if (how, m) != ("get_or_start_anew", "read")],
)
async def test_a_cancellation_inside_of_a_journal_is_an_error(how: str, method: str) -> None:
    """The caller, whom nobody cancelled, gets an error that names the journal, and can continue the execution."""

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    journal = CancellingJournal()
    guards = [RequireApproval()] if "resume" in how else []
    loop = AgentLoop(ToolCallingDriver(Model([("pay", {})], "done")), [pay], interceptors=guards, journal=journal)
    async with aclosing(loop.iterate("go", execution_id="run")) as states:
        state = await anext(states)
        state = await anext(states) if guards else state
    journal.method = method
    with pytest.raises(ForeignCancellation, match="the journal CancellingJournal awaited something"):
        await CONTINUATIONS[how](loop, state)
    assert (await CONTINUATIONS[how](loop, state)).final_text == "done"
