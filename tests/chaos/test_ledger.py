"""The ledger of chaos runs, and the account that is made from it: both notice what they are there for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from attrs import evolve

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.durable import MemoryJournal
from tests.chaos.account import Evidence, gather_evidence, make_account
from tests.chaos.fleet import ROOT
from tests.chaos.ledger import AFTER, BEFORE, EFFECT, Ledger
from tests.chaos.work import Work

_WRITER = """
import sys
from pathlib import Path
from tests.chaos.ledger import EFFECT, Ledger
ledger = Ledger(Path(sys.argv[1]), sys.argv[2])
for number in range(200):
    ledger.write(EFFECT, f"{sys.argv[2]}/1/{number}")
"""


def start_writer(folder: Path, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _WRITER, str(folder), name], cwd=ROOT)


def test_processes_write_whole_lines_at_once(tmp_path: Path) -> None:
    """Lines of several processes are whole, and each is there once."""
    writers = [start_writer(tmp_path, name) for name in ("a", "b", "c")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    effects = Ledger(tmp_path).effects()
    assert Ledger(tmp_path).count == 600
    assert effects == {f"{name}/1/{number}": 1 for name in "abc" for number in range(200)}


def test_the_process_that_writes_a_line_of_the_plan_gets_its_signal(tmp_path: Path) -> None:
    """Of several processes exactly one is killed, by the line of the plan, and that line is the last one it wrote."""
    Ledger(tmp_path).plan({"150": "SIGKILL"})
    writers = {name: start_writer(tmp_path, name) for name in ("a", "b")}
    codes = {name: writer.wait() for name, writer in writers.items()}
    assert sorted(codes.values()) == [-signal.SIGKILL, 0]
    (killed,) = [name for name, code in codes.items() if code]
    (entry,) = Ledger(tmp_path).signals()
    assert entry["number"] == "150"
    assert entry["worker"] == killed
    assert [line.worker for line in Ledger(tmp_path).lines()[150:]].count(killed) == 0


def test_a_plan_counts_the_lines_of_one_execution(tmp_path: Path) -> None:
    """A line of a plan can be the n-th of an execution, whoever writes the others."""
    Ledger(tmp_path).plan({"a:3": "SIGKILL"})
    assert start_writer(tmp_path, "b").wait() == 0
    assert start_writer(tmp_path, "a").wait() == -signal.SIGKILL
    assert Ledger(tmp_path).count == 203


async def make_evidence(folder: Path) -> Evidence:
    """Return what a run of two calls leaves that nothing disturbed."""
    ledger, journal = Ledger(folder, "worker"), MemoryJournal()

    @tool
    def pay(number: int, context: ToolContext) -> str:
        """Pay."""
        for phase in (BEFORE, EFFECT, AFTER):
            ledger.write(phase, context.idempotency_key, tool="pay", effect="effect")
        return "paid"

    calls = [ToolCall(str(number), "pay", f'{{"number": {number}}}') for number in range(2)]
    model = ScriptedInference(calls, "done after 1 steps with 0 doubts")
    await AgentLoop.for_model(model, tools=[pay], journal=journal).execute("go", execution_id="run")
    return await gather_evidence(journal, ledger, [Work("run", (("pay", "pay"),))])


async def test_a_run_without_faults_has_a_clean_account(tmp_path: Path) -> None:
    """Where nothing went wrong, nothing is found."""
    account = make_account(await make_evidence(tmp_path))
    assert account.problems == []
    assert (account.executions, account.calls, account.once, account.in_doubt) == (1, 2, 2, 0)


async def test_an_effect_that_happened_twice_is_found(tmp_path: Path) -> None:
    """A second line of an effect is doubled, and so is a second beginning of its tool."""
    evidence = await make_evidence(tmp_path)
    evidence.ledger.write(BEFORE, "run/1/0", tool="pay")
    evidence.ledger.write(EFFECT, "run/1/0", tool="pay")
    assert len(make_account(evidence).doubled) == 2


async def test_a_lost_effect_is_found(tmp_path: Path) -> None:
    """A call that succeeded without an effect is lost, and so is an execution that is not recorded."""
    evidence = await make_evidence(tmp_path)
    (tmp_path / "ledger").write_bytes(b"")
    works = [*evidence.works, Work("other", (("pay",),))]
    assert len(make_account(evolve(evidence, works=works)).lost) == 3


async def test_an_effect_of_an_unknown_call_is_found(tmp_path: Path) -> None:
    """An effect that belongs to no call of a script has happened without a reason."""
    evidence = await make_evidence(tmp_path)
    evidence.ledger.write(EFFECT, "run/7/0", tool="pay")
    assert len(make_account(evidence).doubled) == 1


async def test_what_workers_report_is_compared_with_the_journal(tmp_path: Path) -> None:
    """Errors, broken grammars and other outcomes than the recorded ones are wrong."""
    evidence = await make_evidence(tmp_path)
    evidence.ledger.note("errors", "something broke")
    evidence.ledger.note("violations", "an event came twice")
    evidence.ledger.note("outcomes", '["failed", "run/1/0", "worker", "it broke"]')
    assert len(make_account(evidence).wrong) == 3
