"""The law suite of executors: the package's executor passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentloop import ToolExecutor
from agentloop.contracts import CanExecuteToolCalls
from agentloop.testing import ExecutorKit
from tests.generated import examples

FACTORIES: dict[str, Callable[[], CanExecuteToolCalls]] = {
    "default": ToolExecutor,
    "one at a time": lambda: ToolExecutor(max_concurrency=1),
    "two at a time": lambda: ToolExecutor(max_concurrency=2),
    "raising on failure": lambda: ToolExecutor(raise_on_tool_failure=True),
    "stopping on a block": lambda: ToolExecutor(stop_on_tool_block=True),
    "with a timeout": lambda: ToolExecutor(default_timeout=2.0),
}


@pytest.mark.parametrize("law", ExecutorKit.laws)
@pytest.mark.parametrize("name", FACTORIES)
def test_the_tool_executor_obeys_the_laws(name: str, law: int) -> None:
    """The executor obeys every law of its contract under every option."""
    ExecutorKit(FACTORIES[name], examples=examples(12)).check(law)
