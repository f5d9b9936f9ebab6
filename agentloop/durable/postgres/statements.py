"""The statements of a journal in PostgreSQL: reading, appending, deleting and commands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import define, evolve, field, frozen
from attrs.converters import optional

from agentloop.durable.bodies import read_command
from agentloop.durable.chain import (
    EMPTY_CHAIN,
    JournalFinding,
    check_follows,
    claim_conflict,
    number_conflict,
    superseded,
)
from agentloop.durable.postgres.connections import DatabaseConnection, StatementFailed
from agentloop.durable.postgres.rows import (
    HEAD_NAMES,
    RECORD_COLUMNS,
    common_start,
    decode_text,
    encode_hash,
    encode_id,
    encode_text,
    head_values,
    read_head_row,
    read_record_row,
    seal_of,
)
from agentloop.durable.prefixes import MAX_TRIES, SharedBody, StoredPart, share_body
from agentloop.durable.spills import Deletion, collect_spills, read_reference, split_body
from agentloop.durable.trees import ExecutionTree, check_deletable, group_trees, root_of, sources_of_forks
from agentloop.errors import JournalBusy, JournalCorrupt
from agentloop.values.commands import ExecutionCommand
from agentloop.values.json import parse_json
from agentloop.values.records import FIRST_HASH, ExecutionHead, JournalRecord, callers_of, parse_cursor
from agentloop.values.serialization import to_json
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import to_microseconds

_ENDED = sorted(status.value for status in ExecutionStatus if status.is_terminal)
_UNFINISHED = sorted(status.value for status in ExecutionStatus if not status.is_terminal)
_HEAD = ", ".join(HEAD_NAMES)
_NEWEST_FIRST = "started_at DESC, number DESC, execution_id DESC"
# Nothing ends before it starts; the index is one of starts, as one of updates would have to follow each append.
_EXPIRED = "status = ANY(%(ended)s) AND started_at < %(before)s AND updated_at < %(before)s"
_PAGE_SIZE = 500
_UNIQUE_VIOLATION = "23505"
_MAX_ATTEMPTS = 5
_MAX_LIMIT = 2**63 - 1
"""The largest number that LIMIT takes."""
_END = "\U0010ffff" * 250
"""What no stored id, of at most 965 bytes, has behind a prefix, or anything greater."""


def _clamp_limit(limit: int) -> int:
    return max(0, min(limit, _MAX_LIMIT))


@frozen(kw_only=True)
class HeadSelection:
    """Which executions to list, newest first.

    Attributes:
        agent_id: only executions of this agent.
        statuses: only executions with one of these statuses; None for all.
        prefix: only executions whose ids start with this.
        unclaimed: only executions that no live writer has claimed.
        after: only executions behind this position; None for all.
        limit: the maximum number of results; a negative one is 0, one that PostgreSQL does not take the largest that it does.
    """

    agent_id: str | None = None
    statuses: Collection[ExecutionStatus] | None = None
    prefix: str = ""
    unclaimed: bool = False
    after: tuple[int, int, str] | None = None
    limit: int | None = field(default=None, converter=optional(_clamp_limit))


class Statements:
    """The statements for the tables of one schema.

    Args:
        schema: the quoted name of the schema.
        is_free: the SQL condition that no live writer holds the claim `c`.
    """

    def __init__(self, schema: str, is_free: str) -> None:
        self.schema: str = schema
        self._is_free = is_free
        first, following = _append_statements(schema)
        self.append_first: str = first
        self.append_next: str = following

    # --- reading ---

    async def read_head(self, connection: DatabaseConnection, execution_id: str) -> ExecutionHead | None:
        """Return the summary of an execution; None when there is no execution of this id."""
        rows = await connection.rows(
            f"SELECT {_HEAD} FROM {self.schema}.executions WHERE execution_id = %(id)s",  # noqa: S608  # constants only
            {"id": encode_id(execution_id)},
        )
        return read_head_row(rows[0]) if rows else None

    async def read_records(
        self, connection: DatabaseConnection, execution_id: str, after: int, objects: Mapping[str, str]
    ) -> Sequence[JournalRecord]:
        """Return the records of an execution after a sequence number, in order.

        Args:
            connection: the connection.
            execution_id: the execution.
            after: the sequence number.
            objects: the texts of objects that were fetched, by digest.

        Raises:
            ObjectsNeeded: the texts of other objects are needed.
        """
        values: dict[str, object] = {"id": encode_id(execution_id), "after": max(after, 0)}
        rows = await connection.rows(
            f"SELECT {RECORD_COLUMNS}, CASE sequence WHEN 1 THEN {select_prefix(self.schema)} END "  # noqa: S608  # constants only
            f"FROM {self.schema}.executions AS e JOIN {self.schema}.records USING (key) "
            "WHERE execution_id = %(id)s AND sequence > %(after)s ORDER BY sequence",
            values,
        )
        cuts = [row[5] for row in rows if row[5]]
        spills = collect_spills(await self._read_spills(connection, execution_id), cuts, objects) if cuts else {}
        return tuple([read_record_row(execution_id, row, spills) for row in rows])

    async def _read_spills(self, connection: DatabaseConnection, execution_id: str) -> Sequence[tuple[str, object]]:
        rows = await connection.rows(
            f"SELECT digest, data FROM {self.schema}.spills WHERE key = "  # noqa: S608  # constants only
            f"(SELECT key FROM {self.schema}.executions WHERE execution_id = %(id)s)",
            {"id": encode_id(execution_id)},
        )
        return [(digest.hex(), data) for digest, data in rows]

    async def find_new_spills(
        self, connection: DatabaseConnection, head: ExecutionHead, records: Sequence[JournalRecord], max_length: int
    ) -> Mapping[str, str]:
        """Return the parts of records that an append will spill, by digest, without those that are stored.

        It may differ from what the append finds when other executions of the agent are deleted meanwhile.
        """
        spills: dict[str, str] = {}
        for record in records:
            text = record.body
            if record.sequence == 1:
                text = (await share_prefix(connection, self.schema, head, text)).rest
            spills.update(split_body(text, max_length).spills)
        rows = await connection.rows(
            f"SELECT digest FROM {self.schema}.spills WHERE key = "  # noqa: S608  # constants only
            f"(SELECT key FROM {self.schema}.executions WHERE execution_id = %(id)s)",
            {"id": encode_id(head.execution_id)},
        )
        return {digest: spills[digest] for digest in spills.keys() - {digest.hex() for (digest,) in rows}}

    async def list_heads(self, connection: DatabaseConnection, selection: HeadSelection) -> Sequence[ExecutionHead]:
        """Return the summaries of executions, newest first."""
        statuses: Sequence[str | None] = (
            (None,) if selection.statuses is None else sorted(status.value for status in selection.statuses)
        )
        if not statuses:
            return ()
        # One ordered query for each status, so that each follows its index and reads no more rows than are needed.
        values = _filter_values(selection)
        queries = []
        for index, status in enumerate(statuses):
            values[f"status_{index}"] = status
            queries.append(f"({self._select_heads(selection, index if status else None)})")
        query = " UNION ALL ".join(queries)
        if len(queries) > 1:
            query = f"SELECT * FROM ({query}) AS merged ORDER BY {_NEWEST_FIRST} LIMIT %(limit)s"  # noqa: S608  # constants only
        heads = [read_head_row(row) for row in await connection.rows(query, values)]
        # Of a long prefix, the statement has compared the beginning only.
        return tuple([head for head in heads if head.execution_id.startswith(selection.prefix)][: selection.limit])

    def _select_heads(self, selection: HeadSelection, status: int | None) -> str:
        conditions = [
            *(["agent_id = %(agent_id)s"] if selection.agent_id is not None else []),
            *([f"status = %(status_{status})s"] if status is not None else []),
            *(["e.execution_id >= %(from)s AND e.execution_id < %(to)s"] if selection.prefix else []),
        ]
        if selection.after is not None:
            conditions.append(
                "(started_at, number, e.execution_id) < (%(started_at)s::bigint, %(number)s::bigint, %(after_id)s::text)"
            )
        source = f"{self.schema}.executions AS e"
        if selection.unclaimed:
            source += f" LEFT JOIN {self.schema}.claims AS c ON c.execution_id = e.execution_id"
            conditions.append(self._is_free)
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        names = ", ".join([f"e.{name}" for name in HEAD_NAMES])
        order = "e.started_at DESC, e.number DESC, e.execution_id DESC"
        return f"SELECT {names} FROM {source} {where}ORDER BY {order} LIMIT %(limit)s"  # noqa: S608  # constants only

    async def list_execution_ids(self, connection: DatabaseConnection) -> Sequence[str]:
        """Return the ids of all executions, newest first; also of those whose heads cannot be read."""
        rows = await connection.rows(
            f"SELECT execution_id, long_ids FROM {self.schema}.executions ORDER BY {_NEWEST_FIRST}"  # noqa: S608  # constants only
        )
        return [_full_id(*row) for row in rows]

    # --- verification ---

    async def find_changed_heads(
        self, connection: DatabaseConnection, execution_id: str | None
    ) -> Sequence[JournalFinding]:
        """Return the heads that were changed after they were written."""
        where = "" if execution_id is None else "WHERE execution_id = %(id)s"
        rows = await connection.rows(
            f"SELECT {_HEAD}, seal FROM {self.schema}.executions {where}",  # noqa: S608  # constants only
            None if execution_id is None else {"id": encode_id(execution_id)},
        )
        return [
            JournalFinding(str(row[0]), 0, "the head was changed after it was written")
            for *row, seal in rows
            if seal_of(row) != seal
        ]

    # --- trees ---

    async def read_tree(self, connection: DatabaseConnection, execution_id: str) -> Sequence[str]:
        """Return the ids of an execution and of all executions below it, ordered by id; empty when it is not a recorded root."""
        if await self.read_root(connection, execution_id) != execution_id:
            return ()
        start = common_start(f"{execution_id}/")
        rows = await connection.rows(
            f"SELECT execution_id, long_ids FROM {self.schema}.executions "  # noqa: S608  # constants only
            "WHERE execution_id >= %(from)s AND execution_id < %(to)s",
            {"from": start, "to": start + _END},
        )
        ids = sorted([_full_id(*row) for row in rows])
        return (execution_id, *[below for below in ids if execution_id in callers_of(below)])

    async def read_root(self, connection: DatabaseConnection, execution_id: str) -> str:
        """Return the id of the root of an execution's tree; empty when the execution is not recorded."""
        candidates = {encode_id(each): each for each in (execution_id, *callers_of(execution_id))}
        rows = await connection.rows(
            f"SELECT execution_id FROM {self.schema}.executions WHERE execution_id = ANY(%(ids)s)",  # noqa: S608  # constants only
            {"ids": list(candidates)},
        )
        recorded = {candidates[stored] for (stored,) in rows}
        return root_of(execution_id, recorded.__contains__) if execution_id in recorded else ""

    async def list_expired(
        self, connection: DatabaseConnection, before: int, after: tuple[int, int, str] | None
    ) -> Sequence[tuple[str, tuple[int, int, str]]]:
        """Return some executions that have ended and were last updated before a time, oldest first: their ids and positions.

        Args:
            connection: the connection.
            before: the time, in microseconds since 1970.
            after: the position behind which to begin; None for the oldest one.
        """
        started_at, number, after_id = after or (-(2**63), 0, "")
        rows = await connection.rows(
            f"SELECT execution_id, long_ids, started_at, number FROM {self.schema}.executions WHERE {_EXPIRED} "  # noqa: S608  # constants only
            "AND (started_at, number, execution_id) > (%(started_at)s::bigint, %(number)s::bigint, %(after_id)s::text) "
            f"ORDER BY started_at, number, execution_id LIMIT {_PAGE_SIZE}",
            {"ended": _ENDED, "before": before, "started_at": started_at, "number": number, "after_id": after_id},
        )
        return [(_full_id(*row[:2]), (row[2], row[3], row[0])) for row in rows]

    async def read_expired_trees(self, connection: DatabaseConnection, before: datetime) -> Sequence[ExecutionTree]:
        """Return the trees that have ended and were last updated before a time, newest first."""
        values: dict[str, object] = {"ended": _ENDED, "before": to_microseconds(before)}
        ended = f"SELECT * FROM {self.schema}.executions WHERE {_EXPIRED}"  # noqa: S608  # constants only
        below = ", ".join([f"below.{name}" for name in HEAD_NAMES])
        # Stored ids of long ones have a digest behind their beginning, so that those below them begin like that only.
        rows = await connection.rows(
            f'WITH ended AS ({ended}), starts AS (SELECT execution_id, split_part(execution_id, chr(1), 1) COLLATE "C" AS start '  # noqa: S608  # constants only
            f"FROM ended) SELECT {_HEAD} FROM ended UNION SELECT {below} FROM starts JOIN {self.schema}.executions AS below "
            "ON below.execution_id >= start || CASE WHEN start = starts.execution_id THEN '/' ELSE '' END "
            f"AND below.execution_id < start || CASE WHEN start = starts.execution_id THEN '0' ELSE '{_END}' END",
            values,
        )
        heads = [read_head_row(row) for row in rows]
        callers = {caller for head in heads for caller in callers_of(head.execution_id)}
        rows = await connection.rows(
            f"SELECT {_HEAD} FROM {self.schema}.executions WHERE execution_id = ANY(%(ids)s)",  # noqa: S608  # constants only
            {"ids": [encode_id(caller) for caller in callers]},
        )
        by_id = {head.execution_id: head for head in [*heads, *map(read_head_row, rows)]}
        newest = sorted(by_id.values(), key=lambda head: parse_cursor(head.cursor), reverse=True)
        needed = await self.read_sources_of_forks(connection)
        trees = [evolve(tree, needed_by=needed.get(tree.root.execution_id, "")) for tree in group_trees(newest)]
        return [tree for tree in trees if tree.is_expired(before)]

    async def read_sources_of_forks(self, connection: DatabaseConnection) -> Mapping[str, str]:
        """Return the ids of the executions whose records unfinished forks need, each with the id of such a fork."""
        rows = await connection.rows(
            "WITH RECURSIVE forks AS ("  # noqa: S608  # constants only
            f"SELECT execution_id, forked_from, long_ids, status FROM {self.schema}.executions "
            "WHERE forked_from <> '' AND status = ANY(%(unfinished)s) UNION "
            "SELECT e.execution_id, e.forked_from, e.long_ids, e.status "
            f"FROM forks JOIN {self.schema}.executions AS e ON e.execution_id = forks.forked_from) "
            "SELECT execution_id, long_ids, forked_from, status FROM forks",
            {"unfinished": _UNFINISHED},
        )
        sources = {_full_id(stored, long): _full_id(source, long, "forked_from") for stored, long, source, _ in rows}
        unfinished = [_full_id(row[0], row[1]) for row in rows if row[3] in _UNFINISHED]
        forks = [(each, sources[each]) for each in unfinished if sources[each]]
        return sources_of_forks(forks, lambda source: sources.get(source, ""))

    async def is_expired(self, connection: DatabaseConnection, tree: Sequence[str], before: int) -> bool:
        """Return whether a tree has ended and was last updated before a time."""
        rows = await connection.rows(
            f"SELECT execution_id, status, updated_at FROM {self.schema}.executions "  # noqa: S608  # constants only
            "WHERE execution_id = ANY(%(ids)s)",
            {"ids": [encode_id(each) for each in tree]},
        )
        statuses = {stored: status for stored, status, _ in rows}
        return statuses.get(encode_id(tree[0])) in _ENDED and all(updated_at < before for *_, updated_at in rows)

    # --- deleting ---

    async def delete_tree(self, connection: DatabaseConnection, execution_id: str) -> Deletion:
        """Delete an execution and all executions below it, with all their records; return what was deleted.

        Raises:
            JournalConflict: a live writer has claimed one of them, it serves a call of another execution, or an unfinished fork
                needs it; nothing was written.
        """
        async with connection.transaction():
            root = await self.read_root(connection, execution_id)
            if not root:
                await self._lock_claims(connection, [execution_id])
                return Deletion()
            tree = await self.read_tree(connection, root)
            await self._lock_claims(connection, tree)
            check_deletable(execution_id, root, (await self.read_sources_of_forks(connection)).get(root, ""))
            await self._check_complete(connection, tree)
            keys = await self._delete(connection, tree)
        return Deletion(tree, keys)

    async def delete_expired(self, connection: DatabaseConnection, root: str, before: int) -> Deletion:
        """Delete a tree if it has ended and was last updated before a time; return what was deleted.

        Raises:
            JournalConflict: a live writer has claimed an execution of it; nothing was written.
        """
        async with connection.transaction():
            tree = await self.read_tree(connection, root)
            if not tree or not await self.is_expired(connection, tree, before):
                return Deletion()
            await self._lock_claims(connection, tree)
            await self._check_complete(connection, tree)
            # Again: another writer may have resumed it before it was locked.
            if not await self.is_expired(connection, tree, before):
                return Deletion()
            if root in await self.read_sources_of_forks(connection):
                return Deletion()
            keys = await self._delete(connection, tree)
        return Deletion(tree, keys)

    async def _lock_claims(self, connection: DatabaseConnection, ids: Iterable[str]) -> None:
        """Keep others from claiming executions until the end of the transaction."""
        stored = {encode_id(each): each for each in ids}
        rows = await connection.rows(
            f"INSERT INTO {self.schema}.claims AS c (execution_id, token, session) "  # noqa: S608  # constants only
            f"SELECT id, nextval('{self.schema}.tokens'), NULL FROM unnest(%(ids)s::text[]) AS id ORDER BY id "
            "ON CONFLICT (execution_id) DO UPDATE SET token = greatest(c.token + 1, excluded.token), session = NULL "
            f"WHERE {self._is_free} RETURNING c.execution_id",
            {"ids": sorted(stored)},
        )
        for claimed in stored.keys() - {row[0] for row in rows}:
            raise claim_conflict(stored[claimed])

    async def _check_complete(self, connection: DatabaseConnection, tree: Sequence[str]) -> None:
        for started in set(await self.read_tree(connection, tree[0])).difference(tree):
            raise claim_conflict(started)

    async def _delete(self, connection: DatabaseConnection, tree: Sequence[str]) -> Sequence[str]:
        """Delete executions; return the keys of the objects to which their records referred."""
        values = {"ids": [encode_id(each) for each in tree]}
        references = await connection.rows(
            f"SELECT data FROM {self.schema}.spills JOIN {self.schema}.executions USING (key) "  # noqa: S608  # constants only
            "WHERE execution_id = ANY(%(ids)s) AND data >= '\\xff'::bytea",
            values,
        )
        rows = await connection.rows(
            f"DELETE FROM {self.schema}.executions WHERE execution_id = ANY(%(ids)s) RETURNING prefix",  # noqa: S608  # constants only
            values,
        )
        await delete_unused_parts(connection, self.schema, {prefix for (prefix,) in rows if prefix is not None})
        for table in ("commands", "claims"):
            await connection.rows(
                f"DELETE FROM {self.schema}.{table} WHERE execution_id = ANY(%(ids)s)",  # noqa: S608  # constants only
                values,
            )
        return [key for (data,) in references if (key := read_reference(data))]

    async def delete_unused_claims(self, connection: DatabaseConnection) -> None:
        """Delete the claims on executions that do not exist."""
        await connection.rows(
            f"DELETE FROM {self.schema}.claims AS c WHERE c.session IS NULL AND NOT EXISTS "  # noqa: S608  # constants only
            f"(SELECT FROM {self.schema}.executions AS e WHERE e.execution_id = c.execution_id)"
        )

    # --- commands ---

    async def post_command(self, connection: DatabaseConnection, command: ExecutionCommand, channel: str) -> None:
        """Store a command, unless one of this id was posted before, and tell those who listen."""
        await connection.rows(
            # Numbers are drawn in the order of commits: a reader never finds a command before one that it has seen.
            "WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock(hashtextextended(%(lock)s::text, 0))), "  # noqa: S608  # constants only
            f"posted AS (INSERT INTO {self.schema}.commands (id, execution_id, body) "
            "SELECT %(id)s::text, %(execution_id)s::text, %(body)s::bytea FROM locked "
            "ON CONFLICT (id) DO NOTHING RETURNING execution_id) "
            "SELECT pg_notify(%(channel)s, '0 ' || execution_id) FROM posted",
            {
                "lock": f"agentloop/commands/{channel}/{encode_id(command.execution_id)}",
                "id": encode_id(command.id),
                "execution_id": encode_id(command.execution_id),
                "body": to_json(command),
                "channel": channel,
            },
        )

    async def read_commands(self, connection: DatabaseConnection, ids: Iterable[str]) -> Sequence[ExecutionCommand]:
        """Return the commands for executions that are not finished, in the order in which they were posted."""
        by_stored_id = {encode_id(each): each for each in ids}
        rows = await connection.rows(
            f"SELECT body, execution_id FROM {self.schema}.commands "  # noqa: S608  # constants only
            "WHERE execution_id = ANY(%(ids)s) AND NOT is_finished ORDER BY sequence",
            {"ids": list(by_stored_id)},
        )
        return tuple([read_command(body, by_stored_id[stored]) for body, stored in rows])

    async def read_unfinished(self, connection: DatabaseConnection, prefix: str) -> Sequence[ExecutionCommand]:
        """Return the commands that are not finished, for all ids that start with a text, in the order in which they were posted."""
        start = common_start(prefix)
        rows = await connection.rows(
            f"SELECT body, execution_id FROM {self.schema}.commands WHERE NOT is_finished "  # noqa: S608  # constants only
            "AND execution_id >= %(from)s AND execution_id < %(to)s ORDER BY sequence",
            {"from": start, "to": start + _END},
        )
        commands = [read_command(body, stored) for body, stored in rows]
        return tuple([command for command in commands if command.execution_id.startswith(prefix)])

    async def forget_commands(self, connection: DatabaseConnection, ids: Iterable[str]) -> None:
        """Delete commands, whose ids nobody posts again."""
        await connection.rows(
            f"DELETE FROM {self.schema}.commands WHERE id = ANY(%(ids)s)",  # noqa: S608  # constants only
            {"ids": [encode_id(each) for each in ids]},
        )

    async def finish_commands(self, connection: DatabaseConnection, ids: Iterable[str]) -> None:
        """Mark commands as finished, and remember their ids."""
        await connection.rows(
            f"UPDATE {self.schema}.commands SET is_finished = true, body = '' "  # noqa: S608  # constants only
            "WHERE id = ANY(%(ids)s) AND NOT is_finished",
            {"ids": [encode_id(each) for each in ids]},
        )


def _full_id(stored: str, long_ids: bytes | None, name: str = "execution_id") -> str:
    """Return a whole id. The column has only the start of a long id.

    Raises:
        JournalCorrupt: the long ids cannot be read.
    """
    if not long_ids:
        return stored
    try:
        return str(parse_json(long_ids).get(name, stored))
    except (ValueError, AttributeError) as error:
        raise JournalCorrupt(
            f"the long ids of execution {stored} cannot be read: {error}", execution_id=stored
        ) from error


def _filter_values(selection: HeadSelection) -> dict[str, object]:
    start = common_start(selection.prefix)
    started_at, number, after_id = selection.after or (0, 0, "")
    return {
        "agent_id": None if selection.agent_id is None else encode_id(selection.agent_id),
        "from": start,
        "to": start + _END,
        "started_at": started_at,
        "number": number,
        "after_id": encode_id(after_id),
        "limit": None if start != selection.prefix else selection.limit,
    }


# --- appending --------------------------------------------------------------------------------------------------------

_RECORD_ARRAYS = (
    "%(sequences)s::int[], %(kinds)s::text[], %(times)s::text[], %(versions)s::int[], %(bodies)s::bytea[], "
    "%(cuts)s::text[], %(previous)s::bytea[], %(hashes)s::bytea[]"
)
_STORED_NAMES = (*HEAD_NAMES, "seal")


def _append_statements(schema: str) -> tuple[str, str]:
    """Return the statements that append the first and later records of an execution; each is one transaction.

    The claim is locked until the transaction ends: a take-over waits for it, or it for the take-over, whose token it then sees.
    """
    held = (
        f"held AS MATERIALIZED (SELECT 1 FROM {schema}.claims "  # noqa: S608  # constants only
        "WHERE execution_id = %(execution_id)s AND token = %(token)s FOR SHARE)"
    )
    columns = ", ".join(_STORED_NAMES)
    inserted = (
        f"head AS (INSERT INTO {schema}.executions ({columns}, prefix) "  # noqa: S608  # constants only
        f"SELECT {', '.join([f'%({name})s' for name in _STORED_NAMES])}, CASE WHEN %(part)s::bytea IS NULL "
        f"THEN %(parent)s::bigint ELSE nextval(pg_get_serial_sequence('{schema}.prefixes', 'id')) END "
        "FROM held ON CONFLICT DO NOTHING RETURNING key, prefix), "
        f"part AS (INSERT INTO {schema}.prefixes (id, parent, length, digest, data) SELECT prefix, %(parent)s::bigint, "
        "%(part_length)s::int, %(part_digest)s::bytea, %(part)s::bytea FROM head WHERE %(part)s::bytea IS NOT NULL)"
    )
    updated = (
        f"head AS (UPDATE {schema}.executions SET "  # noqa: S608  # constants only
        f"{', '.join([f'{name} = %({name})s' for name in _STORED_NAMES[1:]])} FROM held "
        "WHERE execution_id = %(execution_id)s AND executions.record_count = %(after)s "
        "AND executions.last_hash = %(after_hash)s RETURNING key)"
    )
    records = (
        f"stored AS (INSERT INTO {schema}.records (key, {RECORD_COLUMNS}) "  # noqa: S608  # constants only
        f"SELECT head.key, r.* FROM head, unnest({_RECORD_ARRAYS}) AS r), "
        f"spilled AS (INSERT INTO {schema}.spills (key, digest, data) "
        "SELECT head.key, s.* FROM head, unnest(%(digests)s::bytea[], %(data)s::bytea[]) AS s ON CONFLICT DO NOTHING)"
    )
    return tuple([f"WITH {held}, {head}, {records} SELECT count(*) FROM head" for head in (inserted, updated)])  # type: ignore[return-value]  # noqa: S608  # there are two


@define(eq=False)
class RecordAppend:
    """The action that appends records to a chain. It can be run again: what an earlier run has stored counts.

    Attributes:
        statements: the statements.
        head: the summary of the execution after the records.
        records: one or more records of the execution, chained to each other.
        token: the token of the claim.
        max_length: the maximum length of a body in its row, in characters.
        references: the data of the spills that are stored as objects, by digest.
        is_uncertain: whether an earlier append of these records may have been stored without an answer.
    """

    statements: Statements
    head: ExecutionHead
    records: Sequence[JournalRecord]
    token: int
    max_length: int
    references: Mapping[str, bytes] = field(factory=dict)
    is_uncertain: bool = False
    _is_first_run: bool = field(default=True, init=False)

    async def __call__(self, connection: DatabaseConnection) -> None:
        """Append the records.

        Raises:
            ClaimLost: a later claim was made; nothing was written.
            JournalConflict: the records do not follow the last stored one; nothing was written.
            StatementFailed: a statement failed.
        """
        self.is_uncertain = self.is_uncertain or not self._is_first_run
        self._is_first_run = False
        for _ in range(_MAX_ATTEMPTS):
            if not self.records or await self._store(connection):
                return
            await self._explain(connection)
        raise JournalBusy(f"execution {self.head.execution_id} was changed by other writers meanwhile")

    async def _store(self, connection: DatabaseConnection) -> bool:
        first = self.records[0]
        is_first = first.sequence == 1
        if is_first and first.previous_hash != FIRST_HASH:
            return False
        statement = self.statements.append_first if is_first else self.statements.append_next
        body, values = first.body, self._values()
        if is_first:
            shared = await share_prefix(connection, self.statements.schema, self.head, body)
            body, values = shared.rest, {**values, **prefix_values(shared)}
        values |= self._body_values(body)
        try:
            ((count,),) = await connection.rows(statement, values)
        except StatementFailed as failure:
            if failure.state == _UNIQUE_VIOLATION:
                return False
            raise
        return bool(count)

    def _values(self) -> dict[str, object]:
        first = self.records[0]
        return {
            **head_values(self.head),
            "token": self.token,
            "after": first.sequence - 1,
            "after_hash": encode_hash(first.previous_hash),
            "sequences": [record.sequence for record in self.records],
            "kinds": [record.kind.value for record in self.records],
            "times": [record.at.isoformat() for record in self.records],
            "versions": [record.schema_version for record in self.records],
            "previous": [encode_hash(record.previous_hash) for record in self.records],
            "hashes": [encode_hash(record.hash) for record in self.records],
        }

    def _body_values(self, first_body: str) -> dict[str, object]:
        """Return the values of the bodies, that of the first record without what it shares with others."""
        texts = [first_body, *[record.body for record in self.records[1:]]]
        bodies = [split_body(text, self.max_length) for text in texts]
        spills = {digest: data for body in bodies for digest, data in body.spills.items()}
        return {
            "bodies": [encode_text(body.rest) for body in bodies],
            "cuts": [body.cuts for body in bodies],
            "digests": [encode_hash(digest) for digest in spills],
            "data": [self.references.get(digest) or encode_text(data) for digest, data in spills.items()],
        }

    async def _explain(self, connection: DatabaseConnection) -> None:
        """Find out why nothing was stored; leave out the records that an earlier run has stored.

        Raises:
            ClaimLost: a later claim was made.
            JournalConflict: the records do not follow the last stored one.
        """
        head, schema = self.head, self.statements.schema
        values: dict[str, Any] = {"id": encode_id(head.execution_id), "agent_id": encode_id(head.agent_id)}
        rows = await connection.rows(
            f"SELECT record_count, last_hash FROM {schema}.executions WHERE execution_id = %(id)s",  # noqa: S608  # constants only
            values,
        )
        count, last_hash = (rows[0][0], rows[0][1].hex()) if rows else EMPTY_CHAIN
        if self.is_uncertain and await self._skip_stored(connection, values):
            return
        tokens = await connection.rows(
            f"SELECT token FROM {schema}.claims WHERE execution_id = %(id)s",  # noqa: S608  # constants only
            values,
        )
        newest = tokens[0][0] if tokens else 0
        if newest != self.token:
            raise superseded(head.execution_id, self.token, newest)
        check_follows(self.records[0], count, last_hash)
        taken = await connection.rows(
            f"SELECT 1 FROM {schema}.executions "  # noqa: S608  # constants only
            "WHERE agent_id = %(agent_id)s AND number = %(number)s AND execution_id <> %(id)s",
            {**values, "number": head.number},
        )
        if taken:
            raise number_conflict(head)

    async def _skip_stored(self, connection: DatabaseConnection, values: Mapping[str, object]) -> bool:
        """Leave out the first records if they are stored; return whether some are."""
        rows = await connection.rows(
            f"SELECT sequence, hash FROM {self.statements.schema}.records "  # noqa: S608  # constants only
            f"WHERE key = (SELECT key FROM {self.statements.schema}.executions WHERE execution_id = %(id)s) "
            "AND sequence = ANY(%(sequences)s::int[])",
            {**values, "sequences": [record.sequence for record in self.records]},
        )
        stored = {sequence: stored_hash.hex() for sequence, stored_hash in rows}
        remaining = [record for record in self.records if stored.get(record.sequence) != record.hash]
        has_skipped = len(remaining) < len(self.records)
        self.records = remaining
        return has_skipped


# --- shared beginnings ----------------------------------------------------------------------------------------------


async def share_prefix(connection: DatabaseConnection, schema: str, head: ExecutionHead, body: str) -> SharedBody:
    """Return what the body of an execution's first record shares with that of the agent's execution before it.

    Raises:
        StatementFailed: the parts cannot be read.
    """
    if head.number == 1:
        return SharedBody(None, "", body, 0, b"")
    rows = await connection.rows(
        "WITH RECURSIVE previous AS ("  # noqa: S608  # constants only
        f"SELECT prefix, body, cuts FROM {schema}.executions JOIN {schema}.records USING (key) "
        "WHERE agent_id = %(agent_id)s AND number = %(number)s AND sequence = 1), "
        "parts (id, parent, length, digest, tries) AS ("
        f"SELECT id, parent, length, digest, 1 FROM {schema}.prefixes WHERE id = (SELECT prefix FROM previous) UNION ALL "
        f"SELECT p.id, p.parent, p.length, p.digest, parts.tries + 1 FROM parts JOIN {schema}.prefixes AS p "
        "ON p.id = parts.parent WHERE p.id < parts.id AND parts.tries < %(tries)s) "
        "SELECT body, cuts, id, length, digest FROM previous LEFT JOIN parts ON true ORDER BY length DESC",
        {"agent_id": encode_id(head.agent_id), "number": head.number - 1, "tries": MAX_TRIES},
    )
    if not rows:
        return SharedBody(None, "", body, 0, b"")
    parts = [StoredPart(*row[2:]) for row in rows if row[2] is not None]
    rest, cuts = rows[0][:2]
    try:
        return share_body(body, parts, None if cuts else decode_text(rest))
    except UnicodeDecodeError:
        return SharedBody(None, "", body, 0, b"")  # nothing is shared with a damaged record


def prefix_values(shared: SharedBody) -> dict[str, object]:
    """Return the values of what a first record shares by the names in the statement that appends it."""
    return {
        "parent": shared.prefix,
        "part": encode_text(shared.part) if shared.part else None,
        "part_length": shared.length,
        "part_digest": shared.digest,
    }


def select_prefix(schema: str) -> str:
    """Return the SQL of the beginning of the body of the first record of the execution `e`."""
    return (
        "(WITH RECURSIVE chain (id, parent, length, data) AS ("  # noqa: S608  # constants only
        f"SELECT id, parent, length, data FROM {schema}.prefixes WHERE id = e.prefix UNION ALL "
        f"SELECT p.id, p.parent, p.length, p.data FROM chain JOIN {schema}.prefixes AS p "
        "ON p.id = chain.parent WHERE p.id < chain.id) SELECT string_agg(data, ''::bytea ORDER BY length) FROM chain)"
    )


async def delete_unused_parts(connection: DatabaseConnection, schema: str, parts: Collection[int]) -> None:
    """Delete parts that nothing names, and those before them that nothing else names.

    Args:
        connection: a connection in a transaction.
        schema: the quoted name of the schema.
        parts: the last parts of the beginnings of deleted executions.

    Raises:
        StatementFailed: another transaction names one of them meanwhile.
    """
    unused = list(parts)
    while unused:
        rows = await connection.rows(
            f"DELETE FROM {schema}.prefixes AS p WHERE id = ANY(%(ids)s::bigint[]) "  # noqa: S608  # constants only
            f"AND NOT EXISTS (SELECT FROM {schema}.executions AS e WHERE e.prefix = p.id) "
            f"AND NOT EXISTS (SELECT FROM {schema}.prefixes AS n WHERE n.parent = p.id) RETURNING parent",
            {"ids": unused},
        )
        unused = [parent for (parent,) in rows if parent is not None]
