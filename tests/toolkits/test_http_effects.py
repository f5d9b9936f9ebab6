"""Effects at an HTTP service: one for each call, however often the request has to be sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from attrs import define, field

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.contracts.tool import Tool
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.testing.journal_bench import CrashableJournal
from agentloop.toolkits import KeyedService, http_effect, http_effects
from agentloop.values import Effect, ToolStatus
from agentloop.values.records import RecordKind
from tests.toolkits.running import run_call, run_calls


@define
class Payments:
    """A service that makes a payment for each key once, and answers as the test says.

    Attributes:
        answers: what becomes of the next requests: a status, "lost" for a connection that breaks after the payment, or "paid".
        payments: what was paid, by key.
        requests: the headers of all requests.
    """

    port: int = 0
    answers: list[Any] = field(factory=list)
    payments: dict[str, int] = field(factory=dict)
    requests: list[dict[str, str]] = field(factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append({"request": head, **headers})
        answer = self.answers.pop(0) if self.answers else "paid"
        if not isinstance(answer, int):
            self.payments.setdefault(headers["idempotency-key"], body["cents"])
        if answer != "lost":
            status, data = (answer, {"error": "no"}) if isinstance(answer, int) else (200, {"paid": body["cents"]})
            text = json.dumps(data)
            kind = "content-type: application/json\r\nconnection: close"
            writer.write(f"HTTP/1.1 {status} X\r\n{kind}\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
            await writer.drain()
        writer.close()

    def tool(self, **options: Any) -> Tool:
        @http_effect(f"http://127.0.0.1:{self.port}/v1", headers={"x-key": "k"}, allow_private=True, **options)
        async def pay(service: KeyedService, cents: int, times: int = 1) -> Any:
            """Pay."""
            replies = [await service.post("/payments", {"cents": cents + number}) for number in range(times)]
            return replies[-1].data

        return pay


@pytest.fixture
async def payments(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Payments]:
    monkeypatch.setattr(http_effects, "_WAITS", (0.0,) * 5)
    service = Payments()
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        stack.callback(server.close)
        service.port = server.sockets[0].getsockname()[1]
        yield service


async def test_a_request_has_the_key_of_its_call(payments: Payments) -> None:
    execution = await run_call([payments.tool()], "pay", cents=5)
    assert execution.value == {"paid": 5}
    (request,) = payments.requests
    assert request["request"] == "POST /v1/payments HTTP/1.1"
    assert request["x-key"] == "k"
    assert list(payments.payments) == [request["idempotency-key"]]
    assert payments.tool().spec.effect is Effect.IDEMPOTENT
    assert list(payments.tool().spec.parameters["properties"]) == ["cents", "times"]


async def test_calls_and_their_requests_have_different_keys(payments: Payments) -> None:
    await run_calls([payments.tool()], [("pay", {"cents": 5, "times": 2}), ("pay", {"cents": 5, "times": 2})])
    assert sorted(payments.payments.values()) == [5, 5, 6, 6]


@pytest.mark.parametrize("answers", [["lost"], ["lost", 503, 409, "lost"], [503, 500], [409, 429], ["lost", 409]])
async def test_a_request_without_an_answer_is_sent_again(payments: Payments, answers: list[Any]) -> None:
    payments.answers = list(answers)
    execution = await run_call([payments.tool()], "pay", cents=5)
    assert execution.status is ToolStatus.SUCCEEDED, execution
    assert list(payments.payments.values()) == [5]
    assert len(payments.requests) == len(answers) + 1
    assert len({request["idempotency-key"] for request in payments.requests}) == 1


@pytest.mark.parametrize(("answer", "requests"), [(400, 1), (422, 1), (409, 3), (429, 3)])
async def test_a_refused_request_is_a_failure(payments: Payments, answer: int, requests: int) -> None:
    payments.answers = [answer] * 5
    execution = await run_call([payments.tool()], "pay", cents=5)
    assert execution.status is ToolStatus.FAILED
    assert f"refused the POST with status {answer}" in execution.error_message
    assert (payments.payments, len(payments.requests)) == ({}, requests)


@pytest.mark.parametrize("answer", ["lost", 503])
async def test_a_service_that_never_answers_leaves_a_doubt(payments: Payments, answer: Any) -> None:
    payments.answers = [answer] * 5
    execution = await run_call([payments.tool()], "pay", cents=5)
    assert execution.status is ToolStatus.IN_DOUBT
    assert "5 requests with the same key" in execution.error_message


async def test_a_call_that_is_interrupted_runs_again_with_its_keys(payments: Payments) -> None:
    """The process ends after the payment and before its record; the next one also sends a larger fencing token."""
    journal = CrashableJournal()
    model = ScriptedInference(ToolCall("1", "pay", '{"cents": 5, "times": 2}'), "paid")
    await AgentLoop.for_model(model, tools=[payments.tool()], journal=journal).execute("Pay.", execution_id="run")
    kinds = [record.kind for record in journal.appended]
    survived = await journal.after_crash(kinds.index(RecordKind.CALL_OUTCOME))
    again = AgentLoop.for_model(ScriptedInference("paid"), tools=[payments.tool()], journal=survived)
    state = await again.recover("run")
    assert state.steps[0].executions[0].value == {"paid": 6}
    assert sorted(payments.payments.values()) == [5, 6]
    assert len(payments.requests) == 4
    assert all(request["agentloop-claim-token"].isdigit() for request in payments.requests)


async def test_only_a_request_that_needs_a_key_has_one() -> None:
    @http_effect("http://127.0.0.1:1", allow_private=True)
    async def read(service: KeyedService) -> Any:
        """Read."""
        return (await service.send("GET", "/")).data

    execution = await run_call([read], "read")
    assert "a request with a key is a POST or a PATCH, not a GET" in execution.error_message


@pytest.mark.parametrize("url", ["api.example.com", "ftp://x", "https://x/?a=1", ""])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="the URL of a service"):
        http_effect(url)


def test_a_plain_function_is_refused() -> None:
    def pay(service: KeyedService) -> int:
        """Pay."""
        return 1

    plain: Any = pay
    with pytest.raises(ToolDefinitionError, match="takes an async function"):
        http_effect("https://example.com")(plain)
