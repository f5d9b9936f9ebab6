"""Models whose answers depend on the request alone, for executions that are stored and gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentloop import AgentLoop, AgentState, ToolCallingDriver
from agentloop.contracts import CanInfer, CanIntercept
from agentloop.testing import CountingIds, Ledger, LoopClock, toy_call, toy_tools
from agentloop.values import FinishReason, InferenceRequest, InferenceResponse, Text, ToolCall, Usage


def reported(request: InferenceRequest) -> Usage:
    """Report the same tokens every time."""
    return Usage(900, 100, 0, 0, 0)


class Tireless(CanInfer):
    """Calls a tool as long as there is one, and answers when there is none."""

    def __init__(
        self,
        usage: Callable[[InferenceRequest], Usage] = reported,
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


def loop_of(model: CanInfer, *interceptors: CanIntercept, ledger: Ledger | None = None) -> AgentLoop:
    """Make a loop with toys, in virtual time."""
    return AgentLoop(
        ToolCallingDriver(model),
        toy_tools(ledger or Ledger()),
        interceptors=interceptors,
        clock=LoopClock(),
        ids=CountingIds(),
    )


def outcome(state: AgentState) -> tuple[str, str]:
    """Return status and reason."""
    return state.status.value, state.stop_signal.reason.value if state.stop_signal is not None else ""
