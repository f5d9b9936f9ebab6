"""The toys of a child process, whose calls are noted in a file that both processes know."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from agentloop.contracts import Tool
from agentloop.testing import FileLedger, toy_tools


def make_tools(report: Callable[[str, dict[str, Any]], None]) -> list[Tool]:
    """Return the toys; nothing is reported over the wire."""
    return toy_tools(FileLedger(os.environ["FAR_LEDGER"]), second=0.02)
