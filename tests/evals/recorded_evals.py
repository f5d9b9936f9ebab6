"""A small eval whose executions are recorded: two candidates that refund orders, one of which errs on large ones."""

from __future__ import annotations

import json

from attrs import evolve

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable.memory_journal import MemoryJournal
from agentloop.evals.results import EvalResult
from agentloop.testing import CountingIds, ManualClock
from tests.evals.made_results import make_result


@tool(effect="pure")
def look_up(order: int) -> dict[str, int]:
    """Look up an order."""
    return {"order": order, "cents": order * 100}


@tool(effect="pure")
def refund(order: int, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents} of {order}"


async def recorded_eval(cases: int = 12, repeats: int = 3) -> tuple[EvalResult, MemoryJournal]:
    """Return a result, and the journal of its executions; `short` refunds a dollar too much of every third order, but once."""
    passes = {
        "main": [[True] * repeats for _ in range(cases)],
        "short": [[number % 3 != 2 or repeat == 0 for repeat in range(repeats)] for number in range(cases)],
    }
    result = make_result(passes, cost=lambda name, case, _: (0.01 if name == "main" else 0.007) * (1 + case / 10))
    journal, ids = MemoryJournal(), CountingIds()
    for trial in result.trials:
        order = int(trial.case.split()[-1]) + 1
        cents = order * 100 + (0 if trial.passed else 100)
        model = ScriptedInference(
            ToolCall("1", "look_up", json.dumps({"order": order})),
            ToolCall("2", "refund", json.dumps({"order": order, "cents": cents})),
            f"I have refunded <b>order {order}</b>.",
        )
        loop = AgentLoop.for_model(model, tools=[look_up, refund], journal=journal, clock=ManualClock(), ids=ids)
        await loop.execute(f"Refund order {order}.", execution_id=trial.execution_id)
    return evolve(result, suite="refunds & <returns>"), journal
