"""All interceptors of a loop as one, compiled so that a point nobody overrides costs one look into a set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from operator import is_
from typing import Any, Generic, TypeAlias, TypeVar

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle, CanObserveReplay
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ContractViolation, InterceptorFailed
from agentloop.events.execution import InterceptorRan
from agentloop.interception.interceptor import POINTS, name_of
from agentloop.values.inference import InferenceResponse
from agentloop.values.points import (
    AfterExecution,
    AfterInference,
    AfterStep,
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeExecution,
    BeforeInference,
    BeforeStep,
    BeforeToolUse,
    OnError,
    OnStop,
    Point,
    ProceedInference,
    ProceedToolUse,
)
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop, StopSignal
from agentloop.values.tool_calls import ToolExecution

T_around = TypeVar("T_around")


@frozen
class Around(Generic[T_around]):
    """A kind of point that wraps a call.

    Attributes:
        point: its name.
        outcome: the class of what it returns.
    """

    point: str
    outcome: type[T_around]


def nested(
    kind: Around[T_around],
    interceptor: str,
    method: Callable[..., Any],
    point: object,
    inner: Callable[[], Awaitable[T_around]],
) -> Callable[[], Awaitable[T_around]]:
    """Put one layer around `inner`: errors of the layer are told from those that come through it."""

    async def layer() -> T_around:
        passed: list[BaseException] = []

        async def proceed() -> T_around:
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


T = TypeVar("T")
P = TypeVar("P", bound=Point)
Layer: TypeAlias = tuple[str, Callable[..., Any]]
"""The name of an interceptor and its method for one point."""


@frozen
class Passage(Generic[P]):
    """How far a point came through the layers.

    Attributes:
        point: the point as the layers before the error left it; without an error, as all layers left it.
        error: what a layer raised; None when none did.
    """

    point: P
    error: Exception | None = None


@frozen
class InterceptorStack(CanIntercept):
    """Interceptors in the order of their priority, behaving as one.

    Attributes:
        layers: the interceptors, outermost first.
    """

    layers: tuple[CanIntercept, ...]
    _compiled: Mapping[str, tuple[Layer, ...]] = field(repr=False, eq=False)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False)
    _witness: CanObserveReplay | None = field(default=None, repr=False, eq=False)

    @classmethod
    def of(cls, interceptors: CanIntercept | Iterable[CanIntercept]) -> InterceptorStack:
        """Compile a stack: higher priority outside, equal ones in the order given.

        Raises:
            TypeError: when something is not an interceptor.
        """
        if isinstance(interceptors, InterceptorStack):
            return interceptors
        given = [interceptors] if isinstance(interceptors, CanIntercept) else list(interceptors)
        for interceptor in given:
            if not isinstance(interceptor, CanIntercept):
                raise TypeError(
                    f"{interceptor!r} is not an interceptor; subclass Interceptor, or wrap a function as in "
                    "before_step(function)"
                )
        layers = tuple(sorted(given, key=lambda layer: -getattr(layer, "priority", 0)))
        return cls(layers, _compile(layers))

    def bound(self, events: CanHandleEvents, scope: ExecutionScope) -> InterceptorStack:
        """Return the stack for one execution: layers that want its scope or its events have them."""
        log = scope.log
        witness = log if log is not None and isinstance(log, CanObserveReplay) else None
        admitted = self.layers if witness is None else filter(witness.admits, self.layers)
        layers = tuple([self._bind(layer, events, scope) for layer in admitted])
        unchanged = len(layers) == len(self.layers) and all(map(is_, layers, self.layers))
        compiled = self._compiled if unchanged else _compile(layers)
        return evolve(self, layers=layers, compiled=compiled, events=events, witness=witness)

    def _bind(self, layer: CanIntercept, events: CanHandleEvents, scope: ExecutionScope) -> CanIntercept:
        bound = layer
        if isinstance(bound, CanAcceptExecutionScope):
            bound = bound.with_execution_scope(scope)
        if isinstance(bound, CanAcceptLifecycle):
            bound = bound.with_lifecycle(self, events)
        return bound

    @property
    def points(self) -> frozenset[str]:
        """The names of the points at which any layer does anything."""
        return frozenset(self._compiled)

    def describe(self) -> str:
        """Return the layers, outermost first, each with its priority and its points."""
        return "\n".join(
            f"{getattr(layer, 'priority', 0):>6}  {name_of(layer)}: {', '.join(p for p in POINTS if p in layer.points)}"
            for layer in self.layers
        )

    async def before_execution(self, point: BeforeExecution) -> BeforeExecution:
        """Pass the point through the layers, outermost first."""
        return await self._pass("before_execution", point)

    async def before_step(self, point: BeforeStep) -> BeforeStep:
        """Pass the point through the layers, outermost first, until one stops the execution for good."""
        return await self._pass("before_step", point)

    async def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Pass the point through the layers, outermost first, until one answers."""
        return await self._pass("before_inference", point)

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        """Ask the model inside of the layers."""
        return await self._around(Around("around_inference", InferenceResponse), point, proceed)

    async def after_inference(self, point: AfterInference) -> AfterInference:
        """Pass the point through the layers, innermost first."""
        return await self._pass("after_inference", point)

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Pass the point through the layers, outermost first, until one gives a verdict."""
        return await self._pass("before_tool_use", point)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Run the tool inside of the layers."""
        return await self._around(Around("around_tool_use", ToolExecution), point, proceed)

    async def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Pass the point through the layers, innermost first."""
        return await self._pass("after_tool_use", point)

    async def after_step(self, point: AfterStep) -> AfterStep:
        """Pass the point through the layers, innermost first."""
        return await self._pass("after_step", point)

    async def on_stop(self, point: OnStop) -> OnStop:
        """Pass the point through the layers, outermost first."""
        return await self._pass("on_stop", point)

    async def after_execution(self, point: AfterExecution) -> AfterExecution:
        """Pass the point through the layers, innermost first."""
        return await self._pass("after_execution", point)

    async def on_error(self, point: OnError) -> OnError:
        """Pass the point through the layers, outermost first."""
        return await self._pass("on_error", point)

    async def pass_layers(self, name: str, point: P) -> Passage[P]:
        """Pass a point through the layers and return how far it came, also when a layer raises.

        Args:
            name: the name of the point, such as `before_step`.
            point: the point.
        """
        until: Callable[[Any], bool] | None = _ENDS.get(name)
        for interceptor, method in self._compiled.get(name, ()):
            if self._witness is not None:
                self._witness.entering(interceptor, name)
            try:
                made = await _run(interceptor, name, method, point)
            except Exception as error:  # noqa: BLE001  # returned, so that what the layers before have changed is not lost
                return Passage(point, error)
            if self._witness is not None:
                self._witness.passed(interceptor, name, point, made)
            if self._events is not None:
                await _tell(self._events, interceptor, name, made.state, changed=made is not point and made != point)
            point = made
            if until is not None and until(point):
                break
        return Passage(point)

    async def _pass(self, name: str, point: P) -> P:
        passage = await self.pass_layers(name, point)
        if passage.error is not None:
            raise passage.error
        return passage.point

    async def _around(self, kind: Around[T], point: Point, proceed: Callable[[], Awaitable[T]]) -> T:
        call = proceed
        for interceptor, method in reversed(self._compiled.get(kind.point, ())):
            call = nested(kind, interceptor, method, point, call)
            if self._events is not None:
                await _tell(self._events, interceptor, kind.point, point.state, changed=None)
        return await call()


def _is_stopped(point: BeforeStep) -> bool:
    execution = point.state.execution
    return execution is not None and execution.continuation.hard_signal is not None


def _is_answered(point: BeforeInference) -> bool:
    return point.response is not None


def _is_decided(point: BeforeToolUse) -> bool:
    return point.verdict is not None


_ENDS: Mapping[str, Callable[[Any], bool]] = {
    "before_step": _is_stopped,
    "before_inference": _is_answered,
    "before_tool_use": _is_decided,
}
"""Whether a layer has made the layers after it superfluous, by point."""


async def _run(interceptor: str, name: str, method: Callable[..., Any], point: P) -> P:
    try:
        made = method(point)
        if isawaitable(made):
            made = await made
    except AgentStop as stop:
        stop.sign(interceptor)
        raise
    except Exception as error:
        raise InterceptorFailed(interceptor, name, error) from error
    if not isinstance(made, type(point)):
        raise ContractViolation(
            f"the interceptor {interceptor} returned {made!r:.100} at {name}; return the {type(point).__name__} it was "
            "given, or a copy changed by its methods"
        )
    return made if made is point else _signed(made, point.state, interceptor)


def _signed(made: P, before: AgentState, interceptor: str) -> P:
    """Put the interceptor's name on the stop signals that it gave without a source."""
    after = made.state.execution
    if after is None or before.execution is None or after.continuation is before.execution.continuation:
        return made
    known = len(before.execution.continuation.signals)
    signals = after.continuation.signals
    signed = (*signals[:known], *[_with_source(signal, interceptor) for signal in signals[known:]])
    if signed == signals:
        return made
    execution = after.with_continuation(evolve(after.continuation, signals=signed))
    return evolve(made, state=evolve(made.state, execution=execution))


def _with_source(signal: StopSignal, source: str) -> StopSignal:
    return signal if signal.source else evolve(signal, source=source)


async def _tell(
    events: CanHandleEvents, interceptor: str, point: str, state: AgentState, *, changed: bool | None
) -> None:
    if events.due(InterceptorRan):
        await events.emit(InterceptorRan(events.head(state), interceptor, point, changed))


def _compile(layers: tuple[CanIntercept, ...]) -> Mapping[str, tuple[Layer, ...]]:
    compiled: dict[str, tuple[Layer, ...]] = {}
    overridden = [(layer, layer.points) for layer in layers]
    for name in POINTS:
        inward = [(name_of(layer), getattr(layer, name)) for layer, points in overridden if name in points]
        if inward:
            compiled[name] = tuple(reversed(inward) if name.startswith("after_") else inward)
    return compiled
