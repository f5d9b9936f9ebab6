"""Fixtures and options of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from agentloop.events import EventBus, ProtocolMonitor
from agentloop.events.bus import ExecutionBus
from agentloop.executors import thread_pool
from tests.limits import LONGEST

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that processes which tests start can be interrupted


settings.register_profile(
    "agentloop",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("agentloop")


@pytest.fixture(autouse=True)
def _idle_threads_have_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for idle threads without a short limit, so that no thread is left over on a busy machine."""
    monkeypatch.setattr(thread_pool, "_JOIN_SECONDS", LONGEST)


@pytest.fixture(autouse=True)
def _every_run_is_monitored(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Attach a monitor to the bus of every loop, and fail tests whose runs violate the grammar (law 7)."""
    if "unmonitored" in request.keywords:
        yield
        return
    monitors: dict[EventBus, ProtocolMonitor] = {}
    begin = EventBus.for_execution

    def begin_monitored(self: EventBus) -> ExecutionBus:
        if self not in monitors:
            monitors[self] = ProtocolMonitor()
            self.wiretap(monitors[self])
        return begin(self)

    monkeypatch.setattr(EventBus, "for_execution", begin_monitored)
    yield
    for monitor in monitors.values():
        assert not monitor.violations, monitor.violations


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--replay`."""
    parser.addoption("--replay", action="store_true", help="record every run of a loop, and replay it after its test")


@pytest.fixture(autouse=True)
def _every_run_is_replayed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--replay`, replay every run of a test; nothing may differ, since the code is the same."""
    if not request.config.getoption("--replay") or "unreplayed" in request.keywords:
        yield
        return
    from tests.replay.every_run import NOT_REPLAYABLE, check_runs, recorded_runs  # noqa: PLC0415  # loaded with the option only

    if request.node.originalname in NOT_REPLAYABLE:
        yield
        return
    with recorded_runs(monkeypatch) as runs:
        yield
    check_runs(runs)


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Return the folder of the corpus of real exchanges; tests that need it are skipped where it is absent."""
    path = Path(os.environ.get("AGENTLOOP_CORPUS") or Path(__file__).parents[1] / ".." / "shared" / "corpus")
    if not path.is_dir():
        pytest.skip("the corpus of recorded exchanges is not here; AGENTLOOP_CORPUS names its folder")
    return path


@pytest.fixture(scope="session")
def more_corpus(corpus: Path) -> Path:
    """Return the folder of the exchanges of Bedrock and Cohere; tests that need it are skipped where it is absent."""
    path = corpus.parent / "corpus-more"
    if not path.is_dir():
        pytest.skip("the recorded exchanges of Bedrock and Cohere are not next to the corpus")
    return path
