"""`agentloop mcp serve`: resources and prompts of ours, read over the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest

from agentloop.errors import ConfigurationError, NotJson, ToolDefinitionError, ToolFailed
from agentloop.mcp import McpEnsemble, prompt, resource
from agentloop.mcp.content import format_contents, format_messages
from agentloop.mcp.offers import Offers, ServedFolder
from agentloop.mcp.sdk.names import Client, MCPError, types
from agentloop.mcp.sdk.server import create_server
from agentloop.values import Document, Image, Message, Text
from tests.limits import LONGEST
from tests.mcp.running import SINCE_2026, connected
from tests.mcp.test_serving import TOOLS, TRUSTED, call, serve, serve_over_http


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with files to serve, and with others."""
    root = tmp_path / "manuals"
    (root / "deep er").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "a.md").write_text("# A")
    (root / "deep er" / "b.png").write_bytes(b"\x89PNG")
    (root / ".env").write_text("hidden")
    (root / ".git" / "config").write_text("hidden")
    (tmp_path / "outside.txt").write_text("hidden")
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    return root


async def test_resources_and_prompts_reach_our_own_client(folder: Path) -> None:
    """What a file and a folder offer is listed, read and filled in by the tools of a client of ours."""
    started = serve(TOOLS, "--files", str(folder))
    server = McpEnsemble(started.name, started.server, resources=True, prompts=True, **TRUSTED)
    async with server:
        listed = (await call(server, "list_resources")).value["resources"]
        assert [entry["uri"] for entry in listed] == [
            "notes://all",
            "file:///manuals/a.md",
            "file:///manuals/deep%20er/b.png",
        ]
        assert (await call(server, "read_resource", uri="notes://all")).value == '{"notes":["one","two"]}'
        assert (await call(server, "read_resource", uri="notes://a%20b/text")).value == "# a b"
        assert (await call(server, "read_resource", uri="file:///manuals/a.md")).value == "# A"
        (picture,) = (await call(server, "read_resource", uri="pictures://x/y.png")).content
        assert (picture.media_type, picture.data) == ("image/png", b"x/y.png")
        (file,) = (await call(server, "read_resource", uri="file:///manuals/deep%20er/b.png")).content
        assert file.data == b"\x89PNG"
        with pytest.raises(ToolFailed, match="LookupError: there is no such note"):
            await call(server, "read_resource", uri="notes://missing/text")
        with pytest.raises(ToolFailed, match="there is no resource 'notes://other'"):
            await call(server, "read_resource", uri="notes://other")
        (entry,) = (await call(server, "list_prompts")).value["prompts"]
        assert [argument["name"] for argument in entry["arguments"]] == ["code", "language"]
        assert [argument["required"] for argument in entry["arguments"]] == [True, False]
        filled = await call(server, "get_prompt", name="review", arguments={"code": "x = 1", "language": "Rust"})
        assert filled.value == "user:\nReview this Rust code: x = 1\nassistant:\nI see.\nuser:\nGo on."


MODERN = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}


async def post(port: int, method: str, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    """Send one request as it is written, with the white space in its headers, and return the answer and the id of its session."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    fixed = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    lines = [f"{name}: {value}" for name, value in {"Host": f"127.0.0.1:{port}", **fixed, **headers}.items()]
    head = [f"POST /mcp HTTP/1.1\r\nConnection: close\r\nContent-Length: {len(body)}", *lines]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(("\r\n".join(head) + "\r\n\r\n" + body).encode())
    answer = (await asyncio.wait_for(reader.read(), LONGEST)).decode()
    writer.close()
    found: dict[str, Any] = json.loads(answer[answer.index('{"jsonrpc') :].partition("\n")[0].partition("\r")[0])
    session = re.search(r"(?i)^mcp-session-id: (\S+)", answer, re.MULTILINE)
    return {**found, "session": session[1] if session else ""}


@SINCE_2026
async def test_white_space_around_a_header_is_no_part_of_it() -> None:
    """A client may send it, and the names of the header and of the body agree."""
    async with serve_over_http(TOOLS) as server:
        port = urlsplit(server.server.url).port or 0  # type: ignore[union-attr]  # a server over HTTP
        headers = {"MCP-Protocol-Version": " 2026-07-28 \t", "Mcp-Method": "tools/call \t", "Mcp-Name": "\t add  "}
        params = {"name": "add", "arguments": {"a": 1, "b": 2}, **MODERN}
        answer = await post(port, "tools/call", params, headers)
        assert answer["result"]["content"][0]["text"] == "3"
        answer = await post(port, "tools/call", params, {**headers, "Mcp-Name": "ad d"})
        assert "does not match" in answer["error"]["message"]
        headers |= {"Mcp-Method": "resources/read", "Mcp-Name": "notes://other"}
        answer = await post(port, "resources/read", {"uri": "notes://other", **MODERN}, headers)
        assert answer["error"]["code"] == -32602  # since 2026-07-28


async def test_a_resource_that_there_is_not_has_the_code_of_the_version() -> None:
    """Clients of versions before 2026-07-28 know it by a code of its own."""
    async with serve_over_http(TOOLS) as server:
        port = urlsplit(server.server.url).port or 0  # type: ignore[union-attr]  # a server over HTTP
        version = "2025-11-25"
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        begun = await post(port, "initialize", hello, {})
        headers = {"MCP-Protocol-Version": version, "Mcp-Session-Id": begun["session"]}
        answer = await post(port, "resources/read", {"uri": "notes://other"}, headers)
        assert (begun["result"]["protocolVersion"], answer["error"]["code"]) == (version, -32002)


MISTAKES = {
    "no such prompt": ("other", {}, "there is no prompt 'other'; the prompts are review"),
    "a missing argument": ("review", {}, "the prompt 'review' needs the argument 'code'"),
    "a misspelled argument": ("review", {"cod": "x"}, "has no argument 'cod', did you mean 'code'"),
    "no choice": ("review", {"code": "x", "language": "C"}, "needs one of Python, Perl, Rust as 'language'"),
}


@prompt
def review(code: str, language: Literal["Python", "Perl", "Rust"] = "Python") -> str:
    """Review code."""
    return f"{language}: {code}"


def connect() -> AbstractAsyncContextManager[Client]:
    """Return the SDK's client of a server with this prompt."""
    return connected(create_server(Offers("ours", prompts=[review])))


@pytest.mark.parametrize("kind", MISTAKES)
async def test_a_prompt_names_mistakes_in_its_arguments(kind: str) -> None:
    """Each mistake is an error of the protocol, in one sentence."""
    name, arguments, expected = MISTAKES[kind]
    async with connect() as client:
        with pytest.raises(MCPError, match=expected):
            await client.get_prompt(name, arguments)


async def test_choices_are_completed() -> None:
    """The choices of an argument that begin like the text are offered; other arguments have none."""
    reference = types.PromptReference(type="ref/prompt", name="review")
    async with connect() as client:
        values = [
            (await client.session.complete(reference, {"name": name, "value": text})).completion.values
            for name, text in (("language", "p"), ("language", ""), ("language", "x"), ("code", ""), ("other", ""))
        ]
    assert values == [["Python", "Perl"], ["Python", "Perl", "Rust"], [], [], []]


async def test_only_what_there_is_is_declared() -> None:
    """A server without resources does not declare them."""
    async with connect() as client:
        assert client.server_capabilities.prompts is not None
        assert client.server_capabilities.resources is None


@pytest.mark.parametrize(
    "uri",
    [
        "file:///manuals/.env",
        "file:///manuals/.git/config",
        "file:///manuals/link.txt",
        "file:///manuals/../outside.txt",
        "file:///manuals/%2e%2e/outside.txt",
        "file:///manuals/deep%20er/../../outside.txt",
        "file:///manuals//etc/passwd",
        "file:///manuals/%2Fetc%2Fpasswd",
        "file:///manuals/a.md%00",
        "file:///manuals/",
        "file:///manuals/deep%20er",
        "file:///etc/passwd",
        "/etc/passwd",
    ],
)
def test_nothing_outside_of_a_folder_is_read(folder: Path, uri: str) -> None:
    """Hidden files, links that lead out, and paths that climb out are not served."""
    assert ServedFolder(folder).read(uri) is None


def test_names_that_are_no_text_are_served(folder: Path) -> None:
    """The address of a file has the bytes of its name, which may be no UTF-8; a name that no file can have is not found."""
    name = os.fsdecode(b"caf\xe9.txt")
    try:
        (folder / name).write_text("coffee")
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    served = ServedFolder(folder)
    assert "file:///manuals/caf%E9.txt" in [uri for uri, _ in served.list()]
    assert served.read("file:///manuals/caf%E9.txt") == b"coffee"
    assert served.read(f"file:///manuals/{'x' * 5000}") is None


# Python 3.14 compiles no docstrings with half a character.
@prompt(description="Review \ud83d code.")
def cut(code: str) -> str:
    if code == "fail":
        raise ValueError("half \ud83d")
    return f"{code} \ud83d"


@resource("cut://{name}", description="Text \ud83d.")
def cut_text(name: str) -> str:
    return f"{name} \ud83d"


async def test_half_characters_of_programs_are_replaced(folder: Path) -> None:
    """Descriptions, names, contents and errors of prompts and resources have U+FFFD in place of half a character."""
    with suppress(OSError):
        (folder / os.fsdecode(b"caf\xe9.txt")).write_text("coffee")
    offers = Offers("ours", prompts=[cut], resources=[cut_text], folders=[ServedFolder(folder)])
    async with connected(create_server(offers)) as client:
        assert [listed.description for listed in (await client.list_prompts(cursor=None)).prompts] == [
            "Review \ufffd code."
        ]
        templates = (await client.session.list_resource_templates()).model_dump(by_alias=True)["resourceTemplates"]
        assert [template["description"] for template in templates] == ["Text \ufffd."]
        listed = (await client.list_resources(cursor=None)).resources
        assert "file:///manuals/a.md" in [str(entry.uri) for entry in listed]
        assert (await client.read_resource("cut://a")).contents[0].model_dump()["text"] == "a \ufffd"
        filled = await client.get_prompt("cut", {"code": "x"})
        assert filled.messages[0].content.model_dump()["text"] == "x \ufffd"
        with pytest.raises(MCPError, match="half \ufffd"):
            await client.get_prompt("cut", {"code": "fail"})


def test_folders_have_bounds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder lists a limited number of files, and reads files of a limited size."""
    monkeypatch.setattr("agentloop.mcp.offers._MAX_FILES", 1)
    monkeypatch.setattr("agentloop.mcp.offers._MAX_FILE_BYTES", 2)
    served = ServedFolder(folder)
    assert [uri for uri, _ in served.list()] == ["file:///manuals/a.md"]
    with pytest.raises(ConfigurationError, match="larger than 2 bytes"):
        served.read("file:///manuals/a.md")
    with pytest.raises(ConfigurationError, match="there is no folder"):
        ServedFolder(folder / "missing")


def test_what_resources_return_becomes_content() -> None:
    """Texts, bytes, parts and JSON data have the type of the resource, or one of their own."""
    results: list[tuple[Any, str, dict[str, str]]] = [
        ("x", "", {"mimeType": "text/plain", "text": "x"}),
        (Text("x"), "text/markdown", {"mimeType": "text/markdown", "text": "x"}),
        (b"x", "", {"mimeType": "application/octet-stream", "blob": "eA=="}),
        (b"x", "text/csv", {"mimeType": "text/csv", "text": "x"}),
        (b"\xff", "text/csv", {"mimeType": "text/csv", "blob": "/w=="}),
        (Image(data=b"x", media_type="image/png"), "", {"mimeType": "image/png", "blob": "eA=="}),
        ({"a": [1]}, "", {"mimeType": "application/json", "text": '{"a":[1]}'}),
    ]
    for result, media_type, expected in results:
        assert format_contents("a://b", result, media_type) == {"uri": "a://b", **expected}
    with pytest.raises(NotJson):
        format_contents("a://b", object(), "")


def test_what_prompts_return_becomes_messages() -> None:
    """Texts and parts are messages of the user; messages keep their roles, and have one part each."""
    document = Document(data=b"x", media_type="text/plain", name="n")
    messages = format_messages(["a", Message.assistant("b", "c"), document])
    assert [(message["role"], message["content"]["type"]) for message in messages] == [
        ("user", "text"),
        ("assistant", "text"),
        ("assistant", "text"),
        ("user", "resource"),
    ]
    for wrong in (5, Message.system("x"), [{"role": "user"}]):
        with pytest.raises(NotJson, match="a prompt returns texts"):
            format_messages(wrong)


def test_definitions_are_checked() -> None:
    """An address that is none, variables without parameters, and parameters that are no texts are refused."""
    with pytest.raises(ToolDefinitionError, match="is not the address of a resource"):
        resource("notes")
    with pytest.raises(ToolDefinitionError, match="is not the address of a resource"):
        resource("notes://{a")
    with pytest.raises(
        ToolDefinitionError, match=r"has the variables \['b'\], and its function the parameters \['a'\]"
    ):
        resource("notes://{b}")(lambda_with_a)
    with pytest.raises(ToolDefinitionError, match="'count' of repeat has to be a str"):
        prompt(repeat)


def lambda_with_a(a: str) -> str:
    """Return it."""
    return a


def yes() -> str:
    """Agree."""
    return "yes"


def repeat(count: int) -> str:
    """Repeat."""
    return "x" * count


def test_a_name_is_served_once() -> None:
    """Two prompts of one name are a mistake of the program."""
    with pytest.raises(ConfigurationError, match="'review' is served 2 times"):
        create_server(Offers("ours", prompts=[review, review]))


def test_the_functions_stay_callable() -> None:
    """A decorated function can be called as before."""
    assert review("x") == "Python: x"
    assert resource("a://b")(yes)() == "yes"
