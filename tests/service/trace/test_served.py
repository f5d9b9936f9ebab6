"""Tests of traces over HTTP: documents, live changes, forks, and the page, with the checks of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal, SqliteJournal
from agentloop.service.server import ServerLimits
from agentloop.service.server.executions import RecordedExecutions
from agentloop.service.trace import build_trace, page
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse
from agentloop.values.json import format_json, parse_json
from tests.loaded import loaded_python
from tests.service.server.front import DEADLINE, adder, all_events, bearer, payer, read_events, serving, settled, start
from tests.service.trace.merging import merge
from tests.service.trace.test_page import VIEWER, Scripts

NO_TOKEN = {"authorization": ""}


@pytest.fixture
def viewer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A small viewer in place of the built one."""
    file = tmp_path / "viewer.html"
    file.write_text(VIEWER)
    monkeypatch.setattr(page, "VIEWER", file)


@asynccontextmanager
async def finished_sum(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an execution that has ended, `ada:sum`."""
    async with serving(adder(MemoryJournal()), **options) as client:
        await start(client, id="sum")
        await settled(client, "ada:sum")
        yield client


# --- documents ----------------------------------------------------------------------------------------------------------


async def test_a_document_is_for_those_who_may_see_the_execution() -> None:
    """The trace of an execution needs a token with the scope to read, and is not there for other principals."""
    async with finished_sum() as client:
        found = await client.get("/executions/ada:sum/trace")
        assert found.status_code == 200
        assert found.headers["cache-control"] == "no-store"
        assert [call["name"] for call in found.json()["executions"][0]["calls"]] == ["add"]
        for path in (
            "/executions/ada:sum/trace",
            "/executions/ada:sum/trace/events",
            "/executions/ada:sum/trace/comparison?with=ada:sum",
        ):
            assert (await client.get(path, headers=bearer("bob"))).status_code == 404
            assert (await client.get(path, headers=NO_TOKEN)).status_code == 401
            assert (await client.get(path, headers={"host": "evil.example"})).status_code == 421
            assert (await client.get(path, headers={"origin": "https://evil.example"})).status_code == 403
        assert (await client.get("/executions/ada:none/trace")).status_code == 404


async def test_a_comparison_needs_both_executions() -> None:
    """Two executions of one principal are compared; one of another principal is not found."""
    async with finished_sum() as client:
        await start(client, id="other", input="Stop.")
        await settled(client, "ada:other")
        compared = (await client.get("/executions/ada:sum/trace/comparison", params={"with": "ada:other"})).json()
        assert (compared["trace"]["id"], compared["divergence"]["what"]) == ("ada:other", "input")
        unknown = await client.get("/executions/ada:sum/trace/comparison", params={"with": "bob:x"})
        assert unknown.status_code == 404


# --- live ---------------------------------------------------------------------------------------------------------------


async def test_patches_follow_a_run_until_its_end(tmp_path: Path) -> None:
    """What a page has got from the stream is the trace at every moment, with what agents do that serve calls."""
    entered, opened = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        entered.set()
        await opened.wait()
        return "waited"

    journal = SqliteJournal(tmp_path / "runs.db")
    helper = AgentLoop.for_model(ScriptedInference(ToolCall("1", "wait", "{}"), "It is quiet."), tools=[wait])
    model = ScriptedInference(ToolCall("1", "ask", '{"task": "Listen."}'), "Quiet.")
    loop = AgentLoop.for_model(model, tools=[helper.as_tool("ask", "Ask.")], journal=journal)
    async with serving(loop) as client:
        await start(client, id="live")
        await entered.wait()
        grown: Any = (await client.get("/executions/ada:live/trace")).json()
        assert grown["is_live"]
        opened.set()
        after = {"last-event-id": grown["cursor"]}
        for event in await all_events(client, "/executions/ada:live/trace/events", headers=after):
            assert (event.event, event.id) == ("trace", event.data["cursor"])
            grown = merge(grown, event.data)
        whole = parse_json(format_json(await build_trace(journal, "ada:live")))
        assert grown == whole
        assert [each["status"] for each in grown["executions"]] == ["completed", "completed"]
        ended = await client.get("/executions/ada:live/trace/events", headers={"last-event-id": grown["cursor"]})
        assert ended.status_code == 204
    await journal.aclose()


class PausingModel(ScriptedInference):
    """Writes one word, and the rest when somebody has seen it."""

    def __init__(self, *lines: Any, **options: Any) -> None:
        super().__init__(*lines, **options)
        self.seen = asyncio.Event()

    def with_execution_scope(self, scope: Any) -> Any:
        bound = super().with_execution_scope(scope)
        bound.seen = self.seen
        return bound

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        async with aclosing(super().stream(request)) as deltas:
            async for delta in deltas:
                yield delta
                if isinstance(delta, InferenceDelta) and delta.kind == "text":
                    await self.seen.wait()


async def test_texts_of_a_running_inference_come_as_deltas() -> None:
    """While a model writes, the stream of its trace has what it writes."""
    followed = asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        await followed.wait()
        return "a lamp"

    model = PausingModel(ToolCall("1", "look", "{}"), "A green lamp.")
    loop = AgentLoop.for_model(model, tools=[look], journal=MemoryJournal(), streaming=True)
    async with serving(loop) as client, asyncio.timeout(DEADLINE):
        await start(client, id="text")
        found = []
        async with client.stream("GET", "/executions/ada:text/trace/events") as response:
            async for event in read_events(response):
                found.append(event)
                followed.set()
                if event.event == "delta":
                    model.seen.set()
    deltas = [event.data for event in found if event.event == "delta"]
    assert deltas[0] == {
        "execution_id": "ada:text",
        "step": 2,
        "attempt": 1,
        "kind": "text",
        "text": "A ",
        "is_whole": False,
    }
    assert not found[0].data["is_patch"]
    assert all(event.data["is_patch"] for event in found[1:] if event.event == "trace")
    assert found[-1].data["executions"][0]["output"] == "A green lamp."


async def test_who_comes_in_the_middle_of_an_inference_gets_what_is_written_so_far() -> None:
    """The first delta of every stream holds all that was written before, and the next ones what follows."""
    writing = asyncio.Event()

    class NoticedModel(PausingModel):
        async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
            async with aclosing(super().stream(request)) as deltas:
                async for delta in deltas:
                    yield delta
                    if isinstance(delta, InferenceDelta) and delta.text.startswith("green"):
                        writing.set()
                        self.paused.clear()
                        await self.paused.wait()

        paused = asyncio.Event()

    model = NoticedModel("A green lamp.")
    model.seen.set()
    loop = AgentLoop.for_model(model, journal=MemoryJournal(), streaming=True)

    async def follow(client: Any, *, is_last: bool) -> list[Any]:
        deltas = []
        async with client.stream("GET", "/executions/ada:text/trace/events") as response:
            async for event in read_events(response):
                if event.event == "delta":
                    deltas.append(event.data)
                    if not is_last:
                        return deltas
                    model.paused.set()
        return deltas

    async with serving(loop) as client, asyncio.timeout(DEADLINE):
        await start(client, id="text")
        await writing.wait()
        for _ in range(2):  # nobody has followed before the first
            (whole,) = await follow(client, is_last=False)
            assert (whole["text"], whole["is_whole"], whole["step"]) == ("A green ", True, 1)
        whole, *rest = await follow(client, is_last=True)
    assert (whole["text"], whole["is_whole"]) == ("A green ", True)
    assert "".join([delta["text"] for delta in rest]) == "lamp."
    assert not any(delta["is_whole"] for delta in rest)


async def test_a_stream_without_news_sends_heartbeats() -> None:
    """A trace that waits for a decision keeps its stream open by comments."""
    limits = ServerLimits(heartbeat_seconds=1.0)
    async with serving(payer(MemoryJournal()), limits=limits) as client:
        await start(client, id="bill")
        await settled(client, "ada:bill")
        async with client.stream("GET", "/executions/ada:bill/trace/events") as response:
            async for line in response.aiter_lines():
                if line == ": waiting":
                    break


async def test_what_is_not_a_cursor_is_refused() -> None:
    """A wrong position is an answer of its own, and not a stream that breaks."""
    async with finished_sum() as client:
        wrong = await client.get("/executions/ada:sum/trace/events", params={"after": "1;x"})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_parameter")
        assert (await client.head("/executions/ada:sum/trace/events")).status_code == 405


async def test_a_decision_from_the_page_settles_the_call() -> None:
    """The digest of a trace is what a decision needs, and the trace then has who decided."""
    async with serving(payer(MemoryJournal())) as client:
        await start(client, id="bill")
        await settled(client, "ada:bill")
        call = (await client.get("/executions/ada:bill/trace")).json()["executions"][0]["calls"][0]
        decisions = {call["key"]: {"kind": "approve", "digest": call["pending"]["digest"]}}
        assert (await client.post("/executions/ada:bill/decisions", json={"decisions": decisions})).status_code == 200
        await settled(client, "ada:bill")
        call = (await client.get("/executions/ada:bill/trace")).json()["executions"][0]["calls"][0]
        assert (call["status"], call["decisions"][0]["principal"]) == ("succeeded", "ada")


# --- forks --------------------------------------------------------------------------------------------------------------


async def test_a_fork_runs_from_its_step() -> None:
    """A fork is a new execution of the same principal, which this server runs to its end."""
    async with finished_sum() as client:
        forked = await client.post("/executions/ada:sum/forks", json={"at_step": 1, "effects": "simulate"})
        assert (forked.status_code, forked.headers["location"]) == (201, "/executions/ada:sum/fork-1")
        assert (await settled(client, "ada:sum/fork-1"))["text"] == "It is 3."
        root = (await client.get("/executions/ada:sum/fork-1/trace")).json()["executions"][0]
        assert root["forked_from"] == {"execution_id": "ada:sum", "step": 1, "effects": "simulate"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"at_step": 9}, 422),
        ({"at_step": True}, 422),
        ({"at_step": -1}, 422),
        ({"at_step": 1, "effects": "x"}, 422),
    ],
)
async def test_a_wrong_fork_is_refused(body: dict[str, Any], status: int) -> None:
    """A step that there is not, and a policy that there is not, are mistakes of the request."""
    async with finished_sum() as client:
        assert (await client.post("/executions/ada:sum/forks", json=body)).status_code == status


async def test_a_fork_needs_the_scope_to_start() -> None:
    """Whoever may only read cannot fork."""
    async with finished_sum() as client:
        reader = await client.post("/executions/ada:sum/forks", json={"at_step": 1}, headers=bearer("judge"))
        assert reader.status_code == 403


# --- the page -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("viewer")
async def test_the_page_needs_no_token_and_has_no_data() -> None:
    """The page is the same for everyone, fetches with a token what it shows, and is protected by its headers."""
    async with finished_sum() as client:
        shown = await client.get("/trace/ada:sum", headers=NO_TOKEN)
        assert shown.status_code == 200
        assert shown.headers["content-type"].startswith("text/html")
        policy = shown.headers["content-security-policy"]
        assert policy == "default-src 'none'; script-src 'sha256-x'; frame-ancestors 'none'"
        assert shown.headers["x-content-type-options"] == "nosniff"
        assert shown.headers["referrer-policy"] == "no-referrer"
        data = json.loads(Scripts(shown.text).scripts[0][1])
        server = {"needs_token": True, "execution_id": "ada:sum", "actions": ["decide", "send", "stop", "fork"]}
        assert data == {"trace": None, "compare": None, "served": server}
        assert (await client.get("/trace", headers={"host": "evil.example"})).status_code == 421


@pytest.mark.usefixtures("viewer")
async def test_an_id_in_the_address_of_a_page_is_data() -> None:
    """Whatever stands behind /trace/ is never markup of the page."""
    async with finished_sum() as client:
        shown = await client.get("/trace/%3C/script%3E%3Cscript%3Ealert(1)%3C/script%3E")
        assert Scripts(shown.text).elements == Scripts(VIEWER).elements


async def test_a_server_without_the_viewer_says_how_to_build_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a clone without node, the documents are served, and the page says what is missing."""
    monkeypatch.setattr(page, "VIEWER", tmp_path / "none.html")
    async with finished_sum() as client:
        missing = await client.get("/trace")
        assert missing.status_code == 503
        assert "make viewer" in missing.json()["detail"]
        assert (await client.get("/executions/ada:sum/trace")).status_code == 200


# --- a journal without loops --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("viewer")
async def test_a_journal_alone_can_be_shown_stopped_and_forked(tmp_path: Path) -> None:
    """Without loops nothing is started or continued; what is recorded can be read, forked and stopped."""
    journal = SqliteJournal(tmp_path / "runs.db")
    state = await payer(journal).execute("Pay.", execution_id="bill")
    async with serving(RecordedExecutions(journal), authenticate=None) as client:
        data = json.loads(Scripts((await client.get("/trace/bill")).text).scripts[0][1])
        assert data["served"] == {"needs_token": False, "execution_id": "bill", "actions": ["send", "stop", "fork"]}
        decisions = {state.pending[0].key: {"kind": "approve", "digest": state.pending[0].digest}}
        refused = await client.post("/executions/bill/decisions", json={"decisions": decisions})
        assert refused.status_code == 409
        assert (await client.post("/executions", json={"input": "Go."})).status_code == 422
        assert (await client.post("/executions/bill/forks", json={"at_step": 0})).json()["id"] == "bill/fork-1"
        assert (await client.post("/executions/bill/stop", json={"reason": "enough"})).status_code == 202
        root = (await client.get("/executions/bill/trace")).json()["executions"][0]
        assert (root["status"], root["stop"]["message"]) == ("stopped", "enough")
    await journal.aclose()


# --- the commands -------------------------------------------------------------------------------------------------------


def run_command(*arguments: str, folder: Path) -> Any:
    program = (
        "import sys; from pathlib import Path; from agentloop.service.trace import page; page.VIEWER = Path('viewer.html');"
        "from agentloop.service.cli.main import main; main(sys.argv[1:])"
    )
    return asyncio.create_subprocess_exec(
        *loaded_python("-c", program, *arguments),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_command_writes_a_page(tmp_path: Path) -> None:
    """`trace view` writes one file with both executions and prints its name; `--json` prints the document itself."""
    journal = SqliteJournal(tmp_path / "runs.db")
    for name in ("sum-1", "sum-2"):
        await adder(journal).execute("Add.", execution_id=name)
    await journal.aclose()
    arguments = ("trace", "view", "sum-1", "--db", "runs.db")
    missing, printed = await asyncio.gather(
        _output(*arguments, folder=tmp_path), _output(*arguments, "--json", folder=tmp_path)
    )
    assert "make viewer" in missing
    assert json.loads(printed)["id"] == "sum-1"
    (tmp_path / "viewer.html").write_text(VIEWER)
    shown = await _output(*arguments, "--compare", "sum-2", "-o", "out.html", folder=tmp_path)
    assert shown == "out.html\n"
    data = json.loads(Scripts((tmp_path / "out.html").read_text()).scripts[0][1])
    assert (data["trace"]["id"], data["compare"]["trace"]["id"], data["compare"]["divergence"]) == (
        "sum-1",
        "sum-2",
        None,
    )


async def _output(*arguments: str, folder: Path) -> str:
    process = await run_command(*arguments, folder=folder)
    out, errors = await process.communicate()
    printed: str = (out + errors).decode()
    return printed


async def test_the_command_serves_a_journal(tmp_path: Path) -> None:
    """`trace serve` shows what is recorded in a file, without a loop."""
    (tmp_path / "viewer.html").write_text(VIEWER)
    journal = SqliteJournal(tmp_path / "runs.db")
    await adder(journal).execute("Add.", execution_id="sum-1")
    await journal.aclose()
    process = await run_command("trace", "serve", "--db", "runs.db", "--port", "0", folder=tmp_path)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE * 3):  # the command loads everything
            url = (await process.stdout.readline()).decode().strip()
        async with httpx.AsyncClient(timeout=DEADLINE) as client:
            assert (await client.get(url)).status_code == 200
            listed = (await client.get(url.replace("/trace", "/executions"))).json()
        assert [each["id"] for each in listed["executions"]] == ["sum-1"]
    finally:
        process.terminate()
        await process.wait()
