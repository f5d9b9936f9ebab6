"""Fixtures for MCP: real servers, and checks for leaked tasks, processes and files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agentloop.mcp.sdk.names import IS_FIRST_GENERATION
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
def descriptors() -> Iterator[None]:
    """Check that a test leaves no file or socket open; those of a test before it may be closed meanwhile."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    yield
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208


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
