"""A person sees exactly the call that runs, and untrusted input can neither mislead nor exhaust a program."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import tomllib
import traceback
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import ToolPolicy
from agentloop.durable import SqliteJournal
from agentloop.errors import ConfigurationError, InferenceError, MalformedArguments, ToolUnavailable
from agentloop.events import ToolDefinitionChanged
from agentloop.interception import RequireApproval
from agentloop.mcp import McpEnsemble
from agentloop.models import RecordingInference
from agentloop.policies import Budget
from agentloop.service.cli.execution import TerminalApprover
from agentloop.testing import run_in_virtual_time
from agentloop.toolkits.files import files
from agentloop.toolkits.sqlite import sqlite
from agentloop.values import ExecutionStatus, Image, PendingCall, ToolStatus
from agentloop.values.decisions import approve
from tests.loaded import LoadedProcess, loaded_agentloop, loaded_process
from tests.mcp.running import free_port, small_entry
from tests.models.loopback import KEY
from tests.models.loopback_inference import QUESTION, inference_for
from tests.service.cli import conftest as cli
from tests.toolkits.running import executions, run_call, scripted_loop

ROOT = Path(__file__).parents[2]
SERVER = str(Path(__file__).with_name("strangers_server.py"))

at_terminal, command_line, server = cli.at_terminal, cli.command_line, cli.server


def require(*, condition: object, message: str) -> None:
    """Fail a test whose precondition does not hold; an AssertionError would count as the expected failure.

    Raises:
        RuntimeError: when the condition is false.
    """
    if not condition:
        raise RuntimeError(message)


@pytest.fixture(autouse=True)
def _neutral_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove keys, proxies and terminal settings of the environment from the tests."""
    for name in list(os.environ):
        if name.lower().endswith(("_proxy", "_api_key")) or name in {"COLUMNS", "FORCE_COLOR", "NO_COLOR"}:
            monkeypatch.delenv(name)


# --- display of calls ---------------------------------------------------------------------------------------

BANK = '''
from pathlib import Path
from agentloop import tool

@tool
def pay(to: str, note: str = "", amount: int = 0, iban: str = "") -> str:
    """Pay."""
    with Path(__file__).with_suffix(".paid").open("a") as file:
        file.write(f"{to} {iban}\\n")
    return "paid"
'''

AtTerminal = Callable[..., cli.CommandResult]


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """Return a file with a tool that records its payments."""
    path = tmp_path / "bank.py"
    path.write_text(BANK, encoding="utf-8")
    return path


def has_paid(bank: Path) -> bool:
    """Return whether a payment was made."""
    return bank.with_suffix(".paid").exists()


def command(server: cli.ModelServer, bank: Path, *more: str, **arguments: object) -> list[str]:
    """Return the command that runs a model which calls `pay` with these arguments."""
    server.calls(("pay", arguments))
    server.says("Done.")
    return ["run", "Pay.", "--model", "ollama:m", "--base-url", server.base_url, "--tools", str(bank), *more]


def unbroken(text: str) -> str:
    """Return the output without the line breaks that depend on the terminal width."""
    return re.sub(r"\s", "", text)


def test_a_person_sees_every_argument_before_approval(
    at_terminal: AtTerminal, server: cli.ModelServer, bank: Path
) -> None:
    """Whitespace in one argument does not hide another: every name is shown, and a call with a hidden value does not run."""
    hidden = {"to": "Ada", "note": "thanks" + " " * 2100, "amount": 1_000_000, "iban": "HIDDEN"}
    ended = at_terminal(*command(server, bank, "--approve", "ask", "--quiet", **hidden), typed="y\n")
    prompt = ended.err
    assert [name for name in hidden if name not in prompt] == []
    assert "HIDDEN" in prompt or not has_paid(bank)


def test_a_long_argument_is_shown_whole_or_marked_as_truncated(
    at_terminal: AtTerminal, server: cli.ModelServer, bank: Path
) -> None:
    """A truncated argument is marked, and cannot be approved before the rest was shown."""
    arguments = command(server, bank, "--approve", "ask", "--quiet", to="Ada", note="a" * 3000 + "TAIL")
    shown = unbroken(at_terminal(*arguments, typed="y\n").err)
    assert "TAIL" in shown or "morecharacters" in shown
    assert "TAIL" in shown or not has_paid(bank)


BLANKS = [chr(code) for code in (0x34F, 0x115F, 0x1160, 0x17B4, 0x3164, 0xFE0F, 0xFFA0, 0xE0100)]


@cache
def formats() -> list[str]:
    """Return the format characters of Unicode."""
    return [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(char) == "Cf"]


@pytest.mark.parametrize("kind", ["format characters", "fillers and selectors"])
@pytest.mark.parametrize("view", ["prompt", "progress", "runs show"])
def test_invisible_characters_are_escaped(
    at_terminal: AtTerminal, command_line: cli.CommandLine, server: cli.ModelServer, bank: Path, *, view: str, kind: str
) -> None:
    """The prompt, the progress and `runs show` write no invisible character of a call."""
    invisible = formats() if kind == "format characters" else BLANKS
    note = "x".join(invisible)
    journal = str(bank.with_name("runs.db"))
    options = {"prompt": ["--approve", "ask", "--quiet"], "progress": ["--approve", "all"]}.get(
        view, ["--approve", "all", "--quiet", "--journal", journal]
    )
    shown = at_terminal(*command(server, bank, *options, to="Ada", note=note), typed="n\n").err
    if view == "runs show":
        listed = json.loads(command_line("runs", "list", "--journal", journal, "--json").out)
        shown = command_line("runs", "show", listed[0]["execution_id"], "--step", "1", "--journal", journal).out
    require(condition="Ada" in shown, message=shown)
    assert [f"U+{ord(char):04X}" for char in invisible if char in shown] == []


def test_a_recorded_call_is_shown_with_all_arguments(
    command_line: cli.CommandLine, server: cli.ModelServer, bank: Path
) -> None:
    """A step that is shown in full has every argument of its calls."""
    journal = str(bank.with_name("runs.db"))
    hidden = {"to": "Ada", "note": "thanks" + " " * 2100, "amount": 1_000_000, "iban": "HIDDEN"}
    command_line(*command(server, bank, "--approve", "all", "--quiet", "--journal", journal, **hidden))
    listed = json.loads(command_line("runs", "list", "--journal", journal, "--json").out)
    shown = command_line("runs", "show", listed[0]["execution_id"], "--step", "1", "--journal", journal).out
    require(condition=has_paid(bank), message="the call has not run")
    require(condition="Ada" in shown, message=shown)
    assert "HIDDEN" in shown


def test_progress_marks_a_truncated_call(at_terminal: AtTerminal, server: cli.ModelServer, bank: Path) -> None:
    """A line that is truncated has a mark."""
    hidden = {"to": "Ada", "note": "thanks" + " " * 2100, "iban": "HIDDEN"}
    shown = at_terminal(*command(server, bank, "--approve", "all", **hidden), typed="").err
    require(condition="Ada" in shown, message=shown)
    assert "HIDDEN" in shown or "…" in shown or "more characters" in shown


def prompt_for(**arguments: str) -> str:
    """Return the approval prompt for a call; the call is denied."""
    shown = io.StringIO()
    call = ToolCall("1", "pay").with_arguments(arguments)
    original, sys.stdin = sys.stdin, io.StringIO("n\n")
    try:
        TerminalApprover(Console(file=shown, width=10_000))(PendingCall("e/1/0", call))
    finally:
        sys.stdin = original
    return shown.getvalue()


LOOK_ALIKES = str.maketrans({"\u0410": "A", "\u0430": "a", "\u0435": "e", "\u043e": "o", "\u0440": "p", "\u0441": "c"})


@cache
def invisible_pattern() -> re.Pattern[str]:
    """Return a pattern of what is not seen."""
    return re.compile("[" + "".join([*formats(), *BLANKS]) + "]")


def visible(text: str) -> str:
    """Return the visible form of a text: no invisible characters, and one form each of accents, spaces and look-alikes."""
    plain = unicodedata.normalize("NFC", invisible_pattern().sub("", text)).translate(LOOK_ALIKES)
    return "".join([" " if unicodedata.category(char) == "Zs" else char for char in plain])


def test_look_alikes_are_marked_in_words_of_mixed_scripts() -> None:
    """An address with two Cyrillic letters looks different from the address that it imitates; a Russian word is unchanged."""
    assert "Мария" in prompt_for(to="Мария")
    assert visible(prompt_for(to="\u0410da@b\u0430nk.example")) != visible(prompt_for(to="Ada@bank.example"))


def test_forms_of_accents_differ_visibly() -> None:
    """A name in composed form looks different from the name in decomposed form."""
    assert visible(prompt_for(to="Jos\u00e9")) != visible(prompt_for(to="Jose\u0301"))


TEXTS = st.text(
    st.sampled_from(["a", "e", "\u0430", "\u0301", "\u00e9", " ", "\u00a0", "\u200b", "\u202e", "\n", '"', "\\"])
)


@given(first=TEXTS, second=TEXTS)
@example(first="a b", second="a  b")
@example(first="ab", second="a\u200bb")
@example(first="a b", second="a\u00a0b")
@example(first="\\u200b", second="\u200b")
def test_different_calls_never_look_alike(first: str, second: str) -> None:
    """Two prompts look the same exactly when their calls are equal."""
    assert (visible(prompt_for(to=first)) == visible(prompt_for(to=second))) is (first == second)


# --- untrusted servers --------------------------------------------------------------------------------------------


def stranger(manner: str, notes: Path, **settings: Any) -> McpEnsemble:
    """Return an untrusted server."""
    settings = {"connect_timeout": 30, "reconnect_timeout": 5, **settings}
    return McpEnsemble.stdio(
        sys.executable, ["-S", SERVER, manner, str(notes)], name="stranger", **{"required": False, **settings}
    )


def calls_of(notes: Path) -> int:
    """Return the number of calls that reached the server."""
    return len((notes / "calls").read_text().splitlines()) if (notes / "calls").exists() else 0


async def test_the_annotations_of_a_server_do_not_bypass_approval(tmp_path: Path) -> None:
    """Calls of a tool that is annotated as read-only are suspended like other calls of a server."""
    state = await scripted_loop(
        [stranger("claims to be harmless", tmp_path)], ("act", {}), interceptors=[RequireApproval()]
    ).execute("go")
    assert (state.status, calls_of(tmp_path)) == (ExecutionStatus.SUSPENDED, 0)


async def test_the_annotations_of_a_server_do_not_repeat_calls(tmp_path: Path) -> None:
    """A call whose server dies is in doubt, and is not repeated."""
    lost = executions(
        await scripted_loop([stranger("claims to be harmless and dies", tmp_path)], ("act", {})).execute("go")
    )[0]
    assert calls_of(tmp_path) == 1
    assert lost.status is ToolStatus.IN_DOUBT


async def suspended(manner: str, notes: Path, **more: Any) -> tuple[AgentLoop, AgentState]:
    """Return a loop and its state, with a call of a server suspended for a decision."""
    loop = scripted_loop([stranger(manner, notes)], ("act", {}), interceptors=[RequireApproval()])
    state = await loop.execute("go", **more)
    require(condition=state.status is ExecutionStatus.SUSPENDED and not calls_of(notes), message=state.explain())
    return loop, state


@pytest.mark.parametrize("manner", ["changes", "changes its schema"])
async def test_a_changed_tool_needs_a_new_approval(tmp_path: Path, manner: str) -> None:
    """An approval applies only to the tool definition that was approved."""
    loop, state = await suspended(manner, tmp_path)
    (tmp_path / "changed").touch()
    await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})
    assert calls_of(tmp_path) == 0


@pytest.mark.parametrize("manner", ["changes", "changes its schema"])
async def test_a_decision_is_bound_to_the_definition(tmp_path: Path, manner: str) -> None:
    """The same call has another digest when the definition of its tool is different."""
    _, before = await suspended("polite", tmp_path, execution_id="e")
    (tmp_path / "changed").touch()
    changed = stranger(manner, tmp_path)
    loop = scripted_loop([changed], ("act", {}), interceptors=[RequireApproval(["act"])])
    after = await loop.execute("go", execution_id="e")
    require(
        condition=[call.key for call in before.pending] == [call.key for call in after.pending],
        message="the keys differ",
    )
    assert [call.digest for call in before.pending] != [call.digest for call in after.pending]


async def test_a_tool_that_changes_between_two_calls_is_not_called_again(tmp_path: Path) -> None:
    """The second call of an execution fails if the server has listed another definition since the first."""
    async with stranger("announces a change", tmp_path) as server:
        (before,) = server.offered
        await before.use()
        (after,) = await server.discover()
        with pytest.raises(ToolUnavailable):
            await before.use()
    assert calls_of(tmp_path) == 1
    assert before.spec.pinned == after.spec.pinned == before.spec.definition != after.spec.definition


async def events_of_resume(notes: Path, *, changed: bool) -> list[ToolDefinitionChanged]:
    """Return the changes that are announced of a call that is suspended, approved and resumed, optionally after its tool changed."""
    loop = scripted_loop([stranger("changes", notes)], ("act", {}), interceptors=[RequireApproval(["act"])])
    changes: list[ToolDefinitionChanged] = []
    loop.on(ToolDefinitionChanged, changes.append)
    state = await loop.execute("go")
    if changed:
        (notes / "changed").touch()
    await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})
    return changes


async def test_a_changed_tool_emits_an_event(tmp_path: Path) -> None:
    """The event has both definitions: the approved one, and the one that the server has now."""
    assert not await events_of_resume(tmp_path, changed=False)
    (changed,) = await events_of_resume(tmp_path, changed=True)
    assert changed.name == "act"
    assert changed.known
    assert changed.current not in {"", changed.known}


def test_tools_with_effects_need_approval_where_that_is_said(
    command_line: cli.CommandLine, server: cli.ModelServer, bank: Path
) -> None:
    """Without a terminal, no payment is made, and the exit code reports a suspended call."""
    ended = command_line(*command(server, bank, "--quiet", "--approve", "ask", to="Ada"))
    assert not has_paid(bank)
    assert ended.code == 3


def test_tools_of_servers_always_need_approval(
    command_line: cli.CommandLine, server: cli.ModelServer, tmp_path: Path
) -> None:
    """Tools of MCP servers need approval, whatever their annotations are."""
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"small": small_entry()}}))
    server.calls(("add", {"a": 2, "b": 40}))
    server.says("42")
    ended = command_line("run", "2+40?", "--model", "ollama:m", "--base-url", server.base_url, "--mcp", str(config))
    assert (ended.code, len(server.requests)) == (3, 1)


# --- the package --------------------------------------------------------------------------------------------------

DISTRIBUTION = "agentloop-kernel"


def project() -> dict[str, Any]:
    """Return the table of the project."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def test_the_distribution_has_its_own_name() -> None:
    """The name of the distribution differs from that of the imported package."""
    assert project()["name"] == DISTRIBUTION


@pytest.mark.parametrize("place", ["command line", "mcp", "documents"])
def test_hints_name_this_distribution(place: str, tmp_path: Path) -> None:
    """Install commands in error messages and documentation install this package."""
    if place == "documents":
        text = "\n".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    else:
        missing, arguments = ("click", ["demo"]) if place == "command line" else ("mcp", ["mcp", "serve", "t.py"])
        (tmp_path / "t.py").write_text(BANK)
        # A new process: the module must not have been imported before.
        code = f"import sys; sys.modules[{missing!r}] = None; from agentloop.service.cli.main import main; main({arguments!r})"
        text = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        ).stderr
    named = re.findall(r"(?:pip|uv|pipx) (?:install|add) '?([a-z][\w-]*)", text)
    require(condition=named, message=text)
    assert set(named) == {DISTRIBUTION}


def test_no_dependency_allows_versions_with_known_defects() -> None:
    """The lower bound of orjson is the first version that can read deeply nested text, 3.9.15."""
    extras = [item for group in project()["optional-dependencies"].values() for item in group]
    bounds = [re.search(r">=([\d.]+)", item) for item in extras if item.startswith("orjson")]
    require(condition=bounds, message="orjson is not among the extras")
    assert [bound[1] for bound in bounds if bound and tuple(map(int, bound[1].split("."))) < (3, 9, 15)] == []


# --- limits on time and memory -----------------------------------------------------------------------------------


Child = Callable[..., dict[str, Any]]
"""Runs a case in a separate process with limits, and returns its results, which are empty if it was killed."""


@pytest.fixture(scope="module")
def cases() -> Iterator[LoadedProcess]:
    """A process that has the cases loaded."""
    with loaded_process("tests.regressions.strangers_child") as process:
        yield process


@pytest.fixture
def child(cases: LoadedProcess, tmp_path_factory: pytest.TempPathFactory) -> Child:
    """What runs a case."""

    def run(case: str, *arguments: object) -> dict[str, Any]:
        code = f"from tests.regressions.strangers_child import CASES; CASES[{case!r}](*{[*map(str, arguments)]})"
        ended = cases.run(code, tmp_path_factory.mktemp("case"))
        require(condition=ended.code in {0, -signal.SIGPROF, -signal.SIGKILL}, message=ended.err)
        results: dict[str, Any] = {}
        for line in ended.out.splitlines():
            results |= json.loads(line)
        return results

    return run


@pytest.mark.parametrize("kind", ["references", "pattern", "patternProperties"])
def test_a_schema_is_checked_within_bounds(child: Child, kind: str) -> None:
    """A schema is rejected or compiled, and arguments are validated against it, within a time limit."""
    assert "refused" in child("schema", kind)


def test_connecting_ends_with_any_schema(child: Child, tmp_path: Path) -> None:
    """The tool is offered or omitted within a time limit."""
    assert "offered" in child("connect", "small schema, endless work", tmp_path)


@pytest.mark.parametrize("driver", ["react", "structured"])
def test_a_fence_of_empty_lines_is_read_in_time(child: Child, driver: str) -> None:
    """The time to parse an answer is proportional to its length."""
    assert "status" in child("fence", driver)


def test_a_million_brackets_are_read_in_time(child: Child) -> None:
    """Parsing a text of brackets ends within a limit."""
    assert "read" in child("brackets")


@pytest.mark.parametrize("codings", [1, 3])
def test_the_limit_applies_to_a_decompressed_answer(child: Child, codings: int) -> None:
    """With a limit of 1 MB, an answer does not take more than a few MB, however it is compressed."""
    results = child("inflated_answer", codings)
    assert results.get("error") == "InvalidResponse"
    assert results["megabytes"] < 32


def test_the_limit_applies_to_a_decompressed_mcp_answer(child: Child) -> None:
    """The limit of 16 MB applies to the decompressed message, and the call fails or is in doubt."""
    results = child("inflated_result")
    assert results.get("status") in {"failed", "in_doubt"}
    assert results["megabytes"] < 64


def test_the_size_of_an_edit_is_checked_first(child: Child, tmp_path: Path) -> None:
    """A replacement that would be too large is rejected before the text is built."""
    results = child("grow", tmp_path)
    assert (results.get("status"), results.get("error")) == ("failed", "ToolFailed")
    assert results["megabytes"] < 100


def test_a_query_has_a_time_limit(child: Child, tmp_path: Path) -> None:
    """A query of a few slow instructions is interrupted."""
    with closing(sqlite3.connect(tmp_path / "q.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
    assert child("slow_query", tmp_path / "q.db").get("status") == "failed"


def test_threads_are_bounded(child: Child) -> None:
    """A thousand calls of one answer share a limited number of threads."""
    results = child("many_calls", 1000)
    require(condition=results.get("done") == 1000, message="the calls did not run")
    assert results["threads"] <= 256


def test_a_forked_process_does_not_hang(child: Child, tmp_path: Path) -> None:
    """A forked child can use the journal, or gets an error."""
    results = child("forked", tmp_path / "runs.db")
    assert results.get("signal") == 0
    assert results["child"]


# --- access and limits --------------------------------------------------------------------------------------------------

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
SESSION = "mcp-session-id"


@contextmanager
def serving(tools: Path, *more: str) -> Iterator[int]:
    """Run `agentloop mcp serve --http` in the block; yield its port, or 0 when it does not start."""
    arguments = ["mcp", "serve", str(tools), "--http", "--port", "0", *more]
    with subprocess.Popen(loaded_agentloop(*arguments), stderr=subprocess.PIPE, text=True) as process:
        try:
            match = next(
                filter(None, (re.search(r"serving at \S+:(\d+)/mcp", line) for line in process.stderr or ())), None
            )
            yield 0 if match is None else int(match[1])
        finally:
            process.kill()


def post(client: http.client.HTTPConnection, body: Mapping[str, object], **headers: str) -> tuple[int, str]:
    """Send a request; return the status and the session id of the response."""
    all_headers = {"accept": "application/json, text/event-stream", "content-type": "application/json", **headers}
    client.request("POST", "/mcp", json.dumps(body), all_headers)
    answer = client.getresponse()
    answer.read()
    return answer.status, answer.getheader(SESSION, "")


@pytest.mark.parametrize("origin", ["", "http://evil.example"])
def test_tools_are_not_served_to_unauthenticated_clients(bank: Path, origin: str) -> None:
    """On an address other than loopback, requests without credentials and requests of web pages are rejected."""
    with serving(bank, "--host", "0.0.0.0") as port:  # the tested configuration
        if not port:
            return  # refusing to start is correct too
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
            status, _ = post(client, HELLO, **({"origin": origin} if origin else {}))
    assert status in {401, 403, 421}


def open_sessions(port: int, sessions: int) -> int:
    """Open sessions over one connection; return how many the server accepted."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
        return [post(client, HELLO)[0] for _ in range(sessions)].count(200)


def test_the_number_of_sessions_is_limited(bank: Path) -> None:
    """Of six hundred sessions, the server rejects some or forgets the oldest."""
    with serving(bank) as port, ThreadPoolExecutor(12) as pool:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
            first = post(client, HELLO)[1]
        accepted = sum(pool.map(lambda _: open_sessions(port, 50), range(12)))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
            is_known = bool(first) and post(client, LIST, **{SESSION: first})[0] == 200
    assert not (is_known and accepted == 600)


@pytest.mark.parametrize(
    "sql",
    ["SELECT value FROM json_each('[1, 2]')", "SELECT a FROM words WHERE words MATCH 'hello'"],
    ids=["json_each", "full text"],
)
async def test_virtual_tables_can_be_read(tmp_path: Path, sql: str) -> None:
    """Table-valued functions and full-text indexes are readable like other tables."""
    with closing(sqlite3.connect(tmp_path / "q.db")) as connection:
        connection.executescript("CREATE VIRTUAL TABLE words USING fts5(a); INSERT INTO words VALUES ('hello');")
    execution = await run_call([sqlite(str(tmp_path / "q.db"))], "query_database", sql=sql)
    assert execution.status is ToolStatus.SUCCEEDED, execution.error_message


@pytest.fixture
def _usual_umask() -> Iterator[None]:
    """Set the usual umask, with which new files are readable by all users."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes_in(folder: Path) -> dict[str, str]:
    """Return the mode of each file of a folder."""
    return {path.name: stat.filemode(path.stat().st_mode) for path in folder.iterdir()}


@pytest.mark.usefixtures("_usual_umask")
@pytest.mark.parametrize("kind", ["journal", "recording"])
async def test_recorded_conversations_are_readable_only_by_their_owner(tmp_path: Path, kind: str) -> None:
    """The files of journals and recordings have no permissions for group and others."""
    model, path = ScriptedInference("It is a secret."), tmp_path / "file"
    if kind == "recording":
        await AgentLoop(ToolCallingDriver(RecordingInference(model, path))).execute("go")
        modes = modes_in(tmp_path)
    else:
        journal = SqliteJournal(path)
        await AgentLoop.for_model(model, journal=journal).execute("go")
        modes = modes_in(tmp_path)
        await journal.aclose()
    require(condition=modes, message="no file was written")
    assert {name: mode for name, mode in modes.items() if not mode.endswith("------")} == {}


async def test_the_descriptions_of_a_server_are_limited(tmp_path: Path) -> None:
    """Of ten million characters of descriptions, at most one million reach the model."""
    async with stranger("long texts", tmp_path) as server:
        assert sum(len(spec.description) for spec in server.offered) <= 1_000_000


class _Dripping(httpx.AsyncByteStream):
    """A body that sends one byte every half minute, for more than a day."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(3000):
            await asyncio.sleep(30)
            yield b" "


def test_an_answer_has_a_deadline_by_default() -> None:
    """A server that keeps its connection alive cannot extend a run to a day."""

    async def seconds() -> float:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=_Dripping()))
        clock = asyncio.get_running_loop()
        async with httpx.AsyncClient(transport=transport) as client:
            inference = inference_for("http://127.0.0.1:1/v1", client=client)
            state = await AgentLoop(ToolCallingDriver(inference)).execute("go")
        require(condition=state.status is not ExecutionStatus.COMPLETED, message=state.explain())
        return clock.time()

    assert run_in_virtual_time(seconds()) < 24 * 3600


async def test_the_depth_of_a_path_is_limited(tmp_path: Path) -> None:
    """A path of a thousand folders is rejected, and no folder is created."""
    try:
        execution = await run_call([files(str(tmp_path))], "write_file", path="a/" * 1000 + "f", text="x")
        is_created = (tmp_path / "a").exists()
    finally:
        deepest = tmp_path / ("a/" * 1000)
        (deepest / "f").unlink(missing_ok=True)
        while deepest != tmp_path:
            if deepest.exists():
                deepest.rmdir()
            deepest = deepest.parent
    assert (execution.status, is_created) == (ToolStatus.FAILED, False)


async def test_a_traceback_with_locals_shows_no_key() -> None:
    """A traceback that includes locals, as error trackers record it, does not contain the key."""
    with pytest.raises(InferenceError) as failed:
        await inference_for(f"http://127.0.0.1:{free_port()}/v1").infer(QUESTION)
    trace = traceback.TracebackException.from_exception(failed.value, capture_locals=True)
    assert [line for line in trace.format() if KEY in line] == []


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from agentloop.service.cli.main import main
main(["demo"])
"""


def test_ctrl_c_during_the_start_prints_no_traceback(tmp_path: Path) -> None:
    """The program ends with the exit code of an interrupted program, and without a traceback."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode in {130, -signal.SIGINT}


async def check_that_the_answer_ends_the_call(manner: str, notes: Path) -> None:
    """Call a server with an invalid answer, and check that the call does not time out."""
    execution = await run_call([stranger(manner, notes, policy=ToolPolicy(timeout=2.0))], "act")
    require(condition=calls_of(notes) == 1, message=str(execution.error_message))
    assert execution.status is not ToolStatus.TIMED_OUT


@pytest.mark.parametrize("manner", ["long number", "deep"])
async def test_an_unreadable_answer_ends_the_call(tmp_path: Path, manner: str) -> None:
    """The call ends when an unreadable answer arrives, not by its timeout."""
    await check_that_the_answer_ends_the_call(manner, tmp_path)


async def test_an_answer_with_nan_ends_the_call(tmp_path: Path) -> None:
    """An answer with NaN, which is not valid JSON, does not keep its caller waiting."""
    await check_that_the_answer_ends_the_call("nan", tmp_path)


# --- likely mistakes ----------------------------------------------------------------------------------------------

MISTAKES: dict[str, Callable[[], object]] = {
    "a model instead of a driver": lambda: AgentLoop("openai:gpt-5"),  # type: ignore[call-overload]  # the mistake
    "a path instead of a journal": lambda: AgentLoop.for_model(ScriptedInference("x"), journal="runs.db"),  # type: ignore[call-overload]  # the mistake
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_likely_mistakes_raise_configuration_errors(mistake: str) -> None:
    """A likely mistake raises ConfigurationError, whose message does not contain attrs internals."""
    with pytest.raises(Exception, match=r".") as raised:  # the type is asserted below
        MISTAKES[mistake]()
    assert isinstance(raised.value, ConfigurationError)
    assert "Attribute(" not in str(raised.value)


def test_a_document_is_not_an_image(tmp_path: Path) -> None:
    """A file whose suffix is not that of an image is rejected."""
    path = tmp_path / "x.pdf"
    path.write_bytes(b"%PDF-1.7")
    is_rejected = False
    try:
        Image.from_path(path)
    except ConfigurationError:
        is_rejected = True
    assert is_rejected


def test_invalid_json_is_not_reported_as_cut_off() -> None:
    """The error reports that the arguments are invalid, not that they are incomplete."""
    with pytest.raises(MalformedArguments) as raised:
        _ = ToolCall("1", "act", "{bad").arguments
    assert "cut off" not in str(raised.value)


async def test_an_unused_limit_is_not_nearly_reached() -> None:
    """When a limit is too small for a first step, the message does not say that it is nearly reached."""
    state = await scripted_loop([], interceptors=[Budget(tokens=1)]).execute("go")
    message = "" if state.stop_signal is None else state.stop_signal.message
    assert "nearly reached: 0 used" not in message


async def test_a_duplicate_argument_is_reported() -> None:
    """A call with a duplicate argument is rejected, or the result reports its correction."""
    paid: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "done"

    call = ToolCall("1", "pay", '{"amount": 1, "amount": 1000}')
    state = await AgentLoop.for_model(ScriptedInference([call], "done"), tools=[pay]).execute("go")
    execution = executions(state)[0]
    assert not paid or execution.call.repairs or "amount" in execution.text
