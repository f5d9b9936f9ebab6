"""The sandboxes as fixtures."""

from __future__ import annotations

import pytest

from agentloop.contracts import CanSandbox
from tests.toolkits.sandboxes.available import SANDBOXES, sandbox_named


@pytest.fixture(params=list(SANDBOXES))
def sandbox(request: pytest.FixtureRequest) -> CanSandbox:
    """Return each of the sandboxes that can run here."""
    return sandbox_named(request.param)
