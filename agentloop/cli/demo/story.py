"""The story of the demo: who asks what, and what the agent may do."""

from __future__ import annotations

from agentloop.cli.demo import scripted_model
from agentloop.cli.demo.shop import Shop
from agentloop.cli.demo.support_tools import TOOLS
from agentloop.contracts.can_handle_events import Listener
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_client import in_process_client
from agentloop.inference.http_inference import HttpInference
from agentloop.interception.permissions import Permissions
from agentloop.interception.rule import Rule
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.agent_state import AgentState
from agentloop.values.event import Event
from agentloop.values.points import BeforeToolUse

QUESTION = (
    "Ada Lovelace writes: Where are my orders 1002 and 1051? And the desk lamp that you sent me arrived broken. "
    "I would like my money back."
)
SYSTEM_PROMPT = (
    "You answer the customers of a small shop. Look everything up, never guess. What you may not do yourself goes to a "
    "colleague, as a ticket."
)
REFUND_LIMIT_CENTS = 5_000


def _is_large(point: BeforeToolUse) -> bool:
    cents = point.arguments["cents"]
    return isinstance(cents, int) and cents > REFUND_LIMIT_CENTS


PERMISSIONS = Permissions(
    deny=[
        Rule(
            tool="refund",
            when=_is_large,
            reason=f"refunds above {REFUND_LIMIT_CENTS / 100:.2f} need a person; open a ticket",
        )
    ]
)
"""What the agent may not do: large refunds."""


async def told(shop: Shop, listener: Listener[Event]) -> AgentState:
    """Let the agent answer the question.

    Args:
        shop: the shop that it works for.
        listener: told every event.
    """
    config = LLMConfig(model=scripted_model.NAME, base_url="http://scripted.invalid/v1", provider="scripted")
    async with in_process_client(scripted_model.answer) as client:
        loop = AgentLoop(
            ToolCallingDriver(HttpInference(config, client=client), mode="native"),
            TOOLS,
            system_prompt=SYSTEM_PROMPT,
            interceptors=[PERMISSIONS],
            max_steps=10,
        )
        loop.wiretap(listener)
        return await loop.execute(QUESTION, dependencies=shop)
