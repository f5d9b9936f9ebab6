"""What keeps rows that this program did not write from DBOS, from workers and from each other."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from agentloop.errors import WorkDamaged
from agentloop.service.cluster.dbos_binding import DBOS, FORMAT, INTERNAL_QUEUE_NAME, Queue, sqlalchemy
from agentloop.service.cluster.rows import (
    APPLICATION,
    QUEUES,
    SCHEDULED,
    STATES,
    Columns,
    ScheduleRow,
    WorkRow,
    decoded,
    function_of,
    list_queue_names,
    read_schedules,
    read_work,
)

logger: logging.Logger = logging.getLogger("agentloop.cluster")

_OPEN: Final = ("ENQUEUED", "PENDING", "DELAYED")
_LONGEST_DELAY: Final = 11 * 365 * 86_400_000
"""A delay that no job has, in milliseconds."""


# --- putting aside ----------------------------------------------------------------------------------------------------


def put_aside(system: Any, row: WorkRow, problem: str = "") -> None:
    """End work as failed, with what is wrong with its row; the row is left to be looked at, without its result.

    Args:
        system: DBOS's access to its tables.
        row: the row; another one that has taken its place meanwhile is left alone.
        problem: what is wrong; by default the problem of the row.
    """
    problem = problem or row.problem
    logger.warning("the row of %s is damaged, and nothing of it runs: %s", _name(row), problem)
    columns, table, output = Columns(system), system.tables.workflow_status, system.tables.workflow_output
    now = int(time.time() * 1000)
    is_same = sqlalchemy.and_(
        columns.place(table, table.c.workflow_uuid) == row.place,
        columns.text(table.c.creator_xid).is_not_distinct_from(row.creator),
    )
    with system.engine.begin() as connection:
        # An outcome in the table of outcomes would precede that in the row.
        ids = sqlalchemy.select(table.c.workflow_uuid).where(is_same)
        connection.execute(output.delete().where(output.c.workflow_uuid.in_(ids)))
        connection.execute(
            table.update()
            .where(is_same)
            .values(
                status="ERROR",
                serialization=FORMAT,
                class_name=None,
                config_name=None,
                output=None,
                error=json.dumps({"type": WorkDamaged.__name__, "message": problem}),
                owner_xid=None,
                deduplication_id=None,
                updated_at=now,
                completed_at=now,
            )
        )


def _name(row: WorkRow) -> str:
    return repr(row.id[:200]) if row.id else "work without an id"


def put_aside_all(system: Any, *conditions: Any) -> None:
    """Put aside the rows of work, of those that meet conditions, that this program has not written."""
    for row in read_work(system, *conditions):
        if row.problem:
            put_aside(system, row)


def put_aside_stuck(system: Any) -> None:
    """Put aside work that no worker would ever take, or take up again, because of what is in its row."""
    for row in read_work(system, _is_ours(system), _is_stuck(system)):
        put_aside(system, row, row.problem or "no worker can take it")


def put_aside_open(system: Any) -> None:
    """Read every row of work that has not ended, and put aside those that this program has not written.

    A query of DBOS fails as a whole for one id in SQLite that is no text. This reads them one by one.
    """
    put_aside_all(system, _is_ours(system), system.tables.workflow_status.c.status.in_(_OPEN))


def _is_ours(system: Any) -> Any:
    """Return a condition for rows that workers of this program may take: in PostgreSQL, another program can have rows in the table."""
    table = system.tables.workflow_status
    if system.engine.dialect.name == "sqlite":
        return sqlalchemy.true()
    return sqlalchemy.or_(
        table.c.application_name == APPLICATION,
        sqlalchemy.and_(
            table.c.application_name.is_(None),
            sqlalchemy.or_(table.c.name.startswith("agentloop."), table.c.queue_name.startswith("agentloop.")),
        ),
    )


def _is_stuck(system: Any) -> Any:
    columns, ws = Columns(system), system.tables.workflow_status.c
    or_, and_ = sqlalchemy.or_, sqlalchemy.and_
    texts = (ws.workflow_uuid, ws.name, ws.executor_id, ws.queue_name, ws.queue_partition_key, ws.application_version)
    queues = {SCHEDULED: INTERNAL_QUEUE_NAME, **{function_of(kind): prefix for kind, prefix in QUEUES.items()}}
    is_in_its_queue = or_(*[and_(ws.name == name, ws.queue_name.startswith(queue)) for name, queue in queues.items()])
    far = int(time.time() * 1000) + _LONGEST_DELAY
    is_open_and_stuck = and_(
        ws.status.in_(_OPEN),
        or_(
            *[columns.is_not_text(column) for column in texts],
            columns.is_not_number(ws.delay_until_epoch_ms),
            ws.workflow_uuid.is_(None),
            ws.name.is_(None),
            ws.name.not_in(list(queues)),
            and_(ws.serialization.is_not(None), ws.serialization != FORMAT),
            ws.class_name.is_not(None),
            ws.config_name.is_not(None),
            and_(ws.status == "PENDING", or_(ws.executor_id.is_(None), ws.executor_id == "")),
            and_(ws.status != "PENDING", or_(ws.queue_name.is_(None), ~is_in_its_queue)),
            and_(ws.status == "DELAYED", or_(ws.delay_until_epoch_ms.is_(None), ws.delay_until_epoch_ms > far)),
            and_(ws.name != SCHEDULED, ws.queue_partition_key.is_(None)),
            and_(ws.application_version.is_not(None), ~ws.application_version.startswith("agentloop-")),
            and_(
                ws.application_name.is_not(None), ws.application_name != APPLICATION
            ),  # as SQLite alone can have them here
        ),
    )
    return or_(is_open_and_stuck, ws.status.is_(None), ws.status.not_in(list(STATES)))


def forget_strange_versions(system: Any) -> None:
    """Delete versions of programs that no worker has registered: one with a time of the future would keep work from all workers."""
    columns, table = Columns(system), system.tables.application_versions
    place = columns.place(table, table.c.version_id)
    is_ours = sqlalchemy.true() if system.engine.dialect.name == "sqlite" else table.c.application_name == APPLICATION
    query = sqlalchemy.select(
        place.label("place"),
        columns.text(table.c.version_name).label("name"),
        columns.number(table.c.version_timestamp).label("time"),
    ).where(is_ours)
    latest = int(time.time() * 1000) + 86_400_000
    for row in columns.fetch(query):
        name, registered = decoded(row["name"]) or "", row["time"]
        if not name.startswith("agentloop-") or registered is None or registered > latest:
            with system.engine.begin() as connection:
                connection.execute(table.delete().where(place == row["place"]))


# --- what DBOS reads --------------------------------------------------------------------------------------------------


class Transact(DBOS):
    """DBOS, which gets no data of the rows that it runs: each of its threads would choose by the row how to read them."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Here, because threads of DBOS start as soon as it has its tables.
        if name == "_sys_db_field" and value is not None:
            _guard(value)
        super().__setattr__(name, value)


def _guard(system: Any) -> None:
    system.get_workflow_statuses = partial(read_sound, system)
    system.list_schedules = partial(_list_sound_schedules, system)


def read_sound(system: Any, workflow_ids: Sequence[Any]) -> Sequence[Mapping[str, Any]]:
    """Return the rows of work as DBOS gets them, in this order, without those that are damaged, which are put aside."""
    found = {row.id: row for row in read_claimed(system, workflow_ids)}
    return [as_dbos_status(found[each]) for each in workflow_ids if each in found]


def read_claimed(system: Any, workflow_ids: Sequence[Any]) -> Sequence[WorkRow]:
    """Return rows of work with what they were queued with, without those that are damaged, which are put aside."""
    sound = []
    condition = system.tables.workflow_status.c.workflow_uuid.in_(list(workflow_ids))
    for row in read_work(system, condition, reads_inputs=True) if workflow_ids else ():
        if row.problem:
            put_aside(system, row)
        else:
            sound.append(row)
    return sound


_NOTHING: Final = dict.fromkeys(
    (
        "config_name",
        "class_name",
        "authenticated_user",
        "authenticated_roles",
        "assumed_role",
        "app_id",
        "workflow_deadline_epoch_ms",
        "workflow_timeout_ms",
        "deduplication_id",
        "forked_from",
        "parent_workflow_id",
        "started_at_epoch_ms",
        "delay_until_epoch_ms",
        "attributes",
        "schedule_name",
        "debounce_deadline_epoch_ms",
        "shard_key",
    )
)


def as_dbos_status(row: WorkRow) -> Mapping[str, Any]:
    """Return a row of work for DBOS: what it is, and no data of it but those of a schedule, written anew."""
    arguments = row.arguments if row.kind is None else (None,)
    names = {value: key for key, value in reversed(STATES.items())}
    return {
        **_NOTHING,
        "workflow_uuid": row.id,
        "status": names[row.state] if row.state is not None else None,
        "name": row.function,
        "recovery_attempts": row.attempts,
        "queue_name": row.queue,
        "executor_id": row.worker,
        "created_at": row.created_at,
        "updated_at": row.created_at,
        "app_version": row.version,
        "priority": 0,
        "inputs": json.dumps({"args": arguments, "kwargs": {}}),
        "queue_partition_key": row.agent or None,
        "serialization": FORMAT,
        "is_debounced": False,
        "application_name": APPLICATION,
    }


# --- schedules --------------------------------------------------------------------------------------------------------


def _list_sound_schedules(system: Any, **_: object) -> Sequence[Mapping[str, Any]]:
    """Return the schedules as DBOS gets them, without those that are damaged: for one that it cannot read, all would stop."""
    return [_as_dbos_schedule(row) for row in read_schedules(system) if not row.problem]


def _as_dbos_schedule(row: ScheduleRow) -> Mapping[str, Any]:
    return {
        "schedule_id": row.id,
        "schedule_name": row.name,
        "workflow_name": SCHEDULED,
        "workflow_class_name": None,
        "schedule": row.cron,
        "status": "ACTIVE",
        "context": json.dumps(row.job),
        "last_fired_at": None,
        "automatic_backfill": False,
        "cron_timezone": None,
        "queue_name": None,
        "application_name": APPLICATION,
        "shard_key": None,
    }


# --- queues -----------------------------------------------------------------------------------------------------------


def list_sound_queues(system: Any) -> tuple[Sequence[Queue], Sequence[str]]:
    """Return the queues, and the names of those that are damaged; the queues are read one by one if one of them stops DBOS."""
    names, damaged = list_queue_names(system)
    try:
        found = [queue for queue in system.list_queues(application_name=APPLICATION) if queue.name in names]
    except (TypeError, ValueError, sqlalchemy.exc.OperationalError) as error:
        logger.debug("the queues are read one by one: %s", error)
        found = [queue for name in names for queue in [system.get_queue(name)] if queue is not None]
    return found, damaged


# --- what the database refuses ----------------------------------------------------------------------------------------


def refuse_other_formats(system: Any) -> None:
    """Let the database refuse data of another format, where the role may change its tables; rows with such data are put aside."""
    try:
        if system.engine.dialect.name == "sqlite":
            _create_triggers(system)
        else:
            _create_constraint(system)
    except sqlalchemy.exc.DBAPIError as error:
        # Each reader checks the format itself.
        logger.debug("the database does not check the format of data: %s", error)


def _create_triggers(system: Any) -> None:
    # SQLite cannot add a constraint to a table. An update of other columns passes, so that a row from before does not hold up others.
    tables = [table.name for table in system.tables.metadata_obj.tables.values() if "serialization" in table.c]
    count = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name LIKE 'agentloop_format_%'"
    with system.engine.begin() as connection:
        if connection.exec_driver_sql(count).scalar_one() == 2 * len(tables):
            return
        for table in tables:
            for action in ("INSERT", "UPDATE OF serialization"):
                connection.exec_driver_sql(
                    f"CREATE TRIGGER IF NOT EXISTS agentloop_format_{action.split()[0].lower()}_{table} BEFORE {action} ON {table} "
                    f"WHEN NEW.serialization IS NOT NULL AND NEW.serialization <> '{FORMAT}' "
                    f"BEGIN SELECT RAISE(ABORT, 'agentloop stores data as {FORMAT} only'); END"
                )
    _put_aside_other_formats(system)


def _create_constraint(system: Any) -> None:
    table = f'"{system.schema}".workflow_status'
    exists = f"SELECT count(*) FROM pg_constraint WHERE conname = '{_CONSTRAINT}' AND conrelid = '{table}'::regclass"  # noqa: S608  # constants
    with system.engine.begin() as connection:
        if connection.exec_driver_sql(exists).scalar_one():
            return
    with system.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")
        # Rows of other programs in the table may have another format. Without a look at the rows from before, the lock is short.
        connection.exec_driver_sql(
            f"ALTER TABLE {table} ADD CONSTRAINT {_CONSTRAINT} CHECK (serialization IS NULL OR serialization = '{FORMAT}' "
            f"OR (application_name IS DISTINCT FROM '{APPLICATION}' AND (name IS NULL OR left(name, 10) <> 'agentloop.'))) NOT VALID"
        )
    _put_aside_other_formats(system)


_CONSTRAINT: Final = "agentloop_format"


def _put_aside_other_formats(system: Any) -> None:
    """Put aside the rows from before, each of which could otherwise make an update of many rows fail."""
    column = system.tables.workflow_status.c.serialization
    put_aside_all(system, _is_ours(system), column.is_not(None), column != FORMAT)
