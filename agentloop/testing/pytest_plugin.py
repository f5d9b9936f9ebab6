"""The pytest plugin of agentloop: fixtures, `--record`, `--replay` and `--agentloop-kit`; loaded by pytest if agentloop is installed.

It imports little, because every test session of a program that has agentloop installed loads it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from agentloop.testing.clocks import CountingIds, ManualClock
    from agentloop.testing.event_recorder import EventRecorder
    from agentloop.testing.kit import Kit
    from agentloop.values.state import AgentState

pytest_plugins: tuple[str, ...] = ("agentloop.testing.no_blocking",)

T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
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
    group.addoption(
        "--agentloop-kit",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="check the laws of a contract, each as a test: the class that implements it, a function that returns such an object, or a kit",
    )
    group.addoption(
        "--agentloop-kit-as",
        default="",
        metavar="KIND",
        help="what --agentloop-kit names, such as journal or driver, where its class does not tell",
    )
    group.addoption(
        "--agentloop-kit-examples",
        type=int,
        default=100,
        metavar="N",
        help="how many examples each law is tried with (100)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options.

    Raises:
        pytest.UsageError: two were given that exclude each other, or one without what it is about.
    """
    if config.getoption("--record") and config.getoption("--replay"):
        raise pytest.UsageError("--record calls providers and --replay does not; give one of them")
    if config.getoption("--agentloop-kit"):
        # Without paths of tests, the laws are all that is meant.
        if config.args_source is not config.ArgsSource.ARGS:
            config.args = []
    elif config.getoption("--agentloop-kit-as"):
        raise pytest.UsageError("--agentloop-kit-as says what --agentloop-kit names, which is missing")


@pytest.hookimpl(tryfirst=True)  # before other plugins select items
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add an item for each law of the kits that were asked for.

    Raises:
        pytest.UsageError: a name is wrong, or no single kit fits.
    """
    for path in config.getoption("--agentloop-kit"):
        items += _KitItems.from_parent(session, name=path, nodeid=path).collect()


class _KitItems(pytest.Collector):
    """The laws of a kit, for the implementation that the name of this node leads to."""

    def collect(self) -> list[pytest.Item]:
        from agentloop.errors import ConfigurationError
        from agentloop.testing.kit import name_of_test
        from agentloop.testing.kit_choice import kit_of

        folder, options = str(self.config.invocation_params.dir), self.config
        if folder not in sys.path:  # as `python -m pytest` does
            sys.path.insert(0, folder)
        kind, examples = options.getoption("--agentloop-kit-as"), options.getoption("--agentloop-kit-examples")
        try:
            kit = kit_of(self.name, kind, examples=examples)
        except ConfigurationError as error:
            raise pytest.UsageError(f"--agentloop-kit {self.name}: {error}") from None
        name = type(kit).__name__
        return [_LawItem.from_parent(self, name=f"{name}::{name_of_test(law)}", kit=kit, law=law) for law in kit.laws]


class _LawItem(pytest.Item):
    """The check of one law."""

    def __init__(self, *, kit: Kit, law: int, **options: Any) -> None:
        super().__init__(**options)
        self.kit = kit
        self.law = law

    def runtest(self) -> None:
        self.kit.check(self.law)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the violation alone: the traceback is that of the kit."""
        from agentloop.testing.kit import LawNotChecked, LawViolation

        if isinstance(excinfo.value, LawViolation | LawNotChecked):
            cause = excinfo.value.__cause__
            return str(excinfo.value) + (f"\n  raised by: {_place_of(cause)}" if cause is not None else "")
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.nodeid


def _place_of(error: BaseException) -> str:
    """Return where an error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


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
