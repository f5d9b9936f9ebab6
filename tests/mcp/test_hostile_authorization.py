"""Servers that lie about their authorization: the reason is one sentence, and nothing is sent where it does not belong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from attrs import frozen

from agentloop.errors import ToolError
from agentloop.mcp import ClientCredentials, OAuth
from tests.mcp.guarded_server import Answer, Browser, Guarded, TokensInMemory, as_json, guarded
from tests.mcp.test_authorization import act, ensemble

METADATA, RESOURCE = "/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource/mcp"


@frozen
class Servers:
    """The server that lies, and another one that must receive nothing."""

    hostile: Guarded
    elsewhere: Guarded


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    async with guarded() as hostile, guarded() as elsewhere:
        yield Servers(hostile, elsewhere)


def changed(**members: Any) -> Callable[[Servers], None]:
    """Return a lie in the metadata of the authorization server; `{url}` is the address of the other server."""

    def lie(servers: Servers) -> None:
        texts = json.dumps(members).replace("{url}", servers.elsewhere.url)
        servers.hostile.metadata.update(json.loads(texts))

    return lie


def answering(path: str, answer: Callable[[Servers], Answer]) -> Callable[[Servers], None]:
    """Return a lie at one path."""

    def lie(servers: Servers) -> None:
        servers.hostile.answers[path] = lambda _: answer(servers)

    return lie


def redirecting(status: int) -> Callable[[Servers], Answer]:
    return lambda servers: (status, {"location": f"{servers.elsewhere.url}/token"}, b"hidden-body")


HUGE = b'{"access_token": "' + b"x" * (1 << 20) + b'"}'
PLAIN = {"content-type": "application/json"}
LIES: dict[str, tuple[Callable[[Servers], None], str]] = {
    "another issuer": (changed(issuer="https://evil.example"), "issuer mismatch"),
    "a token endpoint without https": (changed(token_endpoint="http://evil.example/token"), "not a safe https address"),
    "a page without https": (changed(authorization_endpoint="http://evil.example/a"), "not a safe https address"),
    "a registration without https": (
        changed(registration_endpoint="http://evil.example/r"),
        "not a safe https address",
    ),
    "another resource": (
        answering(
            RESOURCE, lambda s: as_json({"resource": "https://bank.example", "authorization_servers": [s.hostile.url]})
        ),
        "does not match",
    ),
    "huge metadata": (answering(METADATA, lambda _: (200, PLAIN, HUGE)), "sent more than 262,144 bytes"),
    "endless metadata": (
        answering(METADATA, lambda _: (200, {**PLAIN, "content-length": str(10**12)}, HUGE)),
        "sent more than 262,144 bytes",
    ),
    "a huge token": (answering("/token", lambda _: (200, PLAIN, HUGE)), "sent more than 262,144 bytes"),
    "a token of another form": (
        answering("/token", lambda _: as_json({"access_token": {"hidden": 1}})),
        "sent no valid token",
    ),
    "no JSON": (answering("/token", lambda _: (200, PLAIN, b"hidden-token")), "sent no valid token"),
    "too deep JSON": (answering("/token", lambda _: (200, PLAIN, b"[" * 100_000)), "sent no valid token"),
    "a token for another scheme": (
        answering("/token", lambda _: as_json({"access_token": "hidden", "token_type": "mac"})),
        "sent no valid token",
    ),
    "a time without end": (
        answering("/token", lambda _: (200, PLAIN, b'{"access_token": "hidden", "expires_in": 1' + b"0" * 400 + b"}")),
        "data that cannot be used: OverflowError",
    ),
    "an error with secrets": (
        answering("/token", lambda _: as_json({"error": "hidden secret", "error_description": "hidden"}, 400)),
        "refused at",
    ),
    "a client of another form": (
        answering("/register", lambda _: as_json({"client_secret": "hidden"}, 201)),
        "no valid client",
    ),
    "a refused client": (
        answering("/register", lambda _: as_json({"error": "invalid_redirect_uri"}, 400)),
        "invalid_redirect_uri",
    ),
    "a broken server": (answering(METADATA, lambda _: (503, {}, b"")), "has no metadata that can be used"),
    **{
        f"a redirect of the {name} by {status}": (answering(path, redirecting(status)), "its authorization")
        for status in (302, 307, 308)
        for name, path in (("token", "/token"), ("registration", "/register"))
    },
}


@pytest.mark.parametrize("kind", LIES)
async def test_a_lie_ends_the_authorization(servers: Servers, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The reason is one sentence without secrets or tracebacks, and the other server has received nothing."""
    lie, expected = LIES[kind]
    lie(servers)
    auth = OAuth(open_browser=Browser(), tokens=TokensInMemory())
    async with ensemble(servers.hostile, auth, required=False) as running:
        reason = running.diagnose()
    assert expected in reason
    assert "\n" not in reason
    assert len(reason) < 500
    assert "hidden" not in reason
    assert not [record for record in caplog.records if record.exc_info or "hidden" in record.getMessage()]
    assert servers.elsewhere.received == []


@pytest.mark.parametrize("kind", ["a secret", "a person's secret"])
async def test_a_secret_reaches_its_issuer_only(servers: Servers, kind: str) -> None:
    """A server that names itself as the authorization server gets no secret, and no token request."""
    issuer = servers.elsewhere.url
    auth = (
        ClientCredentials("program", "hidden-secret", issuer=issuer)
        if kind == "a secret"
        else OAuth(
            client_id="p", client_secret="hidden-secret", issuer=issuer, open_browser=Browser(), tokens=TokensInMemory()
        )
    )
    async with ensemble(servers.hostile, auth, required=False) as running:
        assert issuer.removeprefix("http://") in running.diagnose()
    assert not {"/token", "/register", "/authorize"} & {*servers.hostile.paths()}
    assert not [request for request in servers.hostile.received if "hidden" in repr(request)]


async def test_a_refresh_token_reaches_its_issuer_only(servers: Servers) -> None:
    """A server that names another authorization server later does not make the client send the old tokens there."""
    tokens, browser = TokensInMemory(), Browser()
    async with ensemble(servers.hostile, OAuth(open_browser=browser, tokens=tokens)) as running:
        await act(running)
    servers.hostile.valid.clear()
    servers.hostile.refresh_tokens.clear()
    servers.hostile.answers[RESOURCE] = lambda _: as_json(
        {"resource": servers.hostile.mcp, "authorization_servers": [servers.elsewhere.url]}
    )
    auth = OAuth(open_browser=browser, tokens=tokens, allow_private=["127.0.0.1:*"])
    async with ensemble(servers.hostile, auth, required=False) as running:
        assert running.diagnose()
    assert servers.elsewhere.received
    port = servers.hostile.url.rpartition(":")[2]
    assert not [request for request in servers.elsewhere.received if f"-{port}-" in repr(request)]


async def test_a_token_that_is_issued_again_is_refused_again(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """An authorization server that repeats a refused token causes one more question, and no endless requests."""
    same = {"access_token": "hidden-same", "refresh_token": "hidden-same-too", "expires_in": 3600}
    servers.hostile.answers["/token"] = lambda _: as_json(same)
    servers.hostile.valid.add("hidden-same")
    browser = Browser()
    async with ensemble(servers.hostile, OAuth(open_browser=browser, tokens=TokensInMemory())) as running:
        await act(running)
        servers.hostile.valid.clear()
        before = len(servers.hostile.received)
        with pytest.raises(ToolError, match="401"):
            await act(running)
    assert len(browser.pages) == 2
    assert len(servers.hostile.received) - before < 50
    assert "hidden" not in caplog.text
