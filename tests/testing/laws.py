"""Prints which implementations keep which laws, and the zoo, of which each member breaks its law: `make laws`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from agentloop import tool
from agentloop.compilers import ClearOldResults, ConversationWithCurrentToolTrace, SlidingWindow, WholeConversation
from agentloop.contracts import CanCompileMessages
from agentloop.durable import FolderObjects, MemoryJournal, SqliteJournal
from agentloop.interception import StopOnRepeatedCalls, ToolSelection
from agentloop.models import FallbackInference, get_mode, wire_format
from agentloop.models.keys import fetch_key
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS
from agentloop.policies import MemoryStore, Resilience
from agentloop.policies.budgets.memory_accounts import MemoryAccounts
from agentloop.testing import (
    NOTATIONS,
    AccountKit,
    CompilerKit,
    DriverKit,
    EagerStartKit,
    EquivalenceKit,
    EventBusKit,
    ExecutorKit,
    GrantKit,
    InferenceKit,
    InterceptorKit,
    JournalKit,
    KeyFunctionKit,
    ListenerKit,
    ModeKit,
    ObjectStoreKit,
    StoreKit,
    ToolKit,
    WireFormatKit,
    check_laws,
)
from agentloop.testing.kit import Kit
from agentloop.testing.scenario import valid_scenarios
from tests.testing import (
    laws_page,
    test_driver_kit,
    test_eager_start_kit,
    test_equivalence,
    test_executor_kit,
    test_interceptor_kit,
    test_part_kits,
)
from tests.testing.zoo import MEMBERS
from tests.testing.zoo.wire_formats import REFUSALS, answers_of
from tests.testing.zoo.zoo import CONSEQUENCES, consequences

_EXAMPLES = 10
_FEW_EXAMPLES = 3
"""Where each example opens files."""


@tool(effect="pure")
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def implementations(folder: Path, examples: int = _EXAMPLES) -> Iterator[tuple[str, Kit]]:
    """Yield the implementations of the package, each with the kit that checks it.

    Args:
        folder: where journals and stores may write.
        examples: how many examples each kit tries.
    """
    for name, driver in test_driver_kit.FACTORIES.items():
        yield f"driver: {name}", DriverKit(driver, examples=examples)
    for name, driver in test_driver_kit.RETRYING.items():
        yield f"driver: {name}", DriverKit(driver, examples=examples, scenarios=valid_scenarios())
    for name in (*test_equivalence.TOOL_CALLING, *test_equivalence.REACT):
        factory = test_equivalence.factory_for(name, streaming=True)
        yield f"equivalence: {name}", EquivalenceKit(factory, examples=examples)
    for name, layers in test_eager_start_kit.INTERCEPTORS.items():
        kit = EagerStartKit(test_eager_start_kit.driver, interceptors=layers, examples=examples)
        yield f"eager start: {name}", kit
    for name, executor in test_executor_kit.FACTORIES.items():
        yield f"executor: {name}", ExecutorKit(executor, examples=examples)
    yield from _interceptors(examples)
    for compiler in COMPILERS:
        yield f"compiler: {compiler}", CompilerKit(COMPILERS[compiler], examples=examples)
    for name in test_equivalence.TOOL_CALLING:
        yield f"mode: {name}", _mode_kit(name, examples)
    yield "inference: fallback", InferenceKit(lambda model: FallbackInference([model, model]), examples=examples)
    for name in WIRE_FORMATS:
        create = partial(wire_format, name)
        yield f"wire format: {name}", WireFormatKit(create, answers_of(name), REFUSALS, examples=examples)
    yield "key: fetched", KeyFunctionKit(lambda fetch: partial(fetch_key, fetch, "model"), examples=examples)
    yield from _stores(folder, examples)
    yield "tool: function", ToolKit(lambda: add, [{"a": 1}, {"a": 2, "b": 3}], examples=2)
    yield "listener: function", ListenerKit(lambda: lambda _: None, examples=examples)
    for name, bus in test_part_kits.BUSES.items():
        yield f"event bus: {name}", EventBusKit(bus, examples=examples)


def _interceptors(examples: int) -> Iterator[tuple[str, Kit]]:
    for name, interceptor in test_interceptor_kit.FACTORIES.items():
        is_limit = name == "budget"
        yield f"interceptor: {name}", InterceptorKit(interceptor, examples=examples, breaks_prefix=is_limit)
    yield "interceptor: repeated calls", InterceptorKit(StopOnRepeatedCalls, examples=examples)
    yield "interceptor: resilience", InterceptorKit(Resilience, examples=examples)
    selection = InterceptorKit(lambda: ToolSelection(["echo", "plain"]), examples=examples, breaks_prefix=True)
    yield "interceptor: tool selection", selection


def _stores(folder: Path, examples: int) -> Iterator[tuple[str, Kit]]:
    def sqlite(**options: Any) -> SqliteJournal:
        return SqliteJournal(Path(mkdtemp(dir=folder)) / "journal.db", synchronous="normal", **options)

    def reopened(journal: Any) -> SqliteJournal:
        return SqliteJournal(journal.path)

    def objects() -> FolderObjects:
        return FolderObjects(Path(mkdtemp(dir=folder)))

    def reopened_objects(store: Any) -> FolderObjects:
        return FolderObjects(store.path)

    yield "journal: memory", JournalKit(MemoryJournal, examples=examples)
    yield "journal: sqlite", JournalKit(sqlite, reopen=reopened, examples=examples)
    yield "accounts: memory", AccountKit(MemoryAccounts, examples=examples)
    yield "accounts: memory journal", AccountKit(MemoryJournal, examples=examples)
    yield "accounts: sqlite", AccountKit(sqlite, examples=min(examples, _FEW_EXAMPLES))
    yield "grants: memory", GrantKit(MemoryJournal, examples=examples)
    yield "grants: sqlite", GrantKit(sqlite, examples=min(examples, _FEW_EXAMPLES))
    yield "store: memory", StoreKit(MemoryStore, examples=examples)
    yield "objects: folder", ObjectStoreKit(objects, reopen=reopened_objects, examples=examples)


COMPILERS: Mapping[str, Callable[[], CanCompileMessages]] = {
    "whole conversation": WholeConversation,
    "current tool trace": ConversationWithCurrentToolTrace,
    "sliding window": lambda: SlidingWindow(4),
    "clear old results": lambda: ClearOldResults(above=200),
}


def _mode_kit(name: str, examples: int) -> ModeKit:
    return ModeKit(lambda: get_mode(name), NOTATIONS[name], examples=examples)


def print_implementations() -> bool:
    """Print a line for each implementation; return whether all keep their laws."""
    with TemporaryDirectory() as folder:
        kept = [_print_report(name, kit) for name, kit in implementations(Path(folder))]
    return all(kept)


def _print_report(name: str, kit: Kit) -> bool:
    report = check_laws(kit)
    marks = " ".join(f"{law}{'!' if law in report.broken else ''}" for law in kit.laws)
    sys.stdout.write(f"{name:40} {'keeps' if report.is_lawful else 'BREAKS'} {marks}\n")
    for failure in [*report.violations, *report.unchecked]:
        sys.stdout.write(f"    {failure}\n")
    sys.stdout.flush()
    return report.is_lawful


def print_zoo(*, write: bool, only: str) -> bool:
    """Print a line for each member of the zoo; return whether exactly the listed laws fail."""
    found = dict(consequences())
    expected = True
    for member in MEMBERS:
        if not member.id.startswith(only):
            continue
        broken = member.broken_laws(_EXAMPLES)
        also = [law for law in broken if law != member.law]
        is_right = member.law in broken and (write or tuple(also) == member.also)
        expected, found[member.id] = expected and is_right, also
        consequence = f", and so {', '.join(map(str, also))}" if also else ""
        verb = "breaks" if member.law in broken else "SHOULD BREAK"
        mark = "" if is_right else f"   NOT AS LISTED: {member.also}"
        sys.stdout.write(f"{member.kit:16} {member.name:28} {verb} {member.law}{consequence}{mark}\n")
        sys.stdout.flush()
    if write:
        CONSEQUENCES.write_text(json.dumps({key: laws for key, laws in sorted(found.items()) if laws}, indent=1) + "\n")
        consequences.cache_clear()
        laws_page.write()
    return expected


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="list what fails in the zoo, and write the page about laws"
    )
    parser.add_argument("--only", default="", help="the beginning of the ids of members, such as ExecutorKit-16")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    kept = bool(options.write or options.only) or print_implementations()
    expected = print_zoo(write=options.write, only=options.only)
    sys.stdout.write(f"{len(MEMBERS)} members, {time.monotonic() - began:.0f} s\n")
    sys.exit(not (kept and expected))


if __name__ == "__main__":
    main()
