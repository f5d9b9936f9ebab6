"""The browser and the pages of the tests of the viewer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentloop.service.trace import Trace, build_trace, write_trace_page
from agentloop.service.trace.document import TraceComparison
from agentloop.service.trace.page import VIEWER
from tests.service.trace.sample import ORDER, recorded_order
from tests.viewer.browser import Browser, Page, browser_path


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless browser; tests that need it are skipped where `make test` could not install it."""
    path = browser_path()
    if path is None or not VIEWER.exists():
        pytest.skip("the page of the viewer or its browser is not here; `make test` makes both where npm is installed")
    browser = Browser(path, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of the browser; nothing may have gone wrong in it at the end."""
    with browser.page() as page:
        page.use_theme("light")
        yield page
        assert page.problems == []


@pytest.fixture(scope="session")
def order() -> Trace:
    """The trace of an execution with everything that a trace can show."""
    return asyncio.run(build_trace(recorded_order("values"), ORDER))


@pytest.fixture
def show(page: Page, tmp_path: Path) -> Callable[..., Page]:
    """Return a function that opens the page of a trace as a file."""

    def show(trace: Trace, compare: TraceComparison | None = None) -> Page:
        path = tmp_path / "trace.html"
        write_trace_page(path, trace, compare)
        page.open(path.as_uri())
        page.settle()
        return page

    return show
