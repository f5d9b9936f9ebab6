"""The rows of the engine's tables, read so that nothing in them is believed.

SQLite stores any bytes in any column, and whoever can write to a database can write what this program would not. So columns are read as
bytes and numbers, which no driver refuses, and a row that this program would not have written has a `problem`. DBOS gets no data of a row:
it would choose by the row how to read them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from attrs import field, frozen

from agentloop.errors import NotJson, WorkDamaged
from agentloop.service.cluster.dbos_binding import FORMAT, INTERNAL_QUEUE_NAME, MAX_DATA, db_retry, sqlalchemy
from agentloop.values.jobs import Job, JobKind, JobState, JobStatus
from agentloop.values.json import JsonValue, freeze, parse_json
from agentloop.values.tool_calls import ErrorInfo

APPLICATION: Final = "agentloop"
VERSION_PREFIX: Final = "agentloop-1:"
"""Precedes the version of a program in the engine; another number would mean that jobs have another form."""
QUEUES: Final = {JobKind.EXECUTION: "agentloop.executions.", JobKind.TOOL: "agentloop.tools."}
"""What precedes the names of the queues of each kind in the engine."""
SCHEDULED: Final = "agentloop.schedule"
"""The function of the engine that queues the job of a schedule."""
DEATHS: Final = "deaths"
"""The attribute of a job that counts the workers which died while they ran it."""
SPARED: Final = "spared"
"""The attribute of a job for which the death of its worker is not counted."""
STATES: Final = {
    "DELAYED": JobState.DELAYED,
    "ENQUEUED": JobState.WAITING,
    "PENDING": JobState.RUNNING,
    "SUCCESS": JobState.FINISHED,
    "ERROR": JobState.FAILED,
    "MAX_RECOVERY_ATTEMPTS_EXCEEDED": JobState.FAILED,
    "CANCELLED": JobState.CANCELLED,
}
_FUNCTIONS: Final = {f"agentloop.{kind.value}": kind for kind in JobKind}
"""The functions of the engine that run jobs, with the kinds of their jobs."""
_MAX_NAME: Final = 65_536
"""The maximum length of an id, a name and the like: what is longer is not read."""
_LONGEST_PERIOD: Final = 1e9
_SHOWN: Final = 40
_LONGEST_PROBLEM: Final = 200


def function_of(kind: JobKind) -> str:
    """Return the function of the engine that runs jobs of a kind."""
    return f"agentloop.{kind.value}"


def engine_id(kind: JobKind, job_id: str) -> str:
    """Return the id of a job in the engine, where kinds share one space of ids."""
    return f"{kind.value}:{job_id}"


def names_of(states: Collection[JobState]) -> list[str]:
    """Return the names of states in the engine."""
    return [name for name, state in STATES.items() if state in states]


# --- columns ----------------------------------------------------------------------------------------------------------


class Columns:
    """Reads columns of the tables of the engine, whatever they hold.

    Args:
        system: DBOS's access to its tables.
    """

    def __init__(self, system: Any) -> None:
        self.system = system
        self._is_sqlite: bool = system.engine.dialect.name == "sqlite"

    def text(self, column: Any, longest: int = _MAX_NAME) -> Any:
        """Return an expression for the text in a column, cut off behind its maximum length."""
        if self._is_sqlite:
            # A cast to bytes reads what is no text, and what is no UTF-8, for which the driver would fail.
            data = sqlalchemy.cast(column, sqlalchemy.LargeBinary)
            return sqlalchemy.cast(sqlalchemy.func.substr(data, 1, longest + 1), sqlalchemy.LargeBinary)
        return sqlalchemy.func.left(sqlalchemy.cast(column, sqlalchemy.Text), longest + 1)

    def number(self, column: Any) -> Any:
        """Return an expression for the integer in a column; NULL if it holds none."""
        if self._is_sqlite:
            return sqlalchemy.case((sqlalchemy.func.typeof(column) == "integer", column))
        return column

    def place(self, table: Any, key: Any) -> Any:
        """Return an expression that finds a row again: its number in SQLite, where the key can be NULL or no text."""
        return sqlalchemy.literal_column(f"{table.name}.rowid") if self._is_sqlite else key

    def is_not_text(self, column: Any) -> Any:
        """Return a condition for a column that holds something else than text, which PostgreSQL does not allow."""
        if not self._is_sqlite:
            return sqlalchemy.false()
        return sqlalchemy.func.typeof(column).not_in(["text", "null"])

    def is_not_number(self, column: Any, *kinds: str) -> Any:
        """Return a condition for a column that holds something else than an integer, or a number of kinds of SQLite."""
        if not self._is_sqlite:
            return sqlalchemy.false()
        return sqlalchemy.func.typeof(column).not_in(["integer", "null", *kinds])

    def fetch(self, statement: Any) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a query by the names of their columns; the query is tried again while the database is away."""

        @db_retry(sys_db=self.system)
        def run() -> Sequence[Mapping[str, Any]]:
            with self.system.engine.begin() as connection:
                found: Sequence[Mapping[str, Any]] = connection.execute(statement).mappings().all()
                return found

        return run()


class _Texts:
    """The texts of a row, by columns, with what is wrong with them."""

    def __init__(self, values: Mapping[str, object], longest: Mapping[str, int]) -> None:
        self.problem = ""
        self._texts = {name: self._read(name, value, longest.get(name, _MAX_NAME)) for name, value in values.items()}

    def _read(self, name: str, value: object, longest: int) -> str | None:
        if value is None:
            return None
        data = value if isinstance(value, bytes) else str(value)
        if len(data) > longest:
            self.problem = self.problem or f"{name} is longer than {longest:,} characters"
            return None
        try:
            return data.decode() if isinstance(data, bytes) else data
        except UnicodeDecodeError:
            self.problem = self.problem or f"{name} is not text"
            return None

    def get(self, name: str) -> str | None:
        """Return a text; None if there is none that can be read."""
        return self._texts.get(name)


# --- jobs -------------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class WorkRow:
    """A row of the table of all work.

    Attributes:
        place: finds the row again.
        creator: tells it from another row that took its place.
        id: the id in the engine; empty if it cannot be read.
        kind: the kind of its job; None for work that is no job, such as a schedule that fires.
        function: the function of the engine that runs it.
        state: how far it is.
        problem: why it is not one that this program wrote; empty if it may be.
        arguments: what it was queued with, if that was read.
        result: what it returned, if that was read.
        error: why it failed, if that was read.
    """

    place: object
    creator: object
    id: str
    kind: JobKind | None
    function: str
    state: JobState | None
    problem: str
    queue: str = ""
    agent: str = ""
    version: str | None = None
    worker: str = ""
    attempts: int = 0
    created_at: int = 0
    started_at: int | None = None
    delay_until: int = 0
    deaths: int = 0
    is_spared: bool = False
    arguments: tuple[Any, ...] = field(default=(), repr=False)
    result: JsonValue = field(default=None, repr=False)
    error: ErrorInfo | None = field(default=None, repr=False)

    @property
    def job_id(self) -> str:
        """The id of its job."""
        return self.id if self.kind is None else self.id.removeprefix(engine_id(self.kind, ""))

    @property
    def failure(self) -> ErrorInfo | None:
        """Why it failed: what is wrong with the row, or what it says."""
        return ErrorInfo(WorkDamaged.__name__, self.problem) if self.problem else self.error

    def status(self, kind: JobKind) -> JobStatus:
        """Return how far its job is, which counts as failed if the row is not one that this program wrote."""
        state = self.state if self.state is not None and not self.problem else JobState.FAILED
        return JobStatus(
            id=self.id.removeprefix(engine_id(kind, "")),
            kind=kind,
            agent=self.agent,
            queue=self.queue.removeprefix(QUEUES[kind]),
            version=None if self.version is None else self.version.removeprefix(VERSION_PREFIX),
            state=state,
            worker=self.worker,
            attempts=self.attempts,
            result=self.result,
            error=self.failure,
            created_at=time_of(self.created_at),
            started_at=None if self.started_at is None else time_of(self.started_at),
        )


_TEXTS: Final = (
    "workflow_uuid",
    "status",
    "name",
    "class_name",
    "config_name",
    "executor_id",
    "application_version",
    "queue_name",
    "queue_partition_key",
    "serialization",
    "attributes",
)
_NUMBERS: Final = ("recovery_attempts", "created_at", "started_at_epoch_ms", "delay_until_epoch_ms")
_DATA: Final = {"inputs": MAX_DATA, "output": MAX_DATA, "error": MAX_DATA}


def read_work(
    system: Any, *conditions: Any, reads_inputs: bool = False, reads_outputs: bool = False
) -> Sequence[WorkRow]:
    """Return rows of the table of all work, oldest first.

    Args:
        system: DBOS's access to its tables.
        conditions: which ones.
        reads_inputs: whether to read what they were queued with.
        reads_outputs: whether to read what they returned, or why they failed.
    """
    columns, table = Columns(system), system.tables.workflow_status
    data = [
        *([("inputs", system.tables.workflow_input)] if reads_inputs else []),
        *([(name, system.tables.workflow_output) for name in ("output", "error")] if reads_outputs else []),
    ]
    source = table
    for payloads in dict.fromkeys(payloads for _, payloads in data):
        source = source.outerjoin(payloads, payloads.c.workflow_uuid == table.c.workflow_uuid)
    selected = [
        columns.place(table, table.c.workflow_uuid).label("place"),
        columns.text(table.c.creator_xid).label("creator"),
        *[columns.text(table.c[name]).label(name) for name in _TEXTS],
        *[columns.number(table.c[name]).label(name) for name in _NUMBERS],
        *[
            # The table of payloads precedes the column of older versions, as in DBOS.
            columns.text(sqlalchemy.func.coalesce(payloads.c[name], table.c[name]), MAX_DATA).label(name)
            for name, payloads in data
        ],
    ]
    query = sqlalchemy.select(*selected).select_from(source).where(*conditions).order_by(table.c.created_at.asc())
    return [_as_work(row, [name for name, _ in data]) for row in columns.fetch(query)]


def is_of_application(system: Any) -> Any:
    """Return a condition for the rows of work that workers of this program may take: theirs, and those of nobody."""
    owner = system.tables.workflow_status.c.application_name
    return sqlalchemy.or_(owner == APPLICATION, owner.is_(None))


def _as_work(row: Mapping[str, Any], data: Sequence[str]) -> WorkRow:
    texts = _Texts({name: row[name] for name in (*_TEXTS, *data)}, _DATA)
    found = _Work(texts)
    arguments = found.arguments() if "inputs" in data else ()
    result, error = found.outcome() if "output" in data else (None, None)
    return WorkRow(
        place=row["place"],
        creator=row["creator"],
        id=texts.get("workflow_uuid") or "",
        kind=found.kind,
        function=texts.get("name") or "",
        state=found.state,
        problem=found.problem,
        queue=texts.get("queue_name") or "",
        agent=texts.get("queue_partition_key") or "",
        version=texts.get("application_version"),
        worker=texts.get("executor_id") or "",
        attempts=row["recovery_attempts"] or 0,
        created_at=row["created_at"] or 0,
        started_at=row["started_at_epoch_ms"],
        delay_until=row["delay_until_epoch_ms"] or 0,
        deaths=found.deaths(),
        is_spared=found.is_spared(),
        arguments=arguments,
        result=result,
        error=error,
    )


class _Work:
    """Finds what is wrong with a row of work; the first problem counts."""

    def __init__(self, texts: _Texts) -> None:
        self._texts = texts
        self.problem = texts.problem
        self.state = STATES.get(texts.get("status") or "")
        self._check_format()
        self.kind = self._kind()
        self._attributes: Mapping[str, Any] = self._read_attributes()

    def _require(self, is_right: bool, problem: str) -> None:  # noqa: FBT001  # what is checked
        if not is_right:
            self.problem = self.problem or _one_line(problem)

    def _check_format(self) -> None:
        texts = self._texts
        found = texts.get("serialization")
        self._require(found in {None, FORMAT}, f"the format of its data is {_shown(found)}, and not {FORMAT}")
        for column in ("class_name", "config_name"):
            self._require(texts.get(column) is None, f"it names a class: {_shown(texts.get(column))}")
        self._require(self.state is not None, f"its status is {_shown(texts.get('status'))}")

    def _kind(self) -> JobKind | None:
        """Return the kind that the id names, if it is that of the function, too."""
        id_, function = self._texts.get("workflow_uuid") or "", self._texts.get("name") or ""
        self._require(bool(id_.strip()), "it has no id")
        kind = next((kind for kind in JobKind if id_.startswith(engine_id(kind, ""))), None)
        expected = SCHEDULED if kind is None else function_of(kind)
        self._require(function == expected, f"it runs the function {_shown(function)}")
        queue = self._texts.get("queue_name")
        prefix = INTERNAL_QUEUE_NAME if kind is None else QUEUES[kind]
        self._require(queue is None or queue.startswith(prefix), f"it is in the queue {_shown(queue)}")
        return kind

    def _read_attributes(self) -> Mapping[str, Any]:
        text = self._texts.get("attributes")
        found = self._parse("attributes", text) if text is not None else None
        self._require(found is None or isinstance(found, dict), "its attributes are no JSON object")
        return found if isinstance(found, dict) else {}

    def deaths(self) -> int:
        """Return how many workers have died while they ran the job."""
        count = self._attributes.get(DEATHS)
        return count if type(count) is int and count > 0 else 0

    def is_spared(self) -> bool:
        """Return whether the death of its worker is not counted."""
        return self._attributes.get(SPARED) is True

    def arguments(self) -> tuple[Any, ...]:
        """Return what the work was queued with."""
        text = self._texts.get("inputs")
        self._require(text is not None, "it has no input")
        found = None if text is None else self._parse("input", text)
        expected = 2 if self.kind is None else 1
        match found:
            case {"args": list(arguments), "kwargs": kwargs} if len(arguments) == expected and kwargs == {}:
                return tuple([self._freeze("input", argument) for argument in arguments])
            case _:
                self._require(False, "its input has another form")  # noqa: FBT003  # no other check applies
                return ()

    def outcome(self) -> tuple[JsonValue, ErrorInfo | None]:
        """Return what the work returned, or why it failed."""
        if self.state is JobState.FINISHED and (text := self._texts.get("output")) is not None:
            return self._freeze("result", self._parse("result", text)), None
        if self.state is JobState.FAILED and (text := self._texts.get("error")) is not None:
            match self._parse("error", text):
                case {"type": str(kind), "message": str(message)}:
                    return None, ErrorInfo(kind, message)
                case _:
                    self._require(False, "its error has another form")  # noqa: FBT003  # no other check applies
        return None, None

    def _parse(self, what: str, text: str) -> Any:
        try:
            return parse_json(text)
        except ValueError as error:
            self._require(False, f"its {what} is no JSON: {error}")  # noqa: FBT003  # it was tried
            return None

    def _freeze(self, what: str, data: Any) -> JsonValue:
        try:
            return freeze(data)
        except NotJson as error:
            self._require(False, f"its {what} cannot be read: {error}")  # noqa: FBT003  # it was tried
            return None


def _shown(text: str | None) -> str:
    """Return the beginning of a text of a row, with every character visible."""
    return repr(text) if text is None or len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def _one_line(text: str) -> str:
    """Return the beginning of a text that may quote a row, on one line and with every character visible."""
    cut = text if len(text) <= _LONGEST_PROBLEM else f"{text[:_LONGEST_PROBLEM]}…"
    return "".join([character if character.isprintable() else repr(character)[1:-1] for character in cut])


def time_of(milliseconds: int) -> datetime:
    """Return a time of the engine; one that no calendar has is that of its beginning."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC)


def list_owners(system: Any) -> tuple[Sequence[str], bool]:
    """Return the names of the workers that run jobs, also of those that have died, and whether there are names that cannot be read.

    Args:
        system: DBOS's access to its tables.
    """
    table = system.tables.workflow_status
    # A literal, as in the condition of the index of running jobs: with a parameter, SQLite reads the rows of all jobs that have ever run.
    condition = table.c.status == sqlalchemy.literal_column("'PENDING'")
    name = Columns(system).text(table.c.executor_id).label("name")
    query = sqlalchemy.select(name).distinct().where(condition, is_of_application(system))
    found = [decoded(row["name"]) for row in Columns(system).fetch(query)]
    return [text for text in found if text], not all(found)


def decoded(value: object) -> str | None:
    """Return the text of a column; None if there is none that can be read."""
    return _Texts({"": value}, {}).get("")


# --- queues -----------------------------------------------------------------------------------------------------------


def list_queue_names(system: Any) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of the queues whose limits are numbers, and of those that are damaged.

    Args:
        system: DBOS's access to its tables.
    """
    columns, table = Columns(system), system.tables.queues
    limits, or_ = table.c, sqlalchemy.or_
    counts = (limits.concurrency, limits.rate_limit_max)
    is_damaged = or_(
        *[or_(columns.is_not_number(count), count < 0) for count in counts],
        columns.is_not_number(limits.rate_limit_period_sec, "real"),
        sqlalchemy.and_(
            limits.rate_limit_max.is_not(None),
            or_(
                limits.rate_limit_period_sec.is_(None),
                limits.rate_limit_period_sec <= 0,
                limits.rate_limit_period_sec > _LONGEST_PERIOD,  # as NaN and infinity are in PostgreSQL
            ),
        ),
        *[column.is_not(None) for column in limits if column.name.startswith("partition_") and column.nullable],
    )
    owner = limits.application_name
    query = sqlalchemy.select(
        columns.text(limits.name).label("name"),
        sqlalchemy.func.coalesce(is_damaged, sqlalchemy.false()).label("is_damaged"),
    ).where(or_(owner == APPLICATION, owner.is_(None)))
    found = [(decoded(row["name"]) or "", bool(row["is_damaged"])) for row in columns.fetch(query)]
    return [name for name, damaged in found if name and not damaged], [name for name, damaged in found if damaged]


# --- schedules --------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class ScheduleRow:
    """A row of the table of schedules.

    Attributes:
        id: its id in the engine.
        name: its name.
        cron: its cron expression.
        job: the fields of the job that it queues.
        problem: why it is not one that this program wrote, so that it queues nothing; empty if it may be.
    """

    id: str
    name: str
    cron: str
    job: Mapping[str, Any] = field(repr=False)
    problem: str


_SCHEDULE: Final = (
    "schedule_id",
    "schedule_name",
    "workflow_name",
    "workflow_class_name",
    "schedule",
    "status",
    "context",
    "cron_timezone",
    "queue_name",
)


def read_schedules(system: Any, *conditions: Any) -> Sequence[ScheduleRow]:
    """Return schedules.

    Args:
        system: DBOS's access to its tables.
        conditions: which ones.
    """
    columns, table = Columns(system), system.tables.workflow_schedules
    lengths = {"context": MAX_DATA}
    texts = [columns.text(table.c[name], lengths.get(name, _MAX_NAME)).label(name) for name in _SCHEDULE]
    owner = table.c.application_name
    is_ours = sqlalchemy.or_(owner == APPLICATION, owner.is_(None))
    query = sqlalchemy.select(*texts).where(is_ours, *conditions).order_by(table.c.schedule_id)
    return [_as_schedule(_Texts(row, lengths)) for row in columns.fetch(query)]


def _as_schedule(texts: _Texts) -> ScheduleRow:
    job: Mapping[str, Any] = {}
    problem = texts.problem
    try:
        job = scheduled_job(parse_json(texts.get("context") or ""))
    except (ValueError, WorkDamaged) as error:
        problem = problem or f"what it queues cannot be read: {error}"
    expected = {
        "workflow_name": SCHEDULED,
        "workflow_class_name": None,
        "status": "ACTIVE",
        "cron_timezone": None,
        "queue_name": None,
    }
    strange = [name for name, value in expected.items() if texts.get(name) != value]
    problem = problem or (f"its {strange[0]} is {_shown(texts.get(strange[0]))}" if strange else "")
    name, cron = texts.get("schedule_name") or "", texts.get("schedule") or ""
    if not (texts.get("schedule_id") and name and cron):
        problem = problem or "it has no name, or no times"
    return ScheduleRow(texts.get("schedule_id") or "", name, cron, job, _one_line(problem))


def scheduled_job(data: Any) -> Mapping[str, Any]:
    """Return the fields of the job that a schedule queues.

    Raises:
        WorkDamaged: the data has another form.
    """
    match data:
        case {"agent": str(), "queue": str(), "payload": dict(), "version": str() | None, "priority": int()}:
            return dict(data)
        case _:
            raise WorkDamaged("the job of a schedule has another form")


def job_of_schedule(fields: Mapping[str, Any], when: str) -> Job:
    """Return the job of an execution that a schedule queues.

    Args:
        fields: the fields of the job, as `scheduled_job` returns them.
        when: what tells this time from the others; the id of the job ends with it.
    """
    start = fields.get("id", _START)
    return Job(
        id=f"{start if isinstance(start, str) else _START}{when}",
        kind=JobKind.EXECUTION,
        agent=fields["agent"],
        payload=fields["payload"],
        queue=fields["queue"],
        version=fields["version"],
        priority=fields["priority"],
    )


_START: Final = "start:"
"""The beginning of the ids of jobs, for schedules that do not name it."""
