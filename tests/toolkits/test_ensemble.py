"""Ensembles in a loop: offered tools, overrides and defaults, start and stop, and failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, Interceptor, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.contracts import Tool
from agentloop.contracts.tool import CanPinDefinition
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.toolkits import Ensemble, ToolOverride
from agentloop.tools import TypedTool
from agentloop.values import Effect, ToolStatus
from agentloop.values.interruptions import interrupted_state
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.points import AfterToolUse
from tests.toolkits.running import Call, executions, run_call, run_calls, scripted_loop


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def greet(name: str, state: AgentState, call: ToolCall, context: ToolContext, *, loudly: bool) -> str:
    """Greet a person."""
    assert state.execution_id == context.execution_id
    return f"{call.id} {name}{'!' if loudly else ''}"


class CountUp(TypedTool):
    def __init__(self) -> None:
        self.count = 0

    async def use(self, by: int) -> int:
        """Count."""
        self.count += by
        return self.count


class Foreign(Tool, CanPinDefinition):
    """A tool that another program defines."""

    name, description, parameters, effect = "foreign", "Do it.", EMPTY_OBJECT, Effect.PURE

    def __init__(self) -> None:
        self.accepted = 0

    async def use(self, *_: Any, **arguments: Any) -> str:
        return "done"

    def accept_definition(self) -> None:
        self.accepted += 1


def test_a_changed_tool_keeps_its_roles() -> None:
    """What a tool can say or do besides running calls is still there when an ensemble changes it."""
    foreign = Foreign()
    changes = {name: ToolOverride(description="Changed.") for name in ("add", "foreign")}
    tools = Tools.of([Ensemble("group", [add, foreign], overrides=changes)])
    assert tools.result_schemas == {"add": {"type": "integer"}}
    changed: object = tools.get("foreign")
    assert isinstance(changed, CanPinDefinition)
    changed.accept_definition()
    assert foreign.accepted == 1


class HookLog:
    """Records which ensembles were started and stopped."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.waiting = asyncio.Event()

    async def wait_forever(self) -> str:
        """Wait forever."""
        self.waiting.set()
        await asyncio.Event().wait()
        return "never"

    def hook(self, line: str) -> Callable[[], None]:
        return lambda: self.lines.append(line)

    def async_hook(self, line: str) -> Callable[[], Any]:
        async def append() -> None:
            await asyncio.sleep(0)
            self.lines.append(line)

        return append

    def ensemble(self, name: str, *tools: Any, **options: Any) -> Ensemble:
        hooks = {"start": self.async_hook(f"start {name}"), "stop": self.hook(f"stop {name}")}
        return Ensemble(name, tools or [add], **{**hooks, **options})


def fail() -> None:
    raise OSError("no route to the host")


# --- offered tools ---------------------------------------------------------------------------------------------------


async def test_an_ensemble_is_listed_among_single_tools() -> None:
    """The tools of an ensemble are offered at its position in the list, and called like others."""
    state = await run_calls([greet, Ensemble("sums", [add])], ("add", {"a": 1, "b": 2}))
    assert executions(state)[0].value == 3
    assert Tools.of([greet, Ensemble("sums", [add]), CountUp()]).names == ("greet", "add", "count_up")


def test_an_unchanged_tool_is_not_wrapped() -> None:
    """Without hooks, defaults and overrides, an ensemble offers its tools themselves."""
    assert Ensemble("sums", [add]).offered == (add,)


@pytest.mark.parametrize(
    ("ensemble", "offered"),
    [
        (Ensemble("e", [add, greet]), ["add", "greet"]),
        (Ensemble("e", [add, greet], enabled=False), []),
        (Ensemble("e", [add, greet]).disable(), []),
        (Ensemble("e", [add, greet]).disable().enable(), ["add", "greet"]),
        (Ensemble("e", [add, greet]).without("add"), ["greet"]),
        (Ensemble("e", [add, greet]).without("add").without("greet"), []),
        (Ensemble("e", [add, greet]).only("add"), ["add"]),
        (Ensemble("e", [add, greet]).without("add").only("add"), ["add"]),
        (Ensemble("e", [add, greet]).with_override("add", ToolOverride(name="plus")), ["plus", "greet"]),
    ],
)
def test_ensembles_and_tools_are_disabled(ensemble: Ensemble, offered: list[str]) -> None:
    """A disabled tool is not offered, nor any tool of a disabled ensemble."""
    assert [tool.name for tool in ensemble.offered] == offered
    assert list(Tools.of([ensemble]).names) == offered


async def test_a_disabled_tool_cannot_be_called() -> None:
    """A call of a disabled tool is rejected like a call of an unknown tool."""
    execution = await run_call([Ensemble("e", [add, greet]).without("add")], "add", a=1, b=2)
    assert (execution.status, execution.error and execution.error.type) == (ToolStatus.REJECTED, "UnknownTool")


def test_two_ensembles_cannot_offer_the_same_name() -> None:
    """Two ensembles with the same name of a tool are an error, unless one of them is disabled."""
    with pytest.raises(ToolDefinitionError, match="two tools are named 'add'"):
        Tools.of([Ensemble("a", [add]), Ensemble("b", [add])])
    assert Tools.of([Ensemble("a", [add]), Ensemble("b", [add], enabled=False)]).names == ("add",)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Ensemble("", [add]), "needs a name"),
        (lambda: Ensemble("e", [add]).without("ad"), r"has no tool 'ad'; did you mean 'add'\?"),
        (lambda: Ensemble("e", [add]).only("x"), "has no tool 'x'; there is 'add'"),
        (lambda: Ensemble("e", [add], defaults={"c": 1}), "no tool of the ensemble 'e' has such a parameter"),
        (lambda: Ensemble("e", [add], defaults={"b": "x"}), "defaults.b: 'x' is not of type 'integer'"),
        (lambda: Ensemble("e", [add], policy={"timout": 1}), r"has no value 'timout'; did you mean 'timeout'\?"),
        (
            lambda: Ensemble("e", [add]).with_override("add", ToolOverride(defaults={"bb": 1})),
            r"the tool 'add' has no such parameter; did you mean 'b'\?",
        ),
    ],
)
def test_mistakes_are_raised_at_construction(build: Callable[[], Ensemble], message: str) -> None:
    """An ensemble with a mistake cannot be constructed."""
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_an_ensemble_has_only_tools() -> None:
    """An object that is not a tool is rejected, as it is in a loop."""
    with pytest.raises(TypeError, match="is not a Tool"):
        Ensemble("e", ["add"])  # type: ignore[list-item]  # the mistake


# --- overrides and defaults ------------------------------------------------------------------------------------------


async def test_a_default_replaces_a_missing_argument() -> None:
    """The parameter becomes optional, an argument wins over the default, and an invalid argument is still rejected."""
    sums = Ensemble("sums", [add], defaults={"b": 40})
    assert sums.offered[0].parameters["required"] == ("a",)
    assert sums.offered[0].parameters["properties"]["b"]["default"] == 40
    assert add.parameters["required"] == ("a", "b")
    calls: list[Call] = [("add", {"a": 2}), ("add", {"a": 2, "b": 3}), ("add", {"a": 2, "b": "x"}), ("add", {})]
    outcomes = executions(await run_calls([sums], *calls))
    assert [outcome.value for outcome in outcomes] == [42, 5, None, None]
    assert [outcome.status for outcome in outcomes[2:]] == [ToolStatus.REJECTED, ToolStatus.REJECTED]


async def test_the_default_of_a_tool_wins_over_that_of_the_ensemble() -> None:
    """Defaults of an ensemble apply to each of its tools; those of a tool's override win."""
    sums = Ensemble("sums", [add], defaults={"a": 1, "b": 1}, overrides={"add": ToolOverride(defaults={"b": 9})})
    assert (await run_call([sums], "add")).value == 10


async def test_defaults_and_arguments_together_satisfy_the_schema() -> None:
    """A valid default that is invalid together with the arguments rejects the call before the tool is used."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "if": {"properties": {"a": {"const": 7}}, "required": ["a"]},
        "then": {"properties": {"b": {"maximum": 3}}},
    }
    sums = Ensemble("sums", [add], overrides={"add": ToolOverride(schema=schema, defaults={"b": 5})})
    assert (await run_call([sums], "add", a=1)).value == 6
    assert (await run_call([sums], "add", a=7)).status is ToolStatus.REJECTED


async def test_values_are_injected_through_an_ensemble() -> None:
    """State, call and context reach a wrapped tool, and a tool with state keeps it between calls."""
    log, counter = HookLog(), CountUp()
    group = log.ensemble("g", greet, counter, defaults={"loudly": True, "by": 2})
    state = await run_calls([group], ("greet", {"name": "Ada"}), ("count_up", {}), ("count_up", {"by": 5}))
    assert [execution.value for execution in executions(state)] == ["c0_0 Ada!", 2, 7]


def test_description_schema_effect_and_policy_are_overridden() -> None:
    """Each value of an override replaces that of the tool, and nothing else changes."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"type": "integer"}}}
    override = ToolOverride(
        description="Sum up.", schema=schema, effect=Effect.IDEMPOTENT, policy={"timeout": 2.0, "sequential": True}
    )
    changed = Ensemble("sums", [add], overrides={"add": override}, policy={"timeout": 9.0, "key": "k"}).offered[0]
    assert (changed.name, changed.description, changed.effect) == ("add", "Sum up.", Effect.IDEMPOTENT)
    assert changed.parameters["properties"]["a"]["minimum"] == 0
    assert (changed.policy.timeout, changed.policy.sequential, changed.policy.key) == (2.0, True, "k")
    assert changed.spec is changed.spec


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {"aa": {}}}, r"has 'aa', which the tool has no parameter for; did you mean"),
        ({"type": "string"}, "has to be of type object"),
        ({"type": "object", "properties": {"a": {"type": "intger"}}}, "not a valid JSON Schema"),
    ],
)
def test_a_schema_that_does_not_fit_the_tool_is_rejected(schema: dict[str, Any], message: str) -> None:
    """The schema of an override has to be a valid schema of an object with parameters of the tool."""
    with pytest.raises(ToolDefinitionError, match=message):
        Ensemble("e", [add], overrides={"add": ToolOverride(schema=schema)})


async def test_interceptors_of_an_ensemble_act_in_its_loops() -> None:
    """They act while the ensemble is enabled, and `describe` lists them."""

    class Double(Interceptor):
        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            return point.with_value(point.execution.value * 2)  # type: ignore[operator]  # a number here

    group = Ensemble("sums", [add], interceptors=[Double()])
    assert (await run_call([group], "add", a=1, b=2)).value == 6
    assert "Double" in scripted_loop([group]).describe()
    assert "Double" not in scripted_loop([group.disable()]).describe()


# --- start and stop -------------------------------------------------------------------------------------------------


async def test_an_execution_starts_and_stops_its_ensembles() -> None:
    """Ensembles start in their order before any tool is used, and stop in reverse order at the end."""
    log = HookLog()
    use = tool(name="use")(_recording_tool(log))
    loop = scripted_loop([log.ensemble("a", use), log.ensemble("b")], ("use", {}))
    await loop.execute("go")
    assert log.lines == ["start a", "start b", "used", "stop b", "stop a"]
    await loop.execute("again")
    assert log.lines == ["start a", "start b", "used", "stop b", "stop a"] * 2


async def test_an_entered_loop_keeps_its_ensembles_started() -> None:
    """Ensembles start when the loop is entered and stop when it is left, whatever runs in between."""
    log = HookLog()
    loop = scripted_loop([log.ensemble("a"), log.ensemble("b", CountUp())], ("add", {"a": 1, "b": 2}))
    async with loop:
        assert log.lines == ["start a", "start b"]
        await asyncio.gather(loop.execute("one"), loop.execute("two"))
        async with loop:
            await loop.execute("three")
        assert log.lines == ["start a", "start b"]
    assert log.lines == ["start a", "start b", "stop b", "stop a"]


async def test_concurrent_executions_share_one_start() -> None:
    """The first execution starts an ensemble, and the last one to end stops it."""
    log, release = HookLog(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        log.waiting.set()
        await release.wait()
        return "waited"

    group = log.ensemble("g", wait, add)
    first = asyncio.create_task(scripted_loop([group], ("wait", {})).execute("go"))
    await log.waiting.wait()
    await scripted_loop([group], ("add", {"a": 1, "b": 2})).execute("go")
    assert log.lines == ["start g"]
    release.set()
    await first
    assert log.lines == ["start g", "stop g"]


async def test_a_disabled_ensemble_is_not_started() -> None:
    """A disabled ensemble is neither started nor stopped."""
    log = HookLog()
    await run_calls([log.ensemble("a").disable()])
    assert log.lines == []


async def test_a_cancelled_execution_stops_its_ensembles() -> None:
    """After cancellation in a tool or in a start hook nothing stays started, and the error has the state."""
    for at_start in (False, True):
        log = HookLog()
        waiting = tool(name="hang")(log.wait_forever)
        options = {"start": log.wait_forever} if at_start else {}
        groups = [log.ensemble("first"), log.ensemble("second", waiting, **options)]
        task = asyncio.create_task(run_calls(groups, ("hang", {})))
        await log.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert interrupted_state(cancelled.value) is not None
        assert log.lines[-1] == "stop first"
        assert ("stop second" in log.lines) is not at_start


async def test_a_cancelled_entry_stops_the_ensembles() -> None:
    """When entering a loop is cancelled, the ensembles that it started are stopped."""
    log = HookLog()
    loop = scripted_loop([log.ensemble("a"), log.ensemble("b", CountUp(), start=log.wait_forever)])
    task = asyncio.create_task(loop.__aenter__())
    await log.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.lines == ["start a", "stop a"]


async def test_a_failed_start_fails_only_calls_of_that_ensemble(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged and in the errors of calls, other tools work, stop is not called, the next execution retries."""
    log = HookLog()
    broken = log.ensemble("broken", add, greet, start=fail)
    loop = scripted_loop(
        [broken, log.ensemble("sound", CountUp())],
        [("add", {"a": 1, "b": 2}), ("greet", {"name": "x", "loudly": False}), ("count_up", {"by": 1})],
    )
    with caplog.at_level(logging.ERROR, "agentloop.tools.ensembles"):
        outcomes = executions(await loop.execute("go"))
    assert [outcome.status for outcome in outcomes] == [ToolStatus.FAILED, ToolStatus.FAILED, ToolStatus.SUCCEEDED]
    for outcome in outcomes[:2]:
        assert outcome.error is not None
        assert outcome.error.type == "ToolUnavailable"
        assert (
            "'broken' cannot be used now: it could not be started: OSError: no route to the host"
            in outcome.error.message
        )
        assert not outcome.may_have_run
    assert log.lines == ["start sound", "stop sound"]
    assert "the ensemble broken could not be started" in caplog.text
    repaired = evolve(broken, start=log.hook("start broken"))
    assert (await run_call([repaired], "add", a=1, b=2)).value == 3


async def test_a_failed_stop_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The execution keeps its outcome, and the other ensembles are stopped."""
    log = HookLog()
    group = log.ensemble("a"), log.ensemble("b", CountUp(), stop=fail)
    state = await run_calls(group, ("add", {"a": 1, "b": 2}))
    assert state.final_text == "done"
    assert log.lines == ["start a", "start b", "stop a"]
    assert "the ensemble b could not be stopped" in caplog.text


async def test_a_tool_without_its_ensemble_fails() -> None:
    """A tool that is passed to a loop without its ensemble is not started, and its error says so."""
    group = HookLog().ensemble("g")
    execution = await run_call(group.offered, "add", a=1, b=2)
    assert execution.error_message.endswith("it was not started: pass the ensemble, not its tools, to an AgentLoop")


async def test_an_ensemble_diagnoses_itself() -> None:
    """`diagnose` works before, while and after an ensemble is held, and when starting failed."""
    log = HookLog()
    sound, broken = log.ensemble("sound"), log.ensemble("broken", CountUp(), start=fail)
    async with scripted_loop([sound, broken]):
        assert (sound.diagnose(), sound.disable().diagnose()) == ("", "it is disabled")
        assert broken.diagnose() == "it could not be started: OSError: no route to the host"
    assert sound.diagnose().startswith("it was not started")
    assert Ensemble("plain", [add]).diagnose() == ""


def test_each_event_loop_starts_the_ensemble() -> None:
    """Executions in different event loops start the ensemble separately."""
    log = HookLog()
    loop = AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "add", '{"a": 1, "b": 2}'), "done"), tools=[log.ensemble("g")]
    )
    for _ in range(2):
        assert executions(loop.execute_sync("go"))[0].value == 3
    assert log.lines == ["start g", "stop g"] * 2


async def test_tools_keep_their_groups() -> None:
    """A collection of tools that is extended or narrowed still starts its ensembles."""
    log = HookLog()
    tools = Tools.of([log.ensemble("a")]).plus(log.ensemble("b", CountUp()), greet).only(["add"])
    assert tools.names == ("add",)
    loop = scripted_loop([], ("add", {"a": 1, "b": 2})).replace(tools=tools)
    assert executions(await loop.execute("go"))[0].value == 3
    assert log.lines == ["start a", "start b", "stop b", "stop a"]


def _recording_tool(log: HookLog) -> Callable[[], str]:
    def use() -> str:
        """Record the use."""
        log.lines.append("used")
        return "used"

    return use
