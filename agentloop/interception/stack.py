"""All interceptors of a loop as one, compiled so that a point without an interceptor costs one dictionary lookup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, zip_longest
from textwrap import wrap
from typing import Any, Generic, TypeVar

from attrs import evolve, field, frozen

from agentloop import events as event_classes
from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle, CanObserveReplay
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept, CanWatchRequests
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError
from agentloop.events.bus import emit
from agentloop.interception.interceptor import Interceptor, allows_eager_start
from agentloop.interception.layer_calls import LayerCalls, timeout_of, writes_of
from agentloop.values.points import (
    POINTS,
    AfterInference,
    AfterToolUse,
    AroundInference,
    AroundPoint,
    AroundToolUse,
    BeforeToolUse,
    Point,
    Proceed,
    StatePoint,
)
from agentloop.values.provenance import Provenance
from agentloop.values.value import Value
from agentloop.values.writes import record_writes, writes_between

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)
P = TypeVar("P", bound=Point)


@frozen(eq=False, repr=False)
class Passage(Value, Generic[S]):
    """How far a point came through the layers.

    Attributes:
        point: the point as the layers have left it, those before the error if there was one.
        error: what a layer raised; None if all layers have returned.
        rest: the layers inside of the one that raised.
    """

    point: S
    error: Exception | None = None
    rest: tuple[CanIntercept, ...] = ()

    def take(self) -> S:
        """Return the point, or raise the error. Take over the state of `point` before: it has what other layers changed.

        Raises:
            AgentStop: a layer has stopped the execution.
            InterceptorFailed: a layer has raised anything else.
            ContractViolation: a layer has not returned a context of the point, or not with a state that continues the point's.
        """
        if self.error is not None:
            raise self.error
        return self.point


@frozen(eq=False, repr=False)
class InterceptorStack(Value, CanIntercept):
    """Interceptors in the order of their priority, behaving as one.

    Attributes:
        layers: the interceptors, outermost first.
        points: the names of the points that any layer handles.
        watchers: the layers that watch how requests come about.
        joined: the layers of a bound stack that joined with the handoff to another loop.
    """

    layers: tuple[CanIntercept, ...]
    _compiled: Mapping[str, tuple[CanIntercept, ...]] = field(repr=False, eq=False)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False)
    _replay: CanObserveReplay | None = field(default=None, repr=False, eq=False)
    _dependencies: Any = field(default=None, repr=False, eq=False)
    _calls: LayerCalls = field(repr=False, eq=False, kw_only=True)
    joined: tuple[CanIntercept, ...] = field(default=(), repr=False, eq=False, kw_only=True)
    points: frozenset[str] = field(init=False, repr=False, eq=False)
    watchers: tuple[CanWatchRequests, ...] = field(init=False, repr=False, eq=False)

    @classmethod
    def of(
        cls,
        interceptors: CanIntercept | Iterable[CanIntercept],
        *,
        strict_writes: bool = False,
        provenance: Provenance = Provenance.NONE,
    ) -> InterceptorStack:
        """Compile a stack: higher priority outside, equal priorities in the order of registration.

        Args:
            interceptors: the interceptors; a stack is returned unchanged. The layers of a stack among others stay together, at
                the priority 0.
            strict_writes: whether two interceptors that may change the same path are an error.
            provenance: what is recorded of changes in the state.

        Raises:
            TypeError: when something is not an interceptor.
            ConfigurationError: when a priority is not a number, a timeout is not a number of seconds above 0, a declared path does not exist, or two
                interceptors may change the same path and `strict_writes` is set.
        """
        if isinstance(interceptors, InterceptorStack):
            return interceptors
        registered = [interceptors] if isinstance(interceptors, CanIntercept) else list(interceptors)
        for interceptor in registered:
            if not isinstance(interceptor, CanIntercept):
                raise TypeError(
                    f"{interceptor!r} is not an interceptor; subclass Interceptor, or wrap a function as in "
                    "at('before_step', function)"
                )
            if isinstance(interceptor.priority, bool) or not isinstance(interceptor.priority, int | float):
                raise ConfigurationError(
                    f"the priority of {type(interceptor).__name__} is a number, not {interceptor.priority!r:.100}"
                )
        ordered = sorted(registered, key=lambda layer: -layer.priority)
        # Each layer of a stack is called by the outer one, which binds it and keeps what the layers before an error have changed.
        layers = tuple([each for layer in ordered for each in _layers_of(layer)])
        if strict_writes:
            _refuse_overlaps(layers)
        return cls(layers, _compile(layers), calls=LayerCalls.of(layers, provenance))

    def with_layers(self, layers: Iterable[CanIntercept], *, without: Sequence[CanIntercept] = ()) -> InterceptorStack:
        """Return a stack with more layers, such as those of another loop, which records changes in the same form.

        Args:
            layers: the layers to add.
            without: the layers to leave out.
        """
        left_out = set(map(id, without))
        kept = [layer for layer in self.layers if id(layer) not in left_out]
        return InterceptorStack.of((*kept, *layers), provenance=self._calls.provenance)

    def bind(
        self,
        events: CanHandleEvents,
        scope: ExecutionScope,
        *,
        joined: Sequence[CanIntercept] = (),
        after: int = 0,
    ) -> InterceptorStack:
        """Return the stack for one execution; layers that accept its scope or its events receive them.

        Args:
            events: the bus of the execution.
            scope: what the execution runs with besides its state.
            joined: those of the layers that joined with a handoff, by identity.
            after: how many steps the execution had then.
        """
        # A replay leaves out interceptors that have side effects, and compares what the others change with the record.
        log = scope.log
        replay = log if log is not None and isinstance(log, CanObserveReplay) else None
        admitted = self.layers if replay is None else filter(replay.admits, self.layers)
        late, late_scope = {id(layer) for layer in joined}, evolve(scope, steps_before=after) if joined else scope
        pairs = [(layer, id(layer) in late) for layer in admitted]
        layers = tuple([self._bind_layer(one, events, late_scope if is_late else scope) for one, is_late in pairs])
        provenance = self._calls.provenance
        # Compiled for each execution, since methods may have been set on a layer or its class in the meantime.
        compiled = _compile(layers, accounts=provenance is not Provenance.NONE)
        if replay is not None:  # no tool runs that the layers could be around
            compiled.pop(AroundToolUse.point_name, None)
        return evolve(
            self,
            layers=layers,
            joined=tuple([layer for layer, (_, is_late) in zip(layers, pairs, strict=True) if is_late]),
            compiled=compiled,
            events=events,
            replay=replay,
            dependencies=scope.dependencies,
            calls=LayerCalls.of(layers, provenance, events),
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

    @watchers.default
    def _watching_layers(self) -> tuple[CanWatchRequests, ...]:
        return tuple([layer for layer in self.layers if isinstance(layer, CanWatchRequests)])

    @property
    def priority(self) -> int:
        """Zero: the place of its layers among other interceptors."""
        return 0

    @property
    def name(self) -> str:
        """The name of the class."""
        return type(self).__name__

    def describe(self) -> str:
        """Return a table of the layers, outermost first, with their points, timeouts and writes, and the paths that several write."""
        rows = [("priority", "interceptor", "timeout", "points", "writes")]
        for layer in self.layers:
            timeout, declared = timeout_of(layer), writes_of(layer)
            points = ", ".join(name for name in POINTS if name in layer.points)
            limit = "-" if timeout is None else f"{timeout:g} s"
            rows.append(
                (str(layer.priority), layer.name, limit, points, "anything" if declared is None else str(declared))
            )
        lines = _format_table(rows) if self.layers else []
        overlaps = [f"  {path}: {', '.join(names)}" for path, names in _find_overlaps(self.layers).items()]
        return "\n".join([*lines, *(["written by several:", *overlaps] if overlaps else [])])

    @property
    def allows_eager_start(self) -> bool:
        """Whether a pure call may run before the layers have seen the answer and the call: every layer that would agrees."""
        return all(map(allows_eager_start, self.layers))

    def handles(self, kind: type[Point]) -> bool:
        """Return whether any layer handles points of this class; if not, callers need not build one."""
        return kind.point_name in self._compiled

    def joined_at(self, kind: type[StatePoint]) -> tuple[CanIntercept, ...]:
        """Return the layers of `joined` that handle points of this class, in the order in which they run."""
        joined = {id(layer) for layer in self.joined}
        return tuple([layer for layer in self._compiled.get(kind.point_name, ()) if id(layer) in joined])

    @property
    def holds_deltas(self) -> bool:
        """Whether any layer wants deltas to be held until their response is final."""
        return any(isinstance(layer, Interceptor) and layer.holds_deltas for layer in self.layers)

    async def handle(self, point: S) -> S:
        """Pass the point through the layers, until one of them short-circuits it.

        What the layers before one that raises have changed is lost; `pass_layers` returns it.

        Raises:
            AgentStop: when a layer stops the execution.
            InterceptorFailed: when a layer raises anything else.
            ContractViolation: when a layer does not return a context of the point, or not with a state that continues the
                point's.
        """
        return (await self.pass_layers(point)).take()

    async def pass_layers(self, point: S, layers: tuple[CanIntercept, ...] | None = None) -> Passage[S]:
        """Pass the point through the layers, and return how far it came instead of raising what a layer raises.

        Args:
            point: the point.
            layers: the layers, in order; None for all layers that handle the point.
        """
        point = self._with_dependencies(point)
        if self._calls.provenance is not Provenance.NONE:
            point = self._calls.add_outcome_changes(point)
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
            for watcher in self.watchers:
                watcher.watch_layer(layer.name, point, result)
            # Not `emit`, which needs all fields: comparing two states compares all of their messages.
            if self._events is not None and self._events.due(event_classes.InterceptorRan):
                await self._events.emit(self._event(layer, point, result))
            point = result
            if point.is_short_circuited:
                break
        return Passage(point)

    def _event(self, layer: CanIntercept, before: StatePoint, after: StatePoint) -> event_classes.InterceptorRan:
        changed = after is not before and after != before
        changes = record_writes(writes_between(before, after), self._calls.provenance) if changed else ()
        assert self._events is not None  # noqa: S101  # it is observed
        head = self._events.head(after.state)
        return event_classes.InterceptorRan(head, layer.name, before.point_name, changed, changes)

    def _with_dependencies(self, point: P) -> P:
        return point if self._dependencies is None else evolve(point, dependencies=self._dependencies)

    async def check(self, point: BeforeToolUse) -> Passage[BeforeToolUse]:
        """Pass a changed call through those layers alone that check calls, until one of them blocks it or raises."""
        point = self._with_dependencies(point)
        for layer in self._compiled.get(point.point_name, ()):
            if isinstance(layer, Interceptor) and layer.checks_calls and not point.is_short_circuited:
                try:
                    point = await self._calls.handle(layer, point)
                except Exception as error:  # noqa: BLE001  # returned, as by `pass_layers`
                    return Passage(point, error)
        return Passage(point)

    async def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> T:
        """Run the operation inside the layers.

        Raises:
            AgentStop: when a layer stops the execution.
            InterceptorFailed: when a layer raises an error of its own.
            ContractViolation: when a layer does not return an outcome of the operation.
            Exception: what the operation raises.
        """
        point = self._with_dependencies(point)
        self._calls.forget_outcome_changes(point)
        # Wrapped from the inside out, so that the outermost layer is called first.
        layers, guards = self._compiled.get(point.point_name, ()), self._calls.guards
        for index in range(len(layers) - 1, -1, -1):
            layer = layers[index]
            # A guard further outside cancels the operation itself, with everything inside of it.
            outside = {id(other) for other in layers[: index + 1]} if guards else ()
            proceed = self._calls.wrap(layer, point, proceed, [one for one in guards if id(one) not in outside])
            if self._events is not None:
                await emit(self._events, event_classes.InterceptorRan, point.state, layer.name, point.point_name, None)
        return await proceed()


def _layers_of(interceptor: CanIntercept) -> tuple[CanIntercept, ...]:
    return interceptor.layers if isinstance(interceptor, InterceptorStack) else (interceptor,)


def _compile(layers: tuple[CanIntercept, ...], *, accounts: bool = False) -> dict[str, tuple[CanIntercept, ...]]:
    """Return for each point that is handled its layers, in the order in which they run.

    Args:
        layers: the layers, outermost first.
        accounts: whether the points after an operation are passed without layers, too, to record what the layers around it changed.
    """
    compiled: dict[str, tuple[CanIntercept, ...]] = {}
    handled = [(layer, layer.points) for layer in layers]
    for name, kind in POINTS.items():
        inward = [layer for layer, points in handled if name in points]
        if inward:
            innermost_first = issubclass(kind, StatePoint) and kind.innermost_first
            compiled[name] = tuple(reversed(inward) if innermost_first else inward)
    for around, after in ((AroundInference, AfterInference), (AroundToolUse, AfterToolUse)):
        if accounts and around.point_name in compiled:
            compiled.setdefault(after.point_name, ())
    return compiled


# --- overlaps -------------------------------------------------------------------------------------------------------


def _find_overlaps(layers: Sequence[CanIntercept]) -> dict[str, list[str]]:
    """Return the paths that several layers declare to write, with the names of the layers."""
    found: dict[str, dict[int, str]] = {}
    declared = [(layer, writes) for layer in layers if (writes := writes_of(layer)) is not None]
    for (one, first), (two, second) in combinations(declared, 2):
        for path in first.overlap(second):
            found.setdefault(path, {}).update({id(one): one.name, id(two): two.name})
    return {path: list(names.values()) for path, names in sorted(found.items())}


def _refuse_overlaps(layers: Sequence[CanIntercept]) -> None:
    """Raise if two layers may write the same path.

    Raises:
        ConfigurationError: they may, or one of several layers declares nothing.
    """
    undeclared = [layer.name for layer in layers if writes_of(layer) is None]
    if undeclared and len(layers) > 1:
        raise ConfigurationError(
            f"with strict_writes, every interceptor declares what it writes; {', '.join(undeclared)} may write anything: set "
            "writes to the paths, or to an empty set"
        )
    for path, names in _find_overlaps(layers).items():
        raise ConfigurationError(
            f"with strict_writes, one interceptor writes a path; {path} is written by {' and '.join(names)}"
        )


_TABLE_WIDTH = 118


def _format_table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as lines of a table that fits on a terminal; the last two columns are wrapped."""
    *fixed, (_, points), _ = [(column, max(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    left = sum(width + 2 for _, width in fixed)
    widths = [
        min(points, (_TABLE_WIDTH - left) // 2),
        max(_TABLE_WIDTH - left - points - 2, (_TABLE_WIDTH - left) // 2),
    ]
    lines: list[str] = []
    for priority, *row in rows:
        wrapped = [wrap(cell, max(width, 20)) or [""] for cell, width in zip(row[2:], widths, strict=True)]
        for index, (shown, written) in enumerate(zip_longest(*wrapped, fillvalue="")):
            head = [
                priority.rjust(fixed[0][1]),
                *[cell.ljust(width) for cell, (_, width) in zip(row, fixed[1:], strict=False)],
            ]
            start = "  ".join(head) if index == 0 else " " * (left - 2)
            lines.append(f"{start}  {shown.ljust(widths[0])}  {written}".rstrip())
    return lines
