"""What a journal costs: appending records, and runs that are written down."""

from __future__ import annotations

import asyncio

import journal_appends
import journal_runs


async def main() -> None:
    """Measure both."""
    await journal_appends.main()
    await journal_runs.main()


if __name__ == "__main__":
    asyncio.run(main())
