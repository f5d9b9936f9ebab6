"""A world inside of one process: tools that count what they do, and a journal that dies at an append."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen

from agentloop import AgentLoop, ToolCall, ToolCallingDriver, ToolContext, tool
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool
from agentloop.errors import JournalError
from agentloop.interception import RequireApproval
from agentloop.journal import MemoryJournal
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

SECRET = 'card "4111-1111"'
RUN = "run"
Turn = Sequence[tuple[str, str]]
"""The calls of a step: the name of a tool, and its text."""


class Dead(JournalError):
    """The process has died, as far as the journal is concerned."""


class MortalJournal(MemoryJournal):
    """A journal in memory that takes no more appends after some: what it holds is what a process that was killed leaves."""

    def __init__(self, secrets: Sequence[str]) -> None:
        super().__init__(secrets=secrets)
        self.left: int | None = None
        self.last_is_kept = False
        self.cancels: asyncio.Task[Any] | None = None

    def live(
        self, appends: int | None, *, last_is_kept: bool = False, cancels: asyncio.Task[Any] | None = None
    ) -> None:
        """Begin another life.

        Args:
            appends: how many appends return in it; None for all.
            last_is_kept: whether the records of the append that it dies in are there afterwards.
            cancels: what is cancelled instead of dying.
        """
        self.left, self.last_is_kept, self.cancels = appends, last_is_kept, cancels

    @property
    def is_dead(self) -> bool:
        """Whether the process has died."""
        return self.left is not None and self.left < 0

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Append, or die."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0 and self.cancels is not None:
                self.cancels.cancel()
                self.left = None
            elif self.left < 0:
                if self.left == -1 and self.last_is_kept:
                    await super().append(head, records)
                raise Dead("the process was killed")
        await super().append(head, records)


@define
class World:
    """What tools have done.

    Attributes:
        runs: how often each call has had its effect, by its idempotency key.
        texts: the arguments that calls ran with, by key.
    """

    runs: Counter[str] = field(factory=Counter)
    texts: dict[str, set[str]] = field(factory=dict)

    def do(self, context: ToolContext, text: str) -> str:
        """Have an effect."""
        key = context.idempotency_key
        self.runs[key] += 1
        self.texts.setdefault(key, set()).add(text)
        return f"did {text}"

    def tools(self) -> list[Tool]:
        """Make a tool of each kind; `asked` is one that a person is asked about."""

        @tool(effect="pure")
        async def pure(text: str, context: ToolContext) -> str:
            """Do something that changes nothing."""
            return self.do(context, text)

        @tool(effect="idempotent")
        def idempotent(text: str, context: ToolContext) -> str:
            """Do something that can be repeated."""
            return self.do(context, text)

        @tool
        async def effect(text: str, context: ToolContext) -> str:
            """Do something."""
            return self.do(context, text)

        @tool(sequential=True)
        async def asked(text: str, context: ToolContext) -> str:
            """Do something that a person is asked about."""
            return self.do(context, text)

        async def find_out(context: ToolContext) -> Reconciliation:
            return happened("found") if self.runs[context.idempotency_key] else did_not_happen()

        @tool(reconcile=find_out)
        async def probed(text: str, context: ToolContext) -> str:
            """Do something that can be looked up."""
            return self.do(context, text)

        return [pure, idempotent, effect, asked, probed]


@frozen
class Model(CanInfer):
    """Decides from what it is asked alone: the calls of the turn that follows those in the request, and at last an answer."""

    turns: Sequence[Turn]

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Give the next turn."""
        number = sum(bool(message.exchanges) for message in request.messages)
        usage = Usage(input_tokens=10, output_tokens=number)
        if number >= len(self.turns):
            return InferenceResponse((Text("done"),), usage=usage)
        calls = [
            ToolCall(f"c{number}_{at}", name, format_json({_parameter(name): text}).decode())
            for at, (name, text) in enumerate(self.turns[number])
        ]
        return InferenceResponse((Text("on it"), *calls), usage=usage)


def _parameter(name: str) -> str:
    return "task" if name.startswith("agent") else "text"


def loop_of(
    world: World,
    turns: Sequence[Turn],
    inner: Sequence[Turn],
    journal: MemoryJournal,
    *interceptors: CanIntercept,
    in_doubt: InDoubt = InDoubt.TELL,
) -> AgentLoop:
    """Make a loop, with an agent as one of its tools; a person is asked about the calls of `asked`.

    Args:
        world: what the tools change.
        turns: what its model does.
        inner: what the model of the agent does.
        journal: where it is written down.
        interceptors: more of them.
        in_doubt: what becomes of calls in doubt.
    """
    approval = RequireApproval(["asked"])
    helper = AgentLoop(ToolCallingDriver(inference=Model(inner)), world.tools(), interceptors=[approval])
    tools = [*world.tools(), helper.as_tool("agent", "Does a part of the work.")]
    driver = ToolCallingDriver(inference=Model(turns))
    return AgentLoop(driver, tools, journal=journal, in_doubt=in_doubt, interceptors=[approval, *interceptors])
