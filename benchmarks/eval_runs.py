"""What an eval of recorded runs takes, beside a loop by hand over the same forks: time and memory, as ratios.

`python benchmarks/eval_runs.py [RUNS]` forks recorded executions 10,000 times by default, each way in a process of its own, several
times in turn. By hand: fork, recover, look at the calls. The eval does that in worlds, with seeds, costs, scores and a result.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time

from agentloop import AgentLoop, FunctionInference, ToolCall, tool
from agentloop.durable import MemoryJournal, fork
from agentloop.evals import CallLike, Cases, EvalSuite, ExpectedCalls, Real, Recorded, Simulated
from agentloop.values import AgentState, InferenceRequest

EXECUTIONS = 100
ROUNDS = 3


@tool(effect="pure")
def invoice(number: int) -> dict[str, int]:
    """Read an invoice."""
    return {"number": number, "cents": number * 100}


@tool
def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def answer(request: InferenceRequest) -> ToolCall | str:
    seen = [each.execution for message in request.messages for each in message.exchanges]
    number = int(request.messages[0].text.split()[-1])
    if not seen:
        return ToolCall("1", "invoice", json.dumps({"number": number}))
    return ToolCall("2", "pay", json.dumps({"cents": number * 100})) if len(seen) == 1 else "done"


def loop(journal: MemoryJournal | None = None) -> AgentLoop:
    return AgentLoop.for_model(FunctionInference(answer), tools=[invoice, pay], journal=journal)


def is_good(state: AgentState) -> bool:
    made = [each for step in state.steps for each in step.executions if each.name == "pay"]
    return len(made) == 1 and not made[0].has_error


async def recorded() -> MemoryJournal:
    journal = MemoryJournal()
    for number in range(EXECUTIONS):
        await loop(journal).execute(f"Pay invoice {number}", execution_id=f"run-{number}")
    return journal


async def by_hand(journal: MemoryJournal, runs: int) -> int:
    passed = 0
    for repeat in range(runs // EXECUTIONS):
        for number in range(EXECUTIONS):
            # With an id: to look for a free one takes longer with each fork of the same execution.
            forked = await fork(
                journal, f"run-{number}", at_step=1, effects="simulate", fork_id=f"run-{number}/try-{repeat}"
            )
            passed += is_good(await loop(journal).recover(forked))
    return passed


async def by_eval(journal: MemoryJournal, runs: int) -> int:
    cases = Cases(
        case
        for case in await Cases.from_journal(journal, each_decision=True)
        if case.origin and case.origin.at_step == 1
    )
    suite = EvalSuite(
        "runs",
        cases,
        {"agent": lambda _: loop()},
        [ExpectedCalls(must=[CallLike("pay")], counts={"pay": 1})],
        [Recorded(), Simulated(pay="paid"), Real()],
        repeats=runs // EXECUTIONS,
        concurrency=1,
    )
    return sum(trial.passed for trial in (await suite.run(journal=journal)).trials)


async def measured(way: str, runs: int) -> tuple[float, float]:
    """Return the CPU seconds of the runs, and the MiB by which the process has grown."""
    journal = await recorded()
    await (by_hand if way == "hand" else by_eval)(journal, EXECUTIONS)  # everything is loaded
    journal = await recorded()
    before, began = _peak(), time.process_time()
    passed = await (by_hand if way == "hand" else by_eval)(journal, runs)
    took = time.process_time() - began
    assert passed == runs, f"{passed} of {runs} passed"
    return took, _peak() - before


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(runs: int) -> None:
    results: dict[str, list[tuple[float, float]]] = {"hand": [], "eval": []}
    for _ in range(ROUNDS):
        for way, found in results.items():
            command = [sys.executable, __file__, way, str(runs)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found.append(tuple(json.loads(out)))
    print(f"{runs:,} forks of {EXECUTIONS} recorded executions, one at a time; the median of {ROUNDS} processes each")
    seconds, grown = (
        {way: statistics.median(each[index] for each in found) for way, found in results.items()} for index in (0, 1)
    )
    for way in results:
        print(f"{way:4}  {seconds[way]:7.2f} s  {seconds[way] / runs * 1e3:6.2f} ms each  {grown[way]:7.0f} MiB")
    print(f"ratio {seconds['eval'] / seconds['hand']:6.2f}  {grown['eval'] / grown['hand']:22.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(asyncio.run(measured(sys.argv[1], int(sys.argv[2])))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
