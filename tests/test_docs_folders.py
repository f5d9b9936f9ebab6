"""Every Python block of the pages in folders of the documentation runs unchanged.

It is a file of its own so that the blocks of all pages run in two processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loaded import LoadedProcess
from tests.test_docs import PAGES, ROOT, python_blocks, run_block

BLOCKS = python_blocks(page for page in PAGES if page.parent not in {ROOT, ROOT / "docs"})


@pytest.mark.parametrize("block", [*BLOCKS.values()], ids=[*BLOCKS])
def test_a_block_runs_as_printed(block: str, loaded: LoadedProcess, tmp_path: Path) -> None:
    """Where the package is loaded, the block ends without an error and without a warning."""
    ended = loaded.run(block, tmp_path)
    assert ended.code == 0, ended.err


@pytest.mark.heavy
@pytest.mark.parametrize("block", [*BLOCKS.values()], ids=[*BLOCKS])
def test_a_block_runs_in_a_new_process(block: str, tmp_path: Path) -> None:
    """Copied into a file and run, the block loads what it needs, and ends without an error and without a warning."""
    run_block(block, tmp_path)
