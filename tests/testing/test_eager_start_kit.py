"""The law suite of the eager start: the library's driver passes it, and broken parts fail it."""

from __future__ import annotations

import pytest

from agentloop import ToolCallingDriver
from agentloop.contracts import CanInfer
from agentloop.testing import EagerStartKit
from agentloop.values import Effect


def driver(model: CanInfer, eager: bool) -> ToolCallingDriver:  # noqa: FBT001  # of the kit
    return ToolCallingDriver(model, streaming=True, eager=eager, max_retries=0)


@pytest.mark.parametrize("law", EagerStartKit.laws)
def test_an_eager_run_is_the_plain_run(law: int) -> None:
    """State, events and records do not depend on the eager start, whatever the stream does."""
    EagerStartKit(driver).check(law)


@pytest.mark.parametrize("law", EagerStartKit.laws)
def test_calls_with_an_effect_never_start_early(law: int) -> None:
    """Of tools with an effect, nothing runs that the plain run would not run."""
    EagerStartKit(driver, effect=Effect.EFFECT, examples=30).check(law)
