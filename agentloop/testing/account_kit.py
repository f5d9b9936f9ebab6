"""The law suite of stores for accounts of money and tokens."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from hypothesis import strategies as st

from agentloop.contracts.can_keep_accounts import CanKeepAccounts
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.testing.samples import TWINS
from agentloop.values.accounts import AccountHold, AccountKey, AccountState, Spending, SpendingLimit

_THREADS, _UPDATES = 4, 10
_MANY = 3
_PATIENCE = 5.0
_LIMIT = SpendingLimit()
_KEYS = [
    AccountKey("tickets"),
    AccountKey("tickets", "red"),
    AccountKey("tickets", "", "2026-11"),
    AccountKey("tickets", "red", "2026-11-29"),
    AccountKey("it's \ud800 'é'", 'a", "b'),
]


class AccountKit(Kit):
    """Checks a store against the laws of `CanKeepAccounts`.

    Args:
        factory: creates a new, empty store, which may be used from several threads, each with an event loop of its own.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (9, 36)

    def __init__(self, factory: Callable[[], CanKeepAccounts], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanKeepAccounts] = checked_factory(factory)

    def law_9(self) -> None:
        """An account is seen under its own name, owner and period alone, and the list has all accounts in order."""
        orders = st.lists(st.sampled_from(_KEYS), max_size=12)
        self.for_all(orders, lambda keys: asyncio.run(self._check_keys(keys)))
        pairs = [[AccountKey(one), AccountKey(other)] for one, other in TWINS]
        pairs += [[AccountKey("tickets", one), AccountKey("tickets", other)] for one, other in TWINS]
        self.for_each(pairs, lambda keys: asyncio.run(self._check_keys(keys)))
        asyncio.run(self._check_instances())

    def law_36(self) -> None:
        """Each change gets what the previous one returned, whole and in order; concurrent changes are made one by one."""
        amounts = st.lists(st.tuples(st.integers(0, 10**20), st.integers(0, 10**20)), max_size=8)
        self.for_all(amounts, lambda spent: asyncio.run(self._check_states(spent)))
        self._check_threads()
        asyncio.run(self._check_failing())

    async def _check_failing(self) -> None:
        """Check that a change that raises changes nothing, and that the next one is not kept waiting."""
        store, key = self.factory(), _KEYS[0]
        await _spend(store, key, "one", Spending(1))
        before = await store.accounts()

        def fail(_: AccountState) -> AccountState:
            raise KeyError("the kit")

        for _ in range(_MANY):
            with suppress(KeyError):
                await asyncio.wait_for(store.update_account(key, fail), _PATIENCE)
                require(36, condition=False, reason="the error of a change is not raised")
        after = await store.accounts()
        require(36, after == before, f"after a change that raised, the accounts are {after}, and {before} before it")
        await asyncio.wait_for(_spend(store, key, "two", Spending(1)), _PATIENCE)

    async def _check_instances(self) -> None:
        """Check that two new stores have nothing in common."""
        first, second = self.factory(), self.factory()
        await _spend(first, _KEYS[0], "one", Spending(1))
        found = await second.accounts()
        require(9, not found, f"a new store has the accounts {found} of another one")

    async def _check_keys(self, keys: Sequence[AccountKey]) -> None:
        store = self.factory()
        for number, key in enumerate(keys):
            await _spend(store, key, str(number), Spending(1, 2))
        counts = Counter(keys)
        expected = [(key, counts[key]) for key in sorted(counts, key=lambda key: key.text)]
        found = [(key, state.requests) for key, state in await store.accounts()]
        require(9, found == expected, f"the accounts have the requests {found}, and {expected} were made")

    async def _check_states(self, amounts: Sequence[tuple[int, int]]) -> None:
        store, key, expected = self.factory(), _KEYS[-1], AccountState()
        for number, (tokens, cost) in enumerate(amounts):
            hold = AccountHold(str(number), Spending(tokens, cost), number, "an execution", number)

            def change(state: AccountState, hold: AccountHold = hold) -> AccountState:
                return state.reserve(hold, _LIMIT, 0).settle(str(hold.token - 1), hold.spending)

            update = await store.update_account(key, change)
            require(36, update.before == expected, f"a change got {update.before}, and {expected} was stored before")
            expected = change(expected)
            require(36, update.after == expected, f"the update has {update.after} after a change to {expected}")
        found = dict(await store.accounts())
        require(36, found == ({key: expected} if amounts else {}), f"the accounts are {found} after {expected}")

    def _check_threads(self) -> None:
        """Check that no change is lost that tasks of several threads make at the same time."""
        store, key = self.factory(), _KEYS[0]

        async def spend_many(thread: int) -> None:
            await asyncio.gather(*[_spend(store, key, f"{thread}/{each}", Spending(1)) for each in range(_UPDATES)])

        threads = [
            threading.Thread(target=lambda number=number: asyncio.run(spend_many(number))) for number in range(_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = sum([state.requests for _, state in asyncio.run(_read(store))])
        require(36, total == _THREADS * _UPDATES, f"of {_THREADS * _UPDATES} changes, {total} took effect")


async def _read(store: CanKeepAccounts) -> Sequence[tuple[AccountKey, AccountState]]:
    return await store.accounts()


async def _spend(store: CanKeepAccounts, key: AccountKey, hold_id: str, spending: Spending) -> None:
    """Reserve an amount, and replace the reservation by it, in two changes."""
    hold = AccountHold(hold_id, spending, 1)
    await store.update_account(key, lambda state: state.reserve(hold, _LIMIT, 0))
    await store.update_account(key, lambda state: state.settle(hold_id, spending))
