"""Tools with effects that are counted outside, and a model that decides from what it is asked alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from attrs import frozen

from agentloop import ToolCall, ToolContext, tool
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.tool import Tool
from agentloop.values import InferenceRequest, InferenceResponse, Text, Usage, did_not_happen, happened
from agentloop.values.policies import RetryPolicy
from agentloop.values.records import Reconciliation
from agentloop.values.tool_calls import ToolStatus
from tests.durability.place import Place

Script: TypeAlias = Sequence[Sequence[str]]
"""The names of the tools that each step calls; after the last, the model answers."""

EFFECTS = ("pure", "idempotent", "effect")
KINDS = ("work", "seal", "grind")


@frozen
class Plan(CanInfer):
    """Calls what stands in a script for the step that a request is of, and answers after the last.

    Attributes:
        place: where it notes which calls it was told to be in doubt.
        script: the script.
    """

    place: Place
    script: Script

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Look at the request and give the answer of its step."""
        turns = [message.exchanges for message in request.messages if message.exchanges]
        for exchange in [one for turn in turns for one in turn]:
            if exchange.execution.status is ToolStatus.IN_DOUBT:
                self.place.note("doubts told to the model", exchange.execution.key)
        usage = Usage(input_tokens=10, output_tokens=len(turns))
        if len(turns) >= len(self.script):
            return InferenceResponse((Text(f"done after {len(turns)} turns"),), usage=usage)
        step = len(turns) + 1
        calls = [
            ToolCall(f"call_{step}_{at}", name, _arguments(name, step * 10 + at))
            for at, name in enumerate(self.script[len(turns)])
        ]
        return InferenceResponse((Text(f"step {step}"), *calls), usage=usage)


def _arguments(name: str, number: int) -> str:
    return f'{{"task": "part {number}"}}' if name.startswith("agent") else f'{{"number": {number}}}'


def tools_of(place: Place, effect: str, *, probed: bool = False) -> list[Tool]:
    """Make the tools of one kind of effect: side by side, one at a time, and in a thread.

    Args:
        place: where effects are counted, and the process may die.
        effect: `pure`, `idempotent` or `effect`.
        probed: whether the tools can find out what became of a call.
    """
    kind = f"{effect}_probed" if probed else effect

    async def asked(context: ToolContext) -> Reconciliation:
        done = [one for one in place.effects() if one["key"] == context.idempotency_key]
        return happened(f"found {len(done)}") if done else did_not_happen()

    def done(context: ToolContext, name: str, number: int) -> str:
        key = context.idempotency_key
        place.reach(f"before effect {key}")
        place.have_effect(key, name, effect)
        place.reach(f"after effect {key}")
        return f"did {number}"

    reconcile = asked if probed else None

    @tool(name=f"work_{kind}", effect=effect, reconcile=reconcile)
    async def work(number: int, context: ToolContext) -> str:
        """Do a part of the work, side by side with other parts."""
        result = done(context, f"work_{kind}", number)
        await asyncio.sleep(0)
        return result

    @tool(name=f"seal_{kind}", effect=effect, sequential=True, reconcile=reconcile)
    async def seal(number: int, context: ToolContext) -> str:
        """Do a part of the work that is done alone."""
        return done(context, f"seal_{kind}", number)

    @tool(name=f"grind_{kind}", effect=effect, reconcile=reconcile)
    def grind(number: int, context: ToolContext) -> str:
        """Do a part of the work in a thread."""
        return done(context, f"grind_{kind}", number)

    return [work, seal, grind]


def flaky(place: Place) -> Tool:
    """Make a tool that fails at its first attempt in every process, before its effect."""

    @tool(name="flaky", effect="idempotent", retry=RetryPolicy(3, initial_wait=0))
    async def flaky(number: int, context: ToolContext) -> str:
        """Do a part of the work at the second attempt."""
        place.reach(f"attempt {context.idempotency_key}")
        if context.attempt == 1:
            raise ConnectionError("the first attempt fails")
        place.have_effect(context.idempotency_key, "flaky", "idempotent")
        place.reach(f"after effect {context.idempotency_key}")
        return f"did {number}"

    return flaky
