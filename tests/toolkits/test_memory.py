"""The toolkit of memories."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentloop import ToolExecution
from agentloop.contracts import ToolContext
from agentloop.durable import SqliteJournal
from agentloop.errors import ConfigurationError, ToolFailed
from agentloop.toolkits import Ensemble
from agentloop.toolkits.memory import MemoryFile, MemoryScope, memory, memory_by
from agentloop.values import Effect, ToolStatus
from tests.loaded import loaded_python
from tests.toolkits.running import executions, run_call, run_calls, scripted_loop

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ADA, BOB = MemoryScope(user="ada"), MemoryScope(user="bob")


@pytest.fixture
def file(tmp_path: Path) -> MemoryFile:
    return MemoryFile(tmp_path / "memories.db")


def texts(execution: ToolExecution) -> list[str]:
    assert execution.status is ToolStatus.SUCCEEDED, execution.error_message
    return [entry["text"] for entry in execution.value]  # type: ignore[index,union-attr,call-overload]  # objects


def remember(file: MemoryFile, scope: MemoryScope, text: str, key: str = "e/1/0") -> str:
    return file.remember(scope, text, written_at=NOON, execution_id="e", call_key=key).id


async def test_a_later_execution_recalls_what_an_earlier_one_remembered(tmp_path: Path) -> None:
    """Memories last beyond an execution, and the best match comes first."""
    tools = [memory(str(tmp_path / "m.db"), user="ada")]
    facts = ["Ada likes tea without milk.", "The budget of the tea party is 300 euros.", "Bob is her brother."]
    await run_calls(tools, *[("remember", {"text": fact}) for fact in facts])
    assert texts(await run_call(tools, "recall", query="the budget for a party")) == [facts[1]]
    assert set(texts(await run_call(tools, "recall", query="tea"))) == set(facts[:2])
    assert texts(await run_call(tools, "recall", query="BROTHERS")) == [facts[2]]
    assert texts(await run_call(tools, "recall", query="submarine")) == []
    assert len(texts(await run_call(tools, "recall", max_results=2))) == 2


async def test_every_memory_names_the_call_that_wrote_it(tmp_path: Path) -> None:
    """Execution, call and time of the writing are stored with the text."""
    file = MemoryFile(tmp_path / "m.db")
    before = datetime.now(UTC)
    state = await run_calls([memory(str(file.path), agent="clerk")], ("remember", {"text": "a fact"}))
    (stored,) = file.memories(MemoryScope(agent="clerk"))
    (execution,) = executions(state)
    assert (stored.id, stored.call_key, stored.execution_id) == (execution.value, execution.key, state.execution_id)
    assert before <= stored.written_at <= datetime.now(UTC)


async def test_effects_are_declared(tmp_path: Path) -> None:
    """Whatever writes says so; recalling changes nothing, not even the file."""
    tools = memory(str(tmp_path / "m.db"), user="ada")
    effects = {tool.name: tool.effect for tool in tools.offered}
    assert effects == {"remember": Effect.IDEMPOTENT, "recall": Effect.PURE, "forget": Effect.IDEMPOTENT}
    before = (tmp_path / "m.db").read_bytes()
    await run_call([tools], "recall", query="anything")
    assert (tmp_path / "m.db").read_bytes() == before


# --- scopes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        BOB,
        MemoryScope(agent="ada"),
        MemoryScope(session="ada"),
        MemoryScope(user="ada", agent="x"),
        MemoryScope(user="ad", agent="a"),
        MemoryScope(user="ADA"),
        MemoryScope(user='ada" OR scope : "ada'),
    ],
)
def test_a_scope_sees_its_own_memories_only(file: MemoryFile, other: MemoryScope) -> None:
    """Memories of another scope are neither found, nor forgotten, nor known to exist."""
    identity = remember(file, ADA, "the code is 4711")
    remember(file, other, "something else")
    assert [found.text for found in file.recall(other, "code 4711 something", 10)] == ["something else"]
    with pytest.raises(ToolFailed, match="there is no memory"):
        file.forget(other, [identity])
    file.forget(other)
    assert [found.text for found in file.memories(ADA)] == ["the code is 4711"]


async def test_the_scope_comes_from_the_program_for_each_call(tmp_path: Path) -> None:
    """The scope is computed from the dependencies; the model has no parameter for it."""

    def scope_of(context: ToolContext) -> MemoryScope:
        return MemoryScope(user=context.dependencies)

    tools = [memory_by(tmp_path / "m.db", scope_of)]
    await scripted_loop(tools, ("remember", {"text": "I am Ada"})).execute("go", dependencies="ada")
    for user, expected in (("ada", ["I am Ada"]), ("bob", [])):
        state = await scripted_loop(tools, ("recall", {"query": "Ada"})).execute("go", dependencies=user)
        assert texts(executions(state)[0]) == expected
    state = await scripted_loop(tools, ("recall", {"query": "Ada", "user": "ada"})).execute("go", dependencies="bob")
    assert executions(state)[0].status is ToolStatus.REJECTED


@pytest.mark.parametrize("dependencies", [None, ""])
async def test_without_a_user_nothing_is_shared(tmp_path: Path, dependencies: object) -> None:
    """A scope function that has no answer fails the call; it never leads to memories that everybody shares."""

    def scope_of(context: ToolContext) -> MemoryScope:
        user = context.dependencies
        return MemoryScope(user=user) if user is not None else None  # type: ignore[return-value]  # the mistake

    loop = scripted_loop([memory_by(tmp_path / "m.db", scope_of)], ("remember", {"text": "a fact"}))
    state = await loop.execute("go", dependencies=dependencies)
    assert executions(state)[0].status is ToolStatus.FAILED
    with pytest.raises(ConfigurationError, match="at least a user"):
        memory(str(tmp_path / "m.db"))


# --- writing ----------------------------------------------------------------------------------------------------


def test_a_repeated_call_writes_once(file: MemoryFile) -> None:
    """The same call with the same text is one memory; another call, or another text, is another one."""
    first = remember(file, ADA, "tea", "e/1/0")
    assert remember(file, ADA, "tea", "e/1/0") == first
    assert remember(file, ADA, "tea", "e/1/1") != first
    assert remember(file, ADA, "milk", "e/1/0") != first
    assert sorted(found.text for found in file.memories(ADA)) == ["milk", "tea", "tea"]


def test_a_repeated_call_does_not_bring_back_what_was_forgotten(file: MemoryFile) -> None:
    """A call that a recovery repeats after its memory was forgotten writes nothing, and forgetting again is no error."""
    identity = remember(file, ADA, "tea")
    assert file.forget(ADA, [identity]) == 1
    assert remember(file, ADA, "tea") == identity
    assert file.memories(ADA) == []
    assert file.forget(ADA, [identity]) == 1


@pytest.mark.unreplayed
async def test_a_recovered_execution_has_the_recorded_memories(tmp_path: Path) -> None:
    """What a call recalled is in the journal: a recovery takes it from there, whatever the file says now."""
    store = MemoryFile(tmp_path / "m.db")
    identity = remember(store, ADA, "tea")
    journal = SqliteJournal(tmp_path / "runs.db")
    loop = scripted_loop([memory(str(store.path), user="ada")], ("recall", {"query": "tea"}), journal=journal)
    run = loop.iterate("go", execution_id="e")
    await anext(run)
    await run.aclose()  # left after the step that recalled
    store.forget(ADA, [identity])
    recovered = await loop.recover("e")
    assert texts(executions(recovered)[0]) == ["tea"]


def test_a_scope_has_a_maximum(tmp_path: Path) -> None:
    """A full scope takes no more memories until some are forgotten; other scopes are not full."""
    file = MemoryFile(tmp_path / "m.db", max_memories=2)
    first = remember(file, ADA, "a", "1")
    remember(file, ADA, "b", "2")
    with pytest.raises(ToolFailed, match="there are 2 memories"):
        remember(file, ADA, "c", "3")
    remember(file, BOB, "c", "3")
    file.forget(ADA, [first])
    remember(file, ADA, "c", "3")


@pytest.mark.parametrize("text", ["", " \n", "x" * 4001])
def test_a_memory_is_a_text_of_bounded_length(file: MemoryFile, text: str) -> None:
    """Empty and long texts are refused."""
    with pytest.raises(ToolFailed, match="has 1 to 4000 characters"):
        remember(file, ADA, text)


def test_processes_write_at_the_same_time(file: MemoryFile) -> None:
    """No memory is lost, and none is written twice, when several processes write the same and different texts."""
    program = """
import sys
from datetime import UTC, datetime
from agentloop.toolkits.memory import MemoryFile, MemoryScope
file, me = MemoryFile(sys.argv[1]), sys.argv[2]
for number in range(20):
    for text, key in ((f"of {me} {number}", me), (f"shared {number}", "shared")):
        file.remember(MemoryScope(user="ada"), text, written_at=datetime.now(UTC), call_key=key)
"""
    command = loaded_python("-c", program, str(file.path))
    children = [subprocess.Popen([*command, name]) for name in ("x", "y", "z")]
    assert [child.wait(120) for child in children] == [0, 0, 0]
    stored = sorted(found.text for found in file.memories(ADA))
    own = [f"of {name} {number}" for name in "xyz" for number in range(20)]
    assert stored == sorted([*own, *[f"shared {number}" for number in range(20)]])


# --- forgetting -------------------------------------------------------------------------------------------------


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_nothing_of_a_forgotten_text_is_left(file: MemoryFile) -> None:
    """Neither the text nor a word of its index is in any file of the folder, also among many other memories."""
    for number in range(200):
        remember(file, ADA, f"an ordinary fact number {number}", str(number))
    secret = remember(file, ADA, "Zanzibarbuchstabe and xylophonically " + "filler " * 400)
    assert b"Zanzibarbuchstabe" in contents(file.path.parent)
    assert b"xylophon" in contents(file.path.parent).replace(b"xylophonically", b"")  # the stem, in the index
    file.forget(ADA, [secret])
    left = contents(file.path.parent).lower()
    assert b"zanzibar" not in left
    assert b"xylophon" not in left
    assert len(file.recall(ADA, "ordinary", 500)) == 200


def test_nothing_of_a_forgotten_text_is_left_in_a_write_ahead_log(file: MemoryFile) -> None:
    """A file that another program has switched to write-ahead logging, and has open, keeps no copy in its log."""
    memory = file.remember(ADA, "the code is xyzzyplugh", written_at=datetime.now(UTC))
    with closing(sqlite3.connect(file.path)) as other:
        assert other.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        assert other.execute("SELECT count(*) FROM memories").fetchone() == (1,)
        later = file.remember(ADA, "the code is quuxfrob", written_at=datetime.now(UTC), call_key="2")
        assert file.forget(ADA, [memory.id, later.id]) == 2
        files = list(file.path.parent.glob(f"{file.path.name}*"))
        assert len(files) == 3
        for path in files:
            assert not any(word in path.read_bytes() for word in (b"xyzzyplugh", b"quuxfrob"))


def test_of_several_ids_all_or_none_are_forgotten(file: MemoryFile) -> None:
    """An unknown id is an error, and nothing is deleted then."""
    identity = remember(file, ADA, "tea")
    with pytest.raises(ToolFailed, match="there is no memory 'nope'"):
        file.forget(ADA, [identity, "nope"])
    assert len(file.memories(ADA)) == 1


# --- hostile input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        '"',
        'tea" OR "milk',
        "tea NOT tea",
        "NEAR(tea milk)",
        "scope : x",
        "words : *",
        "^tea",
        "tea*",
        "{scope words} : tea",
        "-tea",
        "((((",
        "AND",
        "_ __ ² ½ ·",
        "\x00tea\x00",
        "\ud800",
        "'; DROP TABLE memories; --",
        "tea " * 100_000,
        "\u0301\u0302",
        "t\u202eea",
    ],
)
def test_operators_of_full_text_searches_mean_nothing(file: MemoryFile, query: str) -> None:
    """Every query is words: none is an error, and none reaches another scope."""
    remember(file, ADA, "green tea")
    remember(file, BOB, "milk tea of Bob")
    started = time.process_time()
    found = [stored.text for stored in file.recall(ADA, query, 10)]
    assert found in ([], ["green tea"])
    assert time.process_time() - started < 2
    assert len(file.memories(BOB)) == 1


def test_words_are_found_in_scripts_without_spaces(file: MemoryFile) -> None:
    """A word inside of a sentence in Chinese or Japanese is found, and accents do not matter."""
    remember(file, ADA, "彼女は東京に住んでいます", "1")
    remember(file, ADA, "Le café est à côté", "2")
    assert [stored.text for stored in file.recall(ADA, "東京", 10)] == ["彼女は東京に住んでいます"]
    assert file.recall(ADA, "京東", 10) == []
    assert [stored.text for stored in file.recall(ADA, "cafe COTE", 10)] == ["Le café est à côté"]


def test_any_text_is_stored_as_it_is(file: MemoryFile) -> None:
    """Quotes, null characters and control characters survive; a lone surrogate becomes a question mark."""
    text = "a'b\"c\x00d\x1b[31m\u202e;--"
    remember(file, ADA, text, "1")
    assert file.memories(ADA)[0].text == text
    remember(file, BOB, "x\ud800y", "2")
    assert file.memories(BOB)[0].text == "x?y"


# --- the file ---------------------------------------------------------------------------------------------------


@pytest.fixture
def open_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_mask")
def test_only_the_owner_reads_the_file(file: MemoryFile) -> None:
    """The file has the mode 0600 from the start, whatever the mask, and an existing one gets it."""
    file.create()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.path.chmod(0o644)
    remember(file, ADA, "tea")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_another_file_is_not_touched(tmp_path: Path) -> None:
    """A database of something else, a text, a link and a folder are refused when the ensemble is made, and unchanged."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (n)")
    (tmp_path / "text.db").write_text("no database, but a text that is long enough" * 50)
    (tmp_path / "link.db").symlink_to(tmp_path / "target.db")
    (tmp_path / "text.db").chmod(0o644)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.is_symlink()}
    for name in ("shop.db", "text.db", "link.db", "."):
        with pytest.raises(ConfigurationError):
            memory(str(tmp_path / name), user="ada")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.is_symlink()}
    assert after == before
    assert stat.S_IMODE((tmp_path / "text.db").stat().st_mode) == 0o644


def test_a_newer_file_is_refused(file: MemoryFile) -> None:
    """A file of a later version is not read in part."""
    file.create()
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ToolFailed, match="has version 99 of memories"):
        file.memories(ADA)


def test_a_descriptor_can_name_it(tmp_path: Path) -> None:
    """A TOML file names the toolkit with its options."""
    (tmp_path / "m.toml").write_text(
        f'use = "agentloop.toolkits.memory:memory"\noptions = {{ path = "{tmp_path}/m.db", user = "ada" }}\n'
    )
    ensemble = Ensemble.from_toml(tmp_path / "m.toml")
    assert [tool.name for tool in ensemble.offered] == ["remember", "recall", "forget"]
