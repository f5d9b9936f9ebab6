"""The agent of chaos runs, as a worker builds it: `tests.chaos.agents:loop`.

Its tools have effects of every kind and write them to the ledger; what it reports of its executions goes to files beside the ledger.
`CHAOS_FOLDER` names the folder of the ledger, `CHAOS_MODEL` the URL of the model, `CHAOS_WORKER` the name of the worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

from attrs import define

from agentloop import AgentLoop, ToolContext, tool
from agentloop.contracts.tool import Tool
from agentloop.events import (
    AgentExecutionCompleted,
    AgentStepCompleted,
    InferenceRequestStarted,
    ProtocolMonitor,
    ToolCallCompleted,
    ToolCallRecovered,
)
from agentloop.service.cluster import QueuedToolExecutor
from agentloop.values import Event, did_not_happen, happened
from agentloop.values.records import Reconciliation
from tests.chaos.ledger import AFTER, BEFORE, EFFECT, ENDED, INFERENCE, OUTCOME, STEP, Ledger

PAUSE = 0.02
"""Seconds between the beginning of a call, its effect, and its end, so that calls overlap."""
_LONG = 600.0
_MAX_STEPS = 2000


@define
class Shop:
    """The tools, with what their effects are written to.

    Attributes:
        ledger: the ledger.
    """

    ledger: Ledger

    def tools(self) -> list[Tool]:
        """Return one tool for each kind of effect, one that runs in a thread, one that runs alone, and three for special faults."""
        return [
            tool(effect="pure")(self.read),
            tool(effect="idempotent")(self.put),
            tool(self.pay),
            tool(reconcile=self.look_up)(self.book),
            tool(self.grind),
            tool(sequential=True)(self.seal),
            tool(effect="pure")(self.tick),
            tool(self.linger),
            tool(effect="idempotent")(self.crash),
        ]

    async def read(self, number: int, context: ToolContext) -> str:
        """Look something up."""
        return await self._have_effect(context, number, "read", "pure")

    async def put(self, number: int, context: ToolContext) -> str:
        """Do something that can be repeated."""
        return await self._have_effect(context, number, "put", "idempotent")

    async def pay(self, number: int, context: ToolContext) -> str:
        """Do something once."""
        return await self._have_effect(context, number, "pay", "effect")

    async def book(self, number: int, context: ToolContext) -> str:
        """Do something once that can be looked up, at a service that checks tokens."""
        self._write(BEFORE, context, "book", "effect")
        await asyncio.sleep(PAUSE)
        self.ledger.write_fenced(context.idempotency_key, _token(context), tool="book", effect="effect")
        await asyncio.sleep(PAUSE)
        self._write(AFTER, context, "book", "effect")
        return f"did {number}"

    async def look_up(self, context: ToolContext) -> Reconciliation:
        """Look up whether a call has happened."""
        # Without the token, a worker that lost its claim while it is in the middle of the call could have the effect later.
        has_happened = self.ledger.ask(context.idempotency_key, _token(context))
        return happened("found") if has_happened else did_not_happen()

    def grind(self, number: int, context: ToolContext) -> str:
        """Do something once, in a thread."""
        self._write(BEFORE, context, "grind", "effect")
        time.sleep(PAUSE)
        self._write(EFFECT, context, "grind", "effect")
        time.sleep(PAUSE)
        self._write(AFTER, context, "grind", "effect")
        return f"did {number}"

    async def seal(self, number: int, context: ToolContext) -> str:
        """Do something once, alone."""
        return await self._have_effect(context, number, "seal", "effect")

    async def tick(self, number: int, context: ToolContext) -> str:
        """Do next to nothing."""
        self._write(EFFECT, context, "tick", "pure")
        return f"did {number}"

    async def linger(self, number: int, context: ToolContext) -> str:
        """Do something that takes longer than any test."""
        self._write(BEFORE, context, "linger", "effect")
        await asyncio.sleep(_LONG)
        return f"did {number}"

    async def crash(self, number: int, context: ToolContext) -> str:
        """End the process that runs this."""
        self._write(BEFORE, context, "crash", "idempotent")
        os.kill(os.getpid(), signal.SIGKILL)
        return f"did {number}"

    def _write(self, phase: str, context: ToolContext, name: str, effect: str) -> None:
        self.ledger.write(
            phase, context.idempotency_key, tool=name, effect=effect, token=getattr(context, "claim_token", None)
        )

    async def _have_effect(self, context: ToolContext, number: int, name: str, effect: str) -> str:
        self._write(BEFORE, context, name, effect)
        await asyncio.sleep(PAUSE)
        self._write(EFFECT, context, name, effect)
        await asyncio.sleep(PAUSE)
        self._write(AFTER, context, name, effect)
        return f"did {number}"


def _token(context: ToolContext) -> int:
    return context.claim_token or 0


def observe(loop: AgentLoop, ledger: Ledger) -> None:
    """Write what a loop reports to the ledger and the files beside it."""
    monitor = ProtocolMonitor()

    def check(event: Event) -> None:
        known = len(monitor.violations)
        monitor(event)
        for violation in monitor.violations[known:]:
            ledger.note("violations", f"{ledger.worker}: {violation}")
        ledger.note("events", f"{type(event).__name__} {event.execution_id}")

    def note_recovery(event: ToolCallRecovered) -> None:
        ledger.note("recovered", f"{event.recovery.value} {event.key}")

    def note_outcome(event: ToolCallCompleted) -> None:
        ledger.note(
            "outcomes",
            json.dumps([event.execution.status.value, event.key, ledger.worker, event.execution.error_message]),
        )
        ledger.write(OUTCOME, event.execution.key)

    loop.wiretap(check)
    loop.on(ToolCallRecovered, note_recovery)
    loop.on(ToolCallCompleted, note_outcome)
    loop.on(InferenceRequestStarted, lambda event: ledger.write(INFERENCE, event.execution_id))
    loop.on(AgentStepCompleted, lambda event: ledger.write(STEP, event.execution_id))
    loop.on(AgentExecutionCompleted, lambda event: ledger.write(ENDED, event.execution_id))


def build_unobserved(ledger: Ledger, url: str) -> AgentLoop:
    """Return the loop, without the listeners that write what it reports.

    Args:
        ledger: the ledger.
        url: the URL of the model.
    """
    tools = Shop(ledger).tools()
    helper = AgentLoop.for_model("vllm:chaos", base_url=url, tools=tools, max_steps=_MAX_STEPS)
    helper_tool = helper.as_tool("helper", "Does a part of the work.")
    return AgentLoop.for_model("vllm:chaos", base_url=url, tools=[*tools, helper_tool], max_steps=_MAX_STEPS)


def folder() -> Path:
    """Return the folder of the ledger."""
    return Path(os.environ["CHAOS_FOLDER"])


def worker() -> str:
    """Return the name of this worker."""
    return os.environ["CHAOS_WORKER"]


def loop() -> AgentLoop:
    """Return the loop that the environment describes."""
    ledger = Ledger(folder(), worker())
    built = build_unobserved(ledger, os.environ["CHAOS_MODEL"])
    if os.environ.get("CHAOS_TOOLS") == "queued":
        built = built.replace(executor=QueuedToolExecutor())
    observe(built, ledger)
    return built
