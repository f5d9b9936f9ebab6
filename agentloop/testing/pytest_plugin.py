"""The pytest plugin of agentloop: fixtures, and the options `--record` and `--replay`; loaded by pytest if agentloop is installed.

It imports little, because every test session of a program that has agentloop installed loads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from agentloop.testing.clocks import CountingIds, ManualClock
    from agentloop.testing.event_recorder import EventRecorder
    from agentloop.values.state import AgentState

pytest_plugins = ("agentloop.testing.no_blocking",)

T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--record` and `--replay`."""
    group = parser.getgroup("agentloop", "agentloop: exchanges with model providers, and snapshots of runs")
    group.addoption(
        "--record",
        action="store_true",
        help="call real providers and write their answers beside the tests (http_exchanges); write snapshots (run_snapshot)",
    )
    group.addoption(
        "--replay",
        action="store_true",
        help="call no providers: a test whose exchanges were not recorded fails (http_exchanges)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options.

    Raises:
        pytest.UsageError: both were given.
    """
    if config.getoption("--record") and config.getoption("--replay"):
        raise pytest.UsageError("--record calls providers and --replay does not; give one of them")


@pytest.fixture
def event_recorder() -> EventRecorder:
    """Return a listener that keeps events: `loop.wiretap(event_recorder)`."""
    from agentloop.testing.event_recorder import EventRecorder

    return EventRecorder()


@pytest.fixture
def manual_clock() -> ManualClock:
    """Return a clock that moves only when the test advances it: `AgentLoop(…, clock=manual_clock)`."""
    from agentloop.testing.clocks import ManualClock

    return ManualClock()


@pytest.fixture
def counting_ids() -> CountingIds:
    """Return ids that count up, so that equal runs have equal ones: `AgentLoop(…, ids=counting_ids)`."""
    from agentloop.testing.clocks import CountingIds

    return CountingIds()


@pytest.fixture
def virtual_time() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Return `run_in_virtual_time`, which runs a coroutine while sleeps and timeouts take no time."""
    from agentloop.testing.clocks import run_in_virtual_time

    return run_in_virtual_time


@pytest.fixture
def http_exchanges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Answer the requests to providers from a recording beside the test, in `recordings/`; return its path.

    With `--record`, the providers are called and the recording is written. With `--replay`, a test without a recording fails;
    without either option, it calls the providers. When a recording is replayed, no API key has to be set.
    """
    from agentloop.models.presets import PRESETS
    from agentloop.testing.exchanges import recorded_exchanges, replayed_exchanges

    path = _file_of(request, "recordings")
    if request.config.getoption("--record"):
        with recorded_exchanges(path):
            yield path
        return
    if not path.exists():
        if request.config.getoption("--replay"):
            pytest.fail(f"there is no recording {path}; run the test with --record", pytrace=False)
        yield path
        return
    for name in {name for preset in PRESETS.values() for name in preset.all_key_variables}:
        monkeypatch.setenv(name, "replayed")
    with replayed_exchanges(path):
        yield path


@pytest.fixture
def run_snapshot(request: pytest.FixtureRequest) -> Callable[[AgentState], None]:
    """Return a function that compares a run with the snapshot beside the test, in `snapshots/`; with `--record`, it writes it."""
    from agentloop.testing.snapshots import check_snapshot

    count = 0

    def check(state: AgentState) -> None:
        nonlocal count
        count += 1
        path = _file_of(request, "snapshots", "" if count == 1 else f"-{count}")
        check_snapshot(state, path, update=bool(request.config.getoption("--record")))

    return check


def _file_of(request: pytest.FixtureRequest, folder: str, suffix: str = "") -> Path:
    """Return the file of a test: `<folder>/<module>/<test>.json` beside the module."""
    names = request.node.nodeid.partition("::")[2].replace("::", ".")
    name = re.sub(r"[^\w.-]+", "_", names).strip("_")
    module = request.path
    return module.parent / folder / module.stem / f"{name}{suffix}.json"
