"""Measures journals: appending records, and journaled executions."""

from __future__ import annotations

import asyncio

import journal_appends
import journal_runs


async def main() -> None:
    """Run both benchmarks."""
    await journal_appends.main()
    await journal_runs.main()


if __name__ == "__main__":
    asyncio.run(main())
