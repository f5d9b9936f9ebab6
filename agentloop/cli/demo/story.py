"""The story of the demo: who asks what, and what the agent may do."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.cli.demo import complaint_script, rounds_script, scripted_model
from agentloop.cli.demo.support_tools import TOOLS
from agentloop.cli.options import Manner
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.inference.config import LLMConfig
from agentloop.inference.http_client import in_process_client
from agentloop.inference.http_inference import HttpInference
from agentloop.inference.model_rows import Capabilities, CapabilityRow
from agentloop.interception.budgets.budget import Budget
from agentloop.interception.resilience.resilience import Resilience
from agentloop.interception.rules import Permissions, RequireApproval, Rule
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.points import BeforeToolUse

COMPLAINT = complaint_script.QUESTION
"""The first question."""
ROUNDS = rounds_script.QUESTION
"""The second one, which is more work than its budget allows."""
SYSTEM_PROMPT = (
    "You answer the customers of a small shop. Look everything up, never guess. What you may not do yourself goes to a "
    "colleague, as a ticket."
)
REFUND_LIMIT_CENTS = 5_000
STEPS_OF_THE_ROUNDS = 3
CONFIG = LLMConfig(model=scripted_model.NAME, base_url="http://scripted.invalid/v1", provider="scripted")
MODELS = (
    CapabilityRow("scripted:*", Capabilities("native", parallel_tool_calls=True, structured_output="json_schema")),
)
"""What the scripted model is able to do."""


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


def inference() -> CanInfer:
    """Return the scripted model, behind a client whose requests never leave the process."""
    return HttpInference(CONFIG, client=in_process_client(scripted_model.answer))


def rules() -> tuple[CanIntercept, ...]:
    """Return what holds wherever the demo's tools are used: no large refunds, and what the tools ask for in failures."""
    return PERMISSIONS, Resilience()


def complaint_loop(manner: Manner) -> AgentLoop:
    """Make the loop for the first question: calls that change something wait for a person."""
    return _loop(manner, [*rules(), RequireApproval(reason="it changes the shop's books")])


def rounds_loop(manner: Manner) -> AgentLoop:
    """Make the loop for the second question: the last step of the budget is for an answer without tools."""
    return _loop(manner, [*rules(), Budget(steps=STEPS_OF_THE_ROUNDS)])


def _loop(manner: Manner, interceptors: Sequence[CanIntercept]) -> AgentLoop:
    return AgentLoop(
        manner.driver(inference(), MODELS),
        TOOLS,
        system_prompt=SYSTEM_PROMPT,
        interceptors=interceptors,
        max_steps=10,
    )
