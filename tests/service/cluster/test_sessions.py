"""Sessions in a cluster: workers answer the messages of a session in order, and none waits in a slot for another one."""

from __future__ import annotations

import asyncio

import pytest

from agentloop import AgentLoop, AgentState, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.errors import InvalidParameter
from agentloop.service.cluster import Cluster
from agentloop.values import ExecutionStatus, InferenceRequest, InferenceResponse, approve
from tests.service.cluster.workers import AGENT, working


def answer(request: InferenceRequest) -> str:
    """Answer the last message of the user."""
    return f"re: {[each.text for each in request.messages if each.role == 'user'][-1]}"


ECHO = AgentLoop.for_model(ScriptedInference(answer))


def texts(state: AgentState) -> list[str]:
    """Return the texts of a conversation."""
    return [message.text for message in state.messages if message.text]


async def test_workers_answer_the_messages_of_a_session_in_order(db: str) -> None:
    """Messages are answered in the order in which they were submitted, although the worker has free slots for all of them."""
    async with Cluster(db) as cluster, working(db, ECHO):
        sent = [str(number) for number in range(6)]
        ids = [await cluster.submit(AGENT, text, session="user-7") for text in sent]
        state = await cluster.result(ids[-1])
        assert texts(state) == [each for text in sent for each in (text, f"re: {text}")]
        assert texts(await cluster.result(ids[0])) == ["0", "re: 0"]
        assert await cluster.journal.unfinished("") == ()


async def test_messages_wait_for_a_worker(db: str) -> None:
    """What was submitted before any worker ran is answered in order when one comes, and the same id is the same message."""
    async with Cluster(db) as cluster:
        for text in ("a", "b", "b", "c"):
            await cluster.submit(AGENT, text, session="s", execution_id=text)
        waiting = await cluster.unrecorded_state("c")
        assert waiting is not None
        assert (waiting.status, waiting.agent_id) == (ExecutionStatus.IN_PROGRESS, "session/s")
        await cluster.stop("b")
        async with working(db, ECHO):
            assert texts(await cluster.result("c")) == ["a", "re: a", "b", "c", "re: c"]
            assert (await cluster.result("b")).status is ExecutionStatus.STOPPED


async def test_a_message_that_is_stopped_before_a_worker_takes_it_is_not_in_the_session(db: str) -> None:
    """The first message of a session, stopped while it waits for a worker, leaves its place to the next one."""
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "a", session="s", execution_id="a")
        await cluster.submit(AGENT, "b", session="s", execution_id="b")
        await cluster.stop("a")
        async with working(db, ECHO):
            assert texts(await cluster.result("b")) == ["b", "re: b"]


async def test_messages_behind_a_decision_take_no_slot(db: str) -> None:
    """While a turn waits for a decision, the messages behind it wait in no slot, and are answered after the decision."""

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    def reply(request: InferenceRequest) -> InferenceResponse | str:
        last = request.messages[-1]
        pays = last.role == "user" and last.text == "pay"
        return InferenceResponse((ToolCall("1", "pay", "{}"),)) if pays else answer(request)

    loop = AgentLoop.for_model(ScriptedInference(reply, reply), tools=[pay], interceptors=[RequireApproval("pay")])
    async with Cluster(db) as cluster, working(db, loop, executions=1):
        await cluster.submit(AGENT, "pay", session="s", execution_id="first")
        suspended = await cluster.result("first")
        for number in range(3):
            await cluster.submit(AGENT, f"then {number}", session="s", execution_id=f"then-{number}")
        assert (await cluster.result(await cluster.submit(AGENT, "else", session="t"))).final_text == "re: else"
        [call] = suspended.pending
        await cluster.resume("first", {call.key: approve(call.digest)})
        state = await cluster.result("then-2")
        assert [text for text in texts(state) if text.startswith("then")] == ["then 0", "then 1", "then 2"]


async def test_a_message_of_a_dead_client_and_one_of_a_program_are_answered(db: str) -> None:
    """A worker answers what was accepted without a job, and a program continues the session of a cluster."""
    async with Cluster(db) as cluster:
        await cluster.submit(AGENT, "left", session="s", execution_id="left")
        program = ECHO.replace(journal=cluster.journal)
        sent = asyncio.create_task(program.execute("from a program", session="s"))
        async with working(db, ECHO):
            assert texts(await sent) == ["left", "re: left", "from a program", "re: from a program"]
            assert (await cluster.result("left")).final_text == "re: left"


async def test_sessions_have_an_order_of_their_own(db: str) -> None:
    """Priority, delay and queue do not fit a session, nor does a state; each is refused at once."""
    async with Cluster(db) as cluster:
        for options in ({"priority": 1}, {"delay": 1.0}, {"queue": "slow"}):
            with pytest.raises(InvalidParameter, match="in their order"):
                await cluster.submit(AGENT, "a", session="s", **options)
        with pytest.raises(InvalidParameter, match="conversation of its own"):
            await cluster.submit(AGENT, AgentState.start("a"), session="s")
        assert await cluster.journal.unfinished("") == ()
