"""What the statements of a `PostgresJournal` do on a simulated server; a test compares them with a real one, row by row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from attrs import define

from agentloop.durable.postgres.connections import StatementFailed
from agentloop.durable.postgres.rows import HEAD_NAMES
from agentloop.durable.postgres.schema import MIGRATIONS, VERSION
from agentloop.durable.postgres.session import RESTART_SECONDS
from agentloop.durable.postgres.statements import _END, _HEAD, _PAGE_SIZE, _STORED_NAMES
from agentloop.testing.simulation.postgres_server import Row, StatementFunction, Stored, Transaction, Values

_SCHEMA = re.compile(r'"\w+"\.')


@define(eq=False)
class KnownStatement:
    """A statement that the server runs.

    Attributes:
        start: how it starts, with `S.` for the schema.
        place: where faults of it are counted.
        function: makes of the text what runs it.
        part: what it has besides its start.
    """

    start: str
    place: str
    function: Callable[[str], StatementFunction]
    part: str = ""


KNOWN: list[KnownStatement] = []
"""The statements, the more specific ones first."""


def statement(start: str, place: str, part: str = "") -> Callable[[StatementFunction], StatementFunction]:
    """Register the function that runs the statements which start with a text."""

    def register(function: StatementFunction) -> StatementFunction:
        KNOWN.append(KnownStatement(start, place, lambda _: function, part))
        return function

    return register


@cache
def known_statement(text: str) -> KnownStatement:
    """Return the statement of an SQL text.

    Raises:
        StatementFailed: the server does not know it.
    """
    normal = _SCHEMA.sub("S.", text)
    for known in KNOWN:
        if normal.startswith(known.start) and known.part in normal:
            return known
    raise StatementFailed(f"the simulated server does not know the statement {text!r:.200}", "0A000")


def place_of(text: str) -> str:
    """Return the place at which faults of a statement are counted."""
    return "journal.commit" if text in {"BEGIN", "COMMIT", "ROLLBACK"} else known_statement(text).place


@cache
def function_of(text: str) -> StatementFunction:
    """Return what runs the statements of an SQL text.

    Raises:
        StatementFailed: the server does not know it.
    """
    return known_statement(text).function(_SCHEMA.sub("S.", text))


__all__ = ["function_of", "place_of"]

_READ, _DELETE, _POST, _CLAIM, _SESSION = (
    "journal.read",
    "journal.delete",
    "journal.post",
    "journal.claim",
    "journal.session",
)
_APPEND, _RELEASE, _NOTIFY, _ACCOUNT = "journal.append", "journal.release", "journal.notify", "journal.account"


def _newest(row: Stored) -> Any:
    return row["started_at"], row["number"], row["execution_id"]


def _head(row: Stored) -> Row:
    return tuple([row[name] for name in HEAD_NAMES])


def _executions(tx: Transaction) -> list[Stored]:
    return [row for _, row in tx.rows("executions")]


def _key_of(tx: Transaction, execution_id: str) -> Any:
    row = tx.find("executions", execution_id)
    return None if row is None else row["key"]


def _is_free(tx: Transaction, session: int | None) -> bool:
    """Return whether no live writer holds a claim, as the condition of `SessionSql` does."""
    if session is None:
        return True
    if tx.server.started_at <= tx.server.clock() <= tx.server.started_at + RESTART_SECONDS:
        return False
    return tx.try_shared(("session", session))


# --- the session ------------------------------------------------------------------------------------------------------


@statement("SELECT 1 FROM pg_tables", _READ)
def _has_tables(_tx: Transaction, _: Values) -> list[Row]:
    return [(1,)]


@statement("SELECT name, value FROM S.meta", _READ)
def _read_meta(_tx: Transaction, _: Values) -> list[Row]:
    return [("schema_version", str(VERSION)), ("min_reader", str(MIGRATIONS[-1].min_reader))]


@statement("SELECT set_config(name", _SESSION)
def _configure(tx: Transaction, values: Values) -> list[Row]:
    tx.backend.idle_seconds = int(values["timeout"].removesuffix("ms")) / 1000
    return [("5",), ("3",), ("3",), (values["timeout"],)]


@statement("SELECT nextval('S.sessions')", _SESSION)
def _draw_session(tx: Transaction, _: Values) -> list[Row]:
    return [(tx.server.next_number("sessions"),)]


@statement("SELECT pg_try_advisory_lock(", _SESSION)
def _lock_session(tx: Transaction, values: Values) -> list[Row]:
    return [(tx.backend.lock_session(("session", values["session"])),)]


@statement("SELECT pg_advisory_unlock(", _SESSION)
def _unlock_session(tx: Transaction, values: Values) -> list[Row]:
    return [(tx.backend.unlock_session(("session", values["session"])),)]


@statement("SELECT pg_advisory_unlock_all()", _SESSION)
def _unlock_all(tx: Transaction, _: Values) -> list[Row]:
    tx.backend.unlock_session()
    return [(b"",)]


def _listen(text: str) -> StatementFunction:
    channel = text.split('"')[1]

    def listen(tx: Transaction, _: Values) -> list[Row]:
        tx.backend.channels.add(channel)
        return []

    return listen


KNOWN.append(KnownStatement("LISTEN ", _SESSION, _listen))


def _change_claims(tx: Transaction, values: Values, session: int | None) -> Iterator[int]:
    for execution_id, token in zip(values["ids"], values["tokens"], strict=True):
        row = tx.find("claims", execution_id)
        if row is not None and row["token"] == token:
            tx.put("claims", execution_id, {**row, "session": session})
            yield token


@statement("UPDATE S.claims AS c SET session = %(session)s", _SESSION)
def _adopt(tx: Transaction, values: Values) -> list[Row]:
    return [(token,) for token in _change_claims(tx, values, values["session"])]


@statement("UPDATE S.claims AS c SET session = NULL", _RELEASE)
def _release(tx: Transaction, values: Values) -> list[Row]:
    return [("off",) for _ in _change_claims(tx, values, None)]


@statement("SELECT wanted.id, CASE", _READ)
def _read_marks(tx: Transaction, values: Values) -> list[Row]:
    rows = list[Row]()
    for wanted in values["ids"]:
        row = tx.find("executions", wanted)
        sequences = [each["sequence"] for _, each in tx.rows("commands") if each["execution_id"] == wanted]
        snapshot = str(tx.server.count_of("transactions")) if not wanted else None
        rows.append((wanted, snapshot, row and row["last_hash"], max(sequences, default=None)))
    return rows


@statement("INSERT INTO S.claims AS c (execution_id, token, session) VALUES", _CLAIM)
def _claim(tx: Transaction, values: Values) -> list[Row]:
    return [(token,) for token in _take_claim(tx, values["id"], values["session"], values["own"])]


def _take_claim(tx: Transaction, execution_id: str, session: int | None, own: Iterable[int] = ()) -> list[int]:
    token = tx.server.next_number("tokens")
    tx.lock(("claims", execution_id))
    row = tx.find("claims", execution_id)
    if row is not None:
        if row["session"] not in own and not _is_free(tx, row["session"]):
            return []
        token = max(row["token"] + 1, token)
    tx.put("claims", execution_id, {"token": token, "session": session})
    return [token]


@statement("SELECT pg_notify(%(channel)s, payload)", _NOTIFY)
def _notify(tx: Transaction, values: Values) -> list[Row]:
    tx.notifications += [(values["channel"], payload) for payload in values["payloads"]]
    return [(b"", "off") for _ in values["payloads"]]


# --- reading ----------------------------------------------------------------------------------------------------------


@statement(f"SELECT {_HEAD} FROM S.executions WHERE execution_id = %(id)s", _READ)  # noqa: S608  # constants only
def _read_head(tx: Transaction, values: Values) -> list[Row]:
    row = tx.find("executions", values["id"])
    return [] if row is None else [_head(row)]


@statement(f"SELECT {_HEAD} FROM S.executions WHERE execution_id = ANY", _READ)  # noqa: S608  # constants only
def _read_heads(tx: Transaction, values: Values) -> list[Row]:
    return [_head(row) for row in _executions(tx) if row["execution_id"] in values["ids"]]


@statement(f"SELECT {_HEAD}, seal FROM S.executions", _READ)  # noqa: S608  # constants only
def _read_sealed_heads(tx: Transaction, values: Values) -> list[Row]:
    return [(*_head(row), row["seal"]) for row in _executions(tx) if values.get("id") in {None, row["execution_id"]}]


@statement("SELECT sequence, kind, at,", _READ)
def _read_records(tx: Transaction, values: Values) -> list[Row]:
    row = tx.find("executions", values["id"])
    if row is None:
        return []
    found = [each for (key, sequence), each in tx.rows("records") if key == row["key"] and sequence > values["after"]]
    return [
        (*each["columns"], _prefix_of(tx, row["prefix"]) if each["columns"][0] == 1 else None)
        for each in sorted(found, key=lambda each: int(each["columns"][0]))
    ]


def _chain(tx: Transaction, prefix: int | None) -> list[Stored]:
    """Return a part of a beginning and those before it."""
    parts, row = list[Stored](), None if prefix is None else tx.find("prefixes", prefix)
    while row is not None:
        parts.append(row)
        before = None if row["parent"] is None else tx.find("prefixes", row["parent"])
        row = before if before is not None and before["id"] < row["id"] else None
    return parts


def _prefix_of(tx: Transaction, prefix: int | None) -> bytes | None:
    parts = sorted(_chain(tx, prefix), key=lambda part: int(part["length"]))
    return b"".join([part["data"] for part in parts]) if parts else None


@statement("SELECT digest, data FROM S.spills", _READ)
def _read_spills(tx: Transaction, values: Values) -> list[Row]:
    key = _key_of(tx, values["id"])
    return [(digest, row["data"]) for (owner, digest), row in tx.rows("spills") if owner == key]


@statement("SELECT digest FROM S.spills", _READ)
def _read_digests(tx: Transaction, values: Values) -> list[Row]:
    return [row[:1] for row in _read_spills(tx, values)]


def _list_heads(text: str) -> StatementFunction:
    """Return what runs a list of executions; which conditions it has depends on what was asked for."""
    statuses = re.findall(r"status = %\((status_\d+)\)s", text)
    has_agent, has_start, has_end, is_unclaimed = (
        part in text for part in ("agent_id = %(agent_id)s", ">= %(from)s", "< (%(started_at)s", "LEFT JOIN S.claims")
    )

    def list_heads(tx: Transaction, values: Values) -> list[Row]:
        wanted = {values[name] for name in statuses}
        end = (values["started_at"], values["number"], values["after_id"])
        found = [
            row
            for row in sorted(_executions(tx), key=_newest, reverse=True)
            if (not has_agent or row["agent_id"] == values["agent_id"])
            and (not statuses or row["status"] in wanted)
            and (not has_start or values["from"] <= row["execution_id"] < values["to"])
            and (not has_end or _newest(row) < end)
            and (not is_unclaimed or _is_free(tx, (tx.find("claims", row["execution_id"]) or {}).get("session")))
        ]
        return [_head(row) for row in found[: values["limit"]]]

    return list_heads


KNOWN += [KnownStatement(start, _READ, _list_heads) for start in ("(SELECT e.", "SELECT * FROM ((SELECT e.")]


@statement("SELECT execution_id, long_ids FROM S.executions ORDER BY", _READ)
def _list_ids(tx: Transaction, _: Values) -> list[Row]:
    return [(row["execution_id"], row["long_ids"]) for row in sorted(_executions(tx), key=_newest, reverse=True)]


# --- trees ------------------------------------------------------------------------------------------------------------


@statement("SELECT execution_id, long_ids FROM S.executions WHERE execution_id >=", _DELETE)
def _read_below(tx: Transaction, values: Values) -> list[Row]:
    return [
        (row["execution_id"], row["long_ids"])
        for row in _executions(tx)
        if values["from"] <= row["execution_id"] < values["to"]
    ]


@statement("SELECT execution_id FROM S.executions WHERE execution_id = ANY", _DELETE)
def _read_ids(tx: Transaction, values: Values) -> list[Row]:
    return [(each,) for each in values["ids"] if tx.find("executions", each) is not None]


def _has_expired(row: Stored, values: Values) -> bool:
    before = values["before"]
    return row["status"] in values["ended"] and row["started_at"] < before and row["updated_at"] < before


@statement("SELECT execution_id, long_ids, started_at, number FROM S.executions", _DELETE)
def _list_expired(tx: Transaction, values: Values) -> list[Row]:
    after = (values["started_at"], values["number"], values["after_id"])
    found = [row for row in _executions(tx) if _has_expired(row, values) and _newest(row) > after]
    names = ("execution_id", "long_ids", "started_at", "number")
    return [tuple([row[name] for name in names]) for row in sorted(found, key=_newest)[:_PAGE_SIZE]]


@statement("WITH ended AS (", _DELETE)
def _read_expired_trees(tx: Transaction, values: Values) -> list[Row]:
    executions = _executions(tx)
    found = {row["execution_id"]: row for row in executions if _has_expired(row, values)}
    for execution_id in list(found):
        start = execution_id.split("\x01")[0]
        low, high = (f"{start}/", f"{start}0") if start == execution_id else (start, start + _END)
        found |= {row["execution_id"]: row for row in executions if low <= row["execution_id"] < high}
    return [_head(row) for row in found.values()]


@statement("WITH RECURSIVE forks AS (", _DELETE)
def _read_sources(tx: Transaction, values: Values) -> list[Row]:
    executions = {row["execution_id"]: row for row in _executions(tx)}
    found = {
        execution_id: row
        for execution_id, row in executions.items()
        if row["forked_from"] and row["status"] in values["unfinished"]
    }
    waiting = list(found.values())
    while waiting:
        source = executions.get(waiting.pop()["forked_from"])
        if source is not None and source["execution_id"] not in found:
            found[source["execution_id"]] = source
            waiting.append(source)
    return [(row["execution_id"], row["long_ids"], row["forked_from"], row["status"]) for row in found.values()]


@statement("SELECT execution_id, status, updated_at FROM S.executions", _DELETE)
def _read_updates(tx: Transaction, values: Values) -> list[Row]:
    rows = [row for each in values["ids"] if (row := tx.find("executions", each)) is not None]
    return [(row["execution_id"], row["status"], row["updated_at"]) for row in rows]


# --- deleting ---------------------------------------------------------------------------------------------------------


@statement("INSERT INTO S.claims AS c (execution_id, token, session) SELECT id, nextval", _DELETE)
def _lock_claims(tx: Transaction, values: Values) -> list[Row]:
    return [(each,) for each in sorted(values["ids"]) if _take_claim(tx, each, None)]


@statement("SELECT data FROM S.spills JOIN S.executions", _DELETE)
def _read_references(tx: Transaction, values: Values) -> list[Row]:
    keys = {_key_of(tx, each) for each in values["ids"]} - {None}
    return [(row["data"],) for (key, _), row in tx.rows("spills") if key in keys and row["data"] >= b"\xff"]


@statement("DELETE FROM S.executions WHERE execution_id = ANY", _DELETE)
def _delete_executions(tx: Transaction, values: Values) -> list[Row]:
    found = [row for each in values["ids"] if (row := tx.find("executions", each)) is not None]
    for row in found:
        tx.remove("executions", row["execution_id"])
        for table in ("records", "spills"):
            for place in [place for place, _ in tx.rows(table) if place[0] == row["key"]]:
                tx.remove(table, place)
    return [(row["prefix"],) for row in found]


@statement("DELETE FROM S.prefixes AS p", _DELETE)
def _delete_prefixes(tx: Transaction, values: Values) -> list[Row]:
    used = {row["prefix"] for row in _executions(tx)} | {row["parent"] for _, row in tx.rows("prefixes")}
    parents = list[Row]()
    for number in values["ids"]:
        row = tx.find("prefixes", number)
        if row is None or number in used:
            continue
        # An execution that another transaction adds may name it: then the foreign key refuses the deletion.
        tx.lock(("prefixes", number), outcome="23503")
        tx.remove("prefixes", number)
        parents.append((row["parent"],))
    return parents


def _remove_where(tx: Transaction, table: str, keys: Iterable[Any]) -> list[Row]:
    for key in keys:
        tx.remove(table, key)
    return []


@statement("DELETE FROM S.commands WHERE execution_id = ANY", _DELETE)
def _delete_commands(tx: Transaction, values: Values) -> list[Row]:
    found = [key for key, row in tx.rows("commands") if row["execution_id"] in values["ids"]]
    return _remove_where(tx, "commands", found)


@statement("DELETE FROM S.claims WHERE execution_id = ANY", _DELETE)
def _delete_claims(tx: Transaction, values: Values) -> list[Row]:
    return _remove_where(tx, "claims", [each for each in values["ids"] if tx.find("claims", each) is not None])


@statement("DELETE FROM S.claims AS c WHERE c.session IS NULL", _DELETE)
def _delete_unused_claims(tx: Transaction, _: Values) -> list[Row]:
    unused = [key for key, row in tx.rows("claims") if row["session"] is None and tx.find("executions", key) is None]
    return _remove_where(tx, "claims", unused)


# --- commands ---------------------------------------------------------------------------------------------------------


@statement("WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock", _POST)
def _post(tx: Transaction, values: Values) -> list[Row]:
    tx.lock(("commands of", values["lock"]))
    number = tx.server.next_number("commands")
    tx.lock(("commands", values["id"]))
    if tx.find("commands", values["id"]) is not None:
        return []
    row = {"sequence": number, "execution_id": values["execution_id"], "body": _as_bytes(values["body"])}
    tx.put("commands", values["id"], {**row, "is_finished": False})
    tx.notifications.append((values["channel"], f"0 {values['execution_id']}"))
    return [(b"",)]


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


@statement("SELECT body, execution_id FROM S.commands WHERE execution_id = ANY", _READ)
def _read_commands(tx: Transaction, values: Values) -> list[Row]:
    return _unfinished([row for _, row in tx.rows("commands") if row["execution_id"] in values["ids"]])


@statement("SELECT body, execution_id FROM S.commands WHERE NOT is_finished", _READ)
def _read_unfinished(tx: Transaction, values: Values) -> list[Row]:
    low, high = values["from"], values["to"]
    return _unfinished([row for _, row in tx.rows("commands") if low <= row["execution_id"] < high])


def _unfinished(rows: Iterable[Stored]) -> list[Row]:
    waiting = sorted([row for row in rows if not row["is_finished"]], key=lambda row: int(row["sequence"]))
    return [(row["body"], row["execution_id"]) for row in waiting]


@statement("DELETE FROM S.commands WHERE id = ANY", _POST)
def _forget_commands(tx: Transaction, values: Values) -> list[Row]:
    return _remove_where(tx, "commands", [each for each in values["ids"] if tx.find("commands", each) is not None])


@statement("UPDATE S.commands SET is_finished = true", _POST)
def _finish_commands(tx: Transaction, values: Values) -> list[Row]:
    for each in values["ids"]:
        row = tx.find("commands", each)
        if row is not None and not row["is_finished"]:
            tx.put("commands", each, {**row, "is_finished": True, "body": b""})
    return []


# --- appending --------------------------------------------------------------------------------------------------------


def _holds_claim(tx: Transaction, values: Values) -> bool:
    row = tx.find("claims", values["execution_id"])
    if row is None or row["token"] != values["token"]:
        return False
    tx.lock(("claims", values["execution_id"]), is_exclusive=False)
    return True


def _store_records(tx: Transaction, key: int, values: Values) -> list[Row]:
    names = ("sequences", "kinds", "times", "versions", "bodies", "cuts", "previous", "hashes")
    for columns in zip(*[values[name] for name in names], strict=True):
        if tx.find("records", (key, columns[0])) is not None:
            raise StatementFailed("duplicate key value violates unique constraint", "23505")
        tx.put("records", (key, columns[0]), {"columns": columns})
    for digest, data in zip(values["digests"], values["data"], strict=True):
        if tx.find("spills", (key, digest)) is None:
            tx.put("spills", (key, digest), {"data": data})
    return [(1,)]


@statement("WITH held AS MATERIALIZED (", _APPEND, "head AS (INSERT")
def _append_first(tx: Transaction, values: Values) -> list[Row]:
    if not _holds_claim(tx, values):
        return [(0,)]
    part, parent = values["part"], values["parent"]
    prefix = parent if part is None else tx.server.next_number("prefixes")
    place = (values["agent_id"], values["number"])
    for row in _executions(tx):
        if row["execution_id"] == values["execution_id"] or (row["agent_id"], row["number"]) == place:
            tx.wait_for_removal("executions", row["execution_id"])
            return [(0,)]
    tx.lock(("executions by agent", place))
    key = tx.server.next_number("executions")
    stored = {name: values[name] for name in _STORED_NAMES}
    tx.put("executions", values["execution_id"], {**stored, "key": key, "prefix": prefix})
    if parent is not None:
        tx.lock(("prefixes", parent), is_exclusive=False)
        if tx.find("prefixes", parent) is None:
            raise StatementFailed("insert or update violates a foreign key constraint", "23503")
    if part is not None:
        columns = {"length": values["part_length"], "digest": values["part_digest"], "data": part}
        tx.put("prefixes", prefix, {"id": prefix, "parent": parent, **columns})
    return _store_records(tx, key, values)


@statement("WITH held AS MATERIALIZED (", _APPEND, "head AS (UPDATE")
def _append_next(tx: Transaction, values: Values) -> list[Row]:
    if not _holds_claim(tx, values):
        return [(0,)]
    row = tx.find("executions", values["execution_id"])
    if row is None or (row["record_count"], row["last_hash"]) != (values["after"], values["after_hash"]):
        return [(0,)]
    place = (values["agent_id"], values["number"])
    if any((each["agent_id"], each["number"]) == place and each["key"] != row["key"] for each in _executions(tx)):
        raise StatementFailed("duplicate key value violates unique constraint", "23505")
    changed = {name: values[name] for name in _STORED_NAMES[1:]}
    tx.put("executions", values["execution_id"], {**row, **changed})
    return _store_records(tx, row["key"], values)


@statement("SELECT record_count, last_hash FROM S.executions", _APPEND)
def _read_end(tx: Transaction, values: Values) -> list[Row]:
    row = tx.find("executions", values["id"])
    return [] if row is None else [(row["record_count"], row["last_hash"])]


@statement("SELECT token FROM S.claims", _APPEND)
def _read_token(tx: Transaction, values: Values) -> list[Row]:
    row = tx.find("claims", values["id"])
    return [] if row is None else [(row["token"],)]


@statement("SELECT 1 FROM S.executions WHERE agent_id", _APPEND)
def _is_taken(tx: Transaction, values: Values) -> list[Row]:
    place = (values["agent_id"], values["number"])
    return [
        (1,)
        for row in _executions(tx)
        if (row["agent_id"], row["number"]) == place and row["execution_id"] != values["id"]
    ]


@statement("SELECT sequence, hash FROM S.records", _APPEND)
def _read_hashes(tx: Transaction, values: Values) -> list[Row]:
    key = _key_of(tx, values["id"])
    rows = [row for each in values["sequences"] if (row := tx.find("records", (key, each))) is not None]
    return [(row["columns"][0], row["columns"][-1]) for row in rows]


@statement("WITH RECURSIVE previous AS (", _APPEND)
def _read_previous(tx: Transaction, values: Values) -> list[Row]:
    place = (values["agent_id"], values["number"])
    found = [row for row in _executions(tx) if (row["agent_id"], row["number"]) == place]
    first = tx.find("records", (found[0]["key"], 1)) if found else None
    if first is None:
        return []
    body, cuts = first["columns"][4:6]
    parts = _chain(tx, found[0]["prefix"])[: values["tries"]]
    if not parts:
        return [(body, cuts, None, None, None)]
    longest = sorted(parts, key=lambda part: int(part["length"]), reverse=True)
    return [(body, cuts, part["id"], part["length"], part["digest"]) for part in longest]


# --- accounts and grants ----------------------------------------------------------------------------------------------


@statement("INSERT INTO S.accounts", _ACCOUNT)
def _add_account(tx: Transaction, values: Values) -> list[Row]:
    if tx.find("accounts", values["id"]) is None:
        tx.put("accounts", values["id"], {"body": ""})
    return []


def _lock_body(tx: Transaction, table: str, key: str) -> list[Row]:
    if tx.find(table, key) is None:
        return []
    tx.lock((table, key))
    row = tx.find(table, key)
    return [] if row is None else [(row["body"],)]


def _set_body(tx: Transaction, table: str, values: Values) -> list[Row]:
    row = tx.find(table, values["id"])
    if row is not None:
        tx.put(table, values["id"], {**row, "body": values["body"]})
    return []


@statement("SELECT body FROM S.accounts WHERE id = %(id)s FOR UPDATE", _ACCOUNT)
def _lock_account(tx: Transaction, values: Values) -> list[Row]:
    return _lock_body(tx, "accounts", values["id"])


@statement("UPDATE S.accounts SET body", _ACCOUNT)
def _set_account(tx: Transaction, values: Values) -> list[Row]:
    return _set_body(tx, "accounts", values)


@statement("SELECT id, body FROM S.accounts", _ACCOUNT)
def _read_accounts(tx: Transaction, _: Values) -> list[Row]:
    return sorted([(key, row["body"]) for key, row in tx.rows("accounts")])


@statement("INSERT INTO S.grants", _ACCOUNT)
def _add_grant(tx: Transaction, values: Values) -> list[Row]:
    if tx.find("grants", values["id"]) is None:
        tx.put("grants", values["id"], {name: values[name] for name in ("owner", "tool", "body")})
    return []


@statement("SELECT body FROM S.grants WHERE id = %(id)s FOR UPDATE", _ACCOUNT)
def _lock_grant(tx: Transaction, values: Values) -> list[Row]:
    return _lock_body(tx, "grants", values["id"])


@statement("UPDATE S.grants SET body", _ACCOUNT)
def _set_grant(tx: Transaction, values: Values) -> list[Row]:
    return _set_body(tx, "grants", values)


@statement("SELECT body FROM S.grants WHERE owner", _ACCOUNT)
def _read_grants(tx: Transaction, values: Values) -> list[Row]:
    return [
        (row["body"],)
        for _, row in tx.rows("grants")
        if values["owner"] in {None, row["owner"]} and values["tool"] in {None, row["tool"]}
    ]


@statement("SELECT 1", _SESSION)
def _answer(_tx: Transaction, _: Values) -> list[Row]:
    return [(1,)]
