"""Limits of a model: requests and tokens per minute and concurrent requests, shared by all agents of a process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from math import inf
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakValueDictionary

from attrs import Attribute, define, field, frozen

from agentloop.contracts.can_infer import DelayedRequest
from agentloop.errors import RateLimited
from agentloop.values.inference import InferenceResponse
from agentloop.values.reprs import ShownByField
from agentloop.values.value import Value

_MINUTE = 60.0
_MAX_GATES = 1_000


def _count(_: object, attribute: Attribute[Any], value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{attribute.name} has to be a whole number, not {value!r}")
    if value < 1:
        raise ValueError(f"{attribute.name} has to be at least 1, not {value}")


@frozen(eq=False, repr=False, kw_only=True)
class ModelLimits(Value):
    """The limits that a provider sets on the use of a model.

    All agents of a process that use the same model at the same address with the same key share one account of its use, across
    event loops and threads; each request is checked against the limits of its own configuration. Requests wait in the order of
    arrival. When the provider asks one of them to wait, all of them do.

    Attributes:
        requests_per_minute: the maximum number of requests in any 60 seconds, failed attempts included.
        tokens_per_minute: the maximum number of tokens in any 60 seconds. A request counts with the estimated tokens of its input
            and with `max_tokens` if that is set, and with its reported usage when it has ended. A request that is estimated above
            the limit is sent alone.
        concurrency: the maximum number of requests at once.
        shared_as: a name under which configurations share an account, such as those of models with a common limit.

    Raises:
        TypeError: for a limit that is not a whole number.
        ValueError: for a limit below 1.
    """

    requests_per_minute: int | None = field(default=None, validator=_count)
    tokens_per_minute: int | None = field(default=None, validator=_count)
    concurrency: int | None = field(default=None, validator=_count)
    shared_as: str = ""


@define(eq=False, repr=False)
class _SentRequest(ShownByField):
    """A request: when it was sent, its tokens, and whether it counts, as in its first minute."""

    time: float
    tokens: int
    counts: bool = True


@define(eq=False, repr=False)
class _Waiter(ShownByField):
    """A request that waits, and what wakes it up."""

    loop: asyncio.AbstractEventLoop
    awakened: asyncio.Future[None]

    def awaken(self) -> None:
        """Let the request try again; called in its event loop."""
        if not self.awakened.done():
            self.awakened.set_result(None)


class Permit:
    """The right to send one request; a context manager that ends with its response.

    Args:
        gate: what has admitted the request; None without limits.
        sent: the account of the request.
    """

    __slots__ = ("_gate", "_sent")

    def __init__(self, gate: ModelGate | None = None, sent: _SentRequest | None = None) -> None:
        self._gate = gate
        self._sent = sent

    def settle(self, response: InferenceResponse) -> InferenceResponse:
        """Replace the estimated tokens by those that the response reports, if it does, and return the response."""
        tokens = response.usage.total_tokens
        if self._gate is not None and self._sent is not None and tokens is not None:
            self._gate.correct(self._sent, tokens)
        return response

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._gate is not None:
            self._gate.leave()


UNLIMITED = Permit()


class ModelGate:
    """The account of the use of one model; admits requests in the order of arrival. Safe to use from any thread.

    The account is a record of the last minute and not a bucket, since the limits of several configurations apply to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: deque[_SentRequest] = deque()
        self._tokens = 0
        self._running = 0
        self._paused_until = -inf
        self._waiting: deque[_Waiter] = deque()

    def is_idle(self, now: float) -> bool:
        """Return whether the account is as good as new: no request in the last minute, none that runs or waits, no pause."""
        with self._lock:
            is_recent = bool(self._sent) and self._sent[-1].time + _MINUTE > now
            return not (is_recent or self._running or self._waiting or self._paused_until > now)

    async def enter(
        self,
        limits: ModelLimits,
        tokens: int,
        *,
        max_pause: float = inf,
        report: Callable[[DelayedRequest], None] | None = None,
    ) -> Permit:
        """Wait until a request may be sent.

        Args:
            limits: the limits of the request's configuration.
            tokens: the estimated tokens of the request.
            max_pause: the seconds to wait, at most, because the provider asked for it.
            report: called if the request has to wait, with the reason.

        Raises:
            RateLimited: the provider has asked for a longer pause.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            self._drop_dead()
            permit, delay, reason = self._try(limits, tokens, loop.time(), max_pause, is_first=not self._waiting)
            if permit is not None:
                return permit
            ahead = len(self._waiting)
            waiter = _Waiter(loop, loop.create_future())
            self._waiting.append(waiter)
        try:
            if report is not None:
                report(DelayedRequest(reason, ahead, 0.0 if delay == inf else delay))
            return await self._wait(waiter, limits, tokens, max_pause, delay)
        finally:
            with self._lock:
                self._remove(waiter)

    async def _wait(self, waiter: _Waiter, limits: ModelLimits, tokens: int, max_pause: float, delay: float) -> Permit:
        while True:
            await asyncio.wait((waiter.awakened,), timeout=None if delay == inf else delay)
            with self._lock:
                # The event loop of a waiter that was dropped runs again.
                if waiter not in self._waiting:
                    self._waiting.append(waiter)
                waiter.awakened = waiter.loop.create_future()
                is_first = self._waiting[0] is waiter
                permit, delay, _ = self._try(limits, tokens, waiter.loop.time(), max_pause, is_first=is_first)
            if permit is not None:
                return permit

    def pause(self, seconds: float) -> None:
        """Send no request for this time, as the provider has asked."""
        now = asyncio.get_running_loop().time()
        with self._lock:
            self._paused_until = max(self._paused_until, now + seconds)
            # Each of them may find the pause too long.
            for waiter in tuple(self._waiting):
                self._wake(waiter)

    def correct(self, sent: _SentRequest, tokens: int) -> None:
        """Set the tokens of a request to those that it has used."""
        with self._lock:
            if sent.counts:
                self._tokens += tokens - sent.tokens
            sent.tokens = tokens
            self._wake_first()

    def leave(self) -> None:
        """End a request."""
        with self._lock:
            self._running -= 1
            self._wake_first()

    def _try(
        self, limits: ModelLimits, tokens: int, now: float, max_pause: float, *, is_first: bool
    ) -> tuple[Permit | None, float, str]:
        """Admit a request if it may be sent; else return the seconds to wait, infinite for those behind others, and why."""
        pause = self._paused_until - now
        if pause > max_pause:
            raise RateLimited(
                f"the provider has asked another request to wait {pause:.0f} seconds, more than the {max_pause:g} of max_wait",
                retry_after=pause,
            )
        delay, reason = self._delay(limits, tokens, now)
        if not is_first:
            return None, inf, reason or "earlier requests"
        if delay > 0:
            return None, delay, reason
        sent = _SentRequest(now, tokens)
        self._sent.append(sent)
        self._tokens += tokens
        self._running += 1
        return Permit(self, sent), 0.0, ""

    def _delay(self, limits: ModelLimits, tokens: int, now: float) -> tuple[float, str]:
        """Return the seconds until the limits allow a request, and the limit that takes longest."""
        while self._sent and self._sent[0].time + _MINUTE <= now:
            expired = self._sent.popleft()
            expired.counts = False
            self._tokens -= expired.tokens
        if limits.concurrency is not None and self._running >= limits.concurrency:
            return inf, f"{_requests(limits.concurrency)} at once"
        delays = [(self._paused_until - now, "a pause that the provider asked for")]
        if limits.requests_per_minute is not None and len(self._sent) >= limits.requests_per_minute:
            last = self._sent[len(self._sent) - limits.requests_per_minute]
            delays.append((last.time + _MINUTE - now, f"{_requests(limits.requests_per_minute)} per minute"))
        if limits.tokens_per_minute is not None:
            until = self._tokens_free_at(limits.tokens_per_minute - min(tokens, limits.tokens_per_minute))
            delays.append((until - now, f"{limits.tokens_per_minute:,} tokens per minute"))
        delay, reason = max(delays)
        return (delay, reason) if delay > 0 else (0.0, "")

    def _tokens_free_at(self, allowed: int) -> float:
        """Return when the requests of the last minute have no more than these tokens."""
        tokens, until = self._tokens, -inf
        for sent in self._sent:
            if tokens <= allowed:
                break
            tokens -= sent.tokens
            until = sent.time + _MINUTE
        return until

    def _remove(self, waiter: _Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        self._wake_first()

    def _wake_first(self) -> None:
        self._drop_dead()
        if self._waiting:
            self._wake(self._waiting[0])

    def _wake(self, waiter: _Waiter) -> None:
        with suppress(RuntimeError):  # of an event loop that is closed
            waiter.loop.call_soon_threadsafe(waiter.awaken)

    def _drop_dead(self) -> None:
        """Remove the waiters at the front whose event loop has stopped: they could hold up all others."""
        while self._waiting and not self._waiting[0].loop.is_running():
            # If the event loop runs again, the waiter queues again.
            self._wake(self._waiting.popleft())


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


class _GateTable:
    """Gates by what shares them. Those that are idle are removed, since a program may use a key for each of its users."""

    def __init__(self) -> None:
        self._recent: dict[Hashable, ModelGate] = {}
        # Also finds the gates that were removed from the others but that an inference still uses.
        self._all: WeakValueDictionary[Hashable, ModelGate] = WeakValueDictionary()

    def gate(self, key: Hashable, now: float) -> ModelGate:
        """Return the gate of this key."""
        gate = self._all.get(key)
        if gate is None:
            gate = self._all[key] = ModelGate()
        if key not in self._recent and len(self._recent) >= _MAX_GATES:
            self._recent = {key: gate for key, gate in self._recent.items() if not gate.is_idle(now)}
        self._recent[key] = gate
        return gate


_LOCK = threading.Lock()
_SYSTEM_TABLE = _GateTable()
_TABLES: WeakKeyDictionary[asyncio.AbstractEventLoop, _GateTable] = WeakKeyDictionary()
"""The gates of each event loop. Those with a time of their own, such as virtual ones in tests, share nothing with the others."""


def model_gate(limits: ModelLimits, address: str, model: str, key: Hashable) -> ModelGate:
    """Return the gate of a model for the running event loop.

    Args:
        limits: the limits of the configuration, with the name under which they are shared.
        address: the address of the service.
        model: the model, by the provider's name for it.
        key: the API key, whose owner the limits are for.
    """
    loop = asyncio.get_running_loop()
    now = loop.time()
    with _LOCK:
        table = _TABLES.get(loop)
        if table is None:
            has_system_time = abs(now - time.monotonic()) < 1
            table = _TABLES[loop] = _SYSTEM_TABLE if has_system_time else _GateTable()
        return table.gate(("shared", limits.shared_as) if limits.shared_as else (address, model, key), now)
