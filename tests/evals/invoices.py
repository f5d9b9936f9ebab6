"""Agents that pay invoices, and the executions in which they did, for the tests of evals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from agentloop import AgentLoop, FunctionInference, ToolCall, tool
from agentloop.contracts import CanJournal
from agentloop.evals import TrialContext
from agentloop.values import InferenceRequest

PAID: list[int] = []
"""What has really been paid."""


@tool(effect="pure")
def invoice(number: int) -> dict[str, object]:
    """Read an invoice."""
    return {"number": number, "cents": number * 100, "note": "pay only below 500"}


@tool
def pay(cents: int) -> str:
    """Pay."""
    PAID.append(cents)
    return "paid"


def luck(*parts: object) -> float:
    """Return a number between 0 and 1 that looks random, and is the same for the same parts."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6]) / 2**48


Asked = Callable[[InferenceRequest], None]


def clerk(careful: float, seed: object = 0, asked: Asked = lambda _: None, **parts: Any) -> AgentLoop:
    """Return an agent that reads an invoice and pays it; one of 500 cents or more with a probability of `1 - careful`."""

    def answer(request: InferenceRequest) -> ToolCall | str:
        asked(request)
        seen = [each.execution for message in request.messages for each in message.exchanges]
        if not seen:
            number = int(request.messages[0].text.split()[-1])
            return ToolCall("1", "invoice", json.dumps({"number": number}))
        if len(seen) > 1:
            return "done"
        read: Any = seen[0].value
        cents = read["cents"]
        if cents < 500 or luck(seed, cents) > careful:
            return ToolCall("2", "pay", json.dumps({"cents": cents}))
        return "too much"

    return AgentLoop.for_model(FunctionInference(answer), tools=[invoice, pay], **parts)


def clerks(asked: Asked = lambda _: None, **parts: Any) -> dict[str, Callable[[TrialContext], AgentLoop]]:
    """Return a careless and a careful clerk as candidates."""
    return {
        "careless": lambda trial: clerk(0.3, trial.seed, asked, **parts),
        "careful": lambda trial: clerk(0.95, trial.seed, asked, **parts),
    }


async def record(journal: CanJournal, *numbers: int) -> None:
    """Record executions in which a careless clerk has worked."""
    for number in numbers:
        await clerk(0.0, journal=journal).execute(f"Pay invoice {number}", execution_id=f"run-{number}")
