"""`principal=`: whoever asks for an execution is known to its tools, is recorded with it, and stays the same until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    Message,
    RequireApproval,
    ScriptedInference,
    ToolCall,
    ToolContext,
    approve,
    tool,
)
from agentloop.durable import MemoryJournal
from agentloop.durable.sessions import SessionQueue
from agentloop.errors import ContractViolation, InvalidParameter, JournalConflict
from agentloop.loop import Identity
from agentloop.values import from_json, to_json
from agentloop.values.run_requests import principal_of, request_of, with_request

ADA = Identity("ada", tenant="acme", scopes=["read"])
BOB = Identity("bob", tenant="acme")


@tool(effect="pure")
def whoami(context: ToolContext) -> str:
    """Say who asks."""
    return str(context.principal or "nobody")


def asking(**parts: Any) -> AgentLoop[str]:
    """Return a loop that says who asks."""
    script: list[Any] = [
        ToolCall("1", "whoami", "{}"),
        lambda request: request.messages[-1].exchanges[0].execution.value,
    ] * 20
    return AgentLoop.for_model(ScriptedInference(*script), tools=[whoami], **parts)


async def by_execute(loop: AgentLoop[str]) -> str:
    return (await loop.execute("Who?", principal=ADA)).output


async def by_iterate(loop: AgentLoop[str]) -> str:
    return [state async for state in loop.iterate("Who?", principal=ADA)][-1].output


async def by_stream(loop: AgentLoop[str]) -> str:
    async with loop.stream("Who?", principal=ADA) as events:
        async for _ in events:
            pass
    return events.output


async def by_stream_text(loop: AgentLoop[str]) -> str:
    async with loop.stream_text("Who?", principal=ADA) as text:
        return "".join([piece async for piece in text])


async def by_get_or_start(loop: AgentLoop[str]) -> str:
    return (await loop.get_or_start("Who?", "one", principal=ADA)).output


async def by_session(loop: AgentLoop[str]) -> str:
    return await loop.run("Who?", principal=ADA, session="s")


async def without_event_loop(loop: AgentLoop[str]) -> str:
    def work() -> set[str]:
        states = list(loop.iterate_sync("Who?", principal=ADA))
        with loop.stream_sync("Who?", principal=ADA) as events:
            list(events)
        with loop.stream_text_sync("Who?", principal=ADA) as text:
            list(text)
        return {
            loop.run_sync("Who?", principal=ADA),
            loop.execute_sync("Who?", principal=ADA).output,
            loop.get_or_start_sync("Who?", "two", principal=ADA).output,
            states[-1].output,
            events.output,
            text.output,
        }

    [answer] = await asyncio.to_thread(work)
    return answer


WAYS = [by_execute, by_iterate, by_stream, by_stream_text, by_get_or_start, by_session, without_event_loop]


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_run_takes_who_asks(way: Callable[[AgentLoop[str]], Awaitable[str]]) -> None:
    """A tool knows the principal of every way to run a loop, and the journal has it."""
    journal = MemoryJournal()
    assert await way(asking(journal=journal)) == "ada@acme"
    states = [await journal.state(head.execution_id) for head in await journal.list()]
    assert {principal_of(state) for state in states} == {ADA}


@pytest.mark.parametrize("wrong", ["ada", 3, {"name": "ada"}])
async def test_a_principal_is_an_identity(wrong: Any) -> None:
    """Anything else is refused before anything begins, and a text with the way to write it."""
    with pytest.raises(InvalidParameter, match=r"a principal has to be an Identity.*Identity\('ada'"):
        await asking().execute("Who?", principal=wrong)
    with pytest.raises(InvalidParameter, match="a principal has to be"):
        asking().stream("Who?", principal=wrong)


async def test_the_next_execution_of_a_conversation_is_asked_for_anew() -> None:
    """Who asked for an execution is not taken for who continues its conversation; headers that were kept for it stay."""
    loop = asking()
    first = from_json(to_json(await loop.execute("Who?", principal=ADA)), AgentState)
    assert (await loop.execute(first.with_message(Message.user("Who?")))).output == "nobody"
    assert (await loop.execute(first.with_message(Message.user("Who?")), principal=BOB)).output == "bob@acme"
    asked = with_request(AgentState.start("Who?"), "one", ADA, {"X-Region": "eu"})
    state = await loop.execute(asked, execution_id="one", principal=BOB)
    assert (request_of(state).principal, request_of(state).headers) == (BOB, {"x-region": "eu"})


async def test_an_agent_as_a_tool_knows_who_asks_its_caller() -> None:
    """The tool of a sub-agent, and that of the loop that the conversation is handed to, have the principal of the execution."""
    caller = AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "inner", '{"task": "Who?"}'), "Done."),
        tools=[asking().as_tool("inner", "Asks.")],
    )
    state = await caller.execute("Go.", principal=ADA)
    assert state.steps[0].executions[0].value == "ada@acme"


async def test_an_execution_that_is_resumed_or_recovered_keeps_who_asked() -> None:
    """The principal is part of the state, so a process that continues it needs not be told, and cannot be told otherwise."""
    journal = MemoryJournal()
    loop = asking(journal=journal, interceptors=[RequireApproval("whoami")])
    suspended = await loop.execute("Who?", execution_id="one", principal=ADA)
    [call] = suspended.pending
    with pytest.raises(ContractViolation, match="was begun for ada@acme; it cannot go on for bob@acme"):
        await loop.recover("one", principal=BOB)
    with pytest.raises(ContractViolation, match="was begun for ada@acme; it cannot go on for bob@acme"):
        await loop.get_or_start("Who?", "one", principal=BOB)
    assert (await loop.resume("one", {call.key: approve(call.digest)})).output == "ada@acme"
    assert (await loop.recover("one", principal=ADA)).output == "ada@acme"
    await asking(journal=journal).execute("Who?", execution_id="two")
    with pytest.raises(ContractViolation, match="begun without a principal; it cannot go on for ada@acme"):
        await loop.get_or_start("Who?", "two", principal=ADA)


async def test_a_state_in_the_middle_keeps_who_asked() -> None:
    """A state of an execution in progress is continued for the principal that began it, and for no other."""
    states = asking().iterate("Who?", principal=ADA)
    middle = await anext(states)
    await states.aclose()
    with pytest.raises(ContractViolation, match="cannot go on for bob@acme"):
        await asking().execute(middle, principal=BOB)
    last = AgentLoop.for_model(ScriptedInference("Done."), tools=[whoami])
    assert principal_of(await last.execute(middle)) == ADA


async def test_each_turn_of_a_session_has_its_own_principal() -> None:
    """Several people can talk in one session; a message that waits keeps who sent it, and nobody else can take its id."""
    loop = asking(journal=MemoryJournal())
    assert await loop.run("Who?", session="s", principal=ADA) == "ada@acme"
    assert await loop.run("Who?", session="s", principal=BOB) == "bob@acme"
    assert await loop.run("Who?", session="s") == "nobody"
    queue = SessionQueue.of(loop.journal, "t")
    await queue.add(Message.user("Who?"), "waits", loop.clock, principal=ADA)
    with pytest.raises(JournalConflict, match="another message"):
        await loop.get_or_start("Who?", "waits", session="t", principal=BOB)
    assert (await loop.get_or_start("Who?", "waits", session="t")).output == "ada@acme"
