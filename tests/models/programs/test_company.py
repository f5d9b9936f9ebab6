"""Programs among the other parts: drivers, sub-agents, MCP servers, journals of files, people who read, and time."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentloop import (
    AgentLoop,
    AgentState,
    Budget,
    Interceptor,
    ReActDriver,
    RequireApproval,
    ScriptedInference,
    SqliteJournal,
    ToolCall,
    ToolCallingDriver,
    ToolExecutor,
    from_json,
    to_json,
    tool,
)
from agentloop.errors import ConfigurationError
from agentloop.interception import BeforeToolUse
from agentloop.models import RunProgram
from agentloop.service.cli.console import format_call_number
from agentloop.service.cli.progress import Progress
from agentloop.testing import ManualClock
from agentloop.values import ExecutionStatus, ToolStatus, approve
from tests.models.programs.running import World, checked, program, run

SOURCE = "a = await search('x')\nb = await pay(to=a[0])\nb"

DRIVERS: dict[str, Any] = {
    "native": lambda code: ToolCallingDriver(ScriptedInference(program(code), "done"), mode="native"),
    "validated": lambda code: ToolCallingDriver(
        ScriptedInference(
            f'<tool_call>{{"name": "run_program", "arguments": {{"code": {json.dumps(code)}}}}}</tool_call>', "done"
        ),
        mode="validated",
    ),
    "program": lambda code: ToolCallingDriver(ScriptedInference(program(code), "done"), mode="program"),
    "react": lambda code: ReActDriver(
        ScriptedInference(
            json.dumps({"thought": "t", "type": "call_tool", "tool": "run_program", "args": {"code": code}}),
            json.dumps({"thought": "t", "type": "final_answer", "answer": "done"}),
        )
    ),
}


@pytest.mark.parametrize("name", DRIVERS)
@pytest.mark.parametrize("budget", [None, Budget(tool_calls=10, steps=5)])
def test_a_program_is_the_same_under_every_driver(name: str, budget: Budget | None) -> None:
    """Inner calls, outcomes and the answer do not depend on how the model calls the tool, nor on a budget."""
    world = World()
    interceptors = [] if budget is None else [budget]
    loop = AgentLoop(DRIVERS[name](SOURCE), [*world.tools, RunProgram()], interceptors=interceptors)
    with checked(loop):
        state = loop.execute_sync("Go.", execution_id="e")
    (execution,) = state.steps[0].executions
    assert [(inner.key, inner.value) for inner in execution.inner] == [
        ("e/1/0/program/0", ("x",)),
        ("e/1/0/program/1", "paid x"),
    ]
    assert execution.text == "paid x"
    assert state.final_text == "done"


def test_a_sub_agent_is_a_function() -> None:
    """An agent that a program calls has an execution below the call, suspends with it, and resumes with it."""
    world = World()
    clerk = AgentLoop(
        ToolCallingDriver(ScriptedInference(ToolCall("1", "pay", '{"to": "Ada"}'), "Ada is paid.")),
        world.tools,
        interceptors=[RequireApproval("pay")],
    )
    model = ScriptedInference(program("first = await search('x')\nprint(await clerk(task='Pay Ada.'))"), "done")
    loop = AgentLoop(ToolCallingDriver(model), [*world.tools, clerk.as_tool("clerk", "Pays."), RunProgram()])
    with checked(loop):
        state = loop.execute_sync("Go.", execution_id="e")
    agent = "e/1/0/program/1/agent"
    assert [call.key for call in state.pending] == ["e/1/0", "e/1/0/program/1", f"{agent}/1/0"]
    state = from_json(to_json(state), AgentState)
    state = asyncio.run(loop.resume(state, {f"{agent}/1/0": approve()}))
    assert state.steps[0].executions[0].text == "Ada is paid."
    assert world.done == ["search x", "pay Ada"]


async def test_a_decision_days_later_in_another_process(tmp_path: Path) -> None:
    """A suspended program is resumed from its journal by another process, days later; nothing runs twice."""
    path, world, clock = tmp_path / "runs.db", World(), ManualClock()
    model = ScriptedInference(program("for name in ['Ada', 'Bob']:\n    print(await pay(to=name))"), "done")
    async with aclosing(SqliteJournal(path)) as journal:
        loop = AgentLoop(
            ToolCallingDriver(model),
            [*world.tools, RunProgram()],
            journal=journal,
            interceptors=[RequireApproval()],
            clock=clock,
        )
        state = await loop.execute("Go.", execution_id="e")
        clock.advance(timedelta(days=3).total_seconds())
        state = await loop.resume("e", {call.key: approve() for call in state.pending if not call.waits_for})
        assert world.done == ["pay Ada"]
    script = f"""
import asyncio
from tests.models.programs.test_company import resume_elsewhere
asyncio.run(resume_elsewhere({str(path)!r}))
"""
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["completed", "paid Ada", "paid Bob", "['pay Bob']"]


async def resume_elsewhere(path: str) -> None:
    """Approve what waits in a journal, and print what happened; run in another process."""
    world = World()
    model = ScriptedInference(program("unused"), "done")
    async with aclosing(SqliteJournal(path)) as journal:
        loop = AgentLoop(
            ToolCallingDriver(model), [*world.tools, RunProgram()], journal=journal, interceptors=[RequireApproval()]
        )
        state = await loop.recover("e")
        state = await loop.resume("e", {call.key: approve() for call in state.pending if not call.waits_for})
    sys.stdout.write(f"{state.status.value}\n{state.steps[0].executions[0].text}\n{world.done}\n")


class Upper(Interceptor):
    """Changes the arguments of payments."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        if point.call.name != "pay":
            return point
        return point.with_arguments({"to": str(point.arguments["to"]).upper()})


class Broken(Interceptor):
    """Fails before payments."""

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        if point.call.name == "pay":
            raise RuntimeError("broken")
        return point


def test_interceptors_change_calls_of_programs() -> None:
    """An interceptor sees each call of a program with its key, and may change it."""
    ran = run("await pay('ada')", interceptors=[Upper()])
    assert ran.world.done == ["pay ADA"]
    assert ran.outer.inner[0].call.arguments == {"to": "ADA"}


def test_an_interceptor_that_fails_stops_the_program() -> None:
    """Law 11: the guarded call does not run, nor does any after it, and the step fails."""
    source = "await search('x')\ntry:\n    await pay('ada')\nexcept BaseException:\n    pass\nawait search('y')"
    ran = run(source, interceptors=[Broken()])
    assert ran.state.status is ExecutionStatus.FAILED
    assert ran.world.done == ["search x"]
    assert [inner.status for inner in ran.outer.inner] == [ToolStatus.SUCCEEDED, ToolStatus.FAILED]


def test_what_happened_can_be_read() -> None:
    """`explain` and the progress of the command line show calls of programs below the call that runs them."""
    output = io.StringIO()
    world = World()
    loop = AgentLoop.for_model(ScriptedInference(program(SOURCE), "done"), tools=[*world.tools, RunProgram()])
    loop.wiretap(Progress(Console(file=output, width=120)))
    state = loop.execute_sync("Go.", execution_id="e")
    lines = state.explain().splitlines()
    assert any(line.startswith("      pay(") for line in lines)
    shown = [line for line in output.getvalue().splitlines() if "1.1.2 pay" in line]
    assert len(shown) == 2
    assert all(line.startswith("    ") for line in shown)
    assert format_call_number("e/2/0/program/4") == "2.1.5"


def test_without_the_extra_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool cannot be made, and the message has the command."""
    monkeypatch.setattr("agentloop.models.programs.run_program.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'agentloop-kernel\[code\]'"):
        RunProgram()


def test_the_interpreter_is_loaded_with_the_first_program() -> None:
    """To define an agent with programs does not load the interpreter."""
    source = (
        "import sys; from agentloop import AgentLoop, ScriptedInference, ToolCallingDriver;"
        "from agentloop.models import RunProgram;"
        "AgentLoop(ToolCallingDriver(ScriptedInference('x'), mode='program'), [RunProgram()]);"
        "print('pydantic_monty' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "False"


async def test_a_cancelled_execution_settles_the_calls_of_its_program() -> None:
    """Whatever runs when an execution is cancelled has an outcome, inside that of the program."""
    world = World()
    started = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return ""

    model = ScriptedInference(program("await search('x')\nawait wait()"), "done")
    loop = AgentLoop(
        ToolCallingDriver(model), [*world.tools, wait, RunProgram()], executor=ToolExecutor(cancel_grace=0.2)
    )
    with checked(loop) as events:
        task = asyncio.create_task(loop.execute("Go."))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    settled = [event.execution for event in events if type(event).__name__ == "ToolCallCompleted"]  # type: ignore[attr-defined]  # of the class
    assert [(execution.name, execution.status.value) for execution in settled] == [
        ("search", "succeeded"),
        ("wait", "cancelled"),
        ("run_program", "cancelled"),
    ]
    assert [inner.name for inner in settled[-1].inner] == ["search", "wait"]
