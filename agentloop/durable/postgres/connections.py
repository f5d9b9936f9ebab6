"""Connections to PostgreSQL: what a journal needs of one, and those of psycopg, which no other module imports."""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from agentloop.errors import ConfigurationError, JournalBusy, JournalCorrupt, JournalError, JournalFull
from agentloop.errors.hints import install_hint
from agentloop.values.secrets import MASK

if TYPE_CHECKING:
    import psycopg

Row = tuple[Any, ...]
Values = Mapping[str, object]

POSTGRES = ("postgresql://", "postgres://")
"""How the URL of a database may start."""
UNREADABLE_URL = (
    "the URL of the database cannot be read; it has the form postgresql://user:password@host:5432/database, and "
    "characters such as @, : and / in a password are written as %40, %3A and %2F"
)
"""The message about a URL of another form; it quotes nothing of the URL, which can hold a password."""

_CONNECT_SECONDS = 10
_TCP_SETTINGS = {
    "connect_timeout": str(_CONNECT_SECONDS),
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "application_name": "agentloop",
}
"""Settings of libpq with which a connection over a dead network ends; those of the URL precede."""


class StatementFailed(Exception):
    """A statement failed, or the connection was lost.

    Args:
        message: the message of the server or of libpq.
        state: the SQLSTATE; empty when the connection was lost.
    """

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state

    @property
    def is_disconnected(self) -> bool:
        """Whether the connection was lost, so that it is unknown whether a statement was run."""
        return not self.state or self.state in _DISCONNECTED or self.state.startswith("08")

    @property
    def is_transient(self) -> bool:
        """Whether the server undid the transaction because of a concurrent one, so that it can be repeated at once."""
        # The last one is a foreign key that names what another transaction has deleted meanwhile.
        return self.state in {"40001", "40P01", "23503"}


_DISCONNECTED = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})


@frozen(eq=False)
class Target:
    """The database that a URL names.

    Attributes:
        conninfo: the settings of libpq, with the password.
        name: host and database, for people.
        password: the password, to mask it; empty if there is none.
    """

    conninfo: Mapping[str, str]
    name: str
    password: str

    def __repr__(self) -> str:
        return f"Target({self.name!r})"


def read_url(url: str) -> Target:
    """Return the database that a URL names.

    Args:
        url: `postgresql://user:password@host:port/database?setting=value`.

    Raises:
        ConfigurationError: the URL cannot be read, or psycopg is not installed; the message does not show the URL.
    """
    if find_spec("psycopg") is None:
        raise ConfigurationError(f"PostgreSQL needs the extra `postgres`: {install_hint('postgres')}")
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    if not url.startswith(POSTGRES):
        raise ConfigurationError("the URL of a PostgreSQL database starts with postgresql://")
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    except ProgrammingError:
        # Without its cause, which quotes parts of the URL, such as the password.
        raise ConfigurationError(UNREADABLE_URL) from None
    host = given.get("host") or given.get("hostaddr") or "localhost"
    name = f"{host}/{given.get('dbname') or given.get('user', '')}"
    return Target({**_TCP_SETTINGS, **given}, name, given.get("password", ""))


class DatabaseConnection(ABC):
    """One connection. One task uses it at a time."""

    @abstractmethod
    async def rows(self, statement: str, values: Values | None = None) -> list[Row]:
        """Run a statement and return its rows; in a transaction of its own, unless `transaction` has begun one.

        Raises:
            StatementFailed: the statement failed, or the connection was lost or did not answer.
        """

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it is neither closed nor broken, as far as is known."""

    @abstractmethod
    def calling(self, hear: Callable[[], object]) -> AbstractContextManager[None]:
        """Call a function whenever the server has sent something, while the block runs and no statement does."""

    @abstractmethod
    def on_notification(self, handle: Callable[[str], None]) -> None:
        """Call a function with the payload of each notification that is received while statements run."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection. Idempotent."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Run the statements of the block in one transaction.

        Raises:
            StatementFailed: it could not be committed, or the connection was lost.
        """
        await self.rows("BEGIN")
        try:
            yield
        except BaseException:
            with suppress(StatementFailed):  # the transaction ends with the connection
                await self.rows("ROLLBACK")
            raise
        await self.rows("COMMIT")


class DatabaseConnector(ABC):
    """Opens connections to one database."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Host and database, for people."""

    @property
    @abstractmethod
    def timeout(self) -> float:
        """How long a statement may take, in seconds."""

    @abstractmethod
    async def connect(self) -> DatabaseConnection:
        """Open a connection.

        Raises:
            StatementFailed: the server cannot be reached, or refuses the connection.
        """


# --- by psycopg -------------------------------------------------------------------------------------------------------


@define(eq=False)
class PsycopgConnection(DatabaseConnection):
    """A connection of psycopg.

    Attributes:
        timeout: how long a statement may take, in seconds, before the connection is closed.
    """

    _link: psycopg.AsyncConnection[Row]
    _password: str
    timeout: float

    async def rows(self, statement: str, values: Values | None = None) -> list[Row]:
        """Run a statement and return its rows."""
        loop = asyncio.get_running_loop()
        # A cancelled statement would wait for the server; a closed socket ends it at once, whatever the network does.
        timer = loop.call_later(self.timeout, self.cut)
        try:
            cursor = await self._link.execute(statement.encode(), values, binary=True)
            return await cursor.fetchall() if cursor.description is not None else []
        except Exception as error:  # noqa: BLE001  # psycopg lets through errors of sockets and of values
            raise _failure_of(error, self._password, is_lost=not self.is_open) from None
        finally:
            timer.cancel()

    @property
    def is_open(self) -> bool:
        """Whether it is neither closed nor broken, as far as is known."""
        return not self._link.closed

    @contextmanager
    def calling(self, hear: Callable[[], object]) -> Iterator[None]:
        """Call a function whenever the socket has input."""
        loop, descriptor = asyncio.get_running_loop(), self._link.fileno()
        loop.add_reader(descriptor, hear)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)

    def on_notification(self, handle: Callable[[str], None]) -> None:
        """Call a function with the payload of each notification."""
        self._link.add_notify_handler(lambda notification: handle(notification.payload))

    def cut(self) -> None:
        """Close the socket in both directions; what waits for it fails at once."""
        with suppress(OSError, Exception), socket.socket(fileno=os.dup(self._link.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._link.close()


def _failure_of(error: Exception, password: str, *, is_lost: bool) -> StatementFailed:
    message = str(error).strip() or type(error).__name__
    if password:
        message = message.replace(password, MASK)
    state = str(getattr(error, "sqlstate", None) or "")
    return StatementFailed(message, "" if is_lost and state not in _DISCONNECTED else state or "XX000")


@define(eq=False)
class PsycopgConnector(DatabaseConnector):
    """Opens connections of psycopg to one database.

    Attributes:
        target: the database.
        timeout: how long a statement may take, in seconds.
        is_pooled: whether a pooler in transaction mode may stand before the server: nothing of a session is used then.
    """

    target: Target
    timeout: float
    is_pooled: bool = False

    @property
    def name(self) -> str:
        """Host and database, for people."""
        return self.target.name

    async def connect(self) -> DatabaseConnection:
        """Open a connection."""
        import psycopg

        settings: dict[str, Any] = dict(self.target.conninfo)
        if not self.is_pooled:
            # The server ends a statement a bit before the client closes the connection. It ends a transaction whose client says
            # nothing more: one that is cut off would keep its locks for hours.
            milliseconds = int(self.timeout * 1000)
            names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
            options = " ".join([f"-c {name}={milliseconds}" for name in names])
            settings["options"] = f"{options} {settings.get('options', '')}".rstrip()
        try:
            link = await psycopg.AsyncConnection.connect(
                **settings, autocommit=True, prepare_threshold=None if self.is_pooled else 2
            )
        except Exception as error:  # noqa: BLE001  # such as errors of sockets and of names of hosts
            message = str(error)
            state = getattr(error, "sqlstate", None) or _state_of_refusal(message)
            if self.target.password:
                message = message.replace(self.target.password, MASK)
            raise StatementFailed(message.strip(), state) from None
        _LINKS.add(link)
        return PsycopgConnection(link, self.target.password, self.timeout + _GRACE_SECONDS)


_GRACE_SECONDS = 2.0


def _state_of_refusal(message: str) -> str:
    """Return the SQLSTATE for a refused connection, which libpq reports as a text only."""
    refusals = {
        "password authentication failed": "28P01",
        "no password supplied": "28P01",
        "no pg_hba.conf entry": "28000",
        "role ": "28000",
        "too many clients": "53300",
        "remaining connection slots": "53300",
        "unsupported startup parameter": "0A000",
    }
    if "database " in message and "does not exist" in message:
        return "3D000"
    return next((state for text, state in refusals.items() if text in message and "FATAL" in message), "")


@define(eq=False)
class Pool:
    """Connections that are used in turn; they are opened when they are needed and remain open.

    It has no task of its own, and opens a connection with the first action after the server is back, without a pause.

    Attributes:
        connector: opens them.
        size: the maximum number of connections.
    """

    connector: DatabaseConnector
    size: int
    _idle: list[DatabaseConnection] = field(factory=list)
    _slots: asyncio.Semaphore = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.size)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[DatabaseConnection]:
        """Lend a connection for the block; it waits while all are lent.

        Raises:
            StatementFailed: the server cannot be reached.
        """
        async with self._slots:
            connection = self._idle.pop() if self._idle else await self.connector.connect()
            is_clean = False
            try:
                yield connection
                is_clean = True
            except StatementFailed:
                is_clean = connection.is_open
                raise
            except (JournalError, ConfigurationError):
                is_clean = True
                raise
            finally:
                if is_clean and connection.is_open:
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def close_idle(self) -> None:
        """Close the connections that nobody uses: when one was lost, the others probably are, too."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


# --- errors -----------------------------------------------------------------------------------------------------------

_GRANT = "grant the role USAGE and CREATE on it, or let the owner of the database run the statements of `agentloop.durable.postgres_schema()`"
_MEANINGS: Sequence[tuple[str, type[JournalError], str]] = (
    ("57014", JournalBusy, "a statement took longer than statement_timeout"),
    ("55P03", JournalBusy, "a lock was held for longer than statement_timeout"),
    ("40", JournalBusy, "concurrent transactions were in the way"),
    ("25006", JournalBusy, "the server is read-only, as a standby is"),
    ("53100", JournalFull, "no space is left; nothing of this was written, free some space and try again"),
    (
        "53300",
        JournalBusy,
        "the server has no connection left; raise max_connections, or use fewer processes or a pooler",
    ),
    (
        "0A000",
        JournalError,
        "a pooler in transaction mode has no sessions; give the URL of the server itself as direct_url, too",
    ),
    ("28", JournalError, "the server refuses the user or the password"),
    ("3D000", JournalError, "there is no such database; create it"),
    ("42501", JournalError, f"the role has no rights on the schema; {_GRANT}"),
    ("42P01", JournalError, "a table is missing; close the journal, and it is created anew"),
    ("XX001", JournalCorrupt, "the database is damaged"),
    ("XX002", JournalCorrupt, "the database is damaged"),
)


def translate_failure(failure: StatementFailed, name: str) -> JournalError:
    """Return the error to raise for a failed statement.

    Args:
        failure: what failed.
        name: host and database, for the message.
    """
    kind: type[JournalError]
    if failure.is_disconnected:
        kind, meaning = JournalBusy, "the server cannot be reached, or the connection was lost"
    else:
        found = next((entry for entry in _MEANINGS if failure.state.startswith(entry[0])), None)
        kind, meaning = found[1:] if found is not None else (JournalError, "it cannot be used")
    raised = kind(f"the journal {name}: {meaning} ({failure})")
    raised.__cause__ = failure
    return raised


# --- forks ------------------------------------------------------------------------------------------------------------

_LINKS: weakref.WeakSet[Any] = weakref.WeakSet()
_OF_PARENT: list[Any] = []


def _continue_child() -> None:
    """Let go of the sockets of the parent process without a word to the server, and keep them from being closed politely."""
    _OF_PARENT.extend(_LINKS)
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for link in _OF_PARENT:
        with suppress(Exception):
            os.dup2(nowhere, link.fileno(), inheritable=False)
    _LINKS.clear()
    os.close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_continue_child)
