"""Secrets and time in records: masks are never run, and limits do not count the time in which a program was down."""

from __future__ import annotations

from datetime import timedelta

import pytest

from agentloop import AgentLoop, TimeLimit, ToolCallingDriver, ToolContext, tool
from agentloop.durable import MemoryJournal
from agentloop.durable.fold import fold_records
from agentloop.interception import BeforeToolUse, RequireApproval, at
from agentloop.testing import CrashableJournal, ManualClock
from agentloop.values import (
    Decision,
    ExecutionStatus,
    InferenceRequest,
    InferenceResponse,
    RecordKind,
    ToolStatus,
    answer,
    approve,
    deny,
    edit,
)
from tests.durable.recovery_bench import Model, ToolLedger

SECRET = "s3cr3t-token-9"


class MaskingJournal(CrashableJournal):
    """A journal with a declared secret."""

    def __init__(self) -> None:
        MemoryJournal.__init__(self, secrets=[SECRET])
        self.appended = []


def loop_for(
    world: ToolLedger, journal: MemoryJournal | None, *, effect: str = "idempotent", approval: bool = False
) -> AgentLoop:
    """Return a loop whose model passes a secret to a tool."""

    @tool(effect=effect)
    async def send(token: str, context: ToolContext) -> str:
        """Send."""
        assert "***" not in token
        world.effects[context.idempotency_key] += 1
        return f"sent with {token}"

    return AgentLoop(
        ToolCallingDriver(Model([("send", {"token": SECRET})], "Done.")),
        [send],
        journal=journal,
        interceptors=[RequireApproval("send")] if approval else [],
    )


async def test_a_declared_secret_is_in_no_record() -> None:
    """It is in no body, no listing and no repr of the journal (law 18)."""
    journal = MaskingJournal()
    state = await loop_for(ToolLedger(), journal).execute(f"Use {SECRET} now.", execution_id="run")
    assert state.steps[0].executions[0].value == f"sent with {SECRET}"
    assert all(SECRET not in record.body for record in journal.appended)
    head = await journal.head("run")
    assert head is not None
    assert head.input == "Use *** now."
    assert SECRET not in repr(journal)


@pytest.mark.parametrize("effect", ["pure", "idempotent", "effect"])
async def test_a_mask_is_never_run(effect: str) -> None:
    """Wherever the records end, no call runs with a mask in place of the secret, and the execution ends."""
    journal = MaskingJournal()
    await loop_for(ToolLedger(), journal, effect=effect).execute(f"Use {SECRET}.", execution_id="run")
    for count in range(1, len(journal.appended) + 1):
        world = ToolLedger()
        state = await loop_for(world, await journal.after_crash(count), effect=effect).recover("run")
        assert state.status is ExecutionStatus.COMPLETED
        execution = state.steps[0].executions[0]
        assert execution.succeeded or execution.status in {ToolStatus.IN_DOUBT, ToolStatus.CANCELLED}


def loop_with_agent(journal: MemoryJournal, asked: list[str]) -> AgentLoop:
    """Return a loop with an agent whose task gets a secret from an interceptor; `asked` receives what its model reads."""

    def insert(point: BeforeToolUse) -> BeforeToolUse:
        return point.with_arguments({"task": f"Use {SECRET}."})

    class Clerk(Model):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            asked.append(request.messages[0].text)
            return await super().infer(request)

    clerk = AgentLoop.for_model(Clerk("Used.")).as_tool("clerk", "Works.")
    model = Model([("clerk", {"task": "Use it."})], "Done.")
    return AgentLoop.for_model(model, tools=[clerk], journal=journal, interceptors=[at("before_tool_use", insert)])


async def test_an_agent_continues_from_its_own_records_although_its_task_is_masked() -> None:
    """Whether it has ended or only begun; its caller needs no arguments for that."""
    journal = MaskingJournal()
    await loop_with_agent(journal, []).execute("Go.", execution_id="run")
    begins = next(i for i, record in enumerate(journal.appended) if record.execution_id == "run/1/0/agent")
    for count in range(begins + 1, len(journal.appended) + 1):
        state = await loop_with_agent(await journal.after_crash(count), []).recover("run")
        assert (state.steps[0].executions[0].value, state.final_text) == ("Used.", "Done.")


@pytest.mark.parametrize(
    ("in_doubt", "status"),
    [
        ("tell", ExecutionStatus.COMPLETED),
        ("suspend", ExecutionStatus.SUSPENDED),
        ("fail", ExecutionStatus.FAILED),
    ],
)
async def test_an_agent_that_had_not_begun_gets_no_mask_for_its_task(in_doubt: str, status: ExecutionStatus) -> None:
    """Without records of its own, it is in doubt like any call with a masked argument."""
    journal, asked = MaskingJournal(), list[str]()
    await loop_with_agent(journal, []).execute("Go.", execution_id="run")
    intent = next(i for i, record in enumerate(journal.appended, 1) if record.kind is RecordKind.CALL_INTENT)
    loop = loop_with_agent(await journal.after_crash(intent), asked)
    state = await loop.recover("run", in_doubt=in_doubt)
    assert (state.status, asked) == (status, [])
    if state.pending:
        assert "a secret in the arguments was not recorded" in state.pending[0].reason
        state = await loop.resume(state, {state.pending[0].key: approve()})
        assert (state.status, asked) == (ExecutionStatus.COMPLETED, [])
        assert "was masked in the journal" in state.steps[0].executions[0].error_message
    else:
        assert state.steps[0].executions[0].status is ToolStatus.IN_DOUBT


async def test_a_masked_pending_call_is_resumed_from_its_state_or_edited() -> None:
    """The caller's state has the arguments; a resumption from the journal alone needs them again."""
    journal, world = MaskingJournal(), ToolLedger()
    loop = loop_for(world, journal, approval=True)
    waiting = await loop.execute("Go.", execution_id="run")
    key = waiting.pending[0].key
    remaining = await journal.after_crash(len(journal.appended))
    state = await loop.resume(waiting, {key: approve()})
    assert state.steps[0].executions[0].succeeded
    refused = await loop_for(ToolLedger(), remaining, approval=True).resume("run", {key: approve()})
    assert "was masked in the journal" in refused.steps[0].executions[0].error_message
    again = await journal.after_crash(
        next(i for i, record in enumerate(journal.appended, 1) if record.kind is RecordKind.EXECUTION_SUSPENDED)
    )
    other = ToolLedger()
    edited = await loop_for(other, again, approval=True).resume("run", {key: edit({"token": SECRET})})
    assert edited.steps[0].executions[0].succeeded
    assert other.effects[key] == 1


@pytest.mark.parametrize("kind", ["approve", "deny", "answer", "edit"])
async def test_a_decision_about_a_masked_call_of_an_agent_is_used(kind: str) -> None:
    """The agent gets it at the first resumption, from the caller's state; after a crash all but an approval have their effect."""
    journal, world = MaskingJournal(), ToolLedger()

    def office(world: ToolLedger, journal: MemoryJournal | None) -> AgentLoop:
        agent = loop_for(world, None, approval=True).as_tool("agent", "Sends.")
        return AgentLoop(ToolCallingDriver(Model([("agent", {"task": "Send."})], "Done.")), [agent], journal=journal)

    waiting = await office(world, journal).execute("Go.", execution_id="run")
    call = waiting.pending[-1]
    decisions: dict[str, Decision] = {
        "approve": approve(call.digest),
        "deny": deny("no", call.digest),
        "answer": answer("it is sent", call.digest),
        "edit": edit({"token": "another"}, call.digest),
    }
    before = len(journal.appended)
    state = await office(world, journal).resume(waiting, {call.key: decisions[kind]})
    assert state.status is ExecutionStatus.COMPLETED
    assert world.effects[call.key] == (1 if kind in {"approve", "edit"} else 0)
    for count, record in enumerate(journal.appended[before:], before + 1):
        if record.kind is RecordKind.DECISION_USED:
            continue  # written in one group with the resumption
        left = await journal.after_crash(count)
        recovered = await office(ToolLedger(), left).recover("run")
        assert recovered.steps[0].executions[0].succeeded, recovered.explain()
        statuses = {
            "approve": {ToolStatus.SUCCEEDED, ToolStatus.FAILED, ToolStatus.IN_DOUBT},
            "deny": {ToolStatus.BLOCKED},
            "answer": {ToolStatus.SUCCEEDED},
            "edit": {ToolStatus.SUCCEEDED},
        }
        agent = await left.state(call.key.removesuffix("/1/0"))
        assert agent.steps[0].executions[0].status in statuses[kind]


async def test_downtime_does_not_count() -> None:
    """A time limit counts the time in which an execution ran, also over a crash."""
    clock, chronicle = ManualClock(), CrashableJournal()

    def loop_with(journal: MemoryJournal) -> AgentLoop:
        @tool(effect="pure")
        async def look() -> str:
            """Look."""
            clock.advance(20)
            return "seen"

        return AgentLoop(
            ToolCallingDriver(Model([("look", {})], [("look", {})], [("look", {})], [("look", {})], "Done.")),
            [look],
            journal=journal,
            clock=clock,
            interceptors=[TimeLimit(50)],
        )

    final = await loop_with(chronicle).execute("Go.", execution_id="run")
    steps = final.step_count
    assert final.status is ExecutionStatus.STOPPED
    done = next(i for i, record in enumerate(chronicle.appended, 1) if record.kind is RecordKind.STEP_COMPLETED)
    remaining = await chronicle.after_crash(done)
    clock.advance(3600)
    state = await loop_with(remaining).recover("run")
    assert (state.status, state.step_count) == (ExecutionStatus.STOPPED, steps)
    assert state.execution is not None
    assert timedelta(seconds=state.execution.waited_seconds) > timedelta(hours=1)
    assert fold_records(await remaining.read("run"), "run").state == state
