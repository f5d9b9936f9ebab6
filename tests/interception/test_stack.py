"""The stack of interceptors: order, contexts, failures, and the table of points."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self, TypeVar, get_args, get_overloads, get_type_hints

import pytest
from attrs import evolve

from agentloop import (
    AgentLoop,
    AgentState,
    AgentStop,
    Interceptor,
    ScriptedInference,
    StopReason,
    ToolCall,
    ToolCallingDriver,
    interception,
    tool,
)
from agentloop.contracts import CanAcceptExecutionScope, CanIntercept, ExecutionScope
from agentloop.contracts.can_intercept import CanDeclareLimits
from agentloop.errors import InvalidParameter
from agentloop.events import InterceptorRan
from agentloop.interception import InterceptorStack, StopOnFinishReason, at
from agentloop.interception.stack import Passage
from agentloop.testing import Ledger, toy_tools
from agentloop.values import ExecutionStatus, InferenceResponse, StopSignal, Text, Usage, points
from agentloop.values.points import (
    POINTS,
    AroundInference,
    AroundPoint,
    BeforeStep,
    BeforeToolUse,
    OnError,
    Point,
    Proceed,
    ProceedInference,
    StatePoint,
)
from agentloop.values.reprs import MAX_REPR

S = TypeVar("S", bound=StatePoint)
T = TypeVar("T")


def create_loop(*interceptors: CanIntercept, lines: Any = None) -> AgentLoop:
    script = lines or ([ToolCall("c", "echo", '{"value": 1}')], "done")
    return AgentLoop(ToolCallingDriver(ScriptedInference(*script)), toy_tools(Ledger()), interceptors=interceptors)


def recording_functions(records: list[str], label: str) -> dict[str, Callable[..., Any]]:
    """Return for each point a function that records when it is called."""

    def plain(name: str) -> Callable[[Point], Point]:
        def record(point: Point) -> Point:
            records.append(f"{label} {name}")
            return point

        return record

    def around(name: str) -> Callable[[Point, Any], Any]:
        async def record(point: Point, proceed: Any) -> Any:
            records.append(f"{label} into {name}")
            outcome = await proceed()
            records.append(f"{label} out of {name}")
            return outcome

        return record

    return {name: around(name) if name.startswith("around") else plain(name) for name in POINTS}


FORMS: dict[str, Any] = {name: partial(at, name) for name in POINTS}
"""What makes an interceptor of a function at each point."""


def test_higher_priority_is_outside() -> None:
    """Higher priority runs first on the way in and last on the way out, at every point of a run."""
    records: list[str] = []
    inner = [FORMS[name](function, priority=1) for name, function in recording_functions(records, "inner").items()]
    outer = [FORMS[name](function, priority=9) for name, function in recording_functions(records, "outer").items()]
    create_loop(*inner, *outer, lines=("done",)).execute_sync("go")
    assert records == [
        "outer before_execution",
        "inner before_execution",
        "outer before_step",
        "inner before_step",
        "outer before_inference",
        "inner before_inference",
        "outer into around_inference",
        "inner into around_inference",
        "inner out of around_inference",
        "outer out of around_inference",
        "inner after_inference",
        "outer after_inference",
        "inner after_step",
        "outer after_step",
        "outer on_stop",
        "inner on_stop",
        "inner after_execution",
        "outer after_execution",
    ]


def test_the_layers_of_a_stack_stay_together_in_another_one() -> None:
    """They run at the priority 0, in the order of their own priorities, and are bound to the execution like the others."""
    records: list[str] = []

    class Bound(Interceptor, CanAcceptExecutionScope):
        priority = -3

        def with_execution_scope(self, scope: ExecutionScope) -> Self:
            records.append("bound")
            return self

    low, high, outside = (recording_functions(records, label)["before_step"] for label in ("low", "high", "outside"))
    stack = InterceptorStack.of([at("before_step", low, priority=-9), at("before_step", high, priority=9), Bound()])
    loop = create_loop(stack, at("before_step", outside, priority=1), lines=("done",))
    ran: list[str] = []
    loop.wiretap(lambda event: ran.append(event.interceptor) if isinstance(event, InterceptorRan) else None)
    loop.execute_sync("go")
    assert records == ["bound", "outside before_step", "high before_step", "low before_step"]
    assert ran == ["StepLimit", "record", "record", "record"]


def test_equal_priorities_keep_the_order_of_registration() -> None:
    """Interceptors of one priority run in the order in which they were registered."""
    records: list[str] = []
    interceptors = [at("before_step", recording_functions(records, label)["before_step"]) for label in "abc"]
    create_loop(*interceptors, lines=("done",)).execute_sync("go")
    assert records == ["a before_step", "b before_step", "c before_step"]


@pytest.mark.parametrize(
    "make",
    [*[partial(form, lambda point, *_: point) for form in FORMS.values()], StopOnFinishReason],
    ids=[*FORMS, "finish reason"],
)
def test_without_a_priority_functions_and_classes_keep_the_order_of_registration(
    make: Callable[[], CanIntercept],
) -> None:
    """Neither is outside of the other because of its form."""

    class Plain(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point

    layers = (Plain(), make(), Plain())
    assert InterceptorStack.of(layers).layers == layers


async def test_a_point_may_be_async() -> None:
    """The method of a point may be a coroutine function."""

    class Async(Interceptor):
        async def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.with_state(point.state.with_metadata(awaited=True))

    state = await create_loop(Async(), lines=("done",)).execute("go")
    assert state.context.metadata["awaited"] is True


@pytest.mark.parametrize("returned", [None, "text", 7])
def test_a_point_that_returns_no_context_fails_the_execution(returned: object) -> None:
    """The error names the interceptor that returned something other than a context of the point."""

    class Odd(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            return returned  # type: ignore[return-value]  # the mistake under test

    state = create_loop(Odd()).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert state.errors[-1].type == "ContractViolation"
    assert "the interceptor Odd returned" in state.errors[-1].message


@pytest.mark.parametrize("returned", [None, "text", BeforeStep])
@pytest.mark.parametrize("name", ["around_inference", "around_tool_use"])
def test_a_layer_around_an_operation_that_returns_no_outcome_fails_the_execution(name: str, returned: object) -> None:
    """The error names the interceptor, what it returned and what it has to return."""

    async def forget(point: Point, proceed: Any) -> Any:
        await proceed()
        return returned

    outcome: Any = POINTS[name]
    state = create_loop(FORMS[name](forget)).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert state.errors[-1].type == "ContractViolation"
    expected = f"the interceptor forget returned {returned!r} at {name}; return the result of proceed(), or another "
    assert state.errors[-1].message == expected + outcome.outcome_type.__name__


@pytest.mark.parametrize("name", [name for name in POINTS if name != "on_error"])
def test_an_interceptor_that_raises_fails_the_execution(name: str) -> None:
    """At every point, the execution ends as failed, with an error that names the interceptor."""

    async def raise_around(point: Point, proceed: Any) -> Any:
        raise ValueError("no luck")

    def raise_plain(point: Point) -> Point:
        raise ValueError("no luck")

    form = FORMS[name]
    state = create_loop(form(raise_around if name.startswith("around") else raise_plain)).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert state.errors[-1].type == "InterceptorFailed"
    assert f"failed at {name}: ValueError: no luck" in state.errors[-1].message
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.ERROR


@pytest.mark.parametrize("name", [name for name in POINTS if name != "on_error"])
def test_agent_stop_at_any_point_stops_without_failing(name: str) -> None:
    """AgentStop becomes a stop signal with the interceptor's name, not an error."""

    async def stop_around(point: Point, proceed: Any) -> Any:
        raise AgentStop("enough")

    def stop_here(point: Point) -> Point:
        raise AgentStop("enough")

    form = FORMS[name]
    state = create_loop(form(stop_around if name.startswith("around") else stop_here)).execute_sync("go")
    assert state.status in {ExecutionStatus.STOPPED, ExecutionStatus.COMPLETED}
    signals = state.execution.continuation.signals if state.execution is not None else ()
    assert ("enough", "stop_around" if name.startswith("around") else "stop_here") in [
        (signal.message, signal.source) for signal in signals
    ]
    assert not state.errors


@pytest.mark.parametrize("name", [name for name in POINTS if not name.startswith("around")])
@pytest.mark.parametrize("error", [AgentStop("enough"), ValueError("no luck")])
@pytest.mark.parametrize("is_recovered", [False, True])
@pytest.mark.parametrize("is_nested", [False, True])
def test_the_change_of_a_layer_outlives_an_error_of_another_one(
    name: str, error: Exception, *, is_recovered: bool, is_nested: bool
) -> None:
    """What every layer that returned has made of the state is in it, once for each time, however the execution ends."""
    returned, raised = list[str](), list[str]()

    def note(key: str) -> Callable[[StatePoint], StatePoint]:
        def add(point: StatePoint) -> StatePoint:
            returned.append(key)
            count = point.state.context.metadata.get(key, 0)
            assert isinstance(count, int)
            return point.with_state(point.state.with_message(key).with_metadata(**{key: count + 1}))

        return add

    def fail_once(point: StatePoint) -> StatePoint:
        raised.append(name)
        if len(raised) == 1:
            raise error
        return point

    form, script = FORMS[name], ([ToolCall("c", "echo", '{"value": 1}')], "done")
    layers = [form(note("outer"), priority=5), form(fail_once), form(note("inner"), priority=-5)]
    if is_nested:
        layers = [InterceptorStack.of(layers)]
    if is_recovered and name != "on_error":
        layers.append(at("on_error", lambda point: point.recover()))
    lines = (RuntimeError("the first request fails"), "done") if name == "on_error" else (*script, *script)
    state = create_loop(*layers, lines=lines).execute_sync("go")
    assert raised
    assert returned
    assert state.context.metadata == {key: returned.count(key) for key in set(returned)}
    assert sorted(message.text for message in state.messages if message.text in returned) == sorted(returned)


def test_the_change_of_a_layer_outlives_an_error_of_another_one_that_checks_the_call() -> None:
    """A call that was changed passes the layers that check calls again, and what they change stays."""

    class Checking(Interceptor):
        checks_calls = True

        def __init__(self, priority: int, *, fails: bool) -> None:
            self.priority = priority
            self.fails = fails

        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            if point.arguments["value"] == 1:
                return point
            if self.fails:
                raise ValueError("no luck")
            return point.with_state(point.state.with_metadata(checked=point.arguments["value"]))

    change = at("before_tool_use", lambda point: point.with_arguments({"value": 2}), priority=-9)
    state = create_loop(Checking(2, fails=False), Checking(1, fails=True), change).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert state.context.metadata == {"checked": 2}


def test_the_source_of_a_stop_signal_is_its_interceptor() -> None:
    """A signal without a source gets the interceptor's name; one with a source keeps it."""

    class Stopping(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.stop("first").stop("second", source="elsewhere")

    state = create_loop(Stopping()).execute_sync("go")
    assert state.execution is not None
    assert state.execution.continuation.signals == (
        StopSignal(StopReason.STOP_REQUESTED, "first", "Stopping"),
        StopSignal(StopReason.STOP_REQUESTED, "second", "elsewhere"),
    )


def run_through_all_points(*interceptors: CanIntercept, **arguments: Any) -> AgentState:
    """Run an execution that has every point: an error that is recovered, a call, and an answer."""
    script = (RuntimeError("the first request fails"), [ToolCall("c", "echo", '{"value": 1}')], "done")
    recover = at("on_error", lambda point: point.recover(), priority=-9)
    return create_loop(*interceptors, recover, lines=script).execute_sync("go", **arguments)


_STATE_POINTS = [name for name, kind in points.POINTS.items() if issubclass(kind, StatePoint) and kind is not OnError]
"""The points at which a layer can stop; an execution whose error is not recovered stops in any case."""


@pytest.mark.parametrize("is_own", [True, False], ids=["its own", "of another layer"])
@pytest.mark.parametrize("name", _STATE_POINTS)
def test_no_returned_state_takes_a_stop_signal_back(name: str, *, is_own: bool) -> None:
    """A state from before a stop signal, or without it, is continued with the signal, at every point."""
    paid: list[int] = []

    def stop_first(point: Any) -> Any:
        return point.stop("enough").with_state(point.state.with_metadata(seen=True))

    def drop(point: Any) -> Any:
        return evolve(point, state=point.state.with_metadata(seen=True).with_continuation_cleared())

    layers = [stop_first] if is_own else [lambda point: point.stop("enough"), drop]
    # The first layer runs first, also at the points where the innermost one begins.
    last_first = points.POINTS[name].innermost_first  # type: ignore[attr-defined]  # it is a StatePoint
    hooks = [FORMS[name](layer) for layer in (reversed(layers) if last_first else layers)]

    @tool
    def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    calls = [ToolCall(str(cents), "pay", f'{{"cents": {cents}}}') for cents in (1, 2)]
    state = AgentLoop.for_model(ScriptedInference(*calls, "done"), tools=[pay], interceptors=hooks).execute_sync("go")
    assert state.stop_signal is not None
    assert state.stop_signal.message == "enough"
    assert state.context.metadata["seen"] is True
    assert len(paid) == {"before_execution": 0, "before_step": 0, "on_stop": 2, "after_execution": 2}.get(name, 1)


def test_no_returned_state_takes_a_requested_continuation_back() -> None:
    """A step that an interceptor has requested follows, in whatever order it changed the state."""

    def ask(point: points.AfterStep) -> points.AfterStep:
        if point.state.step_count > 1:
            return point
        return point.request_continuation().with_state(point.state.with_message("Say why."))

    loop = AgentLoop.for_model(ScriptedInference("42", "6 x 7"), interceptors=[interception.at("after_step", ask)])
    assert loop.run_sync("go") == "6 x 7"


@pytest.mark.parametrize("dependencies", [None, "a shop", 0])
def test_every_point_has_the_dependencies_of_its_execution(dependencies: object) -> None:
    """They are those that were passed to `execute`; there are none if none were."""
    seen: dict[str, object] = {}

    def note(point: Point) -> Point:
        seen[point.point_name] = point.dependencies
        return point

    async def note_around(point: Point, proceed: Any) -> Any:
        note(point)
        return await proceed()

    layers = [form(note_around if name.startswith("around") else note) for name, form in FORMS.items()]
    assert run_through_all_points(*layers, dependencies=dependencies).final_text == "done"
    assert seen == dict.fromkeys(POINTS, dependencies)


def test_a_layer_that_checks_a_changed_call_has_the_dependencies() -> None:
    """At both times: with the call of the model, and with the changed one."""
    checked: list[tuple[object, object]] = []

    class Checking(Interceptor):
        checks_calls = True

        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            checked.append((point.arguments["value"], point.dependencies))
            return point

    change = at("before_tool_use", lambda point: point.with_arguments({"value": 2}), priority=-9)
    create_loop(Checking(), change).execute_sync("go", dependencies="a shop")
    assert checked == [(1, "a shop"), (2, "a shop")]


def test_a_method_may_call_that_of_the_base_class() -> None:
    """The methods of `Interceptor` change nothing, so that a subclass can go on with them at every point."""
    called: list[str] = []

    def create_method(name: str) -> Callable[..., Any]:
        def method(self: Interceptor, *arguments: Any) -> Any:
            called.append(name)
            return getattr(Interceptor, name)(self, *arguments)

        return method

    polite = type("Polite", (Interceptor,), {name: create_method(name) for name in POINTS})
    state, plain = [run_through_all_points(*layers) for layers in ([polite()], [])]
    assert set(called) == set(POINTS)
    assert (state.final_text, state.steps[1].executions[0].value) == ("done", 1)
    assert [step.kind for step in state.steps] == [step.kind for step in plain.steps]


def test_before_inference_may_answer_in_place_of_the_model() -> None:
    """With an answer no request is sent; the answer passes after_inference, and its usage counts."""
    inference = ScriptedInference("from the model")
    response = InferenceResponse((Text("from the cache"),), usage=Usage.none())
    loop = AgentLoop(
        ToolCallingDriver(inference),
        interceptors=[
            at("before_inference", lambda point: point.answer(response)),
            at(
                "after_inference",
                lambda point: point.with_response(point.response.with_text(point.response.text + "!")),
            ),
        ],
    )
    state = loop.execute_sync("go")
    assert state.final_text == "from the cache!"
    assert not inference.requests
    assert state.usage == Usage.none()


def test_before_inference_changes_the_request_and_the_state() -> None:
    """The model gets the changed request, and the run continues with the changed state."""
    inference = ScriptedInference("done")
    loop = AgentLoop(
        ToolCallingDriver(inference),
        interceptors=[
            at(
                "before_inference",
                lambda point: point.with_request(point.request.with_system_prompt("be brief")).with_state(
                    point.state.with_metadata(asked=True)
                ),
            )
        ],
    )
    state = loop.execute_sync("go")
    assert inference.requests[0].system_prompt == "be brief"
    assert state.context.metadata == {"asked": True}


def test_each_time_a_layer_proceeds_counts_as_an_inference() -> None:
    """A layer that proceeds twice uses the tokens of both responses (law 6)."""

    async def twice(point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        await proceed()
        return await proceed()

    state = create_loop(at("around_inference", twice), lines=("first", "second")).execute_sync("go")
    assert state.final_text == "second"
    assert (state.usage.requests, state.usage.input_tokens) == (2, 20)


def test_on_error_changes_the_error_or_recovers() -> None:
    """A recovered error stays in its step, and the execution continues."""
    script = (RuntimeError("the first request fails"), "done")
    recovered = create_loop(at("on_error", lambda point: point.recover()), lines=script).execute_sync("go")
    assert recovered.status is ExecutionStatus.COMPLETED
    assert [step.kind.value for step in recovered.steps] == ["error", "final_response"]
    renamed = create_loop(
        at("on_error", lambda point: point.with_error(ValueError("nicer"))), lines=script
    ).execute_sync("go")
    assert renamed.status is ExecutionStatus.FAILED
    assert [(error.type, error.message) for error in renamed.errors] == [("ValueError", "nicer")]


def test_the_error_of_an_error_handler_is_recorded() -> None:
    """When an `on_error` point raises, the execution fails with that error."""

    def fail(point: OnError) -> OnError:
        raise KeyError("handler")

    state = create_loop(at("on_error", fail), lines=(RuntimeError("original"),)).execute_sync("go")
    assert state.errors[-1].type == "InterceptorFailed"
    assert "fail failed at on_error" in state.errors[-1].message


def test_every_call_of_an_interceptor_is_an_event() -> None:
    """InterceptorRan has the interceptor, the point, and whether the interceptor changed anything."""
    events: list[tuple[str, str, bool | None]] = []
    loop = create_loop(
        at("before_step", lambda point: point.with_state(point.state.with_metadata(x=1))), lines=("done",)
    )
    loop.on(InterceptorRan, lambda event: events.append((event.interceptor, event.point, event.changed)))
    loop.execute_sync("go")
    assert events == [("StepLimit", "before_step", False), ("<lambda>", "before_step", True)]


def test_the_stack_shows_its_layers_in_order() -> None:
    """`describe` is a table of the layers, outermost first, with their timeouts, points and writes, and of shared paths."""

    class Outer(Interceptor):
        priority = 5
        timeout = 1.5
        writes = frozenset({"state.context.metadata", "request.tools"})

        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point

    inner = at("before_step", lambda point: point, writes={"state.context.metadata.user"})
    stack = InterceptorStack.of([at("before_step", lambda point: point), inner, Outer()])
    assert stack.describe().splitlines() == [
        "priority  interceptor  timeout  points       writes",
        "       5  Outer        1.5 s    before_step  request.tools, state.context.metadata",
        "       0  <lambda>     -        before_step  anything",
        "       0  <lambda>     -        before_step  state.context.metadata.user",
        "written by several:",
        "  state.context.metadata.user: Outer, <lambda>",
    ]
    assert stack.points == {"before_step"}


def test_a_long_cell_of_the_table_goes_on_below() -> None:
    """The lines that follow have nothing but the rest of the points and of the writes, under their headings."""
    layer = at(
        "before_step", lambda point: point, writes=[f"state.extensions.shop.number{number:02}" for number in range(6)]
    )
    heading, first, *further = InterceptorStack.of([layer]).describe().splitlines()
    column = heading.index("writes")
    assert [line[:column].strip() for line in further] == [""] * len(further)
    shown = ", ".join(line[column:].rstrip(",") for line in [first, *further])
    assert shown.split(", ") == [f"state.extensions.shop.number{number:02}" for number in range(6)]


@pytest.mark.parametrize("count", [1, len(POINTS)], ids=["few points", "many points"])
def test_the_table_fits_on_a_terminal(count: int) -> None:
    """Its lines have up to 118 characters, however many points and paths a layer has."""
    layer = Interceptor()
    for name in list(POINTS)[:count]:
        setattr(layer, name, lambda point: point)
    layer.writes = [f"state.extensions.shop.number{number:02}" for number in range(6)]
    lines = InterceptorStack.of([layer]).describe().splitlines()
    assert 100 <= max(map(len, lines)) <= 118


def test_a_value_that_is_not_an_interceptor_is_refused() -> None:
    """For a plain function in the list, the error names the function that makes an interceptor of it."""
    with pytest.raises(TypeError, match=r"wrap a function as in at\('before_step', function\)"):
        AgentLoop(ToolCallingDriver(ScriptedInference()), interceptors=[lambda point: point])  # type: ignore[list-item]  # the mistake under test


@pytest.mark.parametrize("name", POINTS)
def test_each_point_of_the_table_has_a_method_and_a_function(name: str) -> None:
    """`Interceptor` has a method for each point, and `at` takes a function of the same signature for it, in two forms."""
    context: Any = POINTS[name]
    method = get_type_hints(getattr(Interceptor, name))
    assert context.point_name == name
    assert method["point"] is context
    decorator, direct = [hints for hints in map(get_type_hints, get_overloads(at)) if name in get_args(hints["point"])]
    assert get_args(decorator["return"])[0] == [direct["f"]]
    assert get_args(direct["f"])[0][0] is context
    for made in (FORMS[name](lambda point: point), at(name)(lambda point: point)):  # type: ignore[call-overload]
        assert (made.points, made.priority, made.timeout) == ({name}, Interceptor.priority, Interceptor.timeout)
    if issubclass(context, AroundPoint):
        assert method["return"] == Awaitable[context.outcome_type]
    else:
        assert method["return"] == context | Awaitable[context]
    assert getattr(interception, context.__name__) is context


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_options_of_an_interceptor_made_of_a_function_are_named(form: Callable[..., CanIntercept]) -> None:
    """A number alone does not say whether it is a priority or a time, so that it is refused."""
    with pytest.raises(TypeError, match="positional argument"):
        form(lambda point: point, 5)


def test_a_decorated_function_is_an_interceptor_with_its_options() -> None:
    """`@at(…)` above a function makes the same interceptor as `at(…, function)`."""

    @at("before_step", priority=3, timeout=2.5, writes={"state.context.metadata"})
    def check(point: BeforeStep) -> BeforeStep:
        return point

    same = at("before_step", lambda point: point, priority=3, timeout=2.5, writes={"state.context.metadata"})
    assert isinstance(check, CanDeclareLimits)
    assert isinstance(same, CanDeclareLimits)
    assert (check.points, check.priority, check.timeout, check.writes) == (
        same.points,
        same.priority,
        same.timeout,
        same.writes,
    )
    assert repr(check) == "at('before_step', check, priority=3)"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("before_tool_call", "there is no point 'before_tool_call', did you mean 'before_tool_use'?"),
        ("beforeStep", "did you mean 'before_step'?"),
        ("after_inferences", "did you mean 'after_inference'?"),
        ("lunch", "there is no point 'lunch'; the points are before_execution, before_step"),
        ("", "there is no point ''; the points are"),
        (BeforeStep, "the name of a point first, such as at('before_step'), not <class"),
        (lambda point: point, "the name of a point first, such as at('before_execution'), not <function"),
        (None, "not None"),
    ],
)
def test_an_unknown_point_of_a_function_is_refused_with_the_nearest_one(wrong: Any, message: str) -> None:
    """The error of `at` names the point that was meant; a class or a function in its place is told apart."""
    with pytest.raises(InvalidParameter, match=re.escape(message)):
        at(wrong)
    with pytest.raises(InvalidParameter, match=re.escape(message)):
        at(wrong, lambda point: point)


def test_the_table_lists_every_point_method_of_the_base_class() -> None:
    """`Interceptor` has no point that is missing from the table."""
    methods = {name for name, value in vars(Interceptor).items() if callable(value) and not name.startswith("_")}
    assert methods - {"handle", "around"} == set(POINTS)


def test_an_interceptor_needs_only_the_contract() -> None:
    """A class that implements `CanIntercept` alone takes part in a run, at the points that it names."""
    passed: list[str] = []

    class Minimal(CanIntercept):
        points = frozenset({"before_step", "around_inference"})
        priority = 3
        name = "minimal"

        def handle(self, point: S) -> S:
            passed.append(point.point_name)
            return point

        async def around(self, point: AroundPoint[T], proceed: Proceed[T]) -> T:
            passed.append(point.point_name)
            return await proceed()

    state = create_loop(Minimal(), lines=("done",)).execute_sync("go")
    assert state.final_text == "done"
    assert passed == ["before_step", "around_inference"]


def test_contexts_offer_only_what_may_change() -> None:
    """A context has no method for a change that is not allowed at its point."""
    forbidden = {
        "AroundInference": {"with_state", "with_request", "stop"},
        "AroundToolUse": {"with_state", "with_call", "stop"},
        "BeforeStep": {"with_request", "with_call", "answer"},
        "AfterToolUse": {"with_call", "block", "suspend"},
        "AfterInference": {"with_request", "answer"},
    }
    for name, methods in forbidden.items():
        assert not methods & set(dir(getattr(points, name))), name


def test_the_run_continues_with_the_state_that_an_interceptor_returns() -> None:
    """A message that is added before the execution is part of the conversation."""
    loop = create_loop(
        at("before_execution", lambda point: point.with_state(point.state.with_message("and be quick"))),
        lines=("done",),
    )
    state: AgentState = loop.execute_sync("go")
    assert [message.text for message in state.messages] == ["go", "and be quick", "done"]


def test_a_function_that_an_instance_has_under_a_wrong_name_is_refused() -> None:
    """It looks like a point and would never be called; the error names the point that is meant."""

    class Late(Interceptor):
        def __init__(self) -> None:
            self.before_tool_call = lambda point: point

    with pytest.raises(TypeError, match=r"Late.before_tool_call is not a point .* did you mean before_tool_use"):
        create_loop(Late())


def test_the_first_of_several_hidden_points_is_named() -> None:
    """In the order of the points."""

    class Mixin:
        def after_step(self, point: Any) -> Any:
            return point

        def before_step(self, point: Any) -> Any:
            return point

    with pytest.raises(TypeError, match=r"Mixin.before_step, which would never be called"):
        type("Guard", (Interceptor, Mixin), {})


def test_how_far_a_point_came_is_shown_on_a_screen() -> None:
    """However long the error is that a layer raised."""
    passage = Passage(BeforeStep(AgentState.start("go")), ValueError("no luck " * 999))
    assert len(repr(passage)) <= MAX_REPR
    assert repr(passage).startswith("Passage(point=BeforeStep(")
