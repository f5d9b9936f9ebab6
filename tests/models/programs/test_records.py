"""What journals make of programs besides recovering them: forks, stops, exported tests."""

from __future__ import annotations

import pytest

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCallingDriver
from agentloop.durable import fork
from agentloop.durable.fork_effects import ForkPolicy
from agentloop.durable.recovery import stop_execution
from agentloop.mcp import McpEnsemble
from agentloop.models import RunProgram
from agentloop.testing import CrashableJournal
from agentloop.values import Decision, ExecutionStatus, RecordKind, ToolStatus
from agentloop.values.decisions import Approve
from tests.durable.exported import record_execution, run_test
from tests.durable.recovery_bench import ToolLedger
from tests.mcp.running import small
from tests.models.programs.running import World, program
from tests.models.programs.test_program_recovery import build, places


async def recorded() -> CrashableJournal:
    """Return the journal of an execution whose program paid three times."""
    journal = CrashableJournal()
    await build(ToolLedger(), journal, mode="program").execute("Go.", execution_id="run")
    return journal


@pytest.mark.parametrize("policy", ForkPolicy)
async def test_a_fork_repeats_no_payment_of_a_program(policy: ForkPolicy) -> None:
    """A fork reuses, simulates or forbids the effects of a program, under the keys of the fork."""
    journal, world = await recorded(), ToolLedger()
    fork_id = await fork(journal, "run", at_step=0, effects=policy)
    state = await build(world, journal, mode="program").recover(fork_id)
    (outer,) = state.steps[0].executions
    assert not any(world.effects[inner.key] for inner in outer.inner if inner.name == "pay")
    assert [inner.key for inner in outer.inner] == [f"{fork_id}/1/0/program/{n}" for n in range(len(outer.inner))]
    assert outer.inner[0].status is (ToolStatus.BLOCKED if policy is ForkPolicy.FORBID else ToolStatus.SUCCEEDED)


async def test_an_interrupted_program_can_be_stopped() -> None:
    """The calls that it made stay in its execution; the one that was interrupted is in doubt."""
    whole = await recorded()
    journal = await whole.after_crash(places(whole, RecordKind.CALL_INTENT)["run/1/0/program/3"])
    state = await stop_execution(journal, "run", "enough")
    assert state.status is ExecutionStatus.STOPPED
    (outer,) = state.steps[0].executions
    assert [inner.status.value for inner in outer.inner] == ["succeeded", "succeeded", "succeeded", "in_doubt"]


@pytest.mark.parametrize("decisions", [(), (Approve(),)])
async def test_an_execution_with_a_program_can_be_exported_as_a_test(decisions: tuple[Decision, ...]) -> None:
    """The exported test plays the program's call back with its outcome."""
    model = ScriptedInference(program("a = await search('x')\nawait pay(to=a[0])"), "done")
    interceptors = [RequireApproval("pay")] if decisions else []
    loop = AgentLoop(ToolCallingDriver(model), [*World().tools, RunProgram()], interceptors=interceptors)
    _, source, state = await record_execution(loop, "go", *decisions)
    assert state.status is ExecutionStatus.COMPLETED
    run_in_own_loop(source)


def run_in_own_loop(source: str) -> None:
    """Run an exported test in a thread, since it starts an event loop."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # one use

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run_test, source).result()


async def test_tools_of_a_server_are_functions() -> None:
    """A program calls the tools of an MCP server like any other."""
    server: McpEnsemble = small()
    model = ScriptedInference(program("x = await add(a=1, b=2)\nx"), "done")
    state = await AgentLoop(ToolCallingDriver(model, mode="program"), [server]).execute("Go.")
    (outer,) = state.steps[0].executions
    assert outer.status is ToolStatus.SUCCEEDED
    assert outer.inner[0].name == "add"
    assert "3" in outer.text
