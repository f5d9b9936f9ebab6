"""The extensions of a state in journals, forks and sub-agents."""

from __future__ import annotations

import json

from attrs import evolve
from hypothesis import given

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall
from agentloop.durable import MemoryJournal
from agentloop.durable.chain import record_hash
from agentloop.durable.deltas import apply_state_delta, state_delta
from agentloop.durable.fold import fold_records
from agentloop.interception import RequireApproval, at
from agentloop.testing import Ledger, toy_tools
from agentloop.testing.strategies import json_objects
from agentloop.values import JsonObject, approve, to_json
from agentloop.values.points import AfterStep
from agentloop.values.records import FIRST_HASH, JournalRecord


@given(json_objects(), json_objects())
def test_a_delta_of_extensions_gives_the_later_state(before: JsonObject, after: JsonObject) -> None:
    """Owners that were added, changed, removed or put in another order come out to the letter."""
    earlier = evolve(AgentState.start("go"), extensions=before)
    later = evolve(earlier, extensions={**after, **{owner: before[owner] for owner in list(before)[:1]}})
    delta = json.loads(json.dumps(state_delta(earlier, later)))
    assert to_json(apply_state_delta(earlier, delta)) == to_json(later)
    assert "extensions" not in state_delta(later, later)


def test_an_unchanged_extension_is_not_written_again() -> None:
    """A record holds the extensions that changed, however many there are."""
    earlier = AgentState.start("go").with_extension("acme.long", "x" * 1_000).with_extension("acme.count", 1)
    assert state_delta(earlier, earlier.with_extension("acme.count", 2)) == {"extensions": {"acme.count": 2}}


def noting_loop(journal: MemoryJournal, *lines: ToolCall | str) -> AgentLoop:
    """Return a loop that counts its steps in an extension."""

    def count(point: AfterStep) -> AfterStep:
        return point.with_state(point.state.with_extension("acme.steps", point.state.step_count))

    return AgentLoop.for_model(
        ScriptedInference(*lines),
        tools=toy_tools(Ledger()),
        interceptors=[at("after_step", count), RequireApproval("plain")],
        journal=journal,
    )


async def test_extensions_are_recorded_and_forked() -> None:
    """A suspended execution has its extensions when it is resumed by its id, and a fork has those of its step."""
    journal = MemoryJournal()
    lines = (ToolCall("1", "echo", '{"value": 1}'), ToolCall("2", "plain", '{"value": 2}'), "done")
    state = await noting_loop(journal, *lines).execute("go", execution_id="run")
    assert state.extension("acme.steps") == 2
    assert await journal.state("run") == state
    fork_id = await journal.fork("run", 1)
    assert (await journal.state(fork_id)).extension("acme.steps") == 1
    resumed = await noting_loop(journal, "done").resume("run", {"run/2/0": approve()})
    assert resumed.extension("acme.steps") == 3


async def test_records_of_version_1_are_read_with_extensions() -> None:
    """What version 1 recorded among the metadata is an extension in the state of today."""
    journal = MemoryJournal()
    await AgentLoop.for_model(ScriptedInference("done"), journal=journal).execute("go", execution_id="run")
    old, previous = list[JournalRecord](), FIRST_HASH
    for record in await journal.read("run"):
        body = json.loads(record.body)
        for delta in (body.get("state"), body.get("delta")):
            if delta is not None and not old:
                delta["context"] = {"metadata": {"tenant": 7, "agentloop.summary": {"text": "…", "covers": 1, "at": 1}}}
        written = evolve(record, schema_version=1, body=json.dumps(body), previous_hash=previous)
        old.append(evolve(written, hash=record_hash(written)))
        previous = old[-1].hash
    state = fold_records(old, "run").state
    assert state is not None
    assert state.context.metadata == {"tenant": 7}
    assert state.extensions == {"agentloop.summary": JsonObject(text="…", covers=1, at=1)}
