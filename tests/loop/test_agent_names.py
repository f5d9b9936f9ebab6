"""The name of an agent: where it comes from, which executions have it, and what a rule makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    Permissions,
    RequireApproval,
    ScriptedInference,
    Tool,
    ToolCall,
    from_json,
    handoff_to,
    to_json,
    tool,
)
from agentloop.durable import MemoryJournal, replay
from agentloop.errors import InvalidParameter
from agentloop.events import ConversationHandedOver
from agentloop.events.operations import current_operation
from agentloop.interception import Rule
from agentloop.policies import AuditLog
from agentloop.testing import CountingIds, ManualClock
from agentloop.values import Event, approve
from agentloop.values.state import AGENT_NAME


@tool(effect="pure")
def whose() -> str:
    """Return the name of the agent that calls."""
    operation = current_operation()
    return "" if operation is None else operation.agent_name


CALL = ToolCall("1", "whose", "{}")


def agent(*lines: Any, **parts: Any) -> AgentLoop[str]:
    """Return a loop whose model follows a script."""
    return AgentLoop.for_model(ScriptedInference(*lines), ids=CountingIds(), clock=ManualClock(), **parts)


def results(state: AgentState) -> list[object]:
    """Return the results of the calls."""
    return [execution.value for step in state.steps for execution in step.executions]


def test_a_name_is_in_the_state_the_events_and_the_operation() -> None:
    """The name is no id: the ids stay what they are, and the state keeps the name when it is stored and loaded."""
    loop, heard = agent(CALL, "Done.", tools=[whose], name="support"), list[Event]()
    loop.wiretap(heard.append)
    state = loop.execute_sync("Whose?")
    assert (state.agent_name, state.agent_id) == ("support", "agent_1")
    assert results(state) == ["support"]
    assert {(event.agent_name, event.head.agent_name, event.agent_id) for event in heard} == {
        ("support", "support", "agent_1")
    }
    assert from_json(to_json(state), AgentState).agent_name == "support"
    assert "support" in repr(loop)
    assert loop.describe().startswith("name      support\n")


def test_an_agent_without_a_name_has_none_anywhere() -> None:
    """Its state, its records and its description are those of the time before there were names."""
    loop, heard = agent(CALL, "Done.", tools=[whose]), list[Event]()
    loop.wiretap(heard.append)
    state = loop.execute_sync("Whose?")
    assert state.agent_name == loop.name == ""
    assert results(state) == [""]
    assert AGENT_NAME not in state.extensions
    assert b"agent_name" not in to_json(state)
    assert {event.agent_name for event in heard} == {""}
    assert loop.describe().startswith("driver")


def test_the_next_execution_has_the_name_that_the_loop_has_then() -> None:
    """A conversation that another definition continues goes by the name of that one, or by none."""
    state = agent("One.", name="support").execute_sync("First?")
    renamed = agent("Two.", name="help desk").execute_sync(state.with_message("Second?"))
    assert (renamed.agent_name, renamed.agent_id) == ("help desk", state.agent_id)
    assert agent("Three.").execute_sync(renamed.with_message("Third?")).agent_name == ""


def test_a_changed_copy_keeps_the_name_or_replaces_it() -> None:
    """`replace` treats the name as any other part of a loop."""
    loop = agent("Hi.", name="support")
    assert loop.replace(max_steps=3).name == loop.with_interceptors(RequireApproval()).name == "support"
    assert loop.replace(name="sales").name == "sales"
    assert loop.replace(name="").execute_sync("Hi?").agent_name == ""


@pytest.mark.parametrize("name", ["Kundendienst für Süd", "顧客支援", "a" * 255, "shop:agent", "1"])
def test_a_name_is_a_line_of_visible_text(name: str) -> None:
    """People choose it, so it has any letters and spaces inside."""
    assert agent("Hi.", name=name).execute_sync("Hi?").agent_name == name


@pytest.mark.parametrize(
    "name", [" support", "support\n", "two\nlines", "a\tb", "\x1b[31mred", "a\u202eb", "a\u200bb", "a" * 256, 5, None]
)
def test_another_name_is_refused_where_the_loop_is_made(name: Any) -> None:
    """A name that a terminal or a log would show in another way than it is, or that is no text, is an error."""
    with pytest.raises(InvalidParameter, match="the name of an agent"):
        agent("Hi.", name=name)


# --- sub-agents and handoffs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "expected"), [("researcher", "researcher"), ("", "research")])
def test_an_agent_that_serves_a_call_has_its_own_name_or_that_of_the_tool(own: str, expected: str) -> None:
    """Each agent of a tree goes by its name, in the events and in the records."""
    journal, heard = MemoryJournal(), list[Event]()
    inner = agent(CALL, "Found.", tools=[whose], name=own)
    ask = ToolCall("1", "research", '{"task": "Look."}')
    loop = agent(ask, "Done.", tools=[inner.as_tool("research", "Look.")], name="front", journal=journal)
    loop.wiretap(heard.append)
    state = loop.execute_sync("Go.", execution_id="e")
    assert state.agent_name == "front"
    assert {(event.parent_agent_id is None, event.agent_name) for event in heard} == {
        (True, "front"),
        (False, expected),
    }
    assert inner.name == own


async def test_heads_of_a_tree_have_the_names() -> None:
    """A journal lists each execution with the name of its agent."""
    journal = MemoryJournal()
    tools: list[Tool] = [agent("Found.").as_tool("research", "Look.")]
    ask = ToolCall("1", "research", '{"task": "Look."}')
    await agent(ask, "Done.", tools=tools, name="front", journal=journal).execute("Go.", execution_id="e")
    nameless = AgentState.start("Go.", agent_id="nameless")
    await agent("Done.", journal=journal).execute(nameless, execution_id="nameless")
    names = {head.execution_id: head.agent_name for head in await journal.list()}
    assert names == {"e": "front", "e/1/0/agent": "research", "nameless": ""}


@pytest.mark.parametrize(("target", "expected"), [("billing", "billing"), ("", "to_billing")])
async def test_a_handoff_changes_the_name(target: str, expected: str) -> None:
    """The loop in charge gives the name, a loop without one that of the tool that leads to it; the ids stay."""
    over, heard = ToolCall("1", "to_billing", "{}"), list[Event]()
    billing = agent(CALL, "Paid.", CALL, "Paid again.", tools=[whose], name=target)
    handoff = handoff_to(billing, name="to_billing", description="Money.")
    desk = agent(CALL, over, tools=[whose, handoff], name="desk")
    desk.wiretap(heard.append)
    state = await desk.execute("Go.")
    assert state.agent_name == expected
    assert results(state) == ["desk", "the conversation is handed over", expected]
    names = [event.agent_name for event in heard]
    first = next(index for index, event in enumerate(heard) if isinstance(event, ConversationHandedOver))
    assert (set(names[:first]), set(names[first:])) == ({"desk"}, {expected})
    assert {event.agent_id for event in heard} == {state.agent_id}
    again = await desk.execute(state.with_message("And now?"))
    assert (again.agent_name, results(again)) == (expected, [expected])


@pytest.mark.parametrize("name", ["desk", ""])
async def test_a_conversation_that_comes_back_has_the_first_name_again(name: str) -> None:
    """Back at the executed loop, the name is that of the executed loop, also if that has none."""
    over, back = ToolCall("1", "to_billing", "{}"), ToolCall("1", "to_desk", "{}")
    billing: AgentLoop[Any] = agent(
        back, tools=[handoff_to(lambda: desk, name="to_desk", description="All else.")], name="billing"
    )
    desk: AgentLoop[Any] = agent(
        over, CALL, "Hello.", tools=[whose, handoff_to(billing, name="to_billing", description="Money.")], name=name
    )
    state = await desk.execute("Go.")
    assert (state.agent_name, results(state)[-1]) == (name, name)


# --- rules and lines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("caller", "is_denied"),
    [("support", True), ("sup*", True), ("clerk", True), ("c*", True), ("*", True), ("sales", False), ("", False)],
)
def test_a_rule_is_about_the_name_or_the_id_of_the_caller(caller: str, *, is_denied: bool) -> None:
    """An id stays an id: a rule with one holds as before, and one with the name holds as well."""
    loop = agent(CALL, "Done.", tools=[whose], name="support", interceptors=[Permissions(deny=[Rule(caller=caller)])])
    state = loop.execute_sync(AgentState.start("Go.", agent_id="clerk"))
    assert state.steps[0].executions[0].succeeded is not is_denied


def test_a_rule_with_a_name_is_not_about_an_agent_without_one() -> None:
    """A pattern that an empty text would match needs a name to be about it."""
    loop = agent(CALL, "Done.", tools=[whose], interceptors=[Permissions(deny=[Rule(caller="[!c]*")])])
    state = loop.execute_sync(AgentState.start("Go.", agent_id="clerk"))
    assert state.steps[0].executions[0].succeeded


def test_a_rule_follows_a_handoff() -> None:
    """What the first loop may do, the loop that takes over may not: the rule asks for the loop in charge."""
    over = ToolCall("1", "to_billing", "{}")
    billing = agent(CALL, "Paid.", tools=[whose], name="billing")
    handoff = handoff_to(billing, name="to_billing", description="Money.")
    deny = Permissions(deny=[Rule("whose", caller="billing")])
    state = agent(CALL, over, tools=[whose, handoff], name="desk", interceptors=[deny]).execute_sync("Go.")
    assert [each.succeeded for step in state.steps for each in step.executions] == [True, True, False]


def test_the_audit_log_has_the_name_beside_the_id() -> None:
    """The line of a call names the agent, and has the id of the caller as before; without a name it is as before."""
    lines = list[dict[str, Any]]()
    for name in ("support", ""):
        loop = agent(
            CALL, "Done.", tools=[whose], name=name, interceptors=[AuditLog(lambda line: lines.append({**line}))]
        )
        loop.execute_sync(AgentState.start("Go.", agent_id="clerk"))
    assert [(line.get("agent"), line["caller"]) for line in lines] == [("support", "clerk"), (None, "clerk")]


# --- records --------------------------------------------------------------------------------------------------------


async def test_a_suspended_execution_keeps_the_name_that_it_began_with() -> None:
    """Another process that continues it, with a definition of another name, does not rename it; the next execution does."""
    journal = MemoryJournal()
    parts: dict[str, Any] = {"tools": [whose], "interceptors": [RequireApproval(["whose"])], "journal": journal}
    waiting = await agent(CALL, name="support", **parts).execute("Go.", execution_id="e")
    later = agent("Done.", "Again.", name="sales", **parts)
    resumed = await later.resume("e", {call.key: approve(call.digest) for call in waiting.pending})
    head = await journal.head("e")
    assert head is not None
    assert (resumed.agent_name, head.agent_name, results(resumed)) == ("support", "support", ["support"])
    assert (await later.execute(resumed.with_message("And now?"))).agent_name == "sales"


async def test_a_replay_without_or_with_another_name_has_no_divergence() -> None:
    """A recording goes through today's code whatever the agent is called now."""
    journal = MemoryJournal()
    await agent(CALL, "Done.", tools=[whose], journal=journal).execute("Go.", execution_id="e")
    found = await replay(journal, "e", agent(CALL, "Done.", tools=[whose], name="support"))
    assert found.divergence is None
    assert found.is_complete
