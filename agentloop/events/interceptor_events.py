"""Events of the interceptors."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.event import Event


@frozen(eq=False, repr=False)
class InterceptorRan(Event):
    """An interceptor did its work at a point.

    Attributes:
        interceptor: its name.
        point: the name of the point, such as `before_step`.
        changed: whether it changed anything; None for the points around a call, which are told before they run.
    """

    interceptor: str
    point: str
    changed: bool | None = None
