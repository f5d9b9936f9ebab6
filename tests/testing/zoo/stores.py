"""Stores that break one law each: by the names of states, by time, after errors and cancellations, and beside other processes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from attrs import evolve

from agentloop.contracts import CanKeepState, Namespace
from agentloop.contracts.can_keep_accounts import AccountChange, AccountUpdate, CanKeepAccounts
from agentloop.contracts.can_keep_state import Update
from agentloop.policies import MemoryStore
from agentloop.policies.budgets.memory_accounts import MemoryAccounts
from agentloop.testing import AccountKit, StoreKit
from agentloop.values.accounts import AccountKey
from tests.testing.zoo.zoo import Member


class FoldsKeys(MemoryStore):
    """Breaks law 9: keys that differ in the case of a letter are one."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        return await super().update(namespace, key.lower(), now, transition)


class CutsKeys(MemoryStore):
    """Breaks law 9: a column for keys has 255 characters."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        return await super().update(namespace, key[:255], now, transition)


class JoinsNames(MemoryStore):
    """Breaks law 9: a state has one name, of which a colon separates two parts."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        return await super().update(evolve(namespace, name=""), f"{namespace.name}:{key}", now, transition)


SHARED = MemoryStore()


class SharesStates(CanKeepState):
    """Breaks law 9: all stores of the process are one."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        return await SHARED.update(namespace, key, now, transition)


class ExpiresInWholeSeconds(MemoryStore):
    """Breaks law 36: a state lives for whole seconds."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        def rounded(state: Any) -> Any:
            update = transition(state)
            return evolve(update, expires_at=float(math.ceil(update.expires_at)))

        return await super().update(namespace, key, now, rounded)


class DeletesFirst(MemoryStore):
    """Breaks law 36: a transition that raises loses the state."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        def take(state: Any) -> Update[Any, Any]:
            return Update(None, now, state)

        state = await super().update(namespace, key, now, take)
        return await super().update(namespace, key, now, lambda _: transition(state))


class KeepsLock(MemoryStore):
    """Breaks law 36: an update that is cancelled keeps the lock."""

    def __init__(self) -> None:
        super().__init__()
        self.locks: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        lock = self.locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        await lock.acquire()
        try:
            await asyncio.sleep(0)
            result = await super().update(namespace, key, now, transition)
        except Exception:
            lock.release()
            raise
        lock.release()
        return result


class KeepsCopies(CanKeepState):
    """Breaks law 36: what another process has stored meanwhile is not read."""

    def __init__(self, inner: CanKeepState | None = None) -> None:
        self.inner = inner or MemoryStore()
        self.copies = MemoryStore()

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        async def copy() -> Any:
            return await self.copies.update(namespace, key, now, lambda known: Update(known, now, known))

        known = await copy()

        def change(stored: Any) -> Any:
            return transition(stored if known is None else known)

        update = await self.inner.update(namespace, key, now, lambda stored: _told(change(stored)))
        await self.copies.update(namespace, key, now, lambda _: update)
        return update.result


def _told(update: Any) -> Any:
    return evolve(update, result=update)


class EvictsWhatCameFirst(MemoryStore):
    """Breaks law 36: the state that was stored first is evicted, however often it was used since."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        known = self._entries.get(namespace.name)
        order = list(known.states) if known else []
        result = await super().update(namespace, key, now, transition)
        states = self._entries[namespace.name].states
        for each in reversed([each for each in order if each in states]):
            states.move_to_end(each, last=False)
        return result


class UsesABlockingClient(MemoryStore):
    """Breaks law 45: the event loop waits for the server that has the states."""

    async def update(self, namespace: Namespace, key: str, now: float, transition: Any) -> Any:
        time.sleep(0.0001)  # noqa: ASYNC251  # the fault
        return await super().update(namespace, key, now, transition)


class FoldsNames(MemoryAccounts):
    """Breaks law 9: accounts of owners whose names differ in the case of a letter are one."""

    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        return await super().update_account(evolve(key, owner=key.owner.lower()), change)


class SettlesErrors(MemoryAccounts):
    """Breaks law 36: the error of a change is not raised."""

    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        try:
            return await super().update_account(key, change)
        except KeyError:
            return await super().update_account(key, lambda state: state)


def _store(law: int, store: Callable[[], CanKeepState], reopen: Any = None) -> Member:
    return Member(store, law, lambda examples: StoreKit(store, reopen=reopen, examples=examples))


def _accounts(law: int, store: Callable[[], CanKeepAccounts]) -> Member:
    return Member(store, law, lambda examples: AccountKit(store, examples=examples))


STORES: tuple[Member, ...] = (
    _store(9, FoldsKeys),
    _store(9, CutsKeys),
    _store(9, JoinsNames),
    _store(9, SharesStates),
    _store(36, EvictsWhatCameFirst),
    _store(36, ExpiresInWholeSeconds),
    _store(36, DeletesFirst),
    _store(36, KeepsLock),
    _store(36, KeepsCopies, lambda store: KeepsCopies(store.inner)),
    _store(45, UsesABlockingClient),
    _accounts(9, FoldsNames),
    _accounts(36, SettlesErrors),
)
