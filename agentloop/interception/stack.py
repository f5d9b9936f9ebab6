"""All interceptors of a loop as one, compiled so that a point without an interceptor costs one dictionary lookup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle, CanObserveReplay
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.events.bus import emit
from agentloop.events.execution import InterceptorRan
from agentloop.interception.interceptor import Interceptor, allows_eager_start
from agentloop.interception.layer_calls import LayerCalls
from agentloop.values.points import POINTS, AroundPoint, BeforeToolUse, Point, Proceed, StatePoint

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)
P = TypeVar("P", bound=Point)


@frozen
class Passage(Generic[S]):
    """How far a point came through the layers.

    Attributes:
        point: the point as the layers have left it, those before the error if there was one.
        error: what a layer raised; None if all layers have returned.
        rest: the layers inside of the one that raised.
    """

    point: S
    error: Exception | None = None
    rest: tuple[CanIntercept, ...] = ()


@frozen
class InterceptorStack(CanIntercept):
    """Interceptors in the order of their priority, behaving as one.

    Attributes:
        layers: the interceptors, outermost first.
        points: the names of the points that any layer handles.
    """

    layers: tuple[CanIntercept, ...]
    _compiled: Mapping[str, tuple[CanIntercept, ...]] = field(repr=False, eq=False)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False)
    _replay: CanObserveReplay | None = field(default=None, repr=False, eq=False)
    _dependencies: Any = field(default=None, repr=False, eq=False)
    _calls: LayerCalls = field(repr=False, eq=False, kw_only=True)
    points: frozenset[str] = field(init=False, repr=False, eq=False)

    @classmethod
    def of(cls, interceptors: CanIntercept | Iterable[CanIntercept]) -> InterceptorStack:
        """Compile a stack: higher priority outside, equal priorities in the order of registration.

        Raises:
            TypeError: when something is not an interceptor.
            ConfigurationError: when a timeout is not a number of seconds above 0.
        """
        if isinstance(interceptors, InterceptorStack):
            return interceptors
        registered = [interceptors] if isinstance(interceptors, CanIntercept) else list(interceptors)
        for interceptor in registered:
            if not isinstance(interceptor, CanIntercept):
                raise TypeError(
                    f"{interceptor!r} is not an interceptor; subclass Interceptor, or wrap a function as in "
                    "before_step(function)"
                )
        layers = tuple(sorted(registered, key=lambda layer: -layer.priority))
        return cls(layers, _compile(layers), calls=LayerCalls.of(layers))

    def bind(self, events: CanHandleEvents, scope: ExecutionScope) -> InterceptorStack:
        """Return the stack for one execution; layers that accept its scope or its events receive them."""
        # A replay leaves out interceptors that have side effects, and compares what the others change with the record.
        log = scope.log
        replay = log if log is not None and isinstance(log, CanObserveReplay) else None
        admitted = self.layers if replay is None else filter(replay.admits, self.layers)
        layers = tuple([self._bind_layer(layer, events, scope) for layer in admitted])
        # Compiled for each execution, since methods may have been set on a layer or its class in the meantime.
        return evolve(
            self,
            layers=layers,
            compiled=_compile(layers),
            events=events,
            replay=replay,
            dependencies=scope.dependencies,
            calls=LayerCalls.of(layers, events),
        )

    def _bind_layer(self, layer: CanIntercept, events: CanHandleEvents, scope: ExecutionScope) -> CanIntercept:
        if isinstance(layer, CanAcceptExecutionScope):
            layer = layer.with_execution_scope(scope)
        if isinstance(layer, CanAcceptLifecycle):
            layer = layer.with_lifecycle(self, events)
        return layer

    @points.default
    def _handled_points(self) -> frozenset[str]:
        return frozenset(self._compiled)

    @property
    def priority(self) -> int:
        """Zero: a stack inside another one is an interceptor like any other."""
        return 0

    @property
    def name(self) -> str:
        """The name of the class."""
        return type(self).__name__

    def describe(self) -> str:
        """Return the layers, outermost first, each with its priority and its points."""
        return "\n".join(
            f"{layer.priority:>6}  {layer.name}: {', '.join(name for name in POINTS if name in layer.points)}"
            for layer in self.layers
        )

    @property
    def allows_eager_start(self) -> bool:
        """Whether a pure call may run before the layers have seen the answer and the call: every layer that would agrees."""
        return all(map(allows_eager_start, self.layers))

    def handles(self, kind: type[Point]) -> bool:
        """Return whether any layer handles points of this class; if not, callers need not build one."""
        return kind.point_name in self._compiled

    @property
    def holds_deltas(self) -> bool:
        """Whether any layer wants deltas to be held until their response is final."""
        return any(isinstance(layer, Interceptor) and layer.holds_deltas for layer in self.layers)

    async def handle(self, point: S) -> S:
        """Pass the point through the layers, until one of them short-circuits it.

        Raises:
            AgentStop: when a layer stops the execution.
            InterceptorFailed: when a layer raises anything else.
            ContractViolation: when a layer does not return a context of the point, or not with a state that continues the
                point's.
        """
        passage = await self.pass_layers(point)
        if passage.error is not None:
            raise passage.error
        return passage.point

    async def pass_layers(self, point: S, layers: tuple[CanIntercept, ...] | None = None) -> Passage[S]:
        """Pass the point through the layers, and return how far it came instead of raising what a layer raises.

        Args:
            point: the point.
            layers: the layers, in order; None for all layers that handle the point.
        """
        point = self._with_dependencies(point)
        passing = self._compiled.get(point.point_name, ()) if layers is None else layers
        for index, layer in enumerate(passing):
            if self._replay is not None:
                self._replay.before_interceptor(layer.name, point.point_name)
            try:
                result = await self._calls.handle(layer, point)
            except Exception as error:  # noqa: BLE001  # returned, to preserve the changes of the layers before it
                return Passage(point, error, passing[index + 1 :])
            if self._replay is not None:
                self._replay.after_interceptor(layer.name, point.point_name, point, result)
            # Not `emit`, which needs all fields: comparing two states compares all of their messages.
            if self._events is not None and self._events.due(InterceptorRan):
                changed, head = result is not point and result != point, self._events.head(result.state)
                await self._events.emit(InterceptorRan(head, layer.name, point.point_name, changed))
            point = result
            if point.is_short_circuited:
                break
        return Passage(point)

    def _with_dependencies(self, point: P) -> P:
        return point if self._dependencies is None else evolve(point, dependencies=self._dependencies)

    async def check(self, point: BeforeToolUse) -> BeforeToolUse:
        """Pass a changed call through those layers alone that check calls, until one of them blocks it.

        Raises:
            AgentStop: when a layer stops the execution.
            InterceptorFailed: when a layer raises anything else.
            ContractViolation: when a layer does not return a context of the point.
        """
        point = self._with_dependencies(point)
        for layer in self._compiled.get(point.point_name, ()):
            if isinstance(layer, Interceptor) and layer.checks_calls and not point.is_short_circuited:
                point = await self._calls.handle(layer, point)
        return point

    async def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> T:
        """Run the operation inside the layers.

        Raises:
            AgentStop: when a layer stops the execution.
            InterceptorFailed: when a layer raises an error of its own.
            ContractViolation: when a layer does not return an outcome of the operation.
            Exception: what the operation raises.
        """
        point = self._with_dependencies(point)
        # Wrapped from the inside out, so that the outermost layer is called first.
        layers, guards = self._compiled.get(point.point_name, ()), self._calls.guards
        for index in range(len(layers) - 1, -1, -1):
            layer = layers[index]
            # A guard further outside cancels the operation itself, with everything inside of it.
            outside = {id(other) for other in layers[: index + 1]} if guards else ()
            proceed = self._calls.wrap(layer, point, proceed, [one for one in guards if id(one) not in outside])
            if self._events is not None:
                await emit(self._events, InterceptorRan, point.state, layer.name, point.point_name, None)
        return await proceed()


def _compile(layers: tuple[CanIntercept, ...]) -> Mapping[str, tuple[CanIntercept, ...]]:
    """Return for each point that is handled its layers, in the order in which they run."""
    compiled: dict[str, tuple[CanIntercept, ...]] = {}
    handled = [(layer, layer.points) for layer in layers]
    for name, kind in POINTS.items():
        inward = [layer for layer, points in handled if name in points]
        if inward:
            innermost_first = issubclass(kind, StatePoint) and kind.innermost_first
            compiled[name] = tuple(reversed(inward) if innermost_first else inward)
    return compiled
