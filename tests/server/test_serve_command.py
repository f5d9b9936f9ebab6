"""`agentloop serve`: a server for the database that is named, as a process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from tests.loaded import loaded_agentloop
from tests.server.front import DEADLINE, opened, settled, start

PROGRAM = """
from agentloop import AgentLoop, ScriptedInference
loop = AgentLoop.for_model(ScriptedInference("Three lamps are left."))
"""


async def test_the_command_serves_a_file_and_a_url(tmp_path: Path, db: str) -> None:
    """What a client starts is recorded in the database that `--db` names, a file or a URL."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    command = loaded_agentloop("serve", "shop:loop", "--port", "0", "--db", db)
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(DEADLINE * 3):  # the command loads everything
            line = (await process.stderr.readline()).decode()
        assert line.startswith("serving at http://127.0.0.1:"), line
        url = line.split()[2].rstrip(";")
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
            await start(client, id="lamps")
            assert (await settled(client, "local:lamps"))["text"] == "Three lamps are left."
    finally:
        process.terminate()
        await process.wait()
    async with opened(db) as journal:
        assert [head.execution_id for head in await journal.list()] == ["local:lamps"]
