"""Prints which implementations keep which laws, and the zoo, of which each member breaks its law: `make laws`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from agentloop import tool
from agentloop.compilers import ClearOldResults, ConversationWithCurrentToolTrace, SlidingWindow, WholeConversation
from agentloop.contracts import CanCompileMessages
from agentloop.durable import MemoryJournal
from agentloop.models import FallbackInference, get_mode
from agentloop.policies import MemoryStore
from agentloop.policies.budgets.memory_accounts import MemoryAccounts
from agentloop.testing import (
    NOTATIONS,
    AccountKit,
    CompilerKit,
    DriverKit,
    ExecutorKit,
    GrantKit,
    InferenceKit,
    InterceptorKit,
    JournalKit,
    ListenerKit,
    ModeKit,
    StoreKit,
    ToolKit,
    check_laws,
)
from agentloop.testing.kit import Kit
from agentloop.testing.scenario import valid_scenarios
from tests.testing import laws_page, test_driver_kit, test_executor_kit, test_interceptor_kit
from tests.testing.zoo import MEMBERS
from tests.testing.zoo.zoo import CONSEQUENCES, consequences

_EXAMPLES = 10


@tool(effect="pure")
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def implementations() -> Iterator[tuple[str, Kit]]:
    """Yield the implementations of the package, each with the kit that checks it."""
    for name, driver in test_driver_kit.FACTORIES.items():
        yield f"driver: {name}", DriverKit(driver, examples=_EXAMPLES)
    for name, driver in test_driver_kit.RETRYING.items():
        yield f"driver: {name}", DriverKit(driver, examples=_EXAMPLES, scenarios=valid_scenarios())
    for name, executor in test_executor_kit.FACTORIES.items():
        yield f"executor: {name}", ExecutorKit(executor, examples=_EXAMPLES)
    for name, interceptor in test_interceptor_kit.FACTORIES.items():
        is_limit = name == "budget"
        yield f"interceptor: {name}", InterceptorKit(interceptor, examples=_EXAMPLES, breaks_prefix=is_limit)
    for compiler in COMPILERS:
        yield f"compiler: {compiler}", CompilerKit(COMPILERS[compiler], examples=_EXAMPLES)
    for name in ("native", "structured", "validated", "parsed"):
        yield f"mode: {name}", _mode_kit(name)
    yield "inference: fallback", InferenceKit(lambda model: FallbackInference([model, model]), examples=_EXAMPLES)
    yield "journal: memory", JournalKit(MemoryJournal, examples=_EXAMPLES)
    yield "accounts: memory", AccountKit(MemoryAccounts, examples=_EXAMPLES)
    yield "grants: memory", GrantKit(MemoryJournal, examples=_EXAMPLES)
    yield "store: memory", StoreKit(MemoryStore, examples=_EXAMPLES)
    yield "tool: function", ToolKit(lambda: add, [{"a": 1}, {"a": 2, "b": 3}], examples=2)
    yield "listener: function", ListenerKit(lambda: lambda _: None, examples=_EXAMPLES)


COMPILERS: Mapping[str, Callable[[], CanCompileMessages]] = {
    "whole conversation": WholeConversation,
    "current tool trace": ConversationWithCurrentToolTrace,
    "sliding window": lambda: SlidingWindow(4),
    "clear old results": lambda: ClearOldResults(above=200),
}


def _mode_kit(name: str) -> ModeKit:
    return ModeKit(lambda: get_mode(name), NOTATIONS[name], examples=_EXAMPLES)


def print_implementations() -> bool:
    """Print a line for each implementation; return whether all keep their laws."""
    lawful = True
    for name, kit in implementations():
        report = check_laws(kit)
        lawful = lawful and report.is_lawful
        marks = " ".join(f"{law}{'!' if law in report.broken else ''}" for law in kit.laws)
        sys.stdout.write(f"{name:40} {'keeps' if report.is_lawful else 'BREAKS'} {marks}\n")
        for failure in [*report.violations, *report.unchecked]:
            sys.stdout.write(f"    {failure}\n")
        sys.stdout.flush()
    return lawful


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
