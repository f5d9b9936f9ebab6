"""Fixtures for MCP: real servers, and checks for leaked tasks, processes and files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentloop.mcp.sdk.names import IS_FIRST_GENERATION
from tests.leaks import new_descriptors, open_descriptors
from tests.limits import LONGEST, turns_of_the_event_loop
from tests.mcp.running import children, everything_over_http, small_over_http

# Generation 1 of the SDK does not know tasks.
collect_ignore = ["test_serving_tasks.py", "test_task_recovery.py", "test_tasks.py"] if IS_FIRST_GENERATION else []


@pytest.fixture(autouse=True)
async def _no_leaks() -> AsyncIterator[None]:
    """Check that a test leaves no task or process behind (law 19)."""
    tasks, processes = asyncio.all_tasks(), children()
    yield
    assert asyncio.all_tasks() - tasks - {asyncio.current_task()} == set()
    assert children() == processes


@pytest.fixture
async def descriptors() -> AsyncIterator[None]:
    """Check that a test leaves no file or socket open; those of a test before it may be closed meanwhile.

    A connection that the other side closes is closed here as soon as the event loop learns of it, which may be after the test.
    """
    before = open_descriptors()
    yield
    left = new_descriptors(before)
    with suppress(TimeoutError):
        async with asyncio.timeout(LONGEST):
            while left := new_descriptors(before):
                await turns_of_the_event_loop()
    assert left == {}


@pytest.fixture
async def small_url() -> AsyncIterator[str]:
    """Run the small server over HTTP; return its address."""
    async with small_over_http() as url:
        yield url


@pytest.fixture
async def everything_url(tmp_path: Path) -> AsyncIterator[str]:
    """Run the reference server over HTTP; return its address."""
    async with everything_over_http() as url:
        yield url
