"""What an execution is told about a server that it can do without, and that cannot be reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.events.bus import emit
from agentloop.events.tool_calls import ToolsUnavailable
from agentloop.interception.interceptor import Interceptor
from agentloop.values.points import BeforeInference


@frozen
class AwayNotice(Interceptor, CanAcceptLifecycle):
    """Tells the model, and the listeners, before each request that the tools of a server are away.

    Attributes:
        server: the name of the server.
        diagnose: returns why it cannot be reached; empty when it can.
    """

    server: str
    diagnose: Callable[[], str] = field(repr=False, eq=False)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False, kw_only=True)
    writes = ("request",)  # type: tuple[str, ...]  # an annotation would be a field

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # calls no interceptor
        """Return a copy that emits to this bus."""
        return evolve(self, events=events)

    async def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Add a note to the instructions, if the server is away."""
        reason = self.diagnose()
        if not reason:
            return point
        if self._events is not None:
            await emit(self._events, ToolsUnavailable, point.state, self.server, reason)
        note = f"The tools of the server {self.server!r} are not available now. Say so if the task needs them."
        prompt = "\n\n".join(filter(None, [point.request.system_prompt, note]))
        return point.with_request(point.request.with_system_prompt(prompt))
