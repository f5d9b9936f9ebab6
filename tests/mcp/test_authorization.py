"""Authorization at servers over HTTP: by a person in a browser, by a secret, and by a signature."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentloop.errors import ConfigurationError, ToolUnavailable
from agentloop.mcp import CanKeepTokens, ClientCredentials, HttpServer, McpEnsemble, OAuth, TokenFiles
from agentloop.mcp.servers import load_servers
from agentloop.values.secrets import Secret
from tests.limits import LONGEST, jump
from tests.loaded import loaded_agentloop
from tests.mcp.guarded_server import Browser, Guarded, TokensInMemory, as_json, guarded
from tests.mcp.running import NO_TIMEOUTS


@pytest.fixture
async def server() -> AsyncIterator[Guarded]:
    """Run a server that wants authorization."""
    async with guarded() as running:
        yield running


def ensemble(server: Guarded, auth: Any, **settings: Any) -> McpEnsemble:
    """Return the ensemble of a server."""
    return McpEnsemble.http(server.mcp, auth=auth, name="guarded", **{**NO_TIMEOUTS, **settings})


async def act(running: McpEnsemble) -> str:
    """Call the tool of a held server."""
    return str((await running.offered[0].use()).value)


async def test_a_person_agrees_once(server: Guarded, tmp_path: Path) -> None:
    """The browser is shown the page once; the tokens are in a file of mode 0600, and the next program needs no browser."""
    browser, tokens = Browser(), TokenFiles(tmp_path / "tokens")
    for _ in range(2):
        async with ensemble(server, OAuth(open_browser=browser, tokens=tokens)) as running:
            assert await act(running) == "done"
    assert len(browser.pages) == 1
    (file,) = tokens.folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


async def test_the_chosen_scopes_and_port_are_asked_for(server: Guarded) -> None:
    """The page names the configured scopes, and the configured client; nothing is registered."""
    browser = Browser()
    auth = OAuth("read write", client_id="mine", open_browser=browser, tokens=TokensInMemory())
    async with ensemble(server, auth) as running:
        assert await act(running) == "done"
    query = httpx.URL(browser.pages[0]).params
    assert (query["scope"], query["client_id"]) == ("read write", "mine")
    assert query["code_challenge_method"] == "S256"
    assert query["resource"] == server.mcp
    assert "/register" not in server.paths()


@pytest.mark.parametrize("moment", ["in a session", "after a restart"])
async def test_a_refused_token_is_refreshed(server: Guarded, moment: str) -> None:
    """A token that the server refuses is refreshed at its authorization server, without a person."""
    browser, tokens = Browser(), TokensInMemory()
    auth = OAuth(open_browser=browser, tokens=tokens)
    async with ensemble(server, auth) as running:
        await act(running)
        if moment == "in a session":
            server.valid.clear()
            assert await act(running) == "done"
    if moment == "after a restart":
        server.valid.clear()
        async with ensemble(server, auth) as running:
            assert await act(running) == "done"
    assert len(browser.pages) == 1
    assert [request.form["grant_type"] for request in server.received if request.path == "/token"] == [
        "authorization_code",
        "refresh_token",
    ]


async def test_a_refresh_token_that_is_refused_too_leads_to_a_person(server: Guarded) -> None:
    """When nothing kept is valid any more, the person is asked again."""
    browser = Browser()
    async with ensemble(server, OAuth(open_browser=browser, tokens=TokensInMemory())) as running:
        await act(running)
        server.valid.clear()
        server.refresh_tokens.clear()
        assert await act(running) == "done"
    assert len(browser.pages) == 2


async def test_calls_at_once_share_a_new_token(server: Guarded) -> None:
    """Calls that are refused at once cause one refresh, and all of them succeed."""
    async with ensemble(server, OAuth(open_browser=Browser(), tokens=TokensInMemory())) as running:
        server.valid.clear()
        assert await asyncio.gather(*[act(running) for _ in range(5)]) == ["done"] * 5
    assert server.issued == 2


async def test_a_call_does_not_wait_for_another(server: Guarded) -> None:
    """Two authorized calls are at the server at the same time."""
    barrier = asyncio.Barrier(2)

    async def meet() -> None:
        await barrier.wait()

    server.calls = meet
    async with ensemble(server, OAuth(open_browser=Browser(), tokens=TokensInMemory())) as running:
        async with asyncio.timeout(LONGEST):
            assert [*await asyncio.gather(act(running), act(running))] == ["done", "done"]


async def test_limits_of_time_stand_still_while_a_person_is_asked(server: Guarded) -> None:
    """A person may take longer than the server has to answer."""
    agree = Browser()

    async def think(url: str) -> None:
        jump(100.0)
        await asyncio.sleep(0)
        await agree(url)

    async with ensemble(server, OAuth(open_browser=think, tokens=TokensInMemory()), connect_timeout=30.0) as running:
        assert running.diagnose() == ""
        assert await act(running) == "done"


async def refuse(url: str) -> None:
    """Answer no, in the browser."""
    query = httpx.URL(url).params
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(query["redirect_uri"], params={"error": "access_denied", "state": query["state"]})


async def look_away(url: str) -> None:
    """Do nothing."""


async def have_no_browser(url: str) -> None:
    """Fail like a machine without a browser."""
    raise ConfigurationError("no browser can be opened here")


UNANSWERED: dict[str, tuple[dict[str, Any], str]] = {
    "no": ({"open_browser": refuse}, "it was not authorized: access_denied"),
    "nothing": ({"open_browser": look_away, "timeout": 0.01}, "which was not given within 0.01 seconds"),
    "no browser": (
        {"open_browser": have_no_browser},
        "no browser can be opened here, or run `agentloop mcp login http",
    ),
    "nobody": ({"open_browser": None}, "nobody is asked here; run `agentloop mcp login http://127.0.0.1"),
}


@pytest.mark.parametrize("answer", UNANSWERED)
async def test_without_an_authorization_the_server_is_away(server: Guarded, answer: str) -> None:
    """The person is asked once; the calls fail with one sentence that says what to do."""
    settings, expected = UNANSWERED[answer]
    async with ensemble(server, OAuth(tokens=TokensInMemory(), **settings), required=False) as running:
        assert expected in running.diagnose()
        before = len(server.received)
        await running.discover()
        assert len(server.received) == before
    assert "/token" not in server.paths()


async def test_an_answer_to_another_question_is_not_taken(server: Guarded) -> None:
    """A page that knows the port, but not the state, cannot give an answer."""
    statuses: list[int] = []
    agree = Browser()

    async def be_attacked(url: str) -> None:
        redirect = httpx.URL(url).params["redirect_uri"]
        async with httpx.AsyncClient(trust_env=False) as client:
            queries: list[dict[str, str]] = [
                {"code": "evil"},
                {"code": "evil", "state": "x"},
                {"error": "no", "state": ""},
            ]
            answers = [await client.get(redirect, params=query) for query in queries]
            statuses.extend(answer.status_code for answer in [*answers, await client.get(f"{redirect}/elsewhere")])
        await agree(url)

    async with ensemble(server, OAuth(open_browser=be_attacked, tokens=TokensInMemory())) as running:
        assert await act(running) == "done"
    assert statuses == [400, 400, 400, 404]
    assert [request.form["code"] for request in server.received if request.path == "/token"] == ["code"]


async def test_a_program_authorizes_itself(server: Guarded) -> None:
    """Client credentials get a token, and a new one when it is refused; no person is asked."""
    auth = ClientCredentials("program", "hidden-secret", issuer=server.url)
    async with ensemble(server, auth) as running:
        assert await act(running) == "done"
        server.valid.clear()
        assert await act(running) == "done"
    assert server.issued == 2
    assert "/authorize" not in server.paths()


async def test_without_authorization_the_error_says_what_to_write(server: Guarded) -> None:
    """A server that wants authorization, and a client without any: the message names the ways to give it."""
    async with ensemble(server, None, required=False) as running:
        assert 'it wants authorization: write auth=OAuth(), or "auth": "oauth"' in running.diagnose()


async def test_tokens_that_cannot_be_read_are_requested_anew(server: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged document is not used; the person is asked, and the log says why."""
    browser, tokens = Browser(), TokensInMemory()
    auth = OAuth(open_browser=browser, tokens=tokens)
    async with ensemble(server, auth) as running:
        await act(running)
    (key,) = tokens.documents
    for damage in ("{", "[]", '{"tokens": {"access_token": 5}}'):
        tokens.documents[key] = Secret(damage)
        async with ensemble(server, auth) as running:
            assert await act(running) == "done"
    assert len(browser.pages) == 4
    assert caplog.text.count("cannot be read, and are not used") == 3


class Unwritable(TokensInMemory):
    """Cannot keep anything."""

    def save(self, server: str, document: Secret | None) -> None:
        raise ConfigurationError("the disk is full")


async def test_tokens_that_cannot_be_kept_hold_until_the_end(server: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """A store that fails does not fail the calls; the log says so."""
    async with ensemble(server, OAuth(open_browser=Browser(), tokens=Unwritable())) as running:
        assert await act(running) == "done"
    assert "the authorization holds until the program ends: the disk is full" in caplog.text


# --- tokens in files --------------------------------------------------------------------------------------------------


def test_files_of_tokens_keep_what_was_saved(tmp_path: Path) -> None:
    """What is saved for a server is returned for it and for no other; None removes it."""
    files: CanKeepTokens = TokenFiles(tmp_path / "deep" / "tokens")
    assert files.load("a") is None
    files.save("a", Secret('{"x": 1}'))
    files.save("b", Secret("{}"))
    files.save("a", Secret('{"x": 2}'))
    loaded = files.load("a")
    assert loaded is not None
    assert json.loads(loaded.reveal()) == {"x": 2}
    files.save("a", None)
    files.save("a", None)
    assert files.load("a") is None
    assert files.load("b") is not None


@pytest.mark.parametrize(("mode", "reason"), [(0o644, "chmod 600"), (0o620, "chmod 600")])
def test_files_that_others_can_read_are_not_used(tmp_path: Path, mode: int, reason: str) -> None:
    """A file with a mode for others is refused, with the command that repairs it."""
    files = TokenFiles(tmp_path)
    files.save("a", Secret("{}"))
    (path,) = tmp_path.iterdir()
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=reason):
        files.load("a")


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A link in place of a file of tokens is refused."""
    files = TokenFiles(tmp_path / "tokens")
    files.save("a", Secret("{}"))
    (path,) = files.folder.iterdir()
    path.rename(tmp_path / "real")
    path.symlink_to(tmp_path / "real")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        files.load("a")


# --- settings -------------------------------------------------------------------------------------------------------


def write(path: Path, auth: object) -> Path:
    """Write a file with one server."""
    path.write_text(json.dumps({"mcpServers": {"docs": {"url": "https://docs.example/mcp", "auth": auth}}}))
    return path


def test_a_file_names_the_authorization(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form and the tables of a file become settings, with variables of the environment."""
    monkeypatch.setenv("DOCS_SECRET", "hidden-secret")
    file = tmp_path / "mcp.json"
    documents: list[Any] = [
        "oauth",
        {"scopes": ["read", "write"], "redirect_port": 8123},
        {
            "type": "client_credentials",
            "client_id": "p",
            "client_secret": "${DOCS_SECRET}",
            "issuer": "https://i.example",
        },
        {"type": "signed_credentials", "client_id": "p", "private_key": "-----\nx", "issuer": "https://i.example"},
    ]
    servers = [load_servers(write(file, document))[0].server for document in documents]
    kinds = [type(server.auth).__name__ for server in servers if isinstance(server, HttpServer)]
    assert kinds == ["OAuth", "OAuth", "ClientCredentials", "SignedCredentials"]
    assert "hidden" not in repr(servers)
    assert "('read', 'write')" in repr(servers)


MISTAKES: dict[str, tuple[object, str]] = {
    "another type": ("basic", r"mcpServers\.docs\.auth is none of oauth, client_credentials, signed_credentials"),
    "no table": (5, r"mcpServers\.docs\.auth is none of"),
    "a misspelled key": ({"scope": "x"}, r"has no key 'scope', did you mean 'scopes'"),
    "a key of another type": ({"type": "client_credentials", "redirect_port": 1}, "has no key 'redirect_port'"),
    "a wrong value": ({"scopes": {"read": True}}, r"auth\.scopes is not a value for this key"),
    "no issuer": (
        {"type": "client_credentials", "client_id": "p", "client_secret": "s", "issuer": ""},
        "issuer is missing",
    ),
    "a secret without an issuer": (
        {"client_id": "p", "client_secret": "s"},
        "client_secret needs client_id and issuer",
    ),
    "an impossible scope": ({"scopes": ['a"b']}, "is not a scope"),
    "two ids": ({"client_id": "p", "client_metadata_url": "https://a.example/c"}, "exclude each other"),
    "metadata without https": ({"client_metadata_url": "http://a.example/c"}, "is not the https address of a document"),
    "an unset variable": ({"client_id": "${NO_SUCH_VARIABLE}"}, "NO_SUCH_VARIABLE is not set"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_in_a_file_have_their_place(tmp_path: Path, kind: str) -> None:
    """Each mistake is one sentence that names the place."""
    document, expected = MISTAKES[kind]
    with pytest.raises(ConfigurationError, match=expected) as caught:
        load_servers(write(tmp_path / "mcp.json", document))
    assert "mcpServers.docs" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_there_is_one_authorization() -> None:
    """A header Authorization beside `auth` is refused."""
    with pytest.raises(ConfigurationError, match="exclude each other"):
        McpEnsemble.http("https://a.example/mcp", {"authorization": "Bearer x"}, auth=OAuth(tokens=TokensInMemory()))


BROWSER = """\
#!{python}
import sys, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(sys.argv[1]).read()
"""


async def run_command(tmp_path: Path, *arguments: str) -> tuple[int | None, str]:
    """Run `agentloop mcp` with a browser whose person agrees; return its exit code and output."""
    browser = tmp_path / "browser"
    browser.write_text(BROWSER.format(python=sys.executable))
    browser.chmod(0o700)
    environment = {**os.environ, "BROWSER": str(browser), "XDG_DATA_HOME": str(tmp_path / "data")}
    process = await asyncio.create_subprocess_exec(
        *loaded_agentloop("mcp", *arguments), env=environment, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_a_person_logs_in_and_out_with_a_command(server: Guarded, tmp_path: Path) -> None:
    """`agentloop mcp login` keeps tokens that later programs use without asking, and `logout` removes them."""
    code, output = await run_command(tmp_path, "login", server.mcp)
    assert (code, "its tools: act" in output) == (0, True), output
    assert "hidden" not in output
    auth = OAuth(open_browser=None, tokens=TokenFiles(tmp_path / "data" / "agentloop" / "mcp-tokens"))
    async with ensemble(server, auth) as running:
        assert await act(running) == "done"
    code, output = await run_command(tmp_path, "logout", server.mcp)
    assert code == 0, output
    async with ensemble(server, auth, required=False) as running:
        assert f"run `agentloop mcp login {server.mcp}`" in running.diagnose()


async def test_a_login_that_fails_is_one_sentence(server: Guarded, tmp_path: Path) -> None:
    """The command ends with exit code 1 and the reason; a name that is no server is a usage error."""
    server.answers["/token"] = lambda _: as_json({"error": "invalid_grant"}, 400)
    code, output = await run_command(tmp_path, "login", server.mcp)
    assert code == 1
    assert output.splitlines()[-1].endswith(
        "its authorization server refused at " + server.url + "/token: invalid_grant"
    )
    code, output = await run_command(
        tmp_path, "login", "docs", "--mcp", str(write(tmp_path / "mcp.json", "oauth")), "--port", "x"
    )
    assert code == 2
    code, output = await run_command(tmp_path, "login", "dcos", "--mcp", str(write(tmp_path / "mcp.json", "oauth")))
    assert (code, "did you mean 'docs'?" in output) == (2, True), output


async def test_nothing_shows_a_secret(server: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """Neither reprs nor logs nor errors show secrets or tokens (law 18)."""
    caplog.set_level("DEBUG")
    auths = [
        OAuth(
            client_id="p",
            client_secret="hidden-secret",
            issuer=server.url,
            open_browser=Browser(),
            tokens=TokensInMemory(),
        ),
        ClientCredentials("program", "hidden-secret", issuer=server.url),
    ]
    for auth in auths:
        async with ensemble(server, auth) as running:
            await act(running)
            server.valid.clear()
            server.answers["/token"] = lambda request: as_json(
                {"error": "invalid_client", "seen": request.body.decode()}, 401
            )
            with pytest.raises(ToolUnavailable) as caught:
                await act(running)
        server.answers.clear()
        ours = "".join(record.getMessage() for record in caplog.records if record.name.startswith(("agentloop", "mcp")))
        shown = [repr(running), str(caught.value), repr(caught.value.__cause__), ours]
        assert not [text for text in shown if "hidden" in text]
