"""The kit of sandboxes: those of the package keep its laws, and a hole in a real one is noticed."""

from __future__ import annotations

import pytest

from agentloop.contracts import CanSandbox
from agentloop.testing import LawNotChecked, LawViolation, SandboxKit
from agentloop.toolkits import BubblewrapSandbox
from tests.testing.zoo.sandboxes import WITH_HOLES
from tests.toolkits.sandboxes.available import any_sandbox, sandbox_named


@pytest.mark.parametrize("law", SandboxKit.laws)
def test_a_sandbox_keeps_the_laws(sandbox: CanSandbox, law: int) -> None:
    """Each sandbox that can run here keeps every law."""
    SandboxKit(lambda: sandbox, examples=3).check(law)


@pytest.mark.parametrize("name", WITH_HOLES)
def test_a_hole_in_a_sandbox_is_noticed(name: str) -> None:
    """A command that reaches the host by one way alone violates law 46."""
    real = sandbox_named("bubblewrap") if name.startswith("Sh") else any_sandbox()
    with pytest.raises(LawViolation, match="law 46 is violated"):
        SandboxKit(lambda: WITH_HOLES[name](real)).check(46)


def test_a_sandbox_that_runs_nothing_breaks_no_law() -> None:
    """It is not checked, and the report says why."""

    def missing() -> CanSandbox:
        return BubblewrapSandbox(program="no-such-program")

    with pytest.raises(LawNotChecked, match="the factory raised SandboxUnavailable"):
        SandboxKit(missing).check(47)
