"""Tools whose effects are counted outside of the process, and a model without state."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

from agentloop import ToolCall, ToolContext, tool
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.tool import Tool
from agentloop.values import InferenceRequest, InferenceResponse, Text, Usage, did_not_happen, happened
from agentloop.values.policies import RetryPolicy
from agentloop.values.records import Reconciliation
from agentloop.values.tool_calls import ToolStatus
from tests.durability.trial_folder import TrialFolder

Script: TypeAlias = Sequence[Sequence[str]]
"""The names of the tools that each step calls; after the last step, the model answers."""

EFFECTS = ("pure", "idempotent", "effect")
AGENT_PROGRAM = "run_program with agent"
"""In a script, a program that calls an agent, too."""


@frozen
class ScriptedModel(CanInfer):
    """Calls the tools of the script for the step that a request belongs to, and answers after the last step.

    Attributes:
        folder: where it notes the calls in doubt of each request.
        script: the script.
    """

    folder: TrialFolder
    script: Script

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the response of the step after those in the request."""
        turns = [message.exchanges for message in request.messages if message.exchanges]
        for exchange in [exchange for turn in turns for exchange in turn]:
            if exchange.execution.status is ToolStatus.IN_DOUBT:
                self.folder.note("doubts in requests", exchange.execution.key)
        usage = Usage(input_tokens=10, output_tokens=len(turns))
        if len(turns) >= len(self.script):
            return InferenceResponse((Text(f"done after {len(turns)} turns"),), usage=usage)
        step = len(turns) + 1
        calls = [
            ToolCall(f"call_{step}_{index}", name.removesuffix(" with agent"), _arguments(name, step * 10 + index))
            for index, name in enumerate(self.script[len(turns)])
        ]
        return InferenceResponse((Text(f"step {step}"), *calls), usage=usage)


PROGRAM = """
import asyncio

async def attempt(call):
    try:
        await call
    except RuntimeError:
        pass  # in doubt

await attempt(work_effect(number=1))
await asyncio.gather(*[attempt(call) for call in (work_effect(number=2), work_pure(number=3), grind_idempotent(number=4))])
await attempt(seal_effect(number=5))
AGENT
"done"
"""
"""A program that makes calls one after the other and at once, and goes on after a call in doubt."""


def _arguments(name: str, number: int) -> str:
    if name.startswith("run_program"):
        agent = 'await attempt(agent(task="part"))' if name == AGENT_PROGRAM else ""
        return json.dumps({"code": PROGRAM.replace("AGENT", agent)})
    return f'{{"task": "part {number}"}}' if name.startswith("agent") else f'{{"number": {number}}}'


def make_tools(folder: TrialFolder, effect: str, *, reconciled: bool = False) -> list[Tool]:
    """Return tools with one kind of effect: a concurrent one, a sequential one, and one in a thread.

    Args:
        folder: counts effects, and may kill the process.
        effect: `pure`, `idempotent` or `effect`.
        reconciled: whether the tools can find out what happened to an interrupted call.
    """
    kind = f"{effect}_reconciled" if reconciled else effect

    async def look_up(context: ToolContext) -> Reconciliation:
        effects = [effect for effect in folder.effects() if effect["key"] == context.idempotency_key]
        return happened(f"found {len(effects)}") if effects else did_not_happen()

    def have_effect(context: ToolContext, name: str, number: int) -> str:
        key = context.idempotency_key
        folder.reach(f"before effect {key}")
        folder.add_effect(key, name, effect)
        folder.reach(f"after effect {key}")
        return f"did {number}"

    reconcile = look_up if reconciled else None

    @tool(name=f"work_{kind}", effect=effect, reconcile=reconcile)
    async def work(number: int, context: ToolContext) -> str:
        """Do a part of the work, concurrently with other parts."""
        result = have_effect(context, f"work_{kind}", number)
        await asyncio.sleep(0)
        return result

    @tool(name=f"seal_{kind}", effect=effect, sequential=True, reconcile=reconcile)
    async def seal(number: int, context: ToolContext) -> str:
        """Do a part of the work that runs alone."""
        return have_effect(context, f"seal_{kind}", number)

    @tool(name=f"grind_{kind}", effect=effect, reconcile=reconcile)
    def grind(number: int, context: ToolContext) -> str:
        """Do a part of the work in a thread."""
        return have_effect(context, f"grind_{kind}", number)

    return [work, seal, grind]


def make_flaky_tool(folder: TrialFolder) -> Tool:
    """Return a tool whose first attempt in every process fails before its effect."""

    @tool(name="flaky", effect="idempotent", retry=RetryPolicy(3, initial_wait=0))
    async def flaky(number: int, context: ToolContext) -> str:
        """Do a part of the work at the second attempt."""
        folder.reach(f"attempt {context.idempotency_key}")
        if context.attempt == 1:
            raise ConnectionError("the first attempt fails")
        folder.add_effect(context.idempotency_key, "flaky", "idempotent")
        folder.reach(f"after effect {context.idempotency_key}")
        return f"did {number}"

    return flaky


_ORPHAN_SECONDS = 30
"""How long a process of a pool lives when its parent was killed."""


def make_pool_tool(folder: TrialFolder, effect: str) -> Tool:
    """Return a tool whose effect happens in a process of a pool."""

    @tool(name=f"pool_{effect}", effect=effect)
    def pool(number: int, context: ToolContext) -> str:
        """Do a part of the work in another process."""
        key = context.idempotency_key
        with ProcessPoolExecutor(1, get_context("fork"), signal.alarm, (_ORPHAN_SECONDS,)) as executor:
            folder.reach(f"before effect {key}")
            executor.submit(_have_effect, folder.folder, key, effect).result()
            folder.reach(f"after effect {key}")
        return f"did {number}"

    return pool


def _have_effect(folder: Path, key: str, effect: str) -> None:
    TrialFolder(folder).add_effect(key, f"pool_{effect}", effect)
