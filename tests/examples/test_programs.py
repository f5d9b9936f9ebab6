"""The programs in `examples` run, are short, and do what they promise."""

from __future__ import annotations

import asyncio
import json
import os
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from tests.limits import LONGEST
from tests.loaded import loaded_agentloop

FOLDER = Path(__file__).parents[2] / "examples"
NOTHING: Mapping[str, str] = {}
LONGER = {"agentdojo_table", "durable_demo", "mcp_conformance_client", "shop_demo"}
"""Programs that have tests of their own."""
EXPECTED = {
    "bot_of_users": '+00:00"}]\nYou help bob@acme. []\n',
    "coding_agent": "run_tests: succeeded: passed\nedit_file: blocked",
    "every_provider": "anthropic-messages   ANTHROPIC_API_KEY",
    "batch_under_one_sum": "99 of 500 tickets answered for $1.39",
    "hundred_agents": "100 answers in 2.1 minutes, at most 8 requests at once\n92 requests had to wait",
    "mcp_agent": "sky_weather: Lisbon has 21 degrees\nIt is 21 degrees in Lisbon.",
    "memory_over_turns": "You said that you are Ada. (5 messages)\n",
    "multimodal": "image/png of 75 bytes, image/png of 73 bytes",
    "remote_tools": "Together they weigh 18.6 kg.",
    "retrieval": "A lamp can be returned within 30 days. (returns)",
    "settings_tour": "'temperature': 0.2, 'max_completion_tokens': 500, 'seed': 7}\n{'city': 'Lisbon'}",
    "spans": "100, 400 and 900.",
    "structured_logs": r"""{\"user\":\"ada\",\"password\":\"***\"}""",
    "sub_agent": "research\n  price_of\n  price_of\nA lamp and a rug: 100 euros together.",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_program_prints_its_result(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each program runs to its end and prints what it is about."""
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert EXPECTED[name] in capsys.readouterr().out


def test_the_tests_of_an_agent_pass(tmp_path: Path) -> None:
    """Pytest runs them as a user would."""
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-c", os.devnull, "-p", "no:cacheprovider"]
    done = _run([*command, str(FOLDER / "agent_tests.py")])
    assert "6 passed" in done.stdout


def test_the_command_line_runs_to_its_end(tmp_path: Path) -> None:
    """The script answers, lists what is known of a model, and verifies its record."""
    (tmp_path / "agentloop").write_text(f'#!/bin/sh\nexec {shlex.join(loaded_agentloop())} "$@"\n')
    (tmp_path / "agentloop").chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    out = _run(["sh", str(FOLDER / "command_line.sh")], environment, cwd=tmp_path).stdout
    assert out.startswith("The payments service was down")
    assert 'restart_service(name="payments")' in out
    assert out.endswith("1 execution, 24 records: all intact\n")


def _run(
    command: Sequence[str], environment: Mapping[str, str] = NOTHING, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(FOLDER.parent), **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=cwd, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_folder_lists_its_programs_which_fit_on_a_screen() -> None:
    """Its README names every program, and none has 60 lines."""
    programs = [path for path in sorted(FOLDER.glob("*.[ps][yh]")) if path.stem not in LONGER]
    page = (FOLDER / "README.md").read_text()
    assert [path.name for path in programs if f"`{path.name}`" not in page] == []
    assert {path.name: count for path in programs if (count := len(path.read_text().splitlines())) >= 60} == {}


@asynccontextmanager
async def serve(app: Any) -> AsyncIterator[str]:
    """Serve an application on a free port, and yield its URL."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    # The socket listens before the server starts, so that no client is too early.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with asyncio.timeout(LONGEST), asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve([listening]))
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            server.should_exit = True


def read_events(text: str) -> list[tuple[str, Any]]:
    """Return the names and the data of server-sent events."""
    events = [dict(line.split(": ", 1) for line in event.splitlines()) for event in text.strip().split("\n\n")]
    return [(event["event"], json.loads(event["data"])) for event in events]


async def test_the_web_endpoint_streams_and_asks() -> None:
    """The text arrives in pieces, a call waits for the caller, and his approval leads to the answer."""
    app = runpy.run_path(str(FOLDER / "web_endpoint.py"))["app"]
    async with serve(app) as url, httpx.AsyncClient(base_url=url) as client:
        events = read_events((await client.post("/ask", json={"question": "Refund order 7"})).text)
        *texts, (name, waiting) = events
        assert "".join(text for _, text in texts).strip() == "I refund it."
        assert name == "approve"
        [(key, call)] = waiting["calls"].items()
        assert call["text"] == "refund\n  order = 7\n  amount = 20"
        other = await client.post(f"/decide/{waiting['id']}", json={key: [True, "0" * 64]})
        assert other.status_code == 409
        decision = {key: [True, call["digest"]]}
        answer = await client.post(f"/decide/{waiting['id']}", json=decision)
        assert answer.json() == {"answer": "It is done."}
        again = await client.post(f"/decide/{waiting['id']}", json=decision)
        assert again.status_code == 409


def test_a_run_survives_ctrl_c(tmp_path: Path) -> None:
    """The second start continues where Ctrl-C ended the first one; each letter is sent once."""
    command = [sys.executable, "-u", str(FOLDER / "survives_ctrl_c.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    with subprocess.Popen([*command, "0.5"], stdout=subprocess.PIPE, text=True, env=environment) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "sent to Ada\n"
        first.send_signal(signal.SIGINT)
        out, _ = first.communicate(timeout=LONGEST)
    assert "interrupted; start it again to continue" in out
    second = _run([*command, "0"])
    assert second.stdout.endswith("All have letters.\n")
    letters = (tmp_path / "letters.txt").read_text().splitlines()
    assert [line.split()[0] for line in letters] == ["Ada", "Bob", "Cleo"]


def test_a_payment_happens_once(tmp_path: Path) -> None:
    """The call that runs again returns the recorded result, and there is one payment."""
    program = _run([sys.executable, str(FOLDER / "pay_once.py"), str(tmp_path)])
    assert program.stdout.splitlines() == [
        "the call again: {'order': 7, 'paid': 500}",
        "payments: [(7, 500)]",
    ]


async def test_the_page_of_approvals_shows_calls_and_takes_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting call is on the page, escaped; approving it runs it, and a second decision is refused."""
    monkeypatch.chdir(tmp_path)
    program = runpy.run_path(str(FOLDER / "approvals_web.py"))
    await program["loop"].execute("Pay Ada", execution_id="payment")
    async with serve(program["app"]) as url, httpx.AsyncClient(base_url=url) as client:
        page = (await client.get("/")).text
        assert "pay\n  to = &quot;&lt;Ada&gt;&quot;\n  euros = 20</pre>" in page
        (digest,) = re.findall(r'name="digest" value="(\w+)"', page)
        (key,) = set(re.findall(r"name='([^']+)' value='yes'", page))
        other = await client.post("/payment", data={"digest": "0" * 64, key: "yes"})
        assert other.status_code == 409
        accepted = await client.post("/payment", data={"digest": digest, key: "yes"})
        assert accepted.status_code == 303
        assert (await client.get("/")).text.endswith("Nothing waits.")
        again = await client.post("/payment", data={"digest": digest, key: "yes"})
        assert again.status_code == 409
    assert (await program["loop"].recover("payment")).final_text == "Ada is paid."
    await program["journal"].aclose()
