"""Models whose responses depend only on the request, for executions that are stored and resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentloop import AgentLoop, AgentState, ToolCallingDriver
from agentloop.contracts import CanInfer, CanIntercept
from agentloop.testing import CountingIds, Ledger, LoopClock, toy_call, toy_tools
from agentloop.values import FinishReason, InferenceRequest, InferenceResponse, Text, ToolCall, Usage


def constant_usage(request: InferenceRequest) -> Usage:
    """Return the same usage for every request."""
    return Usage(900, 100, 0, 0, 0)


class PersistentModel(CanInfer):
    """A model that calls a tool while tools are offered, and answers when there are none."""

    def __init__(
        self,
        usage: Callable[[InferenceRequest], Usage] = constant_usage,
        *,
        calls: Callable[[], list[ToolCall]] = lambda: [toy_call("echo", 1)],
        model: str = "big-1",
        seconds: float = 0,
    ) -> None:
        self.usage = usage
        self.calls = calls
        self.model = model
        self.seconds = seconds
        self.requests: list[InferenceRequest] = []

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        self.requests.append(request)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if request.tools:
            return InferenceResponse(
                tuple(self.calls()), FinishReason.TOOL_CALLS, self.usage(request), self.model, id="answer"
            )
        return InferenceResponse((Text("what I found"),), FinishReason.STOP, self.usage(request), self.model)


def create_loop(model: CanInfer, *interceptors: CanIntercept, ledger: Ledger | None = None) -> AgentLoop:
    """Return a loop with toy tools, in virtual time."""
    return AgentLoop(
        ToolCallingDriver(model),
        toy_tools(ledger or Ledger()),
        interceptors=interceptors,
        clock=LoopClock(),
        ids=CountingIds(),
    )


def status_and_reason(state: AgentState) -> tuple[str, str]:
    """Return the status, and the reason of the stop signal."""
    return state.status.value, state.stop_signal.reason.value if state.stop_signal is not None else ""
