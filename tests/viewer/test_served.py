"""Tests of the page as it is served: it follows what runs, and sends decisions, messages, stops and forks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import closing

import httpx
import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanInfer
from agentloop.durable import MemoryJournal
from agentloop.service.server import Principal, Scope
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse, Text
from tests.postgres import TcpProxy
from tests.service.server.front import TOKENS, payer
from tests.viewer.browser import Page
from tests.viewer.serving import Served, served

pytestmark = pytest.mark.unreplayed


class Gate:
    """A tool that waits until the test lets it go on, and an agent that calls it in every step but the last."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._open = asyncio.Semaphore(0)

    def go_on(self, server: Served) -> None:
        server.call(self._open.release)

    def loop(self, journal: MemoryJournal) -> AgentLoop:
        @tool(effect="pure")
        async def look(number: int) -> str:
            """Look at something."""
            await self._open.acquire()
            return f"seen {number}"

        def respond(request: InferenceRequest) -> InferenceResponse | str:
            number = sum(len(message.exchanges) for message in request.messages) + 1
            if number > self.steps:
                return "I have seen all."
            return InferenceResponse((ToolCall(str(number), "look", f'{{"number": {number}}}'),))

        model = ScriptedInference(*[respond] * (self.steps + 1))
        return AgentLoop.for_model(model, tools=[look], journal=journal)


class PausingModel(CanInfer):
    """Calls a tool, then writes an answer in pieces; the tool and each piece wait until the test lets them go on."""

    def __init__(self, *pieces: str) -> None:
        self._pieces = pieces
        self._open = asyncio.Semaphore(0)

    def go_on(self, server: Served) -> None:
        server.call(self._open.release)

    def loop(self, journal: MemoryJournal) -> AgentLoop:
        @tool(effect="pure")
        async def look() -> str:
            """Look at something."""
            await self._open.acquire()
            return "seen"

        return AgentLoop.for_model(self, tools=[look], journal=journal, streaming=True)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        is_first = not any(message.exchanges for message in request.messages)
        return InferenceResponse((ToolCall("1", "look", "{}") if is_first else Text("".join(self._pieces)),))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        response = await self.infer(request)
        for piece in self._pieces if isinstance(response.parts[0], Text) else ():
            await self._open.acquire()
            yield InferenceDelta("text", piece)
        yield response


def open_trace(page: Page, server: Served, execution_id: str) -> None:
    page.open(f"{server.url}/trace/{execution_id}")
    page.wait_for("document.querySelector('.row')")


def started(server: Served, name: str, token: str = "") -> str:
    """Start an execution over HTTP, as another program does, and return its id."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    answer = httpx.post(f"{server.url}/executions", json={"input": "Go.", "id": name}, headers=headers)
    assert answer.status_code == 201, answer.text
    started: str = answer.json()["id"]
    return started


def has_row(title: str) -> str:
    return f"[...document.querySelectorAll('.row .title')].some(title => title.innerText === '{title}')"


OPEN = "document.querySelector('.decide .primary')?.disabled === false"
"""Whether the end of the call that is decided about was in view."""
STATUS: Callable[[str], str] = "document.querySelector('.head .badge')?.innerText === '{}'".format


def test_a_running_execution_is_followed_to_its_end(page: Page) -> None:
    """Rows appear as they happen, with a bar that grows while a call runs, and nothing is loaded again."""
    gate = Gate(steps=2)
    with served(gate.loop) as server:
        open_trace(page, server, started(server, "watched"))
        page.wait_for("document.querySelector('.connection.connected')")
        page.wait_for("document.querySelector('.bar.call.running')")
        assert page.evaluate(has_row("Step 2")) is False
        gate.go_on(server)
        page.wait_for(has_row("Step 2"))
        page.wait_for("document.querySelectorAll('.bar.call').length === 2")
        gate.go_on(server)
        page.wait_for(STATUS("completed"))
        page.press("2")
        page.wait_for("document.querySelector('.conversation').innerText.includes('I have seen all.')")
        loads = [address for address in page.requests if address.endswith("/trace")]
        assert len(loads) == 1


def test_text_appears_while_it_is_written(page: Page) -> None:
    """The pieces of an answer are in the conversation as they come, and give way to the message."""
    model = PausingModel("Three ", "lamps ", "are left.")
    with served(model.loop) as server:
        open_trace(page, server, started(server, "written"))
        page.wait_for("document.querySelector('.connection.connected') && document.querySelector('.bar.call.running')")
        page.press("2")
        model.go_on(server)
        for text in ("Three ", "Three lamps "):
            model.go_on(server)
            page.wait_for(f"document.querySelector('.message.draft bdi')?.textContent === '{text}'")
        page.press("1")
        page.wait_for("document.querySelector('.bar.pending.running')")
        page.click(".row.pending .title", "model")
        page.wait_for("document.querySelector('.detail .draft')?.innerText.includes('Three lamps')")
        page.press("2")
        model.go_on(server)
        page.wait_for(STATUS("completed"))
        # The conversation is drawn after the status.
        page.wait_for(
            "[...document.querySelectorAll('.message.assistant')].at(-1).innerText.includes('Three lamps are left.')"
        )
        assert page.evaluate("document.querySelector('.message.draft')") is None
        assert "Three lamps are left." in page.texts(".message.assistant")[-1]


def test_a_stream_that_breaks_is_continued_where_it_ended(page: Page) -> None:
    """After the connection was lost, the page asks for what follows its cursor, and misses nothing."""
    gate = Gate(steps=2)
    with served(gate.loop) as server, closing(TcpProxy(server.url)) as proxy:
        execution_id = started(server, "broken")
        page.open(f"http://127.0.0.1:{proxy.port}/trace/{execution_id}")
        page.wait_for("document.querySelector('.bar.call.running')")
        proxy.refuse()
        page.wait_for("document.querySelector('.connection.waiting')")
        gate.go_on(server)
        proxy.heal()
        page.wait_for(has_row("Step 2"))
        gate.go_on(server)
        page.wait_for(STATUS("completed"))
        assert page.texts(".row .title").count("look") == 2
        assert len([address for address in page.requests if address.endswith("/trace")]) == 1


@pytest.mark.parametrize(
    ("choice", "text", "outcome"),
    [
        ("Approve", "", "paid 500"),
        ("Deny", "too much", "too much"),
        ("Answer", '"paid by hand"', "paid by hand"),
        ("Edit", '{"cents": 7}', "paid 7"),
    ],
)
def test_calls_are_decided(page: Page, choice: str, text: str, outcome: str) -> None:
    """A call that waits is approved, denied, answered or changed on the page, and its execution continues."""
    with served(payer) as server:
        open_trace(page, server, started(server, "payment"))
        page.wait_for(STATUS("suspended"))
        page.click(".filters .chip", "waiting")
        page.click(".row.call .title", "pay")
        assert "Waits for a decision" in page.text(".detail")
        page.click(".choices button", choice)
        if text:
            page.evaluate("document.querySelector('.decide textarea').select()")
            page.type(text)
        page.wait_for(OPEN)
        page.click(".decide .primary")
        page.press("Escape")
        page.wait_for(STATUS("completed"))
        page.wait_for(f"document.querySelector('.detail').innerText.includes({outcome!r})")
        assert choice.lower() in page.text(".detail .decision")


def test_a_decision_that_is_refused_says_why(page: Page) -> None:
    """Arguments that are no object are refused by the page, and what a reader may not decide by the server."""
    reader = Principal(name="reader", scopes=frozenset({Scope.START, Scope.READ}))
    with served(payer, authenticate={"reader-token": reader}.get) as server:
        execution_id = started(server, "payment", "reader-token")
        page.open(f"{server.url}/trace/{execution_id}#token=reader-token")
        page.wait_for("document.querySelector('input[type=password]')")
        page.press("Enter")
        page.wait_for(STATUS("suspended"))
        page.click(".row.call .title", "pay")
        page.click(".choices button", "Edit")
        page.evaluate("document.querySelector('.decide textarea').select()")
        page.type("[1]")
        page.wait_for(OPEN)
        page.click(".decide .primary")
        page.wait_for(
            "document.querySelector('.decide [role=alert]')?.innerText === 'The arguments are a JSON object.'"
        )
        page.click(".choices button", "Approve")
        page.click(".decide .primary")
        page.wait_for("document.querySelector('.decide [role=alert]')?.innerText.includes('decide')")
    assert any("403" in problem for problem in page.problems)
    page.problems.clear()


def test_a_run_is_sent_a_message_and_cancelled(page: Page) -> None:
    """A message reaches the running execution, and a cancellation ends it, with the reason that was given."""
    gate = Gate(steps=3)
    with served(gate.loop) as server:
        open_trace(page, server, started(server, "stopped"))
        page.wait_for("document.querySelector('.bar.call.running')")
        page.click(".run-actions button", "Message")
        page.type("Look twice.")
        page.click(".popup .primary")
        page.wait_for(has_row("message sent"))
        page.click(".run-actions button", "Cancel run")
        page.type("seen enough")
        page.click(".popup .primary")
        page.wait_for("!document.querySelector('.popup')")
        gate.go_on(server)
        page.wait_for(STATUS("stopped"))
        assert "seen enough" in page.text(".detail")


def test_a_run_is_forked_from_a_step(page: Page) -> None:
    """The page of the new execution opens, which says where it comes from."""
    gate = Gate(steps=1)
    with served(gate.loop) as server:
        gate.go_on(server)
        source = started(server, "source")
        open_trace(page, server, source)
        page.wait_for(STATUS("completed"))
        page.click(".row.step .title", "Step 1")
        page.click(".fold-title", "Fork from here")
        page.click(".decide .primary")
        page.wait_for(
            f"location.pathname.startsWith('/trace/') && decodeURIComponent(location.pathname) !== '/trace/{source}' && document.querySelector('.row')"
        )
        assert f"{source}, step 1, effects: simulate" in page.text(".detail")


def test_a_token_is_asked_for_and_kept_for_the_tab(page: Page) -> None:
    """Without a token the page asks for one, and a wrong one is refused."""
    with served(payer, authenticate=TOKENS.get) as server:
        page.open(f"{server.url}/trace")
        page.wait_for("document.querySelector('input[type=password]')")
        page.type("wrong")
        page.press("Enter")
        page.wait_for("document.querySelector('[role=alert]')")
        page.evaluate("document.querySelector('input[type=password]').select()")
        page.type("ada-token")
        page.press("Enter")
        page.wait_for("document.body.innerText.includes('The journal holds no execution.')")
        assert page.evaluate("sessionStorage.getItem('agentloop-token')") == "ada-token"
        assert page.evaluate("localStorage.getItem('agentloop-token')") is None
    page.problems.clear()  # the refusal


@pytest.mark.parametrize(
    "end", ["#token=bob-token", "#a=1&token=bob-token", "#token=", "#token=%", "#token=bob%2Dtoken"]
)
def test_a_link_replaces_no_token(page: Page, end: str) -> None:
    """A tab that has a token keeps its own, whatever a link brings, and the address does not keep the other."""
    with served(payer, authenticate=TOKENS.get) as server:
        page.open(f"{server.url}/trace")
        page.evaluate("sessionStorage.setItem('agentloop-token', 'ada-token')")
        page.open(f"{server.url}/trace?again{end}")
        page.wait_for("document.body.innerText.includes('The journal holds no execution.')")
        assert page.evaluate("location.hash") == ""
        assert page.evaluate("sessionStorage.getItem('agentloop-token')") == "ada-token"


def test_a_link_signs_nobody_in_unasked(page: Page) -> None:
    """The token of a link is used when a person agrees, and not before: the link may be somebody else's, with their token."""
    with served(payer, authenticate=TOKENS.get) as server:
        page.open(f"{server.url}/trace#token=bob%2Dtoken")
        page.wait_for("document.querySelector('.offered')")
        assert page.evaluate("location.hash") == ""
        assert page.evaluate("sessionStorage.getItem('agentloop-token')") is None
        page.press("Enter")
        page.wait_for("document.body.innerText.includes('The journal holds no execution.')")
        assert page.evaluate("sessionStorage.getItem('agentloop-token')") == "bob-token"


def test_the_list_leads_to_the_traces(page: Page) -> None:
    """Executions are listed with what they were asked and how they stand."""
    with served(payer) as server:
        one = started(server, "one")
        page.open(f"{server.url}/trace")
        page.wait_for("document.querySelector('.list li a')")
        assert "Go." in page.text(".list li")
        page.click(".list li a")
        page.wait_for("document.querySelector('.row')")
        assert page.evaluate("decodeURIComponent(location.pathname)") == f"/trace/{one}"


def test_two_executions_are_compared_when_served(page: Page) -> None:
    """`?compare=` shows another execution beside this one."""
    with served(payer) as server:
        one, two = started(server, "one"), started(server, "two")
        open_trace(page, server, one)
        page.wait_for(STATUS("suspended"))
        page.open(f"{server.url}/trace/{one}?compare={two}")
        page.wait_for("document.querySelector('.compare')")
        assert f"right: {two}" in page.text(".compare-heads")
