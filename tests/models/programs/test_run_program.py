"""Programs whose calls are calls like any other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    Budget,
    Permissions,
    ScriptedInference,
    StopReason,
    ToolCall,
    ToolCallingDriver,
    ToolExecutor,
    from_json,
    to_json,
    tool,
)
from agentloop.events import ToolCallCompleted
from agentloop.models import ProgramLimits, RunProgram
from agentloop.toolkits import Ensemble, ToolOverride
from agentloop.values import ExecutionStatus, ToolStatus
from tests.limits import LONGEST, over_time
from tests.models.programs.running import World, checked, program, run


def test_calls_of_a_program_are_inside_its_execution() -> None:
    """Each call has a key by its number, and only what the program prints and returns is shown to the model."""
    ran = run('a = await search("x")\nb = await search("y", n=2)\nprint(len(b))\na[0]')
    assert ran.outer.text == "2\nx"
    assert ran.outer.value == {"printed": "2\n", "value": "x"}
    assert [inner.key for inner in ran.outer.inner] == ["e/1/0/program/0", "e/1/0/program/1"]
    assert [inner.value for inner in ran.outer.inner] == [("x",), ("y", "y")]
    assert ran.state.tool_call_count == 3


@pytest.mark.parametrize(
    "changes", [{"overrides": {"run_program": ToolOverride(policy={"timeout": 60})}}, {"start": lambda: None}]
)
def test_a_program_of_an_ensemble_calls_tools(changes: dict[str, Any]) -> None:
    """An ensemble that changes its tools, or has to be started, keeps what a tool needs to make calls."""
    group = Ensemble("code", [RunProgram()], **changes)
    model = ScriptedInference(program('await search("x")'), "done")
    loop = AgentLoop.for_model(model, tools=[*World().tools, group])
    with checked(loop):
        (outer,) = loop.execute_sync("Go.", execution_id="e").steps[0].executions
    assert (outer.text, [inner.key for inner in outer.inner]) == ('["x"]', ["e/1/0/program/0"])


def test_calls_awaited_at_once_are_a_batch() -> None:
    """Calls of one gather run at once, and are numbered in the order in which the program makes them."""
    source = (
        'import asyncio\nasync def one(q):\n    return await search(q)\nawait asyncio.gather(*[one(q) for q in "abc"])'
    )
    ran = run(source)
    assert [inner.call.arguments["query"] for inner in ran.outer.inner] == ["a", "b", "c"]
    kinds = [type(event).__name__ for event in ran.events if type(event).__name__.startswith("ToolCall")]
    assert kinds == ["ToolCallStarted"] * 4 + ["ToolCallCompleted"] * 4


def test_a_tool_with_the_name_of_a_function_of_python_leaves_it_to_the_program() -> None:
    """Both are called."""

    @tool(name="list", effect="pure")
    async def list_files() -> str:
        """List the files."""
        return "a.txt"

    call = program("print(list(range(3)), await list_())")
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(call, "done"), mode="native"), [list_files, RunProgram()])
    state = loop.execute_sync("go")
    assert state.steps[0].executions[0].text.strip() == "[0, 1, 2] a.txt"


def test_a_call_that_fails_raises_in_the_program() -> None:
    """A program can handle the failure of a call; one that it does not handle ends it, with the line."""
    ran = run('try:\n    await search("bad")\nexcept RuntimeError as error:\n    print("caught", error)')
    assert ran.outer.text == "caught search: ValueError: no such thing"
    ran = run('x = 1\nawait search("bad")')
    assert ran.outer.status is ToolStatus.FAILED
    assert 'line 2: await search("bad")' in ran.outer.error_message
    assert [inner.status for inner in ran.outer.inner] == [ToolStatus.FAILED]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("await serch('a')", "name 'serch' is not defined, did you mean 'search'?"),
        ("x = = 1", "line 1: x = = 1"),
        ("await search('a', 1, 2)", "takes 2 arguments, and 3 were given"),
        ("await search('a', query='b')", "more than one value for 'query'"),
        ("await search('a', n='b')", "'b' is not of type 'integer'"),
        ("await run_program(code='1')", "'run_program' is not defined"),
        ("await search({1, 2}.pop)", "search"),
        ("float('nan')", "has no JSON form"),
    ],
)
def test_mistakes_are_explained(source: str, message: str) -> None:
    """What is wrong with a program is said in its own terms."""
    ran = run(source)
    assert ran.outer.status is ToolStatus.FAILED
    assert message in ran.outer.error_message
    assert ran.world.done == []


def test_a_call_that_is_not_awaited_is_reported() -> None:
    """A call that the program never waits for is not made, and the model reads that."""
    ran = run("search('a')\n'done'")
    assert "a call of search was not awaited and not made" in ran.outer.text
    assert ran.world.done == []


def test_permissions_apply_to_calls_of_programs() -> None:
    """A call that is not permitted raises PermissionError, and does not run."""
    source = 'try:\n    await pay("Ada")\nexcept PermissionError as error:\n    print(error)'
    ran = run(source, interceptors=[Permissions(deny=["pay"])])
    assert "ToolBlocked" in ran.outer.text
    assert ran.world.done == []
    assert ran.outer.inner[0].was_blocked


def test_calls_of_programs_count_against_the_limit() -> None:
    """A budget of calls counts the program and its calls, and ends the program where it is used up."""
    ran = run('for q in "abcdef":\n    await search(q)', interceptors=[Budget(tool_calls=4, wrap_up=False)])
    assert ran.world.done == ["search a", "search b", "search c"]
    assert ran.state.stop_signal is not None
    assert ran.state.stop_signal.reason is StopReason.TOOL_CALL_LIMIT
    assert ran.outer.status is ToolStatus.CANCELLED
    assert [inner.status.value for inner in ran.outer.inner] == ["succeeded"] * 3 + ["blocked"]


def test_calls_after_a_program_are_counted_after_its_calls() -> None:
    """The calls of one answer run in order, and a program before a call takes its share of the limit."""
    late = ToolCall("2", "search", '{"query": "late"}')
    source = 'for q in "ab":\n    await search(q)'
    ran = run([program(source), late], interceptors=[Budget(tool_calls=3, wrap_up=False)])
    assert ran.world.done == ["search a", "search b"]
    assert ran.state.steps[0].executions[1].was_blocked


@pytest.mark.parametrize("limit", range(9))
def test_the_calls_of_several_programs_count_together(limit: int) -> None:
    """The programs of one answer, their calls, and a call between them use one limit."""
    source, between = 'for q in "ab":\n    await search(q)', ToolCall("2", "search", '{"query": "between"}')
    calls = [program(source), between, program(source)]
    ran = run(calls, interceptors=[Budget(tool_calls=limit, wrap_up=False)])
    executions = [each for execution in ran.state.steps[0].executions for each in execution.flat]
    assert len([each for each in executions if not each.was_blocked]) == min(limit, 7)
    assert ran.state.status is (ExecutionStatus.STOPPED if limit < 7 else ExecutionStatus.COMPLETED)


def test_the_execution_survives_the_round_trip() -> None:
    """A state with inner executions is equal after it was written and read."""
    ran = run('await search("x")\nawait pay("Ada")')
    assert from_json(to_json(ran.state), AgentState) == ran.state


def test_a_limit_of_calls_ends_the_program() -> None:
    """A program that makes too many calls ends, and the calls before are in its execution."""
    ran = run("n = 0\nwhile True:\n    n = len(await search(str(n)))", limits=ProgramLimits(calls=5))
    assert "more than 5 calls" in ran.outer.error_message
    assert len(ran.outer.inner) == 5


async def test_a_timeout_settles_the_calls_of_a_program() -> None:
    """A program that is ended from outside leaves no call without an outcome."""
    model = ScriptedInference(program('await search("a")\nwhile True: pass'), "done")
    executor = ToolExecutor(default_timeout=LONGEST)
    loop = AgentLoop.for_model(model, tools=[*World().tools, RunProgram()], executor=executor)
    has_searched = asyncio.Event()
    loop.on(ToolCallCompleted, lambda _: has_searched.set())
    with checked(loop):
        running = asyncio.create_task(loop.execute("Go."))
        await has_searched.wait()
        (outer,) = (await over_time(running, LONGEST)).steps[0].executions
    assert outer.status is ToolStatus.TIMED_OUT
    assert [inner.value for inner in outer.inner] == [("a",)]


def test_a_call_runs_where_it_is_awaited() -> None:
    """A call that a program prepares, and awaits only under a condition, does not run with the calls that it awaits before."""
    source = "payment = pay(to='ann')\nif await search(query='ok') == ['no']:\n    await payment\n'unpaid'"
    ran = run(source)
    assert ran.world.done == ["search ok"]
    assert [inner.name for inner in ran.outer.inner] == ["search"]
    assert "a call of pay was not awaited and not made" in ran.outer.text
    ran = run("payment = pay(to='ann')\nfound = await search(query='ok')\nawait payment")
    assert ran.world.done == ["search ok", "pay ann"]
    assert ran.outer.text == "paid ann"


def test_a_program_may_use_any_name() -> None:
    """Names of built-in functions and of tools can be values of the program."""
    source = (
        "len = list = set = sorted = str = 1\nentry = values = named = 2\nsearch = await search(query='ok')\nsearch"
    )
    assert run(source).outer.text == '["ok"]'
