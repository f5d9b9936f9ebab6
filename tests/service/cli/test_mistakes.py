"""Mistakes at the command line, as one table: each ends in one clear sentence, without a traceback."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import AgentLoop, ScriptedInference
from agentloop.durable import SqliteJournal
from agentloop.errors import JournalCorrupt
from agentloop.service.cli.commands import ENTRIES
from tests.limits import LONGEST

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine

# Nothing listens there: a mistake that is not noticed ends in another message.
MODEL = ["-m", "ollama:m", "--base-url", "http://127.0.0.1:9/v1"]
SHORT = {
    "M": MODEL,
    "R": ["run", "hi", *MODEL],
    "C": ["chat", *MODEL],
    "P": ["postgresql://u:hunter2@127.0.0.1:9/x"],
    "B": ["postgresql://u:hunter2@[h:x/x"],
    "U": ["mysql://u:hunter2@h/x"],
    "V": ["postgresql:/u:hunter2@h/x"],
}

FILES = {
    "broken.toml": "x = [\n",
    "broken.json": '{"mcpServers": ',
    "text.db": "not a database, but a text that is long enough to be read as one\n" * 20,
    "queues.db-engine": "beside a journal, and no database either\n" * 20,
    "missing.py": "import nothing_here\n",
    "exits.py": "raise SystemExit(3)\n",
    "syntax.py": "def f(:\n",
    "plain.py": "x = 1\n\n\ndef f():\n    pass\n\n\nclass K:\n    pass\n",
    "good.py": 'from agentloop import tool\n\n\n@tool(effect="pure")\ndef one() -> int:\n    """One."""\n    return 1\n',
    "agent.toml": 'model = "ollama:m"\nsystem_prompt = "Hi {{name}}"\n',
    "nomodel.toml": 'system_prompt = "Hi"\n',
    "wrong.toml": 'model = "ollama:m"\nmodle = 3\n',
    "noyaml.md": "no front matter\n",
    "yaml.md": "---\nmodel: [\n---\nHi\n",
    "list.json": "[1]",
    "noservers.json": "{}",
    "badserver.json": '{"mcpServers": {"a": {}}}',
    "talk.json": '{"schema_version": 99, "kind": "AgentState", "value": {}}',
    "loopapp.py": (
        "from agentloop import AgentLoop, ScriptedInference\n\n"
        'loop = AgentLoop.for_model(ScriptedInference("x"))\nn = 3\n\n\n'
        'def fails():\n    raise ValueError("no")\n'
    ),
    "paying.py": (
        "from agentloop import AgentLoop, RequireApproval, ScriptedInference, tool\n"
        "from agentloop.policies import AskUnlessGranted\n\n\n"
        '@tool\ndef pay(amount: int) -> str:\n    """Pay."""\n    return "paid"\n\n\n'
        '@tool(effect="pure")\ndef look() -> str:\n    """Look."""\n    return "seen"\n\n\n'
        '@tool(runs_code=True)\ndef shell(line: str) -> str:\n    """Run."""\n    return line\n\n\n'
        'guard = AskUnlessGranted(RequireApproval(["pay", "shell"]))\n'
        'loop = AgentLoop.for_model(ScriptedInference("x"), tools=[pay, look, shell], interceptors=[guard])\n'
    ),
    **{f"empty.{suffix}": "" for suffix in ("py", "toml", "md", "json", "db")},
}
BINARY = [f"binary.{suffix}" for suffix in ("bin", "py", "toml", "json", "md", "db", "png")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files of every wrong kind, and a journal with two executions; nothing changes them."""
    path = tmp_path_factory.mktemp("mistakes")
    (path / "folder").mkdir()
    for name, text in FILES.items():
        (path / name).write_text(text, encoding="utf-8")
    for name in BINARY:
        (path / name).write_bytes(b"\x00\xff\x01binary" * 50)
    for name in ("loop", "loop.toml"):
        (path / name).symlink_to(name)
    other = sqlite3.connect(path / "other.db")
    other.execute("create table t (x)")
    other.close()
    asyncio.run(_record(path / "good.db"))
    return path


async def _record(file: Path) -> None:
    journal = SqliteJournal(file)
    for number in (1, 2):
        loop = AgentLoop.for_model(ScriptedInference("x"), journal=journal)
        await loop.execute("q", execution_id=f"abc-{number}")
    await journal.aclose()


EMPTY_ID = "the id of the execution is empty; `agentloop runs list` lists the executions"

# M stands for a model, R for a run with a question, C for a chat; P, B, U and V for URLs with a password: of a server that
# is away, one that cannot be read, one of another kind, and one that lacks a slash. Of the message, a part is given.
MISTAKES = [
    ("dance", 2, "No such command 'dance'; `agentloop --help` lists the"),
    ("rum", 2, "No such command 'rum', did you mean 'run'?; `agentloop"),
    ("run --modle x", 2, "No such option '--modle'. (Did you mean one of: '--mode'"),
    ('""', 2, "No such command ''; `agentloop --help` lists the commands"),
    ("run", 2, "Missing option '--model', or '--agent'; AGENTLOOP_MODEL"),
    ("run hi", 2, "Missing option '--model', or '--agent'; AGENTLOOP_MODEL"),
    ('run "" M', 2, "the question is empty"),
    ('run " " M', 2, "the question is empty"),
    ("run - M", 2, "the question is empty"),
    ("run hi there M", 2, "Got unexpected extra argument (there)"),
    ("run hi -m gpt-5", 2, "'gpt-5' does not have the form provider:model, as in"),
    ('run hi -m ""', 2, "'' does not have the form provider:model, as in"),
    ('run hi -m ":"', 2, "the model string ':' does not have the form"),
    ('run hi -m "openai:"', 2, "the model string 'openai:' does not have the form"),
    ('run hi -m ":gpt"', 2, "the model string ':gpt' does not have the form"),
    ("run hi -m opnai:gpt-5", 2, "there is no provider 'opnai', did you mean 'openai'?"),
    ("run hi -m grok:x", 2, "there is no provider 'grok'"),
    ("run hi -m claude:x", 2, "there is no provider 'claude'"),
    ("run hi -m openai:gpt-5", 2, "openai needs a key: set the environment variable"),
    ("run hi -m azure:x", 2, "azure needs a key: set the environment variable"),
    ("run hi -m vertex:x", 2, "vertex needs a project of Google Cloud: set the"),
    ('run hi -m "bedrock:x"', 2, "bedrock needs a region of AWS: set the environment"),
    ("run hi -m", 2, "Option '-m' requires an argument."),
    ("run hi -m ollama:m --base-url localhost:8000", 2, "the base URL 'localhost:8000' is not an http or https URL"),
    ("run hi -m ollama:m --base-url ftp://x", 2, "the base URL 'ftp://x' is not an http or https URL such"),
    ('run hi -m ollama:m --base-url "http://"', 2, "the base URL 'http://' is not an http or https URL such"),
    ('run hi -m ollama:m --base-url "http://a b"', 2, "the base URL 'http://a b' is not an http or https URL"),
    ('run hi -m ollama:m --base-url "http://u:p@h"', 2, "credentials in the base URL are not supported; pass"),
    ('run hi -m ollama:m --base-url "http://h:99999"', 2, "the base URL 'http://h:99999' is not an http or https URL"),
    ("run hi -m demo --base-url http://h", 2, "the model demo runs in this process and has no address"),
    ("run hi --agent agent.toml --base-url http://h", 2, "the model of the file of --agent has an address of its"),
    ("R --max-steps 0", 2, "Invalid value for '--max-steps': 0 is not in the range"),
    ("R --max-steps -1", 2, "Invalid value for '--max-steps': -1 is not in the range"),
    ("R --max-steps two", 2, "Invalid value for '--max-steps': 'two' is not a valid"),
    ("R --max-steps 1.5", 2, "Invalid value for '--max-steps': '1.5' is not a valid"),
    ("R --timeout 0", 2, "--timeout must be a number of seconds above 0, not 0"),
    ("R --timeout -1", 2, "--timeout must be a number of seconds above 0, not -1"),
    ("R --timeout nan", 2, "--timeout must be a number of seconds above 0, not nan"),
    ("R --timeout inf", 2, "--timeout must be a number of seconds above 0, not inf"),
    ("R --timeout soon", 2, "Invalid value for '--timeout': 'soon' is not a valid"),
    ("R --max-tokens 0", 2, "Invalid value for '--max-tokens': 0 is not in the range"),
    ("R --max-tokens many", 2, "Invalid value for '--max-tokens': 'many' is not a valid"),
    ("R --max-cost 0", 2, "Invalid value for '--max-cost': 0.0 is not in the range"),
    ("R --max-cost nan", 2, "--max-cost must be a number of dollars above 0, not nan"),
    ("R --max-cost -3", 2, "Invalid value for '--max-cost': -3.0 is not in the range"),
    ("R --approve maybe", 2, "Invalid value for '--approve': 'maybe' is not one of"),
    ("R --approve", 2, "Option '--approve' requires an argument."),
    ("R --driver car", 2, "Invalid value for '--driver': 'car' is not one of"),
    ("R --mode telepathy", 2, "Invalid value for '--mode': 'telepathy' is not one of"),
    ("R --mode json", 2, "--driver tools has no mode 'json', only auto, native"),
    ("R --driver react --mode parsed", 2, "--driver react has no mode 'parsed', only auto, json"),
    ("R --stream --quiet", 2, "--stream and --quiet contradict each other; omit one of"),
    ("run -m demo --mode json", 2, "--driver tools has no mode 'json', only auto, native"),
    ("run -m demo --driver react --mode text", 2, "the model demo calls tools natively; use --driver tools"),
    ("run hi -m demo --tools absent.py", 2, "name a Python or TOML file, or file.py:name"),
    ("R --var a=b", 2, "--var and --allow-server belong to the file of an agent"),
    ("R --var a", 2, "--var a has no value; write --var NAME=VALUE"),
    ("R --allow-server x", 2, "--var and --allow-server belong to the file of an agent"),
    ('R --allow "not a module"', 2, "--allow: allow lists modules such as 'myapp.tools', not"),
    ('R --allow "a:b" --tools empty.toml', 2, "--allow: allow lists modules such as 'myapp.tools', not"),
    ("run hi --agent agent.toml -s x", 2, "the file of --agent decides about --system; omit it, or"),
    ("run hi --agent agent.toml --driver react", 2, "the file of --agent decides about --driver; omit it, or"),
    ("run hi --agent agent.toml --var a", 2, "--var a has no value; write --var NAME=VALUE"),
    ("run hi --agent agent.toml --var other=1", 2, "agent.toml: no system prompt has the variable 'other'"),
    ("run hi --agent agent.toml", 2, "agent.toml, line 2: system_prompt: there is no variable"),
    ("run hi --agent absent.toml", 2, "absent.toml: there is no file absent.toml"),
    ("run hi --agent folder", 2, "folder: folder cannot be read: it is not a file"),
    ("run hi --agent binary.toml", 2, "binary.toml, line 1: the file is not UTF-8: invalid start"),
    ("run hi --agent binary.md", 2, "binary.md, line 1: the file is not UTF-8: invalid start"),
    ("run hi --agent broken.toml", 2, "broken.toml: this is not TOML: Invalid value (at end of"),
    ("run hi --agent empty.toml", 2, "empty.toml: the agent has no model: add model ="),
    ("run hi --agent empty.md", 2, "empty.md, line 1: a Markdown file begins with front"),
    ("run hi --agent nomodel.toml", 2, "nomodel.toml: the agent has no model: add model ="),
    ("run hi --agent wrong.toml", 2, "wrong.toml, line 2: modle: there is no such key; did you"),
    ("run hi --agent noyaml.md", 2, "noyaml.md, line 1: a Markdown file begins with front"),
    ("run hi --agent yaml.md", 2, "yaml.md, line 3: the front matter is not YAML: expected"),
    ("run hi --agent loop.toml", 2, "loop.toml: there is no file loop.toml"),
    ("run hi --agent good.py", 2, "good.py, line 1: this is not TOML: Expected '=' after a"),
    ("run hi --agent loopapp:lop", 2, "there is no 'lop' in"),
    ("run hi --agent loopapp.py:n", 2, "loopapp.py:n is of type int, not an AgentLoop or a function that"),
    ("run hi --agent loopapp:fails", 2, "loopapp:fails did not return a loop: ValueError: no"),
    ("run hi --agent absent.py:loop", 2, "there is no file absent.py; name a loop as module:loop or file.py:loop"),
    (
        "run hi --agent loopapp:loop -m ollama:m -s x",
        2,
        "the code of loopapp:loop decides about --model and --system; omit",
    ),
    (
        "chat --agent loopapp:loop --tools good.py",
        2,
        "the code of loopapp:loop decides about --tools; omit it, or change",
    ),
    ("R --tools absent.py", 2, "name a Python or TOML file, or file.py:name"),
    ("R --tools folder", 2, "name a Python or TOML file, or file.py:name"),
    ("R --tools binary.bin", 2, "is not a Python file: its name must end in .py"),
    ("R --tools binary.py", 2, "source code string cannot contain null bytes"),
    ("R --tools binary.toml", 2, "line 1: the file is not UTF-8: invalid start byte"),
    ("R --tools broken.toml", 2, "this is not TOML: Invalid value (at end of document)"),
    ("R --tools empty.py", 2, "defines no tools; decorate functions in it with"),
    ("R --tools empty.toml", 2, "it has no tools: add use = 'module:name', or tables"),
    ("R --tools missing.py", 2, "cannot be imported: ModuleNotFoundError: No module named"),
    ("R --tools exits.py", 2, "cannot be imported: SystemExit: 3"),
    ("R --tools syntax.py", 2, "cannot be imported: SyntaxError: invalid syntax"),
    ("R --tools plain.py", 2, "defines no tools; decorate functions in it with"),
    ("R --tools plain.py:x", 2, "plain.py:x is of type int, not a tool"),
    ("R --tools plain.py:f", 2, "plain.py:f is the plain function f, not a tool; decorate"),
    ("R --tools plain.py:K", 2, "plain.py:K is the class K, not a tool; name an instance"),
    ("R --tools good.py:onee", 2, "there is no 'onee' in"),
    ("R --tools loop", 2, "loop"),
    ("R --tools loop.toml", 2, "loop.toml"),
    ('R --tools ""', 2, "the name of a file of tools is empty; write --tools FILE"),
    ("R --mcp absent.json", 2, "--mcp absent.json cannot be read: No such file or"),
    ("R --mcp folder", 2, "--mcp folder cannot be read: Is a directory"),
    ("R --mcp broken.json", 2, "broken.json is not JSON: Expecting value: line 1 column"),
    ("R --mcp binary.json", 2, "binary.json is not JSON: 'utf-8' codec can't decode byte"),
    ("R --mcp list.json", 2, 'list.json: there is no object "mcpServers"'),
    ("R --mcp noservers.json", 2, 'noservers.json: there is no object "mcpServers"'),
    ("R --mcp badserver.json", 2, "badserver.json: mcpServers.a has neither a command nor a"),
    ("R --mcp empty.json", 2, "empty.json is not JSON: Expecting value: line 1 column 1"),
    ("R -a absent.png", 2, "--attach absent.png: there is no such file"),
    ("R -a folder", 2, "--attach folder: this is not a file"),
    ("R -a binary.png", 2, "--attach binary.png: this is no text and no image"),
    ("R -a empty.py", 2, "--attach empty.py: the file is empty"),
    ("R -a loop", 2, "--attach loop: there is no such file"),
    ('R -a ""', 2, "--attach .: this is not a file"),
    ("R --journal absent/runs.db", 2, "--journal absent/runs.db: there is no folder absent"),
    ("R --journal folder", 1, "the file cannot be opened; check that its folder exists"),
    ("R --journal text.db", 1, "the file is not a SQLite database, or its beginning is"),
    ("R --journal binary.db", 1, "the file is not a SQLite database, or its beginning is"),
    ("R --journal other.db", 1, "the file is a database, but not a journal; it was not"),
    ('R --journal ""', 2, "--journal is empty; name a file, or omit it"),
    ("R --journal loop", 1, "the file cannot be opened; check that its folder exists"),
    ("R --resume x", 2, "--resume continues with the recorded question; omit the"),
    ("run --resume x M", 2, "--resume requires the journal of the execution: --journal"),
    ("run --resume x M --journal absent.db", 2, "there is no journal absent.db; `agentloop run … --journal"),
    ("run --resume x M --journal text.db", 1, "the file is not a SQLite database, or its beginning is"),
    (
        "run --resume x M --journal good.db",
        2,
        "there is no execution x; `agentloop runs list --journal good.db` lists the",
    ),
    ("run --resume abc M --journal good.db", 2, "2 executions start with 'abc': abc-2, abc-1; write more"),
    ("run hi --resume x M --journal good.db", 2, "--resume continues with the recorded question; omit the"),
    ("run --resume x -a good.py M --journal good.db", 2, "--resume continues with the recorded question; omit the"),
    ("chat", 2, "Missing option '--model', or '--agent'; AGENTLOOP_MODEL"),
    ("chat hi M", 2, "Got unexpected extra argument (hi)"),
    ("C --resume absent.json", 2, "absent.json cannot be read: No such file or directory"),
    ("C --resume list.json", 2, "list.json is not a saved conversation: this JSON was not"),
    ("C --resume talk.json", 2, "talk.json is not a saved conversation: the document has"),
    ("C --resume binary.json", 2, "binary.json is not a saved conversation: this is not"),
    ("C --resume abc", 2, "no conversations are recorded; start the chat with"),
    ("C --resume abc --journal good.db", 2, "2 executions start with 'abc': abc-2, abc-1; write more"),
    (
        "C --resume nope --journal good.db",
        2,
        "there is no execution nope; `agentloop runs list --journal good.db` lists",
    ),
    ("C --journal text.db", 1, "the file is not a SQLite database, or its beginning is"),
    ("C --journal folder", 1, "the file cannot be opened; check that its folder exists"),
    ("C --stream", 2, "No such option '--stream'. (Did you mean one of"),
    ("chat -m demo --base-url http://h", 2, "the model demo runs in this process and has no address"),
    ("chat -m opnai:x", 2, "there is no provider 'opnai', did you mean 'openai'?"),
    ("tools lst", 2, "No such command 'lst'. Did you mean 'list'?"),
    ("tools list", 2, "Missing argument 'PATH', or --mcp"),
    ("tools list absent.py", 2, "there is no file absent.py"),
    ("tools list folder", 2, "folder has no tools; decorate functions in it with"),
    ("tools list binary.py", 1, "source code string cannot contain null bytes"),
    ("tools list no.such.module", 2, "there is no module 'no' and no file no.such.module"),
    ("tools list good.py --mcp absent.json", 2, "--mcp absent.json cannot be read: No such file or"),
    ("tools check", 2, "Missing argument 'PATH'."),
    ("tools check absent.py", 2, "there is no file absent.py"),
    ('tools check "not a module"', 2, "'not a module' is neither an existing file nor the name"),
    ('tools check good.py --allow "x y"', 2, "allow lists modules such as 'myapp.tools', not 'x y'"),
    ("agents check", 2, "Missing argument 'FILE...'."),
    ("agents check absent.toml", 2, "there is no file absent.toml"),
    ("agents check folder", 2, "there is no file folder"),
    ("agents check binary.toml", 1, "binary.toml, line 1: the file is not UTF-8: invalid start"),
    ("agents check broken.toml", 1, "broken.toml: this is not TOML: Invalid value (at end of"),
    ("agents check agent.toml --var x", 2, "--var x has no value; write --var NAME=VALUE"),
    ("skills list absent", 2, "there is no folder absent with skills"),
    ("skills check absent", 2, "there is no folder absent with skills"),
    ("skills lock absent", 2, "there is no folder absent with skills"),
    ("skills list good.py", 2, "there is no folder good.py with skills"),
    ("memory list absent.db", 2, "Invalid value for 'FILE': File 'absent.db' does not exist."),
    ("memory list text.db", 2, "Missing option '--user', '--agent', '--session' or '--tenant': whose"),
    ("memory list", 2, "Missing argument 'FILE'."),
    ("memory list folder", 2, "Invalid value for 'FILE': File 'folder' is a directory."),
    ("memory export absent.db", 2, "Invalid value for 'FILE': File 'absent.db' does not exist."),
    ("memory forget absent.db", 2, "Invalid value for 'FILE': File 'absent.db' does not exist."),
    ("runs lst", 2, "No such command 'lst'. Did you mean 'list'?"),
    ("budgets", 2, "there is no agentloop.db in this directory; name the"),
    ("budgets --journal absent.db", 2, "there is no journal absent.db; `agentloop run … --journal"),
    ("budgets nope", 2, "Got unexpected extra argument (nope)"),
    ("evals rn", 2, "No such command 'rn'"),
    ("evals run", 2, "Missing argument 'SUITE'."),
    ("evals run absent.py", 2, "there is no file absent.py"),
    ("evals run good.py", 2, "there is no 'suite' in good.py"),
    ("evals upgrade", 2, "Missing argument 'MODULE:LOOP'."),
    ("evals upgrade absent:loop", 2, "the module absent cannot be imported"),
    ("evals compare", 2, "Missing argument 'RESULT...'."),
    ("evals compare absent.json", 2, "absent.json cannot be read: No such file"),
    ("evals import", 2, "name a FILE, or a journal with --journal"),
    ("evals import absent.csv", 2, "absent.csv cannot be read: No such file"),
    ("evals export absent.jsonl out.yaml", 2, "absent.jsonl cannot be read: No such file"),
    ("laws 900", 2, "no law has '900'; `agentloop laws` lists them"),
    ("laws cancelation", 2, "no law has 'cancelation', did you mean 'Cancellation'?"),
    ("laws 1 2", 2, "Got unexpected extra argument (2)"),
    ("grants", 2, "there is no agentloop.db in this directory; name the"),
    ("grants --journal absent.db", 2, "there is no journal absent.db; `agentloop run … --journal"),
    ("grants nope", 2, "No such command 'nope'"),
    ("grants --journal good.db add paying:loop pay", 2, "write the options of `grants add` after it"),
    ("grants add", 2, "Missing argument 'MODULE:LOOP'"),
    ("grants add paying:loop", 2, "Missing argument 'TOOL'"),
    ("grants add absent:loop pay", 2, "the module absent cannot be imported"),
    ("grants add paying:loop pai --journal good.db", 2, "the agent paying:loop has no tool 'pai', did you mean 'pay'?"),
    (
        "grants add paying:loop look --journal good.db",
        2,
        "no grant is used for calls of look: the agent paying:loop has no",
    ),
    (
        "grants add paying:loop shell --journal good.db",
        2,
        "the tool 'shell' runs code, so that there is no grant for its",
    ),
    (
        'grants add paying:loop pay "amount !! 3" --journal good.db',
        2,
        "'amount !! 3' is not a limit of an argument; write",
    ),
    ('grants add paying:loop pay "0 uses" --journal good.db', 2, "the uses of a grant are a whole number above 0"),
    ('grants add paying:loop pay "until soon" --journal good.db', 2, "'soon' is not a time; write it as in until"),
    ("grants add paying:loop pay --journal absent.db", 2, "there is no journal absent.db; `agentloop run … --journal"),
    ("grants add paying:loop pay", 2, "there is no agentloop.db in this directory; name the"),
    ("runs list", 2, "there is no agentloop.db in this directory; name the"),
    ("runs list --journal absent.db", 2, "there is no journal absent.db; `agentloop run … --journal"),
    ("runs list --journal folder", 2, "there is no journal folder; `agentloop run … --journal"),
    ("runs list --journal text.db", 1, "the file is not a SQLite database, or its beginning is"),
    ("runs list --journal binary.db", 1, "the file is not a SQLite database, or its beginning is"),
    ("runs list --journal other.db", 1, "the file is a database, but not a journal; it was not"),
    ("runs list --journal good.db --limit 0", 2, "Invalid value for '--limit': 0 is not in the range 1<=x<=1000000"),
    ("runs list --journal good.db --limit 9223372036854775807", 2, "is not in the range 1<=x<=1000000"),
    ("runs list --journal good.db --limit 1000001", 2, "is not in the range 1<=x<=1000000"),
    ("runs list --journal good.db --status odd", 2, "Invalid value for '--status': 'odd' is not one of"),
    ("runs show --journal good.db", 2, "Missing argument 'ID'."),
    ("trace bogus", 2, "No such command 'bogus'."),
    ("trace view --journal good.db", 2, "Missing argument 'ID'."),
    ("trace view abc-1 --compare", 2, "Option '--compare' requires an argument."),
    ("trace serve --port 99999", 2, "99999 is not in the range 0<=x<=65535"),
    ("runs show x --journal good.db", 2, "there is no execution x; `agentloop runs list --journal good.db` lists the"),
    ("runs show abc --journal good.db", 2, "2 executions start with 'abc': abc-2, abc-1; write more"),
    ("runs show abc-3 --journal good.db", 2, "there is no execution abc-3; did you mean abc-2?"),
    ("runs show abc-1 --journal good.db --step 99", 2, "there is no step 99; the execution has 1 step"),
    ("runs show abc-1 --journal good.db --step x", 2, "Invalid value for '--step': 'x' is not a valid integer"),
    (
        "runs resume x loopapp.py:loop --journal good.db",
        2,
        "there is no execution x; `agentloop runs list --journal good.db` lists the",
    ),
    (
        "runs resume abc-1 absent.py:loop --journal good.db",
        2,
        "there is no file absent.py; name a loop as module:loop or",
    ),
    ("runs resume abc-1 loopapp.py:n --journal good.db", 2, "loopapp.py:n is of type int, not an AgentLoop or a"),
    (
        "runs resume abc-1 loopapp.py:fails --journal good.db",
        2,
        "loopapp.py:fails did not return a loop: ValueError: no",
    ),
    ("runs resume abc-1 loopapp.py:looop --journal good.db", 2, "there is no 'looop' in"),
    ("runs resume abc-1 loopapp.py --journal good.db", 2, "'loopapp.py' is not an import path, which is written"),
    (
        "runs resume abc-1 loopapp.py:loop --journal good.db --approve 1.1",
        2,
        "no call waits for a decision, so 1.1 cannot be decided",
    ),
    (
        "runs resume abc-1 loopapp.py:loop --journal good.db --edit 1.1=x",
        2,
        "the arguments for 1.1 are invalid: the arguments are not",
    ),
    (
        "runs resume abc-1 loopapp.py:loop --journal good.db --answer 1.1=x",
        2,
        "the answer for 1.1 is not JSON: Expecting value: line 1",
    ),
    ("runs fork abc-1 --journal good.db", 2, "Missing option '--step'."),
    ("runs fork abc-1 --step 99 --journal good.db", 2, "execution 'abc-1' has no step 99: 1 step is complete"),
    ("runs fork abc-1 --step -1 --journal good.db", 2, "Invalid value for '--step': -1 is not in the range x>=0."),
    (
        "runs fork abc-1 --step 0 --effects odd --journal good.db",
        2,
        "Invalid value for '--effects': 'odd' is not one of",
    ),
    ("runs replay abc-1 --journal good.db", 2, "name executions, or all of them with --all"),
    (
        "runs replay nope loopapp.py:loop --journal good.db",
        2,
        "there is no execution nope; `agentloop runs list --journal good.db` lists",
    ),
    (
        "runs verify nope --journal good.db",
        2,
        "there is no execution nope; `agentloop runs list --journal good.db` lists",
    ),
    (
        "runs verify nope --model --journal good.db",
        2,
        "there is no execution nope; `agentloop runs list --journal good.db` lists",
    ),
    ("simulate --seeds 5:2", 2, "--seeds takes A:B, where B is larger than A"),
    ("simulate --seeds x", 2, "--seeds takes A:B, such as 0:100, or one number"),
    ("simulate --scenario odd", 2, "Invalid value for '--scenario': 'odd' is not one of"),
    ("simulate --faults crash", 2, "'crash' is not a fault; write kind@step:seconds"),
    ("simulate --app loopapp.py:nothing", 2, "there is no 'nothing' in"),
    ("simulate --results text.db", 2, "the results in text.db cannot be read"),
    ("runs verify --journal text.db", 1, "the file is not a SQLite database, or its beginning is"),
    (
        "runs export nope --journal good.db",
        2,
        "there is no execution nope; `agentloop runs list --journal good.db` lists",
    ),
    ("runs export abc-1 --journal good.db -o absent/x", 2, "absent/x cannot be written: No such file or directory"),
    (
        "runs export abc-1 --journal good.db --pytest -o folder",
        2,
        "the file folder exists already; choose another one with -o",
    ),
    (
        "runs stop nope --journal good.db",
        2,
        "there is no execution nope; `agentloop runs list --journal good.db` lists",
    ),
    ("runs stop abc-1 --journal good.db", 1, "execution abc-1 has ended already: it is completed"),
    (
        "runs delete nope --journal good.db",
        2,
        "there is no execution nope; `agentloop runs list --journal good.db` lists",
    ),
    ('runs show "" --journal good.db', 2, EMPTY_ID),
    ('runs show " " --journal good.db', 2, EMPTY_ID),
    ('runs resume "" loopapp.py:loop --journal good.db', 2, EMPTY_ID),
    ('runs fork "" --step 0 --journal good.db', 2, EMPTY_ID),
    ('runs recover "" loopapp.py:loop --journal good.db', 2, EMPTY_ID),
    ('runs replay "" loopapp.py:loop --journal good.db', 2, EMPTY_ID),
    ('runs verify "" --journal good.db', 2, EMPTY_ID),
    ('runs export "" --journal good.db', 2, EMPTY_ID),
    ('runs send "" hi --journal good.db', 2, EMPTY_ID),
    ('runs stop "" --journal good.db', 2, EMPTY_ID),
    ('runs delete "" --journal good.db', 2, EMPTY_ID),
    ('trace view "" --json --journal good.db', 2, EMPTY_ID),
    ('trace view abc-1 --compare "" --json --journal good.db', 2, EMPTY_ID),
    ('run M --journal good.db --resume ""', 2, EMPTY_ID),
    ('chat M --journal good.db --resume ""', 2, EMPTY_ID),
    ("runs purge --journal good.db", 2, "Missing option '--older-than'."),
    ("runs purge --older-than soon --journal good.db", 2, "Invalid value for '--older-than': 'soon' is not a"),
    (
        "runs purge --older-than 3d --status odd --journal good.db",
        2,
        "Invalid value for '--status': 'odd' is not one of",
    ),
    (
        "runs recover nope loopapp.py:loop --journal good.db",
        2,
        "there is no execution nope; `agentloop runs list --journal good.db` lists",
    ),
    ("models opnai", 2, "there is no provider and no alias 'opnai', did you mean"),
    ("models x:y", 2, "there is no provider 'x'"),
    ("models openai:", 2, "'openai:' names no model of openai; omit the colon for"),
    ("models :x", 2, "there is no provider ''"),
    ("models openai --list", 2, "--list asks self-hosted servers, which need no key"),
    ("models --list --base-url http://h", 2, "--base-url is the address of one server; name its"),
    ("models vllm --base-url http://h", 2, "--base-url is the address that --list asks; add --list"),
    ("models vllm --list --base-url nonsense", 2, "the base URL 'nonsense' is not an http or https URL such"),
    ("models a b", 2, "Got unexpected extra argument (b)"),
    ("config sho", 2, "No such command 'sho'. Did you mean 'show'?"),
    ("config set", 2, "Missing argument 'KEY'."),
    ("config set modle x", 2, "there is no key 'modle', did you mean 'model'?; the keys"),
    ("config set model nope", 2, "'nope' does not have the form provider:model, as in"),
    ("config set max_steps many", 2, "max_steps: it is an integer, not 'many'"),
    ("config set aliases.x gpt", 2, "aliases.x: it is a model such as openai:gpt-5, not 'gpt'"),
    ("config unset model", 2, "model is not set in"),
    ("mcp serve", 2, "there is nothing to serve: name files of tools, or an"),
    ("mcp serve absent.py", 2, "name a Python or TOML file, or file.py:name"),
    ("mcp serve plain.py", 2, "defines no tools; decorate functions in it with"),
    ("mcp serve --port 0 absent.py", 2, "name a Python or TOML file, or file.py:name"),
    ("demo --modle", 2, "No such option '--modle'."),
    ("demo extra", 2, "Got unexpected extra argument (extra)"),
    ('chat M --journal ""', 2, "--journal is empty; name a file, or omit it"),
    ('runs list --journal ""', 2, "--journal is empty; name a file, or omit it"),
    ("mcp login", 2, "Missing argument 'URL|NAME'."),
    ("mcp logout nope", 2, "'nope' is neither a URL nor a server in a file of --mcp"),
    ("skills check folder", 2, "folder has no skills: a skill is a folder with a file"),
    ("memory list text.db --user u", 2, "the memories in text.db cannot be used: file is not a"),
    ("memory export text.db --user u", 2, "the memories in text.db cannot be used: file is not a"),
    ("memory forget text.db --user u", 2, "name the ids of the memories to delete, or --all"),
    ("memory list other.db --user u", 2, "other.db is a database of something else; name another"),
    ("worker", 2, "Missing argument 'MODULE:LOOP...'."),
    ("worker absent:loop", 2, "the module absent cannot be imported: ModuleNotFoundError"),
    ("worker absent.py:loop", 2, "there is no file absent.py; name a loop as module:loop or"),
    ("worker loopapp.py:looop", 2, "there is no 'looop' in"),
    ("worker loopapp.py:n", 2, "loopapp.py:n is of type int, not an AgentLoop or a"),
    ("worker loopapp.py:fails", 2, "loopapp.py:fails did not return a loop: ValueError: no"),
    ("worker loopapp", 2, "'loopapp' is not an import path, which is written"),
    ('worker loopapp.py:loop --db ""', 2, "--db is empty; name a file or a URL, or omit it"),
    ("worker loopapp.py:loop --db U", 2, "a database is the path of a SQLite file, or a URL that starts"),
    ("worker loopapp.py:loop --db B", 2, "the URL of the database cannot be read; it has the form"),
    ("worker loopapp.py:loop --db P", 1, "the server cannot be reached, or the connection was lost"),
    ("worker loopapp.py:loop --db absent/w.db", 1, "the file cannot be opened; check that its folder exists"),
    ("worker loopapp.py:loop --db folder", 1, "the file cannot be opened; check that its folder exists"),
    ("worker loopapp.py:loop --db text.db", 1, "the file is not a SQLite database, or its beginning is"),
    (
        "worker loopapp.py:loop --db queues.db",
        1,
        "queues.db-engine: the file is not a SQLite database, or its beginning",
    ),
    ("worker loopapp.py:loop --db other.db", 1, "the file is a database, but not a journal; it was not"),
    ("worker loopapp.py:loop --executions 0", 2, "Invalid value for '--executions': 0 is not in the range"),
    ("worker loopapp.py:loop --tools -1", 2, "Invalid value for '--tools': -1 is not in the range"),
    ("worker loopapp.py:loop --max-recoveries few", 2, "Invalid value for '--max-recoveries': 'few' is not a"),
    ("worker loopapp.py:loop --lost-after 0", 2, "Invalid value for '--lost-after': 0.0 is not in the range"),
    ("worker loopapp.py:loop --lost-after nan --db w.db", 2, "a worker has at least one slot for executions"),
    ("worker loopapp.py:loop --drain-grace nan --db w.db", 2, "a worker has at least one slot for executions"),
    ("worker loopapp.py:loop --drain-grace soon", 2, "Invalid value for '--drain-grace': 'soon' is not a"),
    ("submit", 2, "Missing argument 'MODULE:LOOP'."),
    ("submit a:b hi there", 2, "Got unexpected extra argument (there)"),
    ('submit "" hi --db s.db', 2, "the name of the agent is empty; write the one that its workers"),
    ('submit a:b "" --db s.db', 2, "the text that the execution starts with is empty"),
    ("submit a:b --db s.db", 2, "the text that the execution starts with is empty"),
    ('submit a:b hi --id "" --db s.db', 2, "the id of an execution is a text without null characters"),
    ('submit a:b hi --queue "" --db s.db', 2, "the name of the queue is empty"),
    ("submit a:b hi --priority high", 2, "Invalid value for '--priority': 'high' is not a valid"),
    ("submit a:b hi --priority 99999999 --db s.db", 2, "a priority is between -999,999 and 999,999"),
    ("submit a:b hi --delay -1", 2, "Invalid value for '--delay': -1.0 is not in the range"),
    ("submit a:b hi --delay nan --db s.db", 2, "a delay is a number of seconds from 0 to 315,360,000"),
    ("submit a:b hi --delay inf --db s.db", 2, "a delay is a number of seconds from 0 to 315,360,000"),
    ("submit a:b hi --needs-worker --db s.db", 2, "no live worker runs the agent 'a:b'"),
    ('submit a:b hi --db ""', 2, "--db is empty; name a file or a URL, or omit it"),
    ("submit a:b hi --db U", 2, "a URL that starts with postgresql://, not with mysql:/"),
    ("submit a:b hi --db B", 2, "the URL of the database cannot be read; it has the form"),
    ("submit a:b hi --db P", 1, "the server cannot be reached, or the connection was lost"),
    ("submit a:b hi --db text.db", 1, "the file is not a SQLite database, or its beginning is"),
    (
        "submit a:b hi --db queues.db",
        1,
        "queues.db-engine: the file is not a SQLite database, or its beginning is damaged",
    ),
    ("submit a:b hi --db absent/s.db", 1, "the file cannot be opened; check that its folder exists"),
    ("cluster stauts", 2, "No such command 'stauts'. Did you mean 'status'?"),
    ("cluster status x", 2, "Got unexpected extra argument (x)"),
    ('cluster status --db ""', 2, "--db is empty; name a file or a URL, or omit it"),
    ("cluster status --db U", 2, "a URL that starts with postgresql://, not with mysql:/"),
    ("cluster status --db V", 2, "a URL that starts with postgresql://, not with postgresql:/"),
    ("cluster status --db none.db", 2, "none.db; `agentloop worker` and `agentloop submit` create one"),
    ("cluster schedules --db none.db", 2, "none.db; `agentloop worker` and `agentloop submit` create one"),
    ("cluster unschedule daily --db none.db", 2, "none.db; `agentloop worker` and `agentloop submit` create one"),
    ("cluster status --db P", 1, "the server cannot be reached, or the connection was lost"),
    ("cluster status --db folder", 1, "the file cannot be opened; check that its folder exists"),
    ("cluster status --db text.db", 1, "the file is not a SQLite database, or its beginning is"),
    (
        "cluster status --db queues.db",
        1,
        "queues.db-engine: the file is not a SQLite database, or its beginning is damaged",
    ),
    ("cluster limit default --pause --db none.db", 2, "none.db; `agentloop worker` and `agentloop submit` create one"),
    ("cluster limit default --pause --concurrency 2 --db s.db", 2, "--pause and --concurrency contradict each other"),
    ("cluster limit default --rate often --db s.db", 2, "'often' is not COUNT/SECONDS, such as 100/60"),
    (
        "cluster limit default --rate 0/60 --db s.db",
        2,
        "the rate of a queue is a number of jobs in a number of seconds",
    ),
    ("cluster limit '' --pause --db s.db", 2, "the name of the queue is empty"),
    ("cluster schedule n", 2, "Missing argument 'CRON'."),
    ('cluster schedule n "not cron" a:b hi --db s.db', 2, "'not cron' is no cron expression, such as '0 9 * * 1-5'"),
    ('cluster schedule "" "* * * * *" a:b hi --db s.db', 2, "the name of a schedule is a text without null"),
    ('cluster schedule n "* * * * *" "" hi --db s.db', 2, "the name of the agent is empty; write the one"),
    ('cluster schedule n "* * * * *" a:b "" --db s.db', 2, "the text that the execution starts with is empty"),
    ("cluster unschedule nope --db s.db", 2, "there is no schedule nope; `agentloop cluster schedules`"),
    ("runs list --db U", 2, "starts with sqlite:/// or postgresql://, not with mysql:/"),
    ("runs list --db V", 2, "starts with sqlite:/// or postgresql://, not with postgresql:/"),
    ("runs list --db P", 1, "the server cannot be reached, or the connection was lost"),
    ("serve", 2, "name the loop to serve, such as support:loop"),
    ("serve absent:loop", 2, "the module absent cannot be imported: ModuleNotFoundError"),
    ("serve absent.py:loop", 2, "there is no file absent.py; name a loop as module:loop or"),
    ("serve loopapp.py:n", 2, "loopapp.py:n is of type int, not an AgentLoop or a"),
    ("serve loopapp.py:loop loopapp.py:loop", 2, "with several loops, each needs a name: NAME=loopapp.py:loop"),
    ("serve a=loopapp.py:loop a=loopapp.py:loop", 2, "two loops have the name a"),
    ("serve loopapp.py:loop --port 99999", 2, "Invalid value for '--port': 99999 is not in the range"),
    ("serve loopapp.py:loop --tokens absent.json", 2, "the file of tokens absent.json cannot be read: No such"),
    (
        "serve loopapp.py:loop --tokens list.json",
        2,
        'the file of tokens list.json is not an object with a list "tokens"',
    ),
    ("serve loopapp.py:loop --tokens binary.json", 2, "the file of tokens binary.json is not JSON: 'utf-8' codec"),
    ("serve loopapp.py:loop --tokens folder", 2, "Invalid value for '--tokens': File 'folder' is a directory."),
    ("serve loopapp.py:loop --host 0.0.0.0 --db v.db", 2, "0.0.0.0 can be reached from other machines"),
    ('serve loopapp.py:loop --db ""', 2, "--db is empty; name a file or a URL, or omit it"),
    ("serve loopapp.py:loop --db U", 2, "starts with sqlite:/// or postgresql://, not with mysql:/"),
    ("serve loopapp.py:loop --db B", 2, "the URL of the database cannot be read; it has the form"),
    ("serve loopapp.py:loop --db P", 1, "the server cannot be reached, or the connection was lost"),
    ("serve loopapp.py:loop --db text.db", 1, "the file is not a SQLite database, or its beginning is"),
    ("serve loopapp.py:loop --cluster --db U", 2, "a URL that starts with postgresql://, not with mysql:/"),
    ("serve loopapp.py:loop --cluster --db P", 1, "the server cannot be reached, or the connection was lost"),
    ("serve --add-token ada", 2, "--add-token needs --tokens FILE, the file to add it to"),
    ('serve --add-token "" --tokens t.json', 2, "the name of a principal has up to 64 letters, digits and"),
    (
        "serve --add-token ada --tokens list.json",
        2,
        'the file of tokens list.json is not an object with a list "tokens"',
    ),
    ("serve --add-token ada --tokens binary.json", 2, "the file of tokens binary.json is not JSON: 'utf-8' codec"),
    ("serve --add-token ada --tokens none/t.json", 2, "the file of tokens none/t.json cannot be written: No such file"),
    ("serve --add-token ada --tokens t.json --scope odd", 2, "Invalid value for '--scope': 'odd' is not one of"),
]


@pytest.mark.parametrize("group", ["trace", "runs", "mcp", "cluster"])
def test_a_group_without_a_command_lists_its_commands(command_line: CommandLine, group: str) -> None:
    """On stderr and with the exit code 2, since nothing was done."""
    result = command_line(group)
    assert (result.code, result.out) == (2, "")
    assert "Commands:" in result.err


@pytest.mark.parametrize(("line", "code", "message"), MISTAKES, ids=[row[0] or "nothing" for row in MISTAKES])
def test_a_mistake_is_one_sentence(  # noqa: PLR0917  # fixtures and columns
    command_line: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int, message: str
) -> None:
    """The exit code is 2, or 1 for what a file or a journal is; stdout stays empty, and the message says what is wrong."""
    monkeypatch.chdir(folder)
    arguments = [part for word in shlex.split(line) for part in SHORT.get(word, [word])]
    result = command_line(*arguments)
    assert (result.code, result.out) == (code, ""), result.err
    assert message in result.err
    assert "Traceback" not in result.err
    assert "hunter2" not in result.err
    told = [text for text in result.err.splitlines() if text.strip() and not text.startswith(("Usage: ", "Try '"))]
    # A chat greets first, and the file of an agent may have several mistakes.
    assert len(told) <= 2, result.err


READING = [
    "runs list",
    "runs show abc-1",
    "runs show abc-1 --records",
    "runs replay abc-1 loopapp.py:loop",
    "runs replay --all loopapp.py:loop",
    "runs verify",
    "runs verify abc-1",
    "runs verify --model",
    "runs export abc-1",
    "runs export abc-1 --pytest",
    "runs resume abc-1 loopapp.py:loop",
    "runs recover abc-1 loopapp.py:loop",
    "runs recover --all loopapp.py:loop",
    "runs fork abc-1 --step 0",
    "runs send abc-1 hi",
    "runs stop abc-1",
    "runs delete abc-1",
    "runs purge --older-than 0s",
    "trace view abc-1 --json",
    "run M --resume abc-1",
    "chat M",
    "chat M --resume abc-1",
]


@pytest.mark.parametrize("method", ["list", "head", "read", "verify_each", "claim", "aclose"])
def test_a_journal_that_fails_is_no_traceback(
    command_line: CommandLine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Wherever a command uses its journal, the error is told, and the exit code is 1."""
    monkeypatch.chdir(folder)
    original = getattr(SqliteJournal, method)

    def fail(*_: object, **__: object) -> None:
        raise JournalCorrupt("the table of contents is damaged")

    codes = set[object]()
    for number, line in enumerate(READING):
        file = tmp_path / f"{number}.db"
        shutil.copy("good.db", file)
        monkeypatch.setattr(SqliteJournal, method, fail)
        arguments = [part for word in shlex.split(line) for part in SHORT.get(word, [word])]
        result = command_line(*arguments, "--journal", str(file), stdin="/resume\n")
        monkeypatch.setattr(SqliteJournal, method, original)
        assert "Traceback" not in result.err, line
        if "the table of contents is damaged" in result.err + result.out:
            codes.add(result.code)
    assert codes == {1}


def test_there_are_enough_mistakes() -> None:
    """Every command that can be called in a wrong way has rows of its own."""
    assert len(MISTAKES) >= 150
    called = {shlex.split(line)[0] for line, _, _ in MISTAKES if line} - set(SHORT)
    assert set(ENTRIES) - called == set()


def test_null_characters_are_refused(command_line: CommandLine) -> None:
    """No argument of a process can have one, but a program that calls the command line can pass one."""
    result = command_line("run", "hi", *MODEL, "--tools", "a\0b")
    assert (result.code, result.out) == (2, "")
    assert "null character" in result.err


def test_a_long_argument_is_not_repeated_in_full(command_line: CommandLine) -> None:
    """What is wrong with it is said, and its beginning is quoted."""
    long = "a" * 100_000
    for option in ("--tools", "--agent", "--attach", "--journal", "--mcp", "-m", "--max-steps", "--mode", "--base-url"):
        result = command_line("run", "hi", *MODEL, option, long)
        assert (result.code in {1, 2}, result.out) == (True, ""), option
        assert "Traceback" not in result.err, option
        assert len(result.err) < 10_000, option
    assert len(command_line(long).err) < 10_000


def test_messages_cannot_control_the_terminal(command_line: CommandLine) -> None:
    """What an argument or a file contains is escaped, or left out, where a message quotes it."""
    result = command_line("run", "hi", *MODEL, "--tools", "\x1b[2J\u202e.py")
    assert result.code == 2
    assert "\\u202e.py" in result.err
    assert "\x1b" not in result.err


# --- in processes of their own --------------------------------------------------------------------------------------

CHILD = f'"{sys.executable}" -m agentloop.service.cli.main'
BASE = " ".join(MODEL)


SCRIPTS = [
    (f"{CHILD} run \"$(printf 'a\\377')\" {BASE}", 2, "the question is not text"),
    (f"{CHILD} run hi {BASE} -s \"$(printf '\\377')\"", 2, "the system prompt is not text"),
    (f"{CHILD} run hi -m \"$(printf 'ollama:\\377')\"", 2, "the name of the model is not text"),
    (f"printf 'a\\377' | {CHILD} run {BASE}", 2, "what is on stdin is not text"),
    (f"printf 'a\\377' | {CHILD} run - {BASE}", 2, "what is on stdin is not text"),
    (f"printf 'a\\377\\n' | {CHILD} chat {BASE}", 2, "the input is not text"),
    (f"{CHILD} config set model \"$(printf 'ollama:\\377')\"", 2, "the value is not text"),
    (f"{CHILD} run {BASE} <&-", 2, "Missing argument 'QUESTION'"),
    (f"{CHILD} run - {BASE} <&-", 2, "the question is empty"),
    (f"{CHILD} chat -m opnai:x <&-", 2, "there is no provider 'opnai'"),
    (f"{CHILD} models > /dev/full", 1, "No space left on device"),
    (f"{CHILD} config path > /dev/full", 1, "No space left on device"),
    (
        f"{CHILD} demo --yes --journal d.db >&- 2>&- && {CHILD} trace view execution --json --db d.db > /dev/full",
        1,
        "Error: No space left on device",
    ),
    (f"cd /proc && {CHILD} run hi {BASE} --journal runs.db", 1, "the file cannot be opened"),
    (f"cd /proc && {CHILD} runs list", 2, "there is no agentloop.db in this directory"),
    (f"{CHILD} run hi {BASE} -a /proc/self/mem", 2, "cannot be read: Input/output error"),
    (f"XDG_CONFIG_HOME=/proc/nothing {CHILD} config set stream true", 2, "cannot be written"),
    (f"XDG_CONFIG_HOME=/dev/null {CHILD} run hi {BASE} --tools absent.py", 2, "there is no file"),
    (f"mkdir gone && cd gone && rmdir ../gone && {CHILD} run hi {BASE} --tools x.py", 2, "No such file"),
    (f"{CHILD} submit a:b hi --db s.db --id \"$(printf 'a\\377')\"", 2, "the id of an execution is not text"),
    (f"{CHILD} submit a:b hi --db s.db --queue \"$(printf 'a\\377')\"", 2, "the name of the queue is not text"),
    (f"{CHILD} submit a:b \"$(printf 'a\\377')\" --db s.db", 2, "the input is not text"),
    (f"printf 'a\\377' | {CHILD} submit a:b --db s.db", 2, "what is on stdin is not text"),
    (
        f"printf 'a\\377' | PYTHONIOENCODING=utf-8:strict {CHILD} submit a:b --db s.db",
        2,
        "what is on stdin is not text",
    ),
]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no POSIX shell")
@pytest.mark.parametrize(
    ("script", "code", "message"),
    # Each script takes a process or two that load the command line: one of six runs every time.
    [pytest.param(*row, marks=[pytest.mark.heavy] * (number % 6 > 0)) for number, row in enumerate(SCRIPTS)],
)
def test_a_process_ends_with_a_sentence(tmp_path: Path, script: str, code: int, message: str) -> None:
    """Bytes that are no text, closed streams, full disks and folders that cannot be written are no traceback."""
    done = subprocess.run(
        ["/bin/sh", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        cwd=tmp_path,
        timeout=LONGEST,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes of a shell")
@pytest.mark.parametrize(
    "command",
    [
        *("--help", "run -m demo --quiet"),
        *[pytest.param(line, marks=pytest.mark.heavy) for line in ("models", "config --help", "tools list good.py")],
    ],
)
def test_a_reader_that_leaves_is_no_mistake(folder: Path, command: str) -> None:
    """A pipe that nobody reads any more ends the command, silently."""
    read, write = os.pipe()
    os.close(read)
    arguments = [sys.executable, "-m", "agentloop.service.cli.main", *shlex.split(command)]
    with subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE, cwd=folder
    ) as child:
        os.close(write)
        _, err = child.communicate(timeout=LONGEST)
    assert child.returncode == 1
    assert b"BrokenPipe" not in err
    assert b"Exception ignored" not in err


def test_a_file_without_permission_is_named(command_line: CommandLine, tmp_path: Path) -> None:
    """Files that may not be read are usage errors, wherever they are named."""
    if os.geteuid() == 0:
        pytest.skip("the superuser may read every file")
    for name in ("tools.py", "tools.toml", "servers.json", "agent.toml", "photo.png"):
        (tmp_path / name).write_text(json.dumps("x"))
        (tmp_path / name).chmod(0)
    cases = [("--tools", "tools.py"), ("--tools", "tools.toml"), ("--mcp", "servers.json"), ("-a", "photo.png")]
    for option, name in cases:
        result = command_line("run", "hi", *MODEL, option, str(tmp_path / name))
        assert (result.code, result.out) == (2, ""), result.err
        assert "Permission denied" in result.err
