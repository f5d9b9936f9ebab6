"""Replays of executions whose calls were made by programs."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, Permissions, RequireApproval, ToolCallingDriver, tool
from agentloop.durable import MemoryJournal, replay
from agentloop.models import RunProgram
from agentloop.values import Decision, answer, approve, deny
from tests.durable.recovery_bench import Model

SOURCE = """
import asyncio
a, b = await asyncio.gather(look(n=1), look(n=2))
try:
    await look(n=-1)
except RuntimeError:
    pass
paid = await pay(amount=a + b)
print(paid)
"""


def make_loop(journal: MemoryJournal | None, done: list[str], *, source: str = SOURCE, **parts: Any) -> AgentLoop:
    """Return a loop whose model runs a program."""

    @tool(effect="pure")
    async def look(n: int) -> int:
        """Look."""
        done.append(f"look {n}")
        if n < 0:
            raise ValueError("nothing there")
        return n

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        done.append(f"pay {amount}")
        return f"paid {amount}"

    driver = ToolCallingDriver(Model([("run_program", {"code": source})], "Done."))
    return AgentLoop(driver, [look, pay, RunProgram()], journal=journal, **parts)


@pytest.mark.parametrize("approval", [False, True])
async def test_a_program_is_replayed_on_its_recorded_calls(approval: bool) -> None:  # noqa: FBT001  # a parameter
    """The program runs again, no tool runs, and each of its calls is compared."""
    journal, done = MemoryJournal(), list[str]()
    interceptors = [RequireApproval("pay")] if approval else []
    loop = make_loop(journal, done, interceptors=interceptors)
    state = await loop.execute("Go.", execution_id="run")
    if approval:
        state = await loop.resume("run", {call.key: approve() for call in state.pending if not call.waits_for})
    assert state.final_text == "Done."
    assert done == ["look 1", "look 2", "look -1", "pay 3"]
    done.clear()
    result = await replay(journal, "run", make_loop(None, done, interceptors=interceptors))
    assert result.is_equal, result.explain()
    assert result.calls >= 5
    assert done == []


@pytest.mark.parametrize("decision", [deny("no"), answer("paid by hand")], ids=["deny", "answer"])
async def test_a_program_whose_call_was_decided_without_running_is_replayed(decision: Decision) -> None:
    """The times of a call that did not run are not compared, as those of a call of the model are not."""
    journal, done = MemoryJournal(), list[str]()
    source = (
        "for amount in (-1, 1):\n    try:\n        await pay(amount=amount)\n    except PermissionError:\n        pass"
    )
    loop = make_loop(journal, done, source=source, interceptors=[RequireApproval("pay")])
    state = await loop.execute("Go.", execution_id="run")
    for _ in range(2):
        state = await loop.resume("run", {call.key: decision for call in state.pending if not call.waits_for})
    assert state.final_text == "Done."
    assert done == []
    result = await replay(journal, "run", loop)
    assert result.is_equal, result.explain()


async def test_a_rule_that_blocks_a_call_of_a_program_is_the_divergence() -> None:
    """Today's permissions apply to the calls of a recorded program."""
    journal, done = MemoryJournal(), list[str]()
    await make_loop(journal, done).execute("Go.", execution_id="run")
    result = await replay(journal, "run", make_loop(None, done, interceptors=[Permissions(deny=["pay"])]))
    assert not result.is_equal
    assert "pay" in result.explain()
    assert "Permissions" in result.explain()
