"""What a person is shown is what runs, and what strangers send can neither mislead nor exhaust a program."""

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
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.cli.execution import TerminalApprover
from agentloop.contracts import ToolPolicy
from agentloop.errors import ConfigurationError, InferenceError, MalformedArguments
from agentloop.inference import RecordingInference
from agentloop.interception import Budget, RequireApproval
from agentloop.journal import SqliteJournal
from agentloop.mcp import McpEnsemble
from agentloop.testing import run_in_virtual_time
from agentloop.tools.ensembles.files import files
from agentloop.tools.ensembles.sqlite import sqlite
from agentloop.values import ExecutionStatus, Image, PendingCall, ToolStatus
from agentloop.values.decisions import approve
from tests.cli import conftest as cli
from tests.inference.loopback import KEY
from tests.inference.loopback_inference import QUESTION, inference_for
from tests.mcp.running import SMALL, free_port
from tests.tools.ensembles.running import executions, run_call, scripted_loop

ROOT = Path(__file__).parents[2]
SERVER = str(Path(__file__).with_name("strangers_server.py"))

at_terminal, command_line, server = cli.at_terminal, cli.command_line, cli.server


def fails(reason: str) -> pytest.MarkDecorator:
    """Mark a test whose behavior does not hold yet."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)


def require(*, holds: object, what: str) -> None:
    """Stop a test that cannot show what it is about; an assertion would pass as the failure that is expected.

    Raises:
        RuntimeError: when it does not hold.
    """
    if not holds:
        raise RuntimeError(what)


@pytest.fixture(autouse=True)
def _neutral_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep keys, proxies and the terminal of whoever tests out of the tests."""
    for name in list(os.environ):
        if name.lower().endswith(("_proxy", "_api_key")) or name in {"COLUMNS", "FORCE_COLOR", "NO_COLOR"}:
            monkeypatch.delenv(name)


# --- what a person is shown ---------------------------------------------------------------------------------------

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
    """Return a file with a tool that notes whom it has paid."""
    path = tmp_path / "bank.py"
    path.write_text(BANK, encoding="utf-8")
    return path


def has_paid(bank: Path) -> bool:
    """Say whether anything was paid."""
    return bank.with_suffix(".paid").exists()


def command(server: cli.ModelServer, bank: Path, *more: str, **arguments: object) -> list[str]:
    """Return the command that runs a model which pays with these arguments."""
    server.calls(("pay", arguments))
    server.says("Done.")
    return ["run", "Pay.", "--model", "ollama:m", "--base-url", server.base_url, "--tools", str(bank), *more]


def unbroken(text: str) -> str:
    """Return what is shown without the breaks that the width of the terminal makes."""
    return re.sub(r"\s", "", text)


@fails("C7: the text of a call is cut before its white space is collapsed, so that later arguments are not shown")
def test_a_person_who_approves_has_seen_every_argument(
    at_terminal: AtTerminal, server: cli.ModelServer, bank: Path
) -> None:
    """White space in one argument hides no other: each is named, and nothing runs of which the value was not shown."""
    hidden = {"to": "Ada", "note": "thanks" + " " * 2100, "amount": 1_000_000, "iban": "HIDDEN"}
    ended = at_terminal(*command(server, bank, "--approve", "ask", "--quiet", **hidden), typed="y\n")
    asked = ended.err
    assert [name for name in hidden if name not in asked] == []
    assert "HIDDEN" in asked or not has_paid(bank)


@fails("C7: a long argument is cut without a mark, and approved with what was cut off")
def test_a_long_argument_is_shown_whole_or_marked_as_cut(
    at_terminal: AtTerminal, server: cli.ModelServer, bank: Path
) -> None:
    """Where not everything is shown, that is said, and a yes is not taken before the rest was seen."""
    arguments = command(server, bank, "--approve", "ask", "--quiet", to="Ada", note="a" * 3000 + "TAIL")
    shown = unbroken(at_terminal(*arguments, typed="y\n").err)
    assert "TAIL" in shown or "morecharacters" in shown
    assert "TAIL" in shown or not has_paid(bank)


FORMATS = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Cf"]
BLANKS = [chr(code) for code in (0x34F, 0x115F, 0x1160, 0x17B4, 0x3164, 0xFE0F, 0xFFA0, 0xE0100)]
INVISIBLE = {"format characters": FORMATS, "fillers and selectors": BLANKS}


@pytest.mark.parametrize("kind", INVISIBLE)
@pytest.mark.parametrize("way", ["prompt", "progress", "runs show"])
@fails("C7: characters that cannot be seen are written to the terminal as they are")
def test_what_cannot_be_seen_is_spelled_out(
    at_terminal: AtTerminal, command_line: cli.CommandLine, server: cli.ModelServer, bank: Path, *, way: str, kind: str
) -> None:
    """The prompt, the progress and `runs show` write no character of a call that a person could not see."""
    note = "x".join(INVISIBLE[kind])
    journal = str(bank.with_name("runs.db"))
    options = {"prompt": ["--approve", "ask", "--quiet"], "progress": ["--approve", "all"]}.get(
        way, ["--approve", "all", "--quiet", "--journal", journal]
    )
    shown = at_terminal(*command(server, bank, *options, to="Ada", note=note), typed="n\n").err
    if way == "runs show":
        listed = json.loads(command_line("runs", "list", "--journal", journal, "--json").out)
        shown = command_line("runs", "show", listed[0]["execution_id"], "--step", "1", "--journal", journal).out
    require(holds="Ada" in shown, what=shown)
    assert [f"U+{ord(one):04X}" for one in INVISIBLE[kind] if one in shown] == []


@fails("C7: `runs show` cuts a call before its white space is collapsed, without a mark")
def test_a_recorded_call_is_shown_with_all_arguments(
    command_line: cli.CommandLine, server: cli.ModelServer, bank: Path
) -> None:
    """What ran can be seen afterwards: a step that is shown uncut has every argument of its calls."""
    journal = str(bank.with_name("runs.db"))
    hidden = {"to": "Ada", "note": "thanks" + " " * 2100, "amount": 1_000_000, "iban": "HIDDEN"}
    command_line(*command(server, bank, "--approve", "all", "--quiet", "--journal", journal, **hidden))
    listed = json.loads(command_line("runs", "list", "--journal", journal, "--json").out)
    shown = command_line("runs", "show", listed[0]["execution_id"], "--step", "1", "--journal", journal).out
    require(holds=has_paid(bank), what="the call has not run")
    require(holds="Ada" in shown, what=shown)
    assert "HIDDEN" in shown


@fails("C7: the progress cuts a call before its white space is collapsed, without a mark")
def test_progress_marks_a_call_that_it_cuts(at_terminal: AtTerminal, server: cli.ModelServer, bank: Path) -> None:
    """A line may be shortened, and says so."""
    hidden = {"to": "Ada", "note": "thanks" + " " * 2100, "iban": "HIDDEN"}
    shown = at_terminal(*command(server, bank, "--approve", "all", **hidden), typed="").err
    require(holds="Ada" in shown, what=shown)
    assert "HIDDEN" in shown or "…" in shown or "more characters" in shown


def prompted(**arguments: str) -> str:
    """Return what the terminal shows to a person who is asked about a call, and says no."""
    shown = io.StringIO()
    call = ToolCall("1", "pay").with_arguments(arguments)
    kept, sys.stdin = sys.stdin, io.StringIO("n\n")
    try:
        TerminalApprover(Console(file=shown, width=10_000))(PendingCall("e/1/0", call))
    finally:
        sys.stdin = kept
    return shown.getvalue()


LOOK_ALIKES = str.maketrans({"\u0410": "A", "\u0430": "a", "\u0435": "e", "\u043e": "o", "\u0440": "p", "\u0441": "c"})
UNSEEN = re.compile("[" + "".join([*FORMATS, *BLANKS]) + "]")


def seen(text: str) -> str:
    """Return what an eye gets of a text: no invisible characters, one form of accents, one of blanks, one of look-alikes."""
    plain = unicodedata.normalize("NFC", UNSEEN.sub("", text)).translate(LOOK_ALIKES)
    return "".join([" " if unicodedata.category(one) == "Zs" else one for one in plain])


@fails("C7: letters of other scripts are shown as if they were Latin ones")
def test_look_alikes_are_marked_in_words_of_mixed_scripts() -> None:
    """An address with two Cyrillic letters does not look like the one that it imitates; a Russian word is shown as it is."""
    assert "Мария" in prompted(to="Мария")
    assert seen(prompted(to="\u0410da@b\u0430nk.example")) != seen(prompted(to="Ada@bank.example"))


@fails("C7: one accented letter and a letter with an accent are shown alike")
def test_forms_of_accents_differ_visibly() -> None:
    """A name in composed and in decomposed form are two names, and can be told apart."""
    assert seen(prompted(to="Jos\u00e9")) != seen(prompted(to="Jose\u0301"))


TEXTS = st.text(
    st.sampled_from(["a", "e", "\u0430", "\u0301", "\u00e9", " ", "\u00a0", "\u200b", "\u202e", "\n", '"', "\\"])
)


@given(one=TEXTS, other=TEXTS)
@example(one="a b", other="a  b")
@example(one="ab", other="a\u200bb")
@example(one="a b", other="a\u00a0b")
@example(one="\\u200b", other="\u200b")
@fails("C7: calls with different arguments are shown alike")
def test_different_calls_never_look_alike(one: str, other: str) -> None:
    """Whatever differs between two calls can be seen, and what is the same is shown the same."""
    assert (seen(prompted(to=one)) == seen(prompted(to=other))) is (one == other)


# --- servers of others --------------------------------------------------------------------------------------------


def stranger(manner: str, notes: Path, **settings: Any) -> McpEnsemble:
    """Return a server that cannot be trusted."""
    settings = {"connect_timeout": 30, "reconnect_timeout": 5, **settings}
    return McpEnsemble.stdio(sys.executable, ["-S", SERVER, manner, str(notes)], name="stranger", **settings)


def calls_of(notes: Path) -> int:
    """Return how often the server was called."""
    return len((notes / "calls").read_text().splitlines()) if (notes / "calls").exists() else 0


@fails("C8: a server that calls its tool read-only is not asked about")
async def test_the_word_of_a_server_does_not_disarm_approvals(tmp_path: Path) -> None:
    """Calls of a tool that claims to change nothing wait as any other of a server."""
    state = await scripted_loop(
        [stranger("claims to be harmless", tmp_path)], ("act", {}), interceptors=[RequireApproval()]
    ).execute("go")
    assert (state.status, calls_of(tmp_path)) == (ExecutionStatus.SUSPENDED, 0)


@fails("C8: a call is sent again because its server says that this does no harm")
async def test_the_word_of_a_server_does_not_repeat_calls(tmp_path: Path) -> None:
    """A call during which the server was lost is in doubt, and made once."""
    lost = executions(
        await scripted_loop([stranger("claims to be harmless and dies", tmp_path)], ("act", {})).execute("go")
    )[0]
    assert calls_of(tmp_path) == 1
    assert lost.status is ToolStatus.IN_DOUBT


async def waiting(manner: str, notes: Path, **more: Any) -> tuple[AgentLoop, AgentState]:
    """Let a call of a server wait for a decision."""
    loop = scripted_loop([stranger(manner, notes)], ("act", {}), interceptors=[RequireApproval()])
    state = await loop.execute("go", **more)
    require(holds=state.status is ExecutionStatus.SUSPENDED and not calls_of(notes), what=state.explain())
    return loop, state


@pytest.mark.parametrize("manner", ["changes", "changes its schema"])
@fails("C8: a tool whose definition has changed since it was approved runs")
async def test_a_tool_that_has_changed_is_asked_about_anew(tmp_path: Path, manner: str) -> None:
    """The approval is of the tool as it was described to the person."""
    loop, state = await waiting(manner, tmp_path)
    (tmp_path / "changed").touch()
    await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})
    assert calls_of(tmp_path) == 0


@pytest.mark.parametrize("manner", ["changes", "changes its schema"])
@fails("C8: the digest that binds a decision leaves the tool's definition out")
async def test_a_decision_is_bound_to_the_definition(tmp_path: Path, manner: str) -> None:
    """The same call of a tool with another definition has another digest."""
    _, before = await waiting("polite", tmp_path, execution_id="e")
    (tmp_path / "changed").touch()
    monitored = stranger(manner, tmp_path)
    loop = scripted_loop([monitored], ("act", {}), interceptors=[RequireApproval(["act"])])
    after = await loop.execute("go", execution_id="e")
    require(holds=[call.key for call in before.pending] == [call.key for call in after.pending], what="other keys")
    assert [call.digest for call in before.pending] != [call.digest for call in after.pending]


async def told_while_resumed(notes: Path, *, changed: bool) -> set[str]:
    """Return the kinds of events of a call that waits, is approved and goes on, after its tool has changed or not."""
    loop = scripted_loop([stranger("changes", notes)], ("act", {}), interceptors=[RequireApproval(["act"])])
    kinds: set[str] = set()
    loop.wiretap(lambda event: kinds.add(type(event).__name__))
    state = await loop.execute("go")
    if changed:
        (notes / "changed").touch()
    await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})
    return kinds


@fails("C8: that a tool has changed is told by no event")
async def test_a_change_of_a_tool_is_told(tmp_path: Path) -> None:
    """There is a kind of event that comes when a definition has changed, and not when it has not."""
    usual = await told_while_resumed(tmp_path, changed=False)
    assert await told_while_resumed(tmp_path, changed=True) - usual


@fails("C8: `agentloop run` runs tools that change something unasked unless told to ask")
def test_tools_that_change_something_are_asked_about_by_default(
    command_line: cli.CommandLine, server: cli.ModelServer, bank: Path
) -> None:
    """Without --approve, and with nobody to ask, nothing is paid, and the exit code says that a call waits."""
    ended = command_line(*command(server, bank, "--quiet", to="Ada"))
    assert not has_paid(bank)
    assert ended.code == 3


@fails("C8: `agentloop run` runs a server's tools unasked where the server calls them read-only")
def test_tools_of_servers_are_always_asked_about(
    command_line: cli.CommandLine, server: cli.ModelServer, tmp_path: Path
) -> None:
    """Whatever the server says of them."""
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"small": {"command": sys.executable, "args": [SMALL]}}}))
    server.calls(("add", {"a": 2, "b": 40}))
    server.says("42")
    ended = command_line("run", "2+40?", "--model", "ollama:m", "--base-url", server.base_url, "--mcp", str(config))
    assert (ended.code, len(server.requests)) == (3, 1)


# --- the package --------------------------------------------------------------------------------------------------

OURS = "agentloop-kernel"


def project() -> dict[str, Any]:
    """Return the table of the project."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


@fails("C9: the distribution has a name that is somebody else's on the package index")
def test_the_distribution_has_a_name_of_our_own() -> None:
    """It is not the name of the package that is imported."""
    assert project()["name"] == OURS


@pytest.mark.parametrize("place", ["command line", "mcp", "documents"])
@fails("C9: what tells how to install an extra names somebody else's distribution")
def test_hints_install_what_is_ours(place: str, tmp_path: Path) -> None:
    """Whoever copies a hint or a line of the documents into a shell gets this package."""
    if place == "documents":
        told = "\n".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    else:
        missing, arguments = ("click", ["demo"]) if place == "command line" else ("mcp", ["mcp", "serve", "t.py"])
        (tmp_path / "t.py").write_text(BANK)
        code = f"import sys; sys.modules[{missing!r}] = None; from agentloop.cli.main import main; main({arguments!r})"
        told = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        ).stderr
    named = re.findall(r"(?:pip|uv|pipx) (?:install|add) '?([a-z][\w-]*)", told)
    require(holds=named, what=told)
    assert set(named) == {OURS}


@fails("M37: orjson is admitted in versions that crash on deeply nested text")
def test_no_dependency_is_admitted_with_known_faults() -> None:
    """The lower bound of orjson is the first version that withstands nested text, 3.9.15."""
    extras = [one for listed in project()["optional-dependencies"].values() for one in listed]
    bounds = [re.search(r">=([\d.]+)", one) for one in extras if one.startswith("orjson")]
    require(holds=bounds, what="orjson is not among the extras")
    assert [bound[1] for bound in bounds if bound and tuple(map(int, bound[1].split("."))) < (3, 9, 15)] == []


# --- what takes time and memory -----------------------------------------------------------------------------------


def child(case: str, *given: object) -> dict[str, Any]:
    """Run a case in a process of its own, within limits; return what it told, nothing if it was killed."""
    arguments = [sys.executable, "-W", "ignore", "-m", "tests.regressions.strangers_child", case, *map(str, given)]
    ended = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    require(holds=ended.returncode in {0, -signal.SIGPROF, -signal.SIGKILL}, what=ended.stderr)
    told: dict[str, Any] = {}
    for line in ended.stdout.splitlines():
        told |= json.loads(line)
    return told


@pytest.mark.parametrize("kind", ["references", "pattern", "patternProperties"])
@fails("H24: a small schema of a stranger takes a processor for itself")
def test_a_schema_is_checked_within_bounds(kind: str) -> None:
    """It is refused or used, in time, and so are arguments that are held against it."""
    assert "refused" in child("schema", kind)


@fails("H24: the process stands still when it connects with a server whose tool has such a schema")
def test_connecting_ends_whatever_the_schemas(tmp_path: Path) -> None:
    """The tool is offered or left out, in time."""
    assert "offered" in child("connect", "small schema, endless work", tmp_path)


@pytest.mark.parametrize("driver", ["react", "structured"])
@fails("H25: the pattern of a fence takes cubic time on empty lines")
def test_a_fence_of_empty_lines_is_read_in_time(driver: str) -> None:
    """Reading an answer takes time in proportion to its length."""
    assert "status" in child("fence", driver)


@fails("M45: reading of texts has no bound on steps or characters")
def test_a_million_brackets_are_read_in_time() -> None:
    """A text of brackets is given up within a budget."""
    assert "read" in child("brackets")


@pytest.mark.parametrize("codings", [1, 3])
@fails("H26: the bytes of a compressed answer are counted after they were inflated, whatever the codings")
def test_an_answer_is_inflated_within_its_limit(codings: int) -> None:
    """An answer of at most 1 MB does not take more than a few, however it is compressed."""
    told = child("inflated_answer", codings)
    assert told.get("error") == "InvalidResponse"
    assert told["megabytes"] < 32


@fails("H26: the bytes of an MCP answer are counted before they are inflated")
def test_an_mcp_answer_is_inflated_within_its_limit() -> None:
    """The limit on messages, 16 MB, holds for what comes out, and the call ends as a lost one."""
    told = child("inflated_result")
    assert told.get("status") in {"failed", "in_doubt"}
    assert told["megabytes"] < 64


@fails("H27: `edit_file` builds the new text before it looks at its size")
def test_an_edit_is_measured_before_it_is_made(tmp_path: Path) -> None:
    """A replacement that would be too large is refused without being made."""
    told = child("grow", tmp_path)
    assert (told.get("status"), told.get("error")) == ("failed", "ToolFailed")
    assert told["megabytes"] < 100


@fails("M33: a query is bounded in instructions, of which one may take long, and not in time")
def test_a_query_is_bounded_in_time(tmp_path: Path) -> None:
    """A query of few and slow instructions is interrupted."""
    with closing(sqlite3.connect(tmp_path / "q.db")) as connection:
        connection.execute("CREATE TABLE t (a)")
    assert child("slow_query", tmp_path / "q.db").get("status") == "failed"


@fails("M34: every call of a plain function gets a thread of its own, however many there are")
def test_threads_are_bounded() -> None:
    """A thousand calls of one answer run on some threads, not on a thousand."""
    told = child("many_calls", 1000)
    require(holds=told.get("done") == 1000, what="the calls did not run")
    assert told["threads"] <= 256


@fails("M36: a process that was forked while a journal was open hangs")
def test_a_forked_process_does_not_hang(tmp_path: Path) -> None:
    """The child of a fork uses the journal, or is told that it cannot."""
    told = child("forked", tmp_path / "runs.db")
    assert told.get("signal") == 0
    assert told["child"]


# --- small doors --------------------------------------------------------------------------------------------------

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
    """Run `agentloop mcp serve --http` until the end; return its port, 0 where it does not serve."""
    arguments = ["mcp", "serve", str(tools), "--http", "--port", "0", *more]
    with subprocess.Popen(
        [sys.executable, "-m", "agentloop.cli.main", *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            found = next(
                filter(None, (re.search(r"serving at \S+:(\d+)/mcp", line) for line in process.stderr or ())), None
            )
            yield 0 if found is None else int(found[1])
        finally:
            process.kill()


def posted(client: http.client.HTTPConnection, body: Mapping[str, object], **headers: str) -> tuple[int, str]:
    """Send a request; return the status and the session that it was answered with."""
    given = {"accept": "application/json, text/event-stream", "content-type": "application/json", **headers}
    client.request("POST", "/mcp", json.dumps(body), given)
    answer = client.getresponse()
    answer.read()
    return answer.status, answer.getheader(SESSION, "")


@pytest.mark.parametrize("origin", ["", "http://evil.example"])
@fails("H28: tools are served to a whole network without authentication or a look at the origin")
def test_tools_are_not_served_to_everybody(bank: Path, origin: str) -> None:
    """Outside of this machine's own addresses, a request that shows no credential is refused, as is a web page's."""
    with serving(bank, "--host", "0.0.0.0") as port:  # what is tested
        if not port:
            return  # it does not serve like that at all
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
            status, _ = posted(client, HELLO, **({"origin": origin} if origin else {}))
    assert status in {401, 403, 421}


def begun(port: int, sessions: int) -> int:
    """Begin sessions over one connection; return how many the server took."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
        return [posted(client, HELLO)[0] for _ in range(sessions)].count(200)


@fails("M40: every session that was ever begun is kept")
def test_sessions_are_not_kept_for_ever(bank: Path) -> None:
    """Whoever begins six hundred sessions is refused some, or the server forgets the oldest."""
    with serving(bank) as port, ThreadPoolExecutor(12) as pool:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
            first = posted(client, HELLO)[1]
        taken = sum(pool.map(lambda _: begun(port, 50), range(12)))
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as client:
            is_known = bool(first) and posted(client, LIST, **{SESSION: first})[0] == 200
    assert not (is_known and taken == 600)


@pytest.mark.parametrize(
    "sql",
    ["SELECT value FROM json_each('[1, 2]')", "SELECT a FROM words WHERE words MATCH 'hello'"],
    ids=["json_each", "full text"],
)
@fails("M33: functions that return tables, and full-text indexes, cannot be read")
async def test_virtual_tables_can_be_read(tmp_path: Path, sql: str) -> None:
    """They are read like other tables, since reading them changes nothing."""
    with closing(sqlite3.connect(tmp_path / "q.db")) as connection:
        connection.executescript("CREATE VIRTUAL TABLE words USING fts5(a); INSERT INTO words VALUES ('hello');")
    execution = await run_call([sqlite(str(tmp_path / "q.db"))], "query_database", sql=sql)
    assert execution.status is ToolStatus.SUCCEEDED, execution.error_message


@pytest.fixture
def _usual_umask() -> Iterator[None]:
    """Let new files be readable by everybody unless a program says otherwise, as on most machines."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes_in(folder: Path) -> dict[str, str]:
    """Return who may do what with each file of a folder."""
    return {one.name: stat.filemode(one.stat().st_mode) for one in folder.iterdir()}


@pytest.mark.usefixtures("_usual_umask")
@pytest.mark.parametrize("kind", ["journal", "recording"])
@fails("M35: other users of the machine can read what was said")
async def test_what_was_said_is_for_its_owner_only(tmp_path: Path, kind: str) -> None:
    """Journals and recordings, and what belongs to them, are made with no rights for group and others."""
    model, path = ScriptedInference("It is a secret."), tmp_path / "file"
    if kind == "recording":
        await AgentLoop(ToolCallingDriver(RecordingInference(model, path))).execute("go")
        modes = modes_in(tmp_path)
    else:
        journal = SqliteJournal(path)
        await AgentLoop.for_model(model, journal=journal).execute("go")
        modes = modes_in(tmp_path)
        await journal.aclose()
    require(holds=modes, what="nothing was written")
    assert {name: mode for name, mode in modes.items() if not mode.endswith("------")} == {}


@fails("M38: a model is offered whatever an MCP server says, at any length")
async def test_what_a_server_offers_is_bounded(tmp_path: Path) -> None:
    """Of ten million characters of descriptions, at most one million reaches the model."""
    async with stranger("long texts", tmp_path) as held:
        assert sum(len(one.description) for one in held.offered) <= 1_000_000


class _Dripping(httpx.AsyncByteStream):
    """A body of which a byte comes every half minute, for more than a day."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(3000):
            await asyncio.sleep(30)
            yield b" "


@fails("M39: an answer that comes byte by byte is waited for without end")
def test_an_answer_has_a_deadline_by_default() -> None:
    """A server that keeps a connection alive does not keep a run alive for a day."""

    async def seconds() -> float:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=_Dripping()))
        clock = asyncio.get_running_loop()
        async with httpx.AsyncClient(transport=transport) as client:
            inference = inference_for("http://127.0.0.1:1/v1", client=client)
            state = await AgentLoop(ToolCallingDriver(inference)).execute("go")
        require(holds=state.status is not ExecutionStatus.COMPLETED, what=state.explain())
        return clock.time()

    assert run_in_virtual_time(seconds()) < 24 * 3600


@fails("M41: a call makes as many folders as its path has slashes")
async def test_a_path_has_a_bounded_depth(tmp_path: Path) -> None:
    """A path of a thousand folders is refused, and none of them is made."""
    try:
        execution = await run_call([files(str(tmp_path))], "write_file", path="a/" * 1000 + "f", text="x")
        made = (tmp_path / "a").exists()
    finally:
        deepest = tmp_path / ("a/" * 1000)
        (deepest / "f").unlink(missing_ok=True)
        while deepest != tmp_path:
            if deepest.exists():
                deepest.rmdir()
            deepest = deepest.parent
    assert (execution.status, made) == (ToolStatus.FAILED, False)


@fails("M42: the headers of a request, with the key, are locals of the frames of its error")
async def test_a_traceback_with_locals_shows_no_key() -> None:
    """What error trackers record of a failure, locals included, holds no key."""
    with pytest.raises(InferenceError) as failed:
        await inference_for(f"http://127.0.0.1:{free_port()}/v1").infer(QUESTION)
    told = traceback.TracebackException.from_exception(failed.value, capture_locals=True)
    assert [line for line in told.format() if KEY in line] == []


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from agentloop.cli.main import main
main(["demo"])
"""


@fails("M43: Ctrl-C while the command line starts leaves a traceback")
def test_ctrl_c_during_the_start_is_no_accident(tmp_path: Path) -> None:
    """It ends with the exit code of an interrupted program, and without a traceback."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode in {130, -signal.SIGINT}


async def check_that_its_answer_ends_the_call(manner: str, notes: Path) -> None:
    """Call a server whose answer is odd, and check that the call does not end by its timeout."""
    execution = await run_call([stranger(manner, notes, policy=ToolPolicy(timeout=2.0))], "act")
    require(holds=calls_of(notes) == 1, what=str(execution.error_message))
    assert execution.status is not ToolStatus.TIMED_OUT


@pytest.mark.parametrize("manner", ["long number", "deep"])
@fails("M44: an answer of a server that cannot be read is dropped, and its caller waits")
async def test_an_answer_that_cannot_be_read_is_an_answer(tmp_path: Path, manner: str) -> None:
    """The call ends when the answer comes."""
    await check_that_its_answer_ends_the_call(manner, tmp_path)


async def test_an_answer_without_a_number_is_an_answer(tmp_path: Path) -> None:
    """NaN, which JSON has no word for, does not keep a caller waiting."""
    await check_that_its_answer_ends_the_call("nan", tmp_path)


# --- likely mistakes ----------------------------------------------------------------------------------------------

MISTAKES: dict[str, Callable[[], object]] = {
    "a model instead of a driver": lambda: AgentLoop("openai:gpt-5"),  # type: ignore[arg-type]  # the mistake
    "a path instead of a journal": lambda: AgentLoop.for_model(ScriptedInference("x"), journal="runs.db"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@fails("L: the likeliest mistakes are told by attrs, and not in the library's words")
def test_likely_mistakes_are_told(mistake: str) -> None:
    """They are an error of configuration, whose text does not show how a class is made."""
    with pytest.raises(Exception, match=r".") as made:  # of whatever kind, which is what is looked at
        MISTAKES[mistake]()
    assert isinstance(made.value, ConfigurationError)
    assert "Attribute(" not in str(made.value)


@fails("L: a document is taken for a picture")
def test_a_document_is_no_picture(tmp_path: Path) -> None:
    """The type that the name of a file tells has to be that of a picture."""
    path = tmp_path / "x.pdf"
    path.write_bytes(b"%PDF-1.7")
    refused = False
    try:
        Image.from_path(path)
    except ConfigurationError:
        refused = True
    assert refused


@fails("L: text that cannot be completed to JSON is called cut off")
def test_what_is_no_json_is_not_called_cut_off() -> None:
    """A model is told what is wrong with its arguments: that they are invalid, not that they are incomplete."""
    with pytest.raises(MalformedArguments) as refused:
        _ = ToolCall("1", "act", "{bad").arguments
    assert "cut off" not in str(refused.value)


@fails("L: a limit is said to be nearly reached before anything was used")
async def test_a_limit_is_not_nearly_reached_by_nothing() -> None:
    """Where a limit is too small for a first step, that is what is told."""
    state = await scripted_loop([], interceptors=[Budget(tokens=1)]).execute("go")
    told = "" if state.stop_signal is None else state.stop_signal.message
    assert "nearly reached: 0 used" not in told


@fails("L: of two arguments of one name the last wins, and nobody is told")
async def test_an_argument_that_is_given_twice_is_told() -> None:
    """The call is refused, or what was done with it is told."""
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
