"""Fixtures and options of all tests."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest import TestCase

import pytest
from hypothesis import is_hypothesis_test

from agentloop.events import EventBus, ProtocolMonitor
from agentloop.events.bus import ExecutionBus
from agentloop.executors import thread_pool
from tests.costs import CostMeter, name_of, read_slow_tests
from tests.generated import examples, load_settings, part_of, run_all, run_first_case
from tests.leaks import LeakFinder
from tests.limits import LONGEST
from tests.loaded import LoadedProcess, of_session, session_process
from tests.postgres import (
    db,
    is_for_other_database,
    journal_place,
    own_postgres,
    postgres_proxy,
    postgres_server,
    postgres_url,
)
from tests.shuffle import Worker, add_option, choose_seed, pass_seed, print_seed, shuffled

__all__ = [  # fixtures
    "db",
    "journal_place",
    "own_postgres",
    "postgres_proxy",
    "postgres_server",
    "postgres_url",
]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that processes which tests start can be interrupted


SLOWEST_FIRST = (
    "tests/service/cluster/test_cluster.py",
    "tests/durable/test_postgres_journal.py",
    "tests/durability/test_kills.py",
    "tests/corpus/test_judge.py",
    "tests/soak/test_histories.py",
    "tests/test_docs.py",
    "tests/service/server/test_hostile.py",
    "tests/chaos/test_chaos.py",
    "tests/models/text_calls/test_corpus.py",
    "tests/models/text_calls/test_hostile.py",
    "tests/testing/test_zoo.py",
    "tests/durable/test_objects.py",
    "tests/regressions/test_records.py",
    "tests/testing/test_driver_kit.py",
    "tests/testing/test_interceptor_kit.py",
    "tests/models/test_kept_connections.py",
    "tests/mcp/test_no_orphans.py",
    "tests/mcp/test_conformance.py",
    "tests/service/cli/test_mistakes.py",
    "tests/service/cluster/test_queued_tools.py",
    "tests/regressions/test_strangers.py",
    "tests/durable/test_sqlite_processes.py",
    "tests/models/programs/test_hostile_programs.py",
    "tests/mcp/test_real_servers.py",
    "tests/toolkits/sandboxes/test_sandboxes.py",
    "tests/models/wire_formats/test_incomplete_calls.py",
    "tests/toolkits/sandboxes/test_hostile_commands.py",
    "tests/test_docs_folders.py",
    "tests/durability/test_concurrent_recoveries.py",
    "tests/loop/test_isolation_stress.py",
    "tests/examples/test_programs.py",
    "tests/tools/test_type_oracles.py",
    "tests/policies/resilience/test_resilience.py",
    "tests/durable/test_recovery_nested.py",
    "tests/examples/test_shop_demo.py",
    "tests/testing/test_lawful.py",
    "tests/models/text_calls/test_grades.py",
    "tests/compilers/test_windows.py",
    "tests/executors/test_remote.py",
    "tests/mcp/test_hostile_servers.py",
    "tests/test_house.py",
    "tests/fuzz/test_shapes.py",
    "tests/durability/test_crash_sequences.py",
    "tests/viewer/test_page.py",
    "tests/models/test_plugins.py",
    "tests/durable/test_journal_kit.py",
    "tests/policies/test_budget_leases.py",
    "tests/service/cluster/test_outages.py",
    "tests/testing/test_equivalence.py",
    "tests/testing/test_eager_start_kit.py",
    "tests/examples/test_durable_demo.py",
    "tests/examples/test_extending.py",
    "tests/mcp/test_small_server.py",
    "tests/durable/test_stored_form.py",
    "tests/models/wire_formats/openai_chat/test_openai_chat_streams.py",
    "tests/service/server/test_several_servers.py",
    "tests/models/wire_formats/openai_responses/test_openai_responses_corpus.py",
    "tests/models/programs/test_program_recovery.py",
    "tests/durable/test_finding_work.py",
    "tests/testing/test_pytest_plugin.py",
)
"""A worker takes whole files, in this order: what takes long begins first, so that all workers end at nearly the same time."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the thousands of tests out of garbage collections, each of which would take a second."""
    run_first_case()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace lone surrogates in what a test has printed and logged: pytest-xdist cannot send them, and would end the run."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


_STUCK_SECONDS = 400.0
"""The time after which a process ends whose test goes on although pytest-timeout has failed it, which can only end what reacts."""
_WATCH_SECONDS = 30.0
"""How much of this time may be over when a test begins: the thread that counts it takes long to end on a busy machine."""
_STDERR = pytest.StashKey[int]()
_WATCHED = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End a process that is stuck with the stacks of its threads; pytest-xdist names the test and starts another process."""
    stash, now = item.config.stash, time.monotonic()
    if now - stash.get(_WATCHED, -_WATCH_SECONDS) >= _WATCH_SECONDS:
        faulthandler.dump_traceback_later(_STUCK_SECONDS, exit=True, file=stash[_STDERR])
        stash[_WATCHED] = now
    return (yield)


def pytest_sessionfinish() -> None:
    """Let a process end that has run its tests."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _idle_threads_have_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for idle threads without a short limit, so that no thread is left over on a busy machine."""
    monkeypatch.setattr(thread_pool, "_JOIN_SECONDS", LONGEST)


@pytest.fixture(autouse=True)
def _signals_are_handled_as_before() -> Iterator[None]:
    """Fail tests that leave a handler behind, with which Ctrl-C does nothing in the tests that follow."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.fixture(autouse=True)
def _root_logger_is_as_before() -> Iterator[None]:
    """Remove the handlers that a program has added, which write to the captured output of its test."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)


@pytest.fixture(autouse=True)
def _modules_of_a_test_are_forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove the modules that a test wrote and imported, so that another test can write one of the same name."""
    before = list(sys.modules)
    yield
    if list(sys.modules) == before:  # as after nearly every test; this is cheaper than two sets
        return
    folder = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - set(before):
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folder):
            del sys.modules[name]


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
    """Add the options `--replay-runs`, `--all-examples`, `--times`, `--leaks` and `--shuffle`."""
    add_option(parser)
    parser.addoption(
        "--leaks",
        action="store_true",
        help="name the tests after which a transport, task, thread, process or file is left",
    )
    parser.addoption(
        "--replay-runs", action="store_true", help="record every run of a loop, and replay it after its test"
    )
    parser.addoption(
        "--all-examples", action="store_true", help="run all generated cases of a test instead of a part of them"
    )
    parser.addoption(
        "--times", action="store_true", help="print the processor time of tests, and write the list of the slow ones"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Decide how many cases are generated, before the modules of tests are loaded."""
    config.stash[_STDERR] = os.dup(2)  # nothing is captured yet
    if not hasattr(config, "workerinput"):  # one process serves all workers
        stack = ExitStack()
        stack.enter_context(session_process())
        config.add_cleanup(stack.close)
    if config.getoption("--all-examples"):
        run_all()
    load_settings()
    choose_seed(config)
    if config.getoption("--leaks"):
        config.pluginmanager.register(LeakFinder(config))
    if config.getoption("--times"):
        config.pluginmanager.register(CostMeter(config))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Worker) -> None:
    """Have all workers of pytest-xdist run the tests in one order."""
    pass_seed(node)


@pytest.hookimpl(tryfirst=True)  # before pytest puts the tests together that share a fixture
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what has generated cases, by Hypothesis or in a module that asks for their number, and what is slow.

    The tests are shuffled if that is asked for; then the slow files are put first.
    """
    slow = read_slow_tests()
    for item in items:
        if name_of(item) in slow:
            item.add_marker("slow")
        function = item.function if isinstance(item, pytest.Function) else None
        is_state_machine = issubclass(getattr(item, "cls", None) or object, TestCase)
        module = getattr(item, "module", None)
        asks = getattr(module, "examples", None) is examples or getattr(module, "part_of", None) is part_of
        if is_state_machine or asks or is_hypothesis_test(function):
            item.add_marker("generated")
        if is_for_other_database(item):
            item.add_marker("heavy")
    if config.option.shuffle != "no":
        items[:] = shuffled(items, config.option.shuffle)
    ranks = {name: rank for rank, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say in which order the tests ran."""
    print_seed(terminalreporter, config)


@pytest.fixture(autouse=True)
def _every_run_is_replayed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--replay-runs`, replay every run of a test; nothing may differ, since the code is the same."""
    if not request.config.getoption("--replay-runs") or "unreplayed" in request.keywords:
        yield
        return
    from tests.durable.replaying.every_run import NOT_REPLAYABLE, check_runs, recorded_runs  # noqa: PLC0415  # loaded with the option only

    if request.node.originalname in NOT_REPLAYABLE:
        yield
        return
    with recorded_runs(monkeypatch) as runs:
        yield
    check_runs(runs)


@pytest.fixture(scope="session")
def loaded() -> LoadedProcess:
    """The process that has the package loaded, and runs programs in forks."""
    return of_session()


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


def pytest_xdist_auto_num_workers() -> int:
    """Start two workers for each processor, since tests wait for other processes half of the time."""
    return 2 * (os.cpu_count() or 1)
