"""A batch of calls that is written down, cut short, and executed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.journal.journal_log import JournalLog
from agentloop.testing.chronicle import Chronicle
from agentloop.testing.clocks import ManualClock
from agentloop.testing.executor_bench import ExecutorBench, begun_state
from agentloop.testing.laws import require
from agentloop.testing.toy_tools import Ledger, toys
from agentloop.values.in_doubt import InDoubt
from agentloop.values.journal_record import RecordKind
from agentloop.values.json_text import parse_json
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolStatus
from agentloop.values.tool_executions import ToolExecutions

_RUN = "run"


async def require_effects_accounted(
    make: Callable[[], CanExecuteToolCalls], calls: Sequence[ToolCall], share: float
) -> None:
    """Execute a batch, cut what is written down of it short after this share of its records, and execute it again.

    Raises:
        LawBroken: when what was recorded is done again, or something ran that was not (law 14).
    """
    chronicle = Chronicle()
    first = await _executed(make, calls, chronicle)
    begun = _keys_of(chronicle, RecordKind.CALL_INTENT, "intent")
    ran = {one.key for one in first.answer.executions if one.succeeded}
    require(14, ran <= begun, f"these ran, and nothing was written down before: {sorted(ran - begun)}")
    left = await chronicle.crashed_after(1 + round(share * (len(chronicle.order) - 1)))
    begun, ended = (
        _keys_of(left, RecordKind.CALL_INTENT, "intent"),
        _keys_of(left, RecordKind.CALL_OUTCOME, "execution"),
    )
    again = await _executed(make, calls, left)
    repeated = {arguments["value"] for _, arguments in again.ledger.used}
    for place, (before, after) in enumerate(zip(first.answer.executions, again.answer.executions, strict=True)):
        if after.key in begun:
            require(14, place not in repeated, f"the call {after.key} had begun, and was run again")
        if after.key in ended:
            require(14, after.value == before.value, f"the call {after.key} had ended with {before.value!r}")
        elif after.key in begun:
            require(14, after.status is ToolStatus.IN_DOUBT, f"the call {after.key} is in doubt, not {after.status}")
        else:
            require(14, place in repeated, f"the call {after.key} had not begun, and was not run")


@frozen
class _Executed:
    """What came of a batch under a journal.

    Attributes:
        answer: the executor's answer.
        ledger: which toys ran.
    """

    answer: ToolExecutions
    ledger: Ledger


async def _executed(
    make: Callable[[], CanExecuteToolCalls], calls: Sequence[ToolCall], chronicle: Chronicle
) -> _Executed:
    """Execute a batch as the first step of an execution that is written down, or go on with it."""
    clock, ledger, state = ManualClock(), Ledger(), begun_state("agent", _RUN)
    if await chronicle.head(_RUN) is None:
        log = JournalLog(chronicle, InDoubt.TELL, clock)
    else:
        log = await JournalLog.reopened(chronicle, _RUN, InDoubt.TELL, clock)
    await log.begin(state)
    try:
        answer = await ExecutorBench(toys(ledger), make(), clock=clock, log=log).run(*calls, state=state)
    except Exception as error:
        carried = getattr(error, "tool_executions", None)
        if not isinstance(carried, ToolExecutions):
            raise
        answer = carried
    finally:
        await log.aclose()
    return _Executed(answer, ledger)


def _keys_of(chronicle: Chronicle, kind: RecordKind, field: str) -> set[str]:
    """Return the keys of the calls that records of a kind are about."""
    return {parse_json(record.body)[field]["key"] for record in chronicle.order if record.kind is kind}
