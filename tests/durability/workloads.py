"""The executions that are killed: agents of five steps, with a mixture of what can happen when a process dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from agentloop import AgentLoop, ToolCallingDriver, ToolContext, tool
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.tool import Tool
from agentloop.events import AgentStepCompleted
from agentloop.interception import RequireApproval
from agentloop.models import RunProgram
from agentloop.policies import Resilience
from agentloop.values import Event, InDoubt
from tests.durability.tools import EFFECTS, Script, ScriptedModel, make_flaky_tool, make_pool_tool, make_tools
from tests.durability.trial_folder import TrialFolder

RUN = "run"
"""The id of the execution that is killed."""
BLOCKED = "blocked"
"""The name of a workload that waits until the test releases it."""
MAINTENANCE = "maintenance"
"""The name of the job that deletes and purges what was recorded."""
SOURCE = "source"
"""The id of the execution of which the killed execution is a fork."""
OLD = ("old-1", "old-2", "old-3", "old-4", "old-5", "old-6")
"""The ids of the executions that are deleted meanwhile; each has an agent below it."""

Build = Callable[[TrialFolder, CanJournal], AgentLoop]


@frozen
class Workload:
    """An execution that is killed.

    Attributes:
        build: builds the loop.
        ends_as: the statuses that it may have after it was killed and recovered.
        source: builds the loop of the execution of which it is a fork; None if it is not a fork.
        deletes: whether old executions are deleted meanwhile.
    """

    build: Build
    ends_as: tuple[str, ...] = ("completed",)
    source: Build | None = None
    deletes: bool = False


def make_script(first: str, second: str, third: str) -> Script:
    """Return a script of five steps: a call, concurrent calls, sequential calls, a mixture, and the answer.

    Args:
        first: the kind of effect of the first tool of a step.
        second: the kind of effect of the second tool.
        third: the kind of effect of the third tool.
    """
    return (
        [f"work_{first}"],
        [f"work_{first}", f"work_{second}", f"grind_{third}"],
        [f"seal_{second}", f"seal_{third}"],
        [f"grind_{second}", f"seal_{first}", f"work_{third}"],
    )


def make_all_tools(folder: TrialFolder) -> list[Tool]:
    """Return the tools of all kinds of effects."""
    tools = [tool for effect in EFFECTS for tool in make_tools(folder, effect)]
    return [*tools, *make_tools(folder, "effect", reconciled=True)]


def with_kinds(kinds: Sequence[str], *, in_doubt: InDoubt = InDoubt.TELL) -> Build:
    """Return a builder of a loop whose tools have these kinds of effects, in turn; `effect_reconciled` is one of them."""

    def build(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
        first, second, third = [kinds[index % len(kinds)] for index in range(3)]
        driver = ToolCallingDriver(inference=ScriptedModel(folder, make_script(first, second, third)))
        return AgentLoop(driver, make_all_tools(folder), journal=journal, in_doubt=in_doubt)

    return build


def build_with_agent(
    folder: TrialFolder, journal: CanJournal, *, approval: Sequence[str] = (), in_doubt: InDoubt = InDoubt.TELL
) -> AgentLoop:
    """Return a loop that calls another agent next to other tools.

    Args:
        folder: the folder of the trial.
        journal: the journal.
        approval: the tools of the other agent that need an approval.
        in_doubt: what happens to calls in doubt, also to those of the other agent.
    """
    inner = ScriptedModel(folder, (["work_effect", "work_pure"], ["seal_effect"], ["work_idempotent"]))
    interceptors = [RequireApproval(approval)] if approval else []
    helper = AgentLoop(ToolCallingDriver(inference=inner), make_all_tools(folder), interceptors=interceptors)
    script = (["work_effect"], ["agent", "work_effect", "work_idempotent"], ["agent"], ["seal_effect"])
    tools = [*make_all_tools(folder), helper.as_tool("agent", "Does a part of the work.")]
    driver = ToolCallingDriver(inference=ScriptedModel(folder, script))
    return AgentLoop(driver, tools, journal=journal, in_doubt=in_doubt)


def build_with_approval(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop whose calls with an effect need an approval."""
    driver = ToolCallingDriver(inference=ScriptedModel(folder, make_script("effect", "effect_reconciled", "pure")))
    approval = RequireApproval(["work_effect", "seal_*"])
    return AgentLoop(driver, make_all_tools(folder), journal=journal, interceptors=[approval])


def build_with_agent_approval(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop that calls another agent, whose calls with an effect need an approval."""
    return build_with_agent(folder, journal, approval=["work_effect", "seal_effect"])


def build_with_agent_suspending(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop that calls another agent, whose calls in doubt wait for a person."""
    return build_with_agent(folder, journal, in_doubt=InDoubt.SUSPEND)


def build_with_agent_asking(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop that calls another agent, whose calls with an effect need an approval and wait again when in doubt."""
    return build_with_agent(folder, journal, approval=["work_effect", "seal_effect"], in_doubt=InDoubt.SUSPEND)


def build_with_retries(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop whose calls are retried within one intent."""
    script = (["flaky"], ["flaky", "work_effect", "flaky"], ["seal_effect", "flaky"], ["flaky"])
    tools = [*make_all_tools(folder), make_flaky_tool(folder)]
    driver = ToolCallingDriver(inference=ScriptedModel(folder, script))
    return AgentLoop(driver, tools, journal=journal, interceptors=[Resilience()])


def build_with_pools(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop whose calls have their effects in processes of their own, which outlive a killed one."""
    script = (["pool_effect"], ["pool_effect", "work_effect", "pool_idempotent"], ["seal_effect", "pool_effect"])
    tools = [*make_all_tools(folder), *[make_pool_tool(folder, effect) for effect in EFFECTS]]
    return AgentLoop(ToolCallingDriver(inference=ScriptedModel(folder, script)), tools, journal=journal)


def build_with_programs(
    folder: TrialFolder, journal: CanJournal, *, approval: Sequence[str] = (), in_doubt: InDoubt = InDoubt.TELL
) -> AgentLoop:
    """Return a loop whose calls are made by programs, one of which calls an agent.

    Args:
        folder: the folder of the trial.
        journal: the journal.
        approval: the tools that need an approval.
        in_doubt: what happens to calls in doubt.
    """
    script = (["work_effect"], ["run_program", "work_idempotent"], ["run_program with agent"])
    interceptors = [RequireApproval(approval)] if approval else []
    driver = ToolCallingDriver(inference=ScriptedModel(folder, script))
    tools = [*make_tools_with_agent(folder), RunProgram()]
    return AgentLoop(driver, tools, journal=journal, interceptors=interceptors, in_doubt=in_doubt)


def build_with_approved_programs(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop whose programs make calls that need an approval."""
    return build_with_programs(folder, journal, approval=["work_effect", "seal_effect"])


def build_with_asking_programs(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop whose programs make calls that need an approval and wait again when in doubt."""
    return build_with_programs(folder, journal, approval=["work_effect", "seal_effect"], in_doubt=InDoubt.SUSPEND)


def build_source(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return the loop of the source of a fork: it makes fewer steps than the fork."""
    model = ScriptedModel(folder, (["work_pure"], ["work_effect", "agent", "grind_idempotent"]))
    return AgentLoop(ToolCallingDriver(inference=model), make_tools_with_agent(folder), journal=journal)


def build_fork(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop that makes the calls of the source, and others."""
    script = (["work_pure"], ["work_effect", "agent", "grind_idempotent"], ["seal_effect", "agent"], ["work_effect"])
    model = ScriptedModel(folder, script)
    return AgentLoop(ToolCallingDriver(inference=model), make_tools_with_agent(folder), journal=journal)


def build_old(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return the loop of an execution that is deleted later: it calls an agent."""
    helper = AgentLoop(ToolCallingDriver(inference=ScriptedModel(folder, ())))
    tools = [helper.as_tool("agent", "Does nothing.")]
    return AgentLoop(ToolCallingDriver(inference=ScriptedModel(folder, (["agent"],))), tools, journal=journal)


def make_tools_with_agent(folder: TrialFolder) -> list[Tool]:
    """Return the tools of all kinds of effects, and an agent."""
    inner = ScriptedModel(folder, (["work_effect", "work_pure"], ["work_idempotent"]))
    helper = AgentLoop(ToolCallingDriver(inference=inner), make_all_tools(folder))
    return [*make_all_tools(folder), helper.as_tool("agent", "Does a part of the work.")]


def build_with_messages(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop that gets a message after some of its steps."""
    loop = with_kinds(["effect", "pure", "idempotent"])(folder, journal)
    inbox = loop.inbox(RUN)

    def send(event: Event) -> None:
        if event.step_number in {1, 2, 5}:
            text = f"message {event.step_number} of {os.getpid()}"
            folder.note("sent", text)
            inbox.send(text)

    loop.on(AgentStepCompleted, send)
    return loop


def build_blocked(folder: TrialFolder, journal: CanJournal) -> AgentLoop:
    """Return a loop whose first call waits until a named pipe is opened and closed."""

    @tool(name="wait_effect")
    def wait(number: int, context: ToolContext) -> str:
        """Wait in the middle of an effect."""
        folder.add_effect(context.idempotency_key, "wait_effect", "effect")
        (folder.folder / "gate").read_bytes()
        return f"did {number}"

    model = ScriptedModel(folder, (["wait_effect"], ["work_effect"]))
    return AgentLoop(ToolCallingDriver(inference=model), [wait, *make_all_tools(folder)], journal=journal)


WORKLOADS: Mapping[str, Workload] = {
    "pure": Workload(with_kinds(["pure"])),
    "idempotent": Workload(with_kinds(["idempotent"])),
    "effect": Workload(with_kinds(["effect"])),
    "mixed": Workload(with_kinds(EFFECTS)),
    "reconciled": Workload(with_kinds(["effect_reconciled"])),
    "suspend": Workload(with_kinds(["effect", "idempotent"], in_doubt=InDoubt.SUSPEND)),
    "fail": Workload(with_kinds(["effect"], in_doubt=InDoubt.FAIL), ("completed", "failed")),
    "agent": Workload(build_with_agent),
    "approval": Workload(build_with_approval),
    "agent approval": Workload(build_with_agent_approval),
    "agent suspend": Workload(build_with_agent_suspending),
    "agent approval suspend": Workload(build_with_agent_asking),
    "retries": Workload(build_with_retries),
    "messages": Workload(build_with_messages),
    "pools": Workload(build_with_pools),
    "fork": Workload(build_fork, source=build_source),
    "program": Workload(build_with_programs),
    "program approval": Workload(build_with_approved_programs),
    "program approval suspend": Workload(build_with_asking_programs),
    "deletions": Workload(build_with_agent, deletes=True),
}
