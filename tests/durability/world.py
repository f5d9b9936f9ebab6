"""A simulation in one process: tools that count their effects, and a journal that simulates a kill at an append."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from attrs import define, field, frozen

from agentloop import AgentLoop, ToolCall, ToolCallingDriver, ToolContext, tool
from agentloop._event_loops import run_with
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import Claim
from agentloop.contracts.tool import Tool
from agentloop.durable import MemoryJournal
from agentloop.errors import JournalError
from agentloop.interception import RequireApproval
from agentloop.values import (
    ExecutionHead,
    InDoubt,
    InferenceRequest,
    InferenceResponse,
    JournalRecord,
    Text,
    Usage,
    did_not_happen,
    happened,
)
from agentloop.values.json import format_json
from agentloop.values.records import Reconciliation

T = TypeVar("T")

SECRET = 'card "4111-1111"'
RUN = "run"
Turn = Sequence[tuple[str, str]]
"""The calls of a step: each the name of a tool and its text."""


def run_alone(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, without the texts that it makes of the result, which may be all records."""
    with asyncio.Runner() as runner:
        return run_with(runner, work)


class ProcessKilled(JournalError):
    """The simulated process was killed."""


class MortalJournal(MemoryJournal):
    """A journal in memory that fails after some appends; it then holds what a killed process leaves."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__(secrets=secrets)
        self.remaining: int | None = None
        self.stores_last = False
        self.cancels: asyncio.Task[Any] | None = None

    def start_process(
        self, appends: int | None, *, stores_last: bool = False, cancels: asyncio.Task[Any] | None = None
    ) -> None:
        """Simulate another process.

        Args:
            appends: the number of appends that succeed; None for all.
            stores_last: whether the append during which the process is killed stores its records.
            cancels: a task to cancel in place of the kill.
        """
        self.remaining, self.stores_last, self.cancels = appends, stores_last, cancels

    @property
    def is_killed(self) -> bool:
        """Whether the simulated process was killed."""
        return self.remaining is not None and self.remaining < 0

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append records, or simulate the kill."""
        if self.remaining is not None:
            self.remaining -= 1
            if self.remaining < 0 and self.cancels is not None:
                self.cancels.cancel()
                self.remaining = None
            elif self.remaining < 0:
                if self.remaining == -1 and self.stores_last:
                    await super().append(head, records, claim)
                raise ProcessKilled("the process was killed")
        await super().append(head, records, claim)


@define
class World:
    """The effects of tools.

    Attributes:
        runs: the number of effects of each call, by its idempotency key.
        texts: the arguments with which calls ran, by key.
    """

    runs: Counter[str] = field(factory=Counter)
    texts: dict[str, set[str]] = field(factory=dict)

    def have_effect(self, context: ToolContext, text: str) -> str:
        """Count an effect."""
        key = context.idempotency_key
        self.runs[key] += 1
        self.texts.setdefault(key, set()).add(text)
        return f"did {text}"

    def tools(self) -> list[Tool]:
        """Return a tool of each kind; `approved` needs the approval of a person."""

        @tool(effect="pure")
        async def pure(text: str, context: ToolContext) -> str:
            """Do something that changes nothing."""
            return self.have_effect(context, text)

        @tool(effect="idempotent")
        def idempotent(text: str, context: ToolContext) -> str:
            """Do something that can be repeated."""
            return self.have_effect(context, text)

        @tool
        async def effect(text: str, context: ToolContext) -> str:
            """Do something."""
            return self.have_effect(context, text)

        @tool(sequential=True)
        async def approved(text: str, context: ToolContext) -> str:
            """Do something that needs an approval."""
            return self.have_effect(context, text)

        async def look_up(context: ToolContext) -> Reconciliation:
            return happened("found") if self.runs[context.idempotency_key] else did_not_happen()

        @tool(reconcile=look_up)
        async def reconciled(text: str, context: ToolContext) -> str:
            """Do something that can be looked up."""
            return self.have_effect(context, text)

        return [pure, idempotent, effect, approved, reconciled]


@frozen
class Model(CanInfer):
    """A model without state: it makes the calls of the turn after those in the request, and answers after the last turn."""

    turns: Sequence[Turn]

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the next turn."""
        number = sum(bool(message.exchanges) for message in request.messages)
        usage = Usage(input_tokens=10, output_tokens=number)
        if number >= len(self.turns):
            return InferenceResponse((Text("done"),), usage=usage)
        calls = [
            ToolCall(f"c{number}_{index}", name, format_json({_parameter(name): text}).decode())
            for index, (name, text) in enumerate(self.turns[number])
        ]
        return InferenceResponse((Text("on it"), *calls), usage=usage)


def _parameter(name: str) -> str:
    return "task" if name.startswith("agent") else "text"


def make_loop(
    world: World,
    turns: Sequence[Turn],
    inner: Sequence[Turn],
    journal: MemoryJournal,
    *interceptors: CanIntercept,
    in_doubt: InDoubt = InDoubt.TELL,
) -> AgentLoop:
    """Return a loop with an agent as one of its tools; calls of `approved` need an approval.

    Args:
        world: counts the effects of the tools.
        turns: the turns of its model.
        inner: the turns of the agent's model.
        journal: the journal.
        interceptors: additional interceptors.
        in_doubt: what happens to calls in doubt.
    """
    approval = RequireApproval(["approved"])
    helper = AgentLoop(ToolCallingDriver(inference=Model(inner)), world.tools(), interceptors=[approval])
    tools = [*world.tools(), helper.as_tool("agent", "Does a part of the work.")]
    driver = ToolCallingDriver(inference=Model(turns))
    return AgentLoop(driver, tools, journal=journal, in_doubt=in_doubt, interceptors=[approval, *interceptors])
