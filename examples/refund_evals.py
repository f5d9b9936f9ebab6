"""A suite for `agentloop evals run`: does the desk refund the right sum, and nothing that is too old?"""

from __future__ import annotations

import json

from agentloop import AgentLoop, FunctionInference, ToolCall, tool
from agentloop.evals import Case, EvalSuite, ExpectedEffects, Real, Simulated, TrialContext
from agentloop.values import InferenceRequest

DAYS = 30
PROMPT = "You are the desk of a shop. Look an order up, refund exactly what it cost, and nothing older than 30 days."
ORDERS = {str(number): {"cents": 700 + 13 * number, "age_days": number % 40} for number in range(1, 61)}


@tool(effect="pure")
def find_order(number: str) -> dict[str, int]:
    """Find an order."""
    return ORDERS[number]


@tool
def refund(number: str, cents: int) -> str:
    """Refund an order."""
    raise NotImplementedError("no eval runs this: it has an effect")


def answer(request: InferenceRequest) -> ToolCall | str:
    """Stand in for a model that follows its prompt: put `"openai:gpt-5"` in its place to use a real one."""
    prompt, number = request.system_prompt, request.messages[0].text.rstrip(".").split()[-1]
    seen = [each.execution for message in request.messages for each in message.exchanges]
    if not seen:
        return ToolCall("1", "find_order", json.dumps({"number": number}))
    if len(seen) > 1:
        return f"Order {number} is refunded."
    order = ORDERS[number]
    if "older than 30 days" in prompt and order["age_days"] > DAYS:
        return f"Order {number} is too old for a refund."
    cents = order["cents"] if "exactly" in prompt else order["cents"] // 100 * 100
    return ToolCall("2", "refund", json.dumps({"number": number, "cents": cents}))


def desk(_: TrialContext) -> AgentLoop:
    """Return the agent that the eval is about."""
    return AgentLoop.for_model(FunctionInference(answer), tools=[find_order, refund], system_prompt=PROMPT)


def case(number: str) -> Case:
    """Return the case of an order: it is refunded as it cost, or not at all."""
    order = ORDERS[number]
    right = [{"name": "refund", "arguments": {"number": number, "cents": order["cents"]}}]
    expected = {"effects": right if order["age_days"] <= DAYS else []}
    return Case(name=f"order {number}", input=f"Please refund my order {number}.", expected=expected)


suite = EvalSuite(
    "refunds", map(case, ORDERS), {"desk": desk}, [ExpectedEffects()], [Simulated(refund="refunded"), Real()], repeats=2
)
