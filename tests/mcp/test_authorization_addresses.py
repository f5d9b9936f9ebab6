"""Where requests of authorization go: to public addresses, and to those that a person or a program has named."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentloop.errors import ConfigurationError
from agentloop.mcp import ClientCredentials, OAuth
from agentloop.mcp.sdk.authorization_requests import AuthorizationFailed, AuthorizationRequests
from tests.certificates import certificate
from tests.mcp.guarded_server import Browser, Guarded, TokensInMemory, as_json, guarded
from tests.mcp.test_authorization import act, ensemble

METADATA, RESOURCE = "/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource/mcp"


class Names:
    """A resolver with names of its own, which counts its questions."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.questions: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:  # as a resolver has it
        self.questions.append(host)
        return self.answers[min(len(self.questions), len(self.answers)) - 1]


def requests_of(server: str = "https://remote.example/mcp", *hosts: str, resolve: Any = None) -> AuthorizationRequests:
    """Return the requests of a server that only names itself."""
    return AuthorizationRequests((server, ""), hosts, resolve or Names(["203.0.114.1"]))


INSIDE = """
127.0.0.1 127.1.2.3 0.0.0.0 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 100.64.0.1 100.100.100.200 168.63.129.16
192.0.0.192 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255 192.88.99.1 192.31.196.1 ::1 :: ::ffff:127.0.0.1 ::ffff:169.254.169.254
::127.0.0.1 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::7f00:1 2002:7f00:1:: 2001:0:7f00:1:: fe80::1 fc00::1 fd00:ec2::254 fec0::1
ff02::1 2001:4860::5efe:7f00:1 2001:4860::200:5efe:7f00:1 2001:db8::1 100::1 5f00::1 ::ffff:0:127.0.0.1
"""


@pytest.mark.parametrize("address", INSIDE.split())
async def test_no_name_leads_inside(address: str) -> None:
    """A name whose network addresses are inside, or of which one is, is refused before a connection; a page of it, too."""
    for answer in ([address], ["203.0.114.1", address]):
        requests = requests_of(resolve=Names(answer))
        with pytest.raises(AuthorizationFailed, match="may not be reached"):
            await requests.send(httpx2.Request("POST", "https://login.example/token"))
        with pytest.raises(AuthorizationFailed, match="may not be reached"):
            await requests.check_page("https://login.example/authorize")


SPELLINGS = """
https://127.0.0.1/t https://127.0.0.1:8443/t https://127.1/t https://127.0.1/t https://2130706433/t https://0x7f.1/t
https://0x7f000001/t https://017700000001/t https://127.000.000.001/t https://0/t https://127.0.0.1./t https://127.0.0.1../t
https://\uff11\uff12\uff17.0.0.1/t https://127\u30020\u30020\u30021/t https://\u2460\u2461\u2466.0.0.1/t https://[::1]/t https://[::]/t
https://[0:0:0:0:0:0:0:1]/t https://[::ffff:127.0.0.1]/t https://[::ffff:7f00:1]/t https://[64:ff9b::a9fe:a9fe]/t https://[2002:7f00:1::]/t
https://[fe80::1%25lo]/t https://[fe80::1%lo]/t https://169.254.169.254/latest/meta-data https://[fd00:ec2::254]/t https://a@127.0.0.1/t
https://login.example@127.0.0.1/t https://login.example:443@127.0.0.1/t https://127.0.0.1#@login.example/t
https://127.0.0.1?@login.example/t https://127.0.0.1:0/t https://127.0.0.1:99999/t https://127.0.0.1%2f@login.example/t
https://%31%32%37.0.0.1/t https://1.2.3.4.5/t http://127.0.0.1/t http://localhost/t http://LOCALHOST./t http://[::1]/t
http://login.example/t http://169.254.169.254/t ftp://127.0.0.1/t file:///etc/passwd gopher://127.0.0.1:6379/_x javascript:alert(1)
data:text/html,x //127.0.0.1/t https:127.0.0.1/t https:///127.0.0.1/t https:\\\\127.0.0.1/t https://login.example\\@127.0.0.1/t
"""


@pytest.mark.parametrize("url", SPELLINGS.split())
async def test_no_spelling_of_an_address_leads_inside(url: str) -> None:
    """An address in any spelling, with a user, an unusual port or another scheme, is refused without a question to a resolver."""
    names = Names(["127.0.0.1"])
    requests = requests_of(resolve=names)
    with pytest.raises(AuthorizationFailed):
        await requests.check_page(url)
    try:
        request = httpx2.Request("POST", url)
    except (httpx2.InvalidURL, ValueError):
        return
    with pytest.raises(AuthorizationFailed):
        await requests.send(request)
    assert names.questions == []


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST.", "a.localhost", "ip6-localhost", "localhost.localdomain"])
async def test_names_of_this_machine_lead_nowhere(name: str) -> None:
    """Also by the resolver of the system: a name of this machine is at an address of it, or at none."""
    requests = AuthorizationRequests(("https://remote.example/mcp",))
    with pytest.raises(AuthorizationFailed, match=r"(may not|cannot) be reached"):
        await requests.send(httpx2.Request("POST", f"https://{name}/token"))


@asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Run a server that answers each request with an empty object; yield its port, and the heads that it receives."""
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 404 X\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    async with listener:
        yield listener.sockets[0].getsockname()[1], received


async def test_a_name_that_changes_its_address_changes_nothing() -> None:
    """The name is resolved once, and the connection goes to an address of that answer."""
    async with listening() as (port, received):
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        url = f"http://login.test:{port}"
        requests = AuthorizationRequests(("https://remote.example/mcp", url), (), names)
        reply = await requests.send(httpx2.Request("GET", f"{url}/metadata?a=1"))
        assert (reply.status_code, await reply.aread()) == (404, b"{}")
        assert str(reply.request.url) == f"{url}/metadata?a=1"
    assert names.questions == ["login.test"]
    assert received[0].startswith(b"GET /metadata?a=1 HTTP/1.1\r\n")
    assert f"host: login.test:{port}".encode() in received[0].lower()


async def test_a_private_host_may_change_its_address_but_not_to_that_of_a_cloud() -> None:
    """A host that was named may be inside; the service with the keys of a cloud has no such name."""
    requests = requests_of("https://remote.example/mcp", "login.internal", resolve=Names(["169.254.169.254"]))
    with pytest.raises(AuthorizationFailed, match="metadata of the cloud"):
        await requests.send(httpx2.Request("GET", "https://login.internal/x"))


async def test_the_certificate_is_that_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to a network address that was checked is one to the host of this name, or fails."""
    server, _ = certificate(tmp_path, "login.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "login.test.pem"))
    async with listening(server) as (port, received):
        for name, is_good in (("login.test", True), ("other.test", False)):
            requests = requests_of("https://remote.example/mcp", f"{name}:*", resolve=Names(["127.0.0.1"]))
            request = httpx2.Request("GET", f"https://{name}:{port}/x")
            if is_good:
                assert (await requests.send(request)).status_code == 404
            else:
                with pytest.raises(httpx2.ConnectError, match="not valid for") as caught:
                    await requests.send(request)
                assert caught.value.request is request
    assert len(received) == 1


async def test_a_proxy_is_not_asked_for_what_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy, which resolves names itself, the addresses that a name has here are checked all the same."""
    async with listening() as (port, received):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        for url, answer in (("https://10.0.0.1/t", ["10.0.0.1"]), ("https://login.example/t", ["10.0.0.1"])):
            with pytest.raises(AuthorizationFailed, match="may not be reached"):
                await requests_of(resolve=Names(answer)).send(httpx2.Request("POST", url))
        assert received == []
        with pytest.raises(httpx2.ProxyError):
            await requests_of().send(httpx2.Request("POST", "https://login.example/t"))
    assert received[0].startswith(b"CONNECT login.example:443 ")


# --- through a server -----------------------------------------------------------------------------------------------


def metadata(**members: str) -> Callable[[Guarded, Guarded], None]:
    """Return a lie in the metadata of the authorization server; `{url}` is another service of this machine."""

    def lie(hostile: Guarded, other: Guarded) -> None:
        hostile.metadata.update({name: text.format(url=other.url) for name, text in members.items()})

    return lie


def challenge(hostile: Guarded, other: Guarded) -> None:
    place = f'Bearer resource_metadata="{other.url}/inside"'
    hostile.answers["/mcp"] = lambda _: (401, {"www-authenticate": place}, b"")


def authorization_server(hostile: Guarded, other: Guarded) -> None:
    document = {"resource": hostile.mcp, "authorization_servers": [other.url]}
    hostile.answers[RESOURCE] = lambda _: as_json(document)


def redirect(path: str) -> Callable[[Guarded, Guarded], None]:
    def lie(hostile: Guarded, other: Guarded) -> None:
        hostile.answers[path] = lambda _: (307, {"location": f"{other.url}/inside"}, b"")

    return lie


LIES: dict[str, Callable[[Guarded, Guarded], None]] = {
    "the address of the metadata": challenge,
    "the authorization server": authorization_server,
    "the page": metadata(authorization_endpoint="{url}/authorize"),
    "the token endpoint": metadata(token_endpoint="{url}/token"),
    "the registration": metadata(registration_endpoint="{url}/register"),
    "a redirect of the metadata": redirect(METADATA),
    "a redirect of the resource": redirect(RESOURCE),
    "a redirect of the token": redirect("/token"),
    "a redirect of the server": redirect("/mcp"),
}


@pytest.mark.parametrize("kind", LIES)
async def test_a_server_of_this_machine_leads_to_no_other_service_of_it(kind: str) -> None:
    """The address that a person has named is one service; its metadata and redirects reach no other one."""
    browser = Browser()
    async with guarded() as hostile, guarded() as other:
        LIES[kind](hostile, other)
        auth = OAuth(open_browser=browser, tokens=TokensInMemory())
        async with ensemble(hostile, auth, required=False) as running:
            assert running.diagnose() or not kind.startswith("the ")
    assert other.received == []
    assert not [page for page in browser.pages if page.startswith(other.url)]


async def test_tokens_that_are_kept_lead_nowhere_else() -> None:
    """Metadata that were kept with tokens, perhaps by an earlier version, are checked as new ones are."""
    tokens = TokensInMemory()
    async with guarded() as server, guarded() as other:
        auth = OAuth(open_browser=Browser(), tokens=tokens)
        async with ensemble(server, auth) as running:
            await act(running)
        ((key, document),) = tokens.documents.items()
        changed = json.loads(document.reveal())
        changed["metadata"]["token_endpoint"] = f"{other.url}/token"
        tokens.documents[key] = type(document)(json.dumps(changed))
        server.valid.clear()
        async with ensemble(server, auth, required=False) as running:
            assert "allow_private=" in running.diagnose()
    assert other.received == []


@pytest.mark.parametrize("way", ["issuer", "host", "any port"])
async def test_what_a_program_names_is_reached(way: str) -> None:
    """An authorization server at another port of this machine works where `issuer` or `allow_private` names it."""
    async with guarded() as server, guarded() as login:
        authorization_server(server, login)
        host = login.url.removeprefix("http://")
        named: dict[str, dict[str, Any]] = {
            "issuer": {"issuer": login.url},
            "host": {"allow_private": [host]},
            "any port": {"allow_private": ["127.0.0.1:*"]},
        }
        login.valid = server.valid
        async with ensemble(server, OAuth(open_browser=Browser(), tokens=TokensInMemory(), **named[way])) as running:
            assert await act(running) == "done"
    assert "/token" in login.paths()
    assert not {"/token", "/register"} & {*server.paths()}


async def test_a_program_without_a_person_names_its_issuer() -> None:
    """The issuer that a secret is for may be inside, since the program has named it."""
    async with guarded() as server, guarded() as login:
        authorization_server(server, login)
        login.valid = server.valid
        async with ensemble(server, ClientCredentials("program", "hidden-secret", issuer=login.url)) as running:
            assert await act(running) == "done"


@pytest.mark.parametrize("hosts", ["localhost", ["http://localhost"], ["*"], ["localhost:0"], ["a b"]])
def test_what_is_no_host_is_a_mistake(hosts: Any) -> None:
    """A private host is named in full."""
    with pytest.raises(ConfigurationError):
        OAuth(allow_private=hosts)
