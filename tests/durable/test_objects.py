"""Object stores of journals: what is stored where, in which order, and what is reported when an object is missing."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from attrs import evolve

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanStoreObjects
from agentloop.durable import FolderObjects, Journal, PostgresJournal, SqliteJournal, open_journal
from agentloop.errors import ContractViolation, JournalBusy, JournalCorrupt, JournalError
from agentloop.testing import JournalKit
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.json import format_json
from agentloop.values.steps import ExecutionStatus
from tests.durable.records import START, append_records, make_head, make_records
from tests.durable.test_sqlite_journal import open_files

LONG = "long " * 2_000
OTHER = "other " * 2_000
Opener = Callable[..., Journal]


def body_of(text: str) -> str:
    """Return a body with a text."""
    return format_json({"text": text}).decode()


class Bucket(CanStoreObjects):
    """A store in memory that can fail, and that tells a listener of each call."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.calls: list[str] = []

    async def put(self, key: str, data: bytes) -> None:
        await self._begin("put")
        self.data[key] = data

    async def get(self, key: str) -> bytes:
        await self._begin("get")
        return self.data[key]

    async def delete(self, key: str) -> None:
        await self._begin("delete")
        self.data.pop(key, None)

    async def _begin(self, name: str) -> None:
        self.calls.append(name)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error


@pytest_asyncio.fixture
async def open_at(db: str) -> AsyncIterator[Opener]:
    """Opens the journal of the test, with options; all are closed at the end."""
    journals: list[Journal] = []

    def open_it(**options: Any) -> Journal:
        journals.append(open_journal(db, spill_bytes=1_000, **options))
        return journals[-1]

    yield open_it
    for journal in journals:
        await journal.aclose()


def files_in(folder: Path) -> list[Path]:
    """Return the files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


# --- journals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", JournalKit.laws)
def test_sqlite_journals_with_objects_keep_the_laws(tmp_path: Path, law: int) -> None:
    """A SQLite journal keeps every law with an object store, whatever it spills."""
    objects = FolderObjects(tmp_path / "objects")
    numbers = iter(range(10_000))

    def create(**options: Any) -> SqliteJournal:
        path = tmp_path / f"{next(numbers)}.db"
        return SqliteJournal(path, synchronous="normal", spill_bytes=8, objects=objects, **options)

    def reopen(journal: Any) -> SqliteJournal:
        return SqliteJournal(journal.path, synchronous="normal", spill_bytes=8, objects=objects)

    getattr(JournalKit(create, reopen=reopen, examples=3), f"law_{law}")()


@pytest.mark.parametrize("law", JournalKit.laws)
def test_postgres_journals_with_objects_keep_the_laws(postgres_url: str, tmp_path: Path, law: int) -> None:
    """A PostgreSQL journal keeps every law with an object store, whatever it spills."""
    objects = FolderObjects(tmp_path / "objects")
    schemas: dict[int, tuple[Journal, str]] = {}

    def open_schema(schema: str, **options: Any) -> PostgresJournal:
        journal = PostgresJournal(postgres_url, schema=schema, pool_size=2, spill_bytes=8, objects=objects, **options)
        schemas[id(journal)] = (journal, schema)
        return journal

    def create(**options: Any) -> PostgresJournal:
        return open_schema(f"schema_{len(schemas)}", **options)

    kit = JournalKit(create, reopen=lambda journal: open_schema(schemas[id(journal)][1]), examples=3)
    getattr(kit, f"law_{law}")()


async def test_long_parts_are_stored_once_and_deleted_with_their_execution(open_at: Opener, tmp_path: Path) -> None:
    """A long text in many records is one object of its execution; records are read as they were; deletion leaves nothing."""
    objects = FolderObjects(tmp_path / "objects")
    journal = open_at(objects=objects)
    bodies = [body_of(LONG), '{"short":1}', body_of(LONG), body_of("\ud800" * 2_000), body_of(OTHER)]
    for execution_id in ("e", "f"):
        records = await append_records(journal, execution_id, *bodies[:2])
        records = await append_records(journal, execution_id, *bodies[2:], after=records)
        assert list(await journal.read(execution_id)) == records
        assert list(await journal.read(execution_id, after=3)) == records[3:]
    assert len(files_in(objects.path)) == 2 * 3
    assert await open_at(objects=FolderObjects(objects.path)).verify() == ()
    assert await journal.delete("e")
    assert len(files_in(objects.path)) == 3
    assert len(await journal.read("f")) == 5
    assert await journal.verify() == ()
    assert await journal.delete("f")
    assert files_in(objects.path) == list(objects.path.iterdir()) == []


async def test_a_purge_deletes_objects(open_at: Opener) -> None:
    """The objects of purged executions are deleted, those of others stay."""
    bucket = Bucket()
    journal = open_at(objects=bucket)
    for execution_id, status in (("e", ExecutionStatus.COMPLETED), ("f", ExecutionStatus.IN_PROGRESS)):
        records = make_records(execution_id, body_of(LONG))
        await append_claimed(journal, make_head(records, status=status), records)
    assert await journal.purge(START + timedelta(days=1)) == 1
    assert len(bucket.data) == 1
    assert len(await journal.read("f")) == 1


async def test_an_execution_that_is_recorded_again_has_objects_of_its_own(open_at: Opener) -> None:
    """A late deletion of the objects of a deleted execution does not touch those of a new one with the same id and data."""
    bucket = Bucket()
    journal = open_at(objects=bucket)
    await append_records(journal, "e", body_of(LONG))
    old = set(bucket.data)
    await journal.delete("e")
    records = await append_records(journal, "e", body_of(LONG))
    for key in old:
        await bucket.delete(key)
    assert list(await journal.read("e")) == records
    assert not old & set(bucket.data)


async def test_turns_that_share_a_beginning_use_objects(open_at: Opener) -> None:
    """The first record of a turn has only what it adds as an object."""
    bucket = Bucket()
    journal = open_at(objects=bucket)
    shared = "".join([f"{number} of what is shared; " for number in range(30)])
    records = {}
    for number, text in enumerate(("", LONG), 1):
        records[number] = make_records(f"turn {number}", format_json([shared, text]).decode())
        await append_claimed(journal, make_head(records[number], agent_id="ada", number=number), records[number])
    (data,) = bucket.data.values()
    assert LONG in data.decode()
    assert shared not in data.decode()
    assert {number: list(await journal.read(f"turn {number}")) for number in records} == records


async def test_an_object_is_stored_before_its_record(open_at: Opener) -> None:
    """While an object is being stored, its record is not there."""
    bucket = Bucket()
    journal = open_at(objects=bucket)
    seen: list[int] = []

    async def put(key: str, data: bytes) -> None:
        seen.append(len(await journal.read("e")))
        bucket.data[key] = data

    bucket.put = put  # type: ignore[method-assign]
    records = await append_records(journal, "e", "{}")
    await append_records(journal, "e", body_of(LONG), after=records)
    assert seen == [1]
    assert len(await journal.read("e")) == 2


@pytest.mark.parametrize("error", [OSError("no route"), KeyError("gone"), JournalBusy("later")])
async def test_a_store_that_fails_stores_nothing(open_at: Opener, error: Exception) -> None:
    """An append or a read whose store fails is a JournalError; nothing is half written, and it can be repeated."""
    bucket = Bucket()
    journal = open_at(objects=bucket)
    first = await append_records(journal, "e", "{}")
    bucket.error = error
    with pytest.raises(JournalError) as raised:
        await append_records(journal, "e", "{}", body_of(LONG), after=first)
    assert isinstance(raised.value, JournalBusy) == isinstance(error, JournalBusy)
    assert list(await journal.read("e")) == first
    head = await journal.head("e")
    assert head is not None
    assert head.record_count == 1
    bucket.error = None
    second = make_records("e", "{}", body_of(LONG), after=first)
    await append_claimed(journal, make_head(second), second)
    assert list(await journal.read("e")) == [*first, *second]
    bucket.error = OSError("no route")
    with pytest.raises(JournalError, match=r"cannot read the object .*no route") as unread:
        await journal.read("e")
    assert not isinstance(unread.value, JournalCorrupt)


@pytest.mark.parametrize("damage", ["missing", "changed", "not text", "without a store"])
async def test_a_damaged_object_is_named(open_at: Opener, damage: str) -> None:
    """A read of records that need a damaged object is JournalCorrupt with its key, and `verify` reports it."""
    bucket = Bucket()
    journal = open_at(objects=bucket)
    await append_records(journal, "e", body_of(LONG), "{}")
    await append_records(journal, "f", body_of(LONG))
    key = next(iter(bucket.data))
    if damage == "missing":
        del bucket.data[key]
    elif damage == "without a store":
        journal = open_at()
    else:
        bucket.data[key] = b"x" if damage == "changed" else b"\xff"
    with pytest.raises(JournalCorrupt, match=key) as raised:
        await journal.read("e")
    assert raised.value.execution_id == "e"
    assert len(await journal.read("e", after=1)) == 1
    if damage != "without a store":
        (finding,) = await journal.verify()
        assert finding.execution_id == "e"
        assert key in finding.problem


async def test_objects_that_cannot_be_deleted_are_reported(open_at: Opener, caplog: pytest.LogCaptureFixture) -> None:
    """A deletion whose store fails has deleted the execution; the orphan is logged and disturbs nothing."""
    bucket = Bucket()
    journal = open_at(objects=bucket)
    await append_records(journal, "e", body_of(LONG))
    bucket.error = OSError("no route")
    with caplog.at_level(logging.WARNING, "agentloop.journal"):
        assert await journal.delete("e")
    assert "1 objects of deleted executions stay" in caplog.text
    assert "no route" in caplog.text
    bucket.error = None
    assert len(bucket.data) == 1
    assert await journal.read("e") == ()
    assert await journal.verify() == ()


async def test_a_read_while_the_execution_is_deleted_finds_nothing(open_at: Opener) -> None:
    """An object that is missing because its execution was deleted meanwhile is no damage."""
    bucket = Bucket()
    journal, other = open_at(objects=bucket), open_at(objects=bucket)
    await append_records(journal, "e", body_of(LONG))
    get = bucket.get

    async def delete_first(key: str) -> bytes:
        bucket.get = get  # type: ignore[method-assign]
        await other.delete("e")
        return await get(key)

    bucket.get = delete_first  # type: ignore[method-assign]
    assert await journal.read("e") == ()


async def test_objects_can_be_given_to_a_journal_that_has_records(open_at: Opener) -> None:
    """Records from before are read as they were; the same text is not stored a second time."""
    before = await append_records(open_at(), "e", body_of(LONG))
    bucket = Bucket()
    journal = open_at(objects=bucket)
    after = make_records("e", body_of(LONG), body_of(OTHER), after=before)
    await append_claimed(journal, make_head(after), after)
    assert list(await journal.read("e")) == [*before, *after]
    assert len(bucket.data) == 1


async def test_an_agent_is_recovered_from_objects(open_at: Opener) -> None:
    """An execution with large results is recorded and read through an object store."""

    @tool(effect="pure")
    def fetch() -> str:
        """Fetch a page."""
        return LONG

    bucket = Bucket()
    model = ScriptedInference(ToolCall("1", "fetch", "{}"), "Done.")
    loop = AgentLoop.for_model(model, tools=[fetch], journal=open_at(objects=bucket))
    state = await loop.execute("Fetch it.", execution_id="e")
    assert bucket.data
    again = await open_at(objects=bucket).state("e")
    assert again.steps[0].executions[0].value == LONG
    assert again.final_text == state.final_text == "Done."


# --- folders ----------------------------------------------------------------------------------------------------------


async def test_files_are_private_and_complete(tmp_path: Path) -> None:
    """Files and folders are for their owner only, a second put changes nothing, and deletion leaves the folder empty."""
    objects = FolderObjects(tmp_path / "objects")
    assert repr(objects) == f"FolderObjects({str(tmp_path / 'objects')!r})"
    await asyncio.gather(*[objects.put("a/1-b", b"data") for _ in range(8)])
    assert await objects.get("a/1-b") == b"data"
    assert [path.name for path in files_in(objects.path)] == ["1-b"]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (objects.path, objects.path / "a", objects.path / "a/1-b")]
    assert modes == [0o700, 0o700, 0o600]
    await objects.delete("a/1-b")
    await objects.delete("a/1-b")
    assert list(objects.path.iterdir()) == []
    with pytest.raises(KeyError):
        await objects.get("a/1-b")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists open files")
async def test_no_file_or_folder_stays_open(tmp_path: Path) -> None:
    """A service that stores objects for weeks would run out of them."""
    objects = FolderObjects(tmp_path / "objects")
    for key in ("a/1", "a/2"):
        await objects.put(key, b"data")
        assert await objects.get(key) == b"data"
    folders = (tmp_path, objects.path, objects.path / "a")
    assert [name for folder in folders for name in open_files(folder)] == []


async def test_files_are_written_while_others_of_their_folder_are_deleted(tmp_path: Path) -> None:
    """A put succeeds although deletions remove the empty folder again and again."""
    objects = FolderObjects(tmp_path / "objects")

    async def put_and_delete(name: str) -> None:
        for number in range(20):
            await objects.put(f"a/{name}-{number}", b"data")
            assert await objects.get(f"a/{name}-{number}") == b"data"
            await objects.delete(f"a/{name}-{number}")

    await asyncio.gather(*[put_and_delete(name) for name in "xyz"])
    assert list(objects.path.iterdir()) == []


async def test_a_folder_that_is_gone_when_it_is_said_to_exist_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may create the folder before a put, and remove it behind it."""
    objects, create = FolderObjects(tmp_path / "objects"), os.mkdir
    others = ["created and removed"]

    def create_late(path: Path, mode: int) -> None:
        if path.name == "a" and others:
            others.clear()
            raise FileExistsError(path)
        create(path, mode)

    monkeypatch.setattr(os, "mkdir", create_late)
    await objects.put("a/x", b"data")
    assert (await objects.get("a/x"), others) == (b"data", [])


async def test_objects_need_the_folder_around_theirs(tmp_path: Path) -> None:
    """It is not created: its path may be mistaken."""
    with pytest.raises(FileNotFoundError):
        await FolderObjects(tmp_path / "missing" / "objects").put("a/x", b"data")


@pytest.mark.parametrize(
    "key",
    ["", "..", "../a", "/etc/passwd", "a/../../b", "a//b", "a\\b", "a\x00b", "A", "é", ".a", "a/", "a\n", "a" * 201],
)
async def test_keys_never_lead_out_of_the_folder(tmp_path: Path, key: str) -> None:
    """Only keys of journals are accepted."""
    objects = FolderObjects(tmp_path / "objects")
    with pytest.raises(ContractViolation, match="is not the key of an object"):
        await objects.put(key, b"data")
    with pytest.raises(ContractViolation):
        await objects.get(key)
    with pytest.raises(ContractViolation):
        await objects.delete(key)
    assert files_in(tmp_path) == []


async def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that cannot be written as a whole is not there."""
    objects = FolderObjects(tmp_path / "objects")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentloop.durable.folder_objects.os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        await objects.put("a/b", b"data")
    assert files_in(tmp_path) == []


async def test_keys_of_journals_are_keys_of_the_contract(open_at: Opener) -> None:
    """Keys hold no id, whatever the id of the execution is."""
    bucket = Bucket()
    journal = open_at(objects=bucket)
    records = make_records("../e\n/é" * 100, body_of(LONG))
    await append_claimed(journal, evolve(make_head(records), agent_id="ada"), records)
    (key,) = bucket.data
    assert FolderObjects("objects")._path_of(key).name in key
    assert "é" not in key


async def test_a_stored_file_and_its_name_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data are written through before the file has its name, and then the folders that name it."""
    synchronized: list[Path] = []

    def note(descriptor: int) -> None:
        number = os.fstat(descriptor).st_ino
        synchronized.extend(path for path in (tmp_path, *tmp_path.rglob("*")) if path.stat().st_ino == number)

    monkeypatch.setattr(os, "fsync", note)
    await FolderObjects(tmp_path / "objects").put("a/b", b"data")
    data = [path for path in synchronized if path.name.startswith(".")]
    assert len(data) == 1
    assert not data[0].exists()
    assert (tmp_path / "objects" / "a" / "b").read_bytes() == b"data"
    folders = [path for path in synchronized if path not in data]
    assert folders == [tmp_path, tmp_path / "objects", tmp_path / "objects" / "a"]
