"""What an execution is told about a server that it can do without, and that cannot be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.events.bus import emit_soon
from agentloop.events.tool_calls import ToolsUnavailable
from agentloop.values.points import AroundPoint, BeforeInference, Proceed, StatePoint

S = TypeVar("S", bound=StatePoint)
T = TypeVar("T")


@frozen
class AwayNotice(CanIntercept, CanAcceptLifecycle):
    """Tells the model, and the listeners, before each request that the tools of a server are away.

    Attributes:
        server: the name of the server.
        diagnose: returns why it cannot be reached; empty when it can, and in a replay, which starts no server.
    """

    server: str
    diagnose: Callable[[], str] = field(repr=False, eq=False)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False, kw_only=True)

    @property
    def priority(self) -> int:
        """Among those of the program, in their order."""
        return 0

    @property
    def points(self) -> frozenset[str]:
        """The moment before a request."""
        return frozenset({BeforeInference.point_name})

    @property
    def name(self) -> str:
        """The name in events, errors and stop signals."""
        return f"AwayNotice({self.server})"

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # calls no interceptor
        """Return a copy that emits to this bus."""
        return evolve(self, events=events)

    def handle(self, point: S) -> S:
        """Add a note to the instructions, if the server is away."""
        reason = self.diagnose() if isinstance(point, BeforeInference) else ""
        if not isinstance(point, BeforeInference) or not reason:
            return point
        if self._events is not None:
            emit_soon(self._events, ToolsUnavailable, point.state, None, self.server, reason)
        note = f"The tools of the server {self.server!r} are not available now. Say so if the task needs them."
        prompt = "\n\n".join(filter(None, [point.request.system_prompt, note]))
        return point.with_request(point.request.with_system_prompt(prompt))

    def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> Awaitable[T]:  # noqa: ARG002  # the contract's signature
        """Do nothing: it stands at no such point."""
        return proceed()
