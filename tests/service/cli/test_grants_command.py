"""Grants on the command line: given with `--grant` or at the question, used by `run` and `chat`, listed and revoked by `grants`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from agentloop.service.cli.grants import read_grant
from agentloop.values import Grant
from agentloop.values.decisions import Approve, Deny, approve
from agentloop.values.labels import CLEAN, ArgumentOrigin, foreign
from tests.service.cli.test_terminal_approver import Asked, waiting

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine, ModelServer

AGENT = '''
import sys
from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import open_journal
from agentloop.interception import RequireApproval
from agentloop.policies import AskUnlessGranted

@tool
def pay(amount: float) -> str:
    """Pay."""
    return f"paid {amount}"

def create(journal=None):
    guard = AskUnlessGranted(RequireApproval("pay"))
    model = ScriptedInference(ToolCall("1", "pay", '{"amount": 20}'), "Paid.")
    return AgentLoop.for_model(model, tools=[pay], interceptors=[guard], journal=journal)

loop = create()
if __name__ == "__main__":
    create(open_journal(sys.argv[1])).execute_sync("Pay.", execution_id="one")
'''


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """The file of an agent."""
    path = tmp_path / "paying.py"
    path.write_text(AGENT)
    return path


def test_a_grant_of_the_command_line_is_used_listed_and_revoked(
    command_line: CommandLine, server: ModelServer, agent: Path, tmp_path: Path
) -> None:
    """A call waits; its approval comes with a grant; `run` and `chat` use it; `runs show` names it; a revoked one is used no more."""
    tools, journal = tmp_path / "tools.py", str(tmp_path / "runs.db")
    tools.write_text(AGENT.split("def create", maxsplit=1)[0])
    options = ["--model", "ollama:m", "--base-url", server.base_url, "--tools", str(tools), "--journal", journal]
    options += ["--approve", "ask"]
    server.calls(("pay", {"amount": 20}))
    waits = command_line("run", "Pay.", *options)
    assert waits.code == 3, waits
    execution = json.loads(command_line("runs", "list", "--journal", journal, "--json").out)[0]["execution_id"]
    resume = ["runs", "resume", execution, f"{agent}:loop", "--journal", journal, "--as", "ada"]
    wrong = command_line(*resume, "--grant", "1.1=amount !! 50")
    assert (wrong.code, "amount !! 50" in wrong.err) == (2, True)
    given = command_line(*resume, "--grant", "1.1=amount <= 50; 3 uses; total amount <= 70")
    assert given.code == 0, given.err
    # The server repeats its last answer.
    server.says("Paid.")
    used = command_line("run", "Pay.", *options)
    assert (used.code, used.out) == (0, "Paid.\n"), used
    server.calls(("pay", {"amount": 20}))
    server.says("Paid again.")
    used = command_line("chat", *options, stdin="What?\nPay.\n")
    assert (used.code, "Paid again." in used.out) == (0, True), used
    table = command_line("grants", "--journal", journal)
    assert table.code == 0, table.err
    assert "amount <= 50, 3 uses, in all amount <= 70" in " ".join(table.out.split())
    (state,) = json.loads(command_line("grants", "--journal", journal, "--json").out)
    assert (state["by"], state["used"], state["remaining_uses"], state["status"]) == ("ada", 2, 1, "active")
    assert float(state["remaining_total"]) == 30
    shown = command_line("runs", "show", state["last_key"].rsplit("/", 2)[0], "--journal", journal)
    assert f"by {state['id']}" in shown.out
    first = command_line("runs", "show", execution, "--journal", journal)
    assert "approved, and from now on: amount <= 50" in " ".join(first.out.split())
    unknown = command_line("grants", "--journal", journal, "--revoke", "grant_0")
    assert (unknown.code, "there is no grant grant_0" in unknown.err) == (2, True)
    revoked = command_line("grants", "--journal", journal, "--revoke", state["id"], "--as", "eve", "--json")
    assert json.loads(revoked.out)[0]["revoked_by"] == "eve"
    assert command_line("grants", "--journal", journal).out == ""
    server.calls(("pay", {"amount": 20}))
    assert command_line("run", "What?", *options).code == 0
    assert command_line("run", "Pay.", *options).code == 3


def test_a_grant_is_added_before_a_call_waits(
    command_line: CommandLine, server: ModelServer, agent: Path, tmp_path: Path
) -> None:
    """`grants add` gives one for the tool of an agent; `run` of that agent uses it, and asks when it is used up."""
    journal = str(tmp_path / "runs.db")
    run = ["run", "Pay.", "--agent", f"{agent}:create", "--journal", journal]
    assert command_line(*run).code == 3
    added = command_line(
        "grants", "add", f"{agent}:create", "pay", "amount <= 50; 1 use", "--as", "boss", "--journal", journal
    )
    assert (added.code, "amount <= 50, 1 use" in added.err) == (0, True), added
    (state,) = json.loads(command_line("grants", "--journal", journal, "--json").out)
    assert (state["id"], state["by"], state["owner"], state["uses"]) == (added.out.strip(), "boss", "", 1)
    assert [command_line(*run).code for _ in range(2)] == [0, 3]
    others = command_line(
        "grants", "add", f"{agent}:create", "pay", "--owner", "acme/ada", "--json", "--journal", journal
    )
    assert json.loads(others.out)["owner"] == "acme/ada"
    assert command_line(*run).code == 3


def test_a_person_gives_a_grant_at_the_question() -> None:
    """`g` is offered for a call that takes a grant, and asks for the limits until they can be read; elsewhere it is no answer."""
    call = waiting({"amount": 20})
    asked = Asked(["g", "n"])
    asked(call)
    assert not any("(g)rant" in prompt for prompt in asked.prompts)
    asked = Asked(["g", "amount", "amount <= 50; 2 uses"])
    decision = asked(evolve(call, grantable=True))
    assert isinstance(decision, Approve)
    assert decision.grant == Grant(arguments=["amount <= 50"], uses=2)
    assert "(g)rant from now on" in asked.prompts[0]
    assert any("is not a limit" in screen for screen in asked.screens)


def test_a_person_endorses_the_values_of_a_planned_program() -> None:
    """`t` is offered where somebody else has written a value that a program passes on; elsewhere it is no answer."""
    call = waiting({"to": "Eve", "amount": 20})
    asked = Asked(["t", "n"])
    assert isinstance(asked(call), Deny)
    assert not any("(t)rust" in prompt for prompt in asked.prompts)
    origins = (ArgumentOrigin("to", foreign("a mail")), ArgumentOrigin("amount", CLEAN))
    asked = Asked(["t"])
    planned = evolve(call, label=CLEAN, origins=origins)
    assert asked(planned) == approve(planned.digest, endorse="to")
    assert "(t)rust its values in this run" in asked.prompts[0]
    assert evolve(planned, label=foreign("a mail")).endorsable == evolve(planned, label=None).endorsable == ()


def test_a_grant_is_read_as_a_person_writes_it() -> None:
    """Each part is optional, and a date without a time zone is one of the place."""
    assert read_grant("") == Grant()
    assert read_grant('1 use; to in ["ada", "ben"]') == Grant(arguments=['to in ["ada","ben"]'], uses=1)
    until = read_grant("until 2026-12-24").until
    assert until is not None
    assert until.tzinfo is not None
