"""Calls that a server runs as tasks, of the extension of 2026-07-28."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import ToolFailed, ToolInDoubt
from agentloop.mcp import McpEnsemble
from tests.mcp.running import on_sdk, wait_for_note
from tests.mcp.test_serving import call

SERVER = str(Path(__file__).parent / "task_server.py")


async def agree(_: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"sure": True}


def tasks(folder: Path, **settings: Any) -> McpEnsemble:
    """Return the server of tasks."""
    return on_sdk(SERVER, str(folder), name="tasks", **settings)


async def test_a_task_is_waited_for(tmp_path: Path) -> None:
    """The result of a task is that of the call, and its messages are the progress."""
    updates: list[Any] = []
    async with tasks(tmp_path) as server:
        assert (await call(server, "work", updates)).value == "done"
    assert updates == [{"message": "half"}]


async def test_a_failed_task_fails_its_call(tmp_path: Path) -> None:
    """The error of the task is that of the call, whatever its code."""
    async with tasks(tmp_path) as server:
        with pytest.raises(ToolFailed, match="it broke"):
            await call(server, "fail")


async def test_a_task_can_ask(tmp_path: Path) -> None:
    """A question of a task is answered once, by the same function as questions of calls."""
    async with tasks(tmp_path, on_elicitation=agree) as server:
        assert (await call(server, "ask")).value == "agreed"
    assert (tmp_path / "notes").read_text().count("answered") == 1
    assert '"content": {"sure": true}' in (tmp_path / "notes").read_text()


async def test_a_cancelled_call_cancels_its_task(tmp_path: Path) -> None:
    """The cancellation of a call reaches the server."""
    async with tasks(tmp_path) as server:
        running = asyncio.create_task(call(server, "wait"))
        await wait_for_note(tmp_path / "notes", "called wait")
        await wait_for_note(tmp_path / "wait", "1")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await wait_for_note(tmp_path / "notes", "cancelled wait")


async def test_a_task_survives_its_connection(tmp_path: Path) -> None:
    """A call with an effect whose task goes on is not in doubt, and not sent again."""
    async with tasks(tmp_path) as server:
        assert (await call(server, "crash")).value == "survived"
    assert (tmp_path / "notes").read_text().count("called crash") == 1


async def test_a_task_that_its_server_forgets_is_in_doubt(tmp_path: Path) -> None:
    """A call with an effect whose task is unknown after a restart may have run, and is not sent again."""
    async with tasks(tmp_path) as server:
        with pytest.raises(ToolInDoubt, match="does not know the task"):
            await call(server, "forget")
    assert (tmp_path / "notes").read_text().count("called forget") == 1
