"""Which workers live: each holds a lock that ends with its process. Here for SQLite, by locked files; and the choice of the kind."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import select
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from agentloop.errors import ConfigurationError
from agentloop.errors.hints import install_hint
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.service.cluster.worker_locks import WorkerLocks, WorkSignal
from agentloop.values.jobs import WorkerNote


def open_signal(database: ClusterDatabase) -> WorkSignal:
    """Return what wakes a worker of a database.

    Raises:
        ConfigurationError: the driver of PostgreSQL is not installed.
    """
    if database.path is not None:
        return FileSignal(database)
    with _needing_postgres():
        from agentloop.service.cluster.postgres_liveness import NotifySignal  # noqa: PLC0415  # loads the driver of PostgreSQL
    return NotifySignal(database.location)


def open_locks(database: ClusterDatabase) -> WorkerLocks:
    """Return the locks of the workers of a database.

    Raises:
        ConfigurationError: the driver of PostgreSQL is not installed.
    """
    if database.path is not None:
        return FileLocks(database)
    with _needing_postgres():
        from agentloop.service.cluster.postgres_liveness import PostgresLocks  # noqa: PLC0415  # loads the driver of PostgreSQL
    return PostgresLocks(database.location)


@contextmanager
def _needing_postgres() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != "psycopg":
            raise
        raise ConfigurationError(
            f"a cluster on PostgreSQL needs the extra `postgres`: {install_hint('postgres')}"
        ) from None


def read_live_notes(database: ClusterDatabase) -> Sequence[WorkerNote]:
    """Return the notes of the live workers of a database.

    Raises:
        DatabaseUnavailable: the database is away.
    """
    from agentloop.service.cluster.dbos_binding import as_engine_errors  # noqa: PLC0415  # loads DBOS, which locks do not need

    locks = open_locks(database)
    try:
        with as_engine_errors(database):
            locks.connect()
            return locks.live_notes()
    finally:
        locks.close()


# --- SQLite: a locked file for each worker ---------------------------------------------------------------------------


class FileLocks(WorkerLocks):
    """A locked file for each worker in a folder beside the journal; the system unlocks it when the process ends.

    Args:
        database: a SQLite file.
    """

    def __init__(self, database: ClusterDatabase) -> None:
        self._folder = database.workers_path
        self._held: dict[str, int] = {}
        self._is_connected = False

    def connect(self) -> bool:
        """Create the folder, and return whether this is the first call."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        is_first, self._is_connected = not self._is_connected, True
        return is_first

    def take(self, name: str) -> bool:
        """Lock the file of a worker."""
        # The loop ends when the locked file is the one that has the name: a worker that ends removes its file.
        while True:
            descriptor = os.open(self._file(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _lock(descriptor):
                os.close(descriptor)
                return False
            if _is_file_of(descriptor, self._file(name)):
                self._held[name] = descriptor
                return True
            os.close(descriptor)

    def drop(self, name: str) -> None:
        """Unlock the file of a worker, and remove it."""
        descriptor = self._held.pop(name)
        self._file(name).unlink(missing_ok=True)
        os.close(descriptor)

    def write_note(self, note: WorkerNote) -> None:
        """Write the note into the locked file."""
        descriptor = self._held[note.name]
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.to_text().encode(), 0)

    def erase_note(self, name: str) -> None:
        """Do nothing: the note goes with the file."""

    def has_missed_restart(self, name: str) -> bool:  # noqa: ARG002  # of the contract
        """Return False: there is no server."""
        return False

    def live_notes(self) -> Sequence[WorkerNote]:
        """Return the notes in the files that are locked."""
        files = sorted(self._folder.glob("*.lock")) if self._folder.is_dir() else []
        return [note for file in files for note in [self._read_live(file)] if note is not None]

    def _read_live(self, file: Path) -> WorkerNote | None:
        with suppress(FileNotFoundError):
            descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _lock(descriptor):
                    return None  # its worker has died; closing the file unlocks it
                text = os.pread(descriptor, _LONGEST_NOTE, 0).decode(errors="replace")
            finally:
                os.close(descriptor)
            # Empty while the worker starts, or while another one takes over from a dead worker.
            return WorkerNote.from_text(text) if text else None
        return None

    def close(self) -> None:
        """Unlock and remove the files."""
        for name in list(self._held):
            self.drop(name)

    def _file(self, name: str) -> Path:
        name = quote(name, safe="", errors="surrogatepass")
        # A row of the database can name a worker that no file could have the name of.
        short = name if len(name) <= _LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest()
        return self._folder / f"{short}.lock"


_LONGEST_NOTE = 1_000_000
_LONGEST_NAME = 200


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file_of(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class FileSignal(WorkSignal):
    """Waits at a pipe with a name, to which those who queue work write, and looks now and then whether the file of the engine has changed.

    Where there are no such pipes, as on some network drives, it looks more often.

    Args:
        database: a SQLite file.
    """

    def __init__(self, database: ClusterDatabase) -> None:
        self._path = database.engine_path
        self._connection: sqlite3.Connection | None = None
        self._seen: object = None
        self._pipe = database.workers_path / f"{uuid.uuid4().hex}{_PIPE_SUFFIX}"
        self._interval = _LOOK_INTERVAL
        try:
            self._receiver = self._sender = _open_pipe(self._pipe)
        except OSError:
            self._interval = _SHORT_LOOK_INTERVAL
            self._receiver, self._sender = os.pipe()
            os.set_blocking(self._receiver, False)
            os.set_blocking(self._sender, False)

    def wait(self, timeout: float) -> None:
        """Wait for a byte in the pipe, or another number of the version of the data."""
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        end = time.monotonic() + timeout
        while self._version() == self._seen:
            remaining = end - time.monotonic()
            if remaining <= 0:
                break
            ready, _, _ = select.select([self._receiver], [], [], min(remaining, self._interval))
            if ready:
                os.read(self._receiver, _MAX_WAKES)
                break
        self._seen = self._version()

    def _version(self) -> object:
        # Reading this number opens no transaction; it takes a few microseconds.
        return self._connection and self._connection.execute("PRAGMA data_version").fetchone()

    def wake(self) -> None:
        """End a wait."""
        with suppress(OSError):  # thousands of wakes are waiting already, or nobody waits any more
            os.write(self._sender, b".")

    def close(self) -> None:
        """Close the file and remove the pipe."""
        self._pipe.unlink(missing_ok=True)
        for descriptor in {self._receiver, self._sender}:
            os.close(descriptor)
        self._receiver = self._sender = -1
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_PIPE_SUFFIX = ".wake"
_LOOK_INTERVAL = 0.05
"""How often a worker with a pipe looks whether another process has written to the file of the engine, in seconds."""
_SHORT_LOOK_INTERVAL = 0.01
_MAX_WAKES = 4096


def _open_pipe(path: Path) -> int:
    """Create a pipe with a name, and open it for reading and writing."""
    # It gets its name when it is open: `wake_workers` removes those that nobody has opened.
    path.parent.mkdir(mode=0o700, exist_ok=True)
    unfinished = path.with_suffix(".new")
    os.mkfifo(unfinished, 0o600)
    try:
        descriptor = os.open(unfinished, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink()
        raise
    return descriptor


def wake_workers(database: ClusterDatabase) -> None:
    """Tell the workers of a SQLite file that the queues have changed; those who do not hear of it notice it themselves.

    Args:
        database: the file.
    """
    for pipe in database.workers_path.glob(f"*{_PIPE_SUFFIX}"):
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENXIO:  # its worker has died
                pipe.unlink(missing_ok=True)
            continue
        with suppress(OSError):
            os.write(descriptor, b".")
        os.close(descriptor)


def refuse_second_worker(name: str) -> ConfigurationError:
    """Return the error for a worker whose name a live worker has."""
    return ConfigurationError(
        f"a worker named {name!r} is running on this database; choose another name, or omit it for a unique one"
    )
