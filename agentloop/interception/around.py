"""The points that wrap a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from attrs import frozen

from agentloop.errors import ContractViolation, InterceptorFailed
from agentloop.values.stop import AgentStop

T = TypeVar("T")


@frozen
class Around(Generic[T]):
    """A kind of point that wraps a call.

    Attributes:
        point: its name.
        outcome: the class of what it returns.
    """

    point: str
    outcome: type[T]


def nested(
    kind: Around[T], interceptor: str, method: Callable[..., Any], point: object, inner: Callable[[], Awaitable[T]]
) -> Callable[[], Awaitable[T]]:
    """Put one layer around `inner`: errors of the layer are told from those that come through it."""

    async def layer() -> T:
        passed: list[BaseException] = []

        async def proceed() -> T:
            try:
                return await inner()
            except BaseException as error:
                passed.append(error)
                raise

        try:
            outcome: object = await method(point, proceed)
        except AgentStop as stop:
            stop.sign(interceptor)
            raise
        except Exception as error:
            if any(error is other for other in passed):
                raise
            raise InterceptorFailed(interceptor, kind.point, error) from error
        if not isinstance(outcome, kind.outcome):
            raise ContractViolation(
                f"the interceptor {interceptor} returned {outcome!r:.100} at {kind.point}; return what proceed() gives, "
                f"or another {kind.outcome.__name__}"
            )
        return outcome

    return layer
