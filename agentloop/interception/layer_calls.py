"""Calls of single layers: each is held to its time, to the type that it returns, and to what it declares to change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from inspect import isawaitable
from math import inf
from typing import Any, TypeAlias, TypeVar

from attrs import define, evolve, field, frozen

from agentloop import events as event_classes
from agentloop._shielding import CancellationWatch, OwnTime, TimeIsOver, is_task_cancelled, run_in_own_time
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanDeclareLimits, CanIntercept, CanLimitTime, CanStopAtOnce
from agentloop.errors import ConfigurationError, ContractViolation, InterceptorFailed
from agentloop.events.bus import emit
from agentloop.interception.second_attempts import check_second_attempt
from agentloop.values.points import (
    POINTS,
    AfterInference,
    AfterToolUse,
    AroundPoint,
    AroundToolUse,
    Point,
    Proceed,
    StatePoint,
)
from agentloop.values.provenance import PROVENANCE, FieldChange, InterceptorWrite, Provenance, add_writes
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState, find_discontinuity
from agentloop.values.stop import AgentStop, InterceptorTimedOut, StopSignal
from agentloop.values.writes import (
    DeclaredWrites,
    check_writes,
    outcome_writes,
    record_writes,
    writes_between,
)

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)
Guards: TypeAlias = Sequence[CanIntercept]
"""Layers that are `CanLimitTime` or `CanStopAtOnce`."""

_LOG = logging.getLogger("agentloop.interception")
_GRACE_SECONDS = 5.0
"""The time that interceptors have after an operation, such as to mask a result, where the time limit is over or nearly so."""
_CANCEL_SECONDS = 1.0
"""The time that a cancelled interceptor has to end, before it is left behind."""


def timeout_of(layer: CanIntercept) -> float | None:
    """Return the time limit of a layer in seconds; None if it has none.

    Raises:
        ConfigurationError: it is not a number above 0.
    """
    timeout: object = layer.timeout if isinstance(layer, CanDeclareLimits) else None
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < inf:
        raise ConfigurationError(
            f"the timeout of the interceptor {layer.name} is a number of seconds above 0, or None, not {timeout!r}"
        )
    return timeout


def writes_of(layer: CanIntercept) -> DeclaredWrites | None:
    """Return what a layer declares to change; None if it declares nothing.

    Raises:
        ConfigurationError: a declared path does not exist.
    """
    if not isinstance(layer, CanDeclareLimits) or "writes" not in getattr(layer, "__dict__", ()):
        # A declaration is one of the methods beside it: a subclass that overrides a point makes one of its own.
        for cls in type(layer).__mro__:
            if "writes" in vars(cls):
                break
            if not vars(cls).keys().isdisjoint(POINTS):
                return None
    return DeclaredWrites.of(layer.name, layer.writes) if isinstance(layer, CanDeclareLimits) else None


@frozen(eq=False, repr=False)
class LayerCalls(ShownByField):
    """Calls layers of one stack.

    Attributes:
        events: the bus of the execution; None outside of one.
        timeouts: the time limits of the layers that have one, by the id of the layer.
        guards: the layers that limit the time of the execution, or that can stop it at once.
        writes: what the layers that declare it may change, by the id of the layer.
        provenance: what is recorded of changes in the state.
    """

    events: CanHandleEvents | None
    timeouts: Mapping[int, float]
    guards: Guards
    writes: Mapping[int, DeclaredWrites]
    provenance: Provenance
    # The changes of outcomes by layers around a call, by its key, until a point at which the state may change.
    _outcome_changes: dict[str, list[InterceptorWrite]] = field(factory=dict, init=False)

    @classmethod
    def of(
        cls, layers: Sequence[CanIntercept], provenance: Provenance, events: CanHandleEvents | None = None
    ) -> LayerCalls:
        """Return the calls of these layers.

        Raises:
            ConfigurationError: a timeout is not a number above 0, or a declared path does not exist.
        """
        timeouts = {id(layer): timeout for layer in layers if (timeout := timeout_of(layer)) is not None}
        guards = tuple([layer for layer in layers if isinstance(layer, CanLimitTime | CanStopAtOnce)])
        writes = {id(layer): declared for layer in layers if (declared := writes_of(layer)) is not None}
        return cls(events, timeouts, guards, writes, provenance)

    async def handle(self, layer: CanIntercept, point: S) -> S:
        """Call a layer at a point at which the state may change, and check what it returns.

        Raises:
            AgentStop: the layer stops the execution, or a limit of the execution interrupted it.
            InterceptorFailed: the layer raised anything else, or its own time is over.
            ContractViolation: the layer returned no context of the point, or not with a state that continues the point's.
        """
        try:
            result = layer.handle(point)
            if isawaitable(result):
                limit = self._time_limit(layer, point, self.guards)
                result = await (result if limit is None else self._await_within(limit, layer, point, result))
        except AgentStop as stop:
            stop.set_default_source(layer.name)
            raise
        except asyncio.CancelledError as cancelled:
            if is_task_cancelled():
                raise
            raise InterceptorFailed(layer.name, point.point_name, cancelled) from cancelled
        except Exception as error:
            raise InterceptorFailed(layer.name, point.point_name, error) from error
        _check_result(layer, point, result)
        if result is point:
            return point
        kept = result.state.with_continuation_of(point.state)
        if kept is not result.state:  # a state from before the signals of other layers
            result = result.with_state(kept)
        declared = self.writes.get(id(layer))
        if declared is not None:
            check_writes(layer.name, point.point_name, declared, writes_between(point, result))
        signed = _with_signed_signals(result, point.state, layer.name)
        writes: Sequence[InterceptorWrite] = ()
        if self.provenance is not Provenance.NONE:
            changes = record_writes(writes_between(point, signed), self.provenance)
            writes = [_write(layer, point, change) for change in changes]
        # Also where nothing is recorded: no layer writes the account itself.
        state = _with_account(signed.state, point.state, writes)
        return signed if state is signed.state else signed.with_state(state)

    def add_outcome_changes(self, point: S) -> S:
        """Return a point after an operation, with what the layers around it changed in the account of its state."""
        key = point.execution.key if isinstance(point, AfterToolUse) else ""
        is_after = isinstance(point, AfterToolUse | AfterInference)
        changes = self._outcome_changes.pop(key, None) if is_after else None
        if changes is None:
            return point
        return point.with_state(_with_account(point.state, point.state, changes))

    def forget_outcome_changes(self, point: AroundPoint[Any]) -> None:
        """Forget what layers around the operation changed before, whose outcome was not used."""
        if self._outcome_changes:
            self._outcome_changes.pop(point.key if isinstance(point, AroundToolUse) else "", None)

    def wrap(self, layer: CanIntercept, point: AroundPoint[T], inner: Proceed[T], guards: Guards) -> Proceed[T]:
        """Return an operation wrapped in one layer.

        Args:
            layer: the layer.
            point: the context of the point.
            inner: runs the inner layers and the operation.
            guards: the layers that can interrupt this one and do not wrap it themselves.
        """

        async def run_layer() -> T:
            # Errors of the operation pass through unchanged; only the layer's own are attributed to it.
            inner_errors: list[BaseException] = []
            inner_outcomes: list[T] = []
            limit, watch = self._time_limit(layer, point, guards), CancellationWatch()
            attempts = 0

            async def proceed() -> T:
                nonlocal attempts
                if attempts:
                    is_running = attempts > len(inner_errors) + len(inner_outcomes)
                    check_second_attempt(layer, point, inner_outcomes, is_running=is_running)
                if watch.is_cancelled():  # a layer that catches its cancellation starts nothing again
                    raise ContractViolation(f"proceed() was awaited at {point.point_name} after its cancellation")
                attempts += 1
                try:
                    outcome = await (inner() if limit is None else limit.run_operation(inner))
                except BaseException as error:
                    inner_errors.append(error)
                    raise
                inner_outcomes.append(outcome)
                return outcome

            try:
                work = layer.around(point, proceed)
                outcome = await (work if limit is None else self._await_within(limit, layer, point, work))
            except AgentStop as stop:
                stop.set_default_source(layer.name)
                raise
            except (Exception, asyncio.CancelledError) as error:
                if _is_of_operation(error, inner_errors):
                    raise
                raise InterceptorFailed(layer.name, point.point_name, error) from error
            _check_outcome(layer, point, outcome)
            if not any(outcome is inner_outcome for inner_outcome in inner_outcomes):
                await self._accept_outcome(layer, point, inner_outcomes[-1] if inner_outcomes else None, outcome)
            return outcome

        return run_layer

    async def _accept_outcome(self, layer: CanIntercept, point: AroundPoint[T], before: T | None, outcome: T) -> None:
        """Check, report and record that a layer replaced the outcome of an operation.

        Raises:
            ContractViolation: the layer did not declare it.
        """
        declared = self.writes.get(id(layer))
        if declared is not None:
            check_writes(layer.name, point.point_name, declared, outcome_writes(point, before, outcome))
        if self.provenance is not Provenance.NONE:
            changes = record_writes(outcome_writes(point, before, outcome), self.provenance)
            key = point.key if isinstance(point, AroundToolUse) else ""
            self._outcome_changes.setdefault(key, []).extend([_write(layer, point, change) for change in changes])
        if self.events is not None and self.events.due(event_classes.InterceptorRan):
            changes = record_writes(outcome_writes(point, before, outcome), self.provenance)
            head = self.events.head(point.state)
            await self.events.emit(
                event_classes.InterceptorRan(head, layer.name, point.point_name, bool(changes), changes)
            )

    # --- time -------------------------------------------------------------------------------------------------------

    def _time_limit(self, layer: CanIntercept, point: Point, guards: Guards) -> _TimeLimit | None:
        """Return until when a layer may run; None without any limit, so that it needs no task of its own."""
        timeout = self.timeouts.get(id(layer)) if self.timeouts else None
        if timeout is None and not guards:
            return None
        clocks = [guard for guard in guards if isinstance(guard, CanLimitTime)]
        clocks = [clock for clock in clocks if clock.remaining_seconds(point.state) is not None]
        stops = [guard for guard in guards if isinstance(guard, CanStopAtOnce)]
        if timeout is None and not clocks and not stops:
            return None
        least = 0.0 if point.point_name.startswith("before_") else _GRACE_SECONDS
        return _TimeLimit(OwnTime(inf), timeout or inf, point.state, clocks, stops, least)

    async def _await_within(self, limit: _TimeLimit, layer: CanIntercept, point: Point, work: Awaitable[T]) -> T:
        """Await what a layer returns until a limit is reached.

        Raises:
            TimeoutError: its own time is over.
            InterceptorTimedOut: the execution stops.
        """
        own_time = limit.own_time
        limit.start()
        notices = [stop.notify_at_stop(limit.stop) for stop in limit.stops]
        try:
            # What a tool returns when its call is cancelled is its outcome, such as the receipt of a payment.
            keeps_result = isinstance(point, AroundToolUse)
            return await run_in_own_time(work, own_time, grace=_CANCEL_SECONDS, keeps_result=keeps_result)
        except TimeIsOver as over:
            signal = limit.signal
            _report_abandoned(layer, point, over)
            if self.events is not None:
                reached = "timeout" if signal is None else signal.reason.value
                details = (layer.name, point.point_name, reached, own_time.seconds, over.is_abandoned)
                await emit(self.events, event_classes.InterceptorInterrupted, point.state, *details)
            if signal is None:
                raise TimeoutError(f"it did not end within its timeout of {limit.timeout:g} seconds") from None
            raise _interruption(layer, point, signal) from None
        except asyncio.CancelledError as cancelled:
            if isinstance(cancelled.__cause__, TimeIsOver):
                _report_abandoned(layer, point, cancelled.__cause__)
            raise
        finally:
            for take_back in notices:
                take_back()


@define(eq=False, repr=False)
class _TimeLimit(ShownByField):
    """Until when one call of a layer may run.

    Attributes:
        own_time: counts the time of the layer.
        timeout: the seconds that the layer may take by itself.
        state: the state of the execution, for what limits its time.
        clocks: limit the time of the execution.
        stops: what can stop the execution at once.
        least: the seconds that the layer has when the execution stops.
    """

    own_time: OwnTime
    timeout: float
    state: AgentState
    clocks: Sequence[CanLimitTime]
    stops: Sequence[CanStopAtOnce]
    least: float
    # What limits the time of the execution, if that ends before the timeout of the layer.
    _nearest: CanLimitTime | None = field(default=None, init=False)

    def start(self) -> None:
        """Begin to count."""
        self.own_time.shorten(self.timeout)
        self._follow_clocks()

    def stop(self) -> None:
        """Leave only the time that the layer has when the execution stops."""
        self.own_time.shorten(self.least)

    async def run_operation(self, operation: Proceed[T]) -> T:
        """Await an operation of the layer, whose time counts for the execution and not for the layer."""
        try:
            return await self.own_time.without(operation)
        finally:
            self._follow_clocks()

    def _follow_clocks(self) -> None:
        for clock in self.clocks:
            seconds = clock.remaining_seconds(self.state)
            if seconds is not None and self.own_time.shorten(max(seconds, self.least)):
                self._nearest = clock

    @property
    def signal(self) -> StopSignal | None:
        """The signal of the limit that was reached; None for the timeout of the layer."""
        for stop in self.stops:
            if (signal := stop.current_stop()) is not None:
                return signal
        return None if self._nearest is None else self._nearest.time_signal()


def _interruption(layer: CanIntercept, point: Point, signal: StopSignal) -> InterceptorTimedOut:
    return InterceptorTimedOut(
        f"{signal.message} while the interceptor {layer.name} ran at {point.point_name}",
        reason=signal.reason,
        source=signal.source,
        context=signal.context,
    )


def _report_abandoned(layer: CanIntercept, point: Point, over: TimeIsOver[Any]) -> None:
    """Log that a layer runs on although it was cancelled, and log its end."""
    if not over.is_abandoned:
        return
    name, place, execution_id = layer.name, point.point_name, point.state.execution_id
    fields = {"execution_id": execution_id, "interceptor": name, "point": place}
    _LOG.warning("the interceptor %s ignores its cancellation at %s and was left behind", name, place, extra=fields)

    def log_end(task: asyncio.Task[object]) -> None:
        error = None if task.cancelled() else task.exception()
        _LOG.warning(
            "the interceptor %s that was left behind at %s has ended", name, place, exc_info=error, extra=fields
        )

    over.task.add_done_callback(log_end)


# --- the account of changes -----------------------------------------------------------------------------------------


def _write(layer: CanIntercept, point: Point, change: FieldChange) -> InterceptorWrite:
    return InterceptorWrite(layer.name, point.point_name, point.state.step_count, change)


def _with_account(state: AgentState, before: AgentState, writes: Sequence[InterceptorWrite]) -> AgentState:
    """Return a state with changes added to the account that the state before had, whatever a layer made of it."""
    account = before.extension(PROVENANCE)
    if writes:
        account = add_writes(account, state.execution_id, writes)
    return state if state.extension(PROVENANCE) is account else state.with_extension(PROVENANCE, account)


# --- checks ---------------------------------------------------------------------------------------------------------


def _check_result(layer: CanIntercept, point: S, result: S) -> None:
    """Check what a layer returned.

    Raises:
        ContractViolation: it is no context of the point, or its state does not continue the point's.
    """
    # The usual mistake is a method without a return statement: fail here, with the name of the interceptor.
    if not isinstance(result, type(point)):
        raise ContractViolation(
            f"the interceptor {layer.name} returned {result!r:.100} at {point.point_name}; return the "
            f"{type(point).__name__} that it received, or a copy changed by its methods"
        )
    # Checked here, before anything runs with the state: a foreign one would give calls the keys of another execution.
    if result.state is not point.state and (problem := find_discontinuity(point.state, result.state)):
        raise ContractViolation(
            f"the interceptor {layer.name} returned a state at {point.point_name} that does not follow the one it received: "
            f"{problem}"
        )


def _with_signed_signals(point: S, before: AgentState, interceptor: str) -> S:
    """Put the interceptor's name on the stop signals that it added without a source."""
    after = point.state.execution
    if after is None or before.execution is None or after.continuation is before.execution.continuation:
        return point
    # Those of other layers were kept and come first, so those beyond the earlier count are the interceptor's.
    count = len(before.execution.continuation.signals)
    signals = after.continuation.signals
    signed = (*signals[:count], *[_with_source(signal, interceptor) for signal in signals[count:]])
    if signed == signals:
        return point
    execution = after.with_continuation(evolve(after.continuation, signals=signed))
    return evolve(point, state=evolve(point.state, execution=execution))


def _with_source(signal: StopSignal, source: str) -> StopSignal:
    return signal if signal.source else evolve(signal, source=source)


def _is_of_operation(error: BaseException, inner_errors: Sequence[BaseException]) -> bool:
    """Return whether an operation raised the error that a layer around it raises."""
    if not isinstance(error, asyncio.CancelledError):
        return any(error is inner_error for inner_error in inner_errors)
    # A cancellation of the operation is handled outside; the class decides, since tasks raise a new instance.
    return is_task_cancelled() or any(isinstance(inner, asyncio.CancelledError) for inner in inner_errors)


def _check_outcome(layer: CanIntercept, point: AroundPoint[T], outcome: T) -> None:
    if not isinstance(outcome, point.outcome_type):
        raise ContractViolation(
            f"the interceptor {layer.name} returned {outcome!r:.100} at {point.point_name}; return the result of "
            f"proceed(), or another {point.outcome_type.__name__}"
        )
    if violation := point.find_violation(outcome):
        raise ContractViolation(f"the interceptor {layer.name} {violation} at {point.point_name}")
