"""A pytest plugin that fails tests whose code blocks an event loop: the fixture `no_blocking`, and the option `--no-blocking`."""

from __future__ import annotations

from collections.abc import Generator

import pytest

_SECONDS = 1.0
_OPTION = "--no-blocking"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--no-blocking`."""
    parser.getgroup("agentloop").addoption(
        _OPTION,
        type=float,
        metavar="SECONDS",
        help=f"fail each test in which some code keeps an event loop from going on for this time; "
        f"without the option, each with the fixture no_blocking, after {_SECONDS:g} s",
    )


@pytest.fixture
def no_blocking() -> None:
    """Fail the test if some code keeps an event loop of its thread from going on for a second, or for that of `--no-blocking`."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch over the event loops that a test runs in its thread."""
    seconds: float | None = item.config.getoption(_OPTION)
    if seconds is None and "no_blocking" not in getattr(item, "fixturenames", ()):
        return (yield)
    from agentloop.loop.stopwatch import BlockingCode, LoopWatch

    found: list[BlockingCode] = []
    watch = LoopWatch(seconds or _SECONDS, found.append)
    watch.begin(None)
    try:
        result = yield
    finally:
        watch.close()
    if found:
        stack = "".join(f"\n  {each}" for each in found[0].stack)
        pytest.fail(
            f"the event loop was blocked for {found[0].seconds:.1f} s by {found[0].place}{stack}", pytrace=False
        )
    return result
