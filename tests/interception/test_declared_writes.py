"""What interceptors declare to write: enforcement, overlaps, and the account of who changed what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
    Budget,
    Interceptor,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    interception,
    policies,
)
from agentloop.contracts import CanIntercept
from agentloop.durable import MemoryJournal, replay
from agentloop.errors import ConfigurationError, ContractViolation
from agentloop.events import InterceptorRan, ToolCallCompleted
from agentloop.interception import (
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeStep,
    BeforeToolUse,
    InterceptorStack,
    Permissions,
    ProceedInference,
    ProceedToolUse,
    StepLimit,
    ToolSelection,
    at,
)
from agentloop.policies import Guardrails, PrefixGuard, ReplaceAnswer
from agentloop.testing import CountingIds, InterceptorKit, LawViolation, Ledger, ManualClock, toy_call, toy_tools
from agentloop.values import (
    ExecutionStatus,
    InferenceResponse,
    Message,
    StopReason,
    StopSignal,
    Text,
    ToolExecution,
    ToolStatus,
)
from agentloop.values.points import POINTS, Point, StatePoint
from agentloop.values.provenance import PROVENANCE, FieldChange, Provenance, render_change
from agentloop.values.writes import writable_paths, writes_between
from tests.values.test_points import STATE_POINTS

Change = Callable[[Any], Any]

STATE_CHANGES: dict[str, Change] = {
    "state.context.system_prompt": lambda p: p.with_state(p.state.with_system_prompt("changed")),
    "state.context.messages.[1]": lambda p: p.with_state(p.state.with_message("more")),
    "state.context.metadata.user": lambda p: p.with_state(p.state.with_metadata(user="Ada")),
    "state.context.metadata.user.name": lambda p: p.with_state(p.state.with_metadata(**{"user.name": True})),
    "state.extensions.mine": lambda p: p.with_state(p.state.with_extension("mine", {"n": 1})),
    "state.execution.continuation.signals.[0]": lambda p: p.stop("enough", source="test"),
    "state.execution.continuation.requested": lambda p: p.with_state(p.state.with_continuation_requested()),
    "state.execution_count": lambda p: p.with_state(evolve(p.state, execution_count=7)),
    "dependencies": lambda p: evolve(p, dependencies=object()),
}
POINT_CHANGES: dict[str, dict[str, Change]] = {
    "before_inference": {
        "request.system_prompt": lambda p: p.with_request(p.request.with_system_prompt("changed")),
        "request.messages.[1]": lambda p: p.with_request(
            p.request.with_messages([*p.request.messages, Message.user("x")])
        ),
        "request.options.temperature": lambda p: p.with_request(
            p.request.with_options(evolve(p.request.options, temperature=0.5))
        ),
    },
    "after_inference": {"response.parts": lambda p: p.with_response(p.response.with_text("changed"))},
    "before_tool_use": {
        "call.arguments.a": lambda p: p.with_arguments({"a": 2}),
        "call.arguments": lambda p: p.with_call(evolve(p.call, arguments_json='{ "a": 1 }')),
        "verdict": lambda p: p.block("no"),
        "key": lambda p: evolve(p, key="run/1/1"),
        "index": lambda p: evolve(p, index=3),
    },
    "after_tool_use": {
        "execution.value": lambda p: p.with_value(2),
        "execution.content": lambda p: evolve(p, execution=evolve(p.execution, uncut=(Text("other"),))),
        "tool": lambda p: evolve(p, tool=None),
    },
    "on_error": {"recovered": lambda p: p.recover(), "error": lambda p: p.with_error(KeyError("other"))},
}
CASES: list[tuple[StatePoint, str, Change]] = [
    (point, path, change)
    for point in STATE_POINTS
    for path, change in {**STATE_CHANGES, **POINT_CHANGES.get(point.point_name, {})}.items()
]
PATHS = [
    *sorted({path for name in POINTS for path in writable_paths(name) if not path.endswith("*")}),
    *(
        "state.context.metadata.user",
        "state.context.metadata.user.name",
        "state.context.metadata",
        "state.extensions.mine",
    ),
    *("call.arguments.a", "call.arguments", "state.context", "state", "request", "execution"),
]


def layer(point: Point, change: Change, writes: Iterable[str] | None) -> CanIntercept:
    class Changing(Interceptor):
        pass

    Changing.writes = None if writes is None else frozenset(writes)
    setattr(Changing, point.point_name, lambda _, received: change(received))
    return Changing()


def covers(declared: str, path: str) -> bool:
    # A key is one name, so that `user` does not cover the key `user.name`.
    if path == "state.context.metadata.user.name" and declared == "state.context.metadata.user":
        return False
    return path == declared or path.startswith(f"{declared}.")


@given(case=st.sampled_from(CASES), writes=st.sets(st.sampled_from(PATHS), max_size=4))
def test_every_false_declaration_is_found(case: tuple[StatePoint, str, Change], writes: set[str]) -> None:
    """A change is accepted exactly if one of the declared paths includes it; the error names interceptor, point and path."""
    point, path, change = case
    stack = InterceptorStack.of([layer(point, change, writes)])
    if any(covers(declared, path) for declared in writes):
        assert asyncio.run(stack.handle(point)) != point
        return
    with pytest.raises(ContractViolation) as caught:
        asyncio.run(stack.handle(point))
    shown = path.replace(".[", "[")
    assert f"the interceptor Changing changed {shown} at {point.point_name}, which is not among" in str(caught.value)


@pytest.mark.parametrize(("point", "path", "change"), CASES)
def test_without_a_declaration_everything_may_change(point: StatePoint, path: str, change: Change) -> None:
    """None, the default, restricts nothing, and the path of each change is as expected."""
    changed = asyncio.run(InterceptorStack.of([layer(point, change, None)]).handle(point))
    assert [".".join(write.path) for write in writes_between(point, changed)] == [path]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text("ab\n", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=4,
)


@given(writes=st.lists(st.tuples(st.sampled_from(["prompt", "a", "b", "ext"]), VALUES), max_size=8))
def test_the_account_leads_from_the_first_state_to_the_last(writes: list[tuple[str, Any]]) -> None:
    """Applying the recorded changes, in order, to the first state gives the last one."""

    def create_layer(name: str, value: Any) -> CanIntercept:
        def write(point: BeforeStep) -> BeforeStep:
            state = point.state
            if name == "prompt":
                return point.with_state(state.with_system_prompt(json.dumps(value)))
            if name == "ext":
                return point.with_state(state.with_extension("mine", value))
            return point.with_state(state.with_metadata(**{name: value}))

        return at("before_step", write)

    point = BeforeStep(STATE_POINTS[0].state)
    stack = InterceptorStack.of([create_layer(*write) for write in writes], provenance=Provenance.VALUES)
    final = asyncio.run(stack.handle(point)).state
    rebuilt = _plain(point.state)
    for write in final.interceptor_writes:
        assert (write.interceptor, write.point) == ("write", "before_step")
        assert rebuilt.get(write.change.path) == write.change.before
        if write.change.after is None:
            del rebuilt[write.change.path]
        else:
            rebuilt[write.change.path] = write.change.after
    assert rebuilt == _plain(final)


def _plain(state: AgentState) -> dict[str, str]:
    """Return the values of the state that the test changes, as JSON by path."""
    values = {f"state.context.metadata.{name}": value for name, value in state.context.metadata.items()}
    values |= {f"state.extensions.{name}": value for name, value in state.extensions.items() if name != PROVENANCE}
    values["state.context.system_prompt"] = state.context.system_prompt
    return {path: json.dumps(value, separators=(",", ":")) for path, value in values.items()}


def create_loop(*interceptors: CanIntercept, **parts: Any) -> tuple[AgentLoop, Ledger]:
    ledger = Ledger()
    driver = ToolCallingDriver(ScriptedInference([toy_call("echo", 4111)], "done"))
    clock, ids = ManualClock(), CountingIds()
    return AgentLoop(driver, toy_tools(ledger), interceptors=interceptors, clock=clock, ids=ids, **parts), ledger


def test_a_call_that_was_changed_without_declaration_does_not_run() -> None:
    """At a guarding point an undeclared change fails closed (law 11): neither the old nor the new call runs."""
    loop, ledger = create_loop(
        at("before_tool_use", lambda point: point.with_arguments({"value": 2}), writes={"verdict"})
    )
    state = loop.execute_sync("go")
    assert not ledger.calls
    assert state.status is ExecutionStatus.FAILED
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.FAILED]
    assert "changed call.arguments.value at before_tool_use" in state.errors[-1].message


def test_an_undeclared_outcome_is_not_used() -> None:
    """After and around a call, an outcome that may not change is dropped, and the execution fails."""

    async def replace(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        await proceed()
        return point.succeed("forged")

    async def invent(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        return point.succeed("forged")

    lying = [
        (at("around_tool_use", replace, writes=()), "outcome.value at around_tool_use"),
        (at("around_tool_use", invent, writes={"outcome.content"}), "outcome at around_tool_use"),
        (
            at("after_tool_use", lambda point: point.with_value("forged"), writes={"execution.error"}),
            "execution.value at after",
        ),
    ]
    for interceptor, message in lying:
        state = create_loop(interceptor)[0].execute_sync("go")
        assert message in state.errors[-1].message
        assert state.steps[0].executions[0].value is None
    honest = create_loop(at("around_tool_use", replace, writes={"outcome.value"}))[0].execute_sync("go")
    assert honest.steps[0].executions[0].value == "forged"


class Mask(Interceptor):
    writes = frozenset({"execution.value"})

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return point.with_value("***")


class Tag(Interceptor):
    def before_step(self, point: BeforeStep) -> BeforeStep:
        return point.with_state(point.state.with_metadata(user="Ada"))


async def shout(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
    outcome = await proceed()
    return outcome.with_value(f"{outcome.value}!")


def test_the_state_says_who_changed_what() -> None:
    """With `provenance`, the state has each change with its interceptor and point, also of outcomes, and `explain` shows them."""
    loop, _ = create_loop(Mask(), Tag(), at("around_tool_use", shout), provenance="values")
    state = loop.execute_sync("go")
    assert [(write.interceptor, write.point, write.steps, write.change) for write in state.interceptor_writes] == [
        ("Tag", "before_step", 0, FieldChange("state.context.metadata.user", None, '"Ada"')),
        ("shout", "around_tool_use", 0, FieldChange("outcome.value", "4111", '"4111!"')),
        ("Mask", "after_tool_use", 0, FieldChange("execution.value", '"4111!"', '"***"')),
    ]
    shown = state.explain(provenance=True)
    assert 'state.context.metadata.user: Tag at before_step, at the start: nothing -> "Ada"' in shown
    assert "Tag" not in state.explain()


def test_digests_do_not_show_what_was_masked() -> None:
    """With `digests`, neither the state nor the events have the values."""
    loop, _ = create_loop(Mask(), provenance="digests")
    events: list[InterceptorRan] = []
    loop.on(InterceptorRan, events.append)
    state = loop.execute_sync("go")
    (write,) = state.interceptor_writes
    assert str(write.change.before).startswith("sha256:")
    assert "4111" not in f"{write}"
    assert [event.changes for event in events if event.changes] == [(write.change,)]


def test_events_name_the_changed_paths() -> None:
    """Without provenance, the events have the paths alone, and the state has nothing."""
    loop, _ = create_loop(Mask(), Tag(), at("around_tool_use", shout))
    events: list[InterceptorRan] = []
    loop.on(InterceptorRan, events.append)
    state = loop.execute_sync("go")
    assert [(event.interceptor, event.changed, event.changes) for event in events if event.changes] == [
        ("Tag", True, (FieldChange("state.context.metadata.user", None),)),
        ("shout", True, (FieldChange("outcome.value"),)),
        ("Mask", True, (FieldChange("execution.value"),)),
    ]
    assert state.extension(PROVENANCE) is None
    assert state.interceptor_writes == ()


@pytest.mark.parametrize("provenance", list(Provenance))
def test_the_account_does_not_depend_on_listeners(provenance: Provenance) -> None:
    """Watching changes nothing (law 8): the states of a watched and of an unwatched run are equal."""
    states = []
    for is_watched in (False, True):
        loop, _ = create_loop(Mask(), Tag(), at("around_tool_use", shout), provenance=provenance)
        if is_watched:
            loop.wiretap(lambda event: None)
        states.append(loop.execute_sync(AgentState.start("go", agent_id="a", clock=ManualClock()), execution_id="e"))
    assert states[0] == states[1]


def test_an_interceptor_cannot_erase_the_account() -> None:
    """What an interceptor writes over the account is not used."""

    def erase(point: AfterToolUse) -> AfterToolUse:
        return point.with_state(point.state.with_extension(PROVENANCE, None))

    loop, _ = create_loop(Tag(), at("after_tool_use", erase), provenance="values")
    assert [write.interceptor for write in loop.execute_sync("go").interceptor_writes] == ["Tag"]


def test_the_account_is_bounded() -> None:
    """At most 64 changes of one call of an interceptor and 1,000 of an execution are recorded; the rest is counted."""

    def write(point: BeforeStep) -> BeforeStep:
        return point.with_state(
            point.state.with_metadata(**{f"k{n}": [len(point.state.context.metadata)] for n in range(100)})
        )

    stack = InterceptorStack.of([at("before_step", write) for _ in range(20)], provenance=Provenance.VALUES)
    state = asyncio.run(stack.handle(BeforeStep(STATE_POINTS[0].state))).state
    assert len(state.interceptor_writes) <= 1000
    assert state.interceptor_writes[64].change.path in {"…", "state.context.metadata.k0"}
    assert len(state.explain(provenance=True).splitlines()) < 1010


def test_overlaps_are_an_error_if_writes_are_strict() -> None:
    """With `strict_writes`, two writers of a path, and an interceptor without a declaration, are errors of the construction."""
    first, second = (
        at("before_step", lambda point: point, writes={f"state.context.metadata{end}"}) for end in ("", ".user")
    )
    create_loop(first, StepLimit(3), Permissions(), strict_writes=True)
    with pytest.raises(ConfigurationError, match=r"state\.context\.metadata\.user is written by <lambda> and <lambda>"):
        create_loop(first, second, strict_writes=True)
    with pytest.raises(ConfigurationError, match="Tag may write anything"):
        create_loop(first, Tag(), strict_writes=True)
    create_loop(first, second)


@pytest.mark.parametrize(
    ("writes", "message"),
    [
        ({"request.system_promt"}, "did you mean 'request.system_prompt'"),
        ({"state.metadata"}, "did you mean 'state.context.metadata'"),
        ({"execution.id"}, "which is no path that an interceptor can change"),
        ("verdict", "are a set of paths, not 'verdict'"),
        ({7}, "are a set of paths"),
    ],
)
def test_a_declared_path_has_to_exist(writes: Any, message: str) -> None:
    """The error of the construction names the interceptor and the closest path."""
    with pytest.raises(ConfigurationError, match="<lambda>") as caught:
        create_loop(at("before_step", lambda point: point, writes=writes))
    assert message in str(caught.value)


def test_a_subclass_that_overrides_a_point_declares_anew() -> None:
    """The declaration of a base class says nothing about methods that a subclass adds."""

    class Adding(StepLimit):
        def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
            return point.with_arguments({"value": 2})

    loop, ledger = create_loop(Adding(5))
    assert loop.execute_sync("go").status is ExecutionStatus.COMPLETED
    assert ledger.calls == [("echo", {"value": 2})]
    assert "anything" in loop.describe()


def test_an_object_may_declare_what_its_class_does_not() -> None:
    """What its constructor declares counts for the points of its class."""

    class Naming(Interceptor):
        def __init__(self, *paths: str) -> None:
            self.writes = frozenset(paths)

        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.with_state(point.state.with_metadata(user="Ada"))

    honest, lying = Naming("state.context.metadata.user"), Naming("verdict")
    assert create_loop(honest, strict_writes=True)[0].execute_sync("go").status is ExecutionStatus.COMPLETED
    state = create_loop(lying, strict_writes=True)[0].execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert "the interceptor Naming changed state.context.metadata.user" in state.errors[-1].message


def test_the_kit_finds_a_false_declaration() -> None:
    """`InterceptorKit` fails for an interceptor that writes more than it declares."""
    with pytest.raises(LawViolation, match=r"law 3.*changed state.context.metadata.user"):
        InterceptorKit(lambda: at("before_step", Tag().before_step, writes={"verdict"}), examples=5).law_3()
    InterceptorKit(
        lambda: at("before_step", Tag().before_step, writes={"state.context.metadata.user"}), examples=5
    ).law_3()


@pytest.mark.parametrize("provenance", Provenance)
def test_an_interceptor_cannot_forge_the_account(provenance: Provenance) -> None:
    """An account that an interceptor writes itself is dropped, also where no changes are recorded."""
    forged = {"interceptor": "Innocent", "point": "before_step", "steps": 0, "path": "state.context.system_prompt"}

    def forge(point: BeforeStep) -> BeforeStep:
        account = {"execution": point.state.execution_id, "dropped": 0, "changes": [forged]}
        return point.with_state(point.state.with_extension(PROVENANCE, account))

    for writes in (None, ()):
        state = create_loop(at("before_step", forge, writes=writes), provenance=provenance)[0].execute_sync("go")
        assert state.status is ExecutionStatus.COMPLETED
        assert not state.interceptor_writes


def test_the_interceptors_of_the_package_declare_what_they_write() -> None:
    """Any of them can be in a loop with `strict_writes`."""
    classes = [getattr(room, name) for room in (interception, policies) for name in dir(room)]
    interceptors = {cls for cls in classes if isinstance(cls, type) and issubclass(cls, Interceptor)} - {Interceptor}
    assert len(interceptors) > 12
    assert [cls.__name__ for cls in interceptors if cls.writes is None] == []


def test_guardrails_declare_what_their_outcomes_write() -> None:
    """Guardrails that only stop write nothing, so that several can be in a strict loop; those that replace or ask do."""
    replace, ask = Guardrails(on_output=ReplaceAnswer("no")), Guardrails(on_input="ask")
    assert (Guardrails().writes, replace.writes) == (frozenset(), {"response"})
    assert ask.writes == {"state.extensions.agentloop.guardrails", "verdict", "call"}
    create_loop(Guardrails(), Guardrails(), replace, ask, PrefixGuard(), strict_writes=True)


class _Strange(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("form", [Provenance.DIGESTS, Provenance.VALUES])
@pytest.mark.parametrize(("point", "path", "change"), CASES)
def test_every_change_can_be_recorded(point: StatePoint, path: str, change: Change, form: Provenance) -> None:
    """Whatever an interceptor changes, the record of it is made, twice alike, and does not fail the interceptor."""
    stack = InterceptorStack.of([layer(point, change, None)], provenance=form)
    texts = []
    for _ in range(2):
        changed = asyncio.run(stack.handle(point)).state
        shown = path.replace(".[", "[")
        texts.append([write.change for write in changed.interceptor_writes if write.change.path == shown])
    assert texts[0] == texts[1] != []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((Text("a"),), "(Text(text='a', provider_data={}),)"),
        (float("inf"), "inf"),
        (KeyError("k"), "KeyError: 'k'"),
        (_Strange(), "<_Strange>"),
        (object(), "<object>"),
        ("\ud800", '"\\ud800"'),
    ],
)
def test_a_changed_value_has_a_text(value: object, text: str) -> None:
    """Values without a JSON form, and those whose code fails, have a text without addresses in memory."""
    assert render_change(value, Provenance.VALUES) == text


def test_changes_of_an_outcome_that_was_not_used_are_not_in_the_account() -> None:
    """When an inference fails around the interceptor that changed it, the next one has only its own changes."""

    async def shorten(point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        return (await proceed()).with_text("short")

    async def fail_once(point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        response = await proceed()
        if not point.state.step_count:
            raise RuntimeError("not now")
        return response

    loop = AgentLoop(
        ToolCallingDriver(ScriptedInference("one", "two")),
        interceptors=[at("around_inference", shorten), at("on_error", lambda point: point.recover())],
        provenance=Provenance.VALUES,
    )
    loop = loop.with_interceptors(at("around_inference", fail_once, priority=1))
    state = loop.execute_sync("go")
    assert state.final_text == "short"
    writes = [write for write in state.interceptor_writes if write.change.path == "outcome.parts"]
    assert [(write.interceptor, write.steps) for write in writes] == [("shorten", 1)]


async def test_an_outcome_that_proceed_returned_is_no_change() -> None:
    """A layer that returns one of the outcomes of `proceed()`, also not the last, has changed nothing."""

    class Repeat(Interceptor):
        writes = ()
        repeats_effects = True

        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            first = await proceed()
            await proceed()
            return first

    loop, _ = create_loop(Repeat())
    completed: list[ToolCallCompleted] = []
    loop.on(ToolCallCompleted, completed.append)
    work: Awaitable[AgentState] = loop.execute("go")
    assert (await work).status is ExecutionStatus.COMPLETED
    assert len(completed) == 1


def test_signals_are_signed_after_the_check() -> None:
    """The name that the stack puts on a signal is no change of the interceptor."""
    stop = at("before_step", lambda point: point.stop("now"), writes={"state.execution.continuation.signals"})
    state = create_loop(stop)[0].execute_sync("go")
    assert state.execution is not None
    assert state.execution.continuation.signals[0] == StopSignal(StopReason.STOP_REQUESTED, "now", "<lambda>")


def test_strict_writes_hold_for_a_loop_and_not_for_its_callers() -> None:
    """A strict loop can be a tool of another one, which limits its tools by interceptors that write the same path."""
    inner, _ = create_loop(ToolSelection(hide="fail"), strict_writes=True)
    helper = inner.as_tool("helper", "Helps.", tools_allowed=["echo"])
    model = ScriptedInference([ToolCall("1", "helper", '{"task": "echo"}')], "helped")
    state = AgentLoop.for_model(model, tools=[helper], interceptors=[Budget(tokens=100_000)]).execute_sync("go")
    assert state.steps[0].executions[0].value == "done"
    assert state.final_text == "helped"


def test_the_account_goes_through_the_journal_and_a_replay() -> None:
    """A recovered state has the account of the run, and a replay of it finds no divergence."""

    async def run() -> tuple[AgentState, AgentState, object]:
        journal = MemoryJournal()
        loop, _ = create_loop(Mask(), Tag(), at("around_tool_use", shout), provenance="values", journal=journal)
        state = await loop.execute("go", execution_id="run")
        recovered = await loop.recover("run")
        return state, recovered, (await replay(journal, "run", loop)).divergence

    state, recovered, divergence = asyncio.run(run())
    assert len(state.interceptor_writes) == 3
    assert recovered.interceptor_writes == state.interceptor_writes
    assert divergence is None
