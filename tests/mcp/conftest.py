"""What the tests of MCP share: real servers, and a look at what is left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.mcp.running import children, everything_over_http, small_over_http


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    """Check that a test has left no task, process or open file behind (law 19)."""
    before = asyncio.all_tasks(), children()
    yield
    assert asyncio.all_tasks() - before[0] - {asyncio.current_task()} == set()
    assert children() == before[1]


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Check that a test has left no file or socket open."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    yield
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.fixture
async def small_url() -> AsyncIterator[str]:
    """Return the address of the small server over HTTP."""
    async with small_over_http() as url:
        yield url


@pytest.fixture
async def everything_url(tmp_path: Path) -> AsyncIterator[str]:
    """Return the address of the reference server over HTTP."""
    async with everything_over_http() as url:
        yield url
