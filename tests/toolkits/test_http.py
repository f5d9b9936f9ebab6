"""The toolkit for HTTP, with real servers on the loopback interface."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolExecution
from agentloop.errors import ConfigurationError
from agentloop.policies.web_addresses import HostRules
from agentloop.toolkits import Ensemble
from agentloop.toolkits.http import Fetcher, http, http_by
from agentloop.values import Document, Effect, Image, ToolStatus
from tests.certificates import certificate
from tests.toolkits.running import run_call


def reply(body: bytes = b"", media_type: str = "text/plain", status: str = "200 OK", **headers: str) -> bytes:
    """Return an answer of a server."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", f"content-type: {media_type}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return reply(b"moved", status=status, location=location)


@define
class Site:
    """A server whose pages are bytes, and what it received."""

    port: int = 0
    pages: dict[str, bytes | Callable[[], bytes]] = field(factory=dict)
    received: list[str] = field(factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(
                (int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length" in line), 0
            )
            self.received.append(head + (await reader.readexactly(length)).decode())
            page = self.pages.get(head.split(" ")[1], reply(b"nothing here", status="404 Not Found"))
            writer.write(page if isinstance(page, bytes) else page())
            if page != b"":
                await writer.drain()
                writer.close()
            else:  # a server that never answers
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has left, which some tests want
        finally:
            writer.close()


async def start(stack: AsyncExitStack, **options: Any) -> Site:
    site = Site()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0, **options)
    site.port = server.sockets[0].getsockname()[1]

    async def stop() -> None:
        server.close()
        await server.wait_closed()

    stack.push_async_callback(stop)
    return site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield await start(stack)


@pytest.fixture
async def other() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield await start(stack)


def web(*sites: Site, **options: Any) -> list[Ensemble]:
    return [http([], allow_private=[site.host for site in sites], **options)]


async def get(site: Site, path: str = "/", **options: Any) -> ToolExecution:
    return await run_call(web(site, **options), "http_get", url=site.url(path))


def value(execution: ToolExecution) -> dict[str, Any]:
    assert execution.status is ToolStatus.SUCCEEDED, execution.error_message
    return execution.value  # type: ignore[return-value]  # an object


async def test_a_model_reads_pages_data_and_text(site: Site) -> None:
    """Pages become text, JSON becomes data, and the status of the server is part of the result."""
    site.pages["/page?q=1"] = reply(b"<title>T</title><p>One<p>Two", "text/html; charset=utf-8")
    site.pages["/data"] = reply(b'{"a": [1, null]}', "application/vnd.api+json")
    site.pages["/bad"] = reply(b'{"a": ', "application/json")
    site.pages["/latin"] = reply("Grüße".encode("latin-1"), "text/plain; charset=ISO-8859-1")
    site.pages["/meta"] = reply("<meta charset=windows-1252><p>Grüße".encode("cp1252"), "text/html")
    page = value(await get(site, "/page?q=1"))
    assert (page["title"], page["text"], page["status"], page["url"]) == ("T", "One\nTwo", 200, site.url("/page?q=1"))
    assert value(await get(site, "/data"))["data"] == {"a": (1, None)}
    assert value(await get(site, "/bad"))["text"] == '{"a": '
    site.pages["/deep"] = reply(b"[" * 500 + b"]" * 500, "application/json")
    assert value(await get(site, "/deep"))["text"] == "[" * 500 + "]" * 500
    assert value(await get(site, "/latin"))["text"] == "Grüße"
    assert value(await get(site, "/meta"))["text"] == "Grüße"
    assert value(await get(site, "/missing"))["status"] == 404


async def test_images_and_documents_are_parts(site: Site) -> None:
    """The model gets an image or a PDF itself; data that is none would spoil the conversation and is refused."""
    png = b"\x89PNG\r\n\x1a\n" + b"x" * 20
    site.pages["/a/plan.png?x=1"] = reply(png, "image/png")
    site.pages["/doc.pdf"] = reply(b"%PDF-1.7 x", "application/pdf")
    site.pages["/false.png"] = reply(b"<html>", "image/png")
    site.pages["/zip"] = reply(b"PK", "application/zip")
    image = (await get(site, "/a/plan.png?x=1")).parts[-1]
    assert image == Image(media_type="image/png", data=png, name="plan.png")
    assert isinstance((await get(site, "/doc.pdf")).parts[-1], Document)
    assert "says that it is image/png, and is not" in (await get(site, "/false.png")).error_message
    assert "of the type 'application/zip'" in (await get(site, "/zip")).error_message


async def test_long_texts_are_read_in_pieces(site: Site) -> None:
    """A text is cut to the maximum, says so, and can be read on."""
    site.pages["/"] = reply(b"0123456789")
    tools = web(site, max_characters=4)
    pieces = [value(await run_call(tools, "http_get", url=site.url(), start=start)) for start in (0, 4, 8)]
    assert [(piece["text"], piece["is_cut"]) for piece in pieces] == [("0123", True), ("4567", True), ("89", False)]


async def test_each_method_has_its_effect(site: Site) -> None:
    """Reading is pure, what can be repeated is idempotent, and everything else is an effect that approvals see."""
    (tools,) = web(site, methods=["GET", "put", "DELETE", "POST", "PATCH"])
    assert {tool.name: tool.effect for tool in tools.offered} == {
        "http_get": Effect.PURE,
        "http_put": Effect.IDEMPOTENT,
        "http_delete": Effect.IDEMPOTENT,
        "http_post": Effect.EFFECT,
        "http_patch": Effect.EFFECT,
    }
    site.pages["/orders"] = reply(b'{"id": 7}', "application/json", "201 Created")
    done = await run_call([tools], "http_post", url=site.url("/orders"), body='{"n": "ü"}')
    assert (value(done)["status"], value(done)["data"]) == (201, {"id": 7})
    assert site.received[0].startswith("POST /orders HTTP/1.1")
    assert site.received[0].endswith('{"n": "ü"}')
    assert "content-type: application/json" in site.received[0].lower()
    with pytest.raises(ConfigurationError, match="no method 'TRACE'"):
        http(["example.com"], methods=["TRACE"])
    assert [tool.name for tool in http(["example.com"]).offered] == ["http_get"]


# --- addresses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:{port}/",
        "http://127.0.0.1/",
        "http://127.0.0.1:22/",
        "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://[64:ff9b::7f00:1]:{port}/",
        "http://2130706433:{port}/",
        "http://0:{port}/",
        "http://user@127.0.0.1:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[fd00:ec2::254]/",
        "file:///etc/passwd",
    ],
)
async def test_no_spelling_of_a_private_address_is_reached(site: Site, url: str) -> None:
    """With every public host allowed, no way to write an address of this machine or of a cloud leads to it."""
    tools = [http(["*", f"*:{site.port}"])]
    done = await run_call(tools, "http_get", url=url.format(port=site.port))
    assert done.status is ToolStatus.FAILED
    assert site.received == []


async def test_a_host_has_to_be_allowed(site: Site, other: Site) -> None:
    """A server that is not on the list is not contacted."""
    done = await run_call(web(site), "http_get", url=other.url())
    assert done.error_message == f"{other.host} is not among the hosts that may be reached"
    assert other.received == []


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::1"], ["64:ff9b::a9fe:a9fe"], [], ["x"]]
)
async def test_a_name_of_a_private_address_is_not_reached(site: Site, addresses: list[str]) -> None:
    """A public name that leads to a private address, also among public ones, is refused before any connection."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("innocent.example", site.port)
        return addresses

    tools = [http_by(Fetcher(HostRules([f"innocent.example:{site.port}"]), resolve=resolve))]
    done = await run_call(tools, "http_get", url=f"http://innocent.example:{site.port}/")
    assert done.status is ToolStatus.FAILED
    assert site.received == []


async def test_the_address_that_was_checked_is_the_one_that_is_used(site: Site) -> None:
    """A name is resolved once for a request: what it leads to afterwards changes nothing, and the server sees the name."""
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(answers)

    site.pages["/"] = reply(b"hello")
    rules = HostRules([], [f"inside.example:{site.port}"])
    tools = [http_by(Fetcher(rules, resolve=resolve))]
    assert value(await run_call(tools, "http_get", url=f"http://inside.example:{site.port}/"))["text"] == "hello"
    assert f"host: inside.example:{site.port}" in site.received[0].lower()
    assert next(answers) == ["127.0.0.2"]


async def test_another_address_is_tried_when_one_takes_no_connection(site: Site) -> None:
    """Of several addresses, one that refuses connections does not hide another."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.3", "127.0.0.1"]

    site.pages["/"] = reply(b"hello")
    tools = [http_by(Fetcher(HostRules([], [f"inside.example:{site.port}"]), resolve=resolve))]
    assert value(await run_call(tools, "http_get", url=f"http://inside.example:{site.port}/"))["text"] == "hello"


# --- redirects --------------------------------------------------------------------------------------------------


async def test_redirects_are_checked_like_the_first_address(site: Site, other: Site) -> None:
    """A redirect is followed to an allowed host only, whatever form it has."""
    site.pages["/relative"] = redirect("/target?x")
    site.pages["/target?x"] = reply(b"here")
    site.pages["/allowed"] = redirect(other.url("/"))
    other.pages["/"] = reply(b"there")
    followed = value(await run_call(web(site, other), "http_get", url=site.url("/relative")))
    assert (followed["text"], followed["url"]) == ("here", site.url("/target?x"))
    assert value(await run_call(web(site, other), "http_get", url=site.url("/allowed")))["text"] == "there"
    for number, location in enumerate(
        [
            other.url(),
            f"//{other.host}/",
            "http://169.254.169.254/",
            "file:///etc/passwd",
            f"http://u:p@{site.host}/",
            "http://[",
            "\\\\x",
        ]
    ):
        site.pages[f"/{number}"] = redirect(location)
        assert (await get(site, f"/{number}")).status is ToolStatus.FAILED, location
    assert len(other.received) == 1


async def test_endless_redirects_end(site: Site) -> None:
    """A redirect to itself is an error after a few requests."""
    site.pages["/"] = redirect("/")
    assert "more than 5 redirects" in (await get(site)).error_message
    assert len(site.received) == 6


async def test_what_identifies_the_program_stays_with_its_host(site: Site, other: Site) -> None:
    """Headers for one host are not sent to another one after a redirect, cookies are kept by nobody, and answers hide the key."""
    site.pages["/"] = redirect(other.url("/"))
    other.pages["/"] = lambda: reply(other.received[-1].encode(), set_cookie="a=b")
    site.pages["/echo"] = lambda: reply(site.received[-1].encode(), set_cookie="a=b")
    tools = web(site, other, headers={site.host: {"Authorization": "Bearer s3cret-token-0815"}})
    echoed = value(await run_call(tools, "http_get", url=site.url("/echo")))
    assert "authorization: bearer s3cret-token-0815" in site.received[0].lower()
    assert "s3cret" not in str(echoed)
    assert "s3cret" not in repr(tools)
    await run_call(tools, "http_get", url=site.url("/echo"))
    assert "cookie" not in site.received[1].lower()
    await run_call(tools, "http_get", url=site.url())
    assert "s3cret" in site.received[2]
    assert "s3cret" not in other.received[0]  # another port is another server
    with pytest.raises(ConfigurationError, match="headers are for one host"):
        web(site, headers={"*.example.com": {"X": "y"}})


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (b'{"a": "Bearer key\\/of=a&123456", "key\\/of=a&123456": 1}', "application/json"),
        (b"<title>key/of=a&amp;123456</title><p>Bearer key/of=<b>a</b>&amp;123456", "text/html"),
        (b"token: key/of=a&123456", "text/plain"),
    ],
)
async def test_a_key_does_not_come_back_in_another_spelling(site: Site, body: bytes, media_type: str) -> None:
    """A key that a server repeats with escapes or without its scheme is masked; plain headers mask nothing."""
    headers = {site.host: {"Authorization": "Bearer key/of=a&123456", "X-Api-Version": "2022-11-28", "X-Page": "2"}}
    site.pages["/"] = reply(body + (b"" if b"{" in body else b" 2022-11-15"), media_type)
    done = await get(site, headers=headers)
    assert "authorization: bearer key/of=a&123456" in site.received[0].lower()
    assert done.succeeded
    assert "123456" not in str(done.value) + done.text
    assert "***" in str(done.value)
    assert b"{" in body or "2022-11-15" in value(done)["text"]


async def test_a_title_is_short(site: Site) -> None:
    """The title of a page is a line, not a way around the maximum length of a text."""
    site.pages["/"] = reply(b"<title>" + b"x" * 100_000 + b"</title><p>text", "text/html")
    assert len((await get(site, max_characters=1_000)).text) < 1_000


async def test_headers_of_a_host_are_for_that_name_and_for_encryption(site: Site, other: Site) -> None:
    """After a redirect to another name, the headers of the first one are gone; without encryption they are never sent."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    rules = HostRules(["c.example"], [f"a.example:{site.port}", f"b.example:{other.port}"])
    keys = {f"a.example:{site.port}": {"X-Key": "key-of-a-123456"}, "c.example": {"X-Key": "key-of-c-123456"}}
    tools = [http_by(Fetcher(rules, keys, resolve=resolve))]
    site.pages["/"] = redirect(f"http://b.example:{other.port}/")
    other.pages["/"] = reply(b"there")
    assert value(await run_call(tools, "http_get", url=f"http://a.example:{site.port}/"))["text"] == "there"
    assert "key-of-a-123456" in site.received[0]
    assert "key-of-a" not in other.received[0]
    assert "need encryption" in (await run_call(tools, "http_get", url="http://c.example/")).error_message


async def test_an_effect_is_not_repeated_at_another_host(site: Site, other: Site) -> None:
    """After a POST, a redirect leads to a page that is read; a request is sent again to the same host only."""
    tools = web(site, other, methods=["POST", "PUT"])
    site.pages["/303"] = redirect("/done", "303 See Other")
    site.pages["/307"] = redirect("/done", "307 Temporary Redirect")
    site.pages["/308"] = redirect(other.url("/"), "308 Permanent Redirect")
    site.pages["/done"] = reply(b"done")
    for path, method in (("/303", "GET"), ("/307", "POST")):
        await run_call(tools, "http_post", url=site.url(path), body="x")
        assert site.received[-1].startswith(f"{method} /done"), path
    site.pages["/302"] = redirect("/done")
    for name, method in (("http_post", "GET"), ("http_put", "PUT")):
        await run_call(tools, name, url=site.url("/302"), body="x")
        assert site.received[-1].startswith(f"{method} /done"), name
    refused = await run_call(tools, "http_post", url=site.url("/308"), body="x")
    assert "redirects this POST to another host" in refused.error_message
    assert other.received == []


# --- headers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "host", "Authorization", "Cookie", "X-Forwarded-For", "Proxy-Authorization", "Transfer-Encoding"),
        *("Connection", "Content-Length", "Origin", "Referer", "Range", "User-Agent", "Upgrade", "X-Api-Key"),
        *("", "a b", "A\r\nB"),
    ],
)
async def test_a_model_does_not_say_who_asks(site: Site, name: str) -> None:
    """A model sets headers about the form of the answer only."""
    done = await run_call(web(site), "http_get", url=site.url(), headers={name: "x"})
    assert "is set by the program" in done.error_message
    assert site.received == []


async def test_a_model_sets_headers_about_the_answer(site: Site) -> None:
    """A language can be chosen; line ends and other characters that would begin another header are refused."""
    await run_call(web(site), "http_get", url=site.url(), headers={"Accept-Language": "de"})
    assert "accept-language: de" in site.received[0].lower()
    for text in ("x\r\nHost: y", "x\ny", "x\x00", "ü", "x" * 2000):
        done = await run_call(web(site), "http_get", url=site.url(), headers={"Accept": text})
        assert "characters that a header cannot have" in done.error_message
    tools = web(site, methods=["POST"])
    done = await run_call(tools, "http_post", url=site.url(), body="x", content_type="a/b\r\nX: y")
    assert done.status is ToolStatus.FAILED
    assert len(site.received) == 1


# --- sizes and times --------------------------------------------------------------------------------------------


def bomb(size: int) -> bytes:
    compressor = zlib.compressobj(9, wbits=31)
    return b"".join([compressor.compress(b"\0" * 1_000_000) for _ in range(size // 1_000_000)]) + compressor.flush()


async def test_answers_have_a_maximum_size(site: Site) -> None:
    """Large answers are refused, also when they are large only after decompression, or are compressed in a way that hides it."""
    data = bomb(300_000_000)
    assert len(data) < 400_000
    site.pages["/plain"] = reply(b"x" * 1_000_001)
    site.pages["/bomb"] = reply(data, content_encoding="gzip")
    site.pages["/twice"] = reply(gzip.compress(data), content_encoding="gzip, gzip")
    site.pages["/brotli"] = reply(b"x", content_encoding="br")
    site.pages["/broken"] = reply(b"no gzip", content_encoding="gzip")
    site.pages["/good"] = reply(gzip.compress(b"fine"), content_encoding="gzip")
    for path in ("/plain", "/bomb"):
        assert "more than 1000000 bytes" in (await get(site, path, max_bytes=1_000_000)).error_message
    for path in ("/twice", "/brotli"):
        assert "is not supported" in (await get(site, path)).error_message
    assert "broke off" in (await get(site, "/broken")).error_message
    assert value(await get(site, "/good"))["text"] == "fine"


async def test_compressed_data_is_complete_or_an_error(site: Site) -> None:
    """Several members of gzip are one text, padding is ignored, and data that ends too early is no answer."""
    one, two = gzip.compress(b"one "), gzip.compress(b"two")
    for path, data in (("/both", one + two), ("/padded", one + two + bytes(100)), ("/cut", one + two[:-6])):
        site.pages[path] = reply(data, content_encoding="gzip")
    assert value(await get(site, "/both"))["text"] == "one two"
    assert value(await get(site, "/padded"))["text"] == "one two"
    assert "broke off" in (await get(site, "/cut")).error_message


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ntoo short"])
async def test_an_effect_without_an_answer_is_in_doubt(site: Site, answer: bytes) -> None:
    """A POST that was sent may have been carried out; what is idempotent has failed, and so has what was never sent."""
    site.pages["/"] = answer
    tools = web(site, methods=["POST", "PUT"], max_seconds=0.3)
    assert (await run_call(tools, "http_post", url=site.url(), body="x")).status is ToolStatus.IN_DOUBT
    assert (await run_call(tools, "http_put", url=site.url(), body="x")).status is ToolStatus.FAILED
    nobody = [http([], allow_private=["127.0.0.1:1"], methods=["POST"])]
    assert (await run_call(nobody, "http_post", url="http://127.0.0.1:1/", body="x")).status is ToolStatus.FAILED


async def test_a_result_that_cannot_be_read_does_not_hide_the_effect(site: Site, other: Site) -> None:
    """When a POST was carried out and its result is at a host that may not be reached, the error says so."""
    site.pages["/"] = redirect(other.url("/"), "303 See Other")
    done = await run_call(web(site, methods=["POST"]), "http_post", url=site.url(), body="x")
    assert "not among the hosts" in done.error_message
    assert "the POST itself was answered with status 303" in done.error_message
    assert other.received == []


async def test_a_request_has_a_maximum_time(site: Site) -> None:
    """A server that accepts a connection and says nothing ends in an error that names the time."""
    site.pages["/"] = b""
    assert "no complete answer within 0.2 seconds" in (await get(site, max_seconds=0.2)).error_message


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ntoo short",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000 + b"\r\n\r\n",
        b"HTTP/1.1 999999 X\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=zip\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nab",
    ],
)
async def test_a_server_that_breaks_the_protocol_fails_the_call(site: Site, answer: bytes) -> None:
    """Whatever a server sends, the call ends with an error in words."""
    site.pages["/"] = answer
    done = await get(site)
    assert done.status is ToolStatus.FAILED
    assert done.error is not None
    assert done.error.type == "ToolFailed"


async def test_a_server_that_is_not_there_is_named(site: Site) -> None:
    """A refused connection is an error with the name of the host, and the loop goes on."""
    tools = [http([], allow_private=["127.0.0.1:1"])]
    model = ScriptedInference(ToolCall("1", "http_get", '{"url": "http://127.0.0.1:1/"}'), "It is down.")
    state = await AgentLoop.for_model(model, tools=tools).execute("go")
    assert state.steps[0].executions[0].error_message.startswith("127.0.0.1:1 cannot be reached")
    assert state.final_text == "It is down."


# --- certificates -----------------------------------------------------------------------------------------------


async def test_the_certificate_has_to_be_that_of_the_name(tmp_path: Path) -> None:
    """The connection goes to a network address, and the certificate is checked for the name; another one is refused."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    server, client = certificate(tmp_path, "shop.example")
    async with AsyncExitStack() as stack:
        site = await start(stack, ssl=server)
        site.pages["/"] = reply(b"hello")
        rules = HostRules([], [f"shop.example:{site.port}", f"bank.example:{site.port}"])
        tools = [http_by(Fetcher(rules, resolve=resolve, tls=client))]
        good = await run_call(tools, "http_get", url=f"https://shop.example:{site.port}/")
        assert value(good)["text"] == "hello"
        bad = await run_call(tools, "http_get", url=f"https://bank.example:{site.port}/")
        assert "certificate verify failed" in bad.error_message
        unknown = [http_by(Fetcher(rules, resolve=resolve))]
        assert (
            "certificate"
            in (await run_call(unknown, "http_get", url=f"https://shop.example:{site.port}/")).error_message
        )
    assert len(site.received) == 1


def test_a_descriptor_can_name_it(tmp_path: Path) -> None:
    """A TOML file names the toolkit with its hosts."""
    (tmp_path / "web.toml").write_text(
        'use = "agentloop.toolkits.http:http"\noptions = { hosts = ["*.example.com"], methods = ["GET", "POST"] }\n'
    )
    ensemble = Ensemble.from_toml(tmp_path / "web.toml")
    assert [tool.name for tool in ensemble.offered] == ["http_get", "http_post"]
