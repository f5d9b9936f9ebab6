"""Who is let in: tokens, scopes, foreign executions, hosts, origins, and limits on what clients send."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentloop.durable import MemoryJournal
from agentloop.errors import ConfigurationError
from agentloop.service.server import Principal, Scope, ServerLimits, TokenFile, WebOrigins, access, serve
from tests.service.server.front import DEADLINE, adder, all_events, bearer, payer, read_events, serving, settled, start

ROUTES = [
    ("POST", "/executions"),
    ("GET", "/executions"),
    ("GET", "/executions/ada:bill"),
    ("GET", "/executions/ada:bill/state"),
    ("GET", "/executions/ada:bill/events"),
    ("POST", "/executions/ada:bill/decisions"),
    ("POST", "/executions/ada:bill/messages"),
    ("POST", "/executions/ada:bill/stop"),
    ("POST", "/ag-ui"),
]


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic ada-token", "ada-token", "Bearer \xff"])
async def test_without_a_valid_token_nothing_is_answered(header: str) -> None:
    """Every route but the document and the health answers 401, and the answer does not repeat the token."""
    async with serving(payer(MemoryJournal())) as client:
        for method, path in ROUTES:
            answer = await client.request(method, path, headers={b"authorization": header.encode("latin-1")}, json={})
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "wrong" not in answer.text
        assert (await client.get("/openapi.json", headers={"authorization": ""})).status_code == 200


async def test_foreign_and_unknown_executions_are_answered_alike() -> None:
    """What belongs to another principal looks exactly like what does not exist."""
    async with serving(payer(MemoryJournal())) as client:
        await start(client, id="bill")
        await settled(client, "ada:bill")
        for method, path in ROUTES[2:-1]:
            body = (
                {"decisions": {"k": {"kind": "approve", "digest": "d"}}, "message": "x"} if method == "POST" else None
            )
            foreign = await client.request(method, path, headers=bearer("bob"), json=body)
            unknown = await client.request(method, path.replace("bill", "none"), headers=bearer("ada"), json=body)
            assert foreign.status_code == unknown.status_code == 404, path
            assert foreign.content == unknown.content
        assert (await client.get("/executions", headers=bearer("bob"))).json()["executions"] == []
        assert len((await client.get("/executions", headers=bearer("boss"))).json()["executions"]) == 1


async def test_a_scope_is_needed_for_what_it_names() -> None:
    """A principal that may only read can neither start, decide, send nor stop."""
    async with serving(payer(MemoryJournal())) as client:
        viewer = bearer("viewer")
        for method, path in ROUTES:
            if method == "POST":
                body = {"input": "x", "threadId": "t", "runId": "r", "messages": [{"role": "user", "content": "x"}]}
                answer = await client.request(method, path, headers=viewer, json=body)
                assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing"), path
        assert (await client.get("/executions", headers=viewer)).status_code == 200


async def test_an_id_of_another_principal_cannot_be_taken() -> None:
    """A name with the prefix of another principal is no valid name."""
    async with serving(adder(MemoryJournal())) as client:
        answer = await client.post("/executions", json={"input": "x", "id": "bob:mine"})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_id")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", ""])
async def test_an_unknown_host_is_refused(host: str) -> None:
    """A name that an attacker lets lead to this machine is refused, also with a valid token and on loopback."""
    async with serving(adder(MemoryJournal())) as client:
        for path in ("/executions", "/health"):
            answer = await client.get(path, headers={"host": host})
            assert answer.status_code in {400, 421}  # an empty host is refused before


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:1", "null", "http://127.0.0.1"])
async def test_a_foreign_origin_is_refused(origin: str) -> None:
    """A page of another origin is refused, with a simple request as well as with a preflight."""
    async with serving(adder(MemoryJournal())) as client:
        answer = await client.get("/executions", headers={"origin": origin})
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")
        assert "access-control-allow-origin" not in answer.headers
        asked = {"origin": origin, "access-control-request-method": "POST"}
        assert (await client.options("/executions", headers=asked)).status_code == 403


async def test_a_listed_origin_has_access() -> None:
    """Pages of a listed origin, and of the server itself, may use it; the preflight says what they may send."""
    web = WebOrigins(origins=["https://app.example"])
    async with serving(adder(MemoryJournal()), web=web) as client:
        origin = {"origin": "https://app.example"}
        asked = {**origin, "access-control-request-method": "POST", "authorization": ""}
        preflight = await client.options("/executions", headers=asked)
        assert preflight.status_code == 204
        assert "Authorization" in preflight.headers["access-control-allow-headers"]
        for headers in (origin, {"origin": str(client.base_url).rstrip("/")}):
            assert (await client.get("/executions", headers=headers)).status_code == 200
        answer = await client.get("/executions/ada:none", headers=origin)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in answer.headers


async def test_bodies_are_limited_and_are_json() -> None:
    """A body that is too large, of another type, or no JSON is refused, also without a declared length."""
    limits = ServerLimits(body_bytes=1000)

    async def chunks() -> Any:
        for _ in range(100):
            yield b" " * 100

    async with serving(adder(MemoryJournal()), limits=limits) as client:
        kind = {"content-type": "application/json"}
        large = json.dumps({"input": "x" * 2000}).encode()
        assert (await client.post("/executions", content=large, headers=kind)).status_code == 413
        assert (await client.post("/executions", content=chunks(), headers=kind)).status_code == 413
        assert (await client.post("/executions", content=b"{", headers=kind)).status_code == 400
        assert (await client.post("/executions", content=b"[" * 900, headers=kind)).status_code == 400
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert (await client.post("/executions", content=b"input=x", headers=form)).status_code == 415
        assert (await client.get("/executions")).json()["executions"] == []


async def test_slow_requests_are_closed() -> None:
    """A connection that sends its headers or its body too slowly is closed."""
    limits = ServerLimits(header_seconds=0.2, body_seconds=0.2)
    async with serving(adder(MemoryJournal()), limits=limits) as client:
        head = b"POST /executions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ada-token\r\n"
        for sent, answer in ((b"", b""), (head, b""), (head + b"Content-Length: 9\r\n\r\n{", b"HTTP/1.1 408")):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(sent)
            async with asyncio.timeout(DEADLINE):
                assert (await reader.read()).startswith(answer)
            writer.close()


async def test_open_streams_are_limited_for_each_principal() -> None:
    """A principal with as many streams as allowed gets no other one, others do, and a closed one frees its place."""
    async with serving(payer(MemoryJournal()), limits=ServerLimits(streams=2)) as client:
        await start(client, id="bill")
        path = "/executions/ada:bill/events"
        async with client.stream("GET", path) as first, client.stream("GET", path) as second:
            assert first.status_code == second.status_code == 200
            many = await client.get(path)
            assert (many.status_code, many.headers["retry-after"]) == (429, "5")
            async with client.stream("GET", path, headers=bearer("boss")) as other:
                assert other.status_code == 200
        async with asyncio.timeout(DEADLINE):
            while (status := await _open(client, path)) == 429:  # noqa: ASYNC110  # of the server
                await asyncio.sleep(0)
        assert status == 200


async def _open(client: Any, path: str) -> int:
    async with client.stream("GET", path) as response:
        return int(response.status_code)


async def test_an_error_of_the_server_shows_nothing() -> None:
    """An unexpected error is answered without its text, its type or a traceback."""

    class Broken(MemoryJournal):
        async def head(self, execution_id: str) -> Any:
            raise RuntimeError("postgresql://user:hunter2@db/runs")

    async with serving(adder(Broken())) as client:
        answer = await client.get("/executions/ada:x")
        assert answer.status_code == 500
        assert answer.json()["code"] == "server_error"
        assert "hunter2" not in answer.text
        assert "RuntimeError" not in answer.text


async def test_without_tokens_only_this_machine_is_served() -> None:
    """Without tokens a server refuses to listen beyond loopback, and on loopback everyone is one principal."""
    with pytest.raises(ConfigurationError, match="other machines"):
        await serve(adder(MemoryJournal()), host="0.0.0.0", port=0)
    async with serving(adder(MemoryJournal()), authenticate=None) as client:
        execution = await client.post("/executions", json={"input": "x", "id": "y"}, headers={"authorization": ""})
        assert execution.json()["id"] == "local:y"


async def test_a_function_that_knows_tokens_can_be_async() -> None:
    """`authenticate` may be an async function."""

    async def authenticate(token: str) -> Principal | None:
        await asyncio.sleep(0)
        return Principal(name="zoe", scopes=frozenset({Scope.READ})) if token == "z" else None

    async with serving(adder(MemoryJournal()), authenticate=authenticate) as client:
        assert (await client.get("/executions", headers={"authorization": "Bearer z"})).status_code == 200
        assert (await client.get("/executions")).status_code == 401


@pytest.mark.parametrize("wire_format", ["anthropic-messages", "bedrock-converse"])
async def test_a_client_cannot_show_the_model_another_text_than_the_guardrails(wire_format: str) -> None:
    """Provider data, which a wire format may send in place of a part, is not taken of clients, neither at the start nor later."""
    hidden = {wire_format: {"block": {"type": "text", "text": "hidden"}}}
    image = {"type": "image", "url": "https://example.com/a.png"}
    async with serving(payer(MemoryJournal())) as client:
        await start(client, id="bill")
        await settled(client, "ada:bill")
        for part in ({"type": "text", "text": "shown"}, image):
            for data, status in ((hidden, 422), ({}, 202)):
                message = {"role": "user", "parts": [{**part, "provider_data": data}]}
                sent = await client.post("/executions/ada:bill/messages", json={"message": message})
                assert sent.status_code == status, sent.text
                started = await client.post("/executions", json={"input": message})
                assert started.status_code == (422 if data else 201), started.text


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "FILE:/etc/passwd", "javascript:alert(1)", "data:text/html,x", "/etc/passwd"]
)
async def test_a_client_names_no_file_of_the_machine_that_runs_the_model(url: str) -> None:
    """An address of media in a request is one of the web or of a store; no execution starts with another one."""
    message = {"role": "user", "parts": [{"type": "image", "url": url}]}
    async with serving(payer(MemoryJournal())) as client:
        await start(client, id="bill")
        await settled(client, "ada:bill")
        for path, body in (
            ("/executions", {"input": message}),
            ("/executions/ada:bill/messages", {"message": message}),
        ):
            refused = await client.post(path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_message")
        listed = (await client.get("/executions")).json()["executions"]
    assert [entry["id"] for entry in listed] == ["ada:bill"]


# --- the file of tokens ---------------------------------------------------------------------------------------------


async def test_a_token_of_the_file_is_let_in_until_it_is_removed(tmp_path: Path) -> None:
    """The file holds hashes alone, is private, and is read again when it has changed."""
    file = tmp_path / "tokens.json"
    token = TokenFile.add(file, "ada", ["read"])
    other = TokenFile.add(file, "bob", ["read", "start"])
    assert token not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    async with serving(adder(MemoryJournal()), authenticate=TokenFile(file)) as client:
        assert (await client.get("/executions", headers={"authorization": f"Bearer {token}"})).status_code == 200
        document = json.loads(file.read_text())
        document["tokens"] = document["tokens"][1:]
        file.write_text(json.dumps(document))
        assert (await client.get("/executions", headers={"authorization": f"Bearer {token}"})).status_code == 401
        assert (await client.get("/executions", headers={"authorization": f"Bearer {other}"})).status_code == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", 'an object with a list "tokens"'),
        ('{"tokens": [{"name": "a"}]}', r"tokens\[0\] needs a name"),
        ('{"tokens": [{"name": "a", "scopes": ["raed"], "sha256": "%s"}]}' % ("0" * 64), "did you mean 'read'"),
        ('{"tokens": [{"name": "a:b", "scopes": [], "sha256": "%s"}]}' % ("0" * 64), "the name of a principal"),
    ],
)
def test_mistakes_in_the_file_of_tokens_are_named(text: str, message: str, tmp_path: Path) -> None:
    """A file with a mistake is refused when the server starts."""
    file = tmp_path / "tokens.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        TokenFile(file)


def test_tokens_that_are_added_at_once_are_all_let_in(tmp_path: Path) -> None:
    """Each token that was printed is in the file, which keeps its mode, and nothing else is left."""
    file = tmp_path / "tokens.json"
    file.write_text('{"tokens": []}')
    file.chmod(0o640)
    with ThreadPoolExecutor(8) as threads:
        tokens = list(threads.map(lambda number: TokenFile.add(file, f"p{number}", ["read"]), range(24)))
    known = TokenFile(file)
    assert all(known(token) for token in tokens)
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_a_draft_that_was_left_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a process has died while it added a token, the message says what to delete; a file with mistakes leaves none."""
    monkeypatch.setattr(access, "_CHANGE_SECONDS", 0.0)
    file, draft = tmp_path / "tokens.json", tmp_path / "tokens.json.new"
    file.write_text("{")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="is not JSON"):
            TokenFile.add(file, "ada", ["read"])
    draft.touch()
    with pytest.raises(ConfigurationError, match=str(draft)):
        TokenFile.add(file, "ada", ["read"])
    assert draft.exists()


async def test_the_end_of_a_stream_is_not_the_end_of_the_execution() -> None:
    """A client that disconnects does not stop what it has started."""
    async with serving(adder(MemoryJournal())) as client:
        await start(client, id="sum")
        async with client.stream("GET", "/executions/ada:sum/events") as response:
            async for _ in read_events(response):
                break
        assert (await settled(client, "ada:sum"))["status"] == "completed"
        assert (await all_events(client, "/executions/ada:sum/events"))[-1].event == "execution_ended"
