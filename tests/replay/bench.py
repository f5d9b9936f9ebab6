"""What the tests of replays share: a support agent that looks orders up, pays, and answers, and how it is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.contracts import CanIntercept, CanJournal
from agentloop.journal import MemoryJournal
from agentloop.values import Effect
from tests.loop.recovery_bench import Model, Turn

SCRIPT: tuple[Turn, ...] = (
    [("look", {"n": 1})],
    [("pay", {"amount": 5}), ("look", {"n": 2})],
    [("pay", {"amount": 7})],
    "All is paid.",
)


class Ledger:
    """What the tools have done."""

    def __init__(self) -> None:
        self.done: list[str] = []


def tools(ledger: Ledger, *, look: str = "Look an order up.", pay: str = "Pay an amount.") -> list[Any]:
    """Return a tool that changes nothing and one that pays, with these descriptions."""

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
    given: Sequence[Any] | None = None,
    **parts: Any,
) -> AgentLoop:
    """Return a loop whose model follows a script."""
    return AgentLoop(
        ToolCallingDriver(Model(*(turns or SCRIPT))) if driver is None else driver,
        tools(Ledger() if ledger is None else ledger) if given is None else given,
        journal=journal,
        interceptors=tuple(interceptors),
        **parts,
    )


async def recorded(*turns: Turn, **parts: Any) -> MemoryJournal:
    """Record an execution `run`, and return its journal."""
    journal = MemoryJournal()
    await loop_of(*turns, journal=journal, **parts).execute("What about my orders?", execution_id="run")
    return journal
