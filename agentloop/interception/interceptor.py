"""The base class of interceptors, and functions as interceptors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from difflib import SequenceMatcher
from functools import partial, partialmethod
from types import FunctionType, MappingProxyType, MethodType
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from agentloop.contracts.can_intercept import CanDeclareLimits, CanIntercept, MaybeAwaitable
from agentloop.errors import InvalidParameter
from agentloop.errors.hints import suggest
from agentloop.values.inference import InferenceResponse
from agentloop.values.points import (
    POINTS,
    AfterExecution,
    AfterInference,
    AfterStep,
    AfterToolUse,
    AroundInference,
    AroundPoint,
    AroundToolUse,
    BeforeExecution,
    BeforeInference,
    BeforeStep,
    BeforeToolUse,
    OnError,
    OnStop,
    Point,
    Proceed,
    ProceedInference,
    ProceedToolUse,
    StatePoint,
)
from agentloop.values.tool_calls import ToolExecution

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)


class Interceptor(CanIntercept, CanDeclareLimits):
    """The base class of interceptors: subclass it and override the points you need.

    A point may be a plain or an async method. It returns the context it received, or a changed copy of it; an `around`
    point awaits `proceed()` and returns its result or another one. Methods that are set on an instance, or later on a class,
    are called too, from the next execution on. A public method whose name looks like a point, but is not a point, is an error.

    Attributes:
        priority: higher runs first on the way in and last on the way out; equal priorities keep the order of
            registration.
        has_side_effects: whether it reads or writes anything outside the run, such as a file or a network. A replay leaves
            such an interceptor out, because it must not do that again.
        checks_calls: whether it decides at `before_tool_use` which calls may run. It is then called again, with the call as it
            would run, if another interceptor has changed the call.
        timeout: the seconds that an async method may take at a point, without the time in which `proceed()` runs; None for no
            limit. When they are over, the method is cancelled, and the interceptor has failed.
        writes: the paths that it may change, such as `request.system_prompt`; None for all. A path includes what is below it.
            Any other change is an error, and is not made.
        holds_deltas: whether the deltas of a streamed response are emitted only when the response has passed all interceptors
            without a change of its text. The deltas of a response whose text was changed, and of a failed attempt, are dropped.

    Raises:
        TypeError: when a subclass is defined with a method such as `before_tool_call`, which is not a point.
    """

    priority: int = 0
    has_side_effects: bool = False
    checks_calls: bool = False
    timeout: float | None = None
    writes: Collection[str] | None = None
    holds_deltas: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check the names of the methods."""
        super().__init_subclass__(**kwargs)
        _check_class(cls)
        # The methods of mixins are checked here, since a mixin is not an interceptor by itself.
        for base in cls.__mro__:
            if not issubclass(base, Interceptor) and base not in Interceptor.__mro__:
                _check_method_names(f"{cls.__qualname__}, {base.__qualname__}", vars(base))
                hidden = [name for name in POINTS if name in vars(base) and getattr(cls, name) is _METHODS[name]]
                if hidden:
                    raise TypeError(
                        f"{cls.__qualname__} hides {base.__qualname__}.{hidden[0]}, which would never be called; put the class "
                        "before Interceptor among the bases"
                    )

    @property
    def points(self) -> frozenset[str]:
        """The names of the points that this class or this instance overrides."""
        return overridden_points(self, _METHODS)

    @property
    def name(self) -> str:
        """The name in events, errors and stop signals: that of the class."""
        return type(self).__name__

    @property
    def allows_eager_start(self) -> bool:
        """Whether a pure call may run before this interceptor has seen the answer and the call; may be a class attribute.

        It matters for `around_inference`, `after_inference`, `before_tool_use` and `around_tool_use`, and for drivers that start
        calls eagerly. The interceptor still has the last word: an outcome that is not used is dropped. A declaration does not
        cover a point that a subclass overrides later.
        """
        return False

    @property
    def repeats_effects(self) -> bool:
        """Whether this interceptor may proceed again with a call that may have had an effect; may be a class attribute.

        Without it, a second `proceed()` is refused once the tool has begun, unless the tool is pure or idempotent, or declares
        retries.
        """
        return False

    def handle(self, point: S) -> MaybeAwaitable[S]:
        """Call the method of the point."""
        method: Callable[[S], MaybeAwaitable[S]] = getattr(self, point.point_name)
        return method(point)

    def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> Awaitable[T]:
        """Call the method of the point."""
        method: Callable[[AroundPoint[T], Proceed[T]], Awaitable[T]] = getattr(self, point.point_name)
        return method(point, proceed)

    def before_execution(self, point: BeforeExecution) -> MaybeAwaitable[BeforeExecution]:
        """An execution has started: change the state, or stop."""
        return point

    def before_step(self, point: BeforeStep) -> MaybeAwaitable[BeforeStep]:
        """A step is about to begin: change the state, or stop."""
        return point

    def before_inference(self, point: BeforeInference) -> MaybeAwaitable[BeforeInference]:
        """A request is about to be sent to the model: change the request or the state, or answer in the model's place."""
        return point

    def around_inference(self, point: AroundInference, proceed: ProceedInference) -> Awaitable[InferenceResponse]:
        """A request is being sent: await `proceed()`, any number of times, or return a response without it."""
        return proceed()

    def after_inference(self, point: AfterInference) -> MaybeAwaitable[AfterInference]:
        """The model has answered: change the response or the state."""
        return point

    def before_tool_use(self, point: BeforeToolUse) -> MaybeAwaitable[BeforeToolUse]:
        """A valid call is about to run: change the call or the state, block, answer or suspend."""
        return point

    def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> Awaitable[ToolExecution]:
        """A tool is running: await `proceed()`, any number of times, or return an execution without it."""
        return proceed()

    def after_tool_use(self, point: AfterToolUse) -> MaybeAwaitable[AfterToolUse]:
        """A call is settled: change the outcome or the state."""
        return point

    def after_step(self, point: AfterStep) -> MaybeAwaitable[AfterStep]:
        """A step is complete: change the state, stop, or request another step."""
        return point

    def on_stop(self, point: OnStop) -> MaybeAwaitable[OnStop]:
        """The execution is about to stop: change the state."""
        return point

    def after_execution(self, point: AfterExecution) -> MaybeAwaitable[AfterExecution]:
        """The execution has stopped: change the state."""
        return point

    def on_error(self, point: OnError) -> MaybeAwaitable[OnError]:
        """Something other than a tool has failed: change the error, or recover."""
        return point


_METHODS: Mapping[str, object] = MappingProxyType({name: getattr(Interceptor, name) for name in POINTS})
"""The methods that do nothing. A method of this class that is patched later is not one of them."""


def overridden_points(interceptor: Interceptor, methods: Mapping[str, object]) -> frozenset[str]:
    """Return the names of the points for which an interceptor has another method than these.

    Args:
        interceptor: the interceptor; methods that are set on the instance count, too.
        methods: the methods of a base class, by point.

    Raises:
        TypeError: an attribute of the instance looks like a point, but is not one.
    """
    cls, own = type(interceptor), getattr(interceptor, "__dict__", {})
    _check_class(cls)
    if own:
        # An attribute such as `on_limit` may well be a callback of the instance.
        _check_method_names(cls.__qualname__, own)
    return frozenset([name for name in POINTS if name in own or getattr(cls, name) is not methods.get(name)])


_GUARDING_POINTS = frozenset({"around_inference", "after_inference", "before_tool_use", "around_tool_use"})
"""The points at which a layer may prevent a call."""


def allows_eager_start(layer: CanIntercept) -> bool:
    """Return whether a pure call may run before a layer has seen it: the layer agrees, or would not see it."""
    guarding = layer.points & _GUARDING_POINTS
    if not guarding:
        return True
    if not getattr(layer, "allows_eager_start", False):
        return False
    if not isinstance(layer, Interceptor):
        return True
    # A declaration is about the points that its class knows: it does not cover those that a subclass overrides.
    declared = _depth(layer, "allows_eager_start")
    return all(declared <= _depth(layer, point) for point in guarding)


def _depth(layer: CanIntercept, name: str) -> int:
    """Return the position, in the order of lookup, of what defines an attribute: 0 for the instance itself."""
    owners = [getattr(layer, "__dict__", {}), *map(vars, type(layer).__mro__)]
    return next(index for index, names in enumerate(owners) if name in names)


_CHECKED: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()
"""The names of the attributes of a class that were checked; others may be set later."""


def _check_class(cls: type) -> None:
    attributes = vars(cls)
    if added := attributes.keys() - _CHECKED.get(cls, frozenset()):
        if cls is not Interceptor:
            _check_method_names(cls.__qualname__, {name: attributes[name] for name in added}, "on_")
        _CHECKED[cls] = frozenset(attributes)


_PREFIXES = ("before_", "after_", "around_")
_MIN_SIMILARITY = 0.85
_METHOD_TYPES = (FunctionType, MethodType, partial, partialmethod, staticmethod, classmethod)


def _check_method_names(owner: str, attributes: Mapping[str, object], *prefixes: str) -> None:
    """Check that every public method whose name looks like a point is a point.

    Args:
        owner: the name of the class.
        attributes: the attributes of the class or of an instance.
        prefixes: prefixes of points, besides the usual ones.

    Raises:
        TypeError: a method is not; the message names the most similar point.
    """
    for name, attribute in attributes.items():
        if name.startswith("_") or name in POINTS or not isinstance(attribute, _METHOD_TYPES):
            continue
        # Compared without case and underscores, so that `beforeToolUse` is found, too.
        plain = name.replace("_", "").lower()
        similarity, point = max(
            (SequenceMatcher(None, plain, point.replace("_", "")).ratio(), point) for point in POINTS
        )
        if similarity >= _MIN_SIMILARITY or name.startswith((*_PREFIXES, *prefixes)):
            raise TypeError(
                f"{owner}.{name} is not a point of an interceptor, so it would never be called; did you mean {point}? "
                "The name of another method starts with another word or an underscore"
            )


class FunctionInterceptor(CanIntercept, CanDeclareLimits):
    """An interceptor that calls one function at one point."""

    def __init__(
        self,
        point: type[Point],
        function: Callable[..., Any],
        priority: int,
        timeout: float | None = None,
        writes: Collection[str] | None = None,
    ) -> None:
        # `at("before_step", check())` in place of `at("before_step", check)` would otherwise fail in the middle of a run.
        if not callable(function):
            raise InvalidParameter(f"at({point.point_name!r}) takes a function, not {function!r:.100}")
        self._point_name = point.point_name
        self._function = function
        self._priority = priority
        self._timeout = timeout
        self._writes = writes

    @property
    def timeout(self) -> float | None:
        """The seconds that the function may take if it is async; None for no limit."""
        return self._timeout

    @property
    def writes(self) -> Collection[str] | None:
        """The paths that the function may change; None for all."""
        return self._writes

    @property
    def points(self) -> frozenset[str]:
        """The name of the point."""
        return frozenset({self._point_name})

    @property
    def priority(self) -> int:
        """The position among other interceptors: higher runs first on the way in and last on the way out."""
        return self._priority

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self._function, "__name__", None) or repr(self._function)

    def handle(self, point: S) -> MaybeAwaitable[S]:
        """Call the function."""
        result: MaybeAwaitable[S] = self._function(point)
        return result

    def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> Awaitable[T]:
        """Call the function."""
        result: Awaitable[T] = self._function(point, proceed)
        return result

    def __repr__(self) -> str:
        return f"at({self._point_name!r}, {self.name}, priority={self.priority})"


class _Options(TypedDict, total=False):
    """The options of `at`."""

    priority: int
    timeout: float | None
    writes: Collection[str] | None


_On: TypeAlias = Callable[[S], MaybeAwaitable[S]]
_InferenceLayer: TypeAlias = Callable[[AroundInference, ProceedInference], Awaitable[InferenceResponse]]
_ToolUseLayer: TypeAlias = Callable[[AroundToolUse, ProceedToolUse], Awaitable[ToolExecution]]
F = TypeVar("F", bound=Callable[..., Any])
_Decorator: TypeAlias = Callable[[F], CanIntercept]


@overload
def at(point: Literal["before_execution"], /, **options: Unpack[_Options]) -> _Decorator[_On[BeforeExecution]]: ...
@overload
def at(point: Literal["before_execution"], f: _On[BeforeExecution], /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["before_step"], /, **options: Unpack[_Options]) -> _Decorator[_On[BeforeStep]]: ...
@overload
def at(point: Literal["before_step"], f: _On[BeforeStep], /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["before_inference"], /, **options: Unpack[_Options]) -> _Decorator[_On[BeforeInference]]: ...
@overload
def at(point: Literal["before_inference"], f: _On[BeforeInference], /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["around_inference"], /, **options: Unpack[_Options]) -> _Decorator[_InferenceLayer]: ...
@overload
def at(point: Literal["around_inference"], f: _InferenceLayer, /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["after_inference"], /, **options: Unpack[_Options]) -> _Decorator[_On[AfterInference]]: ...
@overload
def at(point: Literal["after_inference"], f: _On[AfterInference], /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["before_tool_use"], /, **options: Unpack[_Options]) -> _Decorator[_On[BeforeToolUse]]: ...
@overload
def at(point: Literal["before_tool_use"], f: _On[BeforeToolUse], /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["around_tool_use"], /, **options: Unpack[_Options]) -> _Decorator[_ToolUseLayer]: ...
@overload
def at(point: Literal["around_tool_use"], f: _ToolUseLayer, /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["after_tool_use"], /, **options: Unpack[_Options]) -> _Decorator[_On[AfterToolUse]]: ...
@overload
def at(point: Literal["after_tool_use"], f: _On[AfterToolUse], /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["after_step"], /, **options: Unpack[_Options]) -> _Decorator[_On[AfterStep]]: ...
@overload
def at(point: Literal["after_step"], f: _On[AfterStep], /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["on_stop"], /, **options: Unpack[_Options]) -> _Decorator[_On[OnStop]]: ...
@overload
def at(point: Literal["on_stop"], f: _On[OnStop], /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["after_execution"], /, **options: Unpack[_Options]) -> _Decorator[_On[AfterExecution]]: ...
@overload
def at(point: Literal["after_execution"], f: _On[AfterExecution], /, **options: Unpack[_Options]) -> CanIntercept: ...
@overload
def at(point: Literal["on_error"], /, **options: Unpack[_Options]) -> _Decorator[_On[OnError]]: ...
@overload
def at(point: Literal["on_error"], f: _On[OnError], /, **options: Unpack[_Options]) -> CanIntercept: ...
def at(
    point: object,
    function: Callable[..., Any] | None = None,
    /,
    *,
    priority: int = 0,
    timeout: float | None = None,
    writes: Collection[str] | None = None,
) -> CanIntercept | _Decorator[Callable[..., Any]]:
    """Make an interceptor of a function that is called at one point: `at("before_step", function)`, or `@at("before_step")` above it.

    Args:
        point: the name of the point, which is also the name of its method in `Interceptor`.
        function: plain or async; receives what that method receives, and returns what it returns.
        priority: higher runs first on the way in and last on the way out.
        timeout: the seconds that the function may take if it is async; None for no limit.
        writes: the paths that the function may change, such as `request.system_prompt`; None for all.

    Raises:
        InvalidParameter: no point has this name, or `function` is not a function.
    """
    if not isinstance(point, str) or (kind := POINTS.get(point)) is None:
        raise InvalidParameter(_unknown_point(point))
    if function is None:
        return lambda decorated: FunctionInterceptor(kind, decorated, priority, timeout, writes)
    return FunctionInterceptor(kind, function, priority, timeout, writes)


def _unknown_point(point: object) -> str:
    if isinstance(point, str):
        return f"there is no point {point!r:.100}{suggest(point, POINTS)}; the points are {', '.join(POINTS)}"
    name = getattr(point, "point_name", None) or next(iter(POINTS))
    return f"at() takes the name of a point first, such as at({name!r}), not {point!r:.100}"
