"""A support agent that looks up orders and pays, and a recorded execution of it: shared by the tests of replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.contracts import CanIntercept, CanJournal
from agentloop.durable import MemoryJournal
from agentloop.values import Effect
from tests.durable.recovery_bench import Model, Turn

SCRIPT: tuple[Turn, ...] = (
    [("look", {"n": 1})],
    [("pay", {"amount": 5}), ("look", {"n": 2})],
    [("pay", {"amount": 7})],
    "All is paid.",
)


class Ledger:
    """Records the effects of the tools."""

    def __init__(self) -> None:
        self.done: list[str] = []


def tools(ledger: Ledger, *, look: str = "Look up an order.", pay: str = "Pay an amount.") -> list[Any]:
    """Return a tool without effects and a tool that pays, with these descriptions."""

    @tool(effect=Effect.PURE, name="look", description=look)
    async def look_up(n: int) -> str:
        """Look."""
        ledger.done.append(f"look {n}")
        return f"order {n}"

    @tool(name="pay", description=pay)
    async def pay_out(amount: int) -> str:
        """Pay."""
        ledger.done.append(f"pay {amount}")
        return f"paid {amount}"

    return [look_up, pay_out]


def loop_of(
    *turns: Turn,
    journal: CanJournal | None = None,
    interceptors: Iterable[CanIntercept] = (),
    ledger: Ledger | None = None,
    driver: Any = None,
    tool_list: Sequence[Any] | None = None,
    **parts: Any,
) -> AgentLoop:
    """Return a loop whose model follows a script."""
    return AgentLoop(
        ToolCallingDriver(Model(*(turns or SCRIPT))) if driver is None else driver,
        tools(Ledger() if ledger is None else ledger) if tool_list is None else tool_list,
        journal=journal,
        interceptors=tuple(interceptors),
        **parts,
    )


async def record_run(*turns: Turn, **parts: Any) -> MemoryJournal:
    """Record an execution `run`, and return its journal."""
    journal = MemoryJournal()
    await loop_of(*turns, journal=journal, **parts).execute("What about my orders?", execution_id="run")
    return journal
