"""A name of a tool in a part of a loop matches a tool, or the execution does not begin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import pytest

from agentloop import (
    AgentLoop,
    Permissions,
    ReActDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    handoff_to,
    tool,
)
from agentloop.compilers import ClearOldResults
from agentloop.contracts import CanIntercept
from agentloop.errors import ConfigurationError
from agentloop.interception import RepeatThresholds, RequireApproval, Rule, StopOnRepeatedCalls, ToolSelection
from agentloop.interception.tool_selection import ToolCriterion
from agentloop.policies import Resilience, ToolSearch
from agentloop.toolkits import Ensemble
from agentloop.values import CallPolicy, ExecutionStatus, ToolChoice
from tests.loop.test_discovery import FixedGroup, tool_named

paid: list[int] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    paid.clear()


@tool
def pay(cents: int) -> str:
    """Pay."""
    paid.append(cents)
    return "paid"


@tool(effect="pure")
def look() -> str:
    """Look."""
    return "seen"


class CreateGuard(Protocol):
    """Creates a guard for a name."""

    def __call__(self, name: str, *, may_miss: bool) -> CanIntercept:
        """Return a guard."""


PAYMENT = ToolCall("1", "pay", '{"cents": 5}')
GUARDS: dict[str, CreateGuard] = {
    "RequireApproval(calls=…)": lambda name, *, may_miss: RequireApproval(Rule(name, optional=may_miss)),
    "RequireApproval(unless=…)": lambda name, *, may_miss: RequireApproval(
        ["look"], unless=[Rule(name, optional=may_miss)]
    ),
    "Permissions(allow=…)": lambda name, *, may_miss: Permissions(allow=["pay", Rule(name, optional=may_miss)]),
    "Permissions(deny=…)": lambda name, *, may_miss: Permissions(deny=[Rule(name, optional=may_miss)]),
    "ToolSelection(hide=…)": lambda name, *, may_miss: ToolSelection(hide=[ToolCriterion(name, optional=may_miss)]),
    "ToolSelection(offer=…)": lambda name, *, may_miss: ToolSelection(["pay", ToolCriterion(name, optional=may_miss)]),
    "StopOnRepeatedCalls(tools=…)": lambda name, *, may_miss: StopOnRepeatedCalls(
        tools={name: RepeatThresholds(warn_at=2, stop_at=2)}, optional=may_miss
    ),
    "Resilience(tools=…)": lambda name, *, may_miss: Resilience(tools={name: CallPolicy()}, optional=may_miss),
}


def loop_with(*interceptors: CanIntercept, tools: Sequence[Any] = (pay, look), **options: Any) -> AgentLoop:
    return AgentLoop(
        ToolCallingDriver(ScriptedInference([PAYMENT], "done")), tools, interceptors=interceptors, **options
    )


@pytest.mark.parametrize("place", GUARDS)
@pytest.mark.parametrize("name", ["pya", "Pay", "payments.*", "pay_*", ""])
def test_a_guard_that_names_no_tool_is_refused(place: str, name: str) -> None:
    """Nothing runs before the name is corrected, and the error says where it is, and which name is close."""
    if not name and place.startswith("ToolSelection"):
        return  # an empty pattern stands for none
    with pytest.raises(ConfigurationError, match=re.escape(f"there is no tool {name!r} for {place}")) as raised:
        loop_with(GUARDS[place](name, may_miss=False)).execute_sync("go")
    assert not paid
    assert ("did you mean 'pay'?" in str(raised.value)) is (name in {"pya", "Pay", "pay_*"})
    assert "optional=True" in str(raised.value)


@pytest.mark.parametrize("place", GUARDS)
@pytest.mark.parametrize("name", ["pay", "p*", "[p]ay", "*"])
def test_a_guard_that_names_a_tool_is_bound(place: str, name: str) -> None:
    """A name or a pattern that matches a tool acts as before."""
    state = loop_with(GUARDS[place](name, may_miss=False)).execute_sync("go")
    assert state.status in {ExecutionStatus.COMPLETED, ExecutionStatus.SUSPENDED}


@pytest.mark.parametrize("place", GUARDS)
def test_an_optional_name_may_match_nothing(place: str) -> None:
    """A name that says `optional=True` guards a tool that may be missing."""
    state = loop_with(GUARDS[place]("refund", may_miss=True)).execute_sync("go")
    assert state.status in {ExecutionStatus.COMPLETED, ExecutionStatus.SUSPENDED}


def test_groups_and_effects_of_rules_have_to_exist() -> None:
    """A rule names a group of the loop, and a tool of the group with the effect."""
    tools = [Ensemble("shop", [pay]), look]
    loop_with(Permissions(deny=[Rule(ensemble="shop")]), tools=tools).execute_sync("go")
    loop_with(RequireApproval([Rule(effect="idempotent")]), tools=tools).execute_sync("go")
    for rule, message in {
        Rule(ensemble="shp"): "there is no ensemble 'shp' for Permissions(deny=…), did you mean 'shop'?",
        Rule("look", ensemble="shop"): "there is no tool 'look' in the ensemble 'shop' for Permissions(deny=…)",
        Rule("look", effect="effect"): "there is no tool 'look' with the effect effect for Permissions(deny=…)",
    }.items():
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            loop_with(Permissions(deny=[rule]), tools=tools).execute_sync("go")


def test_a_tool_that_is_withheld_may_be_named() -> None:
    """A guard for a tool that its ensemble does not offer now acts once it does."""
    tools = [Ensemble("shop", [pay, look]).without("look")]
    assert loop_with(Permissions(deny=["look"]), tools=tools).execute_sync("go").status is ExecutionStatus.COMPLETED


def test_compilers_drivers_and_groups_are_checked() -> None:
    """Names in a compiler, also inside of another one, in a tool choice, and in the interceptor of a group are checked."""
    clearing = ClearOldResults(above=1000, exclude="loook")
    with pytest.raises(ConfigurationError, match=r"ClearOldResults\(exclude=…\), did you mean 'look'"):
        loop_with(compiler=clearing).execute_sync("go")
    with pytest.raises(ConfigurationError, match="did you mean 'look'"):
        loop_with(compiler=ClearOldResults(above=2000, exclude="look") | clearing).execute_sync("go")
    choice = ToolChoice.specific("pya")
    for driver in (
        ToolCallingDriver(ScriptedInference("x"), tool_choice=choice),
        ReActDriver(ScriptedInference("x"), tool_choice=choice),
    ):
        with pytest.raises(
            ConfigurationError, match=r"there is no tool 'pya' for .*\(tool_choice=…\), did you mean 'pay'"
        ):
            AgentLoop(driver, [pay]).execute_sync("go")
    guarded = Ensemble("shop", [pay], interceptors=[Permissions(deny=["pya"])])
    with pytest.raises(ConfigurationError, match="did you mean 'pay'"):
        loop_with(tools=[guarded]).execute_sync("go")


def test_tools_that_are_searched_may_be_named() -> None:
    """A tool that a model has to find first is a tool of the loop."""
    state = loop_with(Permissions(deny=["look"]), tools=[ToolSearch([look]), pay]).execute_sync("go")
    assert state.status is ExecutionStatus.COMPLETED


def test_a_tool_after_a_handoff_may_be_named() -> None:
    """The interceptors of the executed loop stay after a handoff, so they may name the tools of the other loop."""
    other = AgentLoop(ToolCallingDriver(ScriptedInference("done")), [pay])
    tools = [look, handoff_to(other, name="cashier", description="Pays.")]
    driver = ToolCallingDriver(ScriptedInference("done"))
    AgentLoop(driver, tools, interceptors=[RequireApproval(["pay"])]).execute_sync("go")
    lazy = [look, handoff_to(lambda: other, name="cashier", description="Pays.")]
    AgentLoop(driver, lazy, interceptors=[RequireApproval(["pay"])]).execute_sync("go")
    with pytest.raises(ConfigurationError, match="did you mean 'pay'"):
        AgentLoop(driver, tools, interceptors=[RequireApproval(["pya"])]).execute_sync("go")


def test_the_loop_after_a_handoff_is_checked_before_the_execution() -> None:
    """A mistake in a loop that may take over is found at once, and not when it has."""
    other = AgentLoop(ToolCallingDriver(ScriptedInference("done")), [pay], interceptors=[Permissions(deny=["pya"])])
    tools = [look, handoff_to(other, name="cashier", description="Pays.")]
    with pytest.raises(ConfigurationError, match="did you mean 'pay'"):
        AgentLoop(ToolCallingDriver(ScriptedInference("done")), tools).execute_sync("go")


def test_sub_agents_are_checked_and_not_guarded_by_their_caller() -> None:
    """A guard of the caller does not act inside a sub-agent, so a tool that only the sub-agent has is an error that says so."""
    inner = AgentLoop(ToolCallingDriver(ScriptedInference("done")), [pay])
    driver = ToolCallingDriver(ScriptedInference("done"))
    with pytest.raises(ConfigurationError, match="a sub-agent has one"):
        AgentLoop(driver, [inner.as_tool("cashier", "Pays.")], interceptors=[RequireApproval(["pay"])]).execute_sync(
            "go"
        )
    guard = RequireApproval(["pay"])
    shared = inner.with_interceptors(guard).as_tool("cashier", "Pays.")
    assert AgentLoop(driver, [shared], interceptors=[guard]).execute_sync("go").final_text == "done"
    wrong = inner.with_interceptors(RequireApproval(["pya"])).as_tool("cashier", "Pays.")
    with pytest.raises(ConfigurationError, match="did you mean 'pay'"):
        AgentLoop(driver, [wrong]).execute_sync("go")


async def test_names_of_discovered_tools_are_checked_when_they_are_known() -> None:
    """A name that a group might discover is accepted at first, and refused before the model is asked if it did not."""
    group = FixedGroup(tool_named("refund", "refunded"))
    for name, problem in (
        ("refund", ""),
        ("refnd", "did you mean 'refund'"),
        ("r*", ""),
        ("q*", "there is no tool 'q*'"),
    ):
        model = ScriptedInference("done")
        loop = AgentLoop(ToolCallingDriver(model), [pay, group], interceptors=[Permissions(deny=[name])])
        state = await loop.execute("go")
        assert (state.status is ExecutionStatus.FAILED) is bool(problem)
        assert problem in (state.errors[-1].message if state.errors else "")
        assert len(model.requests) == (0 if problem else 1)


async def test_a_selected_group_selects_what_it_discovers() -> None:
    """`ToolSelection(group)` offers the tools that the group discovers."""
    group, model = FixedGroup(tool_named("refund", "refunded")), ScriptedInference("done")
    loop = AgentLoop(ToolCallingDriver(model), [pay, group], interceptors=[ToolSelection(group)])
    assert (await loop.execute("go")).final_text == "done"
    assert [spec.name for spec in model.requests[0].tools] == ["refund"]


async def test_entering_a_loop_checks_its_names() -> None:
    """`async with loop:` raises before a group starts."""
    group = FixedGroup()
    loop = loop_with(Permissions(deny=["pya"]), tools=[pay, Ensemble("e", [look])])
    with pytest.raises(ConfigurationError, match="did you mean 'pay'"):
        async with loop:
            pass
    assert group.holds == 0


def test_names_are_checked_once_for_a_loop() -> None:
    """Executions after the first look at no name again."""
    guard = Permissions(deny=["look"])
    loop = loop_with(guard)
    loop.execute_sync("go")
    object.__setattr__(guard, "deny", (Rule("nothing"),))
    assert loop.execute_sync("go").status is not ExecutionStatus.IN_PROGRESS
