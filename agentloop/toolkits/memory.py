"""A toolkit for what an agent remembers between executions: texts in one SQLite file, found by their words."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias, TypedDict, cast

from attrs import field, frozen

from agentloop.contracts.tool import Tool, ToolContext
from agentloop.errors import ConfigurationError, InvalidDocument, SchemaTooNew, ToolFailed
from agentloop.toolkits.ensemble import Ensemble, ensemble_factory
from agentloop.tools.constraints import Range
from agentloop.tools.decorator import tool
from agentloop.values.labels import CLEAN, UNKNOWN, Label
from agentloop.values.owners import Asker, check_asker, name_asker
from agentloop.values.tool_calls import ToolResult
from agentloop.values.value import Value

MAX_CHARACTERS: Final = 4_000
_MAX_QUERY_CHARACTERS = 1_000
_MAX_QUERY_WORDS = 32
_MAX_RESULTS = 50
_VERSION = 2
_APPLICATION_ID = 0x616C6D65  # "alme": the file is one of ours, and not a database that was named by mistake

# --- values -----------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False, kw_only=True)
class MemoryScope(Value):
    """Whose memories they are. The program chooses it; a model can neither see nor change it.

    A memory is found under exactly the scope under which it was written. An empty part is a value like any other: memories
    with a user and without a session are those of the user in all sessions.

    Attributes:
        user: the id of a user.
        agent: the id or the name of an agent.
        session: the id of a session.
        tenant: the customer, team or other group to which the user belongs; alone, the memories are those of the whole group.

    Raises:
        ConfigurationError: if all parts are empty, so that everybody would share the memories.
    """

    user: str = ""
    agent: str = ""
    session: str = ""
    tenant: str = ""

    def __attrs_post_init__(self) -> None:
        parts: tuple[object, ...] = (self.user, self.agent, self.session, self.tenant)
        if not all(isinstance(part, str) for part in parts) or not any(parts):
            raise ConfigurationError(
                f"a scope of memories has texts, and names at least a user, an agent, a session or a tenant; this has {parts!r:.200}"
            )

    @property
    def digest(self) -> str:
        """One word for the scope, in the index."""
        # Lengths make the parts unambiguous: "a" and "bc" are not "ab" and "c".
        tenant = (self.tenant,) if self.tenant else ()
        parts = "".join(f"{len(part)}:{part}" for part in (self.user, self.agent, self.session, *tenant))
        return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()


@frozen(eq=False, repr=False)
class Memory(Value):
    """A text that was remembered, and where it comes from.

    Attributes:
        id: its id, which is derived from the call that wrote it.
        text: the text.
        written_at: when it was written.
        execution_id: the execution that wrote it.
        call_key: the idempotency key of the call that wrote it.
        label: who had a part in it; None where that was not tracked.
    """

    id: str
    text: str
    written_at: datetime
    execution_id: str
    call_key: str
    label: Label | None = None


class RecalledMemory(TypedDict):
    """A memory as the model sees it."""

    id: str
    text: str
    written_at: str


# --- the file ---------------------------------------------------------------------------------------------------

_SCHEMA = """
CREATE TABLE memories (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    scope TEXT NOT NULL,
    text TEXT NOT NULL,
    written_at TEXT NOT NULL,
    execution_id TEXT NOT NULL,
    call_key TEXT NOT NULL,
    label TEXT
);
CREATE INDEX memories_by_scope ON memories (scope, written_at);
CREATE TABLE forgotten (id TEXT PRIMARY KEY, scope TEXT NOT NULL) WITHOUT ROWID;
CREATE VIRTUAL TABLE memory_words USING fts5(scope, words, tokenize = 'porter unicode61 remove_diacritics 2');
"""
_COLUMNS = "m.id, m.text, m.written_at, m.execution_id, m.call_key, m.label"

_WORD = re.compile(r"[^\W_]+")
# Scripts without spaces between words, which the tokenizer of SQLite takes for one long word: each character is one.
_UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f])")


@frozen
class MemoryFile:
    """The memories in one SQLite file, which only its owner can read (mode 0600).

    Each operation is one transaction of its own connection, so that threads and processes may use the file at the same time.
    The file is created when it is first used.

    Attributes:
        path: the file.
        max_memories: the maximum number of memories of a scope.
        timeout: how long an operation waits for another process, in seconds.
    """

    path: Path = field(converter=Path)
    max_memories: int = 10_000
    timeout: float = 10.0

    def remember(
        self,
        scope: MemoryScope,
        text: str,
        *,
        written_at: datetime,
        execution_id: str = "",
        call_key: str = "",
        label: Label | None = None,
    ) -> Memory:
        """Store a text. The same text of the same call is stored once, and not again after it was forgotten.

        Args:
            scope: whose memory it is.
            text: the text.
            written_at: when it is written.
            execution_id: the execution that writes it.
            call_key: the idempotency key of the call that writes it.
            label: who had a part in it; None where that is not tracked.

        Raises:
            ToolFailed: the text is empty or too long, the scope is full, or the file cannot be written.
        """
        if not text.strip() or len(text) > MAX_CHARACTERS:
            raise ToolFailed(
                f"a memory has 1 to {MAX_CHARACTERS} characters, not {len(text)}; store the essential facts"
            )
        text = text.encode("utf-8", "replace").decode()  # SQLite stores no lone surrogates
        origin = f"{scope.digest}\0{execution_id}\0{call_key}\0{text}"
        memory_id = hashlib.sha256(origin.encode()).hexdigest()[:12]
        memory = Memory(memory_id, text, written_at, execution_id, call_key, label)
        with self._transaction(is_writing=True) as connection:
            known = "SELECT 1 FROM memories WHERE id = ? UNION ALL SELECT 1 FROM forgotten WHERE id = ?"
            # A call that is repeated after a crash must not bring back what was forgotten in the meantime.
            if connection.execute(known, (memory.id, memory.id)).fetchone() is None:
                self._insert(connection, scope.digest, memory)
        return memory

    def _insert(self, connection: sqlite3.Connection, scope: str, memory: Memory) -> None:
        count = connection.execute("SELECT count(*) FROM memories WHERE scope = ?", (scope,)).fetchone()[0]
        if count >= self.max_memories:
            raise ToolFailed(f"there are {count} memories, which is the maximum; forget some of them first")
        cursor = connection.execute(
            "INSERT INTO memories (id, scope, text, written_at, execution_id, call_key, label) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                memory.id,
                scope,
                memory.text,
                memory.written_at.isoformat(),
                memory.execution_id,
                memory.call_key,
                _written_label(memory.label),
            ),
        )
        words = (cursor.lastrowid, scope, _spaced(memory.text))
        connection.execute("INSERT INTO memory_words (rowid, scope, words) VALUES (?, ?, ?)", words)

    def recall(self, scope: MemoryScope, query: str, max_results: int) -> list[Memory]:
        """Return the memories that share words with a query, the best match first (BM25); for no words, the newest ones.

        Args:
            scope: whose memories.
            query: words; they are taken literally, so that operators of full-text searches mean nothing.
            max_results: the maximum number of memories.

        Raises:
            ToolFailed: the file cannot be read.
        """
        words = _WORD.findall(query[:_MAX_QUERY_CHARACTERS])[:_MAX_QUERY_WORDS]
        if not words:
            return self._select("WHERE m.scope = ? ORDER BY m.written_at DESC, m.number DESC", scope, (), max_results)
        # A quoted phrase without a quote in it has no operators.
        match = f'scope : "{scope.digest}" AND words : ({" OR ".join(_phrase(word) for word in words)})'
        clause = (
            "JOIN memory_words ON memory_words.rowid = m.number WHERE m.scope = ? AND memory_words MATCH ? "
            "ORDER BY bm25(memory_words, 0.0, 1.0), m.written_at DESC, m.number DESC"
        )
        return self._select(clause, scope, (match,), max_results)

    def memories(self, scope: MemoryScope) -> list[Memory]:
        """Return all memories of a scope, the newest first.

        Raises:
            ToolFailed: the file cannot be read.
        """
        return self.recall(scope, "", -1)

    def _select(self, clause: str, scope: MemoryScope, values: Sequence[str], max_results: int) -> list[Memory]:
        with self._transaction(is_writing=False) as connection:
            sql = f"SELECT {_COLUMNS} FROM memories AS m {clause} LIMIT ?"  # noqa: S608  # constants of this module
            rows = connection.execute(sql, (scope.digest, *values, max_results)).fetchall()
        return [
            Memory(row[0], row[1], datetime.fromisoformat(row[2]), row[3], row[4], _read_label(row[5])) for row in rows
        ]

    def forget(self, scope: MemoryScope, ids: Sequence[str] | None = None) -> int:
        """Delete memories; nothing of their text is left in the file. The time grows with the file, whose index is made anew.

        Args:
            scope: whose memories.
            ids: their ids; None for all memories of the scope.

        Returns:
            How many were deleted now or earlier.

        Raises:
            ToolFailed: the scope never had a memory with one of the ids, and then none is deleted; or the file cannot be written.
        """
        with self._transaction(is_writing=True, is_deleting=True) as connection:
            if ids is None:
                rows = connection.execute("SELECT id FROM memories WHERE scope = ?", (scope.digest,)).fetchall()
                ids = [row[0] for row in rows]
            numbers = [self._find(connection, scope.digest, identity) for identity in ids]
            for identity, number in zip(ids, numbers, strict=True):
                connection.execute("DELETE FROM memories WHERE number = ?", (number,))
                connection.execute("DELETE FROM memory_words WHERE rowid = ?", (number,))
                connection.execute("INSERT OR IGNORE INTO forgotten VALUES (?, ?)", (identity, scope.digest))
            if any(number is not None for number in numbers):
                # The index keeps words of deleted rows until its parts are merged; a new index has none of them.
                connection.execute("INSERT INTO memory_words (memory_words) VALUES ('rebuild')")
        return len(numbers)

    def _find(self, connection: sqlite3.Connection, scope: str, identity: str) -> int | None:
        """Return the number of a memory; None if it was forgotten."""
        identity = identity.encode("utf-8", "replace").decode()
        for table, column in (("memories", "number"), ("forgotten", "NULL")):
            sql = f"SELECT {column} FROM {table} WHERE id = ? AND scope = ?"  # noqa: S608  # constants
            row = connection.execute(sql, (identity, scope)).fetchone()
            if row is not None:
                return None if row[0] is None else int(row[0])
        raise ToolFailed(f"there is no memory {identity!r:.100}; the ids are those that recall returns")

    # --- connections --------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create the file, or check that it is one of memories.

        Raises:
            ToolFailed: it cannot be created, or is another file.
        """
        with self._transaction(is_writing=True):
            pass

    @contextmanager
    def _transaction(self, *, is_writing: bool, is_deleting: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the file for one transaction, which is rolled back when the block raises."""
        try:
            self._create_private()
            with closing(sqlite3.connect(self.path, timeout=self.timeout, isolation_level=None)) as connection:
                # Deleted texts are overwritten; temporary tables of SQLite never reach the disk.
                connection.execute("PRAGMA secure_delete = ON")
                connection.execute("PRAGMA temp_store = MEMORY")
                # A transaction that becomes a writing one later would not wait for another process, but fail.
                connection.execute("BEGIN IMMEDIATE" if is_writing else "BEGIN")
                try:
                    self._prepare(connection)
                    self._make_private()
                    yield connection
                    connection.execute("COMMIT")
                    if is_deleting:
                        _empty_write_ahead_log(connection)
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
        except (sqlite3.Error, OSError) as error:
            raise ToolFailed(f"the memories in {self.path.name} cannot be used: {error}") from error

    def _create_private(self) -> None:
        """Create the file with the mode 0600 before SQLite opens it; its journal gets the same mode."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        os.close(os.open(self.path, flags, 0o600))

    def _make_private(self) -> None:
        """Give a file that others can read the mode 0600; it is known to be one of memories."""
        if self.path.stat().st_mode & 0o077:
            self.path.chmod(0o600)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the tables in an empty file; refuse a file of something else."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if (version, application) == (_VERSION, _APPLICATION_ID):
            return
        if (version, application) == (1, _APPLICATION_ID):
            connection.execute("ALTER TABLE memories ADD COLUMN label TEXT")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            return
        if application == _APPLICATION_ID:
            raise ToolFailed(f"{self.path.name} has version {version} of memories; this agentloop reads {_VERSION}")
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise ToolFailed(f"{self.path.name} is a database of something else; name another file for memories")
        for statement in _SCHEMA.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {_VERSION}")


def _empty_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Leave no text in the log of a file that another program has switched to write-ahead logging.

    Raises:
        ToolFailed: another connection reads old pages of the log.
    """
    busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if busy:
        raise ToolFailed(
            "the memories are deleted, but a copy stays in the log while another program reads it; forget them again"
        )


def _written_label(label: Label | None) -> str | None:
    from agentloop.values.serialization import to_json  # noqa: PLC0415  # only where labels are kept

    return None if label is None else to_json(label).decode()


def _read_label(stored: str | None) -> Label | None:
    from agentloop.values.serialization import from_json  # noqa: PLC0415  # only where labels are kept

    if stored is None:
        return None
    try:
        return from_json(stored, Label)
    except (InvalidDocument, SchemaTooNew):  # of a later version, or damaged
        return UNKNOWN


def _phrase(word: str) -> str:
    return f'"{_spaced(word).strip()}"'


def _spaced(text: str) -> str:
    """Return the text with spaces around the characters of scripts that have none between words."""
    return _UNSPACED.sub(r" \1 ", text)


# --- the toolkit ------------------------------------------------------------------------------------------------

ScopeOf: TypeAlias = Callable[[ToolContext], MemoryScope]
"""Returns the scope of the memories of a call, such as that of the user in its dependencies."""


@frozen
class Memories:
    """The implementation of the tools.

    Attributes:
        file: where the memories are.
        scope_of: returns the scope of a call.
    """

    file: MemoryFile
    scope_of: ScopeOf

    def remember(
        self,
        text: Annotated[str, "one fact in a sentence of its own", Range(min_length=1, max_length=MAX_CHARACTERS)],
        *,
        context: ToolContext,
    ) -> str:
        """Store a fact for later conversations; return its id."""
        now = context.scope.clock.now()
        key, execution = context.idempotency_key, context.execution_id
        scope, label = self._scope(context), context.label
        memory = self.file.remember(scope, text, written_at=now, execution_id=execution, call_key=key, label=label)
        return memory.id

    def recall(
        self,
        query: Annotated[str, "words that the memories may have; empty for the newest", Range(max_length=1_000)] = "",
        max_results: Annotated[int, "maximum number of memories", Range(ge=1, le=_MAX_RESULTS)] = 10,
        *,
        context: ToolContext,
    ) -> list[RecalledMemory]:
        """Search what was remembered in earlier conversations, the best match first."""
        found = self.file.recall(self._scope(context), query, max_results)
        recalled = [
            RecalledMemory(id=memory.id, text=memory.text, written_at=memory.written_at.isoformat(timespec="seconds"))
            for memory in found
        ]
        if context.label is None:
            return recalled
        # A `ToolResult` is taken from any tool; the annotation is what it holds, for the model.
        label = reduce(or_, [UNKNOWN if memory.label is None else memory.label for memory in found], CLEAN)
        return cast("list[RecalledMemory]", ToolResult(recalled, label=label))

    def forget(
        self,
        ids: Annotated[list[str], "ids of memories, as recall returns them", Range(min_length=1, max_length=100)],
        *,
        context: ToolContext,
    ) -> int:
        """Delete memories for good; return how many."""
        return self.file.forget(self._scope(context), list(dict.fromkeys(ids)))

    def _scope(self, context: ToolContext) -> MemoryScope:
        scope: object = self.scope_of(context)
        # Anything else, such as None for a user who is not signed in, must not become a scope that others share.
        if not isinstance(scope, MemoryScope):
            raise ToolFailed("the program has not said whose memories these are")
        return scope


@ensemble_factory(in_folder=["path"])
def memory(
    path: Annotated[str, "the SQLite file; it is created if there is none"],
    *,
    user: str = "",
    agent: str = "",
    session: str = "",
    by: Annotated[
        Literal["principal", "tenant"] | None, "whose memories they are: who asks for the execution, or their tenant"
    ] = None,
    max_memories: Annotated[int, "maximum number of memories of a scope", Range(ge=1)] = 10_000,
) -> Ensemble:
    """Create an ensemble for the memories of one user, agent or session, or of each who asks.

    Args:
        path: the SQLite file; it is created if there is none.
        user: the user whose memories they are.
        agent: the agent whose memories they are.
        session: the session whose memories they are.
        by: `principal` for memories of each who asks for an execution, `tenant` for those of their tenant, in place of a user; an
            agent or a session narrows them. A call for which nobody is known fails.
        max_memories: the maximum number of memories of a scope.

    Raises:
        ConfigurationError: nothing says whose memories they are, or two parameters do; or the file cannot be used.
    """
    if by is not None:
        check_asker(by)
        if user:
            raise ConfigurationError(
                f"the memories are those of the user {user!r:.80}, or by={by!r}: leave one of them out"
            )
        return memory_by(path, partial(_scope_of_asker, by, agent, session), max_memories=max_memories)
    scope = MemoryScope(user=user, agent=agent, session=session)
    return memory_by(path, lambda _: scope, max_memories=max_memories)


def _scope_of_asker(by: Asker, agent: str, session: str, context: ToolContext) -> MemoryScope:
    principal = context.principal
    try:
        name_asker(by, principal, "the memory")
    except ConfigurationError as error:
        raise ToolFailed(str(error)) from error
    assert principal is not None  # noqa: S101  # it has a name
    user = principal.name if by == "principal" else ""
    return MemoryScope(user=user, agent=agent, session=session, tenant=principal.tenant)


def memory_by(path: str | os.PathLike[str], scope_of: ScopeOf, *, max_memories: int = 10_000) -> Ensemble:
    """Create an ensemble for the memories of whoever a call is for.

        memory_by("memories.db", lambda context: MemoryScope(user=context.dependencies.user_id))

    Args:
        path: the SQLite file; it is created if there is none.
        scope_of: returns the scope of a call from its context, which has the `dependencies` of the execution.
        max_memories: the maximum number of memories of a scope.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    toolkit = Memories(MemoryFile(Path(path).absolute(), max_memories), scope_of)
    try:
        toolkit.file.create()
    except ToolFailed as error:
        raise ConfigurationError(str(error)) from error
    # A memory is identified by the call that wrote it, so a repeated call writes nothing more. A memory says itself whose words it is.
    tools: list[Tool] = [
        tool(effect="idempotent", own="*")(toolkit.remember),
        tool(effect="pure", own="*")(toolkit.recall),
        tool(effect="idempotent", own="*")(toolkit.forget),
    ]
    return Ensemble("memory", tools, description="What was learned in earlier conversations.")
