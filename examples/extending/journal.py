"""A journal of your own: one file of JSON lines, for one process, against `CanJournal` and the rules that all stores share."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from itertools import count
from json import dumps, loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentloop.contracts import CanJournal, CanRedactRecords, Claim
from agentloop.durable import (
    EMPTY_CHAIN,
    HeldClaim,
    HeldClaims,
    Redaction,
    check_deletable,
    check_follows,
    check_id,
    check_records,
    check_schema_version,
    claim_conflict,
    group_trees,
    number_conflict,
)
from agentloop.testing import JournalKit, check_laws
from agentloop.values import ExecutionHead, ExecutionStatus, JournalRecord, from_plain, parse_cursor, to_plain


class JsonLinesJournal(CanJournal, CanRedactRecords):
    """Appends a line for each append and each deletion, and reads the file when it is made.

    Args:
        path: the file; only one object, in one process, may use it at a time.
        secrets: texts that are masked in records.
        secret_fields: fields that are masked.
    """

    def __init__(self, path: Path, *, secrets: Iterable[str] = (), secret_fields: Iterable[str] = ()) -> None:
        self._redaction = Redaction(secrets, secret_fields)
        self._heads: dict[str, ExecutionHead] = {}
        self._records: dict[str, list[JournalRecord]] = {}
        self._claims, self._tokens = HeldClaims(), count(1)
        self._path = path
        text = path.read_bytes() if path.exists() else b""
        for line in text.splitlines(keepends=True):
            if line.endswith(b"\n"):  # a line that was cut off was never confirmed
                self._apply(loads(line))

    def __repr__(self) -> str:
        return f"JsonLinesJournal({str(self._path)!r})"

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._redaction.redact(body)

    def _write(self, entry: dict[str, Any]) -> None:
        with self._path.open("ab") as file:
            file.write(dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._apply(entry)

    def _apply(self, entry: dict[str, Any]) -> None:
        for execution_id in entry.get("deleted", ()):
            del self._heads[execution_id], self._records[execution_id]
        if "head" in entry:
            head = from_plain(entry["head"], ExecutionHead)
            self._heads[head.execution_id] = head
            records = [from_plain(record, JournalRecord) for record in entry["records"]]
            self._records.setdefault(head.execution_id, []).extend(records)

    # Nothing here awaits, so that no other task comes in between.

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        check_records(head, records, claim)
        self._claims.check(claim)
        stored = self._heads.get(head.execution_id)
        check_follows(records[0], *((stored.record_count, stored.last_hash) if stored else EMPTY_CHAIN))
        for other in self._heads.values():
            same = (other.agent_id, other.number) == (head.agent_id, head.number)
            if same and other.execution_id != head.execution_id:
                raise number_conflict(head)
        lines = [{"schema_version": record.schema_version, **to_plain(record)} for record in records]
        self._write({"head": to_plain(head), "records": lines})

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        records = tuple(self._records.get(execution_id, ())[max(after, 0) :])
        for record in records:
            check_schema_version(record.schema_version)
        return records

    async def head(self, execution_id: str) -> ExecutionHead | None:
        return self._heads.get(execution_id)

    async def list(  # of the contract
        self,
        *,
        agent_id: str | None = None,
        status: ExecutionStatus | Collection[ExecutionStatus] | None = None,
        prefix: str = "",
        unclaimed: bool = False,
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[ExecutionHead]:
        statuses = {status} if isinstance(status, ExecutionStatus) else status
        found = [
            head
            for head in self._heads.values()
            if agent_id in {None, head.agent_id}
            and (statuses is None or head.status in statuses)
            and head.execution_id.startswith(prefix)
            and not (unclaimed and head.execution_id in self._claims)
            and (not after or parse_cursor(head.cursor) < parse_cursor(after))
        ]
        return sorted(found, key=lambda head: parse_cursor(head.cursor), reverse=True)[
            : None if limit is None else max(limit, 0)
        ]

    async def claim(self, execution_id: str) -> Claim:
        check_id(execution_id)
        if execution_id in self._claims:
            raise claim_conflict(execution_id, "this process")
        claim = JsonLinesClaim(self._claims, execution_id, next(self._tokens))
        self._claims.add(claim)
        return claim

    async def delete(self, execution_id: str) -> bool:
        tree = next((tree for tree in group_trees(self._heads.values()) if execution_id in tree.ids), None)
        for claimed in filter(self._claims.__contains__, (execution_id,) if tree is None else tree.ids):
            raise claim_conflict(claimed, "this process")
        if tree is None:
            return False
        check_deletable(execution_id, tree.root.execution_id, tree.needed_by)
        self._write({"deleted": list(tree.ids)})
        return True

    async def purge(self, before: datetime) -> int:
        trees = [tree.ids for tree in group_trees(self._heads.values()) if tree.is_expired(before)]
        ids = [each for tree in trees if not any(one in self._claims for one in tree) for each in tree]
        if ids:
            self._write({"deleted": ids})
        return len(ids)

    async def aclose(self) -> None:
        self._claims.end_all("the journal was closed")


class JsonLinesClaim(HeldClaim):
    """A claim, which ends with the process."""

    def __init__(self, claims: HeldClaims, execution_id: str, token: int) -> None:
        super().__init__(execution_id, token)
        self._claims = claims

    async def release(self) -> None:
        self._claims.remove(self)


def journal_kit(folder: Path, examples: int = 10) -> JournalKit:
    """Return the kit, with a new file for each journal that it makes."""
    numbers = count()
    return JournalKit(
        lambda **options: JsonLinesJournal(folder / f"{next(numbers)}.jsonl", **options), examples=examples
    )


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        print(check_laws(journal_kit(Path(name))))
