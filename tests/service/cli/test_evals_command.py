"""`agentloop evals`: suites are run, compared, gated and reported; cases come from others' data and go back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from agentloop.evals import Cases, EvalResult

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine

_SUITE = '''
import json
from agentloop import AgentLoop, FunctionInference, ToolCall, tool
from agentloop.evals import Case, CallLike, EvalSuite, ExpectedCalls, Simulated
from agentloop.policies import Price, PriceTable

ASKED = []

@tool
def refund(order: int, cents: int) -> str:
    """Refund an order."""
    raise AssertionError("an effect ran in an eval")

def agent(errs):
    def make(trial):
        def answer(request):
            ASKED.append(trial.case.name)
            if any(message.exchanges for message in request.messages):
                return "done"
            order = int(trial.case.name)
            cents = order * 100 + (50 if order % errs == 0 else 0)
            return ToolCall("1", "refund", json.dumps({"order": order, "cents": cents}))
        return AgentLoop.for_model(FunctionInference(answer), tools=[refund])
    return make

print("what a module prints does not mix with a report")
cases = [
    Case(
        name=str(order),
        input=f"Refund order {order}.",
        tags=["even" if order % 2 == 0 else "odd"],
        expected={"calls": [{"name": "refund", "arguments": {"order": order, "cents": order * 100}}]},
    )
    for order in range(1, 41)
]
PRICES = PriceTable({"function": Price(input=1_000, output=0)})

def suite(candidates=("main", "short")):
    makers = {"main": agent(1_000), "short": agent(2)}
    return EvalSuite(
        "refunds",
        cases,
        {name: makers[name] for name in candidates},
        [ExpectedCalls()],
        worlds=[Simulated({"refund": lambda call: "refunded"})],
        repeats=2,
        prices=PRICES,
    )

def main():
    return suite(["main"])

def short():
    return suite(["short"])

number = 3
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a suite whose candidate `short` errs on every even order."""
    (tmp_path / "suite.py").write_text(_SUITE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_suite_is_run_and_reported(command_line: CommandLine, folder: Path) -> None:
    """The tables name the candidates, the verdict and the cost; the journal has the trials; what a module prints goes to stderr."""
    result = command_line("evals", "run", "suite.py")
    assert result.code == 0, result.err
    assert "refunds: 40 cases, 160 trials, $" in result.out
    assert "pass@1" in result.out
    assert "worse" in result.out
    assert "what a module prints" in result.err
    assert (folder / "evals.db").exists()
    listed = json.loads(command_line("runs", "list", "--journal", "evals.db", "--limit", "500", "--json").out)
    assert len(listed) == 160


def test_an_eval_goes_on_and_pays_nothing_twice(command_line: CommandLine, folder: Path) -> None:
    """The second run asks no model: all of its trials are recorded."""
    command_line("evals", "run", "suite.py", "--result", "first.json")
    (folder / "suite.py").write_text(
        _SUITE.replace("ASKED.append(trial.case.name)", "raise AssertionError('asked again')"), encoding="utf-8"
    )
    result = command_line("evals", "run", "suite.py", "--result", "second.json")
    assert result.code == 0, result.err
    first, second = (EvalResult.from_json((folder / name).read_bytes()) for name in ("first.json", "second.json"))
    assert [trial.passed for trial in first.trials] == [trial.passed for trial in second.trials]


def test_a_gate_refuses_what_is_certainly_worse(command_line: CommandLine, folder: Path) -> None:
    """Against the result of main, the other candidate fails: exit code 1, a page, JUnit XML and the finding."""
    assert command_line("evals", "run", "suite.py:main", "--result", "main.json").code == 0
    gate = ["--baseline", "main.json", "--fail-if", "pass@1 < -5 points or cost > +10 %"]
    result = command_line(
        "evals", "run", "suite.py:short", *gate, "--html", "out/report.html", "--junit", "out/junit.xml"
    )
    assert result.code == 1
    assert "The gate fails" in result.out
    assert "against main (baseline)" in result.out
    page = (folder / "out/report.html").read_text(encoding="utf-8")
    assert "They part in <b>step 1</b>, at <code>calls[0].arguments.cents</code>" in page
    suites = ET.parse(folder / "out/junit.xml").getroot()
    assert {suite.get("name"): suite.get("failures") for suite in suites} == {"refunds: short": "20", "gate": "1"}
    assert command_line("evals", "run", "suite.py:main", *gate).code == 0


def test_an_open_gate_passes_unless_it_is_strict(command_line: CommandLine, folder: Path) -> None:
    """Few cases decide nothing, and the report says so; --strict refuses that."""
    few = ["evals", "run", "suite.py:main", "--case", "1", "--case", "3", "--fail-if", "pass@1 < 0.9"]
    result = command_line(*few)
    assert result.code == 0
    assert "there are not enough repeats to decide" in result.out
    assert command_line(*few, "--strict").code == 1


def test_results_are_compared_again(command_line: CommandLine, folder: Path) -> None:
    """Parts of one eval are merged; the JSON has their differences."""
    for name in ("main", "short"):
        assert command_line("evals", "run", f"suite.py:{name}", "--result", f"{name}.json").code == 0
    result = command_line("evals", "compare", "main.json", "short.json", "--json", "--journal", "evals.db")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["candidates"] == ["main", "short"]
    assert report["differences"][0]["verdict"] == "worse"
    assert report["differences"][0]["value"] == -0.5


def test_parts_of_a_suite_are_chosen(command_line: CommandLine, folder: Path) -> None:
    """Cases by name and tag, candidates, repeats and a budget are options."""
    result = command_line(
        "evals", "run", "suite.py", "--tag", "odd", "--candidate", "short", "--repeats", "1", "--json"
    )
    report = json.loads(result.out)
    assert (report["trials"], report["candidates"]) == (20, ["short"])
    result = command_line("evals", "run", "suite.py", "--seed", "9", "--budget", "0.05")
    assert "The eval is incomplete" in result.out
    assert "the budget of 0.05 USD is used up" in result.out


def test_an_eval_stops_when_it_is_sure(command_line: CommandLine, folder: Path) -> None:
    """A candidate that fails every second case is found to be worse before all trials have run."""
    result = command_line("evals", "run", "suite.py", "--stop-when-sure", "--repeats", "20", "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["trials"] < 100
    assert "short is worse than main" in report["notes"][0]
    assert "right at every look" in report["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["run", "suite.py:main", "--stop-when-sure"], "compares two candidates, and 'refunds' has 1"),
        (["run", "suite.py", "--fail-if", "pass^3 <"], "--fail-if: the gate cannot be read at the end"),
        (["run", "suite.py", "--case", "99"], "there is no case '99'"),
        (["run", "suite.py", "--tag", "prime"], "no case of 'refunds' has these tags"),
        (["run", "suite.py", "--candidate", "shor"], "has no candidate 'shor', did you mean 'short'?"),
        (["run", "suite.py", "--baseline", "mai"], "has no candidate 'mai', did you mean 'main'?"),
        (["run", "suite.py", "--baseline", "absent.json"], "absent.json cannot be read: No such file"),
        (["run", "suite.py:suit"], "there is no 'suit'"),
        (["run", "suite.py:number"], "is of type int, not an EvalSuite"),
        (["run", "suite.py:main", "--fail-if", "tone < 1"], "no trial of 'main' has a number 'tone'"),
        (["run", "absent.py"], "there is no file absent.py"),
        (["compare", "suite.py"], "suite.py is not the result of an eval"),
    ],
)
def test_mistakes_are_told(command_line: CommandLine, folder: Path, arguments: list[str], problem: str) -> None:
    """A mistake ends the command with 2, and says what to change."""
    result = command_line("evals", *arguments)
    assert result.code == 2
    assert problem in " ".join(result.err.split())


def test_cases_are_imported_and_exported(command_line: CommandLine, folder: Path) -> None:
    """A table becomes a file of cases, and that a dataset of pydantic-evals; no file is replaced."""
    (folder / "table.csv").write_text("q,a\nHow big?,Very\n")
    imported = ["evals", "import", "table.csv", "--input", "q", "--output", "a", "-o", "cases.jsonl"]
    result = command_line(*imported)
    assert (result.code, result.err.strip()) == (0, "1 case")
    (case,) = Cases.from_jsonl("cases.jsonl")
    assert (case.input, case.expected["answer"]) == ("How big?", "Very")
    assert command_line("evals", "export", "cases.jsonl", "set.yaml").code == 0
    assert "expected_output: Very" in (folder / "set.yaml").read_text()
    assert "exists already" in command_line(*imported).err
    assert "exists already" in command_line("evals", "export", "cases.jsonl", "set.yaml").err


def test_cases_are_made_of_a_journal(command_line: CommandLine, folder: Path) -> None:
    """Executions become cases, chosen by their status; trials of evals are none."""
    assert command_line("evals", "run", "suite.py", "--case", "1").code == 0
    result = command_line("evals", "import", "--journal", "evals.db")
    assert result.code == 2
    assert "nothing to make cases of" in result.err
    assert "name a FILE, or a journal" in command_line("evals", "import").err
    assert "about executions" in command_line("evals", "import", "x.csv", "--limit", "3").err
    assert "about a FILE" in command_line("evals", "import", "--journal", "evals.db", "--input", "q").err


_WAITING = '''
from agentloop import AgentLoop, RequireApproval, ScriptedInference, SqliteJournal, ToolCall, tool

@tool
def refund(order: int, cents: int) -> str:
    """Refund an order."""
    return "refunded"

@tool
def close(order: int) -> str:
    """Close an order."""
    return "closed"

def agent(tools, **parts):
    model = ScriptedInference(ToolCall("1", "refund", '{"order": 7, "cents": 700}'), "done")
    return AgentLoop.for_model(model, tools=tools, interceptors=[RequireApproval("refund")], name="desk", **parts)

loop = agent([refund])
without = agent([close])
changed = loop.replace(system_prompt="Be brief.")

def work():
    agent([refund], journal=SqliteJournal("runs.db")).execute_sync("Refund order 7.", execution_id="waits")
'''


def test_an_upgrade_is_checked_before_it_is_deployed(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal code goes on; another prompt diverges; without its tool, an execution that waits cannot go on."""
    (tmp_path / "desk.py").write_text(_WAITING, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", "import desk; desk.work()"], check=True)
    equal = command_line("evals", "upgrade", "desk.py:loop", "--journal", "runs.db")
    assert (equal.code, equal.out) == (
        0,
        "1 unfinished execution: 1 continues equal, 0 diverges, 0 cannot continue\n",
    ), equal.err
    changed = command_line("evals", "upgrade", "desk.py:changed", "--journal", "runs.db", "--json")
    assert changed.code == 1
    (check,) = json.loads(changed.out)
    assert (check["execution"], check["outlook"], check["step"]) == ("waits", "diverges", 0)
    gone = command_line("evals", "upgrade", "desk.py:without", "--journal", "runs.db")
    assert gone.code == 1
    assert "the new code has no such tool" in " ".join(gone.out.split())
    assert command_line("evals", "upgrade", "desk.py:without", "--journal", "runs.db", "--agent", "x").code == 0
