"""The examples of products for many users: whose requests they answer, and what they keep apart."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

from tests.loaded import loaded_agentloop
from tests.service.cli.conftest import ModelServer, server
from tests.service.server.front import serving

__all__ = ["server"]

FOLDER = Path(__file__).parents[2] / "examples"


def employee(name: str) -> dict[str, str]:
    """Return the header with the token of an employee."""
    return {"Authorization": f"Bearer token-of-{name}"}


async def test_expenses_are_booked_for_the_employee_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large sum waits for a yes, which counts once; nobody sees another one's request, and each company has its own book."""
    monkeypatch.chdir(tmp_path)
    program = runpy.run_path(str(FOLDER / "expenses.py"))
    async with serving(program["loop"], authenticate=program["TOKENS"].get) as client:
        for name in ("ada", "bob"):
            headers = employee(name)
            started = await client.post("/executions", json={"input": "72 euros, dinner."}, headers=headers)
            path = started.headers["location"]
            waiting = (await client.get(path, params={"wait": 20}, headers=headers)).json()
            assert (waiting["status"], waiting["agent_name"]) == ("suspended", "expenses")
            (call,) = waiting["pending"]
            assert call["name"] == "book_expense"
            other = employee("bob" if name == "ada" else "ada")
            assert (await client.get(path, headers=other)).status_code == 404
            yes = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
            assert (await client.post(f"{path}/decisions", json=yes, headers=other)).status_code == 404
            answers = [await client.post(f"{path}/decisions", json=yes, headers=headers) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [200, 409]
            ended = (await client.get(path, params={"wait": 20}, headers=headers)).json()
            assert (ended["status"], ended["text"]) == ("completed", "It is booked.")
    await program["loop"].journal.aclose()
    assert program["BOOKS"] == {"acme": ["ada: meals, 72.00 euros"], "bolt": ["bob: meals, 72.00 euros"]}


@pytest.mark.parametrize(("answer", "is_live"), [("all", True), ("none", False)])
def test_the_command_line_of_a_team_asks_before_a_deployment(
    answer: str, *, is_live: bool, server: ModelServer, tmp_path: Path
) -> None:
    """The script runs the agent of its file from any folder; a person, or the option for scripts, decides about the deployment."""
    server.calls(("deploy", {"service": "shop"}))
    server.says("Done.")
    command = tmp_path / "agentloop"
    command.write_text(f'#!/bin/sh\nexec {" ".join(loaded_agentloop())} "$@"\n')
    command.chmod(0o755)
    options = ["--model", "ollama:m", "--base-url", server.base_url, "--approve", answer]
    done = subprocess.run(
        ["sh", str(FOLDER / "team_cli" / "ask.sh"), "Deploy the shop.", *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "Done.\n"), done.stderr
    (result,) = [message for message in server.requests[-1]["messages"] if message["role"] == "tool"]
    assert ("shop is live" in result["content"]) is is_live
    assert server.requests[0]["temperature"] == 0.1
