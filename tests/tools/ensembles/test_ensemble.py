"""Ensembles in a loop: what is offered, what is changed, what is started and stopped, and what a failure leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, Interceptor, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.contracts import Tools
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.tools import TypedTool
from agentloop.tools.ensembles import Ensemble, ToolOverride
from agentloop.values import Effect, ToolStatus
from agentloop.values.interruptions import interrupted_state
from agentloop.values.points import AfterToolUse
from tests.tools.ensembles.running import Call, called, executions, ran, scripted_loop


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def greet(name: str, state: AgentState, call: ToolCall, context: ToolContext, *, loudly: bool) -> str:
    """Greet somebody."""
    assert state.execution_id == context.execution_id
    return f"{call.id} {name}{'!' if loudly else ''}"


class CountUp(TypedTool):
    def __init__(self) -> None:
        self.count = 0

    async def use(self, by: int) -> int:
        """Count."""
        self.count += by
        return self.count


class Journal:
    """Notes what was started and stopped."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.hanging = asyncio.Event()

    async def hang(self) -> str:
        """Wait for ever."""
        self.hanging.set()
        await asyncio.Event().wait()
        return "never"

    def note(self, line: str) -> Callable[[], None]:
        return lambda: self.lines.append(line)

    def note_later(self, line: str) -> Callable[[], Any]:
        async def note() -> None:
            await asyncio.sleep(0)
            self.lines.append(line)

        return note

    def ensemble(self, name: str, *tools: Any, **parts: Any) -> Ensemble:
        hooks = {"start": self.note_later(f"start {name}"), "stop": self.note(f"stop {name}")}
        return Ensemble(name, tools or [add], **{**hooks, **parts})


def fail() -> None:
    raise OSError("no route to the host")


# --- what is offered ------------------------------------------------------------------------------------------------


async def test_an_ensemble_stands_among_single_tools() -> None:
    """Its tools are offered in its place, and called like others."""
    state = await ran([greet, Ensemble("sums", [add])], ("add", {"a": 1, "b": 2}))
    assert executions(state)[0].value == 3
    assert Tools.of([greet, Ensemble("sums", [add]), CountUp()]).names == ("greet", "add", "count_up")


def test_a_tool_that_nothing_changes_is_offered_as_it_is() -> None:
    """Without start, defaults or overrides there is nothing between the executor and the tool."""
    assert Ensemble("sums", [add]).offered == (add,)


@pytest.mark.parametrize(
    ("ensemble", "offered"),
    [
        (Ensemble("e", [add, greet]), ["add", "greet"]),
        (Ensemble("e", [add, greet], enabled=False), []),
        (Ensemble("e", [add, greet]).switched_off(), []),
        (Ensemble("e", [add, greet]).switched_off().switched_on(), ["add", "greet"]),
        (Ensemble("e", [add, greet]).without("add"), ["greet"]),
        (Ensemble("e", [add, greet]).without("add").without("greet"), []),
        (Ensemble("e", [add, greet]).only("add"), ["add"]),
        (Ensemble("e", [add, greet]).without("add").only("add"), ["add"]),
        (Ensemble("e", [add, greet]).with_override("add", ToolOverride(name="plus")), ["plus", "greet"]),
    ],
)
def test_ensembles_and_tools_are_switched_off(ensemble: Ensemble, offered: list[str]) -> None:
    """What is switched off is not offered; a changed copy leaves the first one as it was."""
    assert [one.name for one in ensemble.offered] == offered
    assert list(Tools.of([ensemble]).names) == offered


async def test_a_tool_that_is_switched_off_cannot_be_called() -> None:
    """A call of it is refused like that of any unknown tool."""
    execution = await called([Ensemble("e", [add, greet]).without("add")], "add", a=1, b=2)
    assert (execution.status, execution.error and execution.error.type) == (ToolStatus.REJECTED, "UnknownTool")


def test_two_ensembles_cannot_offer_one_name() -> None:
    """The same name from two places is refused; where one of them is switched off it is not."""
    with pytest.raises(ToolDefinitionError, match="two tools are named 'add'"):
        Tools.of([Ensemble("a", [add]), Ensemble("b", [add])])
    assert Tools.of([Ensemble("a", [add]), Ensemble("b", [add], enabled=False)]).names == ("add",)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Ensemble("", [add]), "needs a name"),
        (lambda: Ensemble("e", [add]).without("ad"), r"has no tool 'ad'; did you mean 'add'\?"),
        (lambda: Ensemble("e", [add]).only("x"), "has no tool 'x'; there is 'add'"),
        (lambda: Ensemble("e", [add], defaults={"c": 1}), "no tool of the ensemble 'e' has such a parameter"),
        (lambda: Ensemble("e", [add], defaults={"b": "x"}), "defaults.b: 'x' is not of type 'integer'"),
        (lambda: Ensemble("e", [add], policy={"timout": 1}), r"'timout' is nothing .* has; did you mean 'timeout'\?"),
        (
            lambda: Ensemble("e", [add]).with_override("add", ToolOverride(defaults={"bb": 1})),
            r"the tool 'add' has no such parameter; did you mean 'b'\?",
        ),
    ],
)
def test_mistakes_are_told_at_once(make: Callable[[], Ensemble], told: str) -> None:
    """An ensemble that cannot work is not made."""
    with pytest.raises(ConfigurationError, match=told):
        make()


def test_a_list_of_tools_holds_tools() -> None:
    """What is no tool is refused in an ensemble as it is in a loop."""
    with pytest.raises(TypeError, match="is not a Tool"):
        Ensemble("e", [len])  # type: ignore[list-item]  # the mistake


# --- what is changed ------------------------------------------------------------------------------------------------


async def test_a_default_stands_for_what_a_model_leaves_out() -> None:
    """The schema says that it need not be given; what is given wins; a value that does not fit is still refused."""
    sums = Ensemble("sums", [add], defaults={"b": 40})
    assert sums.offered[0].parameters["required"] == ("a",)
    assert sums.offered[0].parameters["properties"]["b"]["default"] == 40
    assert add.parameters["required"] == ("a", "b")
    calls: list[Call] = [("add", {"a": 2}), ("add", {"a": 2, "b": 3}), ("add", {"a": 2, "b": "x"}), ("add", {})]
    done = executions(await ran([sums], *calls))
    assert [one.value for one in done] == [42, 5, None, None]
    assert [one.status for one in done[2:]] == [ToolStatus.REJECTED, ToolStatus.REJECTED]


async def test_a_tools_own_default_wins_over_the_ensembles() -> None:
    """Defaults of an ensemble are for each of its tools; those of a tool are nearer."""
    sums = Ensemble("sums", [add], defaults={"a": 1, "b": 1}, overrides={"add": ToolOverride(defaults={"b": 9})})
    assert (await called([sums], "add")).value == 10


async def test_defaults_and_arguments_together_satisfy_the_schema() -> None:
    """A default that fits alone and not beside what the model gave is refused before the tool is called."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "if": {"properties": {"a": {"const": 7}}, "required": ["a"]},
        "then": {"properties": {"b": {"maximum": 3}}},
    }
    sums = Ensemble("sums", [add], overrides={"add": ToolOverride(schema=schema, defaults={"b": 5})})
    assert (await called([sums], "add", a=1)).value == 6
    assert (await called([sums], "add", a=7)).status is ToolStatus.REJECTED


async def test_what_a_tool_wants_to_know_reaches_it() -> None:
    """State, call and context are injected through the ensemble; a tool with state of its own keeps it."""
    journal, counter = Journal(), CountUp()
    group = journal.ensemble("g", greet, counter, defaults={"loudly": True, "by": 2})
    state = await ran([group], ("greet", {"name": "Ada"}), ("count_up", {}), ("count_up", {"by": 5}))
    assert [one.value for one in executions(state)] == ["c0_0 Ada!", 2, 7]


def test_description_schema_effect_and_policy_are_overridden() -> None:
    """Each replaces what the tool says, and nothing else."""
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
    ("schema", "told"),
    [
        ({"type": "object", "properties": {"aa": {}}}, r"has 'aa', which the tool has no parameter for; did you mean"),
        ({"type": "string"}, "has to be of type object"),
        ({"type": "object", "properties": {"a": {"type": "intger"}}}, "not a valid JSON Schema"),
    ],
)
def test_a_schema_that_is_not_one_of_the_tool_is_refused(schema: dict[str, Any], told: str) -> None:
    """It has to be a schema, of an object, of parameters that the tool has."""
    with pytest.raises(ToolDefinitionError, match=told):
        Ensemble("e", [add], overrides={"add": ToolOverride(schema=schema)})


async def test_interceptors_of_an_ensemble_stand_in_its_loops() -> None:
    """They act while the ensemble is on, and are part of the printed composition."""

    class Double(Interceptor):
        def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
            return point.with_value(point.execution.value * 2)  # type: ignore[operator]  # a number here

    group = Ensemble("sums", [add], interceptors=[Double()])
    assert (await called([group], "add", a=1, b=2)).value == 6
    assert "Double" in scripted_loop([group]).describe()
    assert "Double" not in scripted_loop([group.switched_off()]).describe()


# --- start and stop -------------------------------------------------------------------------------------------------


async def test_an_execution_starts_and_stops_what_it_needs() -> None:
    """In the order given, before any tool; stopped in reverse order, at the end."""
    journal = Journal()
    use = tool(name="use")(_noting(journal))
    loop = scripted_loop([journal.ensemble("a", use), journal.ensemble("b")], ("use", {}))
    await loop.execute("go")
    assert journal.lines == ["start a", "start b", "used", "stop b", "stop a"]
    await loop.execute("again")
    assert journal.lines == ["start a", "start b", "used", "stop b", "stop a"] * 2


async def test_a_loop_that_is_entered_holds_what_it_started() -> None:
    """Started when it is entered and stopped when it is left, whatever runs in between."""
    journal = Journal()
    loop = scripted_loop([journal.ensemble("a"), journal.ensemble("b", CountUp())], ("add", {"a": 1, "b": 2}))
    async with loop:
        assert journal.lines == ["start a", "start b"]
        await asyncio.gather(loop.execute("one"), loop.execute("two"))
        async with loop:
            await loop.execute("three")
        assert journal.lines == ["start a", "start b"]
    assert journal.lines == ["start a", "start b", "stop b", "stop a"]


async def test_executions_side_by_side_share_one_start() -> None:
    """The first one starts it, and only the last one to end stops it."""
    journal, release = Journal(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        journal.hanging.set()
        await release.wait()
        return "waited"

    group = journal.ensemble("g", wait, add)
    first = asyncio.create_task(scripted_loop([group], ("wait", {})).execute("go"))
    await journal.hanging.wait()
    await scripted_loop([group], ("add", {"a": 1, "b": 2})).execute("go")
    assert journal.lines == ["start g"]
    release.set()
    await first
    assert journal.lines == ["start g", "stop g"]


async def test_what_is_switched_off_is_not_started() -> None:
    """Nor is it stopped."""
    journal = Journal()
    await ran([journal.ensemble("a").switched_off()])
    assert journal.lines == []


async def test_a_cancelled_execution_stops_what_it_started() -> None:
    """Cancellation in a tool, and in a start, leaves nothing running; the state is still handed over."""
    for at_start in (False, True):
        journal = Journal()
        hang = tool(name="hang")(journal.hang)
        parts = {"start": journal.hang} if at_start else {}
        groups = [journal.ensemble("first"), journal.ensemble("second", hang, **parts)]
        task = asyncio.create_task(ran(groups, ("hang", {})))
        await journal.hanging.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert interrupted_state(cancelled.value) is not None
        assert journal.lines[-1] == "stop first"
        assert ("stop second" in journal.lines) is not at_start


async def test_a_cancelled_entry_stops_what_it_started() -> None:
    """When entering a loop is cancelled, nobody will leave it; so nothing stays started."""
    journal = Journal()
    loop = scripted_loop([journal.ensemble("a"), journal.ensemble("b", CountUp(), start=journal.hang)])
    task = asyncio.create_task(loop.__aenter__())
    await journal.hanging.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert journal.lines == ["start a", "stop a"]


async def test_an_ensemble_that_cannot_be_started_fails_its_own_calls_only(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged; its tools' calls say what is wrong; others run; it is not stopped; the next execution tries again."""
    journal = Journal()
    broken = journal.ensemble("broken", add, greet, start=fail)
    loop = scripted_loop(
        [broken, journal.ensemble("sound", CountUp())],
        [("add", {"a": 1, "b": 2}), ("greet", {"name": "x", "loudly": False}), ("count_up", {"by": 1})],
    )
    with caplog.at_level(logging.ERROR, "agentloop.tools.ensembles"):
        done = executions(await loop.execute("go"))
    assert [one.status for one in done] == [ToolStatus.FAILED, ToolStatus.FAILED, ToolStatus.SUCCEEDED]
    for one in done[:2]:
        assert one.error is not None
        assert one.error.type == "ToolUnavailable"
        assert (
            "'broken' cannot be used now: it could not be started: OSError: no route to the host" in one.error.message
        )
        assert not one.may_have_run
    assert journal.lines == ["start sound", "stop sound"]
    assert "the ensemble broken could not be started" in caplog.text
    mended = evolve(broken, start=journal.note("start broken"))
    assert (await called([mended], "add", a=1, b=2)).value == 3


async def test_a_stop_that_fails_costs_nothing_but_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The execution keeps its outcome, and the others are stopped."""
    journal = Journal()
    group = journal.ensemble("a"), journal.ensemble("b", CountUp(), stop=fail)
    state = await ran(group, ("add", {"a": 1, "b": 2}))
    assert state.final_text == "done"
    assert journal.lines == ["start a", "start b", "stop a"]
    assert "the ensemble b could not be stopped" in caplog.text


async def test_a_tool_that_nobody_started_says_so() -> None:
    """Its tools given without the ensemble have nobody to start it."""
    group = Journal().ensemble("g")
    execution = await called(group.offered, "add", a=1, b=2)
    assert execution.error_message.endswith("it was not started: give the ensemble, not its tools, to an AgentLoop")


async def test_its_state_can_be_asked_for() -> None:
    """Before, while and after it is held, and when starting failed."""
    journal = Journal()
    sound, broken = journal.ensemble("sound"), journal.ensemble("broken", CountUp(), start=fail)
    async with scripted_loop([sound, broken]):
        assert (sound.problem(), sound.switched_off().problem()) == ("", "it is switched off")
        assert broken.problem() == "it could not be started: OSError: no route to the host"
    assert sound.problem().startswith("it was not started")
    assert Ensemble("plain", [add]).problem() == ""


def test_each_event_loop_starts_its_own() -> None:
    """Executions one after the other in event loops of their own do not see each other's start."""
    journal = Journal()
    loop = AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "add", '{"a": 1, "b": 2}'), "done"), tools=[journal.ensemble("g")]
    )
    for _ in range(2):
        assert executions(loop.execute_sync("go"))[0].value == 3
    assert journal.lines == ["start g", "stop g"] * 2


async def test_tools_keep_their_groups() -> None:
    """A set of tools that is added to or narrowed still knows what has to be started."""
    journal = Journal()
    tools = Tools.of([journal.ensemble("a")]).plus(journal.ensemble("b", CountUp()), greet).only(["add"])
    assert tools.names == ("add",)
    loop = scripted_loop([], ("add", {"a": 1, "b": 2})).with_tools(tools)
    assert executions(await loop.execute("go"))[0].value == 3
    assert journal.lines == ["start a", "start b", "stop b", "stop a"]


def _noting(journal: Journal) -> Callable[[], str]:
    def use() -> str:
        """Note that it was used."""
        journal.lines.append("used")
        return "used"

    return use
