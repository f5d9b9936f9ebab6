"""Requests that no honest client sends: each is refused with a status of its own, and the server goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentloop import AgentState
from agentloop.durable import MemoryJournal
from agentloop.service.server import LocalExecutions, ServerApplication, ServerLimits
from tests.service.server.front import DEADLINE, adder, bearer, opened, payer, serving, settled, start

HEAD = "Host: 127.0.0.1\r\nAuthorization: Bearer ada-token\r\n"
JSON = {"content-type": "application/json"}


async def send_raw(client: httpx.AsyncClient, request: bytes) -> bytes:
    """Send bytes, and return all that is answered until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    try:
        writer.write(request)
        async with asyncio.timeout(DEADLINE):
            return await reader.read()
    except ConnectionResetError:  # closed before all was sent
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "request_text",
    [
        f"POST /executions HTTP/1.1\r\n{HEAD}Content-Length: 5\r\nContent-Length: 50\r\n\r\n{{}}",
        f"POST /executions HTTP/1.1\r\n{HEAD}Content-Length: -1\r\n\r\n{{}}",
        f"POST /executions HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        f"POST /executions HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\nzz\r\n{{}}\r\n0\r\n\r\n",
        f"GET /executions HTTP/1.1\r\n{HEAD}X-A: 1\r\nX B: 2\r\n\r\n",
        f"GET /executions HTTP/1.1\r\n{HEAD}X-Long: {'x' * 200_000}\r\n\r\n",
        f"GET /{'x' * 200_000} HTTP/1.1\r\n{HEAD}\r\n",
        "GET /executions HTTP/1.1\r\nAuthorization: Bearer ada-token\r\n\r\n",
        "GET /executions HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_what_is_not_a_request_is_refused(request_text: str) -> None:
    """Two lengths, bad chunks, overlong or broken headers and other protocols are answered with 400 or closed, never carried out."""
    async with serving(payer(MemoryJournal()), limits=ServerLimits(header_seconds=1.0)) as client:
        answer = await send_raw(client, request_text.encode("latin-1"))
        assert answer == b"" or answer.split(b" ")[1] in {b"400", b"421", b"431"}, answer[:200]
        assert b"Traceback" not in answer
        assert (await client.get("/executions")).json()["executions"] == []


async def test_a_request_hidden_in_another_one_is_not_carried_out() -> None:
    """With both a length and chunks, what follows the chunks is not a second request of another principal."""
    hidden = (
        "POST /executions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer bob-token\r\nContent-Length: 15\r\n\r\n"
    )
    body = f"0\r\n\r\n{hidden}"
    async with serving(payer(MemoryJournal()), limits=ServerLimits(header_seconds=1.0)) as client:
        text = f"POST /executions HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
        await send_raw(client, text.encode() + b'{"input": "Go"}')
        heads = (await client.get("/executions", headers=bearer("boss"))).json()["executions"]
        assert [head for head in heads if head["id"].startswith("ada:")] == []


@pytest.mark.parametrize(
    "name",
    [
        "x" * 201,
        "x" * 100_000,
        "",
        ".",
        "..",
        "../ada:other",
        "a/b",
        "a%2fb",
        "a\x00b",
        "a\nb",
        "é",
        "a\u202eb",
        "\ud800",
        "bob:mine",
        "ada:ada:x",
        "local:x",
        "a/1/0/agent",
    ],
)
async def test_odd_ids_start_nothing(name: str) -> None:
    """Ids that are too long, hold other characters, or are of others, are refused with 422."""
    async with serving(payer(MemoryJournal())) as client:
        answer = await client.post("/executions", content=json.dumps({"input": "x", "id": name}), headers=JSON)
        assert answer.status_code in {400, 422}, answer.text
        assert len(answer.text) < 1000
        assert (await client.get("/executions")).json()["executions"] == []


@pytest.mark.parametrize(
    "path",
    [
        "/executions/ada%3Abill%00",
        "/executions/" + "a" * 20_000,
        "/executions/%ff%fe",
        "/executions/..%2f..%2fetc%2fpasswd",
        "/executions/ada:bill/../../bob:x",
        "/executions//",
        "/executions/%F0%9F%92%A9/events",
        "/executions/ada:bill/1/0/pay",
        "/executions/ada:bill%0d%0aX-Evil:%201",
    ],
)
async def test_odd_paths_find_nothing(path: str, db: str) -> None:
    """Paths with null characters, dots, line ends or bytes that are no UTF-8 lead nowhere, whatever the database."""
    async with opened(db) as journal, serving(payer(journal)) as client:
        for method in ("GET", "POST"):
            line = f"{method} {path} HTTP/1.1\r\n{HEAD}Connection: close\r\nContent-Length: 0\r\n\r\n"
            answer = await send_raw(client, line.encode())
            assert answer.split(b" ")[1] in {b"404", b"405", b"422"}, answer[:300]
            assert b"x-evil" not in answer.lower().split(b"\r\n\r\n")[0]


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b"nul",
        b'{"input": NaN}',
        b'{"input": Infinity}',
        b'{"input": 1e999}',
        b'{"input": "x", "input": "y", "id": ["z"]}',
        b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"input": {"role": "user", "parts": ' + b"[" * 500 + b"]" * 500 + b"}}",
        b'{"input": "\\ud800"}',
        b'{"input": "a\\u0000b"}',
        b'{"input": "x", "continues": "\\ud800"}',
        b'{"input": ' + b"9" * 5000 + b"}",
    ],
)
async def test_odd_bodies_break_nothing(body: bytes, db: str) -> None:
    """No body makes the server fail: it is refused, or a text that can be stored is stored."""
    async with opened(db) as journal, serving(payer(journal)) as client:
        answer = await client.post("/executions", content=body, headers=JSON)
        assert answer.status_code in {201, 400, 404, 422}, answer.text
        assert (await client.get("/executions")).status_code == 200


async def test_an_id_that_a_program_has_chosen_fits_into_a_header() -> None:
    """The address of a fork is a path, whatever characters the id of its execution has."""
    journal = MemoryJournal()
    loop = adder(journal)
    await loop.execute("Go.", execution_id="bestellung-für-林 7%?")
    async with serving(loop, authenticate=None) as client:
        answer = await client.post("/executions/bestellung-für-林 7%25%3F/forks", json={"at_step": 1})
        assert answer.status_code == 201, answer.text
        assert (await client.get(answer.headers["location"])).json()["id"] == "bestellung-für-林 7%?/fork-1"


TEXTS = st.text(st.characters(codec=None, exclude_categories=()), max_size=20) | st.sampled_from(["\ud800", "a\udfffb"])


@settings(max_examples=25, deadline=None)
@given(
    st.recursive(TEXTS | st.integers() | st.none(), lambda inner: st.dictionaries(TEXTS, inner) | st.lists(inner)),
    TEXTS,
)
@example(5, "\ud800")
def test_a_refusal_has_the_documented_form_whatever_it_quotes(value: Any, text: str) -> None:
    """Odd texts in keys and values, lone surrogates among them, are refused with a problem that any client can read."""

    async def post_all() -> None:
        executions = LocalExecutions(payer(MemoryJournal()))
        transport = httpx.ASGITransport(ServerApplication(executions), raise_app_exceptions=False)
        async with executions, httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await executions.start("default", AgentState.start("Pay."), "bill")
            for path, body in [
                ("/executions/bill/decisions", {"decisions": {text: value}}),
                ("/executions/bill/decisions", {"decisions": {text: {"kind": text, "digest": text}}}),
                ("/executions", {"input": {"role": text, "parts": [value]}}),
                ("/executions", {"input": "x", "id": f"/{text}"}),
                ("/executions", {"input": "x", "agent": f"/{text}"}),
                ("/executions", {"input": "x", f"/{text}": value}),
                ("/ag-ui", {"threadId": f"/{text}", "runId": "r", "messages": [{"role": "user", "content": text}]}),
            ]:
                answer = await client.post(path, content=json.dumps(body).encode(), headers=JSON)
                assert answer.status_code in {404, 409, 422}, (path, body, answer.text)
                assert answer.headers["content-type"] == "application/problem+json"
                problem = json.loads(answer.content)
                assert problem.keys() == {"type", "status", "code", "detail"}
                assert problem["detail"].encode()

    asyncio.run(post_all())


@pytest.mark.parametrize("number", ["-1", "x", "1e3", "٣", "9" * 30, "1 2", "0x10", ""])
async def test_an_odd_last_event_id_is_refused_or_ignored(number: str) -> None:
    """Only numbers are positions; an empty one is none, and one beyond the end gets what comes later."""
    async with serving(payer(MemoryJournal())) as client:
        await start(client, id="bill")
        headers: Any = {b"last-event-id": number.encode()}
        async with client.stream("GET", "/executions/ada:bill/events", headers=headers) as response:
            assert response.status_code == (422 if number else 200)


async def test_a_decision_about_a_call_of_another_execution_is_refused() -> None:
    """The key and digest of a call of one execution decide nothing in another one."""
    async with serving(payer(MemoryJournal())) as client:
        for name in ("one", "two"):
            await start(client, id=name)
        [call] = (await settled(client, "ada:one"))["pending"]
        await settled(client, "ada:two")
        body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
        answer = await client.post("/executions/ada:two/decisions", json=body)
        assert answer.status_code == 409, answer.text
        assert (await client.get("/executions/ada:two")).json()["status"] == "suspended"


async def test_a_stop_and_a_decision_at_once_end_in_one_way(db: str) -> None:
    """Of a stop and an approval at the same time one may be refused; the execution ends, and nothing fails."""
    async with opened(db) as journal, serving(payer(journal)) as client:
        for number in range(3):
            path = f"/executions/ada:bill{number}"
            await start(client, id=f"bill{number}")
            [call] = (await settled(client, f"ada:bill{number}"))["pending"]
            body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
            posts = [client.post(f"{path}/decisions", json=body), client.post(f"{path}/stop")]
            statuses = [answer.status_code for answer in await asyncio.gather(*posts)]
            assert set(statuses) <= {200, 202, 409}
            assert statuses != [409, 409]
            assert (await settled(client, f"ada:bill{number}"))["status"] in {"completed", "stopped"}


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"])
async def test_other_methods_do_nothing(method: str) -> None:
    """Methods that no route has are answered with 405 or, for HEAD, without a body; nothing is echoed."""
    async with serving(payer(MemoryJournal())) as client:
        await start(client, id="bill")
        await settled(client, "ada:bill")
        for path in ("/executions", "/executions/ada:bill", "/executions/ada:bill/stop"):
            answer = await client.request(method, path, headers={"x-secret": "hunter2"})
            assert answer.status_code in ({200, 404, 405} if method == "HEAD" else {405}), (path, answer.text)
            assert b"hunter2" not in answer.content
        assert (await client.get("/executions/ada:bill")).json()["status"] == "suspended"


async def test_a_stream_that_is_asked_for_with_head_holds_no_place() -> None:
    """Requests for the head of a stream do not use up the streams of a principal."""
    async with serving(payer(MemoryJournal()), limits=ServerLimits(streams=2)) as client:
        await start(client, id="bill")
        for _ in range(5):
            assert (await client.head("/executions/ada:bill/events")).status_code == 405
        async with client.stream("GET", "/executions/ada:bill/events") as response:
            assert response.status_code == 200


async def test_many_streams_that_vanish_leave_nothing() -> None:
    """Hundreds of clients that open a stream and vanish use up no places."""
    async with serving(payer(MemoryJournal()), limits=ServerLimits(streams=10)) as client:
        await start(client, id="bill")
        text = f"GET /executions/ada:bill/events HTTP/1.1\r\n{HEAD}\r\n".encode()
        for _ in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(text)
            writer.transport.abort()
        async with asyncio.timeout(DEADLINE):
            while True:
                async with client.stream("GET", "/executions/ada:bill/events") as response:
                    if response.status_code == 200:
                        break
                await asyncio.sleep(0)
