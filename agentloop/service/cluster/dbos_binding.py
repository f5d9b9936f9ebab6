"""What is used of DBOS; no other module imports it. Some of it is not public, so it is checked before a database is used."""

from __future__ import annotations

import inspect
import json
import logging
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any, Final, NoReturn

from agentloop.durable.sqlite.files import create_private
from agentloop.durable.sqlite.schema import PRIMARY_CODE_MASK, error_code
from agentloop.errors import AgentLoopError, ClusterError, ConfigurationError, DatabaseUnavailable, InvalidParameter
from agentloop.errors.hints import install_hint
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.values.tool_calls import ErrorInfo

_TRIED: Final = "3.4"
"""The version of DBOS with which this was tried."""
_UNFIT: Final = (
    "the installed version of DBOS, {version}, lacks {missing}, which clusters use; they were tried with "
    f"{_TRIED}: pip install 'dbos=={_TRIED}.*'"
)

try:
    import sqlalchemy as sqlalchemy
    from dbos import DBOS as DBOS
    from dbos import ClientScheduleInput as ClientScheduleInput
    from dbos import DBOSClient as DBOSClient
    from dbos import DBOSConfig as DBOSConfig
    from dbos import EnqueueOptions as EnqueueOptions
    from dbos import Queue as Queue
    from dbos import Serializer as Serializer
    from dbos import error as dbos_errors
    from dbos._core import execute_dequeued_workflow as execute_dequeued_workflow
    from dbos._serialization import DefaultSerializer
    from dbos._sys_db import SystemDatabase as SystemDatabase
    from dbos._sys_db import db_retry as db_retry
    from dbos._utils import INTERNAL_QUEUE_NAME as INTERNAL_QUEUE_NAME
    from dbos._utils import generate_uuid as generate_uuid
    from sqlalchemy import Engine as DatabaseEngine
    from sqlalchemy import event
    from sqlalchemy.engine import ExceptionContext
except ModuleNotFoundError as _missing:
    # DBOS itself needs the driver of PostgreSQL, also for SQLite.
    if _missing.name not in {"dbos", "psycopg"}:
        raise
    raise ConfigurationError(f"a cluster needs the extra `cluster`: {install_hint('cluster')}") from None
except ImportError as _missing:
    raise ConfigurationError(_UNFIT.format(version=version("dbos"), missing=_missing.name)) from _missing

DBOSException = dbos_errors.DBOSException

_SIGNATURES: Final[Mapping[Callable[..., Any], frozenset[str]]] = {
    execute_dequeued_workflow: frozenset({"dbos", "status", "owner_xid"}),
    generate_uuid: frozenset(),
}
_METHODS: Final[Mapping[str, frozenset[str]]] = {
    "start_queued_workflows": frozenset(
        {
            "queue",
            "executor_id",
            "app_version",
            "queue_partition_key",
            "local_running_count",
            "owner_xid",
            "is_latest_version",
        }
    ),
    "get_workflow_statuses": frozenset({"workflow_ids"}),
    "list_schedules": frozenset({"application_name"}),
    "reenqueue_for_recovery": frozenset({"workflow_id", "executor_ids", "recovery_queue_name"}),
    "get_queue": frozenset({"name"}),
    "list_queues": frozenset({"application_name"}),
    "get_latest_application_version": frozenset(),
    "update_application_version_timestamp": frozenset({"version_name", "new_timestamp"}),
}
"""The methods of DBOS's access to its tables that are used, with the parameters that are passed."""


@cache
def check_dbos() -> None:
    """Check that what is used of DBOS exists, with the parameters that are passed.

    Raises:
        ConfigurationError: the installed version differs.
    """
    found = find_differences(SystemDatabase)
    if found:
        raise ConfigurationError(_UNFIT.format(version=version("dbos"), missing=", ".join(found)))


def find_differences(tables: type) -> list[str]:
    """Return what differs in DBOS from what is used of it.

    Args:
        tables: the class of its access to its tables.
    """
    methods = {name: getattr(tables, name, None) for name in _METHODS}
    return [
        *[name for name, method in methods.items() if not _accepts(method, _METHODS[name])],
        *[function.__name__ for function, names in _SIGNATURES.items() if not _accepts(function, names)],
    ]


def _accepts(function: Callable[..., Any] | None, names: frozenset[str]) -> bool:
    return function is not None and names <= inspect.signature(function).parameters.keys()


FORMAT: Final = "agentloop_json"
"""The name of the format of all data that the engine stores."""
MAX_DATA: Final = 256 * 1024 * 1024
"""The maximum length of the input or the result of a job, as JSON text: what is longer is neither stored nor read."""


class JsonSerializer(Serializer):
    """Stores all data of the engine as JSON."""

    def serialize(self, data: Any) -> str:
        """Return data as JSON; an error as its type and message.

        Raises:
            InvalidParameter: it is too long.
        """
        text = json.dumps(data, default=_as_json)
        if len(text) > MAX_DATA:
            raise InvalidParameter(
                f"the data of a job has {len(text):,} characters of JSON; at most {MAX_DATA:,} can be queued"
            )
        return text

    def deserialize(cls, serialized_data: str) -> Any:  # noqa: N805  # named as in the base class
        """Return the data of a JSON text."""
        return json.loads(serialized_data)

    def name(self) -> str:
        """Return the name of the format, which is stored beside the data."""
        return FORMAT


def _refuse_pickle(*_: object, **__: object) -> NoReturn:
    raise ClusterError(
        "DBOS pickles nothing in a process with a cluster of agentloop, since reading a pickle runs the code in it; give a program of "
        "DBOS in this process a serializer of its own"
    )


# DBOS takes the format of data from the row that holds them, so that whoever writes a row could name this one.
DefaultSerializer.serialize = _refuse_pickle  # type: ignore[method-assign]
DefaultSerializer.deserialize = _refuse_pickle  # type: ignore[method-assign]


class StoredFailure(Exception):  # DBOS stores what a job raises
    """Why a job has failed, as the engine stores it.

    Args:
        error: the error.
    """

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.error = error


def _as_json(value: object) -> object:
    if isinstance(value, StoredFailure):
        return {"type": value.error.type, "message": value.error.message}
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "message": str(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def prepare_tables(database: ClusterDatabase) -> None:
    """Create or upgrade the tables of the engine.

    Raises:
        ConfigurationError: the installed version of DBOS, or of SQLite, cannot be used.
    """
    check_dbos()
    if database.path is not None:
        check_sqlite(sys.version_info[:2], sqlite3.sqlite_version_info[:2])
    # Its own handler would write to stderr, and its messages below a warning are about itself.
    dbos_logger = logging.getLogger("dbos")
    if not dbos_logger.handlers:
        dbos_logger.addHandler(logging.NullHandler())
        dbos_logger.setLevel(logging.CRITICAL)
    if database.path is not None:
        create_private(database.engine_path)  # before SQLite does, whose log has the same permissions
        # The engine leaves the default mode, in which writers block readers; this mode stays with the file.
        connection = sqlite3.connect(database.engine_path, timeout=30)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
        database.engine_path.chmod(0o600)
    DBOS.migrate(database.engine_url)


def check_sqlite(python: tuple[int, int], sqlite: tuple[int, int]) -> None:
    """Check that the tables of DBOS can be used.

    Under newer versions of Python, they take times from a function that older versions of SQLite do not have.

    Args:
        python: the version of Python.
        sqlite: the version of SQLite.

    Raises:
        ConfigurationError: they cannot be used.
    """
    if python >= _PYTHON_OF_NEWER_TABLES and sqlite < _SQLITE_OF_NEWER_TABLES:
        needed, found = (".".join(map(str, each)) for each in (_SQLITE_OF_NEWER_TABLES, sqlite))
        raise ConfigurationError(
            f"a cluster on SQLite needs SQLite {needed} or newer under this version of Python, which has {found}; use another "
            "build of Python, Python 3.11, or a PostgreSQL database"
        )


_PYTHON_OF_NEWER_TABLES: Final = (3, 12)
_SQLITE_OF_NEWER_TABLES: Final = (3, 42)
"""The first version whose `unixepoch` knows `subsec`; with earlier ones, times are NULL."""

_LOST: Final = "executions stay in the journal, but what waits in the queues is lost without this file"
_FILE_PROBLEMS: Final[Mapping[int, str]] = {
    sqlite3.SQLITE_CORRUPT: f"the file is damaged; restore it, or move it away: {_LOST}",
    sqlite3.SQLITE_NOTADB: f"the file is not a SQLite database, or its beginning is damaged; restore it, or move it away: {_LOST}",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; check that its folder can be written",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only",
    sqlite3.SQLITE_PERM: "reading or writing the file is not permitted",
}
"""What is wrong with a file that stays as it is, by the primary codes of SQLite."""


def file_error(error: Exception, database: ClusterDatabase) -> ClusterError | None:
    """Return an error that says what is wrong with the file of the engine; None if that is not why the engine failed.

    Args:
        error: what the engine raised.
        database: the database of the cluster.
    """
    cause = getattr(error, "orig", None) or error  # sqlalchemy wraps the errors of the driver
    if database.path is None or not isinstance(cause, sqlite3.Error | UnicodeDecodeError):
        return None
    meaning = _FILE_PROBLEMS.get(error_code(cause) & PRIMARY_CODE_MASK)
    return None if meaning is None else ClusterError(f"the queues in {database.engine_path}: {meaning} ({cause})")


@contextmanager
def as_engine_errors(database: ClusterDatabase) -> Iterator[None]:
    """Say what is wrong where the engine cannot use its tables, or the locks of workers.

    Args:
        database: the database of the cluster.

    Raises:
        ClusterError: the tables cannot be used.
        DatabaseUnavailable: the database is away, busy or full.
    """
    try:
        yield
    except AgentLoopError:
        raise
    except Exception as error:
        problem = _engine_error(error, database)
        if problem is None:
            raise
        raise problem from error


def _engine_error(error: Exception, database: ClusterDatabase) -> ClusterError | None:
    """Return an error that says why the tables of the engine cannot be used; None for an error that is not one of a database.

    Args:
        error: what the engine raised.
        database: the database of the cluster.
    """
    problem = file_error(error, database)
    if problem is not None:
        return problem
    cause = getattr(error, "orig", None) or error
    is_lasting = isinstance(error, _LASTING) or (
        isinstance(cause, sqlite3.Error) and error_code(cause) & PRIMARY_CODE_MASK in _LASTING_IN_SQLITE
    )
    text = " ".join(str(cause).split())[:300]
    if is_lasting:
        return ClusterError(f"the queues in {database} cannot be used: {type(error).__name__}: {text}")
    if isinstance(cause, _OF_DATABASES) or type(cause).__module__.partition(".")[0] == "psycopg":
        return DatabaseUnavailable(f"the database {database} cannot be used now: {type(cause).__name__}: {text}")
    return None


_OF_DATABASES: Final = (sqlite3.Error, sqlalchemy.exc.SQLAlchemyError, OSError)
"""What databases and files raise; psycopg, which may not be installed, is known by its name."""


_LASTING: Final = (
    dbos_errors.DBOSException,
    sqlalchemy.exc.IntegrityError,
    sqlalchemy.exc.DataError,
    sqlalchemy.exc.ProgrammingError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)
"""What is not the better for another try: the tables hold something that this program did not write."""
_LASTING_IN_SQLITE: Final = frozenset({0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_SCHEMA})
"""The same by the primary codes of SQLite; a text that its driver cannot decode has none."""


def retry_lost_connections(engine: DatabaseEngine) -> None:
    """Let DBOS try again what fails because a server on a unix socket is away, as it does with one on TCP.

    It knows such a failure by a text of psycopg, "connection failed", but where the socket cannot be opened at all the text is
    "connection is bad". Otherwise the outcome of a job that ends in an outage would not be stored.
    """

    @event.listens_for(engine, "handle_error")
    def mark(context: ExceptionContext) -> None:
        if "connection is bad" in str(context.original_exception):
            context.is_disconnect = True
