"""The law suite of functions that return API keys."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from inspect import isawaitable

from attrs import define
from hypothesis import strategies as st

from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.kit import PLACES, Kit, checked_factory, require
from agentloop.testing.surroundings import Surroundings
from agentloop.values.secrets import KeyFunction, Secret

_PATIENCE = 2.0
"""Seconds after which a call that does not end is taken for one that never does."""
_KEY = "sk-kit-0123456789-"


class _SourceFails(OSError):
    """The error of a source that has no key."""


@define(eq=False)
class _Vault:
    """What the function asks for a key: it takes a moment, its key changes, and it can fail."""

    number: int = 1
    fails: bool = False
    holds: asyncio.Event | None = None
    asked: int = 0

    @property
    def key(self) -> str:
        """The key that is valid now."""
        return f"{_KEY}{self.number}"

    async def fetch(self) -> str:
        """Return the key.

        Raises:
            OSError: there is none.
        """
        self.asked += 1
        await asyncio.sleep(0)
        if self.holds is not None:
            await self.holds.wait()
        if self.fails:
            raise _SourceFails("the vault is sealed")
        return self.key


class KeyFunctionKit(Kit):
    """Checks a function that returns keys, as the `api_key` of a model takes it.

        KeyFunctionKit(lambda fetch: Cached(fetch, seconds=60), expire=lambda function: function.forget())

    Args:
        factory: creates the function; takes an async function that returns the key of a vault, and raises `OSError` where there is none.
        expire: makes the function forget a key that it keeps for a time, as when that time is over; None where it keeps none.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (9, 18, 19, 34, YIELDING, 49)

    def __init__(
        self,
        factory: Callable[[Callable[[], Awaitable[str]]], KeyFunction],
        *,
        expire: Callable[[KeyFunction], None] | None = None,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[Callable[[], Awaitable[str]]], KeyFunction] = checked_factory(factory)
        self.expire = expire

    def law_9(self) -> None:
        """A caller that is cancelled takes nothing away from another one."""

        async def check(ticks: int) -> None:
            held = asyncio.Event()
            vault = _Vault(holds=held)
            function = self.factory(vault.fetch)
            first, second = (asyncio.ensure_future(_call(function)) for _ in range(2))
            await _turns(ticks)
            first.cancel()
            await _turns(3)
            held.set()
            await asyncio.wait([first, second], timeout=_PATIENCE)
            shown = _outcome(second)
            require(9, shown == vault.key, f"one of two callers was cancelled, and the other one got {shown}")

        self.for_all(st.integers(0, 4), lambda ticks: asyncio.run(check(ticks)))

    def law_18(self) -> None:
        """A key is in no repr, in no log and in no output."""

        async def check(number: int) -> None:
            vault = _Vault(number)
            function = self.factory(vault.fetch)
            with _watched() as written:
                await _call(function)
                vault.fails = True
                self._expire(function)
                await asyncio.gather(_call(function), return_exceptions=True)
            texts = {"the repr": repr(function), "its str": str(function), "the log or the output": written.getvalue()}
            found = [where for where, text in texts.items() if vault.key in text]
            require(18, not found, f"the key is in {', '.join(found)}")

        self.for_all(st.integers(1, 9), lambda number: asyncio.run(check(number)))

    def law_19(self) -> None:
        """When a call has ended, no task of it is left."""

        async def check(fails: bool) -> None:  # noqa: FBT001  # an example
            vault = _Vault(fails=fails)
            function, before = self.factory(vault.fetch), Surroundings.now()
            await asyncio.gather(_call(function), return_exceptions=True)
            await before.require_tasks_and_sockets()

        self.for_all(st.booleans(), lambda fails: asyncio.run(check(fails)))

    def law_34(self) -> None:
        """A call that is cancelled raises that, and the next one gets a key."""

        async def check(ticks: int) -> None:
            vault = _Vault(holds=asyncio.Event())
            function = self.factory(vault.fetch)
            for _ in range(PLACES):
                task = asyncio.ensure_future(_call(function))
                await _turns(ticks)
                task.cancel()
                await asyncio.wait([task], timeout=_PATIENCE)
                require(34, task.cancelled(), "a call was cancelled, and did not raise that")
            vault.holds = None
            later = asyncio.ensure_future(_call(function))
            await asyncio.wait([later], timeout=_PATIENCE)
            shown = _outcome(later)
            require(34, shown == vault.key, f"after a call that was cancelled, the next one got {shown}")

        self.for_all(st.integers(1, 4), lambda ticks: asyncio.run(check(ticks)))

    def law_45(self) -> None:
        """The event loop runs while the function waits for a key."""

        @refuse_blocking
        def holds(steps: list[str]) -> None:
            asyncio.run(self._use(steps))

        self.for_each((["call", "call"], ["call", "rotate", "call"]), holds)

    async def _use(self, steps: list[str]) -> None:
        vault = _Vault()
        function = self.factory(vault.fetch)
        for step in steps:
            if step == "rotate":
                vault.number += 1
                self._expire(function)
            else:
                await _call(function)

    def law_49(self) -> None:
        """A key is asked for by a call alone, is the one that is valid then, and a failure is an error."""
        steps = st.lists(st.sampled_from(["call", "rotate", "fail", "mend"]), min_size=1, max_size=8)
        for fixed in (["call", "rotate", "call"], ["call", "fail", "call", "mend", "call"], ["fail", "call"]):
            asyncio.run(self._check_steps(fixed))
        self.for_all(steps, lambda listed: asyncio.run(self._check_steps(listed)))

    async def _check_steps(self, steps: list[str]) -> None:
        vault = _Vault()
        function = self.factory(vault.fetch)
        require(49, not vault.asked, "the function asked for a key when it was made")
        for step in steps:
            if step == "rotate":
                vault.number += 1
            elif step in {"fail", "mend"}:
                vault.fails = step == "fail"
            else:
                call = asyncio.ensure_future(_call(function))
                await asyncio.wait([call], timeout=_PATIENCE)
                shown = _outcome(call)
                if vault.fails:
                    is_error = call.done() and not call.cancelled() and isinstance(call.exception(), Exception)
                    require(49, is_error, f"the source of the key failed, and the function returned {shown}")
                else:
                    require(49, shown == vault.key, f"the key is {vault.key!r}, and the function returned {shown!r}")
                continue
            self._expire(function)

    def _expire(self, function: KeyFunction) -> None:
        if self.expire is not None:
            self.expire(function)


async def _call(function: KeyFunction) -> str:
    """Call the function as a model does."""
    returned = function()
    key: object = await returned if isawaitable(returned) else returned
    return key.reveal() if isinstance(key, Secret) else str(key)


def _outcome(task: asyncio.Future[str]) -> str:
    """Return what a call gave, or how it ended."""
    if not task.done():
        task.cancel()
        return "nothing in time"
    if task.cancelled():
        return "a cancellation"
    error = task.exception()
    return task.result() if error is None else f"{type(error).__name__}: {error}"


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@contextmanager
def _watched() -> Iterator[io.StringIO]:
    """Yield what is logged and printed."""
    written = io.StringIO()
    handler, root, own = logging.StreamHandler(written), logging.getLogger(), logging.getLogger("agentloop")
    level, own_level, disabled = root.level, own.level, root.manager.disable
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    own.setLevel(logging.DEBUG)  # a check runs without the log of the package
    logging.disable(logging.NOTSET)
    try:
        with redirect_stdout(written), redirect_stderr(written):
            yield written
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        own.setLevel(own_level)
        logging.disable(disabled)
