"""An agent that every way of running takes as it is: with a name, dependencies, an account, grants and a check of its answers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from attrs import frozen

from agentloop import AgentLoop, ToolCall, ToolContext, tool
from agentloop.contracts import CanInfer
from agentloop.durable import open_journal
from agentloop.errors import AskAgain
from agentloop.events.operations import current_operation
from agentloop.interception import RequireApproval
from agentloop.loop import RunRequest
from agentloop.policies import AskUnlessGranted, BudgetAccount
from agentloop.values import AgentState, InferenceRequest, InferenceResponse, Text, Usage
from agentloop.values.run_requests import principal_of

NAME, NOBODY = "front desk", "nobody"
ANSWER = "I looked, and paid 20 if I was allowed to."


class Model(CanInfer):
    """Looks and pays after each message of the user; its first answer is always too short."""

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Answer by the last message alone."""
        last = request.messages[-1]
        usage = Usage(20, 5)
        if last.exchanges:
            return InferenceResponse((Text("Done."),), usage=usage)
        if "say what" in last.text:
            return InferenceResponse((Text(ANSWER),), usage=usage)
        calls = (ToolCall("1", "look", "{}"), ToolCall("2", "pay", '{"amount": 20}'))
        return InferenceResponse(calls, usage=usage)


@frozen
class Desk:
    """What the tools of one run share."""

    execution_id: str


@contextmanager
def make_desk(request: RunRequest) -> Iterator[Desk]:
    """Make the desk of a run."""
    yield Desk(request.execution_id)


@tool(effect="pure")
async def look(context: ToolContext[Desk]) -> Mapping[str, object]:
    """Look at what the call knows."""
    operation, asks = current_operation(), context.principal
    return {
        "agent": "" if operation is None else operation.agent_name,
        "desk": context.dependencies.execution_id,
        "asks": None if asks is None else {"name": asks.name, "tenant": asks.tenant},
    }


@tool
async def pay(amount: float) -> str:
    """Pay."""
    return f"paid {amount}"


def check(answer: str) -> None:
    """Accept an answer that says what was done."""
    if "paid" not in answer:
        raise AskAgain("say what you have paid")


def tenant_of(state: AgentState) -> str:
    """Return the tenant for which an execution runs, or `nobody`."""
    asks = principal_of(state)
    return NOBODY if asks is None else asks.tenant


loop: AgentLoop = AgentLoop.for_model(
    Model(),
    name=NAME,
    tools=[look, pay],
    dependencies=make_desk,
    interceptors=[
        AskUnlessGranted(RequireApproval("pay"), by=tenant_of),
        BudgetAccount("desk", tokens=100_000, max_output_tokens=100, by=tenant_of),
    ],
    output_check=check,
)


def recorded() -> AgentLoop:
    """Return the agent with a journal, for a way that takes the journal of the agent."""
    return loop.replace(journal=open_journal(os.environ["AGENTLOOP_DB"]))
