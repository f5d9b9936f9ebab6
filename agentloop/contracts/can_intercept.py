"""The contract of interceptors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeAlias, TypeVar

from agentloop.values.epochs import Epoch
from agentloop.values.inference import InferenceRequest
from agentloop.values.points import AroundPoint, Proceed, StatePoint
from agentloop.values.state import AgentState
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ToolSpec

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)
MaybeAwaitable: TypeAlias = T | Awaitable[T]
"""The result of a function that may be plain or async."""


class CanLimitTime(ABC):
    """Limits the time of an execution; implemented by interceptors. When the time is over, the other interceptors are interrupted."""

    @abstractmethod
    def remaining_seconds(self, state: AgentState) -> float | None:
        """Return the seconds that are left, negative when the time is over; None for no limit."""

    @abstractmethod
    def time_signal(self) -> StopSignal:
        """Return the signal with which the execution stops."""


class CanStopAtOnce(ABC):
    """Stops executions at any moment, from outside; implemented by interceptors. A stop interrupts the other interceptors."""

    @abstractmethod
    def current_stop(self) -> StopSignal | None:
        """Return the signal with which executions stop; None as long as they continue."""

    @abstractmethod
    def notify_at_stop(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call a function in the running event loop when executions are stopped, or soon if they are stopped already.

        Returns:
            A function that takes the request back.
        """


class CanWatchRequests(ABC):
    """Watches how the requests of an execution come about; implemented by interceptors, which the loop calls for that alone.

    An implementer keeps these laws:

    - Its methods neither raise nor change anything.
    - A request begins with `begin_request` and ends with `end_request`; if an interceptor answers it, the end is left out. A new
      epoch comes before the request that it is for.
    - `watch_layer` is called for each interceptor, at any point; a point in between may change the request.
    """

    @abstractmethod
    def begin_epoch(self, epoch: Epoch) -> None:
        """Note that the compiler has announced a new epoch."""

    @abstractmethod
    def begin_request(self, inference: object, request: InferenceRequest, state: AgentState) -> None:
        """Note a request as the driver has made it.

        Args:
            inference: the model; compared by identity.
            request: the request.
            state: the state from which the driver made it.
        """

    @abstractmethod
    def watch_layer(self, layer: str, before: StatePoint, after: StatePoint) -> None:
        """Note what an interceptor has returned at any point.

        Args:
            layer: the name of the interceptor.
            before: what it received.
            after: what it returned; the same object if it changed nothing.
        """

    @abstractmethod
    def end_request(self, request: InferenceRequest) -> None:
        """Note the request as it is sent."""


class CanForetellQuestions(ABC):
    """Tells beforehand whether calls of a tool wait for a decision; implemented by interceptors that suspend or block calls."""

    @abstractmethod
    def asks_about(self, tool: ToolSpec, ensemble: str) -> bool | None:
        """Return whether calls of a tool wait.

        Args:
            tool: the tool.
            ensemble: the name of the group that it belongs to; empty for a tool without a group.

        Returns:
            True if no call runs without a decision, or none runs at all; False if each may; None if it depends on the call.
        """


class CanDeclareLimits(ABC):
    """Declares the limits that the stack enforces for an interceptor. An interceptor that declares none has none."""

    @property
    @abstractmethod
    def timeout(self) -> float | None:
        """The seconds that it may take at a point, without the time in which `proceed()` runs; None for no limit.

        A plain function cannot be interrupted, so the limit applies to async methods.
        """

    @property
    @abstractmethod
    def writes(self) -> Collection[str] | None:
        """The paths that it may change, such as `request.system_prompt`; None for all."""


class CanIntercept(ABC):
    """Observes an execution and may change it, at the points of `agentloop.values.points.POINTS`.

    An implementer keeps these laws:

    - `points` names every point that it handles; the loop calls it at no other point, and the other points cost nothing.
    - It returns a context of the type that it received, and changes the context by the methods of the context only.
    - It keeps no state of an execution unless it documents that: one interceptor serves any number of executions (law 9).
    - If it raises, the guarded operation is not performed: the call or the inference does not happen (law 11).
    """

    @property
    @abstractmethod
    def points(self) -> frozenset[str]:
        """The names of the points that it handles, such as `before_step`."""

    @property
    @abstractmethod
    def priority(self) -> int:
        """The position among other interceptors: higher runs first on the way in and last on the way out."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in events, errors and stop signals."""

    @abstractmethod
    def handle(self, point: S) -> MaybeAwaitable[S]:
        """Handle a point at which the state may change.

        Args:
            point: the context of the point.

        Returns:
            The same context or a changed copy, or an awaitable of it.

        Raises:
            AgentStop: to stop the execution.
            Exception: anything else fails the execution.
        """

    @abstractmethod
    def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> Awaitable[T]:
        """Wrap an inference or a tool call.

        Args:
            point: the context of the point.
            proceed: runs the inner layers and the operation; may be awaited any number of times, or not at all.

        Returns:
            What `proceed` returned, or another value of `point.outcome_type`.

        Raises:
            AgentStop: to stop the execution.
            Exception: what `proceed` raised, which counts as the operation's failure; anything else fails the execution.
        """


class CanUseLabels(CanIntercept):
    """Decides by who wrote what a model has read; implemented by interceptors.

    The executions of a loop with such an interceptor are labeled, and those of the agents that serve their calls. Such an agent
    gets the interceptor of its caller, unless its own loop has one.
    """

    @property
    def uses_labels(self) -> bool:
        """Whether it looks at labels; an interceptor around another one says what that does."""
        return True


def uses_labels(layers: Iterable[object]) -> bool:
    """Return whether one of these interceptors looks at labels, so that executions are labeled."""
    return any(isinstance(layer, CanUseLabels) and layer.uses_labels for layer in layers)
