"""Calls that are suspended until a person has decided on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, Permissions, ScriptedDriver, ScriptedInference, from_json, to_json, tool
from agentloop.drivers import ScenarioStep
from agentloop.errors import DecisionError
from agentloop.events import EventBus
from agentloop.interception import BeforeToolUse, RequireApproval, Rule, at
from agentloop.testing import Ledger, toy_tools
from agentloop.toolkits import Ensemble
from agentloop.values import (
    Decision,
    ExecutionStatus,
    PendingCall,
    ToolCall,
    ToolExecution,
    answer,
    approve,
    deny,
    edit,
)


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


@tool(effect="idempotent")
def set_name(value: str) -> str:
    """Set."""
    return value


def create_loop(*calls: tuple[str, Any], interceptors: Any, ledger: Ledger | None = None, tools: Any = ()) -> AgentLoop:
    """Return a loop whose first step makes these calls of toy tools, and whose second step answers."""
    script = [ScenarioStep.tool_calls(*[(name, {"value": value}) for name, value in calls]), ScenarioStep.final("done")]
    return AgentLoop(ScriptedDriver(*script), [*toy_tools(ledger or Ledger()), *tools], interceptors=interceptors)


def suspended_calls(state: AgentState) -> list[tuple[str, str]]:
    """Return the names of the tools of suspended calls, with the reasons."""
    return [(call.call.name, call.reason) for call in state.pending]


def outcome(state: AgentState, index: int = 0) -> ToolExecution:
    """Return the outcome of a call of the first step."""
    return state.steps[0].executions[index]


def test_calls_with_an_effect_are_suspended_by_default() -> None:
    """Without rules, every call of a tool whose effect is `effect` is suspended, and no other."""
    script = [
        ScenarioStep.tool_calls(("echo", {"value": 1}), ("look", {}), ("set_name", {"value": "x"})),
        ScenarioStep.final("done"),
    ]
    loop = AgentLoop(ScriptedDriver(*script), [*toy_tools(Ledger()), look, set_name], interceptors=[RequireApproval()])
    state = loop.execute_sync("go")
    assert suspended_calls(state) == [("echo", "a call of 'echo' needs approval")]
    assert [execution.name for execution in state.steps[0].executions] == ["look", "set_name"]


@pytest.mark.parametrize(
    ("approval", "expected"),
    [
        (RequireApproval(["echo"]), [("echo", 1), ("echo", 5)]),
        (RequireApproval("w*"), [("whoami", 2)]),
        (RequireApproval([Rule(tool="e*", caller="clerk")]), [("echo", 1), ("echo", 5)]),
        (RequireApproval([Rule(tool="e*", caller="boss")]), []),
        (RequireApproval([lambda point: point.arguments["value"] > 1]), [("whoami", 2), ("echo", 5)]),
        (RequireApproval([Rule(effect="effect")], unless=["whoami"]), [("echo", 1), ("echo", 5)]),
        (RequireApproval(unless=[lambda point: point.arguments["value"] < 5]), [("echo", 5)]),
        (RequireApproval([Rule(effect="pure")]), []),
        (RequireApproval([Rule(metadata={"stage": "live"})]), [("echo", 1), ("whoami", 2), ("echo", 5)]),
        (RequireApproval([Rule(metadata={"stage": "test"})]), []),
        (RequireApproval([]), []),
    ],
)
def test_which_calls_are_suspended(approval: RequireApproval, expected: list[tuple[str, int]]) -> None:
    """Rules select calls by name, pattern, caller, arguments, effect and metadata; `unless` has exceptions."""
    loop = create_loop(("echo", 1), ("whoami", 2), ("echo", 5), interceptors=[approval])
    state = loop.execute_sync(AgentState.start("go", agent_id="clerk").with_metadata(stage="live"))
    assert [(call.call.name, call.call.arguments["value"]) for call in state.pending] == expected


def test_calls_can_be_selected_by_ensemble() -> None:
    """A rule may name the tool's ensemble, whether or not the ensemble changes anything about the tool."""
    for defaults in ({}, {"value": "x"}):
        ensemble = Ensemble("names", [set_name], defaults=defaults)
        script = [ScenarioStep.tool_calls(("set_name", {"value": "x"}), ("look", {})), ScenarioStep.final("done")]
        approval = RequireApproval([Rule(ensemble="na*")])
        loop = AgentLoop(ScriptedDriver(*script), [look, ensemble], interceptors=[approval])
        assert suspended_calls(loop.execute_sync("go")) == [("set_name", "a call of 'set_name' needs approval")]


@pytest.mark.parametrize(
    ("approval", "reason"),
    [
        (RequireApproval(reason="think twice"), "think twice"),
        (RequireApproval(reason=lambda point: f"echoes {point.arguments['value']}"), "echoes 3"),
        (RequireApproval([Rule(tool="echo", reason="loud")], reason="think twice"), "loud"),
    ],
)
def test_a_suspended_call_has_a_reason(approval: RequireApproval, reason: str) -> None:
    """The reason is that of the rule, or the text or function for all calls."""
    state = create_loop(("echo", 3), interceptors=[approval]).execute_sync("go")
    assert suspended_calls(state) == [("echo", reason)]


@pytest.mark.parametrize(
    ("decision", "status", "text", "ran"),
    [
        (approve(), "succeeded", "3", [3]),
        (deny("not on Sundays"), "blocked", "ToolBlocked: not on Sundays", []),
        (deny(), "blocked", "ToolBlocked: denied", []),
        (answer({"by": "hand"}), "succeeded", '{"by":"hand"}', []),
        (edit({"value": 4}), "succeeded", "4", [4]),
        (edit({"value": -1}), "rejected", "InvalidArguments", []),
        (edit({}), "rejected", "InvalidArguments", []),
    ],
)
async def test_what_a_decision_does(decision: Decision, status: str, text: str, ran: list[int]) -> None:
    """An approved call runs, a denied one is blocked, an answered one does not run, an edited one is validated again."""
    ledger = Ledger()
    loop = create_loop(("echo", 3), interceptors=[RequireApproval()], ledger=ledger)
    state = await loop.execute("go", execution_id="run")
    done = await loop.resume(state, {"run/1/0": decision})
    assert (done.status, done.final_text) == (ExecutionStatus.COMPLETED, "done")
    assert outcome(done).status.value == status
    assert outcome(done).text.startswith(text)
    assert [arguments["value"] for _, arguments in ledger.calls] == ran


async def test_the_call_that_was_shown_runs() -> None:
    """Changes that other interceptors made before the decision are not repeated after it."""
    ledger = Ledger()
    double = at("before_tool_use", lambda point: point.with_arguments({"value": point.arguments["value"] * 2}))
    loop = create_loop(("echo", 3), interceptors=[double, RequireApproval()], ledger=ledger)
    state = await loop.execute("go", execution_id="run")
    assert state.pending[0].call.arguments == {"value": 6}
    done = await loop.resume(state, {"run/1/0": approve(state.pending[0].digest)})
    assert outcome(done).value == 6
    edited = await loop.replace(events=EventBus()).resume(state, {"run/1/0": edit({"value": 5})})
    assert outcome(edited).value == 5
    assert [arguments["value"] for _, arguments in ledger.calls] == [6, 5]


async def test_a_call_that_changes_after_the_decision_is_suspended_again() -> None:
    """When an inner interceptor changes an approved call, the changed call needs an approval of its own, and runs once."""
    ledger = Ledger()

    def limit_value(point: BeforeToolUse) -> BeforeToolUse:
        return point.with_arguments({"value": min(point.arguments["value"], 10)})

    loop = create_loop(
        ("echo", 30), interceptors=[RequireApproval(), at("before_tool_use", limit_value, priority=-950)], ledger=ledger
    )
    state = await loop.execute("go", execution_id="run")
    assert state.pending[0].call.arguments == {"value": 30}
    state = await loop.resume(state, {"run/1/0": approve()})
    assert state.status is ExecutionStatus.SUSPENDED
    assert state.pending[0].call.arguments == {"value": 10}
    assert "an interceptor changed the call after the decision" in state.pending[0].reason
    assert not ledger.calls
    done = await loop.resume(state, {"run/1/0": approve()})
    assert outcome(done).value == 10
    assert len(ledger.calls) == 1


async def test_a_call_that_changes_on_its_way_needs_the_approval_of_what_it_has_become() -> None:
    """A call that needs none as the model made it does not run without one after an inner interceptor has changed it."""
    ledger = Ledger()
    raise_value = at("before_tool_use", lambda point: point.with_arguments({"value": 30}), priority=-950)
    approval = RequireApproval([lambda point: bool(point.arguments["value"] > 10)])
    loop = create_loop(("echo", 3), interceptors=[approval, raise_value], ledger=ledger)
    state = await loop.execute("go", execution_id="run")
    assert [call.call.arguments for call in state.pending] == [{"value": 30}]
    assert not ledger.calls
    done = await loop.resume(state, {"run/1/0": approve(state.pending[0].digest)})
    assert outcome(done).value == 30


def restarting(default: str, ran: list[str], arguments: str = "{}") -> AgentLoop:
    """Return a loop whose model calls a tool with this default, and whose calls need approval."""

    def restart(name: str = default, note: str = "") -> str:
        """Restart."""
        ran.append(name)
        return note

    model = ScriptedInference(ToolCall("1", "restart", arguments), "done")
    return AgentLoop.for_model(model, tools=[tool(restart)], interceptors=[RequireApproval()])


async def test_a_call_is_shown_with_the_defaults_that_it_runs_with() -> None:
    """A call without arguments is shown with those that the function gets, and its digest is about these."""
    ran: list[str] = []
    loop = restarting("web", ran)
    state = await loop.execute("go", execution_id="run")
    [waiting] = state.pending
    assert waiting.rendering == 'restart\n  name = "web" (default)\n  note = "" (default)'
    assert 'restart(name="web" (default), note="" (default)) waits' in state.explain()
    assert waiting.digest != evolve(waiting, defaults={"name": "db", "note": ""}).digest
    await loop.resume(state, {waiting.key: approve(waiting.digest)})
    assert ran == ["web"]


@pytest.mark.parametrize("decision", [approve, lambda digest: edit({"note": "x"}, digest), lambda _: approve()])
async def test_a_default_that_changed_since_it_was_shown_is_shown_again(decision: Callable[[str], Decision]) -> None:
    """With another version of the program, nothing runs with a value that nobody has seen."""
    ran: list[str] = []
    state = from_json(to_json(await restarting("web", ran).execute("go", execution_id="run")), AgentState)
    newer = restarting("db", ran)
    [first] = state.pending
    state = await newer.resume(state, {first.key: decision(first.digest)})
    [second] = state.pending
    assert (ran, second.suspension) == ([], 2)
    assert "defaults that were not shown" in second.reason
    assert '  name = "db" (default)' in second.rendering.splitlines()
    with pytest.raises(DecisionError, match="other defaults"):
        await newer.resume(state, {second.key: approve(first.digest)})
    await newer.resume(state, {second.key: approve(second.digest)})
    assert ran == ["db"]


async def test_an_edit_that_leaves_out_more_is_shown_again() -> None:
    """Edited arguments run at once if their defaults were shown, and else after the call was shown with them."""
    ran: list[str] = []
    loop = restarting("web", ran, '{"name": "db"}')
    state = await loop.execute("go", execution_id="run")
    [waiting] = state.pending
    assert waiting.defaults == {"note": ""}
    again = await loop.resume(state, {waiting.key: edit({"note": "x"}, waiting.digest)})
    assert [call.rendering for call in again.pending] == ['restart\n  note = "x"\n  name = "web" (default)']
    assert not ran
    await loop.replace(events=EventBus()).resume(state, {waiting.key: edit({"name": "mail"}, waiting.digest)})
    assert ran == ["mail"]


async def test_a_state_that_was_stored_without_defaults_is_shown_again() -> None:
    """A call that an earlier version has suspended is asked about again, once, if it has defaults."""
    ran: list[str] = []
    loop = restarting("web", ran)
    stored = to_json(await loop.execute("go", execution_id="run")).replace(
        b'"defaults":{"name":"web","note":""}', b'"reason":""'
    )
    state = from_json(stored, AgentState)
    [old] = state.pending
    assert (old.rendering, old.defaults) == ("restart\n  without arguments", {})
    state = await loop.resume(state, {old.key: approve(old.digest)})
    assert not ran
    await loop.resume(state, {old.key: approve(state.pending[0].digest)})
    assert ran == ["web"]


@pytest.mark.parametrize(("value", "shown"), [("7", 7), ("many", None)])
async def test_what_an_interceptor_made_of_a_call_is_shown_as_it_runs(value: str, shown: int | None) -> None:
    """Arguments that are coerced are shown coerced, and a call that cannot run is not asked about."""
    ledger = Ledger()

    def suspend(point: BeforeToolUse) -> BeforeToolUse:
        return point if point.decision else point.with_arguments({"value": value}).suspend("look at it")

    loop = create_loop(("echo", 3), interceptors=[at("before_tool_use", suspend)], ledger=ledger)
    state = await loop.execute("go", execution_id="run")
    assert [call.call.arguments for call in state.pending] == ([] if shown is None else [{"value": shown}])
    if shown is None:
        assert outcome(state).status.value == "rejected"
    else:
        done = await loop.resume(state, {"run/1/0": approve(state.pending[0].digest)})
        assert outcome(done).value == shown


async def test_an_approved_call_runs_to_the_letter() -> None:
    """Where the schema of a tool has changed since the approval, arguments that do not satisfy it are rejected, not coerced."""

    @tool(name="echo")
    def old(value: str) -> str:
        """Echo."""
        return value

    @tool(name="echo")
    def new(value: int) -> int:
        """Echo."""
        return value

    model = ScriptedInference(ToolCall("1", "echo", '{"value": "7"}'), "done")
    state = await AgentLoop.for_model(model, tools=[old], interceptors=[RequireApproval()]).execute("go")
    newer = AgentLoop.for_model(ScriptedInference("done"), tools=[new], interceptors=[RequireApproval()])
    done = await newer.resume(state, {call.key: approve(call.digest) for call in state.pending})
    assert outcome(done).status.value == "rejected"


async def test_an_approved_call_still_needs_permission() -> None:
    """A permission that was removed since then blocks the call (law 11)."""
    ledger = Ledger()
    loop = create_loop(("echo", 3), interceptors=[RequireApproval()], ledger=ledger)
    state = await loop.execute("go", execution_id="run")
    stricter = loop.with_interceptors(Permissions(deny=["echo"]))
    done = await stricter.resume(state, {"run/1/0": approve()})
    assert outcome(done).was_blocked
    assert not ledger.calls


def test_blocked_and_invalid_calls_are_not_suspended() -> None:
    """A call that cannot run needs no decision."""
    loop = create_loop(
        ("echo", 1), ("echo", -5), ("nobody", 1), interceptors=[RequireApproval(), Permissions(deny=["echo"])]
    )
    state = loop.execute_sync("go")
    assert state.status is ExecutionStatus.COMPLETED
    assert [execution.status.value for execution in state.steps[0].executions] == ["blocked", "rejected", "rejected"]


def test_a_rule_that_raises_fails_the_execution() -> None:
    """When a predicate raises, the call does not run (law 11)."""
    ledger = Ledger()
    broken = RequireApproval([lambda point: bool(point.arguments["missing"])])
    state = create_loop(("echo", 1), interceptors=[broken], ledger=ledger).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert not ledger.calls


async def test_an_invalid_decision_is_refused() -> None:
    """For a value such as True, the error names the functions that create decisions."""
    loop = create_loop(("echo", 1), interceptors=[RequireApproval()])
    state = await loop.execute("go", execution_id="run")
    with pytest.raises(DecisionError, match=r"the decision about 'run/1/0' is True; make one with approve\(\)"):
        await loop.resume(state, {"run/1/0": True})  # type: ignore[dict-item]  # the mistake under test


CALLS = st.builds(
    PendingCall,
    st.sampled_from(["run/1/0", "run/1/1", "run/2/0"]),
    st.builds(
        ToolCall, st.just(""), st.sampled_from(["echo", "whoami"]), st.sampled_from(['{"value":1}', '{"value":2}'])
    ),
)


@given(CALLS, CALLS)
def test_a_digest_identifies_key_tool_and_arguments(first: PendingCall, second: PendingCall) -> None:
    """Two calls have the same digest if and only if key, tool and arguments are the same."""
    identities = [(call.key, call.call.name, call.call.arguments_json) for call in (first, second)]
    assert (first.digest == second.digest) == (identities[0] == identities[1])


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.data(),
    st.sampled_from([approve, deny, answer, edit]),
)
def test_a_decision_is_valid_only_for_its_key_and_digest(values: list[int], data: st.DataObject, create: Any) -> None:
    """A decision on one call is refused for any other call, and then no call has run (law 16)."""
    ledger = Ledger()
    loop = create_loop(*[("echo", value) for value in values], interceptors=[RequireApproval()], ledger=ledger)
    state = from_json(to_json(loop.execute_sync("go", execution_id="run")), AgentState)
    requested = data.draw(st.sampled_from(state.pending))
    target = data.draw(st.sampled_from(state.pending))
    is_changed = data.draw(st.booleans())
    if is_changed:  # the suspended call is no longer the one that was shown
        value = requested.call.arguments["value"] + 10
        requested = evolve(requested, call=requested.call.with_arguments({"value": value}))
    arguments_of: dict[Any, tuple[Any, ...]] = {approve: (), deny: ("no",), answer: (1,), edit: ({"value": 9},)}
    decision = create(*arguments_of[create], digest=requested.digest)
    if requested.key == target.key and not is_changed:
        done = asyncio.run(loop.resume(state, {target.key: decision}))
        assert target.key not in [call.key for call in done.pending]
        assert len(ledger.calls) == (1 if create in {approve, edit} else 0)
    else:
        with pytest.raises(DecisionError, match="given for another tool, definition, arguments or suspension"):
            asyncio.run(loop.resume(state, {target.key: decision}))
        assert not ledger.calls
