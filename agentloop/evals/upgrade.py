"""The check before a deploy: whether executions that wait or run go on in the same way with the new code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from attrs import field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.tools import Tools
from agentloop.durable.chain import verify_records
from agentloop.durable.fold import FoldedExecution, fold_records
from agentloop.durable.replaying.divergence import Divergence
from agentloop.durable.replaying.replays import replay
from agentloop.durable.trees import root_of
from agentloop.errors.kinds import AgentLoopError
from agentloop.evals.cases import TRIALS
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.in_charge import find_loop_in_charge
from agentloop.tools.validation import validator_of
from agentloop.values.records import ExecutionHead
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ToolCall, parse_arguments
from agentloop.values.value import Value

LoopFor: TypeAlias = "AgentLoop[Any] | Callable[[ExecutionHead], AgentLoop[Any] | None]"
"""The new code for all executions, or a function that returns the loop for each; None for one that is none of its business."""

_UNFINISHED = (ExecutionStatus.IN_PROGRESS, ExecutionStatus.SUSPENDED)


class Outlook(StrEnum):
    """What becomes of an execution with the new code.

    `EQUAL`: it goes on, and all that is recorded would be the same. `DIVERGES`: it goes on, and the new code would have done something
    else than what is recorded. `CANNOT`: it cannot go on.
    """

    EQUAL = "continues equal"
    DIVERGES = "diverges"
    CANNOT = "cannot continue"


@frozen(eq=False, repr=False, kw_only=True)
class UpgradeCheck(Value):
    """What becomes of one execution with the new code.

    Attributes:
        execution_id: the id of the execution.
        status: its status: `in_progress` or `suspended`.
        outlook: what becomes of it.
        step: the 1-based number of the step that differs; 0 for the beginning, and where nothing differs.
        place: what differs, such as `request.tools[1].description`; empty where nothing does.
        why: why it differs or cannot go on, in words; else empty, or what could not be compared.
        divergence: the difference; None without one.
    """

    execution_id: str
    status: ExecutionStatus = field(converter=ExecutionStatus)
    outlook: Outlook = field(converter=Outlook)
    step: int = 0
    place: str = ""
    why: str = ""
    divergence: Divergence | None = None

    def __str__(self) -> str:
        return f"{self.execution_id} ({self.status.value}): {self.outlook.value}{f': {self.why}' if self.why else ''}"


@frozen(eq=False, repr=False, kw_only=True)
class UpgradeReport(Value):
    """What becomes of the unfinished executions of a journal with the new code.

    Attributes:
        checks: what becomes of each, oldest first.
    """

    checks: tuple[UpgradeCheck, ...] = field(converter=tuple[UpgradeCheck, ...])

    @property
    def is_safe(self) -> bool:
        """Whether all go on as recorded."""
        return all(check.outlook is Outlook.EQUAL for check in self.checks)

    def of(self, outlook: Outlook) -> tuple[UpgradeCheck, ...]:
        """Return the executions with this outlook."""
        return tuple([check for check in self.checks if check.outlook is outlook])

    def __str__(self) -> str:
        counts = ", ".join(f"{len(self.of(outlook))} {outlook.value}" for outlook in Outlook)
        shown = [*self.of(Outlook.CANNOT), *self.of(Outlook.DIVERGES)]
        return "\n".join([counts, *[f"  {check}" for check in shown]])


async def check_upgrade(
    loop: LoopFor,
    journal: CanJournal,
    *,
    where: Callable[[ExecutionHead], bool] = lambda _: True,
    dependencies: Any = None,
) -> UpgradeReport:
    """Replay each waiting and running execution against new code, without side effects, and say what becomes of it.

    Sub-agents are checked with the executions whose calls they serve; trials of evals are left out.

    Args:
        loop: the new code.
        journal: where they are recorded; it is only read.
        where: says of the summary of an execution whether to check it; by default all.
        dependencies: as for `AgentLoop.execute`.

    Raises:
        JournalError: the journal cannot be read. One damaged execution is a result of the check.
    """
    heads = {head.execution_id: head for head in await journal.list(status=_UNFINISHED)}
    every = {head.execution_id for head in await journal.list()}
    checks = []
    for execution_id, head in reversed(heads.items()):
        if (
            execution_id.startswith(TRIALS)
            or root_of(execution_id, every.__contains__) != execution_id
            or not where(head)
        ):
            continue
        made = loop if isinstance(loop, AgentLoop) else loop(head)
        if made is not None:
            checks.append(await _check(made, journal, head, dependencies))
    return UpgradeReport(checks=checks)


async def _check(loop: AgentLoop[Any], journal: CanJournal, head: ExecutionHead, dependencies: Any) -> UpgradeCheck:
    try:
        records = verify_records(await journal.read(head.execution_id), head.execution_id)
        obstacle = next(iter(_obstacles(loop, fold_records(records, head.execution_id), dependencies)), "")
        if obstacle:
            return _checked(head, Outlook.CANNOT, why=obstacle)
        found = await replay(journal, head.execution_id, loop, dependencies=dependencies)
    except AgentLoopError as error:
        return _checked(head, Outlook.CANNOT, why=f"{type(error).__name__}: {error}")
    divergence = found.divergence
    if divergence is None:
        return _checked(head, Outlook.EQUAL, why=found.end_reason)
    why = "; ".join([str(divergence), *[f"the loop has changed: {change}" for change in divergence.changes]])
    return _checked(
        head, Outlook.DIVERGES, step=divergence.step, place=divergence.place, why=why, divergence=divergence
    )


def _checked(head: ExecutionHead, outlook: Outlook, **parts: Any) -> UpgradeCheck:
    return UpgradeCheck(execution_id=head.execution_id, status=head.status, outlook=outlook, **parts)


def _obstacles(loop: AgentLoop[Any], recorded: FoldedExecution, dependencies: Any) -> Sequence[str]:
    """Return why an execution cannot go on with a loop: its open calls have no tool that takes them, or dependencies are missing."""
    state = recorded.state
    if state is None:
        return ["nothing is recorded of it but its summary"]
    waiting = [("waits", call.call) for call in state.pending]
    begun = [call.intent.call for call in recorded.calls.values() if call.execution is None and call.pending is None]
    open_calls = [*waiting, *[("was interrupted", call) for call in begun]]
    tools = (find_loop_in_charge(loop, state) or loop).tools
    problems = [problem for why, call in open_calls if (problem := _problem_of(tools, why, call))]
    try:
        loop._check_dependencies(dependencies)  # noqa: SLF001  # as before a recovery
    except AgentLoopError as error:
        problems.append(f"{type(error).__name__}: {error}")
    return problems


def _problem_of(tools: Tools, why: str, call: ToolCall) -> str:
    tool = tools.by_name.get(call.name)
    if tool is None:
        # A group may have the tool once it has started, such as one of a server.
        return "" if tools.groups else f"a call of {call.name!r} {why}, and the new code has no such tool"
    problems = validator_of(tool.spec).problems(dict(parse_arguments(call.arguments_json)))
    if problems:
        path, problem = problems[0]
        return f"a call of {call.name!r} {why}, and the new tool does not take its arguments: {path}: {problem}"
    return ""
