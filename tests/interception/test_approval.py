"""Calls that wait for a person."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, Permissions, ScenarioStep, ScriptedDriver, from_json, to_json, tool
from agentloop.errors import DecisionError
from agentloop.events import EventBus
from agentloop.interception import BeforeToolUse, RequireApproval, Rule, before_tool_use
from agentloop.testing import Ledger, toy_tools
from agentloop.tools.ensembles import Ensemble
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


def loop_of(*calls: tuple[str, Any], interceptors: Any, ledger: Ledger | None = None, tools: Any = ()) -> AgentLoop:
    """Return a loop whose first step makes these calls of toys, and whose second answers."""
    script = [ScenarioStep.tool_calls(*[(name, {"value": value}) for name, value in calls]), ScenarioStep.final("done")]
    return AgentLoop(ScriptedDriver(*script), [*toy_tools(ledger or Ledger()), *tools], interceptors=interceptors)


def waiting(state: AgentState) -> list[tuple[str, str]]:
    """Return the tools that wait, with the reasons."""
    return [(call.call.name, call.reason) for call in state.pending]


def outcome(state: AgentState, place: int = 0) -> ToolExecution:
    """Return the outcome of a call of the first step."""
    return state.steps[0].executions[place]


def test_what_changes_something_waits_and_nothing_else() -> None:
    """Without being told more, every call of a tool whose effect is `effect` waits."""
    script = [
        ScenarioStep.tool_calls(("echo", {"value": 1}), ("look", {}), ("set_name", {"value": "x"})),
        ScenarioStep.final("done"),
    ]
    loop = AgentLoop(ScriptedDriver(*script), [*toy_tools(Ledger()), look, set_name], interceptors=[RequireApproval()])
    state = loop.execute_sync("go")
    assert waiting(state) == [("echo", "a call of 'echo' needs approval")]
    assert [one.name for one in state.steps[0].executions] == ["look", "set_name"]


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
def test_which_calls_wait(approval: RequireApproval, expected: list[tuple[str, int]]) -> None:
    """By name, pattern, caller, arguments, effect and metadata, and not those that are left out."""
    loop = loop_of(("echo", 1), ("whoami", 2), ("echo", 5), interceptors=[approval])
    state = loop.execute_sync(AgentState.start("go", agent_id="clerk").with_metadata(stage="live"))
    assert [(call.call.name, call.call.arguments["value"]) for call in state.pending] == expected


def test_calls_of_an_ensemble_can_wait() -> None:
    """A rule may name the ensemble that the tool came in, whether or not that changes anything about it."""
    for defaults in ({}, {"value": "x"}):
        ensemble = Ensemble("names", [set_name], defaults=defaults)
        script = [ScenarioStep.tool_calls(("set_name", {"value": "x"}), ("look", {})), ScenarioStep.final("done")]
        approval = RequireApproval([Rule(ensemble="na*")])
        loop = AgentLoop(ScriptedDriver(*script), [look, ensemble], interceptors=[approval])
        assert waiting(loop.execute_sync("go")) == [("set_name", "a call of 'set_name' needs approval")]


@pytest.mark.parametrize(
    ("approval", "reason"),
    [
        (RequireApproval(reason="think twice"), "think twice"),
        (RequireApproval(reason=lambda point: f"echoes {point.arguments['value']}"), "echoes 3"),
        (RequireApproval([Rule(tool="echo", reason="loud")], reason="think twice"), "loud"),
    ],
)
def test_the_person_is_shown_a_reason(approval: RequireApproval, reason: str) -> None:
    """It is that of the rule, or else that of all, which may be made of the call."""
    state = loop_of(("echo", 3), interceptors=[approval]).execute_sync("go")
    assert waiting(state) == [("echo", reason)]


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
    """Approved it runs, denied the model is told why, answered it does not run, edited it is validated again."""
    ledger = Ledger()
    loop = loop_of(("echo", 3), interceptors=[RequireApproval()], ledger=ledger)
    state = await loop.execute("go", execution_id="run")
    done = await loop.resume(state, {"run/1/0": decision})
    assert (done.status, done.final_text) == (ExecutionStatus.COMPLETED, "done")
    assert outcome(done).status.value == status
    assert outcome(done).text.startswith(text)
    assert [arguments["value"] for _, arguments in ledger.calls] == ran


async def test_what_runs_is_what_was_shown() -> None:
    """What others did to the call before it was shown is not done to it again after the decision."""
    ledger = Ledger()
    double = before_tool_use(lambda point: point.with_arguments({"value": point.arguments["value"] * 2}))
    loop = loop_of(("echo", 3), interceptors=[double, RequireApproval()], ledger=ledger)
    state = await loop.execute("go", execution_id="run")
    assert state.pending[0].call.arguments == {"value": 6}
    done = await loop.resume(state, {"run/1/0": approve(state.pending[0].digest)})
    assert outcome(done).value == 6
    edited = await loop.with_events(EventBus()).resume(state, {"run/1/0": edit({"value": 5})})
    assert outcome(edited).value == 5
    assert [arguments["value"] for _, arguments in ledger.calls] == [6, 5]


async def test_a_call_that_is_changed_after_the_decision_waits_again() -> None:
    """An approval is for what was shown; an interceptor inside that changes it has it shown as it is then, and it runs once."""
    ledger = Ledger()

    def clipped(point: BeforeToolUse) -> BeforeToolUse:
        return point.with_arguments({"value": min(point.arguments["value"], 10)})

    loop = loop_of(
        ("echo", 30), interceptors=[RequireApproval(), before_tool_use(clipped, priority=-950)], ledger=ledger
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


async def test_an_approved_call_is_still_held_against_the_permissions() -> None:
    """A permission that was taken away meanwhile blocks the call (law 11)."""
    ledger = Ledger()
    loop = loop_of(("echo", 3), interceptors=[RequireApproval()], ledger=ledger)
    state = await loop.execute("go", execution_id="run")
    stricter = loop.with_interceptors(Permissions(deny=["echo"]))
    done = await stricter.resume(state, {"run/1/0": approve()})
    assert outcome(done).was_blocked
    assert not ledger.calls


def test_nobody_is_asked_about_a_call_that_is_blocked_or_invalid() -> None:
    """What cannot run needs no decision."""
    loop = loop_of(
        ("echo", 1), ("echo", -5), ("nobody", 1), interceptors=[RequireApproval(), Permissions(deny=["echo"])]
    )
    state = loop.execute_sync("go")
    assert state.status is ExecutionStatus.COMPLETED
    assert [one.status.value for one in state.steps[0].executions] == ["blocked", "rejected", "rejected"]


def test_a_rule_that_raises_lets_nothing_run() -> None:
    """Whoever cannot say whether a call needs approval stops the execution (law 11)."""
    ledger = Ledger()
    broken = RequireApproval([lambda point: bool(point.arguments["missing"])])
    state = loop_of(("echo", 1), interceptors=[broken], ledger=ledger).execute_sync("go")
    assert state.status is ExecutionStatus.FAILED
    assert not ledger.calls


async def test_a_decision_that_is_none_is_refused() -> None:
    """What is easily mistaken for a decision is told from one."""
    loop = loop_of(("echo", 1), interceptors=[RequireApproval()])
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
def test_a_digest_is_of_one_key_tool_and_arguments(one: PendingCall, other: PendingCall) -> None:
    """Two calls have the same digest when key, tool and arguments are the same, and at no other time."""
    bound = [(call.key, call.call.name, call.call.arguments_json) for call in (one, other)]
    assert (one.digest == other.digest) == (bound[0] == bound[1])


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.data(),
    st.sampled_from([approve, deny, answer, edit]),
)
def test_a_decision_serves_its_key_and_digest_only(values: list[int], data: st.DataObject, make: Any) -> None:
    """A decision made about one call is refused for any other, whatever it is, and then nothing has run (law 16)."""
    ledger = Ledger()
    loop = loop_of(*[("echo", value) for value in values], interceptors=[RequireApproval()], ledger=ledger)
    state = from_json(to_json(loop.execute_sync("go", execution_id="run")), AgentState)
    shown = data.draw(st.sampled_from(state.pending))
    meant = data.draw(st.sampled_from(state.pending))
    changed = data.draw(st.booleans())
    if changed:  # the call that waits is not any more the one that was shown
        other = evolve(shown, call=shown.call.with_arguments({"value": shown.call.arguments["value"] + 10}))
        shown = other
    given_value: dict[Any, tuple[Any, ...]] = {approve: (), deny: ("no",), answer: (1,), edit: ({"value": 9},)}
    decision = make(*given_value[make], digest=shown.digest)
    if shown.key == meant.key and not changed:
        done = asyncio.run(loop.resume(state, {meant.key: decision}))
        assert meant.key not in [call.key for call in done.pending]
        assert len(ledger.calls) == (1 if make in {approve, edit} else 0)
    else:
        with pytest.raises(DecisionError, match="given for another tool or other arguments"):
            asyncio.run(loop.resume(state, {meant.key: decision}))
        assert not ledger.calls
