"""The browser of the tests of the viewer, and the model of those of the command line."""

from __future__ import annotations

from tests.service.cli.conftest import server
from tests.viewer.conftest import browser, page

__all__ = ["browser", "page", "server"]  # fixtures
